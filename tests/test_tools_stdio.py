"""The server as a process: what reaches its standard output, what it still answers, and how it ends."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wire
from conftest import DATABASES, child_environment

import lancelot

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and closed pipes are those of POSIX")

Start = Callable[..., wire.Server]
AT_ONCE = 1.0
LISTING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
FOLDER = str(DATABASES / "no-vector")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers: `start("python before it runs", NAME="value")`."""
    running: list[wire.Server] = []

    def run(body: str | None = None, **variables: str) -> wire.Server:
        command = wire.COMMAND if body is None else wire.patched_program(tmp_path, body)
        running.append(wire.Server(child_environment(**variables), command=command, cwd=tmp_path))
        return running[-1]

    yield run
    for server in running:
        server.stop()


@pytest.fixture
def hanging(start: Start, embedding_server: Callable[..., str]) -> wire.Server:
    """A server whose vector searches wait for an endpoint that does not answer."""
    server = start(
        LANCEDB_PATH=str(DATABASES / "langchain"),
        OPENAI_BASE_URL=embedding_server("--delay", "60"),
        LANCELOT_EMBEDDING_TIMEOUT="120",
    )
    server.ask(wire.call("warm", "lancedb_search", query="zen", searchType="text"))
    return server


def vector_call(identity: int | str) -> dict[str, object]:
    return wire.call(identity, "lancedb_search", query="zen", searchType="vector")


# Standard output


NOISE = """
def noise():
    print("printed")
    print("printed and flushed", flush=True)
    os.write(1, b"written by native code\\n")
    subprocess.run([sys.executable, "-c", "print('printed by a child')"], check=True)
    os.system("echo echoed by a shell")
    return "answered"
answer_with("lancedb_version", noise)
"""


def test_what_tools_native_code_and_children_print_goes_to_standard_error(start: Start) -> None:
    server = start(NOISE)
    assert wire.text_of(server.ask(wire.call(1, "lancedb_version"))) == "answered"
    assert server.end() == []
    assert len(server.raw) == 1
    for line in ("printed and flushed", "written by native code", "printed by a child", "echoed by a shell"):
        assert f"{line}\n" in server.log


def test_what_was_printed_but_not_flushed_before_the_start_does_not_reach_the_wire(start: Start) -> None:
    server = start('print("left in the buffer")')
    server.ask(wire.request(1, "tools/list"))
    assert server.end() == []
    assert len(server.raw) == 1


def test_what_a_tool_reads_from_standard_input_is_nothing(start: Start) -> None:
    server = start('answer_with("lancedb_version", lambda: repr((os.read(0, 9), subprocess.check_output(["cat"]))))')
    server.send(wire.call(1, "lancedb_version"), wire.call(2, "lancedb_status"))
    answers = {answer["id"]: answer for answer in (server.answer(), server.answer())}
    assert wire.text_of(answers[1]) == "(b'', b'')"


def test_half_a_character_in_an_answer_is_replaced(start: Start) -> None:
    server = start('answer_with("lancedb_version", lambda: "half \\ud800")')
    assert wire.text_of(server.ask(wire.call(1, "lancedb_version"))) == "half \ufffd"
    assert wire.text_of(server.ask(wire.call(2, "lancedb_status")))


def test_the_wire_is_utf_8_in_any_locale(start: Start) -> None:
    server = start(LANCEDB_PATH=str(DATABASES / "langchain"), LC_ALL="C", LANG="C", PYTHONIOENCODING="ascii")
    server.write(json.dumps(wire.call(1, "lancedb_search", query="häst"), ensure_ascii=False).encode() + b"\n")
    answer = json.loads(wire.text_of(server.answer()))
    assert answer["query"] == "häst"
    assert any("häst" in hit["snippet"].casefold() for hit in answer["hits"])
    assert "häst".encode() in server.raw[0]


# Standard input


BROKEN_LINES = (
    b"hello",
    b"[]",
    b"12",
    b'{"jsonrpc":"2.0","id":1,',
    b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
    b"[" * 100_000,
    b"\xff\xfe\x00",
)


