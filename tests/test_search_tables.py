"""Searches over several tables of a folder: what they find, in which order, and what they say of the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from conftest import DATABASES
from hypothesis import given
from hypothesis import strategies as st
from standins import FixedEmbedder

import lancelot
from lancelot import LancelotError, Ranking, SearchRequest

Make = Callable[..., lancelot.Searcher]
PEPS = {"LANCEDB_PATH": DATABASES / "anythingllm"}
TABLES = ("python-peps", "world-notes")


def page_of(searcher: lancelot.Searcher, query: str, kind: Any = "auto", **options: Any) -> lancelot.Page:
    return searcher.search(SearchRequest(query, options.pop("limit", 20), kind, **options))


def pages_of(searcher: lancelot.Searcher, request: SearchRequest) -> Iterator[lancelot.Page]:
    while True:
        page = searcher.search(request)
        yield page
        if page.next_offset is None:
            return
        request = replace(request, offset=page.next_offset)


def names_of(hits: Any) -> list[tuple[str, Any]]:
    return [(hit.table, hit.id) for hit in hits]


@pytest.mark.parametrize("kind", ["text", "fts"])
@pytest.mark.parametrize("table", [None, "*", "python-peps, world-notes"])
def test_a_search_without_a_table_is_over_all_of_them(make_searcher: Make, kind: Any, table: str | None) -> None:
    searcher = make_searcher(**PEPS)
    page = page_of(searcher, "python release", kind, table=table, limit=100)
    alone = [page_of(searcher, "python release", kind, table=name, limit=100) for name in TABLES]
    assert page.is_joined
    assert page.total == sum(one.total or 0 for one in alone)
    assert {hit.table for hit in page.hits} == set(TABLES)
    scores = [hit.score for hit in page.hits]
    assert scores == sorted(scores, reverse=True)
    for name, one in zip(TABLES, alone, strict=True):
        shown = [hit.id for hit in page.hits if hit.table == name]
        assert shown == [hit.id for hit in one.hits][: len(shown)]


@pytest.mark.parametrize("size", [7, 20, 200])
@pytest.mark.parametrize("kind", ["text", "fts", "filter"])
def test_pages_over_all_tables_give_every_row_once(make_searcher: Make, size: int, kind: Any) -> None:
    searcher = make_searcher(**PEPS)
    by_filter = {"conditions": {"wordCount": {"gte": 0}}} if kind == "filter" else {}
    request = SearchRequest("" if by_filter else "the python", size, "text" if by_filter else kind, **by_filter)
    pages = list(pages_of(searcher, request))
    rows = Counter(name for page in pages for name in names_of(page.hits))
    assert set(rows.values()) == {1}
    assert {page.total for page in pages} == {len(rows)}
    alone = [searcher.search(replace(request, table=name, limit=200)) for name in TABLES]
    assert len(rows) == sum(one.total or 0 for one in alone)


def test_the_setting_means_one_table(make_searcher: Make) -> None:
    searcher = make_searcher(**PEPS, LANCEDB_TABLE="world-notes")
    assert (page_of(searcher, "python").table, page_of(searcher, "python").is_joined) == ("world-notes", False)
    assert page_of(searcher, "python", table="*").is_joined


def test_a_table_that_is_not_there_is_told_with_those_there_are(make_searcher: Make) -> None:
    with pytest.raises(LancelotError, match=r'There is no table "python-pep"\. Did you mean python-peps\?'):
        page_of(make_searcher(**PEPS), "python", table="python-pep,world-notes")


def test_a_table_that_cannot_be_searched_is_told_and_stops_nothing(
    make_searcher: Make, folder_copy: Callable[[str], Path]
) -> None:
    folder = folder_copy("anythingllm")
    (folder / "broken.lance").mkdir()
    lancedb.connect(folder).create_table("numbers", pa.table({"number": [1, 2]}))
    page = page_of(make_searcher(LANCEDB_PATH=folder), "python")
    assert {hit.table for hit in page.hits} == set(TABLES)
    told = " ".join(page.notes)
    assert "The table broken was not searched: " in told
    assert "The table numbers was not searched: " in told
    assert make_searcher(LANCEDB_PATH=folder).files(limit=50, offset=0).total > 0


def test_hits_and_files_name_their_tables(make_searcher: Make) -> None:
    searcher = make_searcher(**PEPS)
    answer = json.loads(lancelot.search_json(page_of(searcher, "python")))
    assert {hit["table"] for hit in answer["hits"]} == set(TABLES)
    assert answer["table"] == "*"
    files = [json.loads(lancelot.files_json(searcher.files(limit=30, offset=offset)))["files"] for offset in (0, 30)]
    alone = [searcher.files(limit=200, offset=0, table=name) for name in TABLES]
    listed = [(file["table"], file["source"]) for page in files for file in page]
    assert listed == [(one.table, file.source) for one in alone for file in one.files]
    lines = lancelot.search_lines(page_of(searcher, "python"))
    assert lines.startswith("text search of all tables: 20 hits")
    assert "table python-peps" in lines
    assert "# Context from all tables (" in lancelot.context_block(
        searcher.search_question("python", limit=5), budget=900
    )
    assert "table world-notes" in lancelot.files_lines(searcher.files(limit=200, offset=0))
    one = json.loads(lancelot.search_json(page_of(searcher, "python", table="python-peps")))
    assert all("table" not in hit for hit in one["hits"])


def test_a_chunk_is_read_without_naming_its_table_unless_two_have_its_id(make_searcher: Make, tmp_path: Path) -> None:
    searcher = make_searcher(**PEPS)
    for hit in page_of(searcher, "python").hits[:5]:
        read = searcher.read(str(hit.id))
        assert (read.table, read.chunk.text) == (hit.table, hit.text)
    database = lancedb.connect(tmp_path)
    for name in ("one", "two"):
        database.create_table(name, pa.table({"id": ["same", name], "text": [name, f"more of {name}"]}))
    searcher = make_searcher(LANCEDB_PATH=tmp_path)
    assert searcher.read("two").table == "two"
    with pytest.raises(LancelotError, match="Several tables have a chunk same: one, two"):
        searcher.read("same")


def test_an_overview_is_of_all_tables(make_searcher: Make) -> None:
    page = make_searcher(**PEPS).overview(limit=100)
    assert {hit.table for hit in page.hits} == set(TABLES)


def vectors_in(folder: Path, tables: dict[str, list[tuple[str, list[float] | None]]]) -> Path:
    for name, rows in tables.items():
        columns: dict[str, Any] = {"id": [f"{name}{at}" for at in range(len(rows))], "text": [text for text, _ in rows]}
        if rows[0][1]:
            columns["vector"] = pa.array([vector for _, vector in rows], pa.list_(pa.float32(), len(rows[0][1])))
        lancedb.connect(folder).create_table(name, pa.table(columns))
    return folder


@pytest.fixture
def meaning(make_settings: Callable[..., lancelot.Settings]) -> Callable[[Path], lancelot.Searcher]:
    def make(folder: Path) -> lancelot.Searcher:
        settings = make_settings(LANCEDB_PATH=folder)
        return lancelot.Searcher(settings, embedder=FixedEmbedder(settings))

    return make


NEAR_AND_FAR = {"a": [("zebra", [1.0, 0.1]), ("lion", [0.0, 1.0])], "b": [("horse", [1.0, 0.0]), ("ant", [-1.0, 0.0])]}


def test_distances_of_one_model_are_compared(tmp_path: Path, meaning: Callable[[Path], lancelot.Searcher]) -> None:
    page = page_of(meaning(vectors_in(tmp_path, NEAR_AND_FAR)), "animal")
    assert page.ran == "vector"
    assert [hit.text for hit in page.hits] == ["horse", "zebra", "lion", "ant"]


def test_a_table_without_vectors_is_searched_by_words_beside_the_others(
    tmp_path: Path, meaning: Callable[[Path], lancelot.Searcher]
) -> None:
    searcher = meaning(vectors_in(tmp_path, {**NEAR_AND_FAR, "c": [("a horse and a zebra", None)]}))
    page = page_of(searcher, "zebra")
    assert page.ran == "hybrid"
    assert {hit.table for hit in page.hits} == {"a", "b", "c"}
    assert "Searched by words alone: c, since" in " ".join(page.notes)
    page = page_of(searcher, "zebra", "vector")
    assert (page.ran, {hit.table for hit in page.hits}) == ("vector", {"a", "b"})
    assert "Not searched: c, since" in " ".join(page.notes)


def test_words_that_no_table_holds_are_told_and_those_of_one_are_not(tmp_path: Path, make_searcher: Make) -> None:
    searcher = make_searcher(LANCEDB_PATH=vectors_in(tmp_path, NEAR_AND_FAR))
    for kind in ("text", "fts"):
        assert page_of(searcher, "zebra horse unicorn", kind).notes == ("These words occur in no chunk: unicorn.",)


@given(st.lists(st.lists(st.integers(0, 5)), min_size=1, max_size=4), st.booleans())
def test_a_joined_ranking_holds_each_row_once_and_keeps_the_order_of_each_table(
    scores: list[list[int]],
    is_distance: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    ordered = [sorted(own, reverse=not is_distance) for own in scores]
    rankings = {at: Ranking(tuple(range(len(own))), tuple(map(float, own)), len(own)) for at, own in enumerate(ordered)}
    joined = lancelot.join(rankings, is_distance=is_distance)
    assert joined.total == len(joined.rows) == len(set(joined.rows)) == sum(map(len, scores))
    assert list(joined.scores) == sorted(joined.scores, reverse=not is_distance)
    for at, own in enumerate(ordered):
        assert [row & 0xFFFF for row in joined.rows if row >> lancelot.TABLE_BITS == at] == list(range(len(own)))


def test_the_newest_of_all_tables_comes_first(tmp_path: Path, make_searcher: Make) -> None:
    database = lancedb.connect(tmp_path)
    for name, years in {"a": [2001, 2005, None], "b": [2003, 2005]}.items():
        database.create_table(name, pa.table({"text": [f"of {year}" for year in years], "year": years}))
    searcher = make_searcher(LANCEDB_PATH=tmp_path)
    page = page_of(searcher, "", sort={"year": True})
    assert [hit.text for hit in page.hits] == ["of 2005", "of 2005", "of 2003", "of 2001", "of None"]
    database.create_table("c", pa.table({"text": ["other"], "year": ["2004"]}))
    with pytest.raises(LancelotError, match="different types in year"):
        page_of(searcher, "", sort={"year": True})


@pytest.fixture
def dated(make_table: Callable[..., Path]) -> Path:
    """Two tables of documents with dates as text, one of them with a source column that is empty for some rows."""
    folder = make_table(
        {
            "text": [f"words {number}" for number in range(9)],
            "chunkSource": ["/a.md"] * 4 + [""] * 3 + ["/c.md"] * 2,
            "url": ["other"] * 4 + ["file:///b.md"] * 3 + [None] * 2,
            "published": ["8/2/2026"] * 4 + ["8/10/2026"] * 5,
        },
        name="one",
    )
    make_table({"text": ["words", "more"], "source": ["/d.md", "/d.md"], "published": ["7/1/2026"] * 2}, name="two")
    return folder


def test_documents_are_listed_with_the_sums_of_each_table_the_newest_first_if_asked(
    dated: Path, make_searcher: Make
) -> None:
    searcher = make_searcher(LANCEDB_PATH=dated)
    answer = json.loads(lancelot.files_json(searcher.files(limit=None, offset=0, sort="-date")))
    assert [file["source"] for file in answer["files"]] == ["/c.md", "file:///b.md", "/a.md", "/d.md"]
    assert answer["tables"] == {"one": {"documents": 3, "chunks": 9}, "two": {"documents": 1, "chunks": 2}}
    assert (answer["total"], answer["chunks"], "nextOffset" in answer) == (4, 11, False)


def test_a_list_without_a_limit_is_cut_to_a_short_answer_and_goes_on(
    make_table: Callable[..., Path], make_searcher: Make
) -> None:
    sources = [f"/{number:03} {'x' * 90}.md" for number in range(300)]
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": ["a"] * 300, "source": sources}))
    listed, offset = [], 0
    while offset is not None:
        text = lancelot.files_json(searcher.files(limit=None, offset=offset))
        assert len(text) < 8_000
        answer = json.loads(text)
        listed += [file["source"] for file in answer["files"]]
        offset = answer.get("nextOffset")
    assert listed == sources


@pytest.mark.parametrize("limit", [1, 2, 20])
def test_a_sorted_listing_has_each_document_once_and_its_pages_lose_no_chunk(
    dated: Path, make_searcher: Make, limit: int
) -> None:
    searcher = make_searcher(LANCEDB_PATH=dated)
    hits, offset = [], 0
    while offset is not None:
        request = lancelot.SearchRequest("", limit, "auto", offset=offset, sort={"published": True})
        answer = json.loads(lancelot.search_json(searcher.search(request)))
        assert len(answer["hits"]) <= limit
        assert answer["total"] == 11
        hits += answer["hits"]
        offset = answer.get("nextOffset")
    assert [(hit["source"], hit.get("chunks", 1)) for hit in hits] == [
        ("file:///b.md", 3),
        ("/c.md", 2),
        ("/a.md", 4),
        ("/d.md", 2),
    ]
    by_text = lancelot.SearchRequest("", 20, "auto", sort={"text": False})
    assert len(searcher.search(by_text).hits) == 11


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("/a.md", [0, 1, 2, 3]),
        ("file:///b.md", [4, 5, 6]),
        (["/c.md", "file:///b.md"], [4, 5, 6, 7, 8]),
        ({"contains": "B.md"}, [4, 5, 6]),
        ({"ne": "/a.md"}, [4, 5, 6, 7, 8]),
        ({"exists": True}, list(range(9))),
        (None, []),
    ],
    ids=str,
)
def test_a_filter_on_source_means_what_hits_call_so(
    dated: Path, make_searcher: Make, condition: Any, rows: list[int]
) -> None:
    request = lancelot.SearchRequest("", 20, "auto", table="one", conditions={"source": condition})
    assert [hit.row for hit in make_searcher(LANCEDB_PATH=dated).search(request).hits] == rows


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ({"source": "/z.md"}, 'No row has {"source":"/z.md"}:'),
        ({"source": "/a.md", "published": "8/9/2026"}, 'No row has {"published":"8/9/2026"}:'),
        ({"source": "/a.md", "published": "8/10/2026"}, "No row meets all of the filter's conditions:"),
    ],
    ids=str,
)
def test_a_filter_that_no_row_meets_is_named_in_place_of_the_words(
    dated: Path, make_searcher: Make, conditions: dict[str, Any], told: str
) -> None:
    searcher = make_searcher(LANCEDB_PATH=dated)
    for query in ("words", ""):
        request = lancelot.SearchRequest(query, 20, "text", table="one", conditions=conditions)
        assert json.loads(lancelot.search_json(searcher.search(request)))["hint"].startswith(told)
    block = lancelot.context_block(searcher.search_question("words", limit=5, conditions=conditions), budget=2_000)
    assert told in block
    met = lancelot.SearchRequest("nowhere", 20, "text", table="one", conditions={"source": "/a.md"})
    assert "No row that meets the filter holds" in lancelot.search_json(searcher.search(met))
