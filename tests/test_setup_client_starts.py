"""What the file that ships writes for each client: read by that client's rules, and started as the client starts it."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import jsonschema
import pytest
import wire
from client_files import COMMENTED, FOREIGN_JSON, FOREIGN_TOML, WITHOUT_LAST_COMMAS
from conftest import DATABASES, is_subsequence
from pythons import ARCHIVE, PYTHON

import lancelot_setup

pytestmark = [
    pytest.mark.skipif(not ARCHIVE.exists(), reason=f"{ARCHIVE} is not there: python3 build.py makes it"),
    pytest.mark.skipif(os.name == "nt", reason="the places of these files are those of Linux and macOS"),
]

NAMES = [client.name for client in lancelot_setup.CLIENTS]
EVERY = pytest.mark.parametrize("name", NAMES)
APPS = "Library/Application Support" if sys.platform == "darwin" else ".config"
SECONDS = 120

# --- the rules of each client, as public sources give them; of long schemas the parts about a server that is started

TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
BY_NAME = {"type": "object", "additionalProperties": TEXT}


def schema(key: str, server: Mapping[str, Any], **rest: Any) -> dict[str, Any]:
    """A file in which a key holds servers by name, each of which must be started by a command."""
    started = {"type": "object", "required": ["command"], **server}
    servers = {"type": "object", "additionalProperties": started, "required": ["lancelot", "other"]}
    return {"type": "object", "required": [key], "properties": {key: servers}, **rest}


STARTED = {"command": TEXT, "args": TEXTS, "env": BY_NAME}
TYPED = {"type": {"const": "stdio"}, **STARTED}


@dataclass(frozen=True)
class Rules:
    """Where a client's file is below the home folder, what is in it already, and what the client demands of it."""

    place: str
    before: str
    schema: dict[str, Any]


PLAIN = FOREIGN_JSON.replace("KEY", "mcpServers")
RULES = {
    # https://code.claude.com/docs/en/mcp#mcp-installation-scopes: servers of the user are in ~/.claude.json, "type" names
    # the transport, and every field of a server is a string, a list or an object of strings.
    "claude-code": Rules(".claude.json", PLAIN, schema("mcpServers", {"properties": TYPED})),
    # https://modelcontextprotocol.io/docs/develop/connect-local-servers; the app refuses a server without a command:
    # https://github.com/tadata-org/fastapi_mcp/issues/6
    "claude-desktop": Rules(
        f"{APPS}/Claude/claude_desktop_config.json", PLAIN, schema("mcpServers", {"properties": STARTED})
    ),
    # https://cursor.com/docs/mcp: type, command, args, env and envFile; comments and last commas are read.
    "cursor": Rules(
        ".cursor/mcp.json",
        COMMENTED.replace("KEY", "mcpServers"),
        schema("mcpServers", {"properties": {**TYPED, "envFile": TEXT}, "additionalProperties": False}),
    ),
    # https://github.com/microsoft/vscode/blob/main/src/vs/workbench/contrib/mcp/common/mcpConfiguration.ts: mcpServerSchema
    "vscode": Rules(
        f"{APPS}/Code/User/mcp.json",
        COMMENTED.replace("KEY", "servers"),
        schema(
            "servers",
            {"properties": {**TYPED, "cwd": TEXT, "envFile": TEXT}, "additionalProperties": False},
            propertyNames={"enum": ["servers", "inputs"]},
        ),
    ),
    # https://docs.devin.ai/desktop/cascade/mcp
    "windsurf": Rules(
        ".codeium/windsurf/mcp_config.json", PLAIN, schema("mcpServers", {"properties": {**STARTED, "type": False}})
    ),
    # https://github.com/openai/codex/blob/main/codex-rs/core/config.schema.json: RawMcpServerConfig, which has no "type"
    "codex": Rules(
        ".codex/config.toml",
        FOREIGN_TOML,
        schema(
            "mcp_servers",
            {
                "properties": {**STARTED, "cwd": TEXT, "startup_timeout_sec": {"type": "number"}},
                "additionalProperties": False,
            },
        ),
    ),
    # https://github.com/google-gemini/gemini-cli/blob/main/schemas/settings.schema.json: MCPServerConfig
    "gemini": Rules(
        ".gemini/settings.json",
        WITHOUT_LAST_COMMAS.replace("KEY", "mcpServers"),
        schema(
            "mcpServers",
            {
                "properties": {**STARTED, "cwd": TEXT, "timeout": {"type": "number"}, "type": TEXT},
                "additionalProperties": False,
            },
        ),
    ),
    # https://github.com/Mintplex-Labs/anything-llm/blob/master/server/utils/MCP/hypervisor/index.js: "args" must be a list
    "anythingllm": Rules(
        f"{APPS}/anythingllm-desktop/storage/plugins/anythingllm_mcp_servers.json",
        PLAIN,
        schema("mcpServers", {"properties": {**STARTED, "type": False}}),
    ),
}


