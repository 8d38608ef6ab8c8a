// The documents that the TypeScript SDK's client sees: argv[2] is a JSON object of command, args and env.
// Prints as JSON the resources of all pages; the text of each by its address, by the address as a URL object writes it and
// by the template filled in by the SDK; what completes the sources of a table; and the error of one that is not there.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { UriTemplate } from "@modelcontextprotocol/sdk/shared/uriTemplate.js";

const { command, args, env, table } = JSON.parse(process.argv[2]);
const client = new Client({ name: "tests", version: "1" });
await client.connect(new StdioClientTransport({ command, args, env }));
const resources = [];
let cursor;
do {
  const page = await client.listResources({ cursor });
  resources.push(...page.resources);
  cursor = page.nextCursor;
} while (cursor);
const { resourceTemplates } = await client.listResourceTemplates();
const ref = { type: "ref/resource", uri: resourceTemplates[0].uriTemplate };
const template = new UriTemplate(ref.uri);
const { completion } = await client.complete({
  ref,
  argument: { name: "source", value: "" },
  context: { arguments: { table } },
});
const read = async (uri) => (await client.readResource({ uri })).contents[0].text;
const texts = [];
for (const { uri } of resources) {
  texts.push([await read(uri), await read(new URL(uri).href)]);
}
const filledIn = [];
for (const source of completion.values) {
  filledIn.push(await read(template.expand({ table, source })));
}
const error = await client.readResource({ uri: `lancelot://${table}/none` }).catch(({ code, message }) => ({ code, message }));
await client.close();
console.log(JSON.stringify({ resources, texts, filledIn, completion, error }));
