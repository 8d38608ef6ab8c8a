"""Fixtures: a machine without home, keys and network; real folders; an embedding server that can misbehave."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import keyring
import keyring.backends.fail
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

import lancelot

TESTS = Path(__file__).parent
DATABASES = TESTS / "databases"
PROJECT = TESTS.parent
PROGRAM = str(PROJECT / "lancelot.py")
NO_KEYCHAIN = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
WITHOUT_MODEL = {"LANCELOT_LOCAL_MODEL": "off"}
"""What tests start from: those of the local model switch it on, the others need not wait for it."""
FOLDERS = ("anythingllm", "anythingllm-2024", "langchain", "langchain-json", "lancedb-0.14", "no-vector")
FOREIGN_VARIABLES = ("STORAGE_DIR", "XDG_CONFIG_HOME", "DBUS_SESSION_BUS_ADDRESS", "SHIV_ROOT")


# Machines are shared: how long an example takes says nothing. Where it matters that a run can be repeated, it can.
hypothesis_settings.register_profile(
    "shared",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=bool(os.environ.get("CI")),
)
hypothesis_settings.load_profile("shared")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, no setting in the environment, and no way out of this machine."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    for name in (*(setting.name for setting in lancelot.SETTINGS), *FOREIGN_VARIABLES[:1], *FOREIGN_VARIABLES[2:]):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket.socket, "connect", _loopback_only(socket.socket.connect))
    return home


def _loopback_only(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            message = f"a test tried to reach {address[0]}"
            raise OSError(message)
        return connect(self, address)

    return guarded


@pytest.fixture
def config_dir(machine: Path) -> Path:
    """The per-user configuration folder, not made yet."""
    return machine / ".config" / "lancelot"


@pytest.fixture
def make_settings(config_dir: Path) -> Callable[..., lancelot.Settings]:
    """Settings from variables alone, without the local model: `make_settings(LANCEDB_PATH=…)`."""
    return lambda **environ: lancelot.load_settings(
        WITHOUT_MODEL | {name: str(value) for name, value in environ.items()}, config_dir
    )


@pytest.fixture
def make_searcher(make_settings: Callable[..., lancelot.Settings]) -> Callable[..., lancelot.Searcher]:
    """A searcher over settings: `make_searcher(LANCEDB_PATH=…)`."""
    return lambda **environ: lancelot.Searcher(make_settings(**environ))


@pytest.fixture
def make_table(tmp_path: Path) -> Callable[..., Path]:
    """Writes a table of these columns into a new folder and returns the folder."""
    import lancedb
    import pyarrow as pa

    def make(columns: dict[str, Any] | pa.Table, *, name: str = "documents", folder: str = "db") -> Path:
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        lancedb.connect(tmp_path / folder).create_table(name, table)
        return tmp_path / folder

    return make


def _started_servers(program: str, folder: Path) -> Iterator[Callable[..., str]]:
    """Starts servers of tests/support on the loopback address, and ends them."""
    running: list[subprocess.Popen[str]] = []

    def start(*options: str) -> str:
        command = [sys.executable, str(TESTS / "support" / program), "--port", "0", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
        running.append(process)
        assert process.stdout is not None
        return f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"

    yield start
    for process in running:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture
def embedding_server(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts embedding servers: `embedding_server("--fail-with", "429")` returns the address."""
    yield from _started_servers("embedding_server.py", tmp_path)


@pytest.fixture
def chat_server(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts servers of a chat model: `chat_server("--reply", "It is so [1].")` returns the address."""
    yield from _started_servers("chat_server.py", tmp_path)


@pytest.fixture(scope="session")
def archive_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the file that ships unpacks itself, removed at the end, since it is large."""
    folder = tmp_path_factory.mktemp("unpacked")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """What must be found in each real folder, by folder name."""
    return {name: json.loads((DATABASES / name / "expected.json").read_text(encoding="utf-8")) for name in FOLDERS}


@pytest.fixture
def folder_copy(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a real folder that a test may do anything to."""
    return lambda name: Path(shutil.copytree(DATABASES / name, tmp_path / name))


def is_subsequence(part: bytes, whole: bytes) -> bool:
    """Whether all bytes of the first are in the second in their order: nothing was taken out or changed."""
    rest = iter(whole)
    return all(byte in rest for byte in part)


def child_environment(**variables: str) -> dict[str, str]:
    """A bare environment for a child process, with the test's empty home."""
    names = ("HOME", "PATH", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "SYSTEMROOT")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return kept | WITHOUT_MODEL | variables


@dataclass(frozen=True)
class Ended:
    """How a command ended, run in this process."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a command in this process, with no terminal and no keychain: `run("search", "words", given="input")`."""
    ring = keyring.backends.fail.Keyring()
    monkeypatch.setattr(keyring, "get_keyring", lambda: ring)
    monkeypatch.setattr(sys, "argv", [PROGRAM])
    monkeypatch.setenv("RUST_LOG", "error")
    for name, value in WITHOUT_MODEL.items():
        monkeypatch.setenv(name, value)
    handlers = logging.getLogger().handlers[:]

    def run_command(*words: str, given: str = "") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        try:
            code = lancelot.main(words)
        except SystemExit as error:
            code = cast("int", error.code)
        logging.getLogger().handlers[:] = handlers
        told = capsys.readouterr()
        return Ended(code, told.out, told.err)

    yield run_command
    logging.getLogger().handlers[:] = handlers


@pytest.fixture(scope="session")
def node_clients() -> Path:
    """A folder with the Node.js packages of `tests/clients`, or a skip with the reason."""
    from node import installed_clients

    return installed_clients()
