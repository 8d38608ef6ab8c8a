"""Tables in object stores: from a real S3 server on loopback, as from the same folder, and what goes wrong there."""

import contextlib
import importlib.util
import json
import re
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lancedb
import lancedb.index
import pytest
import wire
from conftest import DATABASES, PROGRAM, TESTS, Run, child_environment
from standins import JSON, Handler, Reply, serving
from test_store_readonly import every_call

import lancelot
import lancelot_setup

COPIED = ("langchain", "lancedb-0.14")
READING = {"GET", "HEAD"}
UNFIT = "holds a line break or another character that is in no such value, or lacks http:// or https://."
NO_FOLDER = "the folder of a table. Write the address of a database folder, as in "
CHECK_VARIABLES = "Check LANCEDB_PATH, the network and the variables of the store, such as"
UNREADABLE = f"Generic Config error: failed to parse. {CHECK_VARIABLES}"


@dataclass(frozen=True)
class ObjectStore:
    """A running S3 server with the bucket `bucket`, in which the real folders lie, and two users: key and secret."""

    endpoint: str
    reader: tuple[str, str]
    writer: tuple[str, str]
    log: Path

    def variables(self, path: str = "s3://bucket/langchain", **changed: str) -> dict[str, str]:
        """The environment of a program whose user may list and read, and nothing else."""
        own = {
            "LANCEDB_PATH": path,
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": self.reader[0],
            "AWS_SECRET_ACCESS_KEY": self.reader[1],
            "AWS_REGION": "us-east-1",
        }
        return child_environment(**{name: value for name, value in (own | changed).items() if value})

    def database(self, path: str) -> Any:
        """A connection that may write."""
        options = {"endpoint": self.endpoint, "allow_http": "true", "region": "us-east-1"}
        options |= {"access_key_id": self.writer[0], "secret_access_key": self.writer[1]}
        return lancedb.connect(path, storage_options=options)

    def requests(self) -> list[str]:
        """Every request so far: its method, its path and its status."""
        return self.log.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto, which the S3 server of these tests needs, is not installed")
    log = tmp_path_factory.mktemp("store") / "requests"
    folders = [str(DATABASES / name) for name in COPIED]
    command = [sys.executable, str(TESTS / "support" / "s3_server.py"), str(log), *folders]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        users = tuple(ready["reader"]), tuple(ready["writer"])
        yield ObjectStore(f"http://127.0.0.1:{ready['port']}", *users, log)
        process.kill()


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def command_line(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, *words], env=environ, capture_output=True, text=True, timeout=90, check=False
    )


def answers_of(environ: dict[str, str], folder: str) -> list[str]:
    """What a server says to every call on a folder, in order."""
    server = wire.Server(environ)
    try:
        return [json.dumps(server.ask(message)["result"]["content"]) for message in every_call(folder)]
    finally:
        server.stop()


# --- what works


@pytest.mark.parametrize("folder", COPIED)
def test_every_tool_answers_from_a_bucket_as_from_the_same_folder_and_only_reads(
    folder: str, object_store: ObjectStore, embedding_server: Callable[..., str]
) -> None:
    embeds = {"OPENAI_BASE_URL": embedding_server(), "EMBEDDING_MODEL": "hash-embedder-384"}
    local = answers_of(child_environment(LANCEDB_PATH=str(DATABASES / folder), **embeds), folder)
    before = len(object_store.requests())
    remote = answers_of(object_store.variables(f"s3://bucket/{folder}", **embeds), folder)
    asked = object_store.requests()[before:]
    assert remote[1:] == local[1:]
    ran = {kind for answer in remote for kind in re.findall(r'searchType\\":\\"(\w+)', answer)}
    assert ran == {"vector", "text", "fts", "hybrid", "filter"}
    assert '"connected\\":true' in remote[0].replace(" ", "")
    assert {line.split()[0] for line in asked} <= READING
    assert any(re.match(rf"GET /bucket/{folder}/\S+\.lance/data/\S+ 20", line) for line in asked)


