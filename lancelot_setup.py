"""What a person does beside searching: `init`, `doctor`, `demo`, and the archive's `verify` and `cache`.

The server never loads this module. It writes settings, keys and the configuration files of MCP clients, and no database.

Sections, in order; each uses the ones above it and none below:

Client files  what other programs need to start the server, their files, and where they keep their folders
Archive       `verify` and `cache`: the file that ships, and what it unpacked
Doctor        the checks that ask servers, and a session with this very program
Init          questions, settings and keys, and the server in the clients' files
Demo          the documentation, indexed and served to a real client
Commands      the commands, and their options
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import difflib
import errno
import functools
import getpass
import json
import os
import re
import stat
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO, cast
from urllib.parse import quote

import lancelot  # what stands on many pages is imported by its name besides
from lancelot import PROGRAM, Check, Examination, LancelotError, Session, Status, listed, say, type_of_option

# ======================================================================================================================
# Client files
# ======================================================================================================================
# What other programs need to start the server, the files that they read it from, and where they keep a folder that it can
# read. Commands are absolute, since clients start servers from anywhere with any PATH. A file of another program is edited
# in place: whatever is not our entry stays as it is, and a file that cannot be read is left alone.


UNPACK_FOLDER = "SHIV_ROOT"
"""Where the archive is unpacked, when the person chose a place: a client that starts it has to know."""


def start_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a client must set for the server besides its command."""
    folder = environ.get(UNPACK_FOLDER)
    return {UNPACK_FOLDER: os.path.abspath(os.path.expanduser(folder))} if folder else {}  # noqa: PTH100, PTH111 - never raise