@pytest.mark.parametrize("handshake", [False, True], ids=["as first lines", "after a handshake"])
def test_a_broken_line_is_answered_with_a_parse_error_and_the_session_goes_on(start: Start, *, handshake: bool) -> None:
    server = start()
    if handshake:
        server.ask(wire.handshake("first"))
    for line in BROKEN_LINES:
        server.write(line + b"\n")
        answer = server.answer()
        assert (answer["id"], answer["error"]["code"]) == (None, -32700), line
    assert "tools" in server.ask(LISTING if handshake else wire.request(1, "tools/list"))["result"]


@pytest.mark.parametrize("identity", ["null", "true", "[]", "{}", "1.5", "1e400", "NaN"])
def test_a_request_whose_id_no_answer_can_bear_is_an_invalid_one(start: Start, identity: str) -> None:
    server = start()
    server.write(json.dumps(wire.request(1, "tools/list")).replace('"id": 1,', f'"id": {identity},').encode() + b"\n")
    answer = server.answer()
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)
    assert "tools" in server.ask(wire.request("next", "tools/list"))["result"]


def test_a_whole_number_is_an_id_however_it_is_written(start: Start) -> None:
    server = start()
    for written, identity in (("1.0", 1), ("2e3", 2000), ("-0.0", 0), ("-7", -7)):
        line = json.dumps(wire.request(1, "tools/list")).replace('"id": 1,', f'"id": {written},')
        server.write(line.encode() + b"\n")
        answer = server.answer()
        assert (answer["id"], type(answer["id"]), "result" in answer) == (identity, int, True)


def test_a_notification_may_have_null_as_its_id(start: Start) -> None:
    server = start()
    server.ask(wire.handshake("first"))
    server.send({"jsonrpc": "2.0", "id": None, "method": "notifications/initialized"})
    assert server.ask({"jsonrpc": "2.0", "id": 1, "method": "ping"})["result"] == {}
    assert server.end() == []


def test_an_empty_list_of_parameters_is_none(start: Start) -> None:
    server = start()
    server.ask(wire.handshake("first"))
    for method in ("ping", "tools/list"):
        assert "result" in server.ask({"jsonrpc": "2.0", "id": method, "method": method, "params": []})


@pytest.mark.parametrize(
    ("asked", "agreed"), [("2024-11-05", "2024-11-05"), ("2025-03-26", "2024-11-05"), ("2025-06-18", "2025-06-18")]
)
def test_the_version_of_the_protocol_that_has_batches_is_not_agreed_on(start: Start, asked: str, agreed: str) -> None:
    first = wire.handshake("first")
    first["params"]["protocolVersion"] = asked
    assert start().ask(first)["result"]["protocolVersion"] == agreed


def test_blank_lines_and_a_byte_order_mark_are_passed_over(start: Start) -> None:
    server = start()
    server.write(b"\xef\xbb\xbf\n\n  \t\n\r\n")
    server.write(b"\xef\xbb\xbf" + json.dumps(wire.request(1, "tools/list")).encode() + b"\r\n")
    assert wire.identities(server.end()) == [1]


def test_a_query_that_holds_half_a_character_is_answered(start: Start) -> None:
    server = start(LANCEDB_PATH=FOLDER)
    pair = json.dumps("\U0001f40d").strip('"').encode()
    for query in (rb"zen \ud800 of", rb"\udc00\ud800", b"zen \xff of", b"\xf0\x9f", pair + rb" \ud83d"):
        line = json.dumps(wire.call(1, "lancedb_search", query="QUERY")).encode().replace(b"QUERY", query)
        server.write(line + b"\n")
        shown = json.loads(wire.text_of(server.answer()))["query"]
        assert "\ufffd" in shown
        assert ("\U0001f40d" in shown) == query.startswith(pair)


def test_a_request_of_five_megabytes_is_answered(start: Start) -> None:
    server = start()
    answer = server.ask(wire.call(1, "lancedb_version", padding="é" * 2_500_000))
    assert "lancelot" in json.loads(wire.text_of(answer))


def test_a_query_of_five_megabytes_is_answered(start: Start) -> None:
    server = start(LANCEDB_PATH=FOLDER)
    words = " ".join(f"word{number}" for number in range(500_000))
    answer = json.loads(wire.text_of(server.ask(wire.call(1, "lancedb_search", query=words))))
    assert "Only the first 128" in answer["note"]