def test_each_call_sees_the_newest_version(object_store: ObjectStore) -> None:
    table = object_store.database("s3://bucket/changing").create_table("documents", [{"text": "a zebra", "id": "1"}])
    server = wire.Server(object_store.variables("s3://bucket/changing"))
    try:
        for total in (1, 2, 3):
            found = json.loads(wire.text_of(server.ask(wire.call(total, "lancedb_search", query="zebra"))))
            assert found["total"] == total
            table.add([{"text": "another zebra", "id": str(total + 1)}])
    finally:
        server.stop()


def test_an_index_of_the_table_is_used(object_store: ObjectStore) -> None:
    rows = [{"id": str(number), "text": f"{number} horses were running"} for number in range(50)]
    table = object_store.database("s3://bucket/indexed").create_table("documents", rows)
    table.create_index("text", config=lancedb.index.FTS())
    ended = command_line(
        object_store.variables("s3://bucket/indexed"), "search", "horse run", "--type", "fts", "--json"
    )
    assert json.loads(ended.stdout)["total"] == 50


def test_a_prefix_without_tables_is_told_as_one(object_store: ObjectStore) -> None:
    ended = command_line(object_store.variables("s3://bucket/nothing"), "search", "zebra")
    assert "The folder s3://bucket/nothing holds no tables." in ended.stderr


# --- what goes wrong


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"LANCEDB_PATH": "s3://nowhere/x"}, "has no such bucket (NoSuchBucket). Check LANCEDB_PATH,"),
        ({"AWS_ACCESS_KEY_ID": "AKIASECRET"}, "refused access (InvalidAccessKeyId). Check AWS_ACCESS_KEY_ID in"),
        ({"AWS_SECRET_ACCESS_KEY": "SECRET"}, "refused access (SignatureDoesNotMatch). Check AWS_ACCESS_KEY_ID"),
        ({"AWS_SESSION_TOKEN": "SECRET"}, "refused access (InvalidToken). Check AWS_ACCESS_KEY_ID"),
        (
            {"AWS_ENDPOINT": "http://127.0.0.1:9"},
            "did not answer. Check the network, LANCEDB_PATH, AWS_ENDPOINT, AWS_REGION and",
        ),
        ({"AWS_TIMEOUT": "SECRET"}, UNREADABLE),
        ({"AWS_ALLOW_HTTP": "SECRET"}, UNREADABLE),
        (
            {"AWS_ALLOW_HTTP": ""},
            "cannot be read at this address. Check LANCEDB_PATH, AWS_ENDPOINT, AWS_REGION and AWS_ALLOW_HTTP",
        ),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
            "needs credentials. Check AWS_ACCESS_KEY_ID in",
        ),
    ],
)
def test_what_keeps_a_bucket_from_being_read_is_told_without_secrets(
    changed: dict[str, str], told: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (object_store.variables() | changed).items():
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    with pytest.raises(lancelot.LancelotError) as refused:
        lancelot.Store(changed.get("LANCEDB_PATH", "s3://bucket/langchain")).table_names()
    assert told in str(refused.value)
    assert not {"SECRET", "AKIASECRET", object_store.reader[0]} & set(re.findall(r"\w+", str(refused.value)))
    assert object_store.reader[1] not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "lines", "told"),
    [
        ("s3://bucket/langchain", [("folder", "ok"), ("tables", "ok")], "s3://bucket/langchain"),
        (
            "s3://nowhere/x",
            [("folder", "failed")],
            "s3://nowhere/x: The object store has no such bucket (NoSuchBucket).",
        ),
    ],
)
def test_the_health_says_whether_the_bucket_was_reached(
    path: str, lines: list[tuple[str, str]], told: str, object_store: ObjectStore
) -> None:
    status = json.loads(command_line(object_store.variables(path), "status", "--json", "--verbose").stdout)
    found = [line for line in status["health"] if line["name"] in ("folder", "tables")]
    assert [(line["name"], line["status"]) for line in found] == lines
    assert found[0]["message"] == told


