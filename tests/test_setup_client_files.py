"""`init --client`: the files of MCP clients, edited in place on every system."""

import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from client_files import COMMENTED, FOREIGN_JSON, FOREIGN_TOML, WITHOUT_LAST_COMMAS
from conftest import DATABASES, PROGRAM, WITHOUT_MODEL, Ended, Run, is_subsequence
from hypothesis import given
from hypothesis import strategies as st

import lancelot
import lancelot_setup

COMMAND = ["/opt/python 3/bin/python3", "/home/åsa/lancelot.pyz"]
KEY = "sk-test-0123456789abcdef"
SYSTEMS: tuple[lancelot_setup.System, ...] = ("linux", "macos", "windows")
NAMES = [client.name for client in lancelot_setup.CLIENTS]
JSON_NAMES = [client.name for client in lancelot_setup.CLIENTS if client.name != "codex"]
EVERY = pytest.mark.parametrize("name", NAMES)

# Where each client reads its servers, below the home folder. From the pages named by `Client.source`; that Electron's
# programs keep their files in these folders: https://www.electronjs.org/docs/latest/api/app#appgetpathname
APPS = {"linux": ".config", "macos": "Library/Application Support", "windows": "AppData/Roaming"}
USER_FILES = {
    "claude-code": ".claude.json",
    "claude-desktop": "{apps}/Claude/claude_desktop_config.json",
    "cursor": ".cursor/mcp.json",
    "vscode": "{apps}/Code/User/mcp.json",
    "windsurf": ".codeium/windsurf/mcp_config.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "anythingllm": "{apps}/anythingllm-desktop/storage/plugins/anythingllm_mcp_servers.json",
}
PROJECT_FILES = {
    "claude-code": ".mcp.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".vscode/mcp.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
}
TYPED = ("claude-code", "cursor", "vscode")


def client_of(name: str) -> lancelot_setup.Client:
    return next(client for client in lancelot_setup.CLIENTS if client.name == name)


def machine_of(home: Path, system: lancelot_setup.System, **environ: str) -> lancelot_setup.Machine:
    variables = {"USERPROFILE" if system == "windows" else "HOME": str(home)}
    return lancelot_setup.Machine(system, variables | environ, home / "project")


