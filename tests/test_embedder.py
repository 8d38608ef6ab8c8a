from __future__ import annotations

import contextlib
import gzip
import json
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PROJECT, TESTS, child_environment

import lancelot
import lancelot_index
from lancelot import EndpointEmbedder, KeyLookup, LancelotError, models_of_length

MakeSettings = Callable[..., lancelot.Settings]


@pytest.fixture
def logged(tmp_path: Path, embedding_server: Callable[..., str]) -> tuple[str, Callable[[], list[dict[str, Any]]]]:
    """An embedding server's address, and what it was asked so far."""
    log = tmp_path / "requests.jsonl"
    log.touch()
    return embedding_server("--log", str(log)), lambda: list(map(json.loads, log.read_text("utf-8").splitlines()))


class Endless:
    """A server that sends the head of an answer and then the same part over and over, until its client hangs up."""

    def __init__(self, head: bytes, part: bytes, pause: float) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(30)
        self._head, self._part, self._pause = head, part, pause
        self._stop = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError), self._listener.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(self._head)
            while not self._stop.wait(self._pause):
                connection.sendall(self._part)
                self.sent += len(self._part)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def is_left(self) -> bool:
        """Whether the client hung up."""
        self._thread.join(30)
        return not self._thread.is_alive()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._listener.close()


@pytest.fixture
def endless() -> Iterator[Callable[..., Endless]]:
    """Starts servers without end: `endless(head, part)`, with a pause between the parts where one is given."""
    running: list[Endless] = []

    def start(head: bytes, part: bytes, *, pause: float = 0) -> Endless:
        running.append(Endless(head, part, pause))
        return running[-1]

    yield start
    for server in running:
        server.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BLANKS = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
PACKER = zlib.compressobj(9, wbits=31)
PACKED_START, PACKED_PART = (PACKER.compress(b" " * size) + PACKER.flush(zlib.Z_FULL_FLUSH) for size in (1, 2**22))


def test_a_query_is_asked_for_once_and_remembered(
    make_settings: MakeSettings, logged: tuple[str, Callable[[], list[dict[str, Any]]]]
) -> None:
    address, asked = logged
    embedder = EndpointEmbedder(make_settings(OPENAI_BASE_URL=address))
    first = embedder.embed(["räksmörgås 😀"])
    assert embedder.embed(["räksmörgås 😀"]) == first
    assert [request["body"]["input"] for request in asked()] == ["räksmörgås 😀"]
    assert embedder.embed(["another"]) != first
    assert len(asked()) == 2


def test_a_call_asks_for_floats_and_sends_no_dimensions(
    make_settings: MakeSettings, logged: tuple[str, Callable[[], list[dict[str, Any]]]]
) -> None:
    address, asked = logged
    settings = make_settings(
        OPENAI_BASE_URL=address, EMBEDDING_MODEL="some-model", EMBEDDING_DIMENSIONS="64", OPENAI_API_KEY="sk-x"
    )
    assert [len(vector) for vector in EndpointEmbedder(settings).embed(["word"])] == [384]
    (request,) = asked()
    assert request["body"] == {"input": "word", "model": "some-model", "encoding_format": "float"}
    assert request["headers"]["authorization"] == "Bearer sk-x"
    assert request["path"] == "/v1/embeddings"


def test_only_the_last_queries_are_remembered(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, logged: tuple[str, Callable[[], list[dict[str, Any]]]]
) -> None:
    monkeypatch.setattr(lancelot, "CACHED_VECTORS", 2)
    address, asked = logged
    embedder = EndpointEmbedder(make_settings(OPENAI_BASE_URL=address))
    for query in ("a", "b", "a", "c", "a", "b"):
        embedder.embed([query])
    assert [request["body"]["input"] for request in asked()] == ["a", "b", "c", "b"]