def test_a_server_that_hangs_keeps_no_client_waiting(
    object_store: ObjectStore, silent_endpoint: str, tmp_path: Path
) -> None:
    program = wire.patched_program(tmp_path, "lancelot.STORE_SECONDS = 2.0")
    server = wire.Server(object_store.variables(AWS_ENDPOINT=silent_endpoint), command=program)
    try:
        tools = server.ask(wire.request(1, "tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in tools] == wire.ALWAYS_OFFERED
        refusal = server.ask(wire.call(2, "lancedb_search", query="zebra"))["result"]
        assert refusal["isError"]
        assert "The object store did not answer within 2 s. Check the network" in refusal["content"][0]["text"]
    finally:
        server.stop()


def test_what_lies_there_as_a_table_and_is_none_is_named(object_store: ObjectStore) -> None:
    database = object_store.database("s3://bucket/broken")
    database.create_table("whole", [{"text": "a zebra"}])
    # A table's folder without a version: what a copy that was broken off leaves behind.
    nested = object_store.database("s3://bucket/broken/half.lance/data")
    nested.create_table("part", [{"text": "a zebra"}])
    environ = object_store.variables("s3://bucket/broken", LANCEDB_TABLE="half")
    ended = command_line(environ, "search", "zebra")
    assert ended.returncode == 1
    assert "half" in ended.stderr
    assert "1 hit" in command_line(environ, "search", "zebra", "--table", "whole").stdout


# What the engine says where it takes long to make it say so.
DYNAMO = "lance error: LanceError(IO): WrappedSdkError: request_id: unknown, no service error"
REFUSED = "lance error: LanceError(IO): WrappedSdkError: request_id: SECRET, ResourceNotFoundException"
UNKNOWN = 'Invalid input, IO { source: Generic { store: "%s", source: SomethingNew { text: "SECRET" } } }'
STALLED = 'IO { source: Generic { store: "S3", source: reqwest::Error { kind: Body, source: TimedOut } } }'

BROKEN_OFF = STALLED.replace("TimedOut", "hyper::Error(Body, Os { code: 104, kind: ConnectionReset })")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (DYNAMO, "did not answer. Check the network, LANCEDB_PATH"),
        (
            REFUSED,
            "address: lance error: LanceError(IO). Check LANCEDB_PATH, the network and the variables of the store",
        ),
        (BROKEN_OFF, "did not answer. Check the network"),
        (STALLED, "did not answer. Check the network"),
        (
            UNKNOWN % "S3",
            f"could not open the address: Invalid input, IO. {CHECK_VARIABLES} AWS_ACCESS_KEY_ID.",
        ),
        (
            UNKNOWN % "MicrosoftAzure",
            f"could not open the address: Invalid input, IO. {CHECK_VARIABLES} AZURE_STORAGE_ACCOUNT_NAME",
        ),
        (
            "Generic GCS error: token request failed",
            "needs credentials. Check GOOGLE_SERVICE_ACCOUNT",
        ),
        (
            "Generic MicrosoftAzure error: status: 403",
            "refused access. Check AZURE_STORAGE_ACCOUNT_NAME and …_KEY in",
        ),
        (
            "Unable to find Azure account name: no Azure account name",
            "needs credentials. Check AZURE_STORAGE",
        ),
        ("Generic OSS error: status: 403", "refused access. Check the store's own variables"),
    ],
)
def test_an_error_of_a_store_is_told_in_a_sentence_with_the_variables_of_that_store(words: str, told: str) -> None:
    with pytest.raises(lancelot.LancelotError) as refused, lancelot.engine_errors("open the address"):
        raise RuntimeError(words)
    assert told in str(refused.value)
    assert not re.search(r"\bSECRET\b", str(refused.value))


PART = b'<?xml version="1.0"?><ListBucketResult><Name>b'


