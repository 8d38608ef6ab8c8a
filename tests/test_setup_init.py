"""`init`: what it asks, tries, says and stores, by options and at a terminal."""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keyring
import keyring.backends.fail
import pytest
import wire
from conftest import DATABASES, NO_KEYCHAIN, PROGRAM, PROJECT, WITHOUT_MODEL, Ended, Run, child_environment

import lancelot
import lancelot_setup

KEY = "sk-test-0123456789abcdef"
LIMIT = 60
FOLDER = str(DATABASES / "anythingllm")
SMALL = str(DATABASES / "no-vector")
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals of this kind")


def run_program(*words: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, *words],
        env=child_environment(**NO_KEYCHAIN, **variables),
        cwd=Path(PROJECT.anchor),
        input=given,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=LIMIT,
    )


Init = Callable[..., Ended]


@pytest.fixture
def init(run: Run) -> Init:
    """Runs `init` in this process: `init("--path", folder, given="input")`."""
    return functools.partial(run, "init")


def stored(config_dir: Path) -> dict[str, str]:
    """The stored settings; the note of the hosts that a key is stored for has a test of its own."""
    values: dict[str, str] = json.loads((config_dir / "settings.json").read_text(encoding="utf-8"))
    values.pop(lancelot.KEY_HOSTS, None)
    return values


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def key_for(config_dir: Path, host: str) -> str | None:
    return lancelot.file_read(lancelot.load_settings({}, config_dir), host)


# --- by options, as a program of its own


def entry_in(text: str) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return entry


