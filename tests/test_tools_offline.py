"""A machine without any network: everything but embeddings works, and nothing tries to leave."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wire
from conftest import DATABASES, child_environment
from namespaces import run_there, without_account, without_network

Start = Callable[..., wire.Server]

WATCH = """
import socket
def watched(name):
    real = getattr(socket.socket, name)
    def attempt(self, address, *rest):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            os.write(2, f"ATTEMPT {name} {address}".encode() + b"\\n")
        return real(self, address, *rest)
    return attempt
for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, watched(name))
real_lookup = socket.getaddrinfo
def lookup(host, *rest, **more):
    os.write(2, f"ATTEMPT lookup {host}".encode() + b"\\n")
    return real_lookup(host, *rest, **more)
socket.getaddrinfo = lookup
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers without a network, after other commands: `start("strace", NAME="value")`."""
    namespace = without_network()
    if namespace is None:
        pytest.skip("this user may not make a machine without network")
    running: list[wire.Server] = []

    def run(*before: str, **variables: str) -> wire.Server:
        command = (*namespace, *before, *wire.patched_program(tmp_path, WATCH))
        running.append(wire.Server(child_environment(**variables), command=command))
        return running[-1]

    yield run
    for server in running:
        server.stop()


def use_every_tool(server: wire.Server, **arguments: Any) -> dict[str, Any]:
    """A session with every tool; what the search answered."""
    server.ask(wire.request("list", "tools/list"))
    for tool in ("lancedb_status", "lancedb_version"):
        assert json.loads(wire.text_of(server.ask(wire.call(tool, tool))))["lancelot"]
    block = wire.text_of(server.ask(wire.call("query", "lancedb_query", question="How are words written?")))
    assert "## 1. " in block
    found = json.loads(wire.text_of(server.ask(wire.call("search", "lancedb_search", query="python", **arguments))))
    assert found["hits"]
    assert server.end() == []
    return found


STRACE = shutil.which("strace") or ""


def attempts(server: wire.Server) -> list[str]:
    return [line for line in server.log.splitlines() if line.startswith("ATTEMPT")]


@pytest.mark.parametrize("folder", ["langchain", "no-vector"])
def test_every_tool_works_without_a_network_and_nothing_tries_to_use_one(start: Start, folder: str) -> None:
    server = start(LANCEDB_PATH=str(DATABASES / folder))
    assert use_every_tool(server)["searchType"] == "text"
    assert attempts(server) == []


@pytest.mark.skipif(not STRACE, reason="strace is not installed: native code is not watched")
def test_native_code_and_children_do_not_try_to_use_a_network_either(start: Start, tmp_path: Path) -> None:
    record = tmp_path / "calls"
    probe = subprocess.run([STRACE, "-o", str(record), "true"], capture_output=True, check=False, timeout=30)
    if probe.returncode:
        pytest.skip("strace may not watch a program here")
    calls = "trace=connect,sendto,sendmsg,listen"
    server = start(STRACE, "-f", "-qq", "-e", calls, "-o", str(record), LANCEDB_PATH=str(DATABASES / "langchain"))
    use_every_tool(server)
    assert re.findall(r".*(?:AF_INET|listen\().*", record.read_text(errors="replace")) == []


def test_a_key_without_a_network_leads_to_text_search_with_a_note(start: Start) -> None:
    server = start(LANCEDB_PATH=str(DATABASES / "langchain"), OPENAI_API_KEY="sk-none")
    found = use_every_tool(server, searchType="vector")
    assert found["searchType"] == "text"
    assert "cannot be reached" in found["note"]


def test_the_watch_sees_an_attempt(start: Start) -> None:
    server = start(LANCEDB_PATH=str(DATABASES / "langchain"), OPENAI_BASE_URL="http://127.0.0.1:9/v1")
    use_every_tool(server, searchType="vector")
    assert any("127.0.0.1" in attempt for attempt in attempts(server))


def test_there_is_no_network_where_there_should_be_none(start: Start) -> None:
    server = start(LANCEDB_PATH=str(DATABASES / "langchain"))
    server.ask(wire.request(1, "tools/list"))
    mine, others = (Path(f"/proc/{process}/ns/net").readlink() for process in ("self", server.process.pid))
    assert mine != others


# An account that the machine does not know: no home, no right to write anywhere but where it is told


@pytest.fixture
def homeless() -> tuple[str, ...]:
    """What stands before a command that this account runs."""
    return without_account() or pytest.skip("this user may not make an account without a home")


BARE = {"PATH": os.environ["PATH"]}


def test_an_account_without_a_home_is_served(homeless: tuple[str, ...], tmp_path: Path) -> None:
    server = wire.Server(
        {**BARE, "LANCEDB_PATH": str(DATABASES / "no-vector")}, command=(*homeless, *wire.COMMAND), cwd=tmp_path
    )
    assert use_every_tool(server)["searchType"] == "text"
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


def test_an_account_without_a_home_indexes_a_folder_and_searches_it(homeless: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "bees.md").write_text("# Bees\n\nBees make honey.\n", encoding="utf-8")
    done = run_there(homeless, "index", "docs", "--path", "db", environ=BARE, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 file (1 new" in done.stdout
    found = run_there(homeless, "search", "honey", "--path", "db", environ=BARE, cwd=tmp_path)
    assert "Bees make honey." in found.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "docs", "home"]


def test_init_says_that_an_account_without_a_home_cannot_keep_settings(
    homeless: tuple[str, ...], tmp_path: Path
) -> None:
    done = run_there(homeless, "init", "--path", str(DATABASES / "no-vector"), "--yes", environ=BARE, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "lancelot: The settings cannot be stored on an account without a home folder. "
        "Set LANCEDB_PATH and OPENAI_API_KEY in the client's configuration instead.\n"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


@pytest.mark.parametrize(
    ("words", "code"),
    [(("status",), 1), (("init", "--show"), 0), (("init", "--forget"), 0), (("init", "--yes", "--client", "all"), 1)],
)
def test_no_command_needs_a_home(homeless: tuple[str, ...], tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    assert run_there(homeless, *words, environ=BARE, cwd=tmp_path).returncode == code
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]