@pytest.fixture
def raw_endpoint() -> Iterator[Callable[[bytes], str]]:
    """Starts a server that answers every request with these bytes and hangs up; its address."""
    with contextlib.ExitStack() as stack:

        def start(reply: bytes) -> str:
            class Reply(socketserver.BaseRequestHandler):
                def handle(self) -> None:
                    self.request.recv(65536)
                    self.request.sendall(reply)

            server = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Reply))
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}"

        yield start


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + PART,
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PART) + PART,
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 13\r\n\r\n<html></html>",
        b"HTTP/1.1 302 Found\r\nLocation: /again\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.0\r\n",
    ],
)
def test_a_server_that_is_no_object_store_is_told_as_one(
    reply: bytes, raw_endpoint: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ENDPOINT": raw_endpoint(reply), "ALLOW_HTTP": "true", "REGION": "x"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(lancelot.LancelotError) as refused:
        lancelot.Store("s3://bucket/x").table_names()
    assert str(refused.value) == (
        "The object store cannot be read at this address. "
        "Check LANCEDB_PATH, AWS_ENDPOINT, AWS_REGION and AWS_ALLOW_HTTP."
    )


def test_a_table_that_a_store_keeps_from_being_read_is_not_to_be_written_again(
    make_settings: Callable[..., lancelot.Settings],
) -> None:
    status = lancelot.unread_status(make_settings(LANCEDB_PATH="s3+ddb://bucket/x?ddbTableName=t"))
    with pytest.raises(lancelot.LancelotError) as failure, lancelot.engine_errors("open the table documents"):
        raise RuntimeError(DYNAMO.partition(":")[0])
    status = replace(status, unreadable={"documents": failure.value})
    (line,) = (one for one in lancelot.check_tables(status) if one.status == "failed")
    assert line.remedy == "Check the store and the network; restore the table only where both are well."


def test_the_reason_is_not_cut_off_by_a_long_address(make_settings: Callable[..., lancelot.Settings]) -> None:
    settings = make_settings(LANCEDB_PATH=f"s3://bucket/{'a' * 900}")
    status = replace(lancelot.unread_status(settings), error=lancelot.LancelotError("The object store refused access."))
    (line,) = (one for one in lancelot.examine(status, lancelot.CHECKS) if one.name == "folder")
    assert line.message.endswith("a…: The object store refused access.")


# --- variables of a store


@pytest.mark.parametrize(
    ("path", "name", "value", "told"),
    [
        ("s3://b/x", "AWS_SESSION_TOKEN", "SECRET\n", UNFIT),
        ("s3://b/x", "AWS_ACCESS_KEY_ID", "SECRETé", UNFIT),
        ("s3://b/x", "aws_secret_access_key", "\x07SECRET", UNFIT),
        ("s3://b/x", "AWS_ENDPOINT", "SECRET:9000", UNFIT),
        ("s3+ddb://b/x", "AWS_ENDPOINT_URL", "http://", UNFIT),
        ("az://c/x", "AZURE_STORAGE_ACCOUNT_KEY", "SECRET\r\n", UNFIT),
    ],
)
def test_a_variable_on_which_the_engine_breaks_down_is_named_without_its_value(
    path: str, name: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(lancelot.LancelotError) as refused:
        lancelot.Store(path).connect()
    assert str(refused.value).startswith(f"{name} {told}")
    assert str(refused.value).endswith(f"Correct or unset {name}.")
    assert not re.search(r"\bSECRET\b", str(refused.value))


def test_a_blank_variable_of_the_store_counts_as_not_set_and_no_other_is_touched() -> None:
    kept = {"GOOGLE_SERVICE_ACCOUNT": "", "OPENAI_API_KEY": "", "AWS_REGION": "x", "AWS_PROFILE": "josé"}
    environ = {"AWS_ALLOW_HTTP": "", "AWS_TIMEOUT": " ", "AWS_SESSION_TOKEN": ""} | kept
    lancelot.prepare_variables("s3://bucket/x", environ)
    assert environ == kept


@pytest.mark.parametrize("path", ["folder", "db://name"])
def test_what_is_no_object_store_has_no_variables(path: str) -> None:
    environ = {"AWS_ENDPOINT": "x", "OPENAI_API_KEY": "é", "AWS_ALLOW_HTTP": ""}
    before = dict(environ)
    lancelot.prepare_variables(path, environ)
    assert environ == before
    assert lancelot.store_variables(path, environ) == ({}, [])


def test_loading_the_engine_is_not_part_of_the_time_a_store_has(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(lancelot, "load_lancedb", lambda: done.append("loaded"))
    monkeypatch.setattr(lancelot.Store, "_in_time", lambda _self, _call: done.append("clock"))
    lancelot.Store("s3://bucket/x").connect()
    assert done == ["loaded", "clock"]


# --- addresses


def test_the_schemes_are_those_of_the_engine() -> None:
    with pytest.raises(ValueError, match="Valid schemes") as refused:
        lancedb.connect("nothing://bucket/folder").list_tables()
    valid = re.findall(r"[\w+-]+", str(refused.value).partition("Valid schemes:")[2])
    assert lancelot.STORES.keys() - {lancelot.SERVICE_SCHEME} <= set(valid)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("s3a://bucket/x", "begins with s3a://, which LanceDB does not read. Set it to a folder, or to an address"),
        ("memory://x", "begins with memory://, which LanceDB does not read"),
        ("file+uring:///data", "begins with file+uring://, which LanceDB does not read"),
        ("s3://AKIA:SECRET@bucket/x", "holds a user, a password or a query"),
        ("s3://AKIA:SEC/SECRET@bucket/x", "holds a user, a password or a query"),
        ("az://container/x?sv=1&sig=SECRET", "holds a user, a password or a query"),
        ("db://name?api_key=SECRET", "holds a user, a password or a query"),
        ("s3://bucket/docs.lance/data", NO_FOLDER),
        ("s3://bucket/a\nb", NO_FOLDER),
        ("s3://bucket/a\x85b", NO_FOLDER),
        ("s3://bucket/a//b", NO_FOLDER),
        ("s3://bucket//", NO_FOLDER),
        ("gs://bucket/../b", NO_FOLDER),
        ("s3://bucket/a/%2E", NO_FOLDER),
        ("s3://bucket/x#SECRET", "holds a user, a password or a query"),
        ("gs://me:SECRET@bucket/x", "give credentials by GOOGLE_SERVICE_ACCOUNT."),
        ("db://", "LANCEDB_PATH lacks a name, or holds two slashes"),
        ("s3:///x", NO_FOLDER),
        ("s3://bucket/a/docs.lance", NO_FOLDER),
    ],
)
def test_an_address_that_cannot_be_read_is_refused_before_it_is_asked(address: str, told: str) -> None:
    with pytest.raises(lancelot.LancelotError) as refused:
        lancelot.check_folder(address)
    assert told in str(refused.value)
    assert not re.search(r"\bSECRET\b", str(refused.value))


@pytest.mark.parametrize(
    "address",
    [
        "S3://bucket/a@b",
        "s3://bucket",
        "s3://bucket/a/",
        "gs://bucket/data.lancedb",
        "s3+ddb://bucket/x?ddbTableName=t",
        "abfss://container@account.dfs.core.windows.net/x",
        "hf://x",
    ],
)
def test_what_the_engine_can_read_is_handed_to_it(address: str) -> None:
    assert lancelot.check_folder(address) == address


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://bucket/x#SECRET", "s3://bucket/x#…"),
        ("s3://bucket/x?SECRET", "s3://bucket/x?…"),
        ("s3://AKIA@bucket/x", "s3://bucket/x"),
        (
            "abfss://container@account.dfs.core.windows.net/x",
            "abfss://container@account.dfs.core.windows.net/x",
        ),
        ("abfss://me:SECRET@account.dfs.core.windows.net/x", "abfss://account.dfs.core.windows.net/x"),
        (f"s3://bucket/{'a' * 400}", f"s3://bucket/{'a' * 287}…"),
        ("/data/x#y", "/data/x#y"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret_and_cut(
    address: str, shown: str, make_settings: Callable[..., lancelot.Settings]
) -> None:
    assert lancelot.shown_path(address) == shown
    status = lancelot.unread_status(make_settings(LANCEDB_PATH=address))
    assert json.loads(lancelot.status_json(status, verbose=True))["folder"] == shown


def test_index_refuses_an_address(run: Run, tmp_path: Path) -> None:
    ended = run("index", str(tmp_path), "--path", "s3://bucket/x")
    assert ended.code == 1
    assert "s3://bucket/x is no folder of this machine. Name one with --path." in ended.err


def test_init_keeps_an_address_as_it_is(object_store: ObjectStore, config_dir: Path) -> None:
    ended = command_line(object_store.variables(""), "init", "--path", "s3://bucket/langchain", "--yes")
    assert ended.returncode == 0, ended.stderr
    stored = json.loads((config_dir / "settings.json").read_text(encoding="utf-8"))
    assert stored["LANCEDB_PATH"] == "s3://bucket/langchain"
    assert object_store.reader[1] not in json.dumps(stored) + ended.stdout + ended.stderr


VARIABLES = {
    "AWS_ENDPOINT": "http://127.0.0.1:9000",
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "",
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": "SECRET",
    "AZURE_STORAGE_ACCOUNT_NAME": "account",
    "AZURE_STORAGE_SAS_TOKEN": "SECRET",
    "GOOGLE_SERVICE_ACCOUNT": "key.json",
}


@pytest.mark.parametrize(
    ("path", "plain", "secret"),
    [
        (
            "s3://bucket/x",
            {"AWS_ENDPOINT": "http://127.0.0.1:9000", "AWS_ALLOW_HTTP": "true"},
            ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
        ),
        ("abfss://c@a/x", {"AZURE_STORAGE_ACCOUNT_NAME": "account"}, ["AZURE_STORAGE_SAS_TOKEN"]),
        ("gs://bucket/x", {"GOOGLE_SERVICE_ACCOUNT": str(Path("key.json").absolute())}, []),
        ("hf://x", {}, []),
    ],
)
def test_a_clients_entry_has_the_variables_of_its_store_and_none_of_the_secret_ones(
    path: str, plain: dict[str, str], secret: list[str]
) -> None:
    entry = lancelot_setup.client_variables(VARIABLES, {"LANCEDB_PATH": path})
    assert {name: value for name, value in entry.items() if name in VARIABLES} == plain
    assert lancelot_setup.client_variables({**VARIABLES, "LANCEDB_PATH": path}, {}).items() >= plain.items()
    assert lancelot.store_variables(path, VARIABLES)[1] == secret


def test_an_endpoint_with_a_password_is_named_among_what_the_entry_lacks() -> None:
    environ = {"AWS_ENDPOINT": "http://user:word@127.0.0.1:9", "AWS_REGION": "eu-north-1"}
    assert "AWS_ENDPOINT" not in lancelot_setup.client_variables(environ, {"LANCEDB_PATH": "s3://bucket/x"})
    assert lancelot.store_variables("s3://bucket/x", environ)[1] == ["AWS_ENDPOINT"]


def test_an_endpoint_with_a_password_is_in_no_clients_entry() -> None:
    environ = {"AWS_ENDPOINT": "http://me:SECRET@127.0.0.1:9000"}
    assert "AWS_ENDPOINT" not in lancelot_setup.client_variables(environ, {"LANCEDB_PATH": "s3://bucket/x"})


def test_init_ends_with_a_warning_where_the_server_that_it_wrote_cannot_read_its_bucket(
    object_store: ObjectStore, config_dir: Path
) -> None:
    environ = object_store.variables("", AWS_EC2_METADATA_DISABLED="true")
    words = ("init", "--path", "s3://bucket/langchain", "--yes", "--client", "cursor")
    ended = command_line(environ, *words)
    assert ended.returncode == 1
    assert (
        "In this environment alone: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY. Set them in the client's" in ended.stdout
    )
    assert (
        "warning: The server answers, but there is nothing that it can search: The object store needs credentials"
        in ended.stdout
    )
    entry = json.loads((Path(environ["HOME"]) / ".cursor" / "mcp.json").read_text(encoding="utf-8"))
    assert entry["mcpServers"]["lancelot"]["env"]["AWS_ENDPOINT"] == object_store.endpoint
    assert object_store.reader[1] not in json.dumps(entry) + ended.stdout + ended.stderr
    assert config_dir.is_dir()
    key, secret = object_store.reader
    own_file = Path(environ["HOME"]) / ".aws" / "credentials"
    own_file.parent.mkdir()
    own_file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n", encoding="utf-8")
    ended = command_line(environ, *words)
    assert (ended.returncode, ended.stdout.count("ok:      initialize")) == (0, 1), ended.stdout


# --- LanceDB's own service


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "Hit retry limit for request_id=SECRET (connect=1)",
            "LanceDB's service did not answer. Check the network, LANCEDB_HOST_OV",
        ),
        (
            "Http error: (request_id=1) error decoding response body",
            "LanceDB's service did not answer. Check the network, LANCEDB_",
        ),
        (
            "Http error: (request_id=1) 404 Not Found: <html>SECRET",
            "LanceDB's service cannot be read at this address (404). Check ",
        ),
        (
            "Http error: (request_id=1) 404 Not Found: key SECRET",
            "LanceDB's service cannot be read at this address (404). Check ",
        ),
    ],
)
def test_an_error_of_the_service_is_told_without_its_page(words: str, told: str) -> None:
    with pytest.raises(lancelot.LancelotError) as refused, lancelot.engine_errors("open the address"):
        raise RuntimeError(words)
    assert str(refused.value).startswith(told)
    assert not re.search(r"\bSECRET\b", str(refused.value))


