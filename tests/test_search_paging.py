"""Pages: stable, without gaps, with true totals, for every search; one chunk whole; the list of sources."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import DATABASES
from hypothesis import given, settings
from hypothesis import strategies as st
from standins import FixedEmbedder

import lancelot

ROWS = 3000
DEPTHS = {"text": ROWS // 2, "fts": ROWS // 2, "vector": 1000}


def index_text(table: Any, **options: Any) -> None:
    from lancedb.index import FTS

    table.create_index("text", config=FTS(base_tokenizer="icu/split", remove_stop_words=False, **options))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thousands of rows with ties everywhere: half of them match, all with the same score and few different vectors."""
    import lancedb
    import pyarrow as pa

    chance = random.Random(7)  # noqa: S311 - the same rows every time
    folder = tmp_path_factory.mktemp("many")
    texts = [f"the same needle {n:04}" if n % 2 else f"hay {n:04}" for n in range(ROWS)]
    vectors = [[1.0, float(chance.randint(0, 2))] for _ in range(ROWS)]
    columns = {
        "id": [f"r{n}" for n in range(ROWS)],
        "text": texts,
        "number": list(range(ROWS)),
        "vector": pa.array(vectors, pa.list_(pa.float32(), 2)),
    }
    database = lancedb.connect(folder)
    database.create_table("plain", pa.table(columns))
    indexed = database.create_table("indexed", pa.table(columns))
    index_text(indexed)
    return folder


@pytest.fixture
def searcher(many: Path, make_settings: Callable[..., lancelot.Settings]) -> lancelot.Searcher:
    settings = make_settings(LANCEDB_PATH=many)
    return lancelot.Searcher(settings, embedder=FixedEmbedder(settings))


def every_page(searcher: lancelot.Searcher, limit: int, **wanted: Any) -> list[lancelot.Page]:
    pages, offset = [], 0
    while offset is not None:
        page = searcher.search(lancelot.SearchRequest("needle", limit, offset=offset, **wanted))
        pages.append(page)
        following = page.next_offset
        assert following is None or following > offset
        offset = following  # type: ignore[assignment]
    return pages