def talk_to(command: list[str], variables: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a server answers to a handshake and to a search, started by a client that passes none of its own variables."""
    system = {name: os.environ[name] for name in ("SYSTEMROOT", "USERPROFILE") if name in os.environ}
    server = wire.Server(system | NO_KEYCHAIN | variables, command=command, cwd=Path(PROJECT.anchor))
    search = {"name": "lancedb_search", "arguments": {"query": "hästarna stallet smörgåsen", "table": "world-notes"}}
    try:
        greeting = server.ask(wire.handshake(1))
        server.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return greeting, server.ask({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": search})
    finally:
        server.stop()


def test_what_init_shows_starts_a_server_that_uses_what_init_stored(
    embedding_server: Callable[..., str], config_dir: Path, machine: Path
) -> None:
    url = embedding_server("--require-key", KEY)
    ended = run_program(
        "init", "--path", FOLDER, "--api-key-stdin", "--base-url", url, "--model", "tiny", "--yes", given=f"{KEY}\r\n"
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    host = lancelot.host_of(url)
    for said in (
        "ok       tables      2 tables can be read",
        f"ok       embeddings  {host} embeds with tiny: length 384.",
        f"Stored: {config_dir / 'settings.json'}",
        f"The key for http://{host} was stored in the encrypted file. This machine offers no system keychain.",
    ):
        assert said in ended.stdout
    assert "warning" not in ended.stdout
    assert stored(config_dir) == {"LANCEDB_PATH": FOLDER, "OPENAI_BASE_URL": url, "EMBEDDING_MODEL": "tiny"}
    assert KEY not in ended.stdout
    assert not [path for path in machine.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]

    shown = run_program("init", "--show").stdout
    entry = entry_in(shown)
    # The account has another home than this test.
    variables = WITHOUT_MODEL | ({} if os.name == "nt" else {"HOME": str(machine)})
    server = {"command": sys.executable, "args": [PROGRAM], "env": variables}
    assert entry == {"mcpServers": {"lancelot": server}}
    if os.name != "nt":
        (line,) = (line for line in shown.splitlines() if line.startswith("claude "))
        named = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        named += ["--transport", "stdio", "lancelot", "--"]
        assert shlex.split(line) == ["claude", "mcp", "add", *named, sys.executable, PROGRAM]

    greeting, answer = talk_to([sys.executable, PROGRAM], variables)
    assert greeting["result"]["serverInfo"]["name"] == "lancelot"
    found = json.loads(wire.text_of(answer))
    assert found["searchType"] == "vector"
    assert found["hits"][0]["title"] == "Hästar på Gotland.md"


def test_a_written_entry_that_names_a_table_which_is_not_there_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    old = {"mcpServers": {"lancelot": {"command": "x", "env": {"LANCEDB_TABLE": "t"}}}}
    (tmp_path / ".cursor" / "mcp.json").write_text(json.dumps(old), encoding="utf-8")
    done = run_program("init", "--path", FOLDER, "--yes", "--client", "cursor", HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert 'there is nothing that it can search: There is no table "t", which LANCEDB_TABLE names.' in done.stdout


def test_a_wrong_folder_is_a_sentence_and_nothing_is_stored(machine: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    ended = run_program("init", "--path", str(missing), "--api-key-stdin", "--yes", given=f"{KEY}\n")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("lancelot: ")
    assert str(missing) in ended.stderr
    assert ended.stderr.endswith("Nothing was stored.\n")
    assert len(ended.stderr.splitlines()) == 1
    assert not missing.exists()
    assert files_of(machine) == []


# --- by options, in this process


def test_a_folder_with_a_near_name_is_offered(init: Init, folder_copy: Callable[[str], Path], config_dir: Path) -> None:
    folder = folder_copy("no-vector")
    for wrong, right in (
        (folder.with_name("no-vectors"), f"Did you mean {folder}?"),
        (folder / "library_records.lance", f"Set LANCEDB_PATH to {folder}."),
        (folder.parent, f"Set LANCEDB_PATH to {folder}."),
        (folder / "expected.json", f"Set LANCEDB_PATH to {folder}"),
    ):
        ended = init("--path", str(wrong), "--yes")
        assert ended.code == 1
        assert right in ended.err
    assert not config_dir.exists()


def test_no_folder_at_all_is_a_sentence(init: Init, config_dir: Path) -> None:
    ended = init("--yes")
    assert ended.code == 1
    assert f"Give it: `{lancelot.typed_line('init', '--path', 'FOLDER')}`" in ended.err
    assert not config_dir.exists()


def test_without_a_terminal_and_without_answers_it_says_what_to_give(init: Init, config_dir: Path) -> None:
    ended = init()
    assert ended.code == 1
    assert "no terminal" in ended.err
    assert "--yes" in ended.err
    assert not config_dir.exists()


def test_a_relative_path_is_stored_absolute(
    init: Init, config_dir: Path, folder_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_copy("no-vector")
    monkeypatch.chdir(folder.parent)
    assert init("--path", "no-vector", "--yes").code == 0
    assert stored(config_dir) == {"LANCEDB_PATH": str(folder)}


def test_a_tilde_in_the_path_is_stored_as_the_home_folder(init: Init, config_dir: Path, machine: Path) -> None:
    shutil.copytree(DATABASES / "no-vector", machine / "my db")
    assert init("--path", "~/my db", "--yes").code == 0
    assert stored(config_dir) == {"LANCEDB_PATH": str(machine / "my db")}


def test_without_key_and_server_searches_are_said_to_be_text_only(init: Init, config_dir: Path) -> None:
    ended = init("--path", FOLDER, "--yes")
    assert ended.code == 0
    assert (
        "ok       embeddings  No key and no endpoint: searches are by words, and nothing leaves this machine."
        in ended.out
    )
    assert files_of(config_dir) == ["settings.json"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--require-key", "another"), "refused the API key (HTTP 401)"),
        (("--fail-with", "404"), 'does not know the model "text-embedding-ada-002"'),
        (("--fail-with", "500"), "failed with HTTP 500"),
    ],
)
def test_a_server_that_refuses_is_a_warning_and_the_rest_is_stored(
    options: tuple[str, ...], said: str, init: Init, embedding_server: Callable[..., str], config_dir: Path
) -> None:
    url = embedding_server(*options)
    ended = init("--path", FOLDER, "--base-url", url, "--api-key-stdin", "--yes", given=f"{KEY}\n")
    assert ended.code == 0
    (warning,) = (line for line in ended.out.splitlines() if line.startswith("failed "))
    assert warning.startswith(f"failed   embeddings  The embedding server at {lancelot.host_of(url)} ")
    assert said in warning
    assert stored(config_dir)["OPENAI_BASE_URL"] == url
    assert key_for(config_dir, lancelot.key_name(url)) == KEY
    assert KEY not in ended.out + ended.err


@pytest.mark.usefixtures("config_dir")
@pytest.mark.parametrize("given_by", ["option", "environment"])
def test_a_password_in_the_address_of_a_server_is_used_and_stored_nowhere(
    given_by: str,
    init: Init,
    embedding_server: Callable[..., str],
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    init("--path", FOLDER, "--base-url", "http://127.0.0.1:9/v1", "--yes")
    url = embedding_server().replace("http://", "http://me:hunter2@")
    options = ("--base-url", url) if given_by == "option" else ()
    monkeypatch.setenv("OPENAI_BASE_URL", "" if options else url)
    ended = init("--path", FOLDER, *options, "--model", "tiny", "--yes", "--client", "cursor")
    assert " embeds with tiny: length 384." in ended.out
    assert "OPENAI_BASE_URL holds a password, so it was used and not stored" in ended.out
    assert "  OPENAI_BASE_URL = " not in init("--show").out
    assert [path for path in machine.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()] == []
    assert "hunter2" not in ended.out + ended.err


def test_a_key_that_is_refused_does_not_replace_one_that_works(
    init: Init, embedding_server: Callable[..., str], config_dir: Path
) -> None:
    url = embedding_server("--require-key", KEY)
    assert init("--path", FOLDER, "--base-url", url, "--api-key-stdin", "--yes", given=f"{KEY}\n").code == 0
    again = init("--path", FOLDER, "--base-url", url, "--api-key-stdin", "--yes", given="mistyped\n")
    assert again.code == 0
    assert "is kept, since the new one was not taken" in again.out
    assert key_for(config_dir, lancelot.key_name(url)) == KEY


def test_a_key_that_never_comes_is_a_sentence_and_nothing_is_stored(init: Init, config_dir: Path) -> None:
    ended = init("--path", FOLDER, "--api-key-stdin", "--yes", given="\n")
    assert ended.code == 1
    assert "No key came on standard input" in ended.err
    assert not config_dir.exists()


def test_a_chosen_folder_for_unpacking_is_part_of_what_the_client_is_told() -> None:
    command, environ = ["/usr/bin/python3", "/home/me/lancelot.pyz"], {"SHIV_ROOT": "/big/disk"}
    entry = json.loads(lancelot_setup.client_entry(command, environ))["mcpServers"]["lancelot"]
    assert entry["env"] == environ
    assert lancelot_setup.claude_command(command, environ).startswith(
        "claude mcp add --env SHIV_ROOT=/big/disk --transport stdio lancelot -- /usr/bin/python3"
    )


def test_a_folder_for_unpacking_is_told_so_that_it_is_the_same_from_everywhere() -> None:
    told = lancelot_setup.start_environment({"SHIV_ROOT": "unpacked"})
    assert told == {"SHIV_ROOT": str(Path("unpacked").absolute())}
    assert lancelot_setup.start_environment({"SHIV_ROOT": "~/unpacked"}) == {
        "SHIV_ROOT": str(Path("~/unpacked").expanduser())
    }


def test_the_machine_is_told_first_and_a_full_disk_ends_with_1_after_all_was_said(
    init: Init, config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=10))
    ended = init("--path", FOLDER, "--yes")
    assert (ended.code, ended.err) == (1, "")
    assert ended.out.startswith("failed   disk space  0.0 GB free ")
    assert stored(config_dir) == {"LANCEDB_PATH": FOLDER}
    assert "Next, search it" in ended.out


def test_a_server_that_is_not_there_is_a_warning(init: Init, config_dir: Path) -> None:
    ended = init("--path", FOLDER, "--base-url", "http://127.0.0.1:1", "--yes")
    assert ended.code == 0
    assert (
        "failed   embeddings  The embedding server at 127.0.0.1:1 cannot be reached (Connection refused)." in ended.out
    )
    assert stored(config_dir)["OPENAI_BASE_URL"] == "http://127.0.0.1:1/v1"


def test_vectors_of_another_length_are_told_table_by_table(init: Init, embedding_server: Callable[..., str]) -> None:
    ended = init("--path", FOLDER, "--base-url", embedding_server("--wrong-dimensions"), "--yes")
    warnings = [line for line in ended.out.splitlines() if line.startswith("warning  embeddings")]
    assert [re.findall(r"The vectors of (\S+) have length 384, not 400", line) for line in warnings] == [
        ["python-peps"],
        ["world-notes"],
    ]
    assert "all-MiniLM-L6-v2" in warnings[0]


@pytest.mark.parametrize(
    "words", [("--api-key", KEY), (f"--api-key={KEY}",), ("--api-key-stdin", KEY), (f"--api-key-stdin={KEY}",), (KEY,)]
)
def test_a_key_is_not_taken_as_an_argument_and_not_repeated(words: tuple[str, ...], init: Init, machine: Path) -> None:
    ended = init("--path", FOLDER, "--yes", *words)
    assert ended.code == 2
    assert KEY not in ended.out + ended.err
    assert "--api-key-stdin" in ended.err
    assert files_of(machine) == []


@pytest.mark.parametrize("address", ["localhost:11434", "http://alice:hunter2@host:99999", "http://my host"])
def test_a_bad_server_address_is_a_sentence_without_its_password(address: str, init: Init, config_dir: Path) -> None:
    ended = init("--path", FOLDER, "--base-url", address, "--yes")
    assert ended.code == 1
    assert "an address such as http://localhost:11434/v1" in ended.err
    assert "hunter2" not in ended.err
    assert not config_dir.exists()


def test_user_and_password_of_the_server_are_not_printed(init: Init, config_dir: Path) -> None:
    first = init("--path", FOLDER, "--base-url", "http://alice:hunter2@127.0.0.1:1/v1", "--yes")
    lancelot.store_settings(config_dir, {"OPENAI_BASE_URL": "http://alice:hunter2@127.0.0.1:1/v1"})
    shown = init("--show")
    assert "127.0.0.1:1" in first.out
    assert "http://127.0.0.1:1/v1" in shown.out
    assert "hunter2" not in first.out + first.err + shown.out + shown.err
    assert "alice" not in first.out + first.err + shown.out + shown.err


def test_init_again_keeps_what_is_stored_and_changes_what_is_given(
    init: Init, embedding_server: Callable[..., str], config_dir: Path
) -> None:
    url = embedding_server()
    host = lancelot.key_name(url)
    words = ("--path", FOLDER, "--base-url", url, "--model", "tiny", "--api-key-stdin", "--yes")
    assert init(*words, given=KEY).code == 0
    lancelot.store_settings(config_dir, {"LANCEDB_TABLE": "world-notes"})
    assert init("--path", str(DATABASES / "no-vector"), "--yes").code == 0
    kept = {"OPENAI_BASE_URL": url, "EMBEDDING_MODEL": "tiny", "LANCEDB_TABLE": "world-notes"}
    assert stored(config_dir) == {"LANCEDB_PATH": str(DATABASES / "no-vector"), **kept}
    assert key_for(config_dir, host) == KEY

    assert init("--model", "other", "--yes").code == 0
    assert stored(config_dir) == {"LANCEDB_PATH": str(DATABASES / "no-vector"), **kept, "EMBEDDING_MODEL": "other"}
    assert key_for(config_dir, host) == KEY


def test_a_key_given_when_the_server_is_taken_out_is_kept_for_openai_alone(
    init: Init, monkeypatch: pytest.MonkeyPatch, config_dir: Path
) -> None:
    monkeypatch.setattr(lancelot.EndpointEmbedder, "embed", lambda _self, texts, **_: [(1.0,) * 384 for _ in texts])
    assert init("--path", FOLDER, "--base-url", "http://127.0.0.1:1", "--yes").code == 0
    ended = init("--base-url", "", "--api-key-stdin", "--yes", given=KEY)
    assert "The key for api.openai.com was stored" in ended.out
    assert stored(config_dir) == {"LANCEDB_PATH": FOLDER}
    assert lancelot.stored_hosts(config_dir) == ["api.openai.com"]


def test_what_the_environment_says_does_not_hide_a_wrong_answer(
    init: Init, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LANCEDB_PATH", FOLDER)
    assert init("--path", str(tmp_path / "missing"), "--yes").code == 1


def test_a_configuration_folder_that_cannot_be_written_is_a_sentence(init: Init, config_dir: Path) -> None:
    config_dir.parent.mkdir()
    config_dir.write_text("a file where the folder would be")
    ended = init("--path", FOLDER, "--yes")
    assert ended.code == 1
    assert f"The settings cannot be stored in {config_dir} (" in ended.err
    assert "Set LANCEDB_PATH" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_bytes_that_are_no_text_are_stored_as_replaced(init: Init, config_dir: Path) -> None:
    assert init("--path", FOLDER, "--model", "tiny\udcff", "--yes").code == 0
    assert stored(config_dir)["EMBEDDING_MODEL"] == "tiny\ufffd"


def test_a_folder_without_tables_is_a_warning(init: Init, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ended = init("--path", str(tmp_path / "empty"), "--yes")
    assert ended.code == 0
    assert "The folder holds no tables." in ended.out


# --- showing and forgetting


def test_show_tells_what_is_stored_and_where_the_key_is_but_not_the_key(
    init: Init, embedding_server: Callable[..., str], config_dir: Path
) -> None:
    nothing = init("--show")
    assert nothing.code == 0
    assert "Key for api.openai.com: none" in nothing.out
    assert not config_dir.exists()

    url = embedding_server()
    init("--path", FOLDER, "--base-url", url, "--api-key-stdin", "--yes", given=KEY)
    lancelot.write_private(
        config_dir / "settings.json", json.dumps(stored(config_dir) | {"OPENAI_API_KEY": f"{KEY}-in-file"}).encode()
    )
    shown = init("--show")
    assert shown.code == 0
    for line in (
        f"Settings file: {config_dir / 'settings.json'}",
        f"  LANCEDB_PATH = {FOLDER}",
        f"  OPENAI_BASE_URL = {url}",
        f"Key for {lancelot.host_of(url)}: from the encrypted file",
    ):
        assert line in shown.out.splitlines()
    assert KEY not in shown.out + shown.err


def test_show_tells_what_is_wrong_with_the_settings_file(init: Init, config_dir: Path) -> None:
    lancelot.write_private(config_dir / "settings.json", b"not json")
    shown = init("--show")
    assert shown.code == 0
    assert "is not a JSON object" in shown.out


def test_forget_removes_what_was_stored_and_only_that(init: Init, config_dir: Path) -> None:
    init("--path", FOLDER, "--base-url", "http://127.0.0.1:1", "--api-key-stdin", "--yes", given=KEY)
    mine = config_dir / "notes of mine.txt"
    mine.write_text("keep")
    assert files_of(config_dir) == ["credentials.json", "credentials.key", "notes of mine.txt", "settings.json"]
    ended = init("--forget")
    assert ended.code == 0
    for name in ("credentials.json", "credentials.key", "settings.json"):
        assert f"Removed: {config_dir / name}" in ended.out
    assert files_of(config_dir) == ["notes of mine.txt"]
    again = init("--forget")
    assert again.code == 0
    assert "Nothing was found to remove." in again.out


def test_forget_removes_the_stored_server_s_key_whatever_the_environment_names(
    init: Init, monkeypatch: pytest.MonkeyPatch, config_dir: Path
) -> None:
    held = {("lancelot", "127.0.0.1:1"): KEY, ("lancelot", "127.0.0.1:2"): KEY, ("lancelot", "api.openai.com"): KEY}
    ring = SimpleNamespace(
        priority=5,
        get_password=lambda *names: held.get(names),
        delete_password=lambda *names: held.pop(names),
    )
    monkeypatch.setattr(keyring, "get_keyring", lambda: ring)
    lancelot.store_settings(config_dir, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:2/v1")
    ended = init("--forget")
    assert ended.code == 0
    assert held == {}
    assert ended.out.count("in the system keychain") == 3


def test_forget_finds_the_keys_of_servers_that_were_stored_before(init: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[tuple[str, str], str] = {}
    ring = SimpleNamespace(
        priority=5,
        get_password=lambda *names: held.get(names),
        set_password=lambda service, host, key: held.update({(service, host): key}),
        delete_password=lambda *names: held.pop(names),
    )
    monkeypatch.setattr(keyring, "get_keyring", lambda: ring)
    for port in (1, 2):
        init("--path", FOLDER, "--base-url", f"http://127.0.0.1:{port}", "--api-key-stdin", "--yes", given=KEY)
    assert set(held) == {("lancelot", "http://127.0.0.1:1"), ("lancelot", "http://127.0.0.1:2")}
    assert init("--forget").code == 0
    assert held == {}


def test_a_key_in_the_environment_alone_is_told_not_to_be_stored(
    init: Init, monkeypatch: pytest.MonkeyPatch, config_dir: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    ended = init("--path", FOLDER, "--base-url", "http://127.0.0.1:1", "--yes")
    assert "OPENAI_API_KEY was used and not stored" in ended.out
    assert KEY not in ended.out + ended.err
    assert files_of(config_dir) == ["settings.json"]


def test_forget_that_cannot_remove_a_file_is_a_sentence(init: Init, config_dir: Path) -> None:
    (config_dir / "credentials.json").mkdir(parents=True)
    ended = init("--forget")
    assert ended.code == 1
    assert f"{config_dir / 'credentials.json'} cannot be removed (" in ended.err
    assert len(ended.err.splitlines()) == 1


# --- AnythingLLM's folder


@pytest.mark.parametrize(
    ("storage", "system", "variables"),
    [
        ("home/.config/anythingllm-desktop/storage", "linux", {}),
        ("config/anythingllm-desktop/storage", "linux", {"XDG_CONFIG_HOME": "config"}),
        ("home/Library/Application Support/anythingllm-desktop/storage", "macos", {}),
        ("roaming/anythingllm-desktop/storage", "windows", {"APPDATA": "roaming"}),
        ("docker", "linux", {"STORAGE_DIR": "docker"}),
    ],
)
def test_anythingllm_s_folder_is_found_where_it_keeps_it(
    storage: str, system: lancelot_setup.System, variables: dict[str, str], tmp_path: Path
) -> None:
    home = {"HOME": str(tmp_path / "home"), "USERPROFILE": str(tmp_path / "home")}
    environ = home | {name: str(tmp_path / value) for name, value in variables.items()}
    machine = lancelot_setup.Machine(system, environ, tmp_path)
    folder = tmp_path / storage / "lancedb"
    folder.mkdir(parents=True)
    assert lancelot_setup.anythingllm_folder(machine) is None
    (folder / "notes.lance").mkdir()
    assert lancelot_setup.anythingllm_folder(machine) == folder


def test_init_takes_anythingllm_s_folder_where_none_is_given(init: Init, machine: Path, config_dir: Path) -> None:
    folder = machine / ".config" / "anythingllm-desktop" / "storage" / "lancedb"
    shutil.copytree(FOLDER, folder)
    ended = init("--yes")
    assert ended.code == 0
    assert f"AnythingLLM's folder was found: {folder}" in ended.out
    assert stored(config_dir) == {"LANCEDB_PATH": str(folder)}


# --- at a terminal


ASKED = "Folder of documents, or of a LanceDB database"


@pytest.fixture
def at_terminal() -> Iterator[Callable[..., Any]]:
    """Runs `init` at a terminal."""
    terminal = pytest.importorskip("terminal")
    running: list[Any] = []

    def start(*words: str, **variables: str) -> Any:
        environ = child_environment(**NO_KEYCHAIN, **variables)
        running.append(terminal.Terminal([sys.executable, PROGRAM, "init", *words], environ))
        return running[-1]

    yield start
    for process in running:
        process.stop()


@posix
def test_at_a_terminal_it_asks_for_folder_server_and_an_unseen_key(
    at_terminal: Callable[..., Any], embedding_server: Callable[..., str], machine: Path, config_dir: Path
) -> None:
    folder = machine / ".config" / "anythingllm-desktop" / "storage" / "lancedb"
    shutil.copytree(FOLDER, folder)
    url = embedding_server("--require-key", KEY)
    session = at_terminal()
    session.wait_for(f"{ASKED} (blank for {folder}): ")
    session.type("\n")
    session.wait_for("server, blank for OpenAI or none: ")
    session.type(f"{url}\n")
    session.wait_for("API key, not shown")
    session.wait_for("): ")
    session.type(f"{KEY}\n")
    assert session.end() == 0, session.shown
    assert "length 384" in " ".join(session.shown.split())
    assert KEY not in session.shown
    assert stored(config_dir) == {"LANCEDB_PATH": str(folder), "OPENAI_BASE_URL": url}
    assert key_for(config_dir, lancelot.key_name(url)) == KEY


OFFERED = "1, 2, 3 or 4 (blank for "
WITH_MODEL = {"LANCELOT_LOCAL_MODEL": ""}


@posix
@pytest.mark.parametrize(
    ("before", "answers", "after"),
    [
        ({}, {f"{OFFERED}1": ""}, {"EMBEDDING_MODEL": "local"}),
        ({}, {f"{OFFERED}1": "4"}, {"EMBEDDING_MODEL": "local", "LANCELOT_LOCAL_MODEL": "off"}),
        (
            {},
            {
                OFFERED: "2",
                "(blank for http://localhost:11434/v1)": "http://127.0.0.1:1",
                "(blank for text-emb": "m",
                "or for none): ": "",
            },
            {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "EMBEDDING_MODEL": "m"},
        ),
        (
            {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "EMBEDDING_MODEL": "m"},
            {f"{OFFERED}2": "", "(blank for http://127.0.0.1:1/v1)": "", "(blank for m)": "", "or for none): ": ""},
            {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "EMBEDDING_MODEL": "m"},
        ),
        ({"EMBEDDING_MODEL": "local", "LANCELOT_LOCAL_MODEL": "off"}, {f"{OFFERED}4": "3", "or for none): ": ""}, {}),
    ],
    ids=["the default", "none", "a server", "the server kept", "a key"],
)
def test_at_a_terminal_what_embeds_is_one_of_four(
    before: dict[str, str],
    answers: dict[str, str],
    after: dict[str, str],
    at_terminal: Callable[..., Any],
    config_dir: Path,
) -> None:
    lancelot.store_settings(config_dir, before)
    session = at_terminal("--path", SMALL, **WITH_MODEL)
    for question, answer in answers.items():
        session.wait_for(question)
        session.type(f"{answer}\n")
    assert session.end() == 0, session.shown
    assert stored(config_dir) == {"LANCEDB_PATH": SMALL, **after}


def test_the_model_inside_the_file_is_chosen_and_left_out_by_options(
    init: Init, config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LANCELOT_LOCAL_MODEL")
    for options, after in {
        ("--no-local-model",): {"LANCELOT_LOCAL_MODEL": "off"},
        (): {"LANCELOT_LOCAL_MODEL": "off"},
        ("--model", "local"): {"EMBEDDING_MODEL": "local"},
        ("--model", "local", "--no-local-model"): {"EMBEDDING_MODEL": "local", "LANCELOT_LOCAL_MODEL": "off"},
    }.items():
        ended = init("--path", SMALL, "--yes", *options)
        assert ended.code == 0
        assert stored(config_dir) == {"LANCEDB_PATH": SMALL, **after}
        assert "Next, search it" in ended.out


def test_a_project_that_takes_the_local_model_does_not_inherit_that_it_is_off(
    init: Init, config_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LANCELOT_LOCAL_MODEL")
    monkeypatch.chdir(tmp_path)
    lancelot.store_settings(config_dir, {"LANCELOT_LOCAL_MODEL": "off"})
    options = ("--yes", "--model", "local", "--client", "claude-code", "--scope", "project")
    assert init("--path", SMALL, *options).code == 0
    entry = json.loads((tmp_path / ".mcp.json").read_text(encoding="utf-8"))["mcpServers"]["lancelot"]
    assert entry["env"].items() >= {"EMBEDDING_MODEL": "local", "LANCELOT_LOCAL_MODEL": "on"}.items()


@posix
def test_at_a_terminal_a_stored_server_s_password_is_not_suggested_in_the_clear(
    at_terminal: Callable[..., Any], config_dir: Path
) -> None:
    url = "http://alice:hunter2@127.0.0.1:1/v1"
    lancelot.store_settings(config_dir, {"LANCEDB_PATH": FOLDER, "OPENAI_BASE_URL": url})
    session = at_terminal()
    session.wait_for(f"{ASKED} (blank for {FOLDER}): ")
    session.type("\n")
    session.wait_for("(blank for http://127.0.0.1:1/v1): ")
    session.type("\x03")
    assert session.end() == 130
    assert "hunter2" not in session.shown


@posix
def test_a_key_typed_at_a_terminal_for_the_option_is_unseen(at_terminal: Callable[..., Any], config_dir: Path) -> None:
    session = at_terminal("--path", FOLDER, "--base-url", "http://127.0.0.1:1", "--yes", "--api-key-stdin")
    session.wait_for("API key, not shown")
    session.type(f"{KEY}\n")
    assert session.end() == 0, session.shown
    assert KEY not in session.shown
    assert key_for(config_dir, "http://127.0.0.1:1") == KEY


@posix
@pytest.mark.parametrize(("keys", "code"), [("\x03", 130), ("\x04", 1)])
@pytest.mark.parametrize("question", [ASKED, "OpenAI-compatible server", "API key"])
def test_leaving_at_any_question_stores_nothing(
    question: str, keys: str, code: int, at_terminal: Callable[..., Any], config_dir: Path
) -> None:
    session = at_terminal()
    for asked, answer in ((ASKED, FOLDER), ("OpenAI-compatible server", ""), ("API key", "")):
        session.wait_for(asked)
        session.wait_for(": ")
        if asked == question:
            break
        session.type(f"{answer}\n")
    session.type(keys)
    assert session.end() == code, session.shown
    assert "Traceback" not in session.shown
    assert ("Nothing was stored." in " ".join(session.shown.split())) == (code == 1)
    assert not config_dir.exists()


# --- a folder of documents


@pytest.fixture
def documents(machine: Path) -> Path:
    """A folder of documents, with a blank in its name, and an empty one beside it."""
    (machine / "empty").mkdir()
    folder = machine / "My Documents"
    folder.mkdir()
    (folder / "boiler.md").write_text("# Boiler\n\nService pressure is 2 bar.\n", encoding="utf-8")
    return folder


def test_documents_are_indexed_on_request_alone_and_the_next_ones_go_into_the_same_database(
    init: Init, run: Run, documents: Path, config_dir: Path, tmp_path: Path
) -> None:
    refused = init("--path", str(documents), "--yes")
    line = lancelot.typed_line("init", "--path", str(documents), "--index")
    assert (refused.code, f"no LanceDB table to search. Index them: `{line}`" in refused.err) == (1, True)
    assert not config_dir.exists()
    database, more = tmp_path / "a database", tmp_path / "more"
    more.mkdir()
    (more / "letter.txt").write_text("A letter on zebras.", encoding="utf-8")
    assert init("--path", str(documents), "--index", str(database)).code == 0
    assert init("--path", str(more), "--index").code == 0
    assert stored(config_dir) == {"LANCEDB_PATH": str(database)}
    for words, source in ("boiler pressure", "boiler.md"), ("zebras", "letter.txt"):
        assert source in run("search", words).out


def test_documents_that_cannot_be_indexed_are_not_stored(init: Init, documents: Path, config_dir: Path) -> None:
    ended = init("--path", str(documents), "--index", str(documents / "boiler.md"))
    assert (ended.code, "could not be indexed" in ended.err) == (1, True)
    assert not config_dir.exists()


@posix
def test_at_a_terminal_it_asks_until_there_is_something_to_search_and_offers_to_index(
    at_terminal: Callable[..., Any], documents: Path, machine: Path, config_dir: Path
) -> None:
    session = at_terminal(COLUMNS="300")
    session.wait_for(f"{ASKED}: ")
    session.type(f"\n~/My Document\n~/empty\n{documents}\nn\n'{documents}'\n\n\n")
    session.wait_for("API key")
    for said in (
        "No folder to search is known.",
        f"There is no folder {machine / 'My Document'}. Did you mean {documents}?",
        f"There is nothing to search in {machine / 'empty'}.",
        f"There is nothing to search in {documents}.",
        f"Index them into which folder? n for none (blank for {machine / 'lancedb'}): ",
    ):
        assert said in session.shown
    session.type("\n")
    assert session.end() == 0, session.shown
    assert stored(config_dir) == {"LANCEDB_PATH": str(machine / "lancedb")}
    assert "1 file (1 new, " in session.shown
    assert f"  {shlex.join([sys.executable, PROGRAM])} search WORDS\r\n" in session.shown


@posix
def test_ctrl_c_while_documents_are_indexed_stores_nothing(
    at_terminal: Callable[..., Any], embedding_server: Callable[..., str], documents: Path, config_dir: Path
) -> None:
    log, ends = config_dir.parent.parent / "log", time.monotonic() + LIMIT
    url = embedding_server("--delay", "2", "--log", str(log))
    session = at_terminal("--path", str(documents), "--index", "--model", "tiny", "--base-url", url, "--yes")
    while not log.exists():
        assert time.monotonic() < ends, session.shown
        threading.Event().wait(0.02)
    session.type("\x03")
    assert session.end() == 130, session.shown
    assert "Nothing was stored." in session.shown
    assert "Traceback" not in session.shown
    assert not config_dir.exists()


def test_the_line_to_type_is_how_the_program_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "my lancelot.pyz"
    program.touch()
    monkeypatch.setattr(sys, "argv", [str(program), "init"])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-I", str(program), "init"])
    assert lancelot.typed_line("search", "a b") == lancelot.shell_line(["python3", "-I", str(program), "search", "a b"])
    monkeypatch.setattr(shutil, "which", lambda _name: str(program))
    assert lancelot.typed_line("init") == "lancelot init"
    monkeypatch.undo()
    assert lancelot.typed_line("init") == lancelot.shell_line([*lancelot.own_command(sys.argv[0]), "init"])