def test_a_failure_is_not_remembered(make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = EndpointEmbedder(make_settings(OPENAI_BASE_URL="http://127.0.0.1:9/v1"))
    answers: list[Any] = [{}, {"data": [{"embedding": [1.0, 2.0]}]}]
    monkeypatch.setattr(embedder, "_post", lambda *_: answers.pop(0))
    with pytest.raises(LancelotError, match="no embedding"):
        embedder.embed(["word"])
    assert embedder.embed(["word"]) == [(1.0, 2.0)]


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/v1/embeddings"])
def test_an_address_with_and_without_its_path_is_asked(
    suffix: str, make_settings: MakeSettings, logged: tuple[str, Callable[[], list[dict[str, Any]]]]
) -> None:
    address, asked = logged
    EndpointEmbedder(make_settings(OPENAI_BASE_URL=address.removesuffix("/v1") + suffix)).embed(["word"])
    assert [request["path"] for request in asked()] == ["/v1/embeddings"]


def test_the_key_that_is_looked_up_is_the_one_for_the_endpoints_host(
    make_settings: MakeSettings, logged: tuple[str, Callable[[], list[dict[str, Any]]]]
) -> None:
    address, asked = logged
    hosts: list[str] = []

    def find(settings: lancelot.Settings) -> KeyLookup:
        hosts.append(lancelot.host_of(settings.endpoint))
        return KeyLookup(f"key-of-{hosts[-1]}", "system keychain")

    embedder = EndpointEmbedder(make_settings(OPENAI_BASE_URL=address), key=find)
    embedder.embed(["one"])
    embedder.embed(["two"])
    host = address.removeprefix("http://").removesuffix("/v1")
    assert hosts == [host]
    assert {request["headers"]["authorization"] for request in asked()} == {f"Bearer key-of-{host}"}


def test_a_key_is_not_carried_along_to_another_host(
    make_settings: MakeSettings, logged: tuple[str, Callable[[], list[dict[str, Any]]]]
) -> None:
    """A server that sends the client elsewhere does not get the key sent there too."""
    address, asked = logged
    target = address.replace("127.0.0.1", "localhost") + "/embeddings"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def redirect() -> None:
            with listener.accept()[0] as connection:
                connection.recv(65536)
                answer = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n"
                connection.sendall(answer.encode())

        thread = threading.Thread(target=redirect, daemon=True)
        thread.start()
        settings = make_settings(
            OPENAI_BASE_URL=f"http://127.0.0.1:{listener.getsockname()[1]}/v1", OPENAI_API_KEY="sk-secret"
        )
        with pytest.raises(LancelotError, match="HTTP 307") as failure:
            EndpointEmbedder(settings).embed(["word"])
        assert "sk-secret" not in str(failure.value)
        thread.join(10)
    assert asked() == []


def test_with_an_address_and_no_key_a_server_that_takes_any_is_asked(
    make_settings: MakeSettings, logged: tuple[str, Callable[[], list[dict[str, Any]]]]
) -> None:
    address, asked = logged
    embedder = EndpointEmbedder(make_settings(OPENAI_BASE_URL=address))
    assert embedder.available
    embedder.embed(["word"])
    assert asked()[0]["headers"]["authorization"] == "Bearer none"


def test_without_key_and_address_no_client_is_made_and_openai_is_not_loaded(tmp_path: Path) -> None:
    code = """if True:
        import sys, lancelot
        folder = lancelot.Path(sys.argv[1])
        settings = lancelot.load_settings({"LANCEDB_PATH": sys.argv[2]}, folder)
        searcher = lancelot.Searcher(settings)
        for kind in ("vector", "auto", "text"):
            assert searcher.search(lancelot.SearchRequest("python", 3, kind)).hits
        searcher.status()
        assert not searcher.embedder.available
        assert "openai" not in sys.modules
        assert "_client" not in vars(searcher.embedder)
    """
    folder = TESTS / "databases" / "langchain"
    child_variables = child_environment(PYTHONPATH=str(PROJECT))
    command = [sys.executable, "-c", code, str(tmp_path), str(folder)]
    subprocess.run(command, check=True, timeout=60, env=child_variables, cwd=tmp_path)


def test_an_embedder_is_made_without_looking_for_a_key(make_settings: MakeSettings) -> None:
    looked: list[lancelot.Settings] = []

    def find(settings: lancelot.Settings) -> KeyLookup:
        looked.append(settings)
        return KeyLookup(None)

    embedder = EndpointEmbedder(make_settings(), key=find)
    assert looked == []
    assert (embedder.available, embedder.available, len(looked)) == (False, False, 1)


def test_a_locked_keychain_is_told_as_a_reason(make_settings: MakeSettings) -> None:
    none = LancelotError("This machine offers no system keychain.")
    locked = LancelotError("The system keychain is locked.", kind="denied")
    embedder = EndpointEmbedder(make_settings(), key=lambda _: KeyLookup(None, None, (none, locked)))
    assert embedder.why_not == "No API key is set, so there are no embeddings. The system keychain is locked."


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", BLANKS),
        (OK + b"\r\n", b" " * 0x10000),
        (OK.replace(b"200 OK", b"500 Failed") + b"\r\n", b" " * 0x10000),
        (OK.replace(b"200 OK", b"302 Found") + b"Location: /v1\r\n\r\n", b" " * 0x10000),
        (OK + b"Content-Encoding: gzip\r\n\r\n" + PACKED_START, PACKED_PART),
        (OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"{}"), b"behind the end"),
    ],
    ids=["chunked", "no length", "error", "redirect", "gzip bomb", "behind a gzip"],
)
def test_an_answer_without_end_is_read_to_a_limit_and_then_hung_up_on(
    head: bytes, part: bytes, endless: Callable[..., Endless], make_settings: MakeSettings
) -> None:
    server = endless(head, part)
    settings = make_settings(OPENAI_BASE_URL=server.address, LANCELOT_EMBEDDING_TIMEOUT="60")
    with pytest.raises(LancelotError, match=r"no embedding|HTTP 500|HTTP 302"):
        EndpointEmbedder(settings).embed(["word"])
    assert server.is_left()
    # What lies in the buffers of the system was sent too.
    assert server.sent < lancelot.MAX_REPLY_BYTES + 16 * 2**20


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (OK + b"Content-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 100000\r\n\r\n" + PACKED_START, b"\0\0\0\xff\xff"),
    ],
    ids=["body", "head", "informational", "gzip of nothing"],
)
def test_a_server_that_trickles_is_hung_up_on_when_the_time_is_over(
    head: bytes, part: bytes, endless: Callable[..., Endless], make_settings: MakeSettings
) -> None:
    server = endless(head, part, pause=0.05)
    embedder = EndpointEmbedder(make_settings(OPENAI_BASE_URL=server.address, LANCELOT_EMBEDDING_TIMEOUT="1"))
    _ = embedder._client  # noqa: SLF001 - to import openai takes longer than the limit
    with pytest.raises(LancelotError, match="did not answer within 1 s"):
        embedder.embed(["word"])
    assert server.is_left()
    for thread in threading.enumerate():
        if thread.name == "the embedding call":
            thread.join(30)
            assert not thread.is_alive()