def entry_of(name: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    return client_of(name).entry(COMMAND, variables or {})


def foreign(name: str) -> str:
    client = client_of(name)
    if name == "codex":
        return FOREIGN_TOML
    commented = {lancelot_setup.JSON_OF_VS_CODE: COMMENTED, lancelot_setup.COMMENTED_JSON: WITHOUT_LAST_COMMAS}
    text = commented.get(client.format, FOREIGN_JSON)
    return text.replace("KEY", client.key)


def data_of(name: str, path: Path) -> dict[str, Any]:
    """What a reader of its own makes of the file: the standard library's, after comments were taken out by lines."""
    text = path.read_bytes().decode("utf-8-sig")
    if name == "codex":
        return dict(pytest.importorskip("tomllib").loads(text))
    return dict(json.loads(text))


def add(name: str, path: Path, **variables: str) -> None:
    lancelot_setup.apply_edit(lancelot_setup.plan_edit(client_of(name), path, entry_of(name, variables)))


def remove(name: str, path: Path) -> None:
    lancelot_setup.apply_edit(lancelot_setup.plan_edit(client_of(name), path, None))


def make(path: Path, content: str | bytes) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path.read_bytes()


def backup(path: Path) -> Path:
    return path.with_name(f"{path.name}.lancelot-backup")


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- places


@EVERY
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_user_s_file_is_where_the_client_reads_it(name: str, system: lancelot_setup.System, tmp_path: Path) -> None:
    paths = lancelot_setup.client_paths(client_of(name), machine_of(tmp_path, system), "user")
    assert paths == [tmp_path / USER_FILES[name].format(apps=APPS[system])]


@EVERY
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_project_s_file_is_in_the_folder_where_there_is_such_a_file(
    name: str, system: lancelot_setup.System, tmp_path: Path
) -> None:
    paths = lancelot_setup.client_paths(client_of(name), machine_of(tmp_path, system), "project")
    assert paths == [tmp_path / "project" / PROJECT_FILES[name] for _ in range(name in PROJECT_FILES)]


@pytest.mark.parametrize(
    ("name", "system", "variable", "expected"),
    [
        ("vscode", "linux", "XDG_CONFIG_HOME", "Code/User/mcp.json"),
        ("vscode", "windows", "APPDATA", "Code/User/mcp.json"),
        ("claude-desktop", "windows", "APPDATA", "Claude/claude_desktop_config.json"),
        ("claude-code", "linux", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("vscode", "macos", "VSCODE_APPDATA", "Code/User/mcp.json"),
        ("codex", "macos", "CODEX_HOME", "config.toml"),
        ("gemini", "windows", "GEMINI_CLI_HOME", ".gemini/settings.json"),
        ("anythingllm", "linux", "STORAGE_DIR", "plugins/anythingllm_mcp_servers.json"),
    ],
)
def test_a_folder_that_the_environment_names_is_taken(
    name: str, system: lancelot_setup.System, variable: str, expected: str, tmp_path: Path
) -> None:
    machine = machine_of(tmp_path, system, **{variable: str(tmp_path / "else {x}")})
    assert lancelot_setup.client_paths(client_of(name), machine, "user") == [tmp_path / "else {x}" / expected]


def test_claude_desktop_on_windows_is_written_wherever_it_is_installed(tmp_path: Path) -> None:
    client, machine = client_of("claude-desktop"), machine_of(tmp_path, "windows")
    classic = tmp_path / "AppData/Roaming/Claude/claude_desktop_config.json"
    package = tmp_path / "AppData/Local/Packages/Claude_pzs8sxrjxfjjc"
    packaged = package / "LocalCache/Roaming/Claude/claude_desktop_config.json"
    assert not lancelot_setup.is_installed(client, machine)
    package.mkdir(parents=True)
    assert lancelot_setup.is_installed(client, machine)
    assert lancelot_setup.client_paths(client, machine, "user") == [packaged]
    classic.parent.mkdir(parents=True)
    assert lancelot_setup.client_paths(client, machine, "user") == [classic, packaged]
    assert lancelot_setup.client_paths(client, machine_of(tmp_path, "linux"), "user") != [classic, packaged]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_edition_and_profile_of_vs_code_that_is_there_is_written(
    system: lancelot_setup.System, tmp_path: Path
) -> None:
    client, machine, apps = client_of("vscode"), machine_of(tmp_path, system), tmp_path / APPS[system]
    made = [
        "Code - Insiders/User",
        "Code - OSS/User",
        "VSCodium/User",
        "Code/User/profiles/-5ad2",
        "VSCodium/User/profiles/1",
    ]
    for folder in (*made, "Cursor/User/profiles/2", "Code - Insiders/logs"):
        (apps / folder).mkdir(parents=True)
    make(apps / "Code/User/profiles/notes.txt", "")
    expected = [apps / "Code/User/mcp.json", *(apps / folder / "mcp.json" for folder in made)]
    assert lancelot_setup.client_paths(client, machine, "user") == expected
    shutil.rmtree(apps / "Code")
    assert lancelot_setup.client_paths(client, machine, "user") == [path for path in expected if path.parent.exists()]
    assert lancelot_setup.is_installed(client, machine)
    assert lancelot_setup.client_paths(client, machine, "project") == [tmp_path / "project/.vscode/mcp.json"]


@EVERY
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_client_is_found_where_it_has_been_used(name: str, system: lancelot_setup.System, tmp_path: Path) -> None:
    client, machine = client_of(name), machine_of(tmp_path, system)
    assert not lancelot_setup.is_installed(client, machine)
    make(tmp_path / USER_FILES[name].format(apps=APPS[system]), "")
    assert [one.name for one in lancelot_setup.CLIENTS if lancelot_setup.is_installed(one, machine)] == [name]


# --- the entry


@EVERY
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_missing_file_is_made_with_the_entry_and_removed_with_it(
    name: str, system: lancelot_setup.System, tmp_path: Path
) -> None:
    client = client_of(name)
    (path,) = lancelot_setup.client_paths(client, machine_of(tmp_path, system), "user")
    add(name, path, SHIV_ROOT="/big/disk")
    server = {"command": COMMAND[0], "args": COMMAND[1:], "env": {"SHIV_ROOT": "/big/disk"}}
    expected = {"type": "stdio"} | server if name in TYPED else server
    key = {"vscode": "servers", "codex": "mcp_servers"}.get(name, "mcpServers")
    assert data_of(name, path) == {key: {"lancelot": expected}}
    assert path.read_bytes().endswith(b"\n")
    assert not backup(path).exists()
    if os.name != "nt":
        assert path.stat().st_mode & 0o777 == 0o600
    remove(name, path)
    assert not path.exists()
    assert not backup(path).exists()


def test_the_files_look_as_a_person_would_write_them(tmp_path: Path) -> None:
    add("codex", tmp_path / "config.toml", SHIV_ROOT="/big")
    assert (tmp_path / "config.toml").read_text(encoding="utf-8") == (
        "[mcp_servers.lancelot]\n"
        'command = "/opt/python 3/bin/python3"\n'
        'args = ["/home/åsa/lancelot.pyz"]\n'
        "\n"
        "[mcp_servers.lancelot.env]\n"
        'SHIV_ROOT = "/big"\n'
    )
    make(tmp_path / "mcp.json", '{\n\t"mcpServers": {}\n}\n')
    add("windsurf", tmp_path / "mcp.json")
    assert (tmp_path / "mcp.json").read_text(encoding="utf-8") == (
        '{\n\t"mcpServers": {\n\t\t"lancelot": {\n\t\t\t"command": "/opt/python 3/bin/python3",\n'
        '\t\t\t"args": [\n\t\t\t\t"/home/åsa/lancelot.pyz"\n\t\t\t]\n\t\t}\n\t}\n}\n'
    )


@EVERY
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("ending", ["", "end"])
def test_everything_else_in_the_file_stays_byte_for_byte(
    name: str, line_end: str, bom: str, ending: str, tmp_path: Path
) -> None:
    text = foreign(name).rstrip("\n") + ("\n" if ending else "")
    before = make(tmp_path / "file", (bom + text).replace("\n", line_end))
    add(name, tmp_path / "file")
    after = (tmp_path / "file").read_bytes()
    client = client_of(name)
    own = lancelot_setup.entry_in(client, after)
    assert own == entry_of(name)
    assert is_subsequence(before, after)
    assert after.count(b"\n") == after.count(line_end.encode())
    assert backup(tmp_path / "file").read_bytes() == before
    for comment in (line for line in text.splitlines() if "//" in line or "#" in line):
        assert comment.encode() in after
    if name == "codex":
        assert data_of(name, tmp_path / "file")["mcp_servers"]["other"]["env"] == {"TOKEN": "x"}
    remove(name, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == before
    assert not backup(tmp_path / "file").exists()


@EVERY
def test_a_second_run_changes_nothing_and_keeps_no_other_backup(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = make(path, foreign(name))
    add(name, path)
    once, stamp = path.read_bytes(), path.stat().st_mtime_ns
    edit = lancelot_setup.plan_edit(client_of(name), path, entry_of(name))
    assert edit.before == edit.after
    assert lancelot_setup.edit_diff(client_of(name), edit) == ""
    lancelot_setup.apply_edit(edit)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (once, stamp)
    assert backup(path).read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir() if one.is_file()) == ["file", "file.lancelot-backup"]


@EVERY
def test_an_entry_of_ours_is_replaced_where_it_stands_with_what_a_person_added(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    client = client_of(name)
    make(path, foreign(name))
    old = {
        "command": "/old/python",
        "args": ["/old.pyz"],
        "timeout": 9,
        "env": {"LANCELOT_CHAT_MODEL": "m", "LANCEDB_PATH": "/old", "HOME": "/old", "XDG_CONFIG_HOME": "/old"},
    }
    lancelot_setup.apply_edit(lancelot_setup.plan_edit(client, path, old))
    edit = lancelot_setup.plan_edit(client, path, entry_of(name), stored={"LANCEDB_PATH"})
    lancelot_setup.apply_edit(edit)
    assert lancelot_setup.entry_in(client, path.read_bytes()) == (
        entry_of(name) | {"timeout": 9, "env": {"LANCELOT_CHAT_MODEL": "m"}}
    )
    assert path.read_bytes().count(b"lancelot.pyz") == 1
    assert b"/old" not in path.read_bytes()
    assert backup(path).read_bytes() == foreign(name).encode()
    remove(name, path)
    assert path.read_bytes() == foreign(name).encode()


@EVERY
def test_an_entry_is_taken_out_also_where_the_rest_changed_since(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    make(path, foreign(name))
    add(name, path, SHIV_ROOT="/x")
    backup(path).unlink()
    make(path, path.read_bytes().replace(b"other", b"renamed"))
    remove(name, path)
    left, expected = path.read_bytes(), foreign(name).encode().replace(b"other", b"renamed")
    assert left.rstrip() == expected.rstrip()
    assert left == expected or name == "codex"  # of TOML a blank line may stay
    assert b"lancelot.pyz" in backup(path).read_bytes()


@EVERY
@pytest.mark.parametrize("blank", ["", " \n", "\r\n", "\ufeff", "\ufeff\n"])
def test_a_blank_file_is_filled_and_blank_again(name: str, blank: str, tmp_path: Path) -> None:
    before = make(tmp_path / "file", blank)
    add(name, tmp_path / "file")
    assert lancelot_setup.entry_in(client_of(name), (tmp_path / "file").read_bytes()) == entry_of(name)
    remove(name, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == before


@EVERY
def test_an_entry_of_another_kind_becomes_one_that_is_started(name: str, tmp_path: Path) -> None:
    http = {"type": "http", "url": "http://x", "headers": {"a": "b"}, "bearer_token_env_var": "T", "enabled": False}
    make(tmp_path / "file", client_of(name).format.edited("", (client_of(name).key, "lancelot"), http))
    add(name, tmp_path / "file")
    own = lancelot_setup.entry_in(client_of(name), (tmp_path / "file").read_bytes())
    assert own == {"enabled": False, **entry_of(name)}


def test_an_entry_among_tables_of_its_own_keeps_what_a_person_added(tmp_path: Path) -> None:
    pytest.importorskip("tomllib")
    own = (
        "[mcp_servers.lancelot]\ncommand = 'x'\nstartup_timeout_sec = 20\n\n[mcp_servers.lancelot.tools.a]\nb = true\n"
    )
    make(tmp_path / "file", f"{own}\n# next\n[z]\n\n[mcp_servers.lancelot.env]\nLANCEDB_TABLE = 't'\n")
    add("codex", tmp_path / "file")
    added = {"startup_timeout_sec": 20, "tools": {"a": {"b": True}}, "env": {"LANCEDB_TABLE": "t"}}
    assert data_of("codex", tmp_path / "file") == {"mcp_servers": {"lancelot": entry_of("codex") | added}, "z": {}}
    assert "\n[z]\n" in (tmp_path / "file").read_text(encoding="utf-8")
    assert "\n# next\n" in (tmp_path / "file").read_text(encoding="utf-8")
    backup(tmp_path / "file").unlink()
    remove("codex", tmp_path / "file")
    assert "".join((tmp_path / "file").read_text(encoding="utf-8").split()) == "[z]#next"


@pytest.mark.skipif(os.name == "nt", reason="Windows gives every program these variables")
@pytest.mark.parametrize(
    ("home", "config", "told"),
    [
        ("/home/me", "", {}),
        ("/home/me/", "/home/me/.config", {}),
        ("", "/home/me/.config", {}),
        ("/else", "", {"HOME": "/else"}),
        ("/else", "/else/.config", {"HOME": "/else"}),
        ("/else", "/home/me/.config", {"HOME": "/else", "XDG_CONFIG_HOME": "/home/me/.config"}),
        ("/home/me", "/conf", {"XDG_CONFIG_HOME": "/conf"}),
    ],
)
def test_a_folder_that_a_bare_environment_would_not_lead_to_is_part_of_the_entry(
    home: str, config: str, told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot_setup, "account_home", lambda: "/home/me")
    assert lancelot_setup.client_variables({"HOME": home, "XDG_CONFIG_HOME": config}, {}) == told


@pytest.mark.skipif(os.name == "nt", reason="Windows gives every program these variables")
def test_without_any_variable_the_settings_are_those_in_the_home_of_the_account() -> None:
    program = "import lancelot, lancelot_setup; print(lancelot.config_folder()); print(lancelot_setup.account_home())"
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(PROGRAM).parent, env={}, capture_output=True, text=True, check=True
    ).stdout
    folder, home = told.splitlines()
    assert Path(home).is_absolute()
    assert Path(folder).is_relative_to(home)


@EVERY
def test_a_difference_shows_our_entry_alone_and_no_secret_in_it(name: str, tmp_path: Path) -> None:
    client, path = client_of(name), tmp_path / "file"
    others = {"b": {"command": "x", "args": ["--api-key", "ghp_1"], "env": {"A": "ghp_2"}, "url": "http://u:ghp_3@h"}}
    ours = {"command": "old", "env": {"PLAIN": "shown", "OPENAI_API_KEY": 'sk-"4', "MY_PASSWORD": "5five"}}
    before = client.format.edited("", (client.key, "b"), others["b"])
    path.write_bytes(client.format.edited(before, (client.key, "lancelot"), ours).replace("\n", " ").encode())
    if name == "codex":
        path.write_text(client.format.edited(before, (client.key, "lancelot"), ours), encoding="utf-8")
    shown = lancelot_setup.edit_diff(client, lancelot_setup.plan_edit(client, path, entry_of(name)))
    assert [secret for secret in ("ghp_", "sk-", "5five") if secret in shown] == []
    assert '-    "command": "old"' in shown
    assert '"PLAIN": "shown"' in shown
    assert '"MY_PASSWORD": "…"' in shown


# --- files that are left alone


BROKEN_JSON = (
    ('{"mcpServers": {', "Expecting"),
    ("[]", "no JSON object"),
    ('{"KEY": []}', "holds no servers by name"),
    ('{"KEY": {"lancelot": "x"}}', "no entry of a server"),
    ('{"KEY": {"lancelot": {}, "lancelot": {}}}', "twice"),
    ("[" * 100_000, "nested too deeply"),
    (b"\xff\xfe{\x00}\x00", "not UTF-8"),
)
BROKEN_TOML = (
    ("model = \n", ""),
    ('model = "x\n', ""),
    ("a = [1,\n", ""),
    ("words\n", "line 1"),
    ("[[mcp_servers]]\na = 1\n", "holds no servers by name"),
    ("[mcp_servers]\nlancelot = 1\n", "no entry of a server"),
    ("mcp_servers = [{a = 1}]\n", "holds no servers by name"),
    (b"a = '\xff'", "not UTF-8"),
)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [(name, *broken) for name in JSON_NAMES for broken in BROKEN_JSON] + [("codex", *broken) for broken in BROKEN_TOML],
    ids=str,
)
def test_a_file_that_cannot_be_read_is_left_alone_and_named(
    name: str, content: str | bytes, reason: str, tmp_path: Path
) -> None:
    content = content.replace("KEY", client_of(name).key) if isinstance(content, str) else content
    before = make(tmp_path / "file", content)
    with pytest.raises(lancelot.LancelotError, match="was left as it is") as caught:
        add(name, tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)
    assert reason in str(caught.value)
    assert (tmp_path / "file").read_bytes() == before
    assert not backup(tmp_path / "file").exists()


@pytest.mark.parametrize("name", ["claude-code", "claude-desktop", "windsurf", "anythingllm"])
def test_comments_where_the_client_takes_none_are_a_broken_file(name: str, tmp_path: Path) -> None:
    make(tmp_path / "file", "{} // no\n")
    with pytest.raises(lancelot.LancelotError, match="was left as it is"):
        add(name, tmp_path / "file")


def test_a_last_comma_where_the_client_takes_none_is_a_broken_file(tmp_path: Path) -> None:
    make(tmp_path / "file", '{"mcpServers": {},} // so\n')
    with pytest.raises(lancelot.LancelotError, match="was left as it is"):
        add("gemini", tmp_path / "file")
    add("cursor", tmp_path / "file")


@pytest.mark.parametrize(
    "text", ["mcp_servers = {}\n", "[mcp_servers]\nlancelot = {}\n", "mcp_servers.lancelot.command = 'x'\n[a]\n"]
)
def test_servers_that_are_not_tables_of_their_own_are_edited_too(text: str, tmp_path: Path) -> None:
    make(tmp_path / "file", text)
    add("codex", tmp_path / "file")
    assert data_of("codex", tmp_path / "file")["mcp_servers"] == {"lancelot": entry_of("codex")}
    remove("codex", tmp_path / "file")
    assert not data_of("codex", tmp_path / "file").get("mcp_servers")


def test_a_file_that_changed_in_the_meantime_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    make(path, "{}")
    edit = lancelot_setup.plan_edit(client_of("cursor"), path, entry_of("cursor"))
    make(path, '{"new": 1}')
    with pytest.raises(lancelot.LancelotError, match="changed in the meantime"):
        lancelot_setup.apply_edit(edit)
    assert path.read_bytes() == b'{"new": 1}'


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes and needs rights to make links")
def test_mode_and_links_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles" / "mcp.json", tmp_path / "mcp.json"
    make(real, "{}")
    real.chmod(0o640)
    link.symlink_to(real)
    add("cursor", link)
    assert link.is_symlink()
    assert "lancelot" in json.loads(real.read_text(encoding="utf-8"))["mcpServers"]
    assert [one.stat().st_mode & 0o777 for one in (real, backup(real))] == [0o640, 0o640]
    assert sorted(one.name for one in real.parent.iterdir()) == ["mcp.json", "mcp.json.lancelot-backup"]
    remove("cursor", link)
    assert (link.is_symlink(), real.read_bytes(), real.stat().st_mode & 0o777) == (True, b"{}", 0o640)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give a file to another user")
def test_a_file_stays_that_of_its_owner(tmp_path: Path) -> None:
    make(tmp_path / "file", "{}")
    os.chown(tmp_path / "file", 12345, 54321)
    add("cursor", tmp_path / "file")
    owners = [(one.stat().st_uid, one.stat().st_gid) for one in (tmp_path / "file", backup(tmp_path / "file"))]
    assert owners == [(12345, 54321)] * 2


KILLED = """
import os, pathlib, signal, sys
import lancelot, lancelot_setup
path, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
client = next(client for client in lancelot_setup.CLIENTS if client.name == "cursor")
edit, replace, done = lancelot_setup.plan_edit(client, path, client.entry(["x"], {})), os.replace, []
def counted(*paths):
    if len(done) == steps:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(replace(*paths))
os.replace = counted
lancelot_setup.apply_edit(edit)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal")
@pytest.mark.parametrize(("steps", "kept"), [(0, []), (1, ["{}"])])
def test_an_init_that_is_killed_leaves_the_old_file_whole(steps: int, kept: list[str], tmp_path: Path) -> None:
    path = tmp_path / "file"
    make(path, "{}")
    ended = subprocess.run([sys.executable, "-c", KILLED, path, str(steps)], cwd=Path(PROGRAM).parent, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_text(encoding="utf-8") == "{}"
    assert [one.read_text(encoding="utf-8") for one in (backup(path),) if one.exists()] == kept
    add("cursor", path)
    assert lancelot_setup.entry_in(client_of("cursor"), path.read_bytes()) == entry_of("cursor")
    remove("cursor", path)
    assert (path.read_text(encoding="utf-8"), backup(path).exists()) == ("{}", False)


def test_a_write_protected_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "file", "{}")
    monkeypatch.setattr(os, "access", lambda *_: False)  # what modes say differs by user and system
    with pytest.raises(lancelot.LancelotError, match="write-protected"):
        add("cursor", tmp_path / "file")
    assert files_below(tmp_path) == ["file"]


# --- any text


SPACE = st.sampled_from(["", " ", "\n", "\n  ", "\r\n\t", "  \n"])
TRIVIA = SPACE | st.sampled_from([" // a , } comment\n", '/* { " */', "\n// x\n\t"])
WORDS = st.sampled_from(["a", "b", 'q"', "å\u2028", "//", "/*", ",}", "mcpServers", "servers", "lancelots", "\ud800"])


@st.composite
def json_texts(draw: Callable[[Any], Any], *, comments: bool, key: str) -> str:
    """A JSON object in any layout, with a fitting object of servers now and then."""
    space = functools.partial(draw, TRIVIA if comments else SPACE)

    def joined(parts: list[str], opened: str, closed: str) -> str:
        text = f"{space()},{space()}".join(parts)
        comma = f"{space()}," if parts and comments and draw(st.booleans()) else ""
        return f"{opened}{space()}{text}{comma}{space()}{closed}"

    def value(depth: int) -> str:
        kind = draw(st.integers(0, 3 if depth < 2 else 1))
        if kind < 2:
            return json.dumps(
                draw(WORDS | st.integers() | st.none() | st.floats(allow_nan=False, allow_infinity=False))
            )
        if kind == 2:
            return joined([value(depth + 1) for _ in range(draw(st.integers(0, 3)))], "[", "]")
        return members(draw(st.lists(WORDS.filter(lambda word: word != key), unique=True, max_size=3)), depth)

    def members(names: list[str], depth: int) -> str:
        return joined([f"{json.dumps(name)}{space()}:{space()}{value(depth + 1)}" for name in names], "{", "}")

    names = draw(st.lists(WORDS.filter(lambda word: word != key), unique=True, max_size=3))
    parts = [f"{json.dumps(name)}{space()}:{space()}{value(1)}" for name in names]
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), f'"{key}"{space()}:{space()}{members(names[:2], 1)}')
    return f"{space()}{joined(parts, '{', '}')}{space()}"


TOML_TEXTS = st.lists(
    st.sampled_from(
        [
            "",
            "# comment",
            "[mcp_servers]",
            "[mcp_servers.other]\na = 1",
            '[mcp_servers."lancelot.x"]',
            "[ mcp_servers . lancelots ] # [mcp_servers.lancelot]",
            "[[list]]\nb = '''\n[mcp_servers.lancelot]\n'''",
            '[t]\nc = """\n\\"""\n[x]"""',
            "[u]\nd = [\n  [1],\n  { e = ']' },\n]",
            '["mcp_servers" . "other x"]\nb.c = 1 # ]',
            '[z."]"] # [\ny = {a = [1, {b = "]"}]} # [x\nw = "\\" # [\\\\"',
            'v = """"[mcp_servers.lancelot]"""" # \'\'\'\nx = \'\'',
        ]
    ),
    unique=True,
).map("\n".join)


def check_round_trip(name: str, text: str, folder: Path) -> None:
    path = folder / "file"
    before = make(path, text)
    backup(path).unlink(missing_ok=True)
    add(name, path)
    after = path.read_bytes()
    assert lancelot_setup.entry_in(client_of(name), after) == entry_of(name)
    assert is_subsequence(before, after)
    add(name, path)
    assert path.read_bytes() == after
    remove(name, path)
    assert path.read_bytes() == before


@given(text=json_texts(comments=False, key="mcpServers"))
def test_any_json_with_our_entry_added_and_removed_is_as_before(text: str, tmp_path_factory: Any) -> None:
    check_round_trip("windsurf", text, tmp_path_factory.getbasetemp())


@given(text=json_texts(comments=True, key="servers"))
def test_any_json_with_comments_with_our_entry_added_and_removed_is_as_before(text: str, tmp_path_factory: Any) -> None:
    check_round_trip("vscode", text, tmp_path_factory.getbasetemp())


@given(text=TOML_TEXTS, line_end=st.sampled_from(["\n", "\r\n"]), last=st.booleans())
def test_any_toml_with_our_table_added_and_removed_is_as_before(
    text: str, line_end: str, tmp_path_factory: Any, *, last: bool
) -> None:
    check_round_trip("codex", (text + "\n" * last).replace("\n", line_end), tmp_path_factory.getbasetemp())


@given(text=json_texts(comments=True, key="servers"))
def test_taking_the_entry_out_of_any_text_leaves_the_same_values(text: str) -> None:
    keys, form = ("servers", "lancelot"), lancelot_setup.JSON_OF_VS_CODE
    added = form.edited(text, keys, {"command": "x"})
    taken = form.edited(added, keys, None)
    assert form.data(taken) == {**(form.data(text) or {}), "servers": (form.data(text) or {}).get("servers", {})}
    if "servers" in (form.data(text) or {}) and (form.data(text) or {})["servers"]:
        assert "".join(taken.split()) == "".join(text.split())  # a brace may have got a line of its own


@given(text=json_texts(comments=True, key="servers"), at=st.integers(0, 3))
def test_a_member_anywhere_among_others_can_be_taken_out(text: str, at: int) -> None:
    form, data = lancelot_setup.JSON_OF_VS_CODE, lancelot_setup.JSON_OF_VS_CODE.data(text) or {}
    names = list(data)
    if names:
        name = names[at % len(names)]
        assert form.data(form.edited(text, (name,), None)) == {key: value for key, value in data.items() if key != name}


# --- the command


FOLDER = str(DATABASES / "no-vector")


@pytest.fixture
def init(run: Run, machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ended]:
    """Runs `init` of a person at home in an empty folder; the server that it starts at the end is made out to answer."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(lancelot, "local_files", list)  # without the model, and with no setting about it
    for name in WITHOUT_MODEL:
        monkeypatch.delenv(name)
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "VSCODE_APPDATA", "APPDATA", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(lancelot_setup, "this_system", lambda: "linux")
    monkeypatch.setattr(
        lancelot_setup, "check_server", lambda _session, cwd: [lancelot.Check("server", "ok", f"It answers in {cwd}.")]
    )
    monkeypatch.setattr(lancelot_setup, "account_home", lambda: str(machine))
    return functools.partial(run, "init")


@pytest.mark.parametrize("system", SYSTEMS)
def test_init_writes_the_clients_named_and_stores_the_rest(
    system: lancelot_setup.System, init: Callable[..., Ended], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot_setup, "this_system", lambda: system)
    monkeypatch.setenv("USERPROFILE", str(machine))
    ended = init("--path", FOLDER, "--yes", *(word for name in NAMES for word in ("--client", name)))
    assert (ended.code, ended.err) == (0, "")
    written = {machine / USER_FILES[name].format(apps=APPS[system]): name for name in NAMES}
    for path, name in written.items():
        assert f"written: {path}" in ended.out
        entry = lancelot_setup.entry_in(client_of(name), path.read_bytes())
        assert entry == client_of(name).entry([sys.executable, PROGRAM], {})
    assert f"ok:      It answers in {Path(sys.executable).anchor}." in ended.out
    assert "mcpServers" not in ended.out
    assert len(files_below(machine)) == len(NAMES) + 1
    again = init("--path", FOLDER, "--yes", "--client", "all")
    assert again.out.count("nothing to change in") == len(NAMES)
    taken = init("--client", "all", "--remove")
    assert (taken.code, taken.err) == (0, "")
    assert files_below(machine) == [".config/lancelot/settings.json"]


def test_all_means_those_that_are_found(init: Callable[..., Ended], machine: Path) -> None:
    none = init("--path", FOLDER, "--yes", "--client", "all")
    assert none.code == 1
    assert "No client was found" in none.err
    assert files_below(machine) == []
    make(machine / ".gemini" / "settings.json", '{"theme": "x"}')
    (machine / ".codeium" / "windsurf").mkdir(parents=True)
    assert init("--path", FOLDER, "--yes", "--client", "all", "--scope", "user").code == 0
    assert files_below(machine) == [
        ".codeium/windsurf/mcp_config.json",
        ".config/lancelot/settings.json",
        ".gemini/settings.json",
        ".gemini/settings.json.lancelot-backup",
    ]


def test_all_of_a_project_means_those_with_a_file_in_it_too(
    init: Callable[..., Ended], machine: Path, tmp_path: Path
) -> None:
    before = make(tmp_path / "project" / ".vscode" / "mcp.json", '{"servers": {}}')
    for words in (("--path", FOLDER, "--yes"), ("--remove",)):
        assert init(*words, "--client", "all", "--scope", "project").code == 0
    assert (tmp_path / "project" / ".vscode" / "mcp.json").read_bytes() == before
    assert not (tmp_path / "project" / ".cursor").exists()
    assert not (machine / ".cursor").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(init: Callable[..., Ended], machine: Path) -> None:
    (machine / ".cursor").mkdir()
    os.mkfifo(machine / ".cursor" / "mcp.json")
    ended = init("--path", FOLDER, "--yes", "--client", "cursor")
    assert ended.code == 1
    assert "mcp.json was left as it is: mcp.json is not a file." in ended.err


def test_what_stays_of_an_entry_that_was_there_is_named(init: Callable[..., Ended], machine: Path) -> None:
    old = '{"mcpServers": {"lancelot": {"command": "x", "disabled": true, "env": {"LANCEDB_TABLE": "t"}}}}'
    make(machine / ".cursor" / "mcp.json", old)
    ended = init("--path", FOLDER, "--yes", "--client", "cursor")
    assert "Cursor: its entry keeps disabled, LANCEDB_TABLE as before: take out what should not hold" in ended.out
    assert "its entry keeps" not in init("--path", FOLDER, "--yes", "--client", "gemini").out


def test_a_project_gets_its_own_file(init: Callable[..., Ended], tmp_path: Path) -> None:
    ended = init("--path", FOLDER, "--yes", "--client", "vscode", "--client", "claude-code", "--scope", "project")
    assert ended.code == 0
    assert files_below(tmp_path / "project") == [".mcp.json", ".vscode/mcp.json"]
    refused = init("--path", FOLDER, "--yes", "--client", "windsurf", "--scope", "project")
    assert refused.code == 1
    assert "windsurf has no file of a project" in refused.err


def test_each_project_has_its_own_folder_and_the_settings_of_the_account_stay(
    init: Callable[..., Ended],
    config_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_table: Callable[..., Path],
) -> None:
    stored = make(config_dir / "settings.json", json.dumps({"LANCEDB_PATH": FOLDER, "EMBEDDING_MODEL": "m"}))
    names = ("claude-code", "cursor", "vscode", "codex", "gemini")
    clients = [word for name in names for word in ("--client", name)]
    folders, before = {}, {}
    for name in ("one", "two"):
        folders[name] = make_table({"text": [name]}, folder=f"db of {name}")
        for file in PROJECT_FILES.values():
            text = "# mine\n" if file.endswith(".toml") else '{"other": 1}'
            before[name, file] = make(tmp_path / name / file, text)
        monkeypatch.chdir(tmp_path / name)
        ended = init("--path", str(folders[name]), "--yes", *clients, "--scope", "project")
        assert (ended.code, ended.err) == (0, "")
        assert "Stored" not in ended.out
    assert (config_dir / "settings.json").read_bytes() == stored
    for name, folder in folders.items():
        for client in map(client_of, names):
            entry = lancelot_setup.entry_in(client, (tmp_path / name / PROJECT_FILES[client.name]).read_bytes()) or {}
            assert entry["env"] == {"LANCEDB_PATH": str(folder), "EMBEDDING_MODEL": "m"}
            assert lancelot.load_settings(entry["env"], config_dir).path == str(folder)
        monkeypatch.chdir(tmp_path / name)
        # Without --path it is the folder that the project has, not that of the account.
        again = init("--yes", *clients, "--scope", "project")
        assert again.out.count("nothing to change in") == len(names)
        assert init(*clients, "--scope", "project", "--remove").code == 0
    assert {(name, file): (tmp_path / name / file).read_bytes() for name, file in before} == before
    assert (config_dir / "settings.json").read_bytes() == stored


def test_what_the_account_has_stored_does_not_reach_into_a_project(
    init: Callable[..., Ended], config_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(config_dir / "settings.json", json.dumps({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}))
    monkeypatch.setenv("LANCEDB_TABLE", "letters")
    words = ("--path", FOLDER, "--yes", "--client", "claude-code", "--scope", "project")

    def variables() -> dict[str, str]:
        entry = (
            lancelot_setup.entry_in(client_of("claude-code"), (tmp_path / "project" / ".mcp.json").read_bytes()) or {}
        )
        return dict(entry["env"])

    init(*words)
    own = {"LANCEDB_PATH": FOLDER, "LANCEDB_TABLE": "letters"}
    assert variables() == own | {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    init(*words, "--base-url", "")
    assert variables() == own | {"OPENAI_BASE_URL": lancelot.OPENAI_URL}
    ended = init(*words, "--base-url", "http://me:secret@127.0.0.1:1/v1")
    assert "OPENAI_BASE_URL holds a password, so it was used and not stored" in ended.out
    assert "secret" not in str(variables())


def test_a_key_given_for_a_project_is_kept_with_the_keys_and_no_setting_is_stored(
    init: Callable[..., Ended], config_dir: Path, tmp_path: Path
) -> None:
    words = ("--path", FOLDER, "--client", "claude-code", "--scope", "project", "--base-url", "http://127.0.0.1:1/v1")
    ended = init(*words, "--api-key-stdin", given=f"{KEY}\n")
    assert "The key for 127.0.0.1:1 was stored in the encrypted file" in ended.out.replace("http://", "")
    assert set(json.loads((config_dir / "settings.json").read_bytes())) == {lancelot.KEY_HOSTS}
    assert KEY not in (tmp_path / "project" / ".mcp.json").read_text(encoding="utf-8")


def test_an_address_is_not_taken_from_a_project_s_file(init: Callable[..., Ended], tmp_path: Path) -> None:
    entry = {"command": "x", "env": {"LANCEDB_PATH": "s3://evil/db"}}
    make(tmp_path / "project" / ".mcp.json", json.dumps({"mcpServers": {"lancelot": entry}}))
    ended = init("--yes", "--client", "claude-code", "--scope", "project")
    assert (ended.code, "No folder to search is known." in ended.err) == (1, True)


def test_the_scope_of_a_project_needs_a_client(init: Callable[..., Ended], machine: Path) -> None:
    ended = init("--path", FOLDER, "--yes", "--scope", "project")
    assert (ended.code, "Say which: --client NAME." in ended.err) == (1, True)
    assert files_below(machine) == []


def test_a_server_is_not_started_with_what_a_project_s_file_sets_unless_the_person_says_so(
    init: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = {"PYTHONPATH": "/evil", "OPENAI_BASE_URL": "http://evil.example", "LANCELOT_INDEX_ROOTS": "/"}
    text = json.dumps({"mcpServers": {"lancelot": {"command": "x", "env": hostile}}})
    make(tmp_path / "project" / ".mcp.json", text)
    started: list[Mapping[str, str]] = []

    def check(session: lancelot.Session, cwd: str) -> list[lancelot.Check]:
        started.append(session.environ)
        return [lancelot.Check("server", "ok", f"It answers in {cwd}.")]

    monkeypatch.setattr(lancelot_setup, "check_server", check)
    words = ("--path", FOLDER, "--base-url", "", "--client", "claude-code", "--scope", "project")
    ended = init(*words, "--yes")
    assert ended.code == 1
    assert (
        "was not started, since the project's file sets LANCELOT_INDEX_ROOTS, OPENAI_BASE_URL, PYTHONPATH" in ended.out
    )
    assert started == []
    monkeypatch.setattr(lancelot_setup.getpass, "getpass", lambda *_: "")
    for answer, code in (("", 1), ("n", 1), ("y", 0)):
        typed = io.StringIO(f"{answer}\n")
        monkeypatch.setattr(typed, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", typed)
        assert lancelot.main(["init", *words]) == code
    assert [environ["PYTHONPATH"] for environ in started] == ["/evil"]


def test_a_dry_run_shows_the_difference_and_writes_nothing(init: Callable[..., Ended], machine: Path) -> None:
    path = machine / ".cursor" / "mcp.json"
    text = '{\n  "mcpServers": {\n    "b": {\n      "env": {"API_TOKEN": "ghp_secret", "x": "1"}\n    }\n  }\n}\n'
    before = make(path, text)
    ended = init("--path", FOLDER, "--client", "cursor", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"--- {path}\n+++ {path}\n@@ ")
    assert '+  "lancelot": {' in ended.out
    assert "ghp_secret" not in ended.out
    assert path.read_bytes() == before
    assert files_below(machine) == [".cursor/mcp.json"]
    init("--path", FOLDER, "--yes", "--client", "cursor")
    taken = init("--client", "cursor", "--remove", "--dry-run")
    assert '-  "lancelot": {' in taken.out
    assert b"lancelot" in path.read_bytes()


def test_no_secret_reaches_a_client_s_file_and_other_settings_do(
    init: Callable[..., Ended], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"LANCELOT_CHAT_API_KEY": "sk-chat", "LANCELOT_PASSPHRASE": "sesame", "OPENAI_API_KEY": "sk-env"}
    address = {"LANCELOT_CHAT_BASE_URL": "http://alice:hunter2@127.0.0.1:1/v1", "OPENAI_BASE_URL": "http://127.0.0.1:1"}
    told = {"LANCEDB_TABLE": "letters", "SHIV_ROOT": "/big", "XDG_CONFIG_HOME": str(machine / "conf")}
    for name, value in (secrets | address | told | {"LANCEDB_PATH": FOLDER}).items():
        monkeypatch.setenv(name, value)
    words = [word for name in NAMES for word in ("--client", name)]
    ended = init("--yes", "--api-key-stdin", *words, given=f"{KEY}\n")
    assert ended.code == 0
    for name in NAMES:
        place = USER_FILES[name].format(apps="conf")
        content = (machine / place).read_bytes()
        entry = lancelot_setup.entry_in(client_of(name), content)
        assert entry is not None
        assert entry["env"] == told
        assert not [value for value in (KEY, "hunter2", *secrets.values()) if value.encode() in content]
    assert not [value for value in (KEY, "hunter2", *secrets.values()) if value in ended.out + ended.err]


def test_a_broken_file_does_not_keep_the_others_from_being_written(init: Callable[..., Ended], machine: Path) -> None:
    before = make(machine / ".cursor" / "mcp.json", "{")
    ended = init("--path", FOLDER, "--yes", "--client", "cursor", "--client", "gemini")
    assert ended.code == 1
    assert f"{machine / '.cursor' / 'mcp.json'} was left as it is: " in ended.err
    assert (machine / ".cursor" / "mcp.json").read_bytes() == before
    assert (machine / ".gemini" / "settings.json").exists()


# https://code.claude.com/docs/en/mcp#environment-variable-expansion-in-mcp-json,
# https://cursor.com/docs/mcp, https://code.visualstudio.com/docs/reference/variables-reference,
# https://docs.devin.ai/desktop/cascade/mcp; Gemini CLI takes $NAME too:
# https://github.com/google-gemini/gemini-cli/blob/main/docs/reference/configuration.md
@pytest.mark.parametrize(
    ("folder", "able"), [("a $5", ["claude-code", "cursor", "vscode", "windsurf"]), ("${HOME}", [])]
)
def test_a_path_that_a_client_would_change_is_named_and_not_written(
    folder: str, able: list[str], init: Callable[..., Ended], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot, "own_command", lambda _argv: ["/usr/bin/python3", f"/{folder}/lancelot.pyz"])
    able += ["claude-desktop", "codex", "anythingllm"]
    words = [word for name in NAMES for word in ("--client", name)]
    ended = init("--path", FOLDER, "--yes", *words)
    assert ended.code == 1
    refused = f"takes what follows the $ in /{folder}/lancelot.pyz for a variable"
    assert ended.err.count(refused) == len(NAMES) - len(able)
    written = [name for name in NAMES if (machine / USER_FILES[name].format(apps=APPS["linux"])).exists()]
    assert sorted(written) == sorted(able)


def test_a_client_that_is_not_known_is_wrong_usage_and_the_known_ones_are_named(init: Callable[..., Ended]) -> None:
    ended = init("--path", FOLDER, "--yes", "--client", "emacs")
    assert ended.code == 2
    assert all(name in ended.err for name in ("emacs", "all", *NAMES))


def test_a_dry_run_wants_a_client(init: Callable[..., Ended]) -> None:
    ended = init("--path", FOLDER, "--yes", "--dry-run")
    assert ended.code == 1
    assert "--client NAME" in ended.err


def lines_on_clients(machine: Path) -> list[lancelot.Check]:
    return list(lancelot_setup.check_clients(lancelot_setup.Machine("linux", {"HOME": str(machine)}, Path.cwd())))


def test_an_entry_that_names_what_is_gone_is_found_and_mended(
    init: Callable[..., Ended], machine: Path, tmp_path: Path, make_table: Callable[..., Path]
) -> None:
    (nothing,) = lines_on_clients(machine)
    assert (nothing.status, nothing.name) == ("ok", "clients")
    gone = tmp_path / "old folder"
    places = {"claude-code": machine / ".claude.json", "vscode": tmp_path / "project" / ".vscode" / "mcp.json"}
    for name, path in places.items():
        entry = {"command": str(gone / "python3"), "args": [PROGRAM], "env": {"LANCEDB_PATH": str(gone / "db")}}
        make(path, json.dumps({client_of(name).key: {"lancelot": entry}}))
    make(machine / ".cursor" / "mcp.json", "{")
    scopes = {"claude-code": (), "vscode": ("--scope", "project")}
    lines = {
        name: next(line for line in lines_on_clients(machine) if str(path) in line.message)
        for name, path in places.items()
    }
    for name, line in lines.items():
        assert line.status == "failed"
        assert line.message.endswith(f" names {gone / 'python3'}, {gone / 'db'}, which is gone.")
        assert line.remedy == f"Run: {lancelot.typed_line('init', '--client', name, *scopes[name])}"
        folder = make_table({"text": [name]}, folder=name)
        assert init("--path", str(folder), "--yes", "--client", name, *scopes[name]).code == 0
    assert sorted(line.status for line in lines_on_clients(machine)) == ["ok", "ok", "warning"]


@pytest.mark.parametrize(
    "entry", [{"url": "http://x"}, {"command": 1, "args": "x", "env": []}, {"command": "uvx", "args": [None]}]
)
def test_an_entry_of_another_kind_names_nothing_that_is_gone(entry: dict[str, Any], machine: Path) -> None:
    make(machine / ".cursor" / "mcp.json", json.dumps({"mcpServers": {"lancelot": entry}}))
    assert [line.status for line in lines_on_clients(machine)] == ["ok"]


def test_one_command_takes_all_off_the_machine_and_names_it(
    init: Callable[..., Ended], machine: Path, config_dir: Path, tmp_path: Path
) -> None:
    before = make(machine / ".cursor" / "mcp.json", '{"mcpServers": {"other": {"command": "x"}} // broken')
    names = [word for name in ("claude-code", "gemini") for word in ("--client", name)]
    init("--path", FOLDER, "--base-url", "http://127.0.0.1:1", "--api-key-stdin", "--yes", *names, given=f"{KEY}\n")
    init("--path", FOLDER, "--yes", "--client", "claude-code", "--scope", "project")
    refused = init("--remove")
    assert (refused.code, "Give --yes" in refused.err) == (1, True)
    shown = init("--remove", "--dry-run")
    assert shown.out.count('-  "lancelot": {') == 3
    written = [machine / ".claude.json", machine / ".gemini" / "settings.json", tmp_path / "project" / ".mcp.json"]
    kept = [config_dir / name for name in ("settings.json", "credentials.json", "credentials.key")]
    assert all(path.exists() for path in written + kept)
    ended = init("--remove", "--yes")
    assert ended.code == 1  # for the file that could not be read
    assert "mcp.json was left as it is: " in ended.err
    for path in written + kept:
        assert f"removed: {path}\n" in ended.out.replace("Removed", "removed")
    assert f"Left: {PROGRAM}, which you can delete." in ended.out
    assert f"Left: {FOLDER}, which you can delete if no other program uses it." in ended.out
    assert files_below(machine) == [".cursor/mcp.json"]
    assert (machine / ".cursor" / "mcp.json").read_bytes() == before
    assert not config_dir.exists()
    assert files_below(tmp_path / "project") == []


def test_init_ends_with_a_session_by_the_command_that_it_wrote(run: Run, machine: Path, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "db")
    ended = run("init", "--path", str(tmp_path / "db"), "--yes", "--client", "claude-code", "--client", "windsurf")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("ok:      initialize, tools/list (7 tools) and lancedb_status:") == 1
    entry = json.loads((machine / ".claude.json").read_text(encoding="utf-8"))["mcpServers"]["lancelot"]
    variables = WITHOUT_MODEL | ({} if os.name == "nt" else {"HOME": str(machine)})
    assert entry == {"type": "stdio", "command": sys.executable, "args": [PROGRAM], "env": variables}


def test_what_a_person_added_to_an_entry_is_part_of_what_is_started(run: Run, machine: Path) -> None:
    server = {"command": "x", "args": [], "env": {"PYTHONHOME": "/no/such/folder", "LANCELOT_LOG_LEVEL": None}}
    make(machine / ".cursor" / "mcp.json", json.dumps({"mcpServers": {"lancelot": server}}))
    ended = run("init", "--path", FOLDER, "--yes", "--client", "cursor", "--client", "windsurf")
    assert ended.code == 1
    assert ended.out.count("warning: The server did not answer") == 1
    assert ended.out.count("ok:      initialize") == 1
    assert "/no/such/folder" in (machine / ".cursor" / "mcp.json").read_text(encoding="utf-8")


def test_a_command_that_does_not_answer_is_a_warning_and_the_file_stays(
    run: Run, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot, "own_command", lambda _argv: [sys.executable, "-c", "raise SystemExit('broken')"])
    ended = run("init", "--path", FOLDER, "--yes", "--client", "claude-code")
    assert ended.code == 1
    assert "warning: The server did not answer" in ended.out
    assert "broken" in ended.out
    assert "The files stay as they are now" in ended.out
    assert "broken" in (machine / ".claude.json").read_text(encoding="utf-8")