# The end of input


def test_input_that_is_closed_at_once_ends_the_process_well(start: Start) -> None:
    server = start()
    assert server.end() == []
    assert server.process.returncode == 0


@pytest.mark.parametrize("attempt", range(10))
def test_requests_read_before_the_end_of_input_are_all_answered(start: Start, attempt: int) -> None:
    server = start(LANCEDB_PATH=FOLDER)
    calls = [wire.call(number, "lancedb_version") for number in range(20)]
    if attempt in (0, 2):
        calls = [wire.call(number, "lancedb_search", query="python") for number in range(20)]
        server.ask(wire.call("warm", "lancedb_search", query="python"))
    if attempt % 2:
        server.send(*wire.in_handshake_era(calls))
    else:
        server.send(*calls)
    answers = [answer for answer in server.end() if answer["id"] != "initialize"]
    assert wire.identities(answers) == list(range(20))
    assert all(wire.text_of(answer) for answer in answers)
    assert server.process.returncode == 0


def test_a_client_that_does_not_read_the_answers_does_not_keep_the_process(start: Start) -> None:
    server = start()
    server.pause_reading()
    server.ask(wire.request("first", "tools/list"))
    server.send(*(wire.request(number, "tools/list") for number in range(60)))
    server.close_input()
    try:
        assert server.process.wait(8) == 0
    finally:
        server.go_on_reading()
    server.wait()
    if not server.raw[-1].endswith(b"\n"):  # the pipe had no room for all of it
        server.raw.pop()


def test_requests_from_a_file_are_answered_into_a_file(tmp_path: Path) -> None:
    requests, answers = tmp_path / "requests", tmp_path / "answers"
    calls = [wire.request(0, "tools/list"), wire.call(1, "lancedb_version")]
    requests.write_text("\n".join(map(json.dumps, calls)))  # the last line is not ended
    with requests.open("rb") as source, answers.open("wb") as sink:
        environ = child_environment()
        done = subprocess.run(wire.COMMAND, env=environ, stdin=source, stdout=sink, check=False, timeout=30)
    assert done.returncode == 0
    assert wire.identities(map(wire.read_message, answers.read_bytes().splitlines(keepends=True))) == [0, 1]


@pytest.mark.parametrize(
    ("closed", "code", "answers"), [("2>&-", 0, 2), ("<&-", 1, 0), (">&-", 1, 0), (">&- 2>&-", 1, 0)]
)
def test_a_server_started_with_a_closed_stream_answers_or_says_so(closed: str, code: int, answers: int) -> None:
    calls = [wire.request(0, "tools/list"), wire.call(1, "lancedb_search", query="")]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *wire.COMMAND],
        env=child_environment(),
        input="".join(json.dumps(call) + "\n" for call in calls).encode(),
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == code
    assert len(list(map(wire.read_message, done.stdout.splitlines(keepends=True)))) == answers
    assert (b"MCP needs both" in done.stderr) == (code == 1 and "2>&-" not in closed)
    assert b"Traceback" not in done.stderr


def test_the_process_is_gone_within_a_second_of_the_end_of_input(start: Start) -> None:
    server = start(LANCEDB_PATH=FOLDER)
    server.ask(wire.call(1, "lancedb_search", query="python"))
    server.close_input()
    assert server.wait() < AT_ONCE


def test_a_call_that_hangs_is_answered_with_an_error_within_six_seconds_of_the_end_of_input(
    hanging: wire.Server,
) -> None:
    hanging.send(vector_call(1), vector_call(2), wire.call(3, "lancedb_version"))
    hanging.close_input()
    assert hanging.wait() < 6
    answers = {answer["id"]: answer for answer in hanging.end()}
    assert set(answers) == {1, 2, 3}
    assert "error" in answers[1]
    assert "error" in answers[2]
    assert wire.text_of(answers[3])
    assert hanging.process.returncode == 0


def test_a_cancelled_call_is_not_waited_for(hanging: wire.Server) -> None:
    hanging.send(vector_call(1), wire.notification("notifications/cancelled", requestId=1))
    hanging.close_input()
    assert hanging.wait() < AT_ONCE


