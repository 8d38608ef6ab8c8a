"""The local model: its vectors, the tables that it searches, and those that it leaves alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import mul
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from conftest import TESTS

import lancelot
from lancelot import LOCAL_LENGTH, LOCAL_MODEL, Reading

ON = {"LANCELOT_LOCAL_MODEL": "on"}
TEXTS = (
    "The inspection found that the seal of the boiler had to be replaced, since water escaped under pressure.",
    "Invoices are to be paid within thirty days of their date.",
    "A cat sleeps on the warm roof of the garage for most of the day.",
    "Parsley, mint and lemon juice make the salad fresh.",
    "Astronomers measured how far the galaxy moves away from us.",
    "The train to the coast leaves at seven in the morning and is often late.",
    "Install the printer before you plug in its cable.",
    "Her thesis compares the poems of two sisters who never met.",
    "Shares fell after the bank raised its interest rates again.",
    "The violin was made in Cremona and has its first varnish.",
    "Snow closes the mountain pass from November to April.",
    "Write the password down nowhere, and change it when it was seen.",
)
LEAK = "leaking heater"
"""Shares no word with the first text, which it is about."""

Make = Callable[..., lancelot.Searcher]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> lancelot.LocalEmbedder:
    return lancelot.LocalEmbedder(lancelot.load_settings({}, tmp_path_factory.mktemp("empty")))


@pytest.fixture
def search(make_searcher: Make, model: lancelot.LocalEmbedder) -> Callable[..., lancelot.Page]:
    """Searches a folder with the model that the other tests have loaded too."""

    def run(folder: Path, query: str, kind: str = "auto", **variables: Any) -> lancelot.Page:
        searcher = make_searcher(**{"LANCEDB_PATH": folder, **ON, **variables})
        if searcher.local.is_wanted:
            searcher.local = model
        return searcher.search(lancelot.SearchRequest(query, 5, kind))  # type: ignore[arg-type]

    return run


def write(
    folder: Path, vectors: Sequence[Sequence[float] | None], texts: Sequence[str] = TEXTS, name: str = "documents"
) -> Path:
    kind = pa.list_(pa.float32(), LOCAL_LENGTH)
    columns = {"id": range(len(texts)), "text": texts, "vector": pa.array(vectors, kind)}
    lancedb.connect(folder).create_table(name, pa.table(columns), mode="overwrite")
    return folder


def turned(vector: Sequence[float]) -> list[float]:
    """What another model of the same length makes of a text."""
    return [*vector[1:], vector[0]]


def test_vectors_are_those_of_the_reference(model: lancelot.LocalEmbedder) -> None:
    cases = [json.loads(line) for line in (TESTS / "retrieval" / "minilm.jsonl").read_text("utf-8").splitlines()]
    vectors = model.embed([case["text"] for case in cases])
    assert {len(vector) for vector in vectors} == {LOCAL_LENGTH}
    assert all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-5) for vector in vectors)
    starts = [(vector[: len(case["start"])], case["start"]) for vector, case in zip(vectors, cases, strict=True)]
    cosines = [sum(map(mul, *pair)) / math.hypot(*pair[0]) / math.hypot(*pair[1]) for pair in starts]
    assert min(cosines) > 0.995
    assert sum(cosines) / len(cosines) > 0.999


def test_a_table_of_the_model_is_searched_by_meaning(
    tmp_path: Path, model: lancelot.LocalEmbedder, search: Callable[..., lancelot.Page]
) -> None:
    folder = write(tmp_path, model.embed(TEXTS))
    for kind, ran in {"auto": "vector", "vector": "vector", "hybrid": "hybrid"}.items():
        page = search(folder, LEAK, kind)
        assert (page.ran, page.model, page.hits[0].id) == (ran, LOCAL_MODEL, 0), kind
        assert json.loads(lancelot.search_json(page))["embeddingModel"] == LOCAL_MODEL
    assert search(folder, "boiler", "text").model == ""


def test_off_it_searches_nothing(
    tmp_path: Path, model: lancelot.LocalEmbedder, search: Callable[..., lancelot.Page]
) -> None:
    page = search(write(tmp_path, model.embed(TEXTS)), "boiler seal", LANCELOT_LOCAL_MODEL="off")
    assert (page.ran, page.notes) == ("text", ())


def test_headers_of_writers_do_not_hide_the_match(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make
) -> None:
    stored = [
        f"<document_metadata>\nsourceDocument: {at}.txt\n</document_metadata>\n\n{text}"
        for at, text in enumerate(TEXTS)
    ]
    columns = {
        **{name: [""] * len(TEXTS) for name in lancelot.ANYTHINGLLM_COLUMNS},
        "id": [str(at) for at in range(len(TEXTS))],
        "text": stored,
    }
    for embedded in (TEXTS, stored):
        vectors = pa.array(model.embed(embedded), pa.list_(pa.float32(), LOCAL_LENGTH))
        lancedb.connect(tmp_path).create_table("one", pa.table({**columns, "vector": vectors}), mode="overwrite")
        assert (
            make_searcher(LANCEDB_PATH=tmp_path, **ON).search(lancelot.SearchRequest(LEAK, 5, "auto")).ran == "vector"
        )


@pytest.mark.parametrize("foreign", [len(TEXTS), len(TEXTS) // 2], ids=["all", "half"])
def test_vectors_of_another_model_are_never_compared(
    tmp_path: Path, model: lancelot.LocalEmbedder, search: Callable[..., lancelot.Page], foreign: int
) -> None:
    vectors = [turned(vector) if at >= len(TEXTS) - foreign else vector for at, vector in enumerate(model.embed(TEXTS))]
    folder = write(tmp_path, vectors)
    for kind, ran in {"auto": "text", "vector": "text", "hybrid": "fts"}.items():
        page = search(folder, "boiler seal", kind)
        assert (page.ran, page.hits[0].id) == (ran, 0)
        told = "rows that were tried fit" if foreign < len(TEXTS) else "bge-small-en-v1.5"
        assert told in page.notes[0]


@pytest.mark.parametrize("foreign", [0, len(TEXTS) // 2])
@pytest.mark.parametrize("named", [0, len(TEXTS) // 2, len(TEXTS)])
def test_a_table_of_our_own_fits_whichever_rows_were_embedded_below_their_names(
    tmp_path: Path, model: lancelot.LocalEmbedder, search: Callable[..., lancelot.Page], named: int, foreign: int
) -> None:
    rows = [
        {"file_name": f"{at} {'annual report ' * 9}.pdf", "title": "Guide > Install > " * 9, "text": text}
        for at, text in enumerate(TEXTS)
    ]
    vectors = model.embed(
        [lancelot.embedded_text(row["text"], row) if at < named else row["text"] for at, row in enumerate(rows)]
    )
    columns = {name: pa.array([row[name] for row in rows]) for name in rows[0]}
    columns["vector"] = pa.array(
        [*map(turned, vectors[:foreign]), *vectors[foreign:]], pa.list_(pa.float32(), LOCAL_LENGTH)
    )
    table = pa.table(columns).replace_schema_metadata({lancelot.OWN_METADATA: b"{}"})
    lancedb.connect(tmp_path).create_table("documents", table)
    assert search(tmp_path, "boiler seal").ran == ("text" if foreign else "vector")


def test_a_table_of_the_test_embedder_is_searched_by_words(make_searcher: Make) -> None:
    searcher = make_searcher(LANCEDB_PATH=TESTS / "databases" / "langchain", **ON)
    page = searcher.search(lancelot.SearchRequest("release", 5, "auto"))
    assert page.ran == "text"
    assert f"{LOCAL_MODEL} did not make the vectors" in page.notes[0]


def test_pages_after_the_first_are_of_the_same_search(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make
) -> None:
    searcher = make_searcher(LANCEDB_PATH=write(tmp_path, list(map(turned, model.embed(TEXTS)))), **ON)
    request = lancelot.SearchRequest("the", 3, "auto")
    pages = [searcher.search(replace(request, offset=offset)) for offset in (0, 3)]
    assert [page.ran for page in pages] == ["text", "text"]


def test_the_match_is_proven_anew_for_each_version(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make
) -> None:
    searcher = make_searcher(LANCEDB_PATH=write(tmp_path, model.embed(TEXTS)), **ON)
    request = lancelot.SearchRequest("boiler seal", 5, "auto")
    assert searcher.search(request).ran == "vector"
    write(tmp_path, list(map(turned, model.embed(TEXTS))))
    assert searcher.search(request).ran == "text"


def test_texts_in_another_language_are_searched_by_words_unless_asked(
    tmp_path: Path, model: lancelot.LocalEmbedder, search: Callable[..., lancelot.Page]
) -> None:
    german = ["Die Rechnung ist innerhalb von dreißig Tagen zu zahlen.", "Der Kessel ist undicht und wird ersetzt."] * 6
    folder = write(tmp_path, model.embed(german), german)
    assert search(folder, "Kessel undicht").ran == "text"
    assert search(folder, "Kessel undicht", "hybrid").ran == "fts"
    assert "knows English" in search(folder, "Kessel undicht", "hybrid").notes[0]
    assert search(folder, "Kessel undicht", "vector").ran == "vector"
    assert search(folder, "when does the bill have to be paid", "hybrid").ran == "hybrid"


def test_metadata_that_llamaindex_embeds_with_a_text_do_not_hide_the_match(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make
) -> None:
    vectors = model.embed([f"file_path: /notes/{at}.md\nauthor: A. Writer\n\n{text}" for at, text in enumerate(TEXTS)])
    nodes = [
        {
            "metadata": {"file_path": f"/notes/{at}.md", "author": "A. Writer", "size": at},
            "excluded_embed_metadata_keys": ["size"],
        }
        for at in range(len(TEXTS))
    ]
    columns = {
        "id": range(len(TEXTS)),
        "text": TEXTS,
        "metadata": [{"author": "A. Writer", "_node_content": json.dumps(node)} for node in nodes],
        "vector": pa.array(vectors, pa.list_(pa.float32(), LOCAL_LENGTH)),
    }
    lancedb.connect(tmp_path).create_table("vectors", pa.table(columns))
    assert make_searcher(LANCEDB_PATH=tmp_path, **ON).search(lancelot.SearchRequest(LEAK, 5, "auto")).ran == "vector"


def test_an_endpoint_comes_first_where_its_length_fits(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make, embedding_server: Callable[..., str]
) -> None:
    folder = write(tmp_path, model.embed(TEXTS))
    served = make_searcher(LANCEDB_PATH=folder, OPENAI_BASE_URL=embedding_server(), **ON)
    assert served.search(lancelot.SearchRequest(LEAK, 5, "vector")).model == served.settings.embedding_model
    longer = make_searcher(LANCEDB_PATH=folder, OPENAI_BASE_URL=embedding_server("--dimensions", "16"), **ON)
    assert longer.search(lancelot.SearchRequest(LEAK, 5, "vector")).model == LOCAL_MODEL
    named = make_searcher(LANCEDB_PATH=folder, OPENAI_BASE_URL="http://127.0.0.1:9/v1", EMBEDDING_MODEL="local", **ON)
    assert named.search(lancelot.SearchRequest(LEAK, 5, "vector")).model == LOCAL_MODEL
    keyed = make_searcher(LANCEDB_PATH=folder, OPENAI_API_KEY="sk-none", OPENAI_BASE_URL="", **ON)
    assert keyed.search(lancelot.SearchRequest(LEAK, 5, "vector")).model == LOCAL_MODEL


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_model_is_one_sentence_and_words_still_find(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder = write(tmp_path / "db", model.embed(TEXTS))
    file, tokens = lancelot.local_files()
    content = bytearray(file.read_bytes()[: 1000 if damage == "cut" else None])
    content[500] ^= 1
    broken = tmp_path / file.name
    broken.write_bytes(content)
    monkeypatch.setattr(lancelot, "local_files", lambda: [broken, tokens])
    searcher = make_searcher(LANCEDB_PATH=folder, **ON)
    for _ in range(2):
        page = searcher.search(lancelot.SearchRequest("boiler seal", 5, "auto"))
        assert (page.ran, page.hits[0].id) == ("text", 0)
        assert "model.onnx is damaged" in page.notes[0]
    assert "model.onnx is damaged" in searcher.status().local


def test_without_its_packages_everything_is_as_before(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, model.embed(TEXTS))
    monkeypatch.setattr(lancelot, "local_files", list)
    searcher = make_searcher(LANCEDB_PATH=folder, **ON)
    page = searcher.search(lancelot.SearchRequest("boiler seal", 5, "auto"))
    assert (page.ran, page.notes) == ("text", ())
    assert searcher.status().local == "The local model is no part of this installation."


def test_the_status_names_the_model_of_each_table(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make
) -> None:
    write(tmp_path, model.embed(TEXTS), name="ours")
    write(tmp_path, list(map(turned, model.embed(TEXTS))), name="foreign")
    status = json.loads(lancelot.status_json(make_searcher(LANCEDB_PATH=tmp_path, **ON).status(), verbose=False))
    tables = {table["name"]: table for table in status["tables"]}
    assert tables["ours"]["embeddingModel"] == LOCAL_MODEL
    assert tables["ours"]["searchTypes"][0] == "hybrid"
    assert "embeddingModel" not in tables["foreign"]
    assert "did not make" in tables["foreign"]["note"]
    assert tables["foreign"]["searchTypes"][0] == "fts"
    assert status["embeddings"]["available"] is True


def sampled(language: str) -> list[dict[str, Any]]:
    lines = (TESTS / "retrieval" / f"xquad-{language}.jsonl").read_text(encoding="utf-8").splitlines()
    return list(map(json.loads, lines))


def test_english_is_told_from_other_languages_by_texts_and_by_whole_questions(model: lancelot.LocalEmbedder) -> None:
    known = {}
    for language in ("en", "de", "zh", "th"):
        rows = sampled(language)
        known[language] = model.knows_texts(row["text"] for row in rows[:32])
        queries = [query for row in rows for query in row["questions"]]
        share = sum(map(model.knows_query, queries)) / len(queries)
        assert share > 0.8 if language == "en" else share < 0.02, language
    assert known == {"en": True, "de": False, "zh": False, "th": False}
    assert model.knows_texts(["def merge(left, right):\n    return sorted(left + right)", "class Reader: pass"])
    assert model.knows_texts([])
    assert not model.knows_query("pressure valve")


def test_a_query_of_arithmetic_is_embedded_by_the_model_too(
    tmp_path: Path, model: lancelot.LocalEmbedder, search: Callable[..., lancelot.Page]
) -> None:
    page = search(write(tmp_path, model.embed(TEXTS)), "heater +leak -snow", "vector")
    assert page.reading == Reading("heater", ("leak",), ("snow",))
    assert page.model == LOCAL_MODEL


def test_a_server_loads_it_unasked_once_a_table_fits(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot, "MODEL_AFTER", 0.0)
    fitting = write(tmp_path, model.embed(TEXTS))
    for folder, is_loaded in ((fitting, True), (TESTS / "databases" / "no-vector", False)):
        searcher = make_searcher(LANCEDB_PATH=folder, **ON)
        lancelot.warm_up(searcher)
        assert ("_embed_text" in vars(searcher.local)) is is_loaded


def test_tables_that_there_was_no_time_to_compare_are_searched_by_words_until_they_are(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write(tmp_path, model.embed(TEXTS), name=name)
    searcher = make_searcher(LANCEDB_PATH=tmp_path, **ON)
    request = lancelot.SearchRequest("boiler seal", 5, "auto")
    with monkeypatch.context() as patch:
        patch.setattr(lancelot, "PROOF_SECONDS", -1.0)
        assert searcher.search(request).ran == "text"
        assert "ask again" in searcher.search(request).notes[0]
    page = searcher.search(request)
    assert (page.ran, [hit.table for hit in page.hits[:2]]) == ("vector", ["a", "b"])


def test_many_tables_are_compared_with_few_rows_each(
    tmp_path: Path, model: lancelot.LocalEmbedder, make_searcher: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(10):
        write(tmp_path, model.embed(TEXTS), name=f"t{at}")
    searcher = make_searcher(LANCEDB_PATH=tmp_path, **ON)
    sent: list[str] = []
    embed = lancelot.LocalEmbedder.request_vectors
    monkeypatch.setattr(
        lancelot.LocalEmbedder,
        "request_vectors",
        lambda self, texts, name, **how: sent.extend(texts) or embed(self, texts, name, **how),
    )
    assert searcher.search(lancelot.SearchRequest(LEAK, 5, "auto")).ran == "vector"
    assert len(sent) <= 10 * 3 + 1


def test_hybrid_without_vectors_orders_the_first_hits_by_meaning_too(
    make_searcher: Make, make_table: Callable[..., Path]
) -> None:
    # Both hold the words; the second is about them, the first is longer ago in rank.
    texts = [
        "seal water boiler: words of a list of words about nothing",
        "water drips from the boiler since its seal broke",
    ]
    folder = make_table({"id": range(62), "text": [*texts, *[f"a boiler of type {at}" for at in range(60)]]})
    searcher = make_searcher(LANCEDB_PATH=folder, **ON)
    request = lancelot.SearchRequest("why does the boiler lose water at its seal", 7, "hybrid")
    page = searcher.search(request)
    words = searcher.search(replace(request, search_type="fts", limit=200))
    assert (page.ran, page.model, page.hits[0].text) == ("hybrid", LOCAL_MODEL, texts[1])
    assert page.total == words.total
    pages = [searcher.search(replace(request, offset=offset)).hits for offset in range(0, words.total or 0, 7)]
    rows = [hit.row for hits in pages for hit in hits]
    assert sorted(rows) == sorted(hit.row for hit in words.hits)
    assert rows[30:] == [hit.row for hit in words.hits[30:]]
    scores = [hit.score for hits in pages for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert searcher.search(replace(request, search_type="auto")).ran == "text"
    assert searcher.search_question(request.query, limit=5).ran == "fts"


def test_a_query_in_another_language_over_such_texts_is_not_reordered(
    make_searcher: Make, make_table: Callable[..., Path]
) -> None:
    folder = make_table({"text": ["Der Kessel ist undicht und wird bald ersetzt.", "Die Rechnung ist bezahlt."] * 8})
    searcher = make_searcher(LANCEDB_PATH=folder, **ON)
    assert searcher.search(lancelot.SearchRequest("ist der Kessel undicht", 5, "hybrid")).ran == "fts"
    assert make_searcher(LANCEDB_PATH=folder).search(lancelot.SearchRequest("why is it", 5, "hybrid")).ran == "fts"
