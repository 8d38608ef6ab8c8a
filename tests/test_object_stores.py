"""Tables in object stores: from a real S3 server on loopback, as from the same folder, and what goes wrong there."""

import http.server
import importlib.util
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lancedb
import lancedb.index
import pytest
import wire
from conftest import DATABASES, PROGRAM, TESTS, Run, child_environment
from test_readonly import every_call

import lancelot

COPIED = ("langchain", "lancedb-0.14")
READING = {"GET", "HEAD"}


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
    assert ran == {"vector", "text", "fts", "hybrid"}
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
        ({"LANCEDB_PATH": "s3://nowhere/x"}, "has no such bucket (NoSuchBucket). Correct LANCEDB_PATH."),
        ({"AWS_ACCESS_KEY_ID": "AKIASECRET"}, "refused access (InvalidAccessKeyId). Check the store's own variables"),
        ({"AWS_SECRET_ACCESS_KEY": "SECRET"}, "refused access (SignatureDoesNotMatch). Check the store's own"),
        ({"AWS_SESSION_TOKEN": "SECRET"}, "refused access (InvalidToken). Check the store's own variables"),
        (
            {"AWS_ENDPOINT": "http://127.0.0.1:9"},
            "cannot be reached. Check the network and, where it is set, AWS_ENDPOINT.",
        ),
        ({"AWS_ALLOW_HTTP": ""}, "is at an http:// address, which is not allowed. Set AWS_ALLOW_HTTP=true"),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
            "needs credentials, and none were found. Set the store's own variables",
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
    assert str(refused.value).startswith(f"The object store {told}")
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
    status = json.loads(command_line(object_store.variables(path), "status", "--json").stdout)
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


# --- addresses


def test_the_schemes_are_those_of_the_engine() -> None:
    with pytest.raises(ValueError, match="Valid schemes") as refused:
        lancedb.connect("nothing://bucket/folder").list_tables()
    valid = re.findall(r"[\w+-]+", str(refused.value).partition("Valid schemes:")[2])
    assert set(lancelot.STORE_SCHEMES) <= set(valid)


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
        (
            "s3://bucket/docs.lance/data",
            "is inside the table docs, not a database folder. Set LANCEDB_PATH to s3://bucket.",
        ),
        ("s3:///x", "s3:// names no bucket. Set it as in s3://bucket/folder."),
        (
            "s3://bucket/a/docs.lance",
            "is inside the table docs, not a database folder. Set LANCEDB_PATH to s3://bucket/a.",
        ),
    ],
)
def test_an_address_that_cannot_be_read_is_refused_before_it_is_asked(address: str, told: str) -> None:
    with pytest.raises(lancelot.LancelotError) as refused:
        lancelot.check_folder(address)
    assert told in str(refused.value)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "S3://bucket/a@b",
        "gs://bucket/data.lancedb",
        "s3+ddb://bucket/x?ddbTableName=t",
        "abfss://container@account.dfs.core.windows.net/x",
        "hf://x",
    ],
)
def test_what_the_engine_can_read_is_handed_to_it(address: str) -> None:
    assert lancelot.check_folder(address) == address


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


# --- LanceDB's own service


class Listing(http.server.BaseHTTPRequestHandler):
    """Answers a request for the tables, and notes its headers."""

    asked: tuple[dict[str, str], ...] = ()

    def do_GET(self) -> None:
        type(self).asked += (dict(self.headers),)
        body = json.dumps({"tables": ["documents"]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_the_key_for_the_service_goes_to_it_alone(make_searcher: Callable[..., lancelot.Searcher]) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}"
        searcher = make_searcher(LANCEDB_PATH="db://name", LANCEDB_API_KEY="sk-l", LANCEDB_HOST_OVERRIDE=host)
        assert searcher.store.table_names() == ["documents"]
        server.shutdown()
    assert [headers["x-api-key"] for headers in Listing.asked] == ["sk-l"]


def test_the_service_without_a_key_is_not_asked(make_searcher: Callable[..., lancelot.Searcher]) -> None:
    with pytest.raises(lancelot.LancelotError, match="which db:// needs"):
        make_searcher(LANCEDB_PATH="db://name").store.table_names()
