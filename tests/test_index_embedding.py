"""Many texts become vectors in batches, a few at a time, by servers that are busy, picky or gone."""

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from standins import JSON, Handler, LoopbackServer, Reply

import lancelot
import lancelot_index

Answer = tuple[int, dict[str, str]]


class BusyServer(LoopbackServer):
    """An embedding server that answers as `decide(texts, number of the request)` says, with `bad` vectors by text."""

    def __init__(self, decide: Callable[[list[str], int], Answer], bad: Mapping[str, Any]) -> None:
        super().__init__(self.embed)
        self.bad = bad
        self.decide = decide
        self.batches: list[list[str]] = []
        self.now = self.most = 0
        self.lock = threading.Lock()

    def embed(self, request: Handler) -> Reply:
        texts = json.loads(request.body)["input"]
        texts = [texts] if isinstance(texts, str) else texts
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.batches.append(texts)
            number = len(self.batches)
        threading.Event().wait(0.05)
        status, headers = self.decide(texts, number)
        vectors = [self.bad.get(text, [float(len(text)), 1.0]) for text in texts]
        data = [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]
        with self.lock:
            self.now -= 1
        body = {"data": data} if status == 200 else {"error": {"message": "no"}}
        return status, headers | JSON, json.dumps(body).encode()


@pytest.fixture
def serve(make_settings: Callable[..., lancelot.Settings]) -> Iterator[Callable[..., Any]]:
    """Starts a server and gives it with a bulk embedder that asks it."""
    running: list[BusyServer] = []

    def start(decide: Callable[[list[str], int], Answer] = lambda _texts, _number: (200, {}), **bad: Any) -> Any:
        server = BusyServer(decide, bad)
        running.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        settings = make_settings(OPENAI_BASE_URL=f"{server.host}/v1")
        endpoint = lancelot.EndpointEmbedder(settings, key=lambda _: lancelot.KeyLookup(None))
        return server, lancelot_index.BulkEmbedder(endpoint, lancelot.LocalEmbedder(settings))

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


TEXTS = ["x" * number for number in range(1, 301)]


def test_every_text_gets_its_own_vector_and_few_calls_run_at_once(serve: Callable[..., Any]) -> None:
    server, bulk = serve()
    assert [vector[0] for vector in bulk.embed(TEXTS, model="m")] == list(range(1, 301))
    assert max(map(len, server.batches)) == lancelot_index.BULK_TEXTS
    assert len(server.batches) == -(-300 // lancelot_index.BULK_TEXTS)
    assert 1 < server.most <= lancelot_index.BULK_CALLS
    assert bulk.notes == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again_when_it_says(status: int, serve: Callable[..., Any]) -> None:
    server, bulk = serve(lambda _texts, number: (200, {}) if number > 3 else (status, {"Retry-After": "0.2"}))
    assert all(bulk.embed(TEXTS[:64], model="m"))
    assert len(server.batches) == 4
    assert bulk.works


def test_a_server_that_takes_few_texts_at_once_gets_them_in_parts(serve: Callable[..., Any]) -> None:
    server, bulk = serve(lambda texts, _number: (413 if len(texts) > 10 else 200, {}))
    assert [vector[0] for vector in bulk.embed(TEXTS[:100], model="m")] == list(range(1, 101))
    assert bulk.notes == []
    assert min(map(len, server.batches)) > 2


@pytest.mark.parametrize("status", [400, 500])
def test_a_text_that_is_not_taken_costs_no_other_its_vector(
    status: int, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot_index, "BULK_RETRIES", 1)
    _, bulk = serve(lambda texts, _number: (status if "x" * 7 in texts else 200, {"Retry-After": "0.01"}))
    vectors = bulk.embed(TEXTS[:20], model="m")
    assert [place for place, vector in enumerate(vectors) if vector is None] == [6]
    assert bulk.notes == ["The embedding server gave no vector for 1 text."]
    bulk.embed(TEXTS[6:7], model="m")
    assert bulk.notes == ["The embedding server gave no vector for 1 text."]


def test_a_server_that_takes_nothing_is_not_asked_for_each_text(serve: Callable[..., Any]) -> None:
    server, bulk = serve(lambda _texts, _number: (400, {}))
    assert not any(bulk.embed(TEXTS, model="m"))
    assert len(server.batches) < 50
    assert not bulk.works
    assert "did not accept the request (HTTP 400)" in bulk.notes[0]


def test_a_server_that_fails_for_good_is_left_alone(serve: Callable[..., Any]) -> None:
    server, bulk = serve(lambda _texts, number: (200, {}) if number == 1 else (401, {}))
    first = bulk.embed(TEXTS[:64], model="m")
    assert all(first)
    assert not any(bulk.embed(TEXTS[64:], model="m"))
    asked = len(server.batches)
    assert not any(bulk.embed(TEXTS, model="m"))
    assert len(server.batches) == asked


def test_when_the_run_is_stopped_nothing_more_is_asked(serve: Callable[..., Any]) -> None:
    server, bulk = serve()
    bulk.stop.set()
    assert not any(bulk.embed(TEXTS, model="m"))
    assert server.batches == []


@pytest.mark.parametrize("bad", [None, [None, None], [math.nan, 1.0], [0.0, 0.0], [], "", {}], ids=str)
def test_a_vector_of_no_numbers_costs_no_other_text_its_own(bad: Any, serve: Callable[..., Any]) -> None:
    _, bulk = serve(**{"x" * 7: bad, "x" * 65: bad})
    vectors = bulk.embed(TEXTS[:65], model="m")
    assert [place for place, vector in enumerate(vectors) if vector is None] == [6, 64]
    assert bulk.notes == ["The embedding server gave no vector for 2 texts."]
    assert bulk.works


def test_a_server_that_gives_no_vectors_at_all_is_not_asked_for_each_text(serve: Callable[..., Any]) -> None:
    server, bulk = serve(**dict.fromkeys([*TEXTS, lancelot.PLAIN_TEXT]))
    assert not any(bulk.embed(TEXTS, model="m"))
    assert len(server.batches) < 50
    assert "answered with something that is no embedding" in bulk.notes[0]