def test_the_key_for_the_service_goes_to_it_alone(make_searcher: Callable[..., lancelot.Searcher]) -> None:
    keys: list[str | None] = []

    def tables(request: Handler) -> Reply:
        keys.append(request.headers.get("x-api-key"))
        return 200, JSON, json.dumps({"tables": ["documents"]}).encode()

    with serving(tables) as server:
        searcher = make_searcher(LANCEDB_PATH="db://name", LANCEDB_API_KEY="sk-l", LANCEDB_HOST_OVERRIDE=server.host)
        assert searcher.store.table_names() == ["documents"]
    assert keys == [None, "sk-l"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "LanceDB's service cannot be read at this address (400). Check LANCEDB_HOST_OVERRIDE"),
        (401, "LanceDB's service refused access (401). Check LANCEDB_API_KEY"),
        (307, "sends requests on to another address, and the key with them. Set LANCEDB_HOST_OVERRIDE"),
    ],
)
def test_the_key_for_the_service_is_in_no_answer_and_goes_nowhere_else(
    status: int, said: str, make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    requests: list[dict[str, str]] = []

    def echo(request: Handler) -> Reply:
        requests.append(dict(request.headers))
        place = f"http://localhost:{request.server.server_port}/elsewhere"
        return status, {"Location": place}, f"no key {request.headers.get('x-api-key')} here".encode()

    with serving(echo) as server:
        searcher = make_searcher(LANCEDB_PATH="db://name", LANCEDB_API_KEY="sk-l", LANCEDB_HOST_OVERRIDE=server.host)
        with pytest.raises(lancelot.LancelotError) as raised:
            searcher.store.table_names()
    assert said in str(raised.value)
    assert "sk-l" not in str(raised.value)
    with_key = [headers for headers in requests if "x-api-key" in headers]
    assert [headers for headers in with_key if not headers["host"].startswith("127.0.0.1")] == []
    assert status != 307 or with_key == []


def test_a_region_that_would_lead_to_another_host_is_not_used(make_settings: Callable[..., lancelot.Settings]) -> None:
    settings = make_settings(LANCEDB_REGION="evil.example/")
    assert settings.database_region == "us-east-1"
    assert "LANCEDB_REGION (environment) is" in str(settings.problems[0])


def test_the_service_without_a_key_is_not_asked(make_searcher: Callable[..., lancelot.Searcher]) -> None:
    with pytest.raises(lancelot.LancelotError, match="which db:// needs"):
        make_searcher(LANCEDB_PATH="db://name").store.table_names()