def test_other_calls_are_answered_while_some_hang(hanging: wire.Server) -> None:
    hanging.send(*(vector_call(number) for number in range(lancelot.MAX_CALLS - 1)))
    answer = hanging.ask(wire.call("text", "lancedb_search", query="zen", searchType="text"), seconds=5)
    assert json.loads(wire.text_of(answer))["searchType"] == "text"


def test_more_calls_than_there_are_threads_hang_without_keeping_the_process(hanging: wire.Server) -> None:
    hanging.send(*(wire.call(number, "lancedb_search", query=f"zen {number}") for number in range(60)))
    assert "tools" in hanging.ask(wire.request("list", "tools/list"), seconds=5)["result"]
    hanging.close_input()
    assert hanging.wait() < 6
    assert wire.identities(hanging.end()) == list(range(60))


BUSY = """
import time
answer_with("lancedb_values", lambda: time.sleep(60))
"""


def test_the_version_and_the_status_do_not_wait_for_calls_that_work(start: Start) -> None:
    server = start(BUSY, LANCEDB_PATH=FOLDER)
    server.send(*(wire.call(number, "lancedb_values") for number in range(2 * lancelot.MAX_CALLS)))
    for tool in ("lancedb_version", "lancedb_status"):
        assert wire.text_of(server.ask(wire.call(tool, tool), seconds=20))


PANIC = """
class PanicException(BaseException): pass
def panic():
    raise PanicException("index out of bounds")
answer_with("lancedb_values", panic)
lancelot.read_document = lambda *_: panic()
lancelot.CHECKS = (lancelot.Examination("settings", lambda _: panic()),)
"""


def test_a_panic_of_native_code_is_the_error_of_its_call_alone(start: Start) -> None:
    server = start(PANIC, LANCEDB_PATH=FOLDER)
    failed = server.ask(wire.call(1, "lancedb_values"))["result"]
    assert failed["isError"]
    assert "because of a bug" in failed["content"][0]["text"]
    read = server.ask(wire.request(2, "resources/read", uri="lancelot://a/b"))
    assert "because of a bug" in read["error"]["message"]
    assert "index out of bounds" in server.log
    assert wire.text_of(server.ask(wire.call(3, "lancedb_status")))


def test_a_client_that_reads_nothing_of_many_answers_ends_the_process_quietly() -> None:
    broken = b"no message\n" * 1000
    with subprocess.Popen(
        wire.COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        assert server.stdout
        server.stdout.close()
        _, log = server.communicate(broken, timeout=wire.SECONDS)
    assert (server.returncode, log) == (0, b"")


def test_a_client_that_closes_its_end_of_the_output_ends_the_process(start: Start) -> None:
    server = start()
    server.read_one_more_and_close()
    server.ask(wire.request(1, "tools/list"))
    server.send(wire.request(2, "tools/list"))
    server.wait(seconds=5)
    assert server.process.returncode == 0
    assert "Traceback" not in server.log


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_an_idle_server_at_once_while_its_input_is_open(start: Start, number: int) -> None:
    server = start(LANCEDB_PATH=FOLDER)
    server.ask(wire.request(1, "tools/list"))
    server.process.send_signal(number)
    assert server.wait() < AT_ONCE
    assert server.process.returncode == -number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_server_at_once_while_a_call_hangs(hanging: wire.Server, number: int) -> None:
    hanging.send(vector_call(1))
    hanging.ask(wire.call(2, "lancedb_version"))
    hanging.process.send_signal(number)
    assert hanging.wait() < AT_ONCE
    assert hanging.process.returncode == -number


# The log


def test_one_line_of_the_log_names_the_folder_and_its_tables(start: Start) -> None:
    server = start(LANCEDB_PATH=str(DATABASES / "anythingllm"))
    server.ask(wire.request(1, "tools/list"))
    server.wait_for_log("holds")
    server.ask(wire.call(2, "lancedb_search", query="python", table="python-peps"))
    server.end()
    (line,) = [line for line in server.log.splitlines() if "holds" in line]
    assert f"INFO {DATABASES / 'anythingllm'} holds 2 tables: python-peps, world-notes" in line


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("error", set()),
        ("warn", {"LANCEDB_DEFAULT_LIMIT"}),
        ("SILLY", {"LANCEDB_DEFAULT_LIMIT", "holds", "lancedb_search:"}),
        ("loud", {"LANCEDB_DEFAULT_LIMIT", "LANCELOT_LOG_LEVEL", "holds", "lancedb_search:"}),
    ],
)
def test_the_log_holds_what_its_level_lets_through(start: Start, level: str, expected: set[str]) -> None:
    server = start(LANCEDB_PATH=FOLDER, LANCEDB_DEFAULT_LIMIT="many", LANCELOT_LOG_LEVEL=level)
    assert server.ask(wire.call(1, "lancedb_search", query="python", table="nothing"))["result"]["isError"]
    for words in expected:
        server.wait_for_log(words)
    server.end()
    marks = {"LANCEDB_DEFAULT_LIMIT", "LANCELOT_LOG_LEVEL", "holds", "lancedb_search:"}
    assert {mark for mark in marks if mark in server.log} == expected
    assert len(server.log.splitlines()) == len(expected)


