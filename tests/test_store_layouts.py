"""Every writer's tables through every tool: found by each search, filtered, paged, listed and read whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import lancedb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lancedb.index import FTS, Bitmap, BTree, IvfFlat, LabelList
from mcp import Client
from standins import FixedEmbedder
from test_store import TITLES, WRITERS, vectors

import lancelot

SEARCHES = ("text", "fts", "vector", "hybrid")
SECONDS = 60


@pytest.fixture
def searcher_of(make_settings: Callable[..., lancelot.Settings]) -> Callable[..., lancelot.Searcher]:
    """A searcher over a folder that has embeddings without a server."""

    def make(folder: Path, **environ: str) -> lancelot.Searcher:
        settings = make_settings(LANCEDB_PATH=folder, **environ)
        return lancelot.Searcher(settings, embedder=FixedEmbedder(settings))

    return make


def find(searcher: lancelot.Searcher, query: str, search_type: Any, **wanted: Any) -> lancelot.Page:
    return searcher.search(lancelot.SearchRequest(query, wanted.pop("limit", 10), search_type, **wanted))


def call(searcher: lancelot.Searcher, tool: str, **arguments: Any) -> tuple[str, bool]:
    """What a client in memory gets of a call: the text, and whether it is an error."""

    async def run() -> tuple[str, bool]:
        with anyio.fail_after(SECONDS):
            async with Client(lancelot.build_server(searcher.settings, searcher=searcher)) as client:
                result = await client.call_tool(tool, arguments)
                return result.content[0].text, bool(result.is_error)

    return anyio.run(run)


def answer(searcher: lancelot.Searcher, tool: str, **arguments: Any) -> dict[str, Any]:
    text, failed = call(searcher, tool, **arguments)
    assert not failed, text
    return json.loads(text)


# --- each writer


@pytest.mark.parametrize("writer", WRITERS)
def test_a_row_of_each_writer_is_found_by_every_search_and_read_whole(
    writer: str, make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    columns, _, title, source, identity, _ = WRITERS[writer]
    searcher = searcher_of(make_table(columns))
    layout = searcher.status().tables[0]
    for search_type in SEARCHES:
        page = find(searcher, "zebra", search_type)
        assert (page.hits[0].id, page.hits[0].title, page.hits[0].source) == (identity, title, source)
        assert page.hits[0].text == "the zebra runs"
        instead = {"vector": "text", "hybrid": "fts"}
        assert page.ran == (search_type if layout.vectors else instead.get(search_type, search_type))
    read = answer(searcher, "lancedb_read", id=str(identity), before=1, after=1)
    assert (read["text"], read["title"]) == ("the zebra runs", title)
    files = answer(searcher, "lancedb_files")
    assert files["chunks"] == 2
    assert (source or title) in [one.get("source", "") for one in files["files"]]


@pytest.mark.parametrize("writer", [name for name, entry in WRITERS.items() if name != "agno"])
def test_an_index_on_the_text_of_each_writer_is_used(
    writer: str, make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    columns, text, _, _, identity, _ = WRITERS[writer]
    folder = make_table(columns)
    lancedb.connect(folder).open_table("documents").create_index(text, config=FTS(remove_stop_words=False))
    searcher = searcher_of(folder)
    for query in ("zebra", "run"):  # the second is found by its stem alone
        page = find(searcher, query, "fts")
        assert ([hit.id for hit in page.hits], page.total, page.notes) == ([identity], 1, ())


@pytest.mark.parametrize("search_type", SEARCHES)
def test_text_inside_json_is_searched_filtered_and_paged(
    search_type: Any, make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    payloads = [json.dumps({"name": f"n{n % 3}", "content": f"chunk {n} of räksmörgås"}) for n in range(30)]
    payloads += ["{}", json.dumps({"name": "n1", "content": " "}), "no JSON"]
    columns = {
        "id": [f"r{n}" for n in range(33)],
        "payload": payloads,
        "vector": vectors(*[[1.0, float(n)] for n in range(33)]),
    }
    searcher = searcher_of(make_table(columns))
    wanted = [f"r{n}" for n in range(30) if n % 3 == 1]
    found: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        page = find(
            searcher, "RÄKSMÖRGÅS", search_type, limit=4, offset=offset, conditions={"payload.name": {"eq": "n1"}}
        )
        assert page.ran == search_type
        assert page.total in (10, None)
        found += [hit.id for hit in page.hits]
        offset = page.next_offset
    assert found == wanted
    assert {hit.title for hit in page.hits} == {"n1"}


@pytest.mark.parametrize("name", ["my-workspace", "Notes.2024", "ALL_CAPS", "a.b-c_d"])
def test_tables_of_every_name_that_lancedb_opens_are_searched(
    name: str, tmp_path: Path, searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    lancedb.connect(tmp_path / "db").create_table(name, pa.table({"text": ["a zebra"], "source": ["a.md"]}))
    (tmp_path / "db" / "with space.lance").mkdir()
    searcher = searcher_of(tmp_path / "db")
    assert answer(searcher, "lancedb_search", query="zebra", searchType="fts")["table"] == name
    assert answer(searcher, "lancedb_search", query="zebra", table=name, searchType="text")["total"] == 1
    assert answer(searcher, "lancedb_read", id="row:0", table=name)["text"] == "a zebra"
    assert answer(searcher, "lancedb_files", table=name)["total"] == 1
    status = answer(searcher, "lancedb_status")
    assert [table["name"] for table in status["tables"]] == [name]
    assert list(status["unreadableTables"]) == ["with space"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string()], ids=str)
def test_strings_of_every_encoding_are_text_title_source_and_id(
    kind: Any, make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    values = {"id": ["a'b", "c"], "text": ["a zebra", "a lion"], "title": TITLES, "source": ["x's.md", "x's.md"]}
    columns = {name: pa.array(each).cast(kind) for name, each in values.items()}
    searcher = searcher_of(make_table(columns | {"vector": vectors([1.0, 0.0], [0.0, 1.0])}))
    for search_type in SEARCHES:
        hit = find(searcher, "ZEBRA", search_type, conditions={"source": {"contains": "X'S"}}).hits[0]
        assert (hit.id, hit.title, hit.source, hit.text) == ("a'b", "Zebras", "x's.md", "a zebra")
    read = answer(searcher, "lancedb_read", id="a'b", after=3)
    assert (read["text"], [one["text"] for one in read["after"]]) == ("a zebra", ["a lion"])


@pytest.fixture
def in_namespaces(tmp_path: Path) -> Any:
    """A folder with tables in the namespaces `team` and `team$inner`, and none beside them; and its connection."""
    database = lancedb.connect_namespace("dir", {"root": str(tmp_path / "db")})
    for path in (["team"], ["team", "inner"]):
        database.create_namespace(path)
    columns = {"id": ["a", "b"], "content": ["a zebra", "a lion"], "document_id": ["d1", "d2"]}
    chunks = pa.table(columns | {"vector": vectors([1.0, 0.0], [0.0, 1.0])})
    for path in (["team"], ["team", "inner"]):
        database.create_table("chunks", chunks, namespace_path=path)
    named = pa.table({"id": ["d1", "d2"], "uri": ["file:///zebra.md", "file:///lion.md"], "title": ["Zebras", "Lions"]})
    database.create_table("document_meta", named, namespace_path=["team"])
    return tmp_path / "db", database


def test_tables_in_namespaces_are_listed_searched_and_read(
    in_namespaces: Any, searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    folder, database = in_namespaces
    names = ["team$chunks", "team$document_meta", "team$inner$chunks"]
    searcher = searcher_of(folder)
    assert searcher.store.table_names() == sorted(lancelot.seen_tables(str(folder))) == names
    database.create_table("root", pa.table({"text": ["a zebra"]}))
    assert [table["name"] for table in answer(searcher, "lancedb_status")["tables"]] == ["root", *names]
    for name, title in (("team$chunks", "Zebras"), ("team$inner$chunks", "d1")):
        for search_type in SEARCHES:
            page = find(searcher, "zebra", search_type, table=name)
            assert (page.table, page.ran, page.hits[0].text, page.hits[0].title) == (
                name,
                search_type,
                "a zebra",
                title,
            )
        assert answer(searcher, "lancedb_read", id="b", table=name)["text"] == "a lion"
        assert answer(searcher, "lancedb_files", table=name)["total"] == 2
    for unknown in ("chunks", "team$nosuch", "nosuch$chunks"):
        with pytest.raises(lancelot.LancelotError, match=r"There is no table .* team\$chunks"):
            find(searcher, "zebra", "text", table=unknown)


@pytest.mark.parametrize("table", ["__manifest", "*$inner$chunks"])
def test_tables_in_namespaces_and_their_list_are_refused_where_their_files_are_elsewhere(
    table: str, in_namespaces: Any, tmp_path: Path, searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    folder, _ = in_namespaces
    folder = folder.rename(tmp_path / "a database, moved")
    (moved,) = folder.glob(table)
    beside = moved.rename(tmp_path / "beside.lance")
    lancedb.connect(tmp_path / "other").clone_table("clone", str(beside))
    (tmp_path / "other" / "clone.lance").rename(moved)
    searcher = searcher_of(folder)
    refused = f"The table {table.replace('*', 'team')} keeps files outside its database folder"
    with pytest.raises(lancelot.LancelotError, match=re.escape(refused)):
        find(searcher, "zebra", "text", table="team$inner$chunks")
    assert refused in str(searcher.status().unreadable or searcher.status().error)


def test_a_folder_with_tables_in_namespaces_alone_is_a_database(in_namespaces: Any, tmp_path: Path) -> None:
    folder, _ = in_namespaces
    assert lancelot.check_folder(str(folder)) == str(folder)
    with pytest.raises(lancelot.LancelotError, match=rf"Set LANCEDB_PATH to {re.escape(str(folder))}\."):
        lancelot.check_folder(str(tmp_path))


def json_column(*values: Any) -> pa.Array[Any]:
    """A column of Arrow's JSON type, which LanceDB stores as binary."""
    return pa.ExtensionArray.from_storage(
        pa.json_(), pa.array([None if value is None else json.dumps(value) for value in values], pa.string())
    )


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string())], ids=str)
@pytest.mark.parametrize(
    "named", ["by its usual name", "as an argument", "as a setting", "the only text", "the only text but titles"]
)
def test_a_text_that_is_a_list_of_strings_is_searched_and_read_as_lines(
    named: str, kind: Any, make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    lines = pa.array([["the Zebra", None, "runs far"], ["a lion", "sleeps"], [], None], kind)
    name = "text" if named == "by its usual name" else "lines"
    columns = {"id": ["a", "b", "c", "d"], name: lines, "vector": vectors(*[[1.0, float(n)] for n in range(4)])}
    if named.startswith("as "):
        columns["notes"] = ["a long note on something else"] * 4
    if named.endswith("titles"):
        columns["Title"] = ["A story of many words, longer than its text"] * 4
    settings = {"LANCEDB_TEXT_COLUMN": name} if named == "as a setting" else {}
    searcher = searcher_of(make_table(columns), **settings)
    given = {"text_column": name} if named == "as an argument" else {}
    for search_type in SEARCHES:
        page = find(searcher, "zebra far", search_type, **given)
        assert (page.ran, page.hits[0].id, page.hits[0].text) == (search_type, "a", "the Zebra\nruns far")
        assert len(page.hits) == (1 if search_type in ("text", "fts") else 2)  # never one without a text
    if not given:
        assert answer(searcher, "lancedb_read", id="b")["text"] == "a lion\nsleeps"
        assert "the Zebra\nruns far\n" in call(searcher, "lancedb_query", question="zebra")[0]
        assert answer(searcher, "lancedb_search", query="runs", searchType="text")["hits"][0]["snippet"].endswith("far")


def test_an_index_on_a_list_of_strings_is_used(
    make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    folder = make_table({"text": pa.array([["the zebra runs", "far"], ["a lion"]])})
    lancedb.connect(folder).open_table("documents").create_index("text", config=FTS(with_position=True))
    for query in ("run", '"zebra runs"'):
        page = find(searcher_of(folder), query, "fts")
        assert ([hit.text for hit in page.hits], page.notes) == (["the zebra runs\nfar"], ())


def test_a_column_of_arrow_json_is_metadata_with_title_source_and_filters_by_path(
    make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    values = [{"title": "T", "source": "s.md", "year": 1850, "deep": {"tags": ["x"]}}, None, [1, {"a": None}], "plain"]
    columns = {"id": [0, 1, 2, 3], "text": ["a zebra"] * 4, "info": json_column(*values)}
    searcher = searcher_of(make_table(columns))
    hits = answer(searcher, "lancedb_search", query="zebra", searchType="text")["hits"]
    assert (hits[0]["title"], hits[0]["source"]) == ("T", "s.md")
    assert [hit["metadata"].get("info") for hit in hits] == [{"deep": {"tags": ["x"]}, "year": 1850}, *values[1:]]
    for conditions, wanted in (
        ({"info.year": {"gte": 1850}}, [0]),
        ({"info.deep.tags": {"contains": "x"}}, [0]),
        ({"info.title": ["T", "U"]}, [0]),
        ({"info": {"exists": False}}, [1]),
    ):
        assert [hit.id for hit in find(searcher, "zebra", "text", conditions=conditions).hits] == wanted
    with pytest.raises(lancelot.LancelotError, match=r"as in info\.KEY\."):
        find(searcher, "zebra", "text", conditions={"info": {"contains": "T"}})


def test_text_inside_arrow_json_is_searched_where_it_is_the_only_text_or_is_named(
    make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    values = [{"title": "T", "text": "zebra", "summary": "stripes"}, {"text": "a lion"}, None]
    rows = vectors([1.0, 0.0], [0.0, 1.0], [1.0, 1.0])
    searcher = searcher_of(make_table({"id": [0, 1, 2], "doc": json_column(*values), "vector": rows}))
    for search_type in SEARCHES:
        page = find(searcher, "zebra", search_type, conditions={"doc.title": "T"})
        hit = page.hits[0]
        assert (page.ran, hit.id, hit.title, hit.text) == (search_type, 0, "T", "zebra")
    assert [hit.id for hit in find(searcher, "stripes", "text", text_column="doc.summary").hits] == [0]


def test_columns_of_blobs_are_left_out_of_hits_and_of_the_columns_to_filter_by_value(
    make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    kinds = {
        "lance-encoding:blob": (pa.large_binary(), b"\0" * 9),
        "ARROW:extension:name": (
            pa.struct({"data": pa.large_binary(), "uri": pa.string()}),
            {"data": b"\0", "uri": None},
        ),
    }
    for key, (kind, value) in kinds.items():
        blob = pa.field("image", kind, metadata={key: "true" if "blob" in key else "lance.blob.v2"})
        columns = [pa.array(["a zebra", "a lion"]), pa.array([value, None], kind)]
        table = pa.table(columns, pa.schema([("text", pa.string()), blob]))
        searcher = searcher_of(make_table(table, folder=key.partition(":")[0]))
        assert "image" not in searcher.status().tables[0].fetched
        assert [hit.metadata for hit in find(searcher, "zebra", "text").hits] == [{}]
        with pytest.raises(lancelot.LancelotError, match=r"no column \"image\.uri\""):
            find(searcher, "zebra", "text", conditions={"image.uri": "x"})


@pytest.mark.parametrize(
    ("identity", "title", "source"),
    [
        ("ID", "TITLE", "Source"),
        ("page_id", "page title", "source_url"),
        ("chunk-id", "File Name", "File-Path"),
        ("doc_id", "Document_Name", "URL"),
    ],
)
def test_usual_names_are_found_in_any_case_and_with_any_dividers(
    identity: str,
    title: str,
    source: str,
    make_table: Callable[..., Path],
    searcher_of: Callable[..., lancelot.Searcher],
) -> None:
    columns = {identity: ["a", "b"], title: TITLES, source: ["x.md", "y.md"], "Page Content": ["a zebra", "a lion"]}
    searcher = searcher_of(make_table(columns | {"vector": vectors([1.0, 0.0], [0.0, 1.0])}))
    assert searcher.status().tables[0].chosen_by["text"] == "usual name"
    for search_type in SEARCHES:
        hit = find(searcher, "zebra", search_type).hits[0]
        assert (hit.id, hit.title, hit.source, hit.text, hit.metadata) == ("a", TITLES[0], "x.md", "a zebra", {})
    assert answer(searcher, "lancedb_read", id="b")["text"] == "a lion"
    assert [one["source"] for one in answer(searcher, "lancedb_files")["files"]] == ["x.md", "y.md"]


def test_the_usual_spelling_of_a_name_wins(
    make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    meta = pa.array([{"source": "x.md"}, {"source": "y.md"}])
    columns = {
        "TEXT": ["no", "no"],
        "ID": ["A", "B"],
        "chunk_id": ["c", "d"],
        "doc_id": ["e", "f"],
        "source_url": ["u", "v"],
        "Source": ["S", ""],
    }
    columns |= {"TITLE": ["A", "B"], "title": ["Zebra", ""], "content": ["a zebra", "one zebra"]}
    page = find(searcher_of(make_table(columns | {"metadata": meta})), "zebra", "text")
    assert [(hit.id, hit.title, hit.source) for hit in page.hits] == [("A", "Zebra", "S"), ("B", "B", "v")]
    named_as_a_file = {"Document": ["one file", "another"], "Passage": ["a zebra runs over the plain", "a lion sleeps"]}
    page = find(searcher_of(make_table(named_as_a_file, folder="files")), "zebra", "text")
    assert [hit.text for hit in page.hits] == ["a zebra runs over the plain"]


USUAL = (
    "id",
    "uuid",
    "chunk_id",
    "page_id",
    "doc_id",
    "title",
    "page_title",
    "name",
    "source",
    "url",
    "source_url",
    "path",
)
OTHER_SPELLINGS = (
    str.upper,
    str.title,
    str.swapcase,
    *(lambda name, by=by: name.replace("_", by) for by in (" ", "-")),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(USUAL), st.sampled_from(OTHER_SPELLINGS)), unique_by=lambda pair: pair[0]))
def test_a_name_in_another_spelling_is_found_like_the_usual_one(named: list[tuple[str, Callable[[str], str]]]) -> None:
    def places(names: list[str]) -> list[list[int]]:
        schema = pa.schema([(name, pa.string()) for name in (*names, "text")])
        table = SimpleNamespace(name="documents", schema=schema, count_rows=int, list_indices=list)
        layout = lancelot.table_layout(table)
        return [[names.index(c.name) for c in chosen if c] for chosen in ((layout.id,), layout.title, layout.source)]

    assert places([spell(name) for name, spell in named]) == places([name for name, _ in named])


# --- filters on every search, as clients send them


@pytest.fixture
def shelf(make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]) -> lancelot.Searcher:
    columns = {
        "id": [f"r{n}" for n in range(40)],
        "text": [f"a letter of the year {1850 + n}" for n in range(40)],
        "source": [f"{n}.md" for n in range(40)],
        "year": [1850 + n for n in range(40)],
        "tags": [["old", "sv"] if n % 2 else ["old"] for n in range(40)],
        "metadata": [json.dumps({"lang": "sv" if n % 2 else "fi"}) for n in range(40)],
        "vector": vectors(*[[1.0, float(n)] for n in range(40)]),
    }
    return searcher_of(make_table(columns))


CONDITIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({"year": {"gte": 1855, "$lt": 1858}}, ["r5", "r6", "r7"]),
    ({"tags": {"contains": "sv"}, "year": {"lte": 1853}}, ["r1", "r3"]),
    ({"metadata.lang": "fi", "year": [1852, 1853, 1854]}, ["r2", "r4"]),
    ({"$or": [{"year": 1851}, {"metadata.lang": "sv", "year": {"gt": 1887}}]}, ["r1", "r39"]),
    ({"year": {"gt": 1900}}, []),
]


@pytest.mark.parametrize("as_text", [False, True], ids=["object", "JSON"])
@pytest.mark.parametrize("search_type", SEARCHES)
def test_a_filter_holds_for_every_search(shelf: lancelot.Searcher, search_type: str, *, as_text: bool) -> None:
    for conditions, wanted in CONDITIONS:
        given = json.dumps(conditions) if as_text else conditions
        found = answer(shelf, "lancedb_search", query="letter", searchType=search_type, filter=given)
        assert found["searchType"] == search_type
        assert sorted(hit["id"] for hit in found["hits"]) == sorted(wanted)
        assert found.get("total") == (len(wanted) if search_type in ("text", "fts") else None)
        assert ("hint" in found) == (not wanted)


@pytest.mark.parametrize("as_text", [False, True], ids=["object", "JSON"])
@pytest.mark.parametrize("arguments", [{"question": "which letter"}, {"question": "", "warmStart": True}], ids=str)
def test_a_filter_holds_for_context_and_for_an_overview(
    shelf: lancelot.Searcher, arguments: dict[str, Any], *, as_text: bool
) -> None:
    for conditions, wanted in CONDITIONS:
        given = json.dumps(conditions) if as_text else conditions
        block, failed = call(shelf, "lancedb_query", filter=given, limit=200, contextBudget=20_000, **arguments)
        assert not failed
        shown = {f"r{n}" for n in range(40) if f"of the year {1850 + n}\n" in block}
        assert shown == set(wanted)


@pytest.mark.parametrize("given", ["{", "[1]", {"nosuch": 1}, {"year": {"above": 3}}, 5])
def test_a_filter_that_cannot_be_is_an_error_of_the_call(shelf: lancelot.Searcher, given: Any) -> None:
    text, failed = call(shelf, "lancedb_search", query="letter", filter=given)
    assert failed
    assert text.endswith(".")
    assert "defect" not in text


def test_a_filter_uses_the_scalar_indexes_of_its_columns(tmp_path: Path) -> None:
    columns = {
        "year": list(range(300)),
        "My Name": [f"n{n}" for n in range(300)],
        "flag": [n % 2 == 0 for n in range(300)],
        "tags": [[f"t{n % 5}"] for n in range(300)],
        "nested": pa.array([{"n": n} for n in range(300)]),
        "free": list(range(300)),
    }
    table = lancedb.connect(tmp_path / "db").create_table("documents", pa.table(columns))
    for column, config in {
        "year": BTree(),
        "My Name": BTree(),
        "flag": Bitmap(),
        "tags": LabelList(),
        "nested.n": BTree(),
    }.items():
        table.create_index(column, config=config)

    def uses_an_index(conditions: dict[str, Any]) -> bool:
        predicate = lancelot.build_predicate(table, table.schema, conditions)
        return "ScalarIndexQuery" in table.search().where(predicate).explain_plan(verbose=True)

    for conditions in (
        {"year": {"gte": 5, "lt": 9}},
        {"year": [1, 2]},
        {"My Name": "n5"},
        {"flag": True},
        {"tags": {"contains": "t1"}},
        {"nested.n": 7},
        {"$or": [{"year": 3}, {"My Name": "n5"}]},
    ):
        assert uses_an_index(conditions), conditions
    assert not uses_an_index({"free": 3})


# --- vectors


def test_a_column_of_several_vectors_a_row_is_searched_with_one(
    make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    kind = pa.list_(pa.list_(pa.float32(), 2))
    several = pa.array([[[0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]], [], None], kind)
    searcher = searcher_of(make_table({"id": [0, 1, 2, 3], "text": ["a zebra"] * 4, "vector": several}))
    page = find(searcher, "zebra", "vector")
    assert (page.ran, [(hit.id, hit.score, hit.metadata) for hit in page.hits]) == (
        "vector",
        [(1, 0.0, {}), (0, 1.0, {})],
    )
    page = find(searcher, "zebra", "auto")  # two rows have no vector, so that words are looked for too
    assert (page.ran, [hit.id for hit in page.hits]) == ("hybrid", [0, 1, 2, 3])
    table = answer(searcher, "lancedb_status", verbose=True)["tables"][0]
    assert (table["vectorColumn"], table["vectorLength"]) == ("vector", 2)
    assert table["vectorTypes"] == {"vector": "list<item: fixed_size_list<item: float>[2]>"}
    searcher.embedder.usual = (1.0, 0.0, 0.0)  # type: ignore[attr-defined]
    assert "have length 2" in find(searcher, "zebra", "vector").notes[0]


@pytest.mark.parametrize("kind", [pa.uint8(), pa.int8()], ids=str)
def test_vectors_of_bytes_are_told_by_name_and_type_and_left_out_of_hits(
    kind: Any, make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    bits = pa.array([[1, 0], [0, 1]], pa.list_(kind, 2))
    several = pa.array([[[1, 0]], []], pa.list_(pa.list_(kind, 2)))
    searcher = searcher_of(make_table({"text": ["a zebra", "a lion"], "bits": bits, "several": several}))
    told = f"the column bits holds fixed_size_list<item: {kind}>[2], not fixed-size vectors of floats"
    table = answer(searcher, "lancedb_status", verbose=True)["tables"][0]
    assert table["note"] == f"no vector search: {told}"
    assert list(table["vectorTypes"]) == ["bits", "several"]
    for named in ({}, {"vector_column": "bits"}):
        page = find(searcher, "zebra", "vector", **named)
        assert (page.ran, [hit.metadata for hit in page.hits]) == ("text", [{}])
        assert f"{told}." in page.notes[0]


def test_a_vector_of_another_length_is_never_searched_with(
    make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_table({"text": ["a zebra"], "vector": vectors([1.0] * 768)})
    searcher = searcher_of(folder, EMBEDDING_MODEL="my-model")
    asked: list[Any] = []
    monkeypatch.setattr(lancelot, "rank_vector", lambda *given, **_: asked.append(given))
    for search_type, instead in (("vector", "text"), ("hybrid", "fts"), ("auto", "text")):
        page = find(searcher, "zebra", search_type)
        assert page.ran == instead
        assert len(page.notes) == 1
        for part in ("documents.vector", "768", "length 2", "my-model", "nomic-embed-text", "bge-base-en-v1.5"):
            assert part in page.notes[0]
    assert asked == []


def test_hybrid_with_one_side_empty_is_the_other_side(
    make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    rows = vectors([1.0, 0.0], [0.0, 1.0])
    searcher = searcher_of(make_table({"text": ["a zebra", "a lion"], "vector": rows}))
    page = find(searcher, "elephant", "hybrid")
    assert (page.ran, [hit.text for hit in page.hits]) == ("hybrid", ["a zebra", "a lion"])
    searcher = searcher_of(
        make_table({"text": ["a zebra", "a lion"], "vector": vectors([0.0, 0.0], [0.0, 0.0])}, folder="zeros")
    )
    page = find(searcher, "lion", "hybrid")
    assert (page.ran, [hit.text for hit in page.hits]) == ("hybrid", ["a lion"])
    page = find(searcher, "elephant", "hybrid")
    assert (page.ran, page.hits) == ("hybrid", ())
    assert "elephant" in json.loads(lancelot.search_json(page))["hint"]


def test_the_distance_of_an_index_on_a_column_of_any_name_is_used(tmp_path: Path) -> None:
    rows = pa.array([[float(n), 1.0] for n in range(300)], pa.list_(pa.float32(), 2))
    columns = {"text": ["x"] * 300, "My-Vectors": rows}
    table = lancedb.connect(tmp_path / "db").create_table("documents", pa.table(columns))
    table.create_index("My-Vectors", config=IvfFlat(distance_type="l2", num_partitions=1))
    scope = lancelot.Scope(table, lancelot.table_layout(table))
    assert lancelot.vector_metric(scope, "My-Vectors") == "l2"


@pytest.mark.parametrize(("name", "searches"), [("_distance", ("vector", "hybrid")), ("_score", ("fts", "hybrid"))])
def test_a_column_that_hides_the_engines_own_is_told(
    name: str, searches: tuple[str, ...], make_table: Callable[..., Path], searcher_of: Callable[..., lancelot.Searcher]
) -> None:
    rows = vectors([1.0, 0.0], [0.0, 1.0])
    folder = make_table({"text": ["a zebra", "a lion"], name: [1.0, 2.0], "vector": rows})
    lancedb.connect(folder).open_table("documents").create_index("text", config=FTS())
    for search_type in searches:
        page = find(searcher_of(folder), "zebra", search_type)
        assert page.hits[0].text == "a zebra"
        assert len(page.notes) == 1
        assert f"column {'named ' if name == '_score' else ''}{name} hides the engine's own" in page.notes[0]


def test_chunks_whose_documents_are_named_in_a_table_beside_them_get_title_and_address(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    chunks = {
        "id": ["c1", "c2", "c3"],
        "document_id": ["d1", "d1", "d2"],
        "content": ["a zebra", "more on it", "a lion"],
        "content_fts": ["a zebra", "more on it", "a lion"],
        "metadata": ["{}", "{}", "{}"],
        "order": [1, 0, 0],
    }
    make_table(chunks, name="chunks")
    folder = make_table(
        {"id": ["d1", "d2"], "uri": ["file:///notes/zebra.md", "file:///notes/lion.md"], "title": ["Zebras", None]},
        name="document_meta",
    )
    searcher = make_searcher(LANCEDB_PATH=folder)
    for search_type in ("text", "fts"):
        page = searcher.search(lancelot.SearchRequest("zebra", 5, search_type, table="chunks"))  # type: ignore[arg-type]
        assert [(hit.title, hit.source) for hit in page.hits] == [("Zebras", "file:///notes/zebra.md")]
    found = searcher.read("c1", table="chunks", before=3)
    assert ([hit.text for hit in found.before], found.of) == (["more on it"], 2)
    files = searcher.files(limit=9, offset=0, table="chunks").files
    assert [(one.source, one.title, one.chunks, one.file_type) for one in files] == [
        ("file:///notes/lion.md", "lion.md", 1, ".md"),
        ("file:///notes/zebra.md", "Zebras", 2, ".md"),
    ]