def test_many_texts_are_given_up_where_the_answer_has_no_end(
    endless: Callable[..., Endless], make_settings: MakeSettings
) -> None:
    server = endless(OK + b"\r\n", b" " * 0x10000)
    settings = make_settings(OPENAI_BASE_URL=server.address)
    bulk = lancelot_index.BulkEmbedder(EndpointEmbedder(settings), lancelot.LocalEmbedder(settings))
    assert bulk.embed([lancelot.PLAIN_TEXT], model="m") == [None]
    assert not bulk.works
    assert server.is_left()


@pytest.mark.parametrize(
    ("indexes", "places"),
    [
        ([0, 1, 2], [0, 1, 2]),
        ([2, 0, 1], [1, 2, 0]),
        ([None, None, None], [0, 1, 2]),
        ([0, 0, 0], [0, 1, 2]),
        ([1, 2, 3], [0, 1, 2]),
        ([0, 2], [0, None, 1]),
        ([0, 0], [None, None, None]),
        ([None, None], [None, None, None]),
        ([[], {}, "a"], [0, 1, 2]),
    ],
    ids=str,
)
def test_each_text_gets_the_vector_of_its_index_or_else_of_its_place(
    indexes: list[Any], places: list[int | None]
) -> None:
    items = [{"index": index, "embedding": [1.0, float(place)]} for place, index in enumerate(indexes)]
    vectors = lancelot.vectors_of({"data": items}, 3)
    assert [vector and vector[1] for vector in vectors] == places


@pytest.mark.parametrize("answer", [None, [], {"data": None}, {"data": [None]}, {"data": ["x"]}, {"data": {"0": []}}])
def test_what_is_no_answer_of_an_embedding_server_holds_no_vector(answer: Any) -> None:
    assert lancelot.vectors_of(answer, 1) == [None]


def test_a_failure_names_the_host_and_neither_user_password_nor_key(make_settings: MakeSettings) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    settings = make_settings(OPENAI_BASE_URL=f"http://user:pass@127.0.0.1:{port}/v1", OPENAI_API_KEY="sk-secret")
    with pytest.raises(LancelotError) as failure:
        EndpointEmbedder(settings).embed(["word"])
    assert str(failure.value).startswith(f"The embedding server at 127.0.0.1:{port} cannot be reached (")
    assert not any(secret in str(failure.value) for secret in ("user", "pass", "sk-secret"))


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (384, "known models of length 384 are all-MiniLM-L6-v2, bge-small-en-v1.5, multilingual-e5-small"),
        (3072, "known models of length 3072 are text-embedding-3-large"),
        (7, "no known model has length 7"),
    ],
)
def test_the_models_of_a_length_are_named(length: int, said: str) -> None:
    assert models_of_length(length) == said


