// A client's file as the client reads it: argv[2] is how, argv[3] the file. Prints its value as JSON.
import { readFileSync } from "node:fs";
import { parse } from "jsonc-parser";
import stripJsonComments from "strip-json-comments";

const READERS = {
  json: JSON.parse,
  // VS Code: src/vs/platform/mcp/common/mcpResourceScannerService.ts
  jsonc: (text) => {
    const errors = [];
    const value = parse(text, errors, { allowTrailingComma: true, allowEmptyContent: true });
    if (errors.length > 0) {
      throw new Error(JSON.stringify(errors));
    }
    return value;
  },
  // Gemini CLI: packages/cli/src/utils/commentJson.ts
  stripped: (text) => JSON.parse(stripJsonComments(text)),
};
console.log(JSON.stringify(READERS[process.argv[2]](readFileSync(process.argv[3], "utf8"))));
