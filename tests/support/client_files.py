"""Files of clients as people have them, before our entry comes in; KEY stands for the object that holds the servers."""

FOREIGN_JSON = """{
    "theme" : "dark",   "numbers": [1.50, 1e3],
    "KEY": {
        "other": {"command": "node", "args": ["\\u00e5.js"], "env": {"TOKEN": "ghp_1"}},
        "last":
            { "command" : "x" }
    },
    "after": null
}
"""
COMMENTED = """// servers of mine
{
\t// the "KEY" of all
\t"KEY": {
\t\t"other": {"command": "node"}, // keep: "}" and ,
\t\t/* and
\t\t   this */
\t\t"url": {"command": "https://example.com//x"}, // the last, with a comma
\t\t// "lancelot": {},
\t},
\t"inputs": [1, 2,], // end
}
// after
"""
WITHOUT_LAST_COMMAS = COMMENTED.replace("}, // the last, with a comma", "}").replace("2,], //", "2] //")
FOREIGN_TOML = """# mine
model = "o3"   # [mcp_servers.lancelot]
notes = \"\"\"
[mcp_servers.lancelot]
command = "not this"
\"\"\"
matrix = [
  [1, 2],
  [3],
]

[mcp_servers.other]
command = 'node' # comment
args = ["a", "b"]

[mcp_servers."other".env]
TOKEN = "x"

# about profiles
[[profiles]]
name = "a"
"""