def server_entry(command: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry that makes most clients start the server."""
    entry: dict[str, Any] = {"command": command[0], "args": list(command[1:])}
    return entry | ({"env": dict(variables)} if variables else {})


def client_entry(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return the `mcpServers` file that most clients take, as JSON."""
    return json.dumps({"mcpServers": {PROGRAM: server_entry(command, variables)}}, indent=2, ensure_ascii=False)


def claude_command(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return the line that adds the server to Claude Code; `--transport` ends the variables, which take many values."""
    given = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    return lancelot.shell_line(["claude", "mcp", "add", *given, "--transport", "stdio", PROGRAM, "--", *command])


# --- formats: the text of a file with an entry added, replaced or taken out


_JSON_COMMENT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|//[^\r\n]*|/\*.*?\*/', re.DOTALL)
_JSON_LAST_COMMA = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|,(?=[ \t\r\n]*[}\]])', re.DOTALL)
_JSON_KEY = re.compile(r'[ \t\r\n,]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_SPACES = " \t\r\n"


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """Return the text with spaces for what matches outside of strings; every offset stays."""
    return pattern.sub(lambda match: match[0] if match[0][0] == '"' else re.sub(r"[^\r\n]", " ", match[0]), text)


def _json_members(plain: str, brace: int) -> dict[str, tuple[int, int, int]]:
    """Return the offsets of each member of an object by its name: of its key, its value and its end."""
    members: dict[str, tuple[int, int, int]] = {}
    end = brace + 1
    while match := _JSON_KEY.match(plain, end):
        name = json.loads(match[1])
        if name in members:  # readers differ in which of them counts
            raise ValueError(f'it names "{name}" twice')
        _, end = json.JSONDecoder().raw_decode(plain, match.end())
        members[name] = match.start(1), match.end(), end
    return members


def _newline_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent_at(text: str, at: int) -> str:
    """Return the white space that the line of an offset begins with."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _json_step(text: str) -> str:
    step = re.search(r'\n([ \t]+)"', text)
    return step[1] if step else "  "


def _json_value(text: str, value: object, indent: str) -> str:
    """Return a value as it is written into a text, with its line ends and its indentation."""
    lines = json.dumps(value, ensure_ascii=False, indent=_json_step(text))
    return lines.replace("\n", _newline_of(text) + indent)


def _json_insert(text: str, brace: int, first: int | None, name: str, value: object) -> str:
    """Return the text with a new first member of an object: no comma or comment that stands in it then needs a change."""
    newline, base = _newline_of(text), _indent_at(text, brace)
    indent = _indent_at(text, first) if first and "\n" in text[brace:first] else base + _json_step(text)
    end = "," if first else "" if re.match(r"[ \t]*[\r\n]", text[brace + 1 :]) else newline + base
    member = f"{newline}{indent}{json.dumps(name)}: {_json_value(text, value, indent)}{end}"
    return text[: brace + 1] + member + text[brace + 1 :]


def _nested(keys: Sequence[str], value: object) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


@dataclass(frozen=True)
class JsonFormat:
    """JSON as a client reads it, some with comments and with commas after a last member.

    Its users chose comments, an order and a layout, so nothing is written anew: an edit is a cut or an insertion. No package
    is taken for that, since those that know comments re-serialise what they read.
    """

    comments: bool = False
    last_commas: bool = False

    def _plain(self, text: str) -> str:
        """Return the text as JSON of the same length: what the client takes besides are spaces."""
        bare = _blanked(_JSON_COMMENT, text) if self.comments else text
        return _blanked(_JSON_LAST_COMMA, bare) if self.last_commas else bare

    def data(self, text: str) -> dict[str, Any]:
        """Return the object that a text holds, {} for a blank one; ValueError says what is wrong with it."""
        plain = self._plain(text)
        value = json.loads(plain) if plain.strip(_SPACES) else {}
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")  # noqa: TRY004 - the file's fault, like the others
        return value

    def edited(self, text: str, keys: Sequence[str], entry: Mapping[str, Any] | None) -> str:
        """Return a text that `data` reads with this entry at a path of keys, or without the one there for None."""
        code = _blanked(_JSON_COMMENT, text) if self.comments else text
        plain = self._plain(text)
        if not plain.strip(_SPACES):
            joint = _newline_of(text) if text.strip(_SPACES) and not text.endswith("\n") else ""
            return text + joint + _json_value(text, _nested(keys, entry), "") + _newline_of(text)
        start = plain.index("{")
        for depth, key in enumerate(keys, 1):
            members = _json_members(plain, start)
            if key not in members:
                first = next((begin for begin, _, _ in members.values()), None)
                return text if entry is None else _json_insert(text, start, first, key, _nested(keys[depth:], entry))
            begin, start, end = members[key]
        if entry is not None:
            return text[:start] + _json_value(text, entry, _indent_at(text, begin)) + text[end:]
        comma = re.compile(r"[ \t\r\n]*,").match(code, end)
        rest = text[comma.end() if comma else end :]
        before = text[:begin].rstrip(_SPACES)
        if "\n" in text[len(before) : begin] and rest.partition("\n")[0].strip(_SPACES):
            before = text[:begin]  # what follows on the line must not end up in a comment before it
        previous = max((last for _, _, last in members.values() if last < begin), default=None)
        if previous is not None and not comma:
            at = code.index(",", previous)
            before = before[:at] + before[at + 1 :]
        return before + rest


class TomlFormat:
    """TOML, edited by tomlkit, which keeps what it does not touch."""

    def data(self, text: str) -> dict[str, Any]:
        """Return what a text holds; ValueError says what is wrong with it."""
        import tomlkit

        return tomlkit.parse(text).unwrap()

    def edited(self, text: str, keys: Sequence[str], entry: Mapping[str, Any] | None) -> str:
        """Return the text with this entry in the place of the one there, else at the end; or without it for None."""
        import tomlkit

        document: Any = tomlkit.parse(text)
        outer, name = keys
        servers = document.get(outer, {})
        if entry is None:
            servers.pop(name, None)
        elif name in servers or isinstance(servers, tomlkit.items.InlineTable):
            servers[name] = entry
        else:  # tomlkit would put it after the last table of its kind, and so under the comment of the next one
            joint = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
            return text + (joint + tomlkit.dumps(_nested(keys, entry))).replace("\n", _newline_of(text))
        edited: str = document.as_string()
        # The comments that went with a table, as those before the next one do, are put at the end.
        lost = [line for line in text.splitlines() if line.lstrip().startswith("#") and line not in edited]
        return edited + "".join(line + _newline_of(text) for line in lost)


# --- the clients


System = Literal["linux", "macos", "windows"]

JSON = JsonFormat()
COMMENTED_JSON = JsonFormat(comments=True)
JSON_OF_VS_CODE = JsonFormat(comments=True, last_commas=True)
TOML = TomlFormat()
BRACED = r"\$\{"
"""How a reference to a variable begins in the files of most clients that know any."""


@dataclass(frozen=True)
class Client:
    """A program that starts MCP servers, and the file that it reads them from.

    Places begin with a folder of `Machine.folders` in braces. `others` are further folders, with wildcards, and the file
    that is read in each of them that is there; `signs` are paths one of which is there where the client is installed, the
    folder of `user` where none is named. `link` is an address that makes the client add the server once its user agrees.
    `expands` matches what the client takes for a variable, in any word of an entry; `typed` entries name their transport.
    """

    name: str
    title: str
    user: str
    project: str = ""
    others: tuple[tuple[str, str], ...] = ()
    signs: tuple[str, ...] = ()
    link: str = ""
    expands: str = ""
    key: str = "mcpServers"
    format: JsonFormat | TomlFormat = JSON
    typed: bool = False

    def entry(self, command: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
        """Return the entry of this client's file that makes it start the server."""
        return {**({"type": "stdio"} if self.typed else {}), **server_entry(command, variables)}

    def checked_entry(self, command: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
        """Return the same; LancelotError where a word in it would reach the server as another one."""
        for word in (*command, *variables.values()):
            if self.expands and re.search(self.expands, word):
                raise LancelotError(
                    f"{self.title} takes what follows the $ in {word} for a variable, so its file was left as it is.",
                    "Move or rename what has a $ in its name, and run `init` again.",
                )
        return self.entry(command, variables)

    def install_link(self, command: Sequence[str], variables: Mapping[str, str]) -> str:
        """Return the link that adds the same entry, or "" if the client knows none."""
        entry = self.entry(command, variables)
        named, plain = (json.dumps(value, separators=(",", ":")) for value in ({"name": PROGRAM, **entry}, entry))
        encoded = base64.b64encode(plain.encode()).decode()  # of ASCII, as `atob` reads it
        return self.link.format(name=PROGRAM, named=quote(named, safe=""), encoded=quote(encoded, safe=""))


CLIENTS = (
    Client(
        # https://code.claude.com/docs/en/mcp
        "claude-code",
        "Claude Code",
        "{claude}/.claude.json",
        project=".mcp.json",
        signs=("{claude}/.claude.json", "{home}/.claude"),
        expands=BRACED,
        typed=True,
    ),
    Client(
        # https://modelcontextprotocol.io/docs/develop/connect-local-servers
        # The package's folder: https://github.com/anthropics/claude-code/issues/26073
        "claude-desktop",
        "Claude Desktop",
        "{apps}/Claude/claude_desktop_config.json",
        others=(("{local}/Packages/Claude_*", "LocalCache/Roaming/Claude/claude_desktop_config.json"),),
    ),
    Client(
        # https://cursor.com/docs/mcp; the link: https://cursor.com/docs/mcp/install-links
        "cursor",
        "Cursor",
        "{home}/.cursor/mcp.json",
        project=".cursor/mcp.json",
        link="cursor://anysphere.cursor-deeplink/mcp/install?name={name}&config={encoded}",
        expands=BRACED,
        format=JSON_OF_VS_CODE,
        typed=True,
    ),
    Client(
        # https://code.visualstudio.com/docs/copilot/reference/mcp-configuration
        # The folders: https://github.com/microsoft/vscode/blob/main/src/vs/platform/environment/node/userDataPath.ts
        # The link: https://code.visualstudio.com/docs/copilot/guides/mcp-developer-guide
        "vscode",
        "VS Code",
        "{code}/Code/User/mcp.json",
        project=".vscode/mcp.json",
        # Insiders and builds of the source, VSCodium, and the profiles, which do not see the servers of the default one.
        others=(
            ("{code}/Code - */User", "mcp.json"),
            ("{code}/VSCodium/User", "mcp.json"),
            ("{code}/Code*/User/profiles/*", "mcp.json"),
            ("{code}/VSCodium/User/profiles/*", "mcp.json"),
        ),
        link="vscode:mcp/install?{named}",
        expands=BRACED,
        key="servers",
        format=JSON_OF_VS_CODE,
        typed=True,
    ),
    # https://docs.devin.ai/desktop/cascade/mcp
    Client("windsurf", "Windsurf", "{home}/.codeium/windsurf/mcp_config.json", expands=BRACED),
    Client(
        # https://developers.openai.com/codex/mcp
        # The fields: https://github.com/openai/codex/blob/main/codex-rs/core/config.schema.json
        "codex",
        "Codex",
        "{codex}/config.toml",
        project=".codex/config.toml",
        key="mcp_servers",
        format=TOML,
    ),
    Client(
        # https://github.com/google-gemini/gemini-cli/blob/main/docs/tools/mcp-server.md
        # GEMINI_CLI_HOME: https://github.com/google-gemini/gemini-cli/issues/23622
        "gemini",
        "Gemini CLI",
        "{gemini}/.gemini/settings.json",
        project=".gemini/settings.json",
        expands=r"\$\{|\$\w",
        format=COMMENTED_JSON,
    ),
    Client(
        # https://docs.anythingllm.com/mcp-compatibility/overview
        # The file: https://github.com/Mintplex-Labs/anything-llm/blob/master/server/utils/MCP/hypervisor/index.js
        "anythingllm",
        "AnythingLLM",
        "{storage}/plugins/anythingllm_mcp_servers.json",
        signs=("{storage}",),
    ),
)


def this_system() -> System:
    """Return the system that this program runs on."""
    return "windows" if os.name == "nt" else "macos" if sys.platform == "darwin" else "linux"


@dataclass(frozen=True)
class Machine:
    """Where files of clients are looked for: the system, the environment, and the folder of the project."""

    system: System
    environ: Mapping[str, str]
    project: Path

    @functools.cached_property
    def folders(self) -> dict[str, str]:
        """The folders that places of clients begin with, by the name that they have there."""
        environ = self.environ
        home = environ.get("USERPROFILE" if self.system == "windows" else "HOME") or str(lancelot.home_folder())
        apps = {
            "linux": environ.get("XDG_CONFIG_HOME") or f"{home}/.config",
            "macos": f"{home}/Library/Application Support",
            "windows": environ.get("APPDATA") or f"{home}/AppData/Roaming",
        }[self.system]
        return {
            "home": home,
            "apps": apps,
            "local": environ.get("LOCALAPPDATA") or f"{home}/AppData/Local",
            "code": environ.get("VSCODE_APPDATA") or apps,
            "claude": environ.get("CLAUDE_CONFIG_DIR") or home,
            "codex": environ.get("CODEX_HOME") or f"{home}/.codex",
            "gemini": environ.get("GEMINI_CLI_HOME") or home,
            "storage": environ.get("STORAGE_DIR") or f"{apps}/anythingllm-desktop/storage",
        }

    def path(self, place: str) -> Path:
        """Return a place of the table as a path of this machine."""
        return Path(place.format(**self.folders))


def _other_paths(client: Client, machine: Machine) -> list[Path]:
    """Return the files in the further folders that are there: those of packages, editions and profiles."""
    paths: list[Path] = []
    for place, name in client.others:
        start, _, pattern = place.partition("/")
        if start != "{local}" or machine.system == "windows":
            paths += [folder / name for folder in sorted(machine.path(start).glob(pattern)) if folder.is_dir()]
    return paths


def client_paths(client: Client, machine: Machine, scope: Literal["user", "project"]) -> list[Path]:
    """Return the files that the client reads: one for each way in which it is installed, or the usual one; [] for none."""
    if scope == "project":
        return [machine.project / client.project] if client.project else []
    usual, others = machine.path(client.user), _other_paths(client, machine)
    return [usual, *others] if usual.parent.is_dir() or not others else others


def is_installed(client: Client, machine: Machine) -> bool:
    """Return whether the client has been used on this machine."""
    signs = [machine.path(sign) for sign in client.signs] or [machine.path(client.user).parent]
    return any(sign.exists() for sign in signs) or bool(_other_paths(client, machine))


def anythingllm_folder(machine: Machine) -> Path | None:
    """Return the LanceDB folder of AnythingLLM on this machine, or None if there is none with tables."""
    folder = machine.path("{storage}/lancedb")
    return folder if lancelot.holds_tables(folder) else None


def account_home() -> str:
    """Return the home folder of this account whatever variables say, or "" if none is recorded, as on Windows."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (ImportError, KeyError):
        return ""


def client_variables(environ: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
    """Return what a client's file sets for the server: what is in this environment, is not stored, and is no secret."""
    plain = [setting.name for setting in lancelot.SETTINGS if not setting.secret]
    variables = {name: lancelot.clean_surrogates(environ.get(name, "")).strip() for name in plain}
    path = variables["LANCEDB_PATH"] or stored.get("LANCEDB_PATH", "")
    variables = {name: value for name, value in variables.items() if value and stored.get(name) != value}
    variables |= lancelot.store_variables(path, environ)[0]
    variables = {name: value for name, value in variables.items() if lancelot.without_password(value) == value}
    # Some clients start servers with a bare environment: what is stored or unpacked must be found without these, too.
    own, config = account_home(), environ.get("XDG_CONFIG_HOME")
    home = environ.get("HOME") or own
    if os.name != "nt" and Path(home) != Path(own):
        variables["HOME"] = home
    if config and Path(config) != Path(home) / ".config":
        variables["XDG_CONFIG_HOME"] = config
    return variables | start_environment(environ)


# --- changing a client's file


BOM = "\ufeff"


@dataclass(frozen=True)
class FileEdit:
    """What is to become of a file and of its backup: their bytes, None where there is no file."""

    path: Path
    before: bytes | None
    after: bytes | None
    backup: bytes | None


def backup_of(path: Path) -> Path:
    """Return where the content that a client's file had before is kept."""
    return path.with_name(f"{path.name}.lancelot-backup")


def _file_content(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is none."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path.name} is not a file")  # a pipe would be waited for
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _left_alone(path: Path, error: Exception) -> LancelotError:
    reason = "it is not UTF-8" if isinstance(error, UnicodeError) else lancelot.reason_of(error)
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else reason
    return LancelotError(f"{path} was left as it is: {reason}.", "Mend that, and run `init` again.")


def _divided(client: Client, content: bytes | None) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return our entry in a file, or None if there is none, and all else in it; ValueError where it cannot be read."""
    data = client.format.data((content or b"").decode("utf-8-sig"))
    servers = data.get(client.key, {})
    if not isinstance(servers, Mapping):
        raise ValueError(f'"{client.key}" in it holds no servers by name')  # noqa: TRY004 - the file's fault, like the others
    entry = servers.get(PROGRAM)
    if not isinstance(entry, dict | None):
        raise ValueError(f'"{PROGRAM}" in it is no entry of a server')  # noqa: TRY004
    others = {name: server for name, server in servers.items() if name != PROGRAM}
    return entry, {**data, client.key: others}


def entry_in(client: Client, content: bytes | None) -> dict[str, Any] | None:
    """Return our entry in a file, or None if there is none; ValueError where the file cannot be read."""
    return _divided(client, content)[0]


@dataclass(frozen=True)
class Entry:
    """Our entry in a file of a client, {} where the file cannot be read, and whose file that is."""

    client: Client
    path: Path
    scope: Literal["user", "project"]
    content: dict[str, Any]


def entries_on(machine: Machine) -> Iterator[Entry]:
    """Yield our entry in every file of a client that has one, of the project and of the user, and the broken files."""
    scopes: tuple[Literal["project", "user"], ...] = ("project", "user")
    places = [
        (path, client, scope) for scope in scopes for client in CLIENTS for path in client_paths(client, machine, scope)
    ]
    for path, (client, scope) in {path: (client, scope) for path, client, scope in places}.items():
        content: dict[str, Any] | None = {}
        with contextlib.suppress(OSError, ValueError, RecursionError):
            content = entry_in(client, _file_content(path))
        if content is not None:
            yield Entry(client, path, scope, content)


def _edited(client: Client, content: bytes | None, entry: Mapping[str, Any] | None) -> bytes:
    """Return the content of a file with our entry put into it, or without our entry for None."""
    text = (content or b"").decode()
    mark = BOM if text.startswith(BOM) else ""
    return (mark + client.format.edited(text.removeprefix(BOM), (client.key, PROGRAM), entry)).encode()


def _leads_to(client: Client, backup: bytes | None, current: bytes | None, entry: Mapping[str, Any] | None) -> bool:
    """Return whether a file is what was there before with our entry put into it, and nothing else changed since."""
    try:
        return entry is not None and entry_in(client, backup) is None and _edited(client, backup, entry) == current
    except ValueError:
        return False


_HTTP_FIELDS = ("url", "serverUrl", "httpUrl", "headers", "http_headers", "env_http_headers", "tcp", "transport")
_AUTH_FIELDS = ("bearer_token_env_var", "oauth", "oauth_resource", "scopes")
_TRANSPORT_FIELDS = ("type", "command", "args", "env", *_HTTP_FIELDS, *_AUTH_FIELDS)
"""What an entry says of how a server is reached. Codex refuses a file in which one is both started and has headers."""


def _merged_entry(new: Mapping[str, Any], old: Mapping[str, Any], stored: Iterable[str]) -> dict[str, Any]:
    """Return the new entry with what a person added to the old one, but for variables that would hide what is stored now."""
    known = old.get("env")
    ours = {"HOME", "XDG_CONFIG_HOME", *stored}  # where the settings were, and what they hold now
    kept = {name: value for name, value in known.items() if name not in ours} if isinstance(known, dict) else {}
    variables = kept | new.get("env", {})
    others = {name: value for name, value in old.items() if name not in _TRANSPORT_FIELDS}
    return {**others, **new} | ({"env": variables} if variables else {})


def plan_edit(client: Client, path: Path, new: Mapping[str, Any] | None, *, stored: Iterable[str] = ()) -> FileEdit:
    """Return how the client's file gets this entry, or loses ours for None: then it is as it was where all else is.

    `stored` names the variables that the settings or the credential store hold from now on. Nothing is written;
    LancelotError where the file cannot be edited.
    """
    real = Path(os.path.realpath(path))
    try:
        before, backup = _file_content(real), _file_content(backup_of(real))
        old, rest = _divided(client, before)
        entry = None if new is None else _merged_entry(new, old or {}, stored)
        if entry == old:
            return FileEdit(real, before, before, backup)
        is_ours = _leads_to(client, backup, before, old)
        base = backup if is_ours else before
        if entry is None and is_ours:
            edit = FileEdit(real, before, backup, None)
        else:
            edit = FileEdit(real, before, _edited(client, base, entry), base)
        if _divided(client, edit.after) != (entry, rest):
            raise ValueError("it is written in a way that an edit would break")  # noqa: TRY301 - told as all others
    except (OSError, ValueError, RecursionError) as error:
        raise _left_alone(path, error) from error
    return edit


def apply_edit(edit: FileEdit) -> None:
    """Write the file and its backup; LancelotError where that fails or the file changed in the meantime."""
    if edit.before == edit.after:
        return
    try:
        if _file_content(edit.path) != edit.before:
            raise LancelotError(f"{edit.path} changed in the meantime and was left as it is.", "Run `init` again.")
        like = edit.path.stat() if edit.before is not None else None
        if like and not os.access(edit.path, os.W_OK):
            raise _left_alone(edit.path, PermissionError(errno.EACCES, "it is write-protected"))
        if edit.backup is not None:
            lancelot.write_private(backup_of(edit.path), edit.backup, like=like)
        if edit.after is None:
            lancelot.remove_file(edit.path)
        else:
            lancelot.write_private(edit.path, edit.after, like=like)
        if edit.backup is None:
            lancelot.remove_file(backup_of(edit.path))
    except OSError as error:
        raise _left_alone(edit.path, error) from error


_SECRET_VALUE = re.compile(r'(?i)("[^"]*(?:key|token|secret|passw|auth|credential)[^"]*": )"(?:\\.|[^"\\])*"')


def edit_diff(client: Client, edit: FileEdit) -> str:
    """Return how our entry changes, in JSON as a unified diff, without the values of what reads like a secret.

    Nothing else of the file is shown: it changes in nothing else, and the other servers' entries may hold secrets.
    """
    entries = (entry_in(client, content) for content in (edit.before, edit.after))
    before, after = (
        json.dumps({PROGRAM: entry}, indent=2, ensure_ascii=False).splitlines() if entry else [] for entry in entries
    )
    lines = difflib.unified_diff(before, after, str(edit.path), str(edit.path), n=len(before), lineterm="")
    return _SECRET_VALUE.sub(r'\1"…"', "\n".join(lines))


# ======================================================================================================================
# Archive
# ======================================================================================================================
# The archive holds a record of its own files, by which it and the unpacked copy are compared; this then runs out of the
# archive itself, since the copy may be the damage. Copies are listed and removed by the archive's starting code.


RECORD = "record.json"  # in the archive: the SHA-256 of every other file in it, by name
UNPACKED: Path | None = None
"""The packages of the unpacked copy, where this runs out of the archive itself; the archive's starting code sets it."""


def archive_problems(archive: zipfile.ZipFile, record: Mapping[str, str]) -> Iterator[str]:
    """Yield what in an archive is not as its record says."""
    names = set(archive.namelist()) - {RECORD}
    yield from (f"in the archive, {name} is not recorded" for name in sorted(names - record.keys()))
    yield from (f"in the archive, {name} is missing" for name in sorted(record.keys() - names))
    for name in sorted(names & record.keys()):
        with archive.open(name) as file:
            if lancelot.file_sum(file) != record[name]:
                yield f"in the archive, {name} differs"


def unpacked_problems(folder: Path, archive: zipfile.ZipFile, record: Mapping[str, str]) -> Iterator[str]:
    """Yield what in the unpacked copy of an archive is not as the archive's record says.

    A file is read only where it is as long as the one in the archive, so that no file of a copy can hold this up.
    Bytecode is passed over where the archive has none, made without that Python: it compiles such a copy as it runs.
    """
    expected = {name.removeprefix("site-packages/"): name for name in record if name.startswith("site-packages/")}
    missing, compiled = set(expected), any(name.endswith(".pyc") for name in record)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        missing.discard(name)
        is_compiled_here = not compiled and path.parent.name == "__pycache__" and path.suffix == ".pyc"
        if path.is_symlink():
            yield f"{path} is a link, and the archive has none"
        elif name not in expected:
            if not is_compiled_here and not path.is_dir():
                yield f"{path} was added"
        elif not stat.S_ISREG(path.lstat().st_mode) or path.stat().st_size != archive.getinfo(expected[name]).file_size:
            yield f"{path} differs"
        else:
            with path.open("rb") as file:
                if lancelot.file_sum(file) != record[expected[name]]:
                    yield f"{path} differs"
    yield from (f"{folder / name} is missing" for name in sorted(missing))


def command_verify(session: Session) -> int:
    """`verify`: compare the archive and its unpacked copy with the record inside, file by file."""
    program = Path(session.command[-1])
    if not zipfile.is_zipfile(program):
        raise LancelotError("This is not the archive, so there is no record.", "Run lancelot.pyz verify.")
    try:
        with zipfile.ZipFile(program) as archive:
            record: dict[str, str] = json.loads(archive.read(RECORD))
            problems = [*archive_problems(archive, record)]
            if UNPACKED and UNPACKED.exists():
                problems += unpacked_problems(UNPACKED, archive, record)
                if not any(name.endswith(".pyc") for name in record):
                    say(f"What Python compiled is not compared. Remove {UNPACKED.parent} to have it compiled anew.")
            else:
                say("It is not unpacked here, so the archive alone is compared.")
        with program.open("rb") as file:
            digest = lancelot.file_sum(file)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise LancelotError(f"{program} is damaged ({lancelot.reason_of(error)}).", "Get the archive anew.") from error
    for problem in problems[:20]:
        say(f"failed: {problem}")
    say(f"{program}: {lancelot.plural(len(record), 'file')}, {lancelot.plural(len(problems), 'problem')}")
    say(f"SHA-256 {digest}: compare it with this file's line in SHA256SUMS, from where the archive was published.")
    return int(bool(problems))


def remove_copies() -> None:
    """Remove what archives of Lancelot unpacked, at last what this runs from: nothing can be imported afterwards."""
    starting: Any = sys.modules["__main__"]
    if not hasattr(starting, "remove_copy"):
        return
    own = Path(__file__).parent.parent
    for copy in (*starting.copies(own), own):
        if starting.remove_copy(copy):
            say(f"Removed: {copy}")
            lancelot.remove_file(copy.with_name(f".{copy.name}_lock"))
        else:
            say(f"Kept, since it is in use: {copy}. End what runs from it, and remove it.")
    starting.remove_leftovers(own)
    with contextlib.suppress(OSError):
        own.parent.rmdir()


def command_cache(session: Session) -> int:
    """`cache`: list the copies that archives of Lancelot unpacked, and remove them."""
    # The code that started the archive knows its copies; where another did, there are none.
    starting: Any = sys.modules["__main__"]
    if not hasattr(starting, "remove_copy"):
        raise LancelotError("This is not the archive, so nothing was unpacked.", "Run lancelot.pyz cache.")
    own, clear = Path(__file__).parent.parent, session.arguments.clear
    for copy in (own, *starting.copies(own)):
        size = f"{sum(path.lstat().st_size for path in copy.rglob('*')) / 1e6:,.0f} MB"
        state = "kept, since it is in use or may not be removed" if clear else "another version"
        if copy == own:
            state = "this one"
        elif clear and starting.remove_copy(copy):
            state = "removed"
        say(f"{copy}: {size}, {state}")
    if clear:
        with contextlib.suppress(OSError):
            starting.remove_leftovers(own)
    return 0


# ======================================================================================================================
# Doctor
# ======================================================================================================================
# What the status has no time for: the keychain, an embedding, the chat model and a server started as a client does it.
# Each check is a line; `examine` bounds and cleans these as it does those of the status.


def _embedding_remedy(kind: lancelot.ErrorKind, status: Status) -> str:
    in_environment = status.key.place == "environment"
    another_key = "Set OPENAI_API_KEY to another key." if in_environment else "Store another key with `init`."
    remedies: dict[lancelot.ErrorKind, str] = {
        "refused-key": another_key,
        "denied": another_key,
        "busy": "Wait a while, or see to the key's quota.",
        "no-answer": "Try again, since a model may have to be loaded first, or raise LANCELOT_EMBEDDING_TIMEOUT.",
    }
    return remedies.get(kind, "Check OPENAI_BASE_URL and EMBEDDING_MODEL.")


def check_local_model(status: Status) -> Iterator[Check]:
    """Load the local model and embed a text with it; yield how long that took, and which tables' vectors it made."""
    local = lancelot.LocalEmbedder(status.settings)
    if not local.is_wanted:
        is_missed = status.settings.embedding_model == lancelot.LOCAL_NAME and not local.is_installed
        remedy = "Get Lancelot's file with the model, or set EMBEDDING_MODEL to another." if is_missed else ""
        yield Check("local model", "failed" if is_missed else "ok", local.why_not, remedy)
        return
    times = []
    for text in ("", lancelot.PLAIN_TEXT):  # the first one waits for the model to be loaded
        began = time.monotonic()
        local.embed([text])
        times.append(f"{1000 * (time.monotonic() - began):.0f} ms")
    message = f"{local.model} was loaded in {times[0]} and embedded a word in {times[1]}."
    yield Check("local model", "ok", message)
    if made := [table for table, match in status.matches.items() if not match.problem]:
        yield Check("local model", "ok", f"It made the vectors of {listed(made)}, and searches by them.")


def _check_vectors(searcher: lancelot.Searcher, layout: lancelot.TableLayout, length: int, *, prove: bool) -> Check:
    """Return whether a server's vectors of a length fit a table; to `prove` it, its model embeds a few of the texts."""
    model = layout.model or searcher.embedder.model
    columns = {length: column for column, length in layout.vectors.items()}
    column, problem, remedy = columns.get(length), "", "Set EMBEDDING_MODEL to the model that made the table."
    if column is None:
        shown = f"length {listed(map(str, sorted(columns)))}, not {length}: {lancelot.models_of_length(min(columns))}"
        problem = f"The vectors of {layout.table} have {shown}."
    elif prove := prove and bool(layout.text and layout.rows):
        remedy += " Where the cosine is near 1, it may be this one with a prefix before each text."
        try:
            problem = searcher.mismatch(layout, column, searcher.embedder)
        except LancelotError as error:
            problem, remedy = f"{model} could not embed texts of {layout.table}. {error.cause}", error.remedy
    if not problem:
        how = f"{model} made its vectors" if prove else f"the length of its vectors fits {model}"
        return Check("embeddings", "ok", f"{layout.table}: {how}.")
    own = columns.get(lancelot.LOCAL_LENGTH)
    if own and layout.text and searcher.local.load() and not searcher.mismatch(layout, own, searcher.local):
        made = f"{layout.table}: its vectors are by {lancelot.LOCAL_MODEL}, the local model"
        if column is None:
            return Check("embeddings", "ok", f"{made}, which searches them.")
        return Check("embeddings", "warning", f"{made}, not by {model}.", "Set EMBEDDING_MODEL to local.")
    return Check("embeddings", "warning", problem, remedy)


PROOF_SECONDS = 60
"""After so long no further table's texts are sent to a server."""


def check_embeddings(status: Status, *, prove: bool = False) -> Iterator[Check]:
    """Embed a word with each model that the tables name, or that of the settings; yield whether the vectors' lengths fit.

    To `prove` that the model made a table's vectors, a few of its texts are embedded too.
    """
    settings, is_proven = status.settings, any(not match.problem for match in status.matches.values())
    if settings.is_invalid("OPENAI_BASE_URL"):
        yield Check("embeddings", "failed", status.why_no_embeddings, "Correct OPENAI_BASE_URL, or unset it.")
        return
    if not status.embeddings:
        is_local = settings.embedding_model == lancelot.LOCAL_NAME
        why = "EMBEDDING_MODEL is local" if is_local else "No key and no endpoint"
        how = "" if is_proven else "searches are by words, and "
        yield Check("embeddings", "ok", f"{why}: {how}nothing leaves this machine.")
        return
    searcher = lancelot.Searcher(settings, embedder=lancelot.EndpointEmbedder(settings, key=lambda _: status.key))
    tables: dict[str, list[lancelot.TableLayout]] = {}
    for layout in status.tables:
        if layout.vectors and layout.table not in status.matches:
            tables.setdefault(layout.model or settings.embedding_model, []).append(layout)
    ends = time.monotonic() + PROOF_SECONDS
    for model, layouts in (tables or {settings.embedding_model: []}).items():
        try:
            length = len(searcher.embedder.embed([lancelot.PLAIN_TEXT], model=model)[0])
        except LancelotError as error:
            remedy = error.remedy or _embedding_remedy(error.kind, status)
            yield Check("embeddings", "failed", error.cause, remedy, refused=error.kind == "refused-key")
            continue
        yield Check("embeddings", "ok", f"{lancelot.host_of(settings.endpoint)} embeds with {model}: length {length}.")
        for layout in layouts:
            yield _check_vectors(searcher, layout, length, prove=prove and time.monotonic() < ends)


def check_chat(status: Status) -> Iterator[Check]:
    """Ask the chat model for one word, if one is set."""
    settings = status.settings
    if not settings.chat_model and not settings.is_invalid("LANCELOT_CHAT_BASE_URL"):
        yield Check("chat model", "ok", "None is set, so lancedb_ask is not offered.")
        return
    lancelot.ChatModel(settings).reply("Reply with one word.", "Are you there?")
    yield Check("chat model", "ok", f"{lancelot.host_of(settings.chat_endpoint)} answers with {settings.chat_model}.")


def check_keychain(status: Status) -> Iterator[Check]:
    """Yield whether the system keychain answers, if the search for a key did not come that far."""
    if status.key.place != "environment":
        return
    try:
        lancelot.keychain_read(lancelot.key_name(status.settings.endpoint))
    except LancelotError as error:
        if error.kind != "failed":
            yield Check("keychain", "warning", error.cause, error.remedy or "Unlock it, or keep the key elsewhere.")
        else:
            yield Check("keychain", "ok", f"{error.cause} `init` keeps a key in an encrypted file instead.")
    else:
        yield Check("keychain", "ok", "The system keychain answers.")


def _gone(entry: Mapping[str, Any]) -> list[str]:
    """Return the absolute paths of an entry that are not there: its Python, its archive or its database."""
    arguments, variables = entry.get("args"), entry.get("env")
    words = [entry.get("command"), *(arguments if isinstance(arguments, list) else ())]
    words.append(variables.get("LANCEDB_PATH") if isinstance(variables, dict) else None)
    return [word for word in words if isinstance(word, str) and os.path.isabs(word) and not os.path.exists(word)]  # noqa: PTH110, PTH117 - never raise


def check_clients(machine: Machine) -> Iterator[Check]:
    """Yield whether what each client's entry names is there: programs and folders are moved."""
    entries = list(entries_on(machine))
    for entry in entries:
        title = f"{entry.client.title} ({entry.path})"
        scope = ["--scope", "project"] if entry.scope == "project" else []
        line = lancelot.typed_line("init", "--client", entry.client.name, *scope)
        if not entry.content:
            yield Check("clients", "warning", f"{title}: the file cannot be read.", f"Run, to see why: {line}")
        elif gone := _gone(entry.content):
            yield Check("clients", "failed", f"{title} names {listed(gone)}, which is gone.", f"Run: {line}")
        else:
            yield Check("clients", "ok", f"{title} names nothing that is gone.")
    if not entries:
        yield Check("clients", "ok", "No client's file has Lancelot in it; `init --client NAME` puts it there.")


MODEL_CHECKS = (
    Examination("local model", check_local_model, seconds=30),
    Examination("embeddings", check_embeddings, seconds=60),
)
"""What `init` looks at too, without sending a text of a table anywhere."""
LIVE_CHECKS = (
    Examination("keychain", check_keychain),
    MODEL_CHECKS[0],
    Examination("embeddings", functools.partial(check_embeddings, prove=True), seconds=lancelot.MAX_SECONDS + 5),
    Examination("chat model", check_chat, seconds=lancelot.MAX_SECONDS + 5),  # its own limit is what the person set
)
"""What `doctor` alone looks at, after all that the status does."""

SERVER_SECONDS = lancelot.STATUS_SECONDS + 15
"""What the session with the server may take: its status waits for a folder that does not answer."""


async def _server_status(start: Session, log: TextIO, cwd: str | None) -> tuple[int, str]:
    """Start a server as a client does; return how many tools it has, and what keeps it from its folder or table, or ""."""
    import anyio
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    options = {"LANCEDB_PATH": start.arguments.path, "LANCEDB_TABLE": start.arguments.table}
    given = {name: value for name, value in options.items() if value}
    environ = {**start.environ, **given, "LANCELOT_LOG_LEVEL": "error"}
    program, *arguments = start.command
    server = StdioServerParameters(command=program, args=arguments, env=environ, cwd=cwd)
    with anyio.fail_after(SERVER_SECONDS):
        async with Client(stdio_client(server, errlog=log)) as client:
            tools = (await client.list_tools()).tools
            result = await client.call_tool("lancedb_status", {})
    if result.is_error:
        raise LancelotError("The server's lancedb_status failed.", "Its log says more.")
    status = json.loads(cast("Any", result.content[0]).text)
    return len(tools), status.get("problem") or status.get("defaultTableProblem") or ""


def check_server(start: Session, *, cwd: str | None = None) -> list[Check]:
    """Start this very program as an MCP client does; return how that went, and what keeps it from its folder or table."""
    import anyio

    started = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            tools, problem = anyio.run(_server_status, start, log, cwd)
        except Exception as error:  # noqa: BLE001 - whatever keeps a server from answering is the finding
            cause: BaseException = error
            while within := getattr(cause, "exceptions", None):  # a group's own text says nothing
                cause = within[0]
            log.seek(0)
            last = lancelot.one_line((log.read().strip().splitlines() or [""])[-1])
            why = last or ("no answer in time" if isinstance(cause, TimeoutError) else lancelot.reason_of(cause))
            message = f"The server did not answer within {time.monotonic() - started:.1f} s: {why}."
            return [Check("server", "failed", message, f"Run by hand: {' '.join(start.command)}")]
    what = f"initialize, tools/list ({lancelot.plural(tools, 'tool')}) and lancedb_status"
    message = f"{what}: {time.monotonic() - started:.1f} s."
    checks = [Check("server", "ok", message)]
    if problem:
        message = f"The server answers, but there is nothing that it can search: {problem}"
        checks.append(Check("folder", "failed", message))
    return checks


def report(
    status: Status, examinations: Iterable[Examination], *, well: Iterable[str] | None = None, color: str = "auto"
) -> list[Check]:
    """Say what checks say as they come, and return it; of what is well, only the checks named `well` if that is given."""
    checks = []
    for check in lancelot.examine(status, examinations):
        if well is None or check.status != "ok" or check.name in well:
            lancelot.say_lines(lancelot.check_lines(check), color=color)
        checks.append(check)
    return checks


def command_doctor(session: Session) -> int:
    """`doctor`: every check, a line each as it comes; exit code 1 where one failed."""
    # The folder was looked at already. To end a server that does not answer takes its client some seconds more.
    server = Examination("server", lambda _status: check_server(session)[:1], SERVER_SECONDS + 10)
    machine = Machine(this_system(), session.environ, Path.cwd())
    clients = Examination("clients", lambda _status: check_clients(machine))
    examinations = (*lancelot.CHECKS, *LIVE_CHECKS, clients, server)
    status = lancelot.read_status(lancelot.Searcher(session.settings))
    if session.arguments.json:
        checks = list(lancelot.examine(status, examinations))
        lancelot.say_json(
            lancelot.compact_json(
                {"lancelot": lancelot.__version__, "health": [lancelot.check_object(check) for check in checks]}
            )
        )
    else:
        checks = report(status, examinations, color=session.arguments.color)
        say(f"\n{lancelot.verdict(checks)}")
    return int(any(check.status == "failed" for check in checks))


# ======================================================================================================================
# Init
# ======================================================================================================================
# `init` looks at the machine, asks for what it cannot find, tries the answers, and only then stores them. A key is never
# taken from the command line nor shown. What starts from a client's file is tried once, as the client will start it.


def _answer_to(question: str, suggested: str) -> str:
    blank = f" (blank for {lancelot.shown_path(suggested)})" if suggested else ""
    say(f"{question}{blank}: ", to=sys.stderr, end="")
    answer = sys.stdin.readline()
    if not answer:
        say(to=sys.stderr)
        raise EOFError
    return answer.strip() or suggested


def _checked_answer(what: str, text: str, parse: Callable[[str], str]) -> str:
    try:
        return parse(text.strip()) if text.strip() else ""
    except ValueError as error:
        # Not shown: where a key is asked for next, a key is what may stand here.
        raise LancelotError(f"The {what} is not {error}.", "Run `init` again and give one that is.") from error


def _client_files(session: Session) -> list[tuple[Client, Path]]:
    """Return the files of the clients of `--client`: with `all` of those found on this machine or in this project."""
    names, scope = session.arguments.client, session.arguments.scope
    if not names:
        raise LancelotError("--scope and --dry-run are about the files of clients.", "Say which: --client NAME.")
    machine, files = Machine(this_system(), session.environ, Path.cwd()), list[tuple[Client, Path]]()
    for client in CLIENTS:
        paths = client_paths(client, machine, scope)
        if client.name in names and not paths:
            able = listed(client.name for client in CLIENTS if client.project)
            remedy = f"Leave --scope out; these have one: {able}."
            raise LancelotError(f"{client.name} has no file of a project.", remedy)
        is_found = is_installed(client, machine) or (scope == "project" and any(path.exists() for path in paths))
        if client.name in names or ("all" in names and is_found):
            files += [(client, path) for path in paths]
    if not files:
        remedy = f"Name one: {listed(client.name for client in CLIENTS)}; or leave --client out, for lines to copy."
        raise LancelotError("No client was found on this machine.", remedy)
    return files


def _project_path(session: Session) -> str:
    """Return the folder that an entry of this project names, or ""; no address: others may write such a file."""
    for client, path in _client_files(session) if session.arguments.scope == "project" else ():
        with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
            folder = (entry_in(client, _file_content(path)) or {})["env"]["LANCEDB_PATH"]
            if folder.strip() and not lancelot.is_address(folder):
                return str(folder)
    return ""


def _holds_files(folder: str) -> bool:
    """Return whether files that are not hidden lie in a folder or below it."""
    for _, folders, files in os.walk(folder):
        if any(not name.startswith(".") for name in files):
            return True
        folders[:] = [name for name in folders if not name.startswith(".")]
    return False


def _database_for(session: Session, documents: str, *, interactive: bool) -> str:
    """Return the database folder that documents are to be indexed into, or "" for none."""
    given, known = session.arguments.index, lancelot.load_settings(session.environ, session.settings.config_dir)
    has_table = known.table in lancelot.seen_tables(known.path)
    suggested = known.path if known.path and has_table else str(lancelot.home_folder() / "lancedb")
    if given:
        return suggested if given is True else str(given)
    if not interactive:
        line = lancelot.typed_line("init", "--path", documents, "--index")
        raise LancelotError(f"{documents} holds files, but no LanceDB table to search.", f"Index them: `{line}`.")
    lancelot.say_lines(f"{documents} holds files, but no LanceDB table to search yet.", to=sys.stderr)
    answer = _answer_to("Index them into which folder? n for none", suggested)
    if answer.lower() in ("n", "no"):
        return ""
    return suggested if answer.lower() in ("y", "yes") else _checked_answer("folder", answer, lancelot.parse_path)


@dataclass(frozen=True)
class Place:
    """The database to search, and the folder of documents that is to be indexed into it first, or ""."""

    database: str
    documents: str = ""


def _place_of(session: Session, answer: str, *, interactive: bool) -> Place:
    """Return what a folder is good for; LancelotError where nothing can be searched or indexed there."""
    path = _checked_answer("folder", answer, lancelot.parse_path)
    if not path:
        line = lancelot.typed_line("init", "--path", "FOLDER")
        raise LancelotError("No folder to search is known.", f"Give it: `{line}`.")
    if lancelot.is_address(path):
        lancelot.check_folder(path)
        return Place(path)
    folder = Path(path).absolute()
    if not folder.exists():
        raise LancelotError(f"There is no folder {lancelot.one_line(str(folder))}.", lancelot.path_advice(folder))
    if not session.arguments.index:  # with it, other databases may lie among the documents
        lancelot.check_folder(str(folder))
    if lancelot.holds_tables(folder):
        return Place(str(folder))
    if _holds_files(str(folder)):
        if database := _database_for(session, str(folder), interactive=interactive):
            return Place(str(Path(database).absolute()), str(folder))
    elif not interactive:
        return Place(str(folder))  # another program may fill it later; the checks say that it is empty
    raise LancelotError(f"There is nothing to search in {folder}.", "Name a folder of documents or a database.")


def _place(session: Session, *, interactive: bool) -> Place:
    """Return the place that is given, known, or named by the person, who is asked until there is something to search."""
    options, settings = session.arguments, session.settings
    anythingllm = anythingllm_folder(Machine(this_system(), session.environ, Path.cwd()))
    if anythingllm and not options.path:
        say(f"AnythingLLM's folder was found: {anythingllm}")
    suggested = settings.path or str(anythingllm or "")
    if settings.origins["LANCEDB_PATH"] != "environment":
        suggested = _project_path(session) or suggested
    while interactive and not options.path:
        answer = _answer_to("Folder of documents, or of a LanceDB database", suggested)
        try:
            return _place_of(session, answer, interactive=True)
        except LancelotError as error:
            lancelot.say_lines(str(error), to=sys.stderr)
    return _place_of(session, suggested, interactive=interactive)


_OFFERS = f"""  1  {lancelot.LOCAL_MODEL}, inside this file: nothing leaves this machine
  2  an OpenAI-compatible server, such as Ollama on this machine
  3  OpenAI, with an API key
  4  nothing: searches are by words"""


def _chosen_embedder(settings: lancelot.Settings, *, is_new: bool) -> dict[str, str]:
    """Ask a person what shall embed, and return the settings for that; "" takes a stored one out."""
    say("What shall embed texts and questions, for search by meaning?", to=sys.stderr)
    say(_OFFERS if is_new else f"It has to be the model that made the table.\n{_OFFERS}", to=sys.stderr)
    model = settings.embedding_model if settings.is_set("EMBEDDING_MODEL") else ""
    key_place = lancelot.EndpointEmbedder(settings).lookup.place
    now = "2" if settings.base_url else "3" if key_place not in (None, "environment") else "1"
    now = {"off": "4"}.get(settings.local_model, "1" if model == lancelot.LOCAL_NAME else now)
    parse = functools.partial(lancelot.parse_choice, choices=("1", "2", "3", "4"))
    choice = _checked_answer("answer", _answer_to(f"1, 2, 3 or 4 (blank for {now})", "") or now, parse)
    model = "" if model == lancelot.LOCAL_NAME else model
    values = {"OPENAI_BASE_URL": "", "EMBEDDING_MODEL": model, "LANCELOT_LOCAL_MODEL": ""}
    if choice == "2":
        values["OPENAI_BASE_URL"] = _answer_to("Its address", settings.base_url or lancelot.OLLAMA_URL)
        default = model or lancelot.Settings.embedding_model
        values["EMBEDDING_MODEL"] = _answer_to(f"Its embedding model (blank for {default})", "") or model
    elif choice in "14":
        values["EMBEDDING_MODEL"] = lancelot.LOCAL_NAME  # whatever key or address the environment has
    return values | ({"LANCELOT_LOCAL_MODEL": "off"} if choice == "4" else {})


def _embedder_to_store(session: Session, *, interactive: bool, is_new: bool = False) -> dict[str, str]:
    """Return the settings of what embeds, by the options or by what a person answers; "" takes a stored one out."""
    options, settings = session.arguments, session.settings
    is_decided = options.no_local_model or options.model or options.base_url is not None
    is_offered = lancelot.has_local_model() and settings.origins["LANCELOT_LOCAL_MODEL"] != "environment"
    if interactive and is_offered and not is_decided:
        return _chosen_embedder(settings, is_new=is_new)
    base_url = (settings.base_url or "") if options.base_url is None else options.base_url
    if interactive and options.base_url is None and options.model != lancelot.LOCAL_NAME:
        how = "- for OpenAI or none" if base_url else "blank for OpenAI or none"
        base_url = _answer_to(f"OpenAI-compatible server, {how}", base_url)
    model = options.model or (settings.embedding_model if settings.is_set("EMBEDDING_MODEL") else "")
    values = {"OPENAI_BASE_URL": "" if base_url == "-" else base_url, "EMBEDDING_MODEL": model}
    if options.no_local_model or options.model == lancelot.LOCAL_NAME:
        values["LANCELOT_LOCAL_MODEL"] = "off" if options.no_local_model else ""
    return values


def _settings_to_store(session: Session, place: Place, *, interactive: bool) -> dict[str, str]:
    """Return the answers to store, by variable name; "" takes a stored one out."""
    values = _embedder_to_store(session, interactive=interactive, is_new=bool(place.documents))
    base_url = _checked_answer("server address", values["OPENAI_BASE_URL"], lancelot.parse_base_url)
    return {"LANCEDB_PATH": place.database, **values, "OPENAI_BASE_URL": base_url}


def _key_to_store(session: Session, *, interactive: bool) -> str:
    """Return the key to store, unseen while it is typed, or "" for none."""
    from_input = session.arguments.api_key_stdin
    if from_input and not sys.stdin.isatty():
        key = lancelot.clean_surrogates(sys.stdin.readline()).strip()
        if not key:
            raise LancelotError("No key came on standard input.", "Give it there, or leave --api-key-stdin out.")
        return key
    if not (interactive or from_input):
        return ""
    return getpass.getpass("API key, not shown (blank to keep what is stored, or for none): ", sys.stderr).strip()


def _store_answers(
    session: Session, settings: lancelot.Settings, values: Mapping[str, str], key: str, *, interactive: bool
) -> None:
    """Store the key, and the rest but for what belongs to a project, whose entry holds it."""
    try:
        plain = {name: value if lancelot.without_password(value) == value else "" for name, value in values.items()}
        if session.arguments.scope == "user":
            say(f"Stored: {lancelot.store_settings(settings.config_dir, plain)}")
        for name in (name for name, value in values.items() if value != plain[name]):
            say(f"{name} holds a password, so it was used and not stored: a client that starts the server must set it.")
        if key:
            host = lancelot.key_name(settings.endpoint)
            # A keychain cannot list what it holds, and `--forget` is to find every key.
            hosts = {host, *lancelot.read_stored(settings.config_dir)[0].get(lancelot.KEY_HOSTS, "").split()}
            lancelot.store_settings(settings.config_dir, {lancelot.KEY_HOSTS: " ".join(sorted(hosts))})
            place, why = lancelot.save_key(settings, host, key, interactive=interactive)
            say(f"The key for {host} was stored in the {place}.{f' {why}' if why else ''}")
        elif settings.api_key:
            say("The key in OPENAI_API_KEY was used and not stored: a client that starts the server must set it too.")
    except OSError as error:
        where = f"in {settings.config_dir} ({lancelot.reason_of(error)})"
        if lancelot.NO_HOME in settings.config_dir.parents:
            where = "on an account without a home folder"
        remedy = "Set LANCEDB_PATH and OPENAI_API_KEY in the client's configuration instead."
        raise LancelotError(f"The settings cannot be stored {where}.", remedy) from error


def _answered_environment(session: Session, values: Mapping[str, str]) -> dict[str, str]:
    """Return an environment by which a program has these answers, whatever is stored: what was taken out has its default."""
    known = lancelot.read_stored(session.settings.config_dir)[0]
    environ = {name: value for name, value in session.environ.items() if name not in values}
    defaults = {setting.name: str(setting.default) for setting in lancelot.SETTINGS}
    defaults["OPENAI_BASE_URL"] = lancelot.OPENAI_URL
    own = {name: defaults[name] for name in values if name in known}
    return environ | own | {name: value for name, value in values.items() if value}


def _entry_variables(session: Session, values: Mapping[str, str]) -> dict[str, str]:
    """Return what a client must set for the server, once these answers are stored."""
    if session.arguments.scope == "project":  # all, since what the account has stored may become another project's
        return client_variables(_answered_environment(session, values), {})
    # A name that was just asked for is stored or was taken out: this environment does not come before that.
    environ = {name: value for name, value in session.environ.items() if name not in values}
    return client_variables(environ, lancelot.read_stored(session.settings.config_dir)[0] | dict(values))


def _say_store_secrets(session: Session, values: Mapping[str, str]) -> None:
    """Say which secrets of an address's store the client's server will not have, and where to put them."""
    path = values.get("LANCEDB_PATH") or session.settings.path or ""
    if names := lancelot.store_variables(path, session.environ)[1]:
        file = lancelot.STORES[lancelot.scheme_of(path)].file
        or_file = f", or keep them in the store's own file, {file}" if file else ""
        say(f"\nIn this environment alone: {listed(names)}. Set them in the client's own environment{or_file}.")


def _edit_clients(
    session: Session,
    files: Iterable[tuple[Client, Path]],
    entry_for: Callable[[Client], Mapping[str, Any] | None],
    stored: Iterable[str] = (),
) -> tuple[list[tuple[Client, Path]], int]:
    """Edit files of clients, or show how; return those edited, and 1 if one had to be left alone."""
    done, code = [], 0
    for client, path in files:
        try:
            edit = plan_edit(client, path, entry := entry_for(client), stored=stored)
            if edit.before == edit.after:
                say(f"{client.title}: nothing to change in {edit.path}")
            elif session.arguments.dry_run:
                say(edit_diff(client, edit))
            else:
                apply_edit(edit)
                kept = f"; what was there before is in {backup_of(edit.path).name} beside it" if edit.backup else ""
                did = "written" if entry else "removed" if edit.after is None else "taken out"
                lancelot.say_lines(f"{client.title}: {did}: {edit.path}{kept}")
        except LancelotError as error:
            say(f"{PROGRAM}: {client.title}: {error}", to=sys.stderr)
            code = 1
            continue
        done.append((client, path))
    return done, code


def _try_start(session: Session, start: Session, variables: Mapping[str, str]) -> bool:
    """Start the server once as a client will, from the root folder, say how that went, and return whether it is well.

    With variables that others may have put into a project's file it is started if the person at the terminal agrees.
    """
    others = ", ".join(sorted(start.environ.keys() - variables.keys()))
    if session.arguments.scope == "project" and others:
        if session.arguments.yes or not sys.stdin.isatty():
            say(f"warning: The server was not started, since the project's file sets {others} for it.")
            say("Take that out of the file, or run `init` at a terminal without --yes to start it all the same.")
            return False
        if not lancelot.agrees(f"The project's file sets {others} for the server. Start it with that?"):
            return False
    check = check_server(start, cwd=Path(start.command[0]).anchor)[-1]
    if check.status == "ok":
        lancelot.say_lines(f"ok:      {check.message}")
        return True
    lancelot.say_lines(f"warning: {check.message} {check.remedy}".rstrip())
    lancelot.say_lines(
        "The files stay as they are now: mend this and run `init` again, or take the server out with --remove."
    )
    return False


def _write_clients(session: Session, values: Mapping[str, str], key: str) -> int:
    """Put the server into the files of the clients named, and start it once by each command that stands there."""
    command, variables = session.command, _entry_variables(session, values)
    stored = {name for name in values if values[name]} | ({"OPENAI_API_KEY"} if key else set())
    files = _client_files(session)
    done, code = _edit_clients(session, files, lambda client: client.checked_entry(command, variables), stored)
    _say_store_secrets(session, values)
    if session.arguments.dry_run:
        return code
    starts: list[Session] = []
    for client, path in done:
        entry = entry_in(client, path.read_bytes()) or {}
        ours, environ = client.entry(command, variables), entry.get("env", {})
        # What was there before may keep the server from what `init` set up.
        kept = [name for name in entry if name not in ours and name != "env"]
        if kept := kept + [name for name in environ if name not in variables]:
            say(f"{client.title}: its entry keeps {listed(kept)} as before: take out what should not hold any more.")
        environ = {name: str(value) for name, value in environ.items() if value is not None}
        start = Session(argparse.Namespace(path=None, table=None), environ, [entry["command"], *entry["args"]])
        if start not in starts:
            starts.append(start)
    started = [_try_start(session, start, variables) for start in starts]
    if starts and all(started):
        titles = listed(dict.fromkeys(client.title for client, _ in done))
        lancelot.say_lines(f"Restart {titles}, then ask: what do my documents say about …?")
    return code if all(started) else 1


def _show_stored(session: Session) -> int:
    """Print what is stored, where the key is, and what a client that `init` does not know needs."""
    settings = session.settings
    secret = {setting.name for setting in lancelot.SETTINGS if setting.secret}
    say(f"Settings file: {settings.config_dir / lancelot.SETTINGS_FILE}")
    for name, value in lancelot.read_stored(settings.config_dir)[0].items():
        say(f"  {name} = {'not shown' if name in secret else lancelot.shown_path(lancelot.one_line(value))}")
    lookup = lancelot.EndpointEmbedder(settings).lookup
    say(f"Key for {lancelot.host_of(settings.endpoint)}: {f'from the {lookup.place}' if lookup.place else 'none'}")
    for line in (*settings.problems, *lookup.reasons):
        say(f"  {line}")
    command, variables = session.command, _entry_variables(session, {})
    say(f"\nFor clients with an mcpServers file:\n\n{client_entry(command, variables)}")
    say(f"\nFor Claude Code:\n\n{claude_command(command, variables)}")
    for client in (client for client in CLIENTS if client.link):
        say(f"\nFor {client.title}, to be opened in a browser:\n\n{client.install_link(command, variables)}")
    return 0


def _forget_stored(session: Session) -> int:
    settings = session.settings
    urls = (lancelot.OPENAI_URL, settings.endpoint, lancelot.load_settings({}, settings.config_dir).endpoint)
    noted = lancelot.read_stored(settings.config_dir)[0].get(lancelot.KEY_HOSTS, "").split()
    hosts = {*lancelot.stored_hosts(settings.config_dir), *noted}
    hosts.update(map(lancelot.key_name, urls), map(lancelot.host_of, urls))
    keys, reasons = lancelot.forget_keys(settings, sorted(hosts), interactive=sys.stdin.isatty())
    removed = [*keys, *filter(None, [lancelot.remove_file(settings.config_dir / lancelot.SETTINGS_FILE)])]
    for line in (*(f"Removed: {thing}" for thing in removed), *reasons):
        say(line)
    if not removed:
        say("Nothing was found to remove.")
    return 0


INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""


def run_index(session: Session, place: Place, environ: Mapping[str, str], **streams: Any) -> str:
    """Index documents by this program's own command as a child; return what it printed, if that was asked for.

    Ctrl-C is for the child, which ends well by it; LancelotError where there is nothing to search afterwards.
    """
    import signal
    import subprocess

    command = [*session.command, "index", place.documents, "--path", place.database, "--no-next"]
    if sys.stdout is not None:
        sys.stdout.flush()
    handler = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        done = subprocess.run(command, env=dict(environ), check=False, **streams)  # noqa: S603 - our own command
    finally:
        signal.signal(signal.SIGINT, handler)
    if done.returncode == INTERRUPTED:
        say("Nothing was stored.", to=sys.stderr)
        raise KeyboardInterrupt
    if done.returncode and not lancelot.holds_tables(Path(place.database)):
        raise LancelotError("The documents could not be indexed.", "The lines above say why. Nothing was stored.")
    return done.stdout or ""


def _say_next_steps(session: Session, values: Mapping[str, str]) -> None:
    """Say the commands that a person needs next, as they are typed."""
    machine, path = Machine(this_system(), session.environ, Path.cwd()), values["LANCEDB_PATH"]
    found = [client for client in CLIENTS if is_installed(client, machine)]
    names = f"found: {listed(client.title for client in found)}" if found else listed(client.name for client in CLIENTS)
    name = found[0].name if len(found) == 1 else "all" if found else "NAME"
    folder = ["--path", path] if session.environ.get("LANCEDB_PATH", path) != path else []
    lancelot.say_lines(f"\nNext, search it, and connect your client ({names}):")
    say(f"  {lancelot.typed_line('search', 'WORDS', *folder)}")
    say(f"  {lancelot.typed_line('init', '--client', name)}")
    say(f"  {lancelot.typed_line('init', '--show')}  # what any other client needs")
    _say_store_secrets(session, values)


def _remove_all(session: Session) -> int:
    """Take Lancelot off this machine, but for the file that was started and the databases, which are named at the end."""
    options, settings = session.arguments, session.settings
    if not (options.yes or options.dry_run):
        if not sys.stdin.isatty():
            raise LancelotError("There is no terminal to ask at whether all is to go.", "Give --yes, or --client NAME.")
        if not lancelot.agrees("Remove clients' entries, settings, keys and unpacked copies?"):
            return 1
    files = [(entry.client, entry.path) for entry in entries_on(Machine(this_system(), session.environ, Path.cwd()))]
    code = _edit_clients(session, files, lambda _client: None)[1]
    if options.dry_run:
        return code
    _forget_stored(session)
    with contextlib.suppress(OSError):
        settings.config_dir.rmdir()
    say(f"Left: {session.command[-1]}, which you can delete.")
    if settings.path:
        say(f"Left: {lancelot.shown_path(settings.path)}, which you can delete if no other program uses it.")
    remove_copies()
    return code


def _set_up(session: Session) -> int:
    """Ask for what is not given, try it, store it, and name the server in clients or say how."""
    options = session.arguments
    interactive = sys.stdin.isatty() and not options.yes and not options.api_key_stdin
    if not interactive and not (options.yes or options.path):
        raise LancelotError("There is no terminal to ask questions at.", "Give --yes, and the answers as options.")
    checks = report(lancelot.unread_status(session.settings), lancelot.MACHINE_CHECKS, well=())
    failed = [check.name for check in checks if check.status == "failed"]
    if "processor" in failed:
        raise LancelotError("Lancelot cannot search on this machine.", "Nothing was stored.")
    if options.client and options.scope == "user" and session.settings.origins["LANCEDB_PATH"] == "settings file":
        interactive = False  # who only connects a client has answered before
    try:
        place = _place(session, interactive=interactive)
        values = _settings_to_store(session, place, interactive=interactive)
        asks_key = interactive and values["EMBEDDING_MODEL"] != lancelot.LOCAL_NAME
        key = _key_to_store(session, interactive=asks_key)
    except EOFError as error:
        raise LancelotError("The input ended before every question was answered.", "Nothing was stored.") from error
    except LancelotError as error:
        raise LancelotError(str(error), "Nothing was stored.", kind=error.kind) from error
    with_key = {"OPENAI_API_KEY": key} if key else {}
    if place.documents:
        run_index(session, place, _answered_environment(session, values) | with_key)
    # The settings as a server would have them after these answers are stored.
    environ = {name: value for name, value in session.environ.items() if name not in values} | with_key
    trial = lancelot.load_settings(environ, session.settings.config_dir, answers=values)
    status = lancelot.read_status(lancelot.Searcher(trial))
    if status.error:
        raise LancelotError(str(status.error), "Nothing was stored.", kind=status.error.kind)
    well = ("embeddings",) if place.documents else ("tables", "embeddings")  # its table was just told of
    checks = report(status, (*lancelot.FOLDER_CHECKS, *MODEL_CHECKS), well=well)
    if key and any(check.refused for check in checks) and lancelot.find_key(replace(trial, api_key=None)).key:
        say("warning: The key that is stored already is kept, since the new one was not taken.")
        key = ""
    _store_answers(session, trial, values, key, interactive=interactive)
    if options.client:
        return _write_clients(session, values, key) or int(bool(failed))
    _say_next_steps(session, values)
    return int(bool(failed))


def command_init(session: Session) -> int:
    """`init`: look at the machine, ask for folder and key, try, store, and say how to name the server in a client."""
    options = session.arguments
    if options.show:
        return _show_stored(session)
    if options.forget:
        return _forget_stored(session)
    if options.remove and not (options.client or options.scope == "project"):
        return _remove_all(session)
    if options.remove:
        return _edit_clients(session, _client_files(session), lambda _client: None)[1]
    if options.client or options.dry_run or options.scope == "project":
        _client_files(session)  # what is wrong with the names is said before anything is asked
    if options.dry_run:
        place = _place(session, interactive=False)
        return _write_clients(session, _settings_to_store(session, place, interactive=False), "")
    return _set_up(session)


# ======================================================================================================================
# Demo
# ======================================================================================================================
# The demonstration runs the program's own commands as a person and a client would: `index` as a child, `search` with the
# default settings, then a server. It looks for no key, reaches no network, and leaves no file.


DEMO_WORDS = "keychain"
DEMO_MEANING = "configuration options"
"""The documentation has a part on this that holds neither word, which only a search by meaning finds."""
DEMO_QUESTION = "Where is a key kept?"


def _demo_environment(session: Session, database: Path) -> dict[str, str]:
    """Return an environment with the default of every setting, whatever is stored; only the local model embeds."""
    defaults = {setting.name: str(setting.default or "") for setting in lancelot.SETTINGS}
    own = {"EMBEDDING_MODEL": lancelot.LOCAL_NAME, "LANCELOT_LOCAL_MODEL": session.settings.local_model}
    own |= {"LANCEDB_PATH": str(database), "LANCELOT_LOG_LEVEL": "error", "PYTHONIOENCODING": "utf-8"}
    own |= {"LANCEDB_VECTOR_COLUMN": ""}  # which is demanded where it is set, and not there without the model
    return {**session.environ, **defaults, **own}


def _documentation(folder: Path) -> Path:
    """Write the README into a folder of its own and return that."""
    import importlib.metadata

    readme, documents = Path(__file__).with_name("README.md"), folder / "docs"
    documents.mkdir()
    # The package that the module came with has it in its metadata.
    packed = "" if readme.is_file() else importlib.metadata.metadata(PROGRAM)["Description"]
    (documents / "README.md").write_text(packed or readme.read_text(encoding="utf-8"), encoding="utf-8")
    return documents


def _show_search(session: Session, environ: Mapping[str, str], words: str) -> None:
    line = ("search", words, "--limit", "2")
    lancelot.say_lines(f"\n$ {lancelot.typed_line(*line)}")
    lancelot.COMMANDS["search"][0](Session(lancelot.build_parser().parse_args(line), environ, session.command))


async def _answer_for_client(session: Session, environ: Mapping[str, str]) -> str:
    """Return what a server answers to DEMO_QUESTION when it is started as a client does."""
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    program, *arguments = session.command
    async with Client(StdioServerParameters(command=program, args=arguments, env=dict(environ))) as client:
        result = await client.call_tool("lancedb_query", {"question": DEMO_QUESTION, "contextBudget": 900})
    return "".join(block.text for block in result.content if block.type == "text").rstrip("\n")


def command_demo(session: Session) -> int:
    """`demo`: the documentation, indexed in a temporary place, searched, and served by this very program to an MCP client."""
    import subprocess

    import anyio

    with tempfile.TemporaryDirectory(prefix="lancelot-demo-") as temporary:
        folder = Path(temporary).resolve()
        place = Place(str(folder / "db"), str(_documentation(folder)))
        environ = _demo_environment(session, folder / "db")
        lancelot.say_lines(
            run_index(
                session, place, environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, encoding="utf-8"
            ).rstrip()
        )
        _show_search(session, environ, DEMO_WORDS)
        searcher = lancelot.Searcher(lancelot.load_settings(environ, folder))
        if searcher.local.why_not:
            lancelot.say_lines(f"\n{searcher.local.why_not} With it there would be a search by meaning here.")
        else:
            _show_search(session, environ, DEMO_MEANING)
        lancelot.say_lines(f"\nA model in an MCP client asks lancedb_query: {DEMO_QUESTION} It gets:\n")
        lancelot.say_lines(anyio.run(_answer_for_client, session, environ))
    say(f"\nThe same with your files:  {lancelot.typed_line('init')}")
    return 0


# ======================================================================================================================
# Commands
# ======================================================================================================================
# COMMANDS and OPTIONS are what the command line of `lancelot` looks up here.
# A command without an entry in OPTIONS has none of its own.


def _add_init(parser: argparse.ArgumentParser) -> None:
    def refuse(_value: str) -> NoReturn:
        raise argparse.ArgumentTypeError(
            "not taken: give the folder with --path, and a key on standard input with --api-key-stdin, since other "
            "users of this machine can see arguments"
        )

    # Declared so that argparse does not repeat in its complaint what may be a key.
    parser.add_argument("word", nargs="?", type=refuse, help=argparse.SUPPRESS)
    path = type_of_option(lancelot.parse_path)
    parser.add_argument("--path", type=path, help="the LanceDB folder, or a folder of documents")
    shown = "index the folder of --path first where it holds documents, into this one (~/lancedb, or the one in use)"
    parser.add_argument("--index", nargs="?", const=True, metavar="FOLDER", type=path, help=shown)
    parser.add_argument("--api-key-stdin", action="store_true", help="read the API key from standard input, one line")
    parser.add_argument("--base-url", help="address of an OpenAI-compatible server")
    shown = (
        f"the embedding model that made the tables; `{lancelot.LOCAL_NAME}` is {lancelot.LOCAL_MODEL}, inside the file"
    )
    parser.add_argument("--model", help=shown)
    shown = "leave the model inside the file out: without a key or a server searches are by words"
    parser.add_argument("--no-local-model", action="store_true", help=shown)
    parser.add_argument("--yes", action="store_true", help="ask nothing: take what is given and found")
    parser.add_argument("--show", action="store_true", help="print what is stored, and where the key is")
    parser.add_argument("--forget", action="store_true", help="remove what is stored")
    names = ["all", *(client.name for client in CLIENTS)]
    shown = f"write the server into this client's own file, one of {', '.join(names)}; may be given several times"
    parser.add_argument("--client", action="append", default=[], choices=names, metavar="NAME", help=shown)
    shown = "whose file: the user's (default), or the one of the project in this folder"
    parser.add_argument("--scope", choices=["user", "project"], default="user", help=shown)
    parser.add_argument("--dry-run", action="store_true", help="only print what would change in the clients' files")
    shown = "take the server out of the clients' files again; without --client take all off this machine: entries, settings, keys and unpacked copies"
    parser.add_argument("--remove", action="store_true", help=shown)


COMMANDS: Mapping[str, Callable[[Session], int]] = {
    "init": command_init,
    "doctor": command_doctor,
    "verify": command_verify,
    "cache": command_cache,
    "demo": command_demo,
}
OPTIONS: Mapping[str, Callable[[argparse.ArgumentParser], object]] = {
    "init": _add_init,
    "doctor": lambda parser: parser.add_argument(
        "--table", type=type_of_option(lancelot.parse_name), help="the default table (LANCEDB_TABLE)"
    ),
    "cache": lambda parser: parser.add_argument("--clear", action="store_true", help="remove what nobody runs from"),
}