def parsed(name: str, path: Path) -> dict[str, Any]:
    """The file as a reader knows it that has nothing to do with what wrote it."""
    text = path.read_text(encoding="utf-8")
    if name == "codex":
        return dict(pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML").loads(text))
    if RULES[name].before.startswith("//"):
        strings_and_comments = r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/'
        text = re.sub(strings_and_comments, lambda found: found[1] or "", text, flags=re.DOTALL)
        text = re.sub(r",(\s*[}\]])", r"\1", text)
    return dict(json.loads(text))


def servers_in(name: str, path: Path) -> dict[str, Any]:
    return dict(parsed(name, path)[{"vscode": "servers", "codex": "mcp_servers"}.get(name, "mcpServers")])


# --- a home with files of every client, set up by the file that ships


def run_init(*words: str, python: str = PYTHON, archive: str = str(ARCHIVE), **options: Any) -> str:
    """Runs `init` without questions and returns what it printed; it must succeed."""
    done = subprocess.run(
        [python, archive, "init", "--path", str(DATABASES / "no-vector"), "--yes", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
        **options,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@dataclass(frozen=True)
class Home:
    """A home folder, how its files were after one run and after two, and what was printed."""

    path: Path
    environ: dict[str, str]
    once: dict[str, bytes]
    told: str

    def file(self, name: str) -> Path:
        return self.path / RULES[name].place


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, archive_cache: Path) -> Home:
    """Every client has a file with a server of another program; ours was added twice."""
    path = tmp_path_factory.mktemp("home")
    for rules in RULES.values():
        (path / rules.place).parent.mkdir(parents=True, exist_ok=True)
        (path / rules.place).write_text(rules.before, encoding="utf-8")
    environ = {"HOME": str(path), "SHIV_ROOT": str(archive_cache)}
    told = run_init("--client", "all", env=environ, cwd=path)
    once = {name: (path / RULES[name].place).read_bytes() for name in NAMES}
    run_init("--client", "all", env=environ, cwd=path)
    return Home(path, environ, once, told)


def check_start(command: Sequence[str], variables: Mapping[str, str]) -> None:
    """Starts a server in the root folder with no variables but these: it must know its tools and find its folder."""
    server = wire.Server(variables, command=command, cwd=Path("/"))
    try:
        assert server.ask(wire.handshake(1))["result"]["serverInfo"]["name"] == "lancelot"
        server.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        tools = server.ask({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})["result"]["tools"]
        assert [tool["name"] for tool in tools] == wire.ALWAYS_OFFERED
        status = {"name": "lancedb_status", "arguments": {}}
        answer = server.ask({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": status})
        assert json.loads(wire.text_of(answer))["folder"] == str(DATABASES / "no-vector")
    finally:
        server.stop()


@EVERY
def test_the_client_s_own_rules_hold_for_its_file(name: str, home: Home) -> None:
    jsonschema.validate(parsed(name, home.file(name)), RULES[name].schema)


@EVERY
def test_the_second_run_changed_nothing(name: str, home: Home) -> None:
    assert home.file(name).read_bytes() == home.once[name]


@EVERY
def test_nothing_that_was_there_before_was_touched(name: str, home: Home) -> None:
    assert is_subsequence(RULES[name].before.encode(), home.file(name).read_bytes())
    assert servers_in(name, home.file(name))["other"]["command"] == "node"


@EVERY
def test_the_command_in_the_file_starts_from_the_root_in_a_bare_environment(name: str, home: Home) -> None:
    entry = servers_in(name, home.file(name))["lancelot"]
    assert entry["env"] == home.environ  # another home than the account's, another place to unpack to
    check_start([entry["command"], *entry["args"]], entry["env"])


def test_what_was_added_is_taken_out_to_the_last_byte(home: Home, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(home.path, tmp_path / "copy"))
    run_init("--client", "all", "--remove", env=home.environ | {"HOME": str(copy)})
    for rules in RULES.values():
        assert (copy / rules.place).read_text(encoding="utf-8") == rules.before
    assert list(copy.rglob("*.lancelot-backup")) == []


def test_the_entry_for_clients_that_are_not_known_is_what_stands_in_their_files(home: Home) -> None:
    _, _, told = run_init("--show", env=home.environ).partition("For clients with an mcpServers file:")
    entry, _ = json.JSONDecoder().raw_decode(told.strip())
    assert entry["mcpServers"]["lancelot"] == servers_in("windsurf", home.file("windsurf"))["lancelot"]


# https://cursor.com/docs/mcp/install-links: the server's object of mcp.json as Base64, its name beside it
def test_the_link_for_cursor_adds_what_stands_in_its_file(home: Home) -> None:
    link = next(line for line in run_init("--show", env=home.environ).splitlines() if line.startswith("cursor:"))
    parts = urlsplit(link)
    assert (parts.netloc, parts.path) == ("anysphere.cursor-deeplink", "/mcp/install")
    given = parse_qs(parts.query, strict_parsing=True)
    assert given["name"] == ["lancelot"]
    config = json.loads(base64.b64decode(given["config"][0], validate=True).decode("ascii"))
    assert config == servers_in("cursor", home.file("cursor"))["lancelot"]


# https://code.visualstudio.com/docs/copilot/guides/mcp-developer-guide: `vscode:mcp/install?` and what --add-mcp takes
def test_the_link_for_vs_code_adds_what_stands_in_its_file(home: Home) -> None:
    link = next(line for line in run_init("--show", env=home.environ).splitlines() if line.startswith("vscode:"))
    place, _, query = link.partition("?")
    assert place == "vscode:mcp/install"
    assert re.fullmatch(r"[A-Za-z0-9%._~-]+", query)
    assert json.loads(unquote(query)) == {"name": "lancelot", **servers_in("vscode", home.file("vscode"))["lancelot"]}


def test_settings_in_a_folder_of_their_own_are_found_without_its_variable(home: Home, tmp_path: Path) -> None:
    environ = home.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "conf")}
    run_init("--client", "claude-code", env=environ)
    assert (tmp_path / "conf" / "lancelot" / "settings.json").exists()
    entry = servers_in("claude-code", tmp_path / ".claude.json")["lancelot"]
    assert entry["env"] == environ
    check_start([entry["command"], *entry["args"]], entry["env"])


def test_odd_letters_in_the_paths_and_a_relative_link_reach_every_client_whole(home: Home, tmp_path: Path) -> None:
    odd = """it's "å\u2028ä" \\ %PATH% #;"""
    python = tmp_path / f"py {odd}" / "bin" / "python"
    venv.create(python.parent.parent, symlinks=True)
    link = tmp_path / f"{odd}.pyz"
    link.symlink_to(ARCHIVE)
    environ = home.environ | {"HOME": str(tmp_path)}
    words = [word for name in NAMES for word in ("--client", name)]
    run_init(*words, python=str(python), archive=link.name, env=environ, cwd=tmp_path)
    for name in NAMES:
        entry = servers_in(name, tmp_path / RULES[name].place)["lancelot"]
        assert (entry["command"], entry["args"], entry["env"]) == (str(python), [str(link)], environ)
    check_start([str(python), str(link)], environ)
