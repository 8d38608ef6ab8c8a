"""A machine without any network: everything but embeddings works, and nothing tries to leave."""

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wire
from conftest import DATABASES, child_environment

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


@functools.cache
def without_network() -> tuple[str, ...] | None:
    """The command before a command that then has no network; None where that is not permitted."""
    for options in (("--net",), ("--map-root-user", "--net")):
        command = ("unshare", *options)
        if (
            shutil.which("unshare")
            and not subprocess.run([*command, "true"], capture_output=True, check=False, timeout=30).returncode
        ):
            return command
    return None


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
