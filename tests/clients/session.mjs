// One session of the TypeScript SDK's client: argv[2] is a JSON object of command, args, env and calls.
// Prints the names of the tools and the result of each call as JSON.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const { command, args, env, calls } = JSON.parse(process.argv[2]);
const client = new Client({ name: "tests", version: "1" });
await client.connect(new StdioClientTransport({ command, args, env }));
const { tools } = await client.listTools();
const results = [];
for (const call of calls) {
  results.push(await client.callTool(call));
}
await client.close();
console.log(JSON.stringify({ tools: tools.map((tool) => tool.name), results }));
