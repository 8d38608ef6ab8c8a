"""Makes the tables of README.md and docs/ from the tables of the program: `python3 tests/documents.py` writes them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
PAGES = (PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md")))
COMMAND = "python3 tests/documents.py"
if str(PROJECT) not in sys.path:
    sys.path.insert(0, str(PROJECT))

import build  # noqa: E402 - found once the project is on the path
import lancelot  # noqa: E402 - found once the project is on the path
import lancelot_setup  # noqa: E402 - found once the project is on the path


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def tool_list() -> str:
    """Every tool with the first sentence of its description."""
    rows = [(f"`{tool.name}`", f"{tool.description.partition('. ')[0].rstrip('.')}.") for tool in lancelot.TOOLS]
    return table(("tool", "what it does"), rows)


def tools() -> str:
    """Every tool with its parameters."""
    parts = []
    for tool in lancelot.TOOLS:
        rows = [parameter_row(parameter) for parameter in tool.parameters]
        heads = ("parameter", "type", "required", "meaning")
        parameters = table(heads, rows) if rows else "No parameters."
        parts.append(f"## `{tool.name}`\n\n{tool.description}\n\n{parameters}")
    return "\n\n".join(parts)


def parameter_row(parameter: lancelot.Parameter) -> tuple[str, str, str, str]:
    """One parameter: its name, type, whether it is required, its meaning with the default."""
    kind = " or ".join(f"`{choice}`" for choice in parameter.choices) or parameter.type
    default = parameter.default
    named = {setting.name: setting.default for setting in lancelot.SETTINGS}
    said = f" Default: `{default}`, which is `{named[default]}`." if default in named else ""
    if default is not None and default not in named:
        said = f" Default: `{str(default).lower()}`."
    return f"`{parameter.name}`", kind, "yes" if parameter.required else "no", parameter.help + said


COMMON_SETTINGS = (
    "LANCEDB_PATH",
    "LANCEDB_TABLE",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "EMBEDDING_MODEL",
    "LANCELOT_SEARCH_TYPE",
    "LANCELOT_CHAT_MODEL",
    "LANCELOT_INDEX_ROOTS",
)


def default_of(setting: lancelot.Setting) -> str:
    """The default of a setting, as it is written."""
    shown = f"{setting.default:g}" if isinstance(setting.default, float) else setting.default
    return "none" if setting.default is None else f"`{shown}`"


def settings_table(names: Collection[str]) -> str:
    """The settings of these names, with their defaults."""
    rows = [
        (f"`{setting.name}`", default_of(setting), setting.help)
        for setting in lancelot.SETTINGS
        if setting.name in names
    ]
    return table(("variable", "default", "meaning"), rows)


def settings() -> str:
    """Every setting."""
    return settings_table([setting.name for setting in lancelot.SETTINGS])


def common_settings() -> str:
    """What people set."""
    return settings_table(COMMON_SETTINGS)


def parser_of(command: str) -> Any:
    """The parser of a command, with its own options."""
    return lancelot.build_parser(command)._subparsers._group_actions[0].choices[command]  # type: ignore[union-attr] # noqa: SLF001 - no public way


def options(command: str) -> str:
    """Every option of a command."""
    rows = []
    for action in parser_of(command)._actions[1:]:  # noqa: SLF001 - no public way
        if action.help == argparse.SUPPRESS:
            continue
        name = ", ".join(action.option_strings) or action.metavar or action.dest
        value = "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or action.dest.upper()}"
        rows.append((f"`{name}{value}`", (action.help or "").replace("%%", "%")))
    return table((f"`{command}`", "meaning"), rows)


def commands() -> str:
    """Every command with its help, and the options of those that run no tool."""
    rows = [("none", "serve MCP on standard input and output: what a client starts")]
    rows += [(f"`{name}`", shown) for name, (_, shown) in lancelot.COMMANDS.items()]
    own = [name for name, (run, _) in lancelot.COMMANDS.items() if run is not lancelot.command_tool]
    tables = [options(name) for name in own if len(parser_of(name)._actions) > 1]  # noqa: SLF001 - no public way
    return "\n\n".join([table(("command", "what it does"), rows), *tables])


def place(client: lancelot_setup.Client) -> str:
    """Where a client's files are for the user, in the words of a person."""
    folders = {"home": "~", "claude": "~", "gemini": "~", "codex": "~/.codex"}
    folders |= {
        "apps": "APPS",
        "code": "APPS",
        "storage": "APPS/anythingllm-desktop/storage",
        "local": "%LOCALAPPDATA%",
    }
    usual, *others = (path.format(**folders) for path in (client.user, *map("/".join, client.others)))
    return f"`{usual}`" + (f", also {', '.join(f'`{other}`' for other in others)}" if others else "")


def clients() -> str:
    """Every client whose file `init` writes."""
    rows = [
        (f"`{client.name}`", place(client), f"`{client.project}`" if client.project else "")
        for client in lancelot_setup.CLIENTS
    ]
    return table(("client", "the user's file", "with `--scope project`"), rows)


SAMPLE = ("/usr/bin/python3", "/home/me/lancelot.pyz")


def snippets() -> str:
    """What a new file of each client holds; clients with the same one share it."""
    titles: dict[tuple[str, str], list[str]] = {}
    for client in lancelot_setup.CLIENTS:
        language = "toml" if client.format == lancelot_setup.TOML else "json"
        text = client.format.edited("", (client.key, "lancelot"), client.entry(SAMPLE, {}))
        text = re.sub(r'\[\s+("[^"]*")\s+\]', r"[\1]", text)  # a list of one word on one line
        titles.setdefault((language, text), []).append(client.title)
    parts = [f"{', '.join(names)}:\n\n```{language}\n{text}```" for (language, text), names in titles.items()]
    return "\n\n".join(
        [*parts, f"Claude Code by its own command:\n\n```bash\n{lancelot_setup.claude_command(SAMPLE, {})}\n```"]
    )


def oldest(platform: build.Platform) -> str:
    """The oldest system that an archive of a platform runs on."""
    needs = {"Linux": "Linux with glibc {}.{} or newer".format(*build.GLIBC), "Darwin": f"macOS {build.MACOS} or newer"}
    return needs.get(platform.system, platform.system)


def targets() -> str:
    """Every platform that archives are made for, with the name of one of its files."""
    pythons = ", ".join(build.PYTHONS)
    rows = [
        (
            f"`{platform.name}`",
            oldest(platform),
            pythons,
            f"`{build.Target(build.PYTHONS[0], platform).stem.replace(lancelot.__version__, 'VERSION')}.pyz`",
        )
        for platform in build.PLATFORMS
    ]
    return table(("platform", "runs on", "Python", "file, for Python " + build.PYTHONS[0]), rows)


PARTS = {
    "tool list": tool_list,
    "tools": tools,
    "common settings": common_settings,
    "settings": settings,
    "commands": commands,
    "clients": clients,
    "snippets": snippets,
    "targets": targets,
}
MARKED = re.compile(r"(<!-- ([a-z ]+): made by [^\n]*-->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def rendered(text: str) -> str:
    """The page with each part between its markers made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n\n{found[3]}", text)


if __name__ == "__main__":
    pages = {page: rendered(page.read_text(encoding="utf-8")) for page in PAGES}  # all of them, or none is written
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
    sys.stdout.write(f"The tables of {', '.join(page.name for page in PAGES)} are made anew.\n")