def test_a_vector_of_the_wrong_length_names_both_lengths_and_the_models_that_fit(
    make_searcher: Callable[..., lancelot.Searcher], embedding_server: Callable[..., str]
) -> None:
    searcher = make_searcher(
        LANCEDB_PATH=TESTS / "databases" / "langchain", OPENAI_BASE_URL=embedding_server("--dimensions", "1536")
    )
    page = searcher.search(lancelot.SearchRequest("python", 3, "vector"))
    (note,) = page.notes
    assert note == (
        "Text search ran, since vector search was not possible: The vectors in vectorstore.vector have length 384, but "
        "the model text-embedding-ada-002 gives length 1536; set EMBEDDING_MODEL to the model that made the table "
        "(known models of length 384 are all-MiniLM-L6-v2, bge-small-en-v1.5, multilingual-e5-small)."
    )


def test_two_threads_share_an_embedder(
    make_settings: MakeSettings, logged: tuple[str, Callable[[], list[dict[str, Any]]]]
) -> None:
    address, _ = logged
    embedder = EndpointEmbedder(make_settings(OPENAI_BASE_URL=address))
    found: dict[str, tuple[float, ...]] = {}
    words = [f"word{number}" for number in range(8)]
    threads = [
        threading.Thread(target=lambda word=word: found.update({word: embedder.embed([word])[0]})) for word in words
    ]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(found) == set(words)
    assert len(set(found.values())) == len(words)


def test_a_server_that_wants_a_key_where_there_is_none_is_told_so(
    make_settings: MakeSettings, embedding_server: Callable[..., str]
) -> None:
    settings = make_settings(OPENAI_BASE_URL=embedding_server("--require-key", "k"))
    with pytest.raises(LancelotError, match="asks for an API key, and none is set"):
        EndpointEmbedder(settings).embed(["word"])


@pytest.mark.parametrize("number", [1e308, -1e39])
def test_numbers_that_no_vector_column_can_hold_are_no_embedding(number: float) -> None:
    assert lancelot.vectors_of({"data": [{"embedding": [0.5, number]}]}, 1) == [None]
    assert lancelot.vectors_of({"data": [{"embedding": [0.5, 3e38]}]}, 1) == [(0.5, 3e38)]


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_a_server_on_this_machine_is_asked_without_a_proxy(
    variable: str,
    proxy: str,
    make_settings: MakeSettings,
    embedding_server: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, proxy)
    assert EndpointEmbedder(make_settings(OPENAI_BASE_URL=embedding_server())).embed(["word"])


def test_a_proxy_that_cannot_be_used_is_told(make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(LancelotError, match="cannot be asked through the proxy that the environment names"):
        EndpointEmbedder(make_settings(OPENAI_BASE_URL="http://embeddings.example/v1")).embed(["word"])


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("http://localhost:11434/v1", True),
        ("http://127.3.2.1/v1", True),
        ("http://[::1]:80/v1", True),
        ("http://a.localhost/v1", True),
        ("http://localhost.example/v1", False),
        ("http://10.0.0.1/v1", False),
        ("https://api.openai.com/v1", False),
    ],
)
def test_this_machine_is_told_from_others(url: str, is_here: bool) -> None:  # noqa: FBT001 - a value of the table above
    assert lancelot.is_loopback(url) is is_here


@pytest.mark.parametrize(
    ("options", "key", "kind"),
    [
        (("--require-key", "sk-right"), "sk-wrong", "refused-key"),
        (("--require-key", "sk-right"), None, "denied"),
        (("--fail-with", "403"), "sk-any", "denied"),
        (("--fail-with", "429"), "sk-any", "busy"),
        (("--fail-with", "413"), "sk-any", "refused-texts"),
        (("--fail-with", "503"), "sk-any", "failed"),
        (("--delay", "5"), "sk-any", "no-answer"),
        ((), "sk-ä", "refused-key"),
    ],
)
def test_the_kind_of_a_failure_says_what_may_be_done(
    options: tuple[str, ...],
    key: str | None,
    kind: str,
    make_settings: MakeSettings,
    embedding_server: Callable[..., str],
) -> None:
    limit = "0.3" if "--delay" in options else "15"
    settings = make_settings(OPENAI_BASE_URL=embedding_server(*options), LANCELOT_EMBEDDING_TIMEOUT=limit)
    with pytest.raises(LancelotError) as failure:
        EndpointEmbedder(settings, key=lambda _: KeyLookup(key)).embed(["text"])
    assert failure.value.kind == kind