@pytest.mark.parametrize("table", ["plain", "indexed"])
@pytest.mark.parametrize("search_type", ["text", "fts", "vector", "hybrid"])
@pytest.mark.parametrize("limit", [7, 20, 200])
def test_pages_give_each_row_once_in_one_order(
    searcher: lancelot.Searcher, table: str, search_type: Any, limit: int
) -> None:
    pages = every_page(searcher, limit, search_type=search_type, table=table)
    ids = [hit.id for page in pages for hit in page.hits]
    assert len(set(ids)) == len(ids)
    assert all(len(page.hits) == limit for page in pages[:-1])
    again = every_page(searcher, 200, search_type=search_type, table=table)
    assert ids == [hit.id for page in again for hit in page.hits]
    if search_type == "hybrid":
        assert 100 < len(ids) <= 200
    else:
        assert len(ids) == DEPTHS[search_type]
    if search_type in ("text", "fts"):
        assert {page.total for page in pages} == {ROWS // 2}
        assert ids == [f"r{n}" for n in range(ROWS) if n % 2]


def test_a_filter_without_a_query_gives_every_row_that_meets_it_in_pages(searcher: lancelot.Searcher) -> None:
    ids: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        request = lancelot.SearchRequest(
            " ", 200, "hybrid", offset=offset, table="indexed", conditions={"number": {"gte": 1000}}
        )
        page = searcher.search(request)
        assert (page.ran, page.total) == ("filter", ROWS - 1000)
        ids += [hit.id for hit in page.hits]
        offset = page.next_offset
    assert ids == [f"r{n}" for n in range(1000, ROWS)]


@pytest.mark.parametrize("limit", [7, 20, 200])
def test_a_sorted_listing_gives_every_row_once_in_its_order(searcher: lancelot.Searcher, limit: int) -> None:
    wanted = {"search_type": "auto", "table": "plain", "sort": {"text": True, "number": True}}
    ids: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        page = searcher.search(lancelot.SearchRequest("", limit, offset=offset, **wanted))  # type: ignore[arg-type]
        assert (page.ran, page.total) == ("filter", ROWS)
        ids += [hit.id for hit in page.hits]
        offset = page.next_offset
    odd, even = ([f"r{n}" for n in range(ROWS) if n % 2 == rest] for rest in (1, 0))
    assert ids == [*reversed(odd), *reversed(even)]


def test_the_hits_of_a_query_are_not_sorted_but_that_is_said(searcher: lancelot.Searcher) -> None:
    with pytest.raises(lancelot.LancelotError, match="ordered by their score, not by sort") as refused:
        searcher.search(lancelot.SearchRequest("needle", 5, "text", table="plain", sort={"number": True}))
    assert "leave query blank" in refused.value.remedy


def test_a_filter_alone_also_gives_rows_without_text_and_says_where_none_meets_it(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    metadata = [json.dumps({"kind": kind}) for kind in ("a", "b", "a")]
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": ["one", "two", None], "metadata": metadata}))

    def answer(kind: str) -> Any:
        request = lancelot.SearchRequest("", 5, "auto", conditions={"metadata.kind": kind})
        return json.loads(lancelot.search_json(searcher.search(request)))

    assert (answer("a")["total"], [hit["id"] for hit in answer("a")["hits"]]) == (2, ["row:0", "row:2"])
    assert (answer("c")["total"], answer("c")["hint"]) == (
        0,
        'No row has {"metadata.kind":"c"}: lancedb_values counts the values that a column has.',
    )


@pytest.mark.parametrize(("search_type", "said"), [("text", "1500"), ("fts", "1500"), ("vector", "1000")])
def test_past_the_last_page_a_sentence_names_the_total(
    searcher: lancelot.Searcher, search_type: Any, said: str
) -> None:
    page = searcher.search(lancelot.SearchRequest("needle", 20, search_type, table="indexed", offset=5000))
    answer = json.loads(lancelot.search_json(page))
    assert answer["hits"] == []
    assert "nextOffset" not in answer
    assert said in answer["hint"]


def test_a_count_that_stops_says_so(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    import lancedb

    folder = make_table({"text": [f"needle {n:05}" for n in range(10_500)]})
    index_text(lancedb.connect(folder).open_table("documents"))
    searcher = make_searcher(LANCEDB_PATH=folder)
    page = searcher.search(lancelot.SearchRequest("needle", 200, "fts", offset=9_900))
    answer = json.loads(lancelot.search_json(page))
    assert (answer["total"], answer["totalIsCapped"], len(answer["hits"])) == (10_000, True, 100)
    assert [hit["id"] for hit in answer["hits"]] == [f"row:{n}" for n in range(9_900, 10_000)]
    assert "10000+" in lancelot.search_lines(page)
    assert searcher.search(lancelot.SearchRequest("needle", 1, "text")).total == 10_500


SECOND = ["r11", "r13", "r15", "r17", "r19"]


def test_a_later_page_never_falls_back_to_another_search(
    many: Path, make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    hybrid = lancelot.SearchRequest("needle", 5, "hybrid", table="plain")
    for address, is_lasting in (("", True), ("http://127.0.0.1:9/v1", False)):
        searcher = make_searcher(LANCEDB_PATH=many, OPENAI_BASE_URL=address)
        first = searcher.search(hybrid)
        assert (first.ran, first.next_offset) == ("fts", 5)
        assert ("No API key" in first.notes[0]) is is_lasting
        if is_lasting:
            assert [hit.id for hit in searcher.search(replace(hybrid, offset=5)).hits] == SECOND
        else:
            with pytest.raises(lancelot.LancelotError, match='searchType "fts"'):
                searcher.search(replace(hybrid, offset=5))
        assert [hit.id for hit in searcher.search(replace(hybrid, search_type="fts", offset=5)).hits] == SECOND


def test_an_answer_cut_to_its_cap_goes_on_where_it_stopped(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    wide = {f"column {n}": ["設計図" * 20_000] * 200 for n in range(3)}
    folder = make_table(
        {
            "text": [f"needle {n} " + "図" * 60_000 for n in range(200)],
            "title": ["題" * 400] * 200,
            "source": ["源" * 900] * 200,
            **wide,
        }
    )
    searcher = make_searcher(LANCEDB_PATH=folder)
    text = lancelot.search_json(searcher.search(lancelot.SearchRequest("needle", 200, "text")))
    answer = json.loads(text)
    assert len(text.encode()) < 100_000
    assert answer["shown"] < 200
    assert answer["nextOffset"] == answer["shown"] == len(answer["hits"])
    assert "to keep the answer short" in answer["note"]


CONTENTS = "Contents\n1. A needle ..... 1\n2. Hay ..... 2\n3. Straw ..... 3"
TEXTS = st.lists(
    st.sampled_from(["needle", "a needle", " needle\n", "needle in hay", "needle hay", "hay", CONTENTS]), min_size=1
)
REPEATED = {"limit": st.integers(1, 9), "search_type": st.sampled_from(["text", "fts", "hybrid", "vector"])}


@given(
    texts=TEXTS, sources=st.lists(st.sampled_from(["a.md", "b.md", "c.md", ""]), min_size=99, max_size=99), **REPEATED
)
@settings(max_examples=40, deadline=None)
def test_rows_of_one_text_in_several_sources_are_one_hit_of_a_page_that_names_the_others(
    texts: list[str], sources: list[str], limit: int, search_type: Any
) -> None:
    import lancedb
    import pyarrow as pa

    vectors = pa.array([[1.0, float(len(text))] for text in texts], pa.list_(pa.float32(), 2))
    columns = {"text": texts, "source": sources[: len(texts)], "vector": vectors}
    with tempfile.TemporaryDirectory() as folder:
        lancedb.connect(folder).create_table("documents", pa.table(columns))
        configured = lancelot.load_settings({"LANCEDB_PATH": folder}, Path(folder, "none"))
        pages = every_page(
            lancelot.Searcher(configured, embedder=FixedEmbedder(configured)), limit, search_type=search_type
        )
    places: list[int] = []
    for page in pages:
        assert len(page.hits) <= limit
        chunks = [(row.text.strip(), row.source) for hit in page.hits for row in (hit, *hit.others)]
        most_of_a_source = {
            text: max(n for (t, s), n in Counter(chunks).items() if s and t == text) for text, s in chunks if s
        }
        assert Counter(hit.text.strip() for hit in page.hits if hit.source) == most_of_a_source
        ends = [hit.text == CONTENTS for hit in page.hits]
        assert ends == sorted(ends)
        shown = json.loads(lancelot.search_json(page))["hits"]
        for hit, given_hit in zip(page.hits, shown, strict=True):
            assert {other.text.strip() for other in hit.others} <= {hit.text.strip()}
            elsewhere = {other.source for other in hit.others}
            assert len(elsewhere - {hit.source, ""}) == len(hit.others)
            named = given_hit.get("alsoIn", [])
            assert elsewhere <= {*named} or named[-1].startswith("and ")
            places += [hit.place, *(other.place for other in hit.others)]
    assert sorted(places) == list(range(pages[0].ranked))


def test_a_cut_answer_names_nothing_that_comes_after_it() -> None:
    def hit(text: str, place: int, *others: lancelot.Hit) -> lancelot.Hit:
        source = f"{place}.md"
        return lancelot.Hit(source, 1.0, "title", source, text, {}, place=place, others=others)

    many = [hit(f"needle {n} " + "図" * 200, n) for n in range(1, 200)]
    first = hit("needle", 0, hit("needle", 200), hit("needle", 201))
    request = lancelot.SearchRequest("needle", 200, "text")
    page = lancelot.Page(request, "t", "text", (first, *many), 202, lancelot.read_terms("needle"), ranked=202)
    whole = json.loads(lancelot.search_json(replace(page, hits=page.hits[:9])))
    assert whole["hits"][0]["alsoIn"] == ["200.md", "201.md"]
    wide = [replace(each, source="源" * 400 + each.source) for each in page.hits]
    cut = json.loads(lancelot.search_json(replace(page, hits=tuple(wide))))
    assert cut["nextOffset"] == cut["shown"] < 200
    assert "alsoIn" not in cut["hits"][0]


def chunks_of(make_table: Callable[..., Path], **more: Any) -> Path:
    numbers = [3, 1, 2, 0]
    columns = {
        "id": [f"c{n}" for n in numbers] + ["other", "c1"],
        "text": [f"chunk {n}" for n in numbers] + ["elsewhere", "chunk 1 again"],
        "source": ["a.md"] * 4 + ["b.txt", "c.PDF"],
    }
    return make_table(columns | more)


def test_neighbours_come_in_the_order_of_the_sources_own_index(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    searcher = make_searcher(LANCEDB_PATH=chunks_of(make_table, chunk_index=[3, 1, 2, 0, 0, 0]))
    found = json.loads(lancelot.chunk_json(searcher.read("c2", before=5, after=5)))
    assert [one["text"] for one in found["before"]] == ["chunk 0", "chunk 1"]
    assert (found["text"], found["chunk"]) == ("chunk 2", "3 of 4 of its source")
    assert [one["id"] for one in found["after"]] == ["c3"]


def test_neighbours_come_in_the_order_of_rows_without_an_index_of_chunks(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    searcher = make_searcher(LANCEDB_PATH=chunks_of(make_table))
    found = searcher.read("c2", before=1, after=1)
    assert ([hit.text for hit in found.before], [hit.text for hit in found.after]) == (["chunk 1"], ["chunk 0"])


def test_an_id_that_is_gone_or_shared_is_told(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    searcher = make_searcher(LANCEDB_PATH=chunks_of(make_table))
    shared = searcher.read("c1")
    assert shared.chunk.text == "chunk 1"
    assert shared.notes == ("2 rows share this id; this is the first of them. The others are read as row:5.",)
    assert searcher.read("row:5").chunk.text == "chunk 1 again"
    for gone in ("nosuch", "row:99", "'; --", "row:x"):
        with pytest.raises(lancelot.LancelotError, match="There is no chunk or document"):
            searcher.read(gone)
    with pytest.raises(lancelot.LancelotError, match=r"The id is blank\. Give "):
        searcher.read("")


def test_a_long_chunk_is_read_on_by_offset_to_its_end(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    whole = "".join(chr(0x4E00 + n % 500) for n in range(250_000))
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": [whole]}))
    parts, offset = [], 0
    while offset is not None:
        text = lancelot.chunk_json(searcher.read("row:0", offset=offset))
        assert len(text.encode()) < 100_000
        answer = json.loads(text)
        parts.append(answer["text"])
        offset = answer.get("nextOffset")
    assert "".join(parts) == whole


def test_the_start_of_an_id_is_enough_where_no_other_begins_so(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    ids = [
        "af2fc7d5d74af6c34e114f68985e51d8",
        "af2f77d5d74af6c34e114f68985e51d8",
        "fd1cdf69-0ce1-5db8-a383-12619bdc5580",
    ]
    ids += ["1234", "12345", "abcdef", "abcd%'_", "9999-1", "9999-11"]
    folder = make_table({"id": ids, "text": [f"chunk {number}" for number in range(len(ids))]})
    searcher = make_searcher(LANCEDB_PATH=folder)
    for start, whole in (("af2fc", ids[0]), (ids[1][:31], ids[1]), ("fd1cdf69", ids[2]), ("fd1cdf69-0ce1-", ids[2])):
        assert searcher.read(start).chunk.id == whole
    for whole in ids:
        assert searcher.read(whole).chunk.id == whole
    with pytest.raises(lancelot.LancelotError, match=f"begins with af2f: {ids[1]}, {ids[0]}. Give more"):
        searcher.read("af2f")
    # The start of what is no hash may be the id of a chunk that is gone.
    for start in ("123", "abcde", "abcd", "9999", "9999-", "af", "af2%", "AF2FC"):
        with pytest.raises(lancelot.LancelotError, match="There is no chunk or document"):
            searcher.read(start)


def test_every_hit_of_every_folder_can_be_read(
    make_searcher: Callable[..., lancelot.Searcher], expected: dict[str, Any]
) -> None:
    for folder, known in expected.items():
        searcher = make_searcher(LANCEDB_PATH=DATABASES / folder)
        for table in known["tables"]:
            for query in table["queries"]:
                for hit in searcher.search(lancelot.SearchRequest(query["query"], 3, "text", table=table["name"])).hits:
                    assert searcher.read(str(hit.id), table=table["name"]).chunk.text == hit.text


@pytest.fixture
def documents(make_table: Callable[..., Path]) -> Path:
    """Two tables with documents of overlapping chunks, with pages."""
    texts = [f"line {number}, which is one of many\n" * 9 for number in range(40)]
    chunks = [text + after[:30] for text, after in zip(texts, [*texts[1:], ""], strict=True)]
    columns = {"text": chunks, "source": ["/docs/long.md"] * 40, "page": range(1, 41)}
    folder = make_table(columns, name="one")
    sources = ["C:\\notes\\Short Note.txt", "https://example.org/docs/page/", "/other/long.md"]
    make_table({"text": ["short", "page", "another"], "source": sources}, name="two")
    return folder


def test_a_document_is_read_in_parts_that_give_back_its_text(
    documents: Path, make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    searcher = make_searcher(LANCEDB_PATH=documents)
    text, offset, places = "", 0, []
    while offset is not None:
        part = json.loads(lancelot.read_json(searcher.read("/docs/long.md", offset=offset, limit=1000)))
        assert len(part["text"]) <= 1000
        text, offset = text + part["text"], part.get("nextOffset")
        places.append(part["place"])
    assert text == "".join(f"line {number}, which is one of many\n" * 9 for number in range(40)).rstrip("\n")
    assert (places[0], places[-1], part["chunks"]) == ("page 1 to page 4", "page 37 to page 40", 40)
    past = json.loads(lancelot.read_json(searcher.read("/docs/long.md", offset=10**7)))
    assert past["hint"].startswith("The document ends before")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("C:\\notes\\Short Note.txt", "short"),
        ("short note.txt", "short"),
        ("notes/short note", None),
        ("Short Note", "short"),
        ("https://example.org/docs/page", "page"),
        ("page/", "page"),
        ("other/long.md", "another"),
        ("ong.md", None),
    ],
)
def test_a_document_is_read_by_its_source_or_the_end_of_its_path(
    documents: Path, make_searcher: Callable[..., lancelot.Searcher], name: str, text: str | None
) -> None:
    searcher = make_searcher(LANCEDB_PATH=documents)
    if text is None:
        with pytest.raises(lancelot.LancelotError, match="no chunk or document"):
            searcher.read(name)
    else:
        assert searcher.read(name).text == text
        assert text in lancelot.read_lines(searcher.read(name))


def test_a_name_of_several_documents_is_answered_with_their_sources(
    documents: Path, make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    searcher = make_searcher(LANCEDB_PATH=documents)
    with pytest.raises(
        lancelot.LancelotError, match=r"called long.md: /docs/long.md in one, /other/long.md in two\. Give"
    ):
        searcher.read("long.md")
    assert searcher.read("long.md", table="two").text == "another"


def test_sources_are_listed_with_their_chunks_and_types(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    searcher = make_searcher(LANCEDB_PATH=chunks_of(make_table, published=[f"2024-01-0{n}" for n in range(1, 7)]))
    found = searcher.files(limit=2, offset=0)
    assert [(one.source, one.chunks, one.file_type) for one in found.files] == [
        ("a.md", 4, ".md"),
        ("b.txt", 1, ".txt"),
    ]
    assert found.files[0].dates == {"published": "2024-01-01"}
    assert (found.total, found.chunks) == (3, 6)
    assert json.loads(lancelot.files_json(found))["nextOffset"] == 2
    assert [one.source for one in searcher.files(limit=9, offset=0, file_type="pdf").files] == ["c.PDF"]
    past = json.loads(lancelot.files_json(searcher.files(limit=9, offset=9)))
    assert "past the last of 3" in past["hint"]


def test_sources_of_the_real_folders_add_up_to_their_rows(
    make_searcher: Callable[..., lancelot.Searcher], expected: dict[str, Any]
) -> None:
    for folder, known in expected.items():
        searcher = make_searcher(LANCEDB_PATH=DATABASES / folder)
        for table in known["tables"]:
            found = searcher.files(limit=200, offset=0, table=table["name"])
            if table["pick"]["source"]:
                assert sum(one.chunks for one in found.files) + found.sourceless == table["rows"]


def test_chunks_without_a_source_are_counted_apart_from_documents_and_alike_everywhere(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    folder = make_table({"text": ["a", "b", "c"]}, name="none")
    make_table({"text": ["a", "b", "c"], "source": ["/a.md", None, ""]}, name="some")
    searcher = make_searcher(LANCEDB_PATH=folder)
    for table, documents, sourceless in (("none", 0, 3), ("some", 1, 2)):
        answer = json.loads(lancelot.files_json(searcher.files(limit=5, offset=0, table=table)))
        assert [file.get("source") for file in answer["files"]] == ["/a.md"] * documents + [None]
        assert answer["files"][-1] == {"without": "a source", "chunkCount": sourceless}
        assert (answer["shown"], answer["total"], answer["chunks"]) == (documents, documents, 3)
        assert searcher.stats(table).files == documents
    assert searcher.values("text", limit=5, offset=0, table="some").documents == 1
    assert "2 of them without a source" in lancelot.files_lines(searcher.files(limit=5, offset=0, table="some"))


@pytest.mark.parametrize("name", ["created", "updated_at", "published", "lastModified"])
def test_dates_inside_json_metadata_order_documents_under_any_usual_name(
    name: str, make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    dates = {"/a.md": "2024-01-02", "/b.md": "2024-03-01", "/c.md": None}
    metadata = [json.dumps({"source": source, name: date}) for source, date in dates.items()]
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": ["a", "b", "c"], "metadata": metadata}))
    found = searcher.files(limit=9, offset=0, sort="-date")
    assert ([file.source for file in found.files], found.notes) == (["/b.md", "/a.md", "/c.md"], ())


@pytest.mark.parametrize(
    ("columns", "advice"), [({"heading_year": [1999]}, "sorts by heading_year."), ({}, "no column looks like one.")]
)
def test_a_list_by_date_without_any_date_says_what_to_sort_by_instead(
    columns: dict[str, Any],
    advice: str,
    make_table: Callable[..., Path],
    make_searcher: Callable[..., lancelot.Searcher],
) -> None:
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": ["a"], "source": ["/a.md"], **columns}))
    (note,) = searcher.files(limit=9, offset=0, sort="-date").notes
    assert note.startswith("No document has a date")
    assert note.endswith(advice)
    assert searcher.files(limit=9, offset=0).notes == ()


def test_the_column_that_orders_a_listing_stays_in_each_hit_also_where_all_are_equal(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    columns = {"text": ["a", "b"], "source": ["/a", "/b"], "meta": [{"day": 5, "kind": "x"}] * 2}
    searcher = make_searcher(LANCEDB_PATH=make_table(columns))
    request = lancelot.SearchRequest("", 9, "auto", sort={"meta.day": True})
    answer = json.loads(lancelot.search_json(searcher.search(request)))
    assert [hit["metadata"] for hit in answer["hits"]] == [{"meta": {"day": 5}}] * 2
    assert answer["commonMetadata"] == {"meta": {"kind": "x"}}


def test_many_long_neighbours_and_wide_metadata_stay_below_the_cap_and_what_was_cut_is_told(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    texts = ["".join(chr(0x4E00 + (n * 7 + at) % 9000) for at in range(30_000)) for n in range(41)]
    wide = {f"column {n}": ["漢" * 5000] * 41 for n in range(100)}
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": texts, "source": ["s"] * 41, **wide}))
    parts: list[str] = []
    offset = 0
    while offset is not None:
        text = lancelot.chunk_json(searcher.read("row:20", before=20, after=20, offset=offset))
        assert len(text.encode()) < 100_000
        answer = json.loads(text)
        assert len(answer["text"]) >= 5000 or "nextOffset" not in answer
        assert [len(answer[side]) for side in ("before", "after")] == [20, 20]
        assert all(len(one["text"]) > 100 for one in answer["before"] + answer["after"])
        assert "metadata" in answer["note"].lower()
        assert "read one whole by its id" in answer["note"]
        parts.append(answer["text"])
        offset = answer.get("nextOffset")
    assert "".join(parts) == texts[20]


def test_a_table_that_is_rewritten_while_an_id_is_looked_for_is_not_taken_for_a_missing_id(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = make_searcher(LANCEDB_PATH=make_table({"id": ["a"], "text": ["a zebra"]}))
    batches = lancelot.Scope.batches
    failures = [lancelot.being_rewritten()]

    def failing_once(*given: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return batches(*given, **options)

    monkeypatch.setattr(lancelot.Scope, "batches", failing_once)
    assert searcher.read("a").chunk.text == "a zebra"
