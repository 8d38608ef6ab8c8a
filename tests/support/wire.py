"""A server process and the pipes to it. Every wait is bounded, and every line of its output is read as JSON-RPC."""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import lancelot

MODULE = Path(lancelot.__file__)
MODULES = sorted(MODULE.parent.glob("lancelot*.py"))
COMMAND = (sys.executable, str(MODULE))
SECONDS = 30.0
ALWAYS_OFFERED = [
    "lancedb_search",
    "lancedb_query",
    "lancedb_read",
    "lancedb_files",
    "lancedb_values",
    "lancedb_status",
    "lancedb_version",
]
DOCUMENT_NAMES = (
    "../up/./a.md",
    "/home/me/notes.md",
    "100% sure.txt",
    "C:\\Users\\me\\Mein Brief.md",
    "a%20b.md",
    "a/b c/d.txt",
    "file:///app/hotdir/My%20Report.pdf",
    "link://https://example.org/a?b=c&d=e#part",
    "localfile:///home/me/ä ö/東京都.md",
    "question? + {+source}; \"quoted\" 'once' <tag>",
)
"""Sources whose names are hard to write as an address."""
_ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def request(identity: int | str, method: str, **parameters: Any) -> dict[str, Any]:
    """A request that needs no handshake before it."""
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": {**parameters, "_meta": _ENVELOPE}}


def call(identity: int | str, tool: str, **arguments: Any) -> dict[str, Any]:
    return request(identity, "tools/call", name=tool, arguments=arguments)


def notification(method: str, **parameters: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": {**parameters, "_meta": _ENVELOPE}}


def handshake(identity: int | str) -> dict[str, Any]:
    """The first request of a client of the handshake era."""
    parameters = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "tests", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": identity, "method": "initialize", "params": parameters}


def in_handshake_era(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same messages as a client of the handshake era sends them, after its first two, which ask for `initialize`."""
    plain = [
        {**message, "params": {name: value for name, value in message["params"].items() if name != "_meta"}}
        for message in messages
    ]
    return [handshake("initialize"), {"jsonrpc": "2.0", "method": "notifications/initialized"}, *plain]


def text_of(answer: Mapping[str, Any]) -> str:
    """The text of a tool's answer, which must be no error."""
    assert not answer["result"]["isError"], answer
    return cast("str", answer["result"]["content"][0]["text"])


def read_message(line: bytes) -> dict[str, Any]:
    """One line of the wire, which must be one JSON-RPC 2.0 message in UTF-8."""
    message = json.loads(line.decode("utf-8"))
    assert line.endswith(b"\n"), line
    assert message["jsonrpc"] == "2.0", line
    assert ("method" in message) or ("id" in message and ("result" in message) != ("error" in message)), line
    return cast("dict[str, Any]", message)


class Server:
    """A server process: what is written to it, what it answers, and how it ends."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        command: Sequence[str] = COMMAND,
        cwd: Path | None = None,
        **options: Any,
    ) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        self.raw: list[bytes] = []
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._log: list[bytes] = []
        self._logged = threading.Condition()
        self._deaf = False
        self._reading = threading.Event()
        self._reading.set()
        self._input = cast("BinaryIO", self.process.stdin)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._read_log)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        output = cast("BinaryIO", self.process.stdout)
        for line in output:
            self.raw.append(line)
            self._lines.put(line)
            if self._deaf:
                break
            self._reading.wait(SECONDS)
        output.close()
        self._lines.put(b"")

    def _read_log(self) -> None:
        with cast("BinaryIO", self.process.stderr) as log:
            for line in log:
                with self._logged:
                    self._log.append(line)
                    self._logged.notify_all()

    def write(self, data: bytes) -> None:
        self._input.write(data)
        self._input.flush()

    def send(self, *messages: Mapping[str, Any]) -> None:
        self.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def answer(self, *, seconds: float = SECONDS) -> dict[str, Any]:
        """The next message; queue.Empty where none comes in time."""
        line = self._lines.get(timeout=seconds)
        assert line, f"the server ended:\n{self.log}"
        return read_message(line)

    def ask(self, message: Mapping[str, Any], *, seconds: float = SECONDS) -> dict[str, Any]:
        """The answer to one request, everything else passed over."""
        self.send(message)
        while True:
            answer = self.answer(seconds=seconds)
            if answer.get("id") == message["id"]:
                return answer

    def close_input(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._input.close()

    def read_one_more_and_close(self) -> None:
        """Closes the output as a client does that is gone, with the next line that comes."""
        self._deaf = True

    def pause_reading(self) -> None:
        """Leaves what comes after the next line in the pipe."""
        self._reading.clear()

    def go_on_reading(self) -> None:
        self._reading.set()

    def wait(self, *, seconds: float = SECONDS) -> float:
        """Waits until the process has ended; the seconds that it took."""
        before = time.monotonic()
        self.process.wait(seconds)
        took = time.monotonic() - before
        for thread in self._threads:
            thread.join(SECONDS)
        return took

    def end(self, *, seconds: float = SECONDS) -> list[dict[str, Any]]:
        """Closes the input, waits for the end, and gives the answers that were not read yet."""
        self.close_input()
        self.wait(seconds=seconds)
        rest = iter(self._lines.get_nowait, b"")
        return [read_message(line) for line in rest]

    @property
    def log(self) -> str:
        return b"".join(self._log).decode("utf-8", "replace")

    def wait_for_log(self, words: str, *, seconds: float = SECONDS) -> None:
        """Waits until the log holds these words."""
        with self._logged:
            assert self._logged.wait_for(lambda: words in self.log, seconds), self.log

    def stop(self) -> None:
        """Ends the process whatever it does, and checks every line that it wrote."""
        self.process.kill()
        self.go_on_reading()
        self.close_input()
        self.wait()
        whole = self.raw[:-1] if self.process.returncode and self.raw and self.raw[-1][-1:] != b"\n" else self.raw
        for line in whole:
            read_message(line)


def patched_program(folder: Path, body: str) -> tuple[str, ...]:
    """The command of a program that changes the module by `body` and then runs it.

    `answer_with(name, function)` gives a tool another answer: a function of no arguments.
    """
    lines = (
        "import dataclasses, os, subprocess, sys",
        f"sys.path.insert(0, {str(MODULE.parent)!r})",
        "import lancelot",
        "def answer_with(name, function):",
        "    lancelot.TOOLS = tuple(",
        "        dataclasses.replace(tool, run=lambda *_, **__: function(), text=str) if tool.name == name else tool",
        "        for tool in lancelot.TOOLS",
        "    )",
        body,
        "sys.exit(lancelot.main([]))",
    )
    program = folder / "patched.py"
    program.write_text("\n".join(lines), encoding="utf-8")
    return (sys.executable, str(program))


def identities(answers: Iterable[Mapping[str, Any]]) -> list[Any]:
    return sorted(answer["id"] for answer in answers)