def test_a_key_and_a_password_are_in_no_log_at_any_level(start: Start, embedding_server: Callable[..., str]) -> None:
    key, password = "sk-" + "x" * 32, "pass" + "y" * 16
    address = embedding_server("--require-key", "another").replace("//", f"//user:{password}@")
    server = start(
        LANCEDB_PATH=str(DATABASES / "langchain"),
        OPENAI_BASE_URL=address,
        OPENAI_API_KEY=key,
        LANCELOT_LOG_LEVEL="silly",
        OPENAI_LOG="debug",
        RUST_LOG="debug",
    )
    answer = json.loads(wire.text_of(server.ask(vector_call(1))))
    assert "401" in answer["note"]
    server.ask(wire.call(2, "lancedb_status", verbose=True))
    server.end()
    assert server.log
    for secret in (key, password):
        assert secret not in server.log
        assert all(secret.encode() not in line for line in server.raw)


def test_a_blank_key_makes_no_client_and_logs_no_error(start: Start) -> None:
    body = 'answer_with("lancedb_version", lambda: str("openai" in sys.modules))'
    server = start(body, LANCEDB_PATH=str(DATABASES / "langchain"), OPENAI_API_KEY="  ", OPENAI_BASE_URL="")
    answer = json.loads(wire.text_of(server.ask(wire.call(1, "lancedb_search", query="zen"))))
    assert (answer["searchType"], "note" in answer) == ("text", False)
    assert not json.loads(wire.text_of(server.ask(wire.call(2, "lancedb_status"))))["embeddings"]["available"]
    assert wire.text_of(server.ask(wire.call(3, "lancedb_version"))) == "False"
    server.end()
    assert [line for line in server.log.splitlines() if " INFO " not in line] == []


# Start


@pytest.mark.parametrize("first", [wire.handshake(0), wire.request(0, "server/discover")], ids=["2025", "2026"])
def test_the_first_answers_come_before_the_database_and_the_client_are_imported(
    start: Start, first: dict[str, Any]
) -> None:
    heavy = "[name for name in ('lancedb', 'pyarrow', 'openai') if name in sys.modules]"
    body = f"""
describe = lancelot.describe_tool
def describing(*given):
    os.write(2, (repr({heavy}) + chr(10)).encode())
    return describe(*given)
lancelot.describe_tool = describing
"""
    server = start(body, LANCEDB_PATH=FOLDER, OPENAI_API_KEY="sk-none")
    server.ask(first)
    server.send(wire.request(1, "tools/list") if first["method"] == "server/discover" else LISTING)
    assert len(server.answer()["result"]["tools"]) == 7
    server.end()
    assert set(server.log.splitlines()[:4]) == {"[]"}


def test_a_server_whose_folder_of_start_was_deleted_still_answers(start: Start, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    body = f"os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})"
    server = start(body, LANCEDB_PATH="relative/db")
    assert json.loads(wire.text_of(server.ask(wire.call(1, "lancedb_status"))))["connected"] is False


def test_an_argument_that_is_no_command_is_refused_on_standard_error() -> None:
    done = subprocess.run(
        [*wire.COMMAND, "serve-me"], env=child_environment(), capture_output=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"serve-me" in done.stderr
