# ruff: noqa: RUF001 - letters and punctuation of every script are meant
from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
import math
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lancedb.db import LanceDBConnection
from lancedb.index import FTS, BTree, IvfFlat
from standins import FixedEmbedder, Handler, Reply, serving

import lancelot
import lancelot_index
from lancelot import (
    LancelotError,
    Scope,
    SearchRequest,
    Store,
    check_folder,
    fold,
    fold_pattern,
    rank_terms,
    read_terms,
)

modest = settings(max_examples=80, deadline=None, derandomize=True)

Search = Callable[..., lancelot.Page]


def vectors(*rows: list[float], kind: pa.DataType | None = None) -> pa.Array[Any]:
    return pa.array(rows, pa.list_(kind or pa.float32(), len(rows[0])))


VECTORS = vectors([1.0, 0.0], [0.0, 1.0])


@pytest.fixture
def make_table(tmp_path: Path) -> Callable[..., Path]:
    """Writes a table of exactly these columns over any before it and returns the folder."""

    def make(columns: dict[str, Any] | pa.Table, *, folder: str = "db") -> Path:
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        lancedb.connect(tmp_path / folder).create_table("documents", table, schema=table.schema, mode="overwrite")
        return tmp_path / folder

    return make


@pytest.fixture
def layout_of(make_table: Callable[..., Path]) -> Callable[..., lancelot.TableLayout]:
    """The layout of a table of these columns: `layout_of(columns, text=…, vector=…)`."""

    def find(columns: Any, *, length: int | None = None, **named: str) -> lancelot.TableLayout:
        store = Store(str(make_table(columns)), embedding_length=length)
        return store.layout(store.open("documents"), **named)

    return find


@pytest.fixture
def search(make_searcher: Callable[..., lancelot.Searcher]) -> Search:
    """The page of a text search in a folder: `search(folder, "words")`."""

    def run(folder: Path, query: str, **request: Any) -> lancelot.Page:
        return make_searcher(LANCEDB_PATH=folder).search(
            SearchRequest(query, **{"limit": 200, "search_type": "text", **request})
        )

    return run


# --- the folder


def test_a_path_that_is_not_set_is_a_sentence() -> None:
    with pytest.raises(LancelotError, match=r"LANCEDB_PATH is empty\. Set it to a LanceDB folder"):
        check_folder(None)


def test_a_missing_folder_is_a_sentence_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(LancelotError, match="cannot be opened") as failure:
        Store(str(tmp_path / "missing")).table_names()
    assert str(tmp_path / "missing") in str(failure.value)
    assert not (tmp_path / "missing").exists()


def test_a_misspelt_folder_is_answered_with_the_near_one(tmp_path: Path) -> None:
    (tmp_path / "database").mkdir()
    with pytest.raises(LancelotError, match=r"Did you mean .*database"):
        check_folder(str(tmp_path / "databse"))


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LancelotError, match="is a file, not a folder"):
        check_folder(str(tmp_path / "file"))


def test_a_path_with_a_nul_is_a_sentence() -> None:
    with pytest.raises(LancelotError, match="cannot be opened"):
        check_folder("a\x00b")


def test_a_tables_own_folder_and_one_inside_it_name_the_database(make_table: Callable[..., Path]) -> None:
    folder = make_table({"text": ["a"]})
    for inside in (folder / "documents.lance", folder / "documents.lance" / "data"):
        before = sorted(inside.iterdir())
        with pytest.raises(LancelotError, match="inside the table documents") as failure:
            Store(str(inside)).table_names()
        assert str(failure.value).endswith(f"Set LANCEDB_PATH to {folder}.")
        assert sorted(inside.iterdir()) == before


def test_a_folder_above_the_database_names_it(make_table: Callable[..., Path]) -> None:
    folder = make_table({"text": ["a"]}, folder="storage/lancedb")
    for above in (folder.parent, folder.parent.parent):
        with pytest.raises(LancelotError, match="holds no tables itself") as failure:
            check_folder(str(above))
        assert str(failure.value).endswith(f"Set LANCEDB_PATH to {folder}.")


def test_a_path_beside_tables_names_their_folder(make_table: Callable[..., Path]) -> None:
    folder = make_table({"text": ["a"]})
    for name in ("other", "documents"):
        with pytest.raises(
            LancelotError, match=re.escape(f"Set LANCEDB_PATH to {folder}, which holds LanceDB tables.")
        ):
            check_folder(str(folder / name))


def test_an_empty_folder_has_no_tables_and_stays_empty(tmp_path: Path, search: Search) -> None:
    (tmp_path / "empty").mkdir()
    assert Store(str(tmp_path / "empty")).table_names() == []
    with pytest.raises(LancelotError, match="holds no tables"):
        search(tmp_path / "empty", "word")
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="this system has no user to turn into for a while")
def test_a_folder_that_may_not_be_opened_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    user = os.geteuid()
    try:
        os.seteuid(user or 65534)  # the superuser may open any folder, and nobody may not
        with pytest.raises(LancelotError, match="Permission denied"):
            check_folder(str(tmp_path / "closed" / "db"))
    finally:
        os.seteuid(user)


def test_a_refusal_of_the_system_is_told_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/somewhere")

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(LancelotError, match=r"cannot be opened \(Permission denied\)"):
        check_folder(str(tmp_path))


def test_an_object_store_address_is_not_looked_for_on_disk() -> None:
    assert check_folder("s3://bucket/folder") == "s3://bucket/folder"


def test_a_table_that_cannot_be_opened_does_not_hide_the_others(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    folder = make_table({"text": ["a"]})
    (folder / "broken.lance").mkdir()
    status = make_searcher(LANCEDB_PATH=folder).status()
    assert [layout.table for layout in status.tables] == ["documents"]
    assert list(status.unreadable) == ["broken"]


@pytest.mark.parametrize("name", ["ann's docs", "my notes", "años", "a+b"])
def test_a_folder_whose_name_lancedb_refuses_is_to_be_renamed(
    name: str, make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    folder = make_table({"text": ["a"]})
    (folder / "documents.lance").rename(folder / f"{name}.lance")
    error = make_searcher(LANCEDB_PATH=folder).status().unreadable[name]
    assert f'no table named "{name}"' in error.cause
    renamed = re.fullmatch(rf"Rename the folder {re.escape(name)}\.lance, as to (\S+)\.lance\.", error.remedy)
    assert renamed
    (folder / f"{name}.lance").rename(folder / f"{renamed[1]}.lance")
    assert [layout.table for layout in make_searcher(LANCEDB_PATH=folder).status().tables] == [renamed[1]]


def test_a_call_opens_each_table_once_and_one_that_names_its_table_no_other(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_table({"text": ["a zebra"], "source": ["a.md"]})
    for name in ("another", "textless"):
        lancedb.connect(folder).create_table(
            name, pa.table({"vector": VECTORS} if name == "textless" else {"text": ["x"]})
        )
    searcher = make_searcher(LANCEDB_PATH=folder)
    searcher.store.table_names()
    opened: list[str] = []
    checked: list[str] = []
    open_table, check = LanceDBConnection.open_table, lancelot.check_folder

    def counted(self: Any, name: str, **options: Any) -> Any:
        opened.append(name)
        return open_table(self, name, **options)

    monkeypatch.setattr(LanceDBConnection, "open_table", counted)
    monkeypatch.setattr(lancelot, "check_folder", lambda path: checked.append(path) or check(path))
    calls: dict[str, Callable[[str], Any]] = {
        "search": lambda name: searcher.search(SearchRequest("zebra", 5, "text", table=name)),
        "fts": lambda name: searcher.search(SearchRequest("zebra", 5, "fts", table=name)),
        "read": lambda name: searcher.read("row:0", table=name),
        "files": lambda name: searcher.files(limit=5, offset=0, table=name),
        "overview": lambda name: searcher.overview(limit=5, table=name),
    }
    for name, call in calls.items():
        call("documents")
        assert (opened, checked) == (["documents"], [str(folder)]), name
        opened.clear()
        checked.clear()
    with pytest.raises(
        LancelotError, match=r'There is no table "nosuch"\..* The tables are another, documents, textless\.'
    ):
        calls["search"]("nosuch")
    assert opened == []
    with pytest.raises(LancelotError, match="holds vectors only"):
        calls["search"]("textless")
    assert opened == ["textless"]


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may list, which those of pytest are not; the superuser's rights come back after the test."""
    root = hasattr(os, "setresuid") and os.getuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        if root:
            os.setresuid(0, 0, 0)


@pytest.mark.skipif(not hasattr(os, "setresuid"), reason="this system has no user to turn into for a while")
@pytest.mark.parametrize("kept", ["_versions", "data", "_indices/*/*"])
def test_a_file_that_may_not_be_read_is_named_and_is_to_be_permitted(
    kept: str, shared_folder: Path, make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    table = lancedb.connect(shared_folder).create_table("documents", pa.table({"text": ["a zebra"]}))
    table.create_index("text", config=FTS())
    searcher = make_searcher(LANCEDB_PATH=shared_folder)
    asked = SearchRequest("zebra", 1, "fts")
    assert searcher.store.table_names() == ["documents"]  # loads the engine, which that user may not do
    for path in (shared_folder / "documents.lance").glob(kept):
        path.chmod(0)
    if os.getuid() == 0:
        os.setresuid(65534, 65534, 0)
    if "_indices" in kept:  # without its index a search reads the texts
        (told,) = searcher.search(asked).notes
    else:
        with pytest.raises(LancelotError, match=r"Give this user the permission to read it\.$") as failure:
            searcher.search(asked)
        told = failure.value.cause
    assert f"This user may not read {shared_folder}/documents.lance/{kept.partition('/')[0]}" in told


@pytest.mark.parametrize(
    "words",
    [
        "Unable to open file /d/a b.lance/data/1.lance: Permission denied (os error 13), /rustc/result.rs:1896:29",
        "Unable to walk dir: IO error for operation on /d/a b.lance/data/1.lance: Permission denied (os error 13), /x.rs",
        "[Errno 13] Failed stat()ing path '/d/a b.lance/data/1.lance'. Detail: [errno 13] Permission denied",
    ],
)
def test_the_engines_words_on_a_permission_give_the_file(words: str) -> None:
    with pytest.raises(LancelotError) as failure, lancelot.engine_errors("read the rows"):
        raise RuntimeError(words)
    assert failure.value.cause == "This user may not read /d/a b.lance/data/1.lance."
    windows = words.replace("/d/", "C:/d/").replace("Permission denied (os error 13)", "Access is denied. (os error 5)")
    with pytest.raises(LancelotError) as failure, lancelot.engine_errors("read the rows"):
        raise RuntimeError(windows)
    assert failure.value.cause == "This user may not read C:/d/a b.lance/data/1.lance."


# --- the tables that programs write


def struct_metadata(**fields: list[str]) -> pa.Array[Any]:
    return pa.array([dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)])


def json_strings(**fields: list[Any]) -> list[str]:
    return [json.dumps(dict(zip(fields, values, strict=True))) for values in zip(*fields.values(), strict=True)]


TEXTS = ["the zebra runs", "a lion sleeps"]
TITLES = ["Zebras", "Lions"]
PATHS = ["/home/user/zebra.md", "/home/user/lion.md"]
IDS = ["id-1", "id-2"]

# Each writer's columns, then the text column found, the title and source of the zebra row, its id and its metadata.
WRITERS: dict[str, tuple[dict[str, Any], str, str, str, str | int, dict[str, Any]]] = {
    "anythingllm": (
        {
            "id": IDS,
            "url": ["file:///hotdir/zebra.md", "file:///hotdir/lion.md"],
            "title": TITLES,
            "docAuthor": ["Unknown", "Unknown"],
            "docSource": ["a text file uploaded by the user.", "x"],
            "chunkSource": ["", "link://https://lion.example"],
            "wordCount": [3.0, 3.0],
            "token_count_estimate": [5.0, 5.0],
            "text": [f"<document_metadata>\nsourceDocument: z\n</document_metadata>\n\n{text}" for text in TEXTS],
            "vector": VECTORS,
        },
        "text",
        "Zebras",
        "file:///hotdir/zebra.md",
        "id-1",
        {
            "chunkSource": "",
            "docAuthor": "Unknown",
            "docSource": "a text file uploaded by the user.",
            "token_count_estimate": 5.0,
            "wordCount": 3.0,
        },
    ),
    "langchain struct": (
        {
            "vector": VECTORS,
            "id": IDS,
            "text": TEXTS,
            "metadata": struct_metadata(title=TITLES, source=PATHS, lang=["en", "en"]),
        },
        "text",
        "Zebras",
        PATHS[0],
        "id-1",
        {"metadata": {"lang": "en"}},
    ),
    "langchain JSON": (
        {
            "vector": VECTORS,
            "id": IDS,
            "text": TEXTS,
            "metadata": json_strings(title=TITLES, source=PATHS, loc=[{"page": 4}, {"page": 5}]),
        },
        "text",
        "Zebras",
        PATHS[0],
        "id-1",
        {"metadata": {"loc": {"page": 4}}},
    ),
    "langchain.js": (
        {"vector": VECTORS, "text": TEXTS, "source": PATHS, "loc": pa.array([{"from": 1}, {"from": 2}])},
        "text",
        "zebra.md",
        PATHS[0],
        "row:0",
        {"loc": {"from": 1}},
    ),
    "llamaindex": (
        {
            "id": IDS,
            "doc_id": ["d1", "d2"],
            "vector": VECTORS,
            "text": TEXTS,
            "metadata": struct_metadata(
                file_path=PATHS, file_name=["zebra.md", "lion.md"], _node_content=[f'{{"text": "{t}"}}' for t in TEXTS]
            ),
        },
        "text",
        "zebra.md",
        PATHS[0],
        "id-1",
        {"doc_id": "d1", "metadata": {}},
    ),
    "mcp-local-rag": (
        {
            "id": IDS,
            "filePath": PATHS,
            "chunkIndex": [0.0, 1.0],
            "text": TEXTS,
            "vector": VECTORS,
            "metadata": struct_metadata(fileName=["zebra.md", "lion.md"]),
            "fileTitle": TITLES,
            "contentHash": ["f3a1", "77b2"],
        },
        "text",
        "Zebras",
        PATHS[0],
        "id-1",
        {"chunkIndex": 0.0, "contentHash": "f3a1", "metadata": {"fileName": "zebra.md"}},
    ),
    "haystack": (
        {
            "id": IDS,
            "vector": VECTORS,
            "content": TEXTS,
            "blob": pa.array([b"x", b"y"]),
            "meta": struct_metadata(title=TITLES, file_path=PATHS),
            "_isempty": pa.array([{"content": False}] * 2),
        },
        "content",
        "Zebras",
        PATHS[0],
        "id-1",
        {"meta": {}},
    ),
    "openclaw": (
        {"id": IDS, "text": TEXTS, "vector": VECTORS, "importance": [0.5, 0.7], "category": ["fact", "fact"]},
        "text",
        "",
        "",
        "id-1",
        {"importance": 0.5, "category": "fact"},
    ),
    "graphrag with text": (
        {
            "id": IDS,
            "text": TEXTS,
            "vector": pa.array([[1.0, 0.0], [0.0, 1.0]], pa.list_(pa.float64())),
            "attributes": json_strings(title=TITLES),
        },
        "text",
        "Zebras",
        "",
        "id-1",
        {"attributes": {}},
    ),
    "cognee": (
        {
            "id": IDS,
            "vector": VECTORS,
            "payload": struct_metadata(text=TEXTS, document_name=TITLES, document_id=["d1", "d2"]),
        },
        "payload.text",
        "Zebras",
        "d1",
        "id-1",
        {"payload": {}},
    ),
    "agno": (
        {
            "vector": VECTORS,
            "id": IDS,
            "payload": json_strings(name=TITLES, content=TEXTS, meta_data=[{"page": 1}, {"page": 2}]),
            "user_id": ["u", "u"],
        },
        "payload.content",
        "Zebras",
        "",
        "id-1",
        {"user_id": "u", "payload": {"meta_data": {"page": 1}}},
    ),
    "crewai": (
        {
            "id": IDS,
            "content": TEXTS,
            "scope": ["/", "/"],
            "metadata_str": ["{}", "{}"],
            "source": ["agent", "agent"],
            "private": [False, True],
            "vector": VECTORS,
        },
        "content",
        "agent",
        "agent",
        "id-1",
        {"scope": "/", "metadata_str": "{}", "private": False},
    ),
    "mastra": (
        {
            "id": IDS,
            "vector": VECTORS,
            "metadata_text": TEXTS,
            "metadata_title": TITLES,
            "metadata_source": PATHS,
        },
        "metadata_text",
        "Zebras",
        PATHS[0],
        "id-1",
        {},
    ),
    "haskie": (
        {
            "document": ["Animals", "Animals"],
            "source_path": PATHS,
            "part": [1, 2],
            "headings": [["Zebras", "Stripes"], ["Lions"]],
            "text": TEXTS,
        },
        "text",
        "zebra.md",
        PATHS[0],
        "row:0",
        {"document": "Animals", "part": 1, "headings": ["Zebras", "Stripes"]},
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_row_of_each_writer_is_found_with_its_title_and_source(
    writer: str, make_table: Callable[..., Path], search: Search
) -> None:
    columns, text, title, source, identity, metadata = WRITERS[writer]
    folder = make_table(columns)
    page = search(folder, "Zebra lion elephant")
    assert page.total == 2
    hit = next(hit for hit in page.hits if "zebra" in hit.text)
    assert hit == lancelot.Hit(identity, 1 / 3, title, source, "the zebra runs", hit.metadata, "documents", hit.row)
    assert lancelot.json_safe(hit.metadata) == metadata
    store = Store(str(folder))
    layout = store.layout(store.open("documents"))
    assert layout.text is not None
    assert layout.text.name == text


@pytest.mark.parametrize("writer", [name for name, entry in WRITERS.items() if entry[0].get("vector") is VECTORS])
def test_the_vectors_of_each_writer_are_found(writer: str, layout_of: Callable[..., lancelot.TableLayout]) -> None:
    layout = layout_of(WRITERS[writer][0])
    assert (layout.vector, layout.vectors) == ("vector", {"vector": 2})


def test_vectors_that_are_no_fixed_size_lists_are_named_with_their_type(
    layout_of: Callable[..., lancelot.TableLayout],
) -> None:
    layout = layout_of(WRITERS["graphrag with text"][0])
    assert layout.vector is None
    assert "vector holds list<" in layout.vector_problem
    assert layout_of({"text": TEXTS}).vector_problem == "it has no vector column"


def test_a_folder_whose_name_no_table_can_have_keeps_no_other_table_from_being_searched(
    make_table: Callable[..., Path], search: Search
) -> None:
    folder = make_table({"text": TEXTS})
    (folder / "a name\nof no table.lance").mkdir()
    assert search(folder, "zebra").table == "documents"


def test_a_table_without_text_is_refused_with_its_columns(make_table: Callable[..., Path], search: Search) -> None:
    folder = make_table({"vector": VECTORS, "path": PATHS, "cachekey": ["ab12", "cd34"], "uuid": IDS})
    with pytest.raises(
        LancelotError, match=r"holds vectors only: .* Its columns are vector, path, cachekey, uuid"
    ) as failure:
        search(folder, "zebra")
    assert str(failure.value).endswith(lancelot.LOOK_AT_STATUS)


def test_the_prose_is_taken_for_the_text_where_no_name_tells(layout_of: Callable[..., lancelot.TableLayout]) -> None:
    layout = layout_of(
        {
            "hash": ["0123456789abcdef" * 8] * 2,
            "extra": ['{"a long JSON string": "that is no prose, however long it may be"}'] * 2,
            "note": ["short words", "more words"],
            "story": ["a long story of many words", "another long story of words"],
            "content_fts": ["a copy of the story that is even longer than the story"] * 2,
        }
    )
    assert layout.text == lancelot.Column(("story",))


def test_columns_that_are_named_win(layout_of: Callable[..., lancelot.TableLayout]) -> None:
    columns = {
        "text": TEXTS,
        "summary": ["s", "t"],
        "vector": VECTORS,
        "image": vectors([1.0], [2.0]),
        "payload": struct_metadata(text=TEXTS),
    }
    layout = layout_of(columns, text="summary", vector="image")
    assert (layout.text, layout.vector) == (lancelot.Column(("summary",)), "image")
    nested = layout_of(pa.table(columns).select(["payload"]), text="payload.text")
    assert nested.text == lancelot.Column(("payload", "text"))


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ({"text": "boddy"}, 'There is no column "boddy". The columns are text, n, vector.'),
        ({"vector": "vektor"}, 'There is no column "vektor". The columns are text, n, vector.'),
        ({"text": "n"}, 'The column "n" holds int64, not text. The text columns are text.'),
        ({"text": "text.x"}, 'There is no column "text.x". The columns are text, n, vector.'),
        ({"text": "a`b"}, 'There is no column "a`b". The columns are text, n, vector.'),
    ],
)
def test_a_named_column_that_will_not_do_is_a_sentence_with_those_there_are(
    named: dict[str, str], sentence: str, layout_of: Callable[..., lancelot.TableLayout]
) -> None:
    with pytest.raises(LancelotError) as failure:
        layout_of({"text": TEXTS, "n": [1, 2], "vector": VECTORS}, **named)
    assert str(failure.value) == sentence


def test_a_named_vector_column_of_another_type_leaves_text_search(
    layout_of: Callable[..., lancelot.TableLayout],
) -> None:
    layout = layout_of({"text": TEXTS, "n": [1, 2]}, vector="n")
    assert layout.vector_problem == "the column n holds int64, not fixed-size vectors of floats"


def test_among_several_vectors_the_usual_name_then_the_fitting_length_is_taken(
    layout_of: Callable[..., lancelot.TableLayout],
) -> None:
    two = {"text": TEXTS, "small": VECTORS, "large": vectors([1.0, 2, 3], [4.0, 5, 6], kind=pa.float16())}
    assert layout_of(two | {"vector": VECTORS}).vector == "vector"
    assert layout_of(two, length=3).vector == "large"
    assert layout_of(two).vector is None
    assert layout_of(two).vector_problem == (
        "it has several vector columns, small (2), large (3); name one as vectorColumn"
    )


STRING_TYPES = {
    "large": pa.large_string(),
    "view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of large": pa.dictionary(pa.int8(), pa.large_string()),
}


@pytest.mark.parametrize("name", STRING_TYPES)
def test_strings_of_every_encoding_are_searched_and_shown(
    name: str, make_table: Callable[..., Path], search: Search
) -> None:
    kind = STRING_TYPES[name]
    cast = {
        column: pa.array(values, pa.string()).cast(kind)
        for column, values in (("text", [*TEXTS, None]), ("title", [*TITLES, None]), ("source", [*PATHS, None]))
    }
    page = search(make_table(cast), "ZEBRA")
    assert [(hit.text, hit.title, hit.source) for hit in page.hits] == [(TEXTS[0], TITLES[0], PATHS[0])]
    assert page.total == 1


@pytest.mark.parametrize(
    "name", ["my text", "my-text", "Text", "SELECT", "group by", "it's", 'a"b', "año", "a;b", "--", "%", "_distance"]
)
def test_a_column_of_any_name_is_searched(name: str, make_table: Callable[..., Path], search: Search) -> None:
    folder = make_table({"text": ["elephant", "elephant"], name: TEXTS, "vector": VECTORS})
    page = search(folder, "zebra", text_column=name)
    assert (page.total, [hit.text for hit in page.hits]) == (1, ["the zebra runs"])


def test_a_column_whose_name_cannot_be_quoted_does_not_break_the_others(
    make_table: Callable[..., Path], search: Search
) -> None:
    folder = make_table({"text": TEXTS, "n": [1, 2], "a`b": ["x", "y"], "v`c": VECTORS})
    page = search(folder, "zebra")
    assert [(hit.text, hit.metadata) for hit in page.hits] == [("the zebra runs", {"n": 1})]
    for query in ("zebra lion", ""):
        assert [hit.text for hit in search(folder, query, conditions={"n": {"gte": 2}}).hits] == [TEXTS[1]]
    store = Store(str(folder))
    layout = store.layout(store.open("documents"))
    assert layout.vector_problem == "the column v`c has a back-tick in its name, by which LanceDB cannot search"


# --- the text match


AWKWARD = [
    "It's O'Reilly's \"100%\" book: C++ & C#",
    r"C:\dir\new_file.txt and \\server\share",
    "snake_case SnakeXcase snake%case",
    "line one\nline two\r\n\ttabbed",
    "nul\x00inside and bell\x07",
    "regex: ^a.*b+?(c|d)[e-f]{2}$ # ~ &&",
    "; DROP TABLE documents; -- ' OR 1=1",
    "Räksmörgås på ÅNGSTRÖM, Øl",
    "東京都の古い橋の設計図を図書館で確認した",
    "ภาษาไทยไม่มีช่องว่าง",
    "😀 emoji 👩‍👩‍👧 and flags 🇸🇪",
    "Привет МИР ελλαδα",
    "`backticks` $var ${x} {{y}} <b>html</b> @user",
    "a b c d e f g",
    "aaaa AAAA aAaA",
    "%",
    "_",
    "\\",
    "'",
    "''",
    '"',
    "(?i)(?-u)\\Q\\E",
    "١٢٣ ½ ² ™ ñ",
]
MARKED = [
    "cafe\u0301 re\u0301sume\u0301 nai\u0308ve A\u030aA\u0308O\u0308",
    "Straße STRASSE STRAẞE Meßstab Messstab",
    "İstanbul ISPARTA ısparta I\u0307zmir",
    "oﬃce ﬁrst ﬆone ﬂow",
    "Vie\u0323\u0302t Vie\u0302\u0323t VIỆT",
    "ΟΔΟΣ οδος λ\u1f79γος \u212bngstr\u00f6m \u212aelvin ſharp",
]
EMPTY = [None, "", " ", "\n\t", "\x00"]


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, lancelot.TableLayout]]:
    folder = tmp_path_factory.mktemp("awkward")
    table = pa.table({"text": pa.array([*AWKWARD, *MARKED, *EMPTY], pa.string())})
    lancedb.connect(folder).create_table("documents", table)
    store = Store(str(folder))
    opened = store.open("documents")
    yield opened, store.layout(opened)
    shutil.rmtree(folder)


def in_folded(word: str, text: str) -> bool:
    return word in fold(text)


def in_pattern(word: str, text: str) -> bool:
    return re.search(fold_pattern(word), text) is not None


def reference(words: tuple[str, ...], texts: dict[int, str], found: Callable[[str, str], bool]) -> dict[int, float]:
    """The share of the words in each text that has any."""
    shares = {row: sum(found(word, text) for word in words) / len(words) for row, text in texts.items()}
    return {row: share for row, share in shares.items() if share}


def pieces_of(texts: list[str]) -> st.SearchStrategy[str]:
    """Any stretch of any of the texts."""
    return st.sampled_from(texts).flatmap(
        lambda text: st.tuples(st.integers(0, len(text)), st.integers(1, 12)).map(lambda at: text[at[0] :][: at[1]])
    )


odd = st.text(st.sampled_from("ab%_\\'\"\n\x00.*+?()[]{}|^$#~&-;` åÅ設ไ"), max_size=6)
plain_queries = st.lists(st.one_of(pieces_of(AWKWARD), odd), min_size=1, max_size=4).map(" ".join)
marked_queries = st.lists(st.one_of(pieces_of([*AWKWARD, *MARKED]), odd, st.text(max_size=4)), min_size=1).map(" ".join)


@modest
@given(query=plain_queries)
def test_shares_and_total_are_those_of_a_plain_substring_match(
    query: str, awkward: tuple[Any, lancelot.TableLayout]
) -> None:
    words = read_terms(query).counted
    if words:
        ranking = rank_terms(Scope(*awkward), read_terms(query), by_share=True)[0]
        found = {row: share for row, share in zip(ranking.rows, ranking.scores, strict=True) if row < len(AWKWARD)}
        assert found == reference(words, dict(enumerate(AWKWARD)), in_folded)


@modest
@given(query=marked_queries)
def test_the_engine_matches_as_python_does(query: str, awkward: tuple[Any, lancelot.TableLayout]) -> None:
    terms = read_terms(query)
    if terms.counted:
        ranking = rank_terms(Scope(*awkward), terms, by_share=True)[0]
        expected = reference(terms.counted, dict(enumerate([*AWKWARD, *MARKED])), in_pattern)
        assert dict(zip(ranking.rows, ranking.scores, strict=True)) == expected
        assert ranking.total == len(expected)
        assert list(ranking.scores) == sorted(ranking.scores, reverse=True)


@modest
@given(
    text=st.text(
        st.one_of(
            st.sampled_from("ab%_\\'\"\n.*+å設ß"), st.characters(exclude_categories=("Cs",), exclude_characters="\x00")
        )
    )
)
def test_any_text_is_found_by_each_of_its_words(text: str, awkward: tuple[Any, lancelot.TableLayout]) -> None:
    """A text stands in a literal here, so that no table is written for each."""
    words = read_terms(text).counted[:3]
    opened, _ = awkward
    wanted = {
        f"found_{at}": f"regexp_count(lower(concat(left(text, 0), {lancelot.quote_text(text)})), "
        f"{lancelot.quote_text(fold_pattern(word, lowered=True))})"
        for at, word in enumerate(words)
    }
    if wanted:
        row = opened.search().select(wanted).limit(1).to_arrow().to_pylist()[0]
        assert all(row[name] > 0 for name in wanted), (words, row)


def test_equal_shares_are_ordered_by_relevance_then_by_row(make_table: Callable[..., Path], search: Search) -> None:
    texts = ["zebra " + "filler " * 50, "zebra", "no match", "zebra", "zebra zebra zebra", "zebra lion"]
    page = search(make_table({"text": texts}), "zebra lion")
    assert [hit.id for hit in page.hits] == ["row:5", "row:4", "row:1", "row:3", "row:0"]
    assert [hit.score for hit in page.hits] == [1.0, 0.5, 0.5, 0.5, 0.5]


def test_a_whole_run_without_spaces_comes_before_its_scattered_pieces(
    make_table: Callable[..., Path], search: Search
) -> None:
    page = search(make_table({"text": ["計図 設計 計図 設計", "古い橋の設計図を図書館で確認した"]}), "設計図")
    assert [(hit.id, hit.score) for hit in page.hits] == [("row:1", 1.0), ("row:0", 1.0)]


def test_text_inside_json_strings_is_matched_in_any_escape(make_table: Callable[..., Path], search: Search) -> None:
    payloads = [json.dumps({"content": "Räksmörgås"}), json.dumps({"content": "RÄKSMÖRGÅS"}, ensure_ascii=False), "{}"]
    page = search(make_table({"payload": payloads}), "räksmörgås")
    assert page.total == 2


def test_rows_without_text_are_never_hits(
    make_table: Callable[..., Path],
    make_searcher: Callable[..., lancelot.Searcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = make_table({"text": [None, "", "  ", "\n", "a zebra"], "vector": vectors(*[[1.0, 0.0]] * 5)})
    searcher = make_searcher(LANCEDB_PATH=folder, OPENAI_BASE_URL="http://127.0.0.1:9/v1")
    monkeypatch.setattr(searcher.embedder, "embed", lambda texts, **_: [(1.0, 0.0) for _ in texts])
    for search_type in ("text", "fts", "vector", "hybrid", "auto"):
        page = searcher.search(SearchRequest("zebra", 10, search_type))  # type: ignore[arg-type]
        assert [hit.text for hit in page.hits] == ["a zebra"]
        assert page.ran == ("vector" if search_type == "auto" else search_type)
    assert [hit.text for hit in searcher.overview(limit=10).hits] == ["a zebra"]


# --- vectors


def test_rows_written_without_an_embedding_never_come_first(make_table: Callable[..., Path]) -> None:
    rows = vectors([0.0, 0.0], [0.6, 0.8], [0.0, 0.0], [-1.0, 0.0], [1.0, 0.0])
    store = Store(str(make_table({"text": ["zero", "near", "zero", "far", "same"], "vector": rows})))
    table = store.open("documents")
    ranking = lancelot.rank_vector(Scope(table, store.layout(table)), [1.0, 0.0], column="vector")
    assert ranking.rows == (4, 1, 3)
    assert ranking.scores == pytest.approx((0.0, 0.4, 2.0), abs=1e-6)


def test_rows_at_the_same_distance_stand_in_row_order(make_table: Callable[..., Path]) -> None:
    rows = vectors(*[[1.0, 0.0]] * 20)
    store = Store(str(make_table({"text": ["same"] * 20, "vector": rows})))
    table = store.open("documents")
    ranking = lancelot.rank_vector(Scope(table, store.layout(table)), [0.0, 1.0], column="vector")
    assert ranking.rows == tuple(range(20))


def test_vectors_with_nan_and_null_are_passed_over(make_table: Callable[..., Path]) -> None:
    rows = pa.array([[float("nan"), 0.0], None, [1.0, 0.0]], pa.list_(pa.float32(), 2))
    store = Store(str(make_table({"text": ["nan", "null", "good"], "image": rows})))
    table = store.open("documents")
    assert lancelot.rank_vector(Scope(table, store.layout(table)), [1.0, 0.0], column="image").rows == (2,)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_vectors_of_every_float_are_searched(kind: pa.DataType, make_table: Callable[..., Path]) -> None:
    columns = {"text": TEXTS, "vector": vectors([1.0, 0.0], [0.0, 1.0], kind=kind)}
    store = Store(str(make_table(columns)))
    table = store.open("documents")
    assert lancelot.rank_vector(Scope(table, store.layout(table)), [0.1, 0.9], column="vector").rows == (1, 0)


# --- values


UTC = "UTC"
VALUES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "nan": (pa.float64(), float("nan"), None),
    "infinity": (pa.float32(), float("inf"), None),
    "half": (pa.float16(), 1.5, 1.5),
    "big": (pa.uint64(), 2**64 - 1, 2**64 - 1),
    "small": (pa.int8(), -128, -128),
    "flag": (pa.bool_(), True, True),
    "decimal128": (pa.decimal128(20, 3), decimal.Decimal("12345.678"), "12345.678"),
    "decimal256": (pa.decimal256(60, 2), decimal.Decimal(f"1{'0' * 50}.25"), f"1{'0' * 50}.25"),
    "seconds": (pa.timestamp("s"), dt.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02T03:04:05"),  # noqa: DTZ001 - without zone
    "milliseconds": (pa.timestamp("ms"), 1, "1970-01-01T00:00:00.001000"),
    "microseconds": (pa.timestamp("us", UTC), 1, "1970-01-01T00:00:00.000001+00:00"),
    "in a zone": (pa.timestamp("us", "Europe/Stockholm"), 0, "1970-01-01T01:00:00+01:00"),
    "at an offset": (pa.timestamp("ms", "+02:00"), 0, "1970-01-01T02:00:00+02:00"),
    "nanoseconds": (pa.timestamp("ns"), 1_000, "1970-01-01T00:00:00.000001"),
    "a nanosecond": (pa.timestamp("ns"), 1, "1970-01-01 00:00:00.000000001"),
    "the year 33658": (pa.timestamp("s"), 10**12, "<value out of range: 1000000000000>"),
    "a nanosecond of a day": (pa.time64("ns"), 1, "00:00:00.000000001"),
    "a long duration": (pa.duration("s"), 10**17, "100000000000000000"),
    "a date after Python": (pa.date32(), 10**8, "<value out of range: 100000000>"),
    "nanoseconds within": (
        pa.struct([("when", pa.timestamp("ns")), ("all", pa.list_(pa.timestamp("ns")))]),
        {"when": 1, "all": [2, None]},
        {"when": "1970-01-01 00:00:00.000000001", "all": ["1970-01-01 00:00:00.000000002", None]},
    ),
    "date": (pa.date32(), dt.date(2024, 2, 29), "2024-02-29"),
    "date64": (pa.date64(), dt.date(2024, 2, 29), "2024-02-29"),
    "time of day": (pa.time32("s"), dt.time(1, 2, 3), "01:02:03"),
    "time of day in us": (pa.time64("us"), dt.time(1, 2, 3, 4), "01:02:03.000004"),
    "duration": (pa.duration("ms"), dt.timedelta(seconds=90), "PT90S"),
    "nested": (
        pa.struct([("when", pa.timestamp("s")), ("rate", pa.float64()), ("raw", pa.binary())]),
        {"when": 0, "rate": float("nan"), "raw": b"x"},
        {"when": "1970-01-01T00:00:00"},
    ),
    "list": (pa.list_(pa.string()), ["a", None, "b"], ["a", None, "b"]),
    "list of structs": (pa.list_(pa.struct([("x", pa.int32())])), [{"x": 1}], [{"x": 1}]),
    "large list": (pa.large_list(pa.int64()), [1, 2], [1, 2]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), "word", "word"),
    "null": (pa.null(), None, None),
    "absent": (pa.string(), None, None),
    "json": (pa.string(), '{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
    "map": (pa.map_(pa.string(), pa.int32()), [("a", 1)], [["a", 1]]),
}
LEFT_OUT = {
    "binary": (pa.binary(), b"\x00\xff"),
    "large binary": (pa.large_binary(), b"\x00\xff"),
    "fixed binary": (pa.binary(2), b"\x00\xff"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_every_arrow_type_comes_back_in_the_answer(
    name: str, make_table: Callable[..., Path], search: Search
) -> None:
    kind, value, shown = VALUES[name]
    try:
        folder = make_table(pa.table({"text": ["a zebra"], "value": pa.array([value], kind)}))
    except (RuntimeError, ValueError, OSError) as error:  # this version of LanceDB cannot store the type
        pytest.skip(str(error).splitlines()[0][:100])
    answer = json.loads(lancelot.search_json(search(folder, "zebra")))
    assert answer["hits"][0]["metadata"] == ({} if shown is None else {"value": shown})


@pytest.mark.parametrize("name", LEFT_OUT)
def test_binary_values_are_left_out(name: str, make_table: Callable[..., Path], search: Search) -> None:
    kind, value = LEFT_OUT[name]
    page = search(make_table(pa.table({"text": ["a zebra"], "value": pa.array([value], kind)})), "zebra")
    assert page.hits[0].metadata == {}


def test_an_unsigned_or_signed_number_is_an_id_and_null_falls_back_to_the_row(
    make_table: Callable[..., Path], search: Search
) -> None:
    columns = {"id": pa.array([2**64 - 1, None, 0], pa.uint64()), "text": ["zebra"] * 3}
    assert [hit.id for hit in search(make_table(columns), "zebra").hits] == [2**64 - 1, "row:1", 0]


def test_an_empty_own_id_falls_back_to_the_row(make_table: Callable[..., Path], search: Search) -> None:
    assert [hit.id for hit in search(make_table({"id": ["", "x"], "text": ["zebra"] * 2}), "zebra").hits] == [
        "row:0",
        "x",
    ]


# --- Lance's legacy file format


def everything(searcher: lancelot.Searcher) -> list[Any]:
    """What each way to find or to read rows gives, in values that do not depend on the folder."""
    wanted = {"meta.n": {"lt": 40}, "title": {"ne": "part 3"}}
    almost_all, few = {"meta.n": {"ne": 7}}, {"meta.n": [8, 20, 36]}
    given: list[Any] = []
    for search_type, query in itertools.product(lancelot.SEARCH_TYPES, ("zebra quagga", "okapi")):
        for conditions, offset in itertools.product((None, wanted, almost_all, few), (0, 3)):
            request = SearchRequest(query, 5, search_type, offset=offset, conditions=conditions)
            page = searcher.search(request)
            given.append((page.ran, page.total, page.notes, [(hit.id, hit.text, hit.title) for hit in page.hits]))
    given += [searcher.search(SearchRequest("", 20, "auto", conditions=one)).hits for one in (wanted, few)]
    given += [searcher.read(one, before=1, after=2) for one in ("id8", "id51", "new")]
    return [
        *given,
        searcher.files(limit=50, offset=0),
        searcher.overview(limit=5),
        searcher.overview(limit=5, conditions=few),
    ]


@pytest.mark.parametrize("text", ["text", "payload.text"])
@pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])
def test_a_table_in_the_legacy_format_gives_what_the_same_rows_give_in_the_newest(
    text: str, tmp_path: Path, make_searcher: Callable[..., lancelot.Searcher], *, indexed: bool
) -> None:
    def rows(numbers: Iterable[int]) -> pa.Table:
        texts = [f"the {('zebra', 'quagga', 'okapi')[n % 3]} number {n}" if n % 10 else " " for n in numbers]
        columns: dict[str, Any] = {
            "id": [f"id{n}" for n in numbers],
            "title": [f"part {n % 5}" for n in numbers],
            "meta": [json.dumps({"n": n}) for n in numbers],
            "source": [f"file{n % 4}.md" for n in numbers],
            "vector": vectors(*([math.cos(n), math.sin(n)] for n in numbers)),
        }
        columns |= {"text": texts} if text == "text" else {"payload": [json.dumps({"text": one}) for one in texts]}
        return pa.table(columns)

    def written(version: str) -> lancelot.Searcher:
        database = lancedb.connect(tmp_path / version)
        with warnings.catch_warnings(action="ignore"):  # the engine's way to write this format is on its way out
            table = database.create_table("documents", rows(range(30)), data_storage_version=version)
        table.add(rows(range(30, 60)))
        table.delete("id IN ('id4', 'id31', 'id32')")
        table.update(where="id = 'id49'", values={"id": "new"})
        if indexed:
            table.create_index("id", config=BTree())
            table.create_index("vector", config=IvfFlat(distance_type="cosine", num_partitions=2))
            if text == "text":
                table.create_index("text", config=FTS())
        table.add(rows(range(60, 70)))
        searcher = make_searcher(LANCEDB_PATH=tmp_path / version, OPENAI_BASE_URL="http://127.0.0.1:9/v1")
        searcher.embedder = FixedEmbedder(searcher.settings)
        return searcher

    legacy, newest = written("legacy"), written("stable")
    with pytest.raises(RuntimeError, match="v1 files"):
        legacy.store.open("documents").take_row_ids([0]).select(["id"]).to_arrow()
    assert everything(legacy) == everything(newest)
    assert legacy.status().unreadable == {}


# --- tables whose manifest names other places


def cloned(tmp_path: Path, base: str, make_table: Callable[..., Path]) -> Path:
    """A folder with a shallow clone whose manifest names this base, filled up with letters, for all of its files."""
    source = make_table({"text": ["a zebra"] * 2}, folder="a folder beside it with a long name") / "documents.lance"
    table = lancedb.connect(source.parent).open_table("documents")
    table.create_index("text", config=FTS())
    table.delete("_rowid = 0")
    lancedb.connect(tmp_path / "db").clone_table("clone", str(source))
    (manifest,) = (tmp_path / "db" / "clone.lance" / "_versions").glob("*.manifest")
    content, old = manifest.read_bytes(), str(source).encode()
    assert content.count(old) == 2  # in the transaction, and in the manifest itself
    assert len(base) < len(old)
    manifest.write_bytes(content.replace(old, base.encode().ljust(len(old), b"x")))
    return tmp_path / "db"


@pytest.fixture
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the engine asks of a store that has nothing, which every s3:// address leads to."""
    asked: list[str] = []

    def nothing(request: Handler) -> Reply:
        asked.append(request.path)
        return 404, {}, b""

    with serving(nothing) as server:
        monkeypatch.setenv("AWS_ENDPOINT", server.host)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        yield asked


@pytest.mark.parametrize(
    "base",
    [
        "s3://bucket/",
        "http://127.0.0.1/",
        "file:///",
        "relative/",
        "{tmp}/",
        "{tmp}/db/../",
        "{tmp}/db-",
        "\\\\host\\",
        "\0",
    ],
)
def test_a_table_that_keeps_files_elsewhere_is_refused_by_name_and_nothing_is_read_there(
    base: str,
    tmp_path: Path,
    make_table: Callable[..., Path],
    make_searcher: Callable[..., lancelot.Searcher],
    object_store: list[str],
) -> None:
    folder = cloned(tmp_path, base.format(tmp=tmp_path), make_table)
    make_table({"text": ["a zebra"]})
    searcher = make_searcher(LANCEDB_PATH=folder)
    refused = r"The table clone keeps files outside its database folder, in .*x\. Let the program"
    with pytest.raises(LancelotError, match=refused):
        searcher.search(SearchRequest("zebra", 10, "text", table="clone"))
    with pytest.raises(LancelotError, match=refused):
        lancelot_index.ChunkTable.open(folder, "clone", create=False)
    status = searcher.status()
    assert [layout.table for layout in status.tables] == ["documents"]
    assert status.unreadable["clone"].cause.startswith("The table clone keeps files outside its database folder, in ")
    assert object_store == []


def test_a_clone_of_a_table_in_the_same_folder_is_searched(make_table: Callable[..., Path], search: Search) -> None:
    folder = make_table({"text": ["a zebra", "a lion"]})
    lancedb.connect(folder).clone_table("clone", str(folder / "documents.lance"))
    assert [hit.text for hit in search(folder, "zebra", table="clone").hits] == ["a zebra"]


@pytest.mark.parametrize("number", [*range(0, 200, 7), 2**14, 2**32, 2**64 - 1])
def test_a_field_is_found_whatever_stands_before_it(number: int) -> None:
    def varint(value: int, *, padded: bool = False) -> bytes:
        groups = [value >> shift & 0x7F for shift in range(0, 70, 7) if padded or value >> shift or not shift]
        return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])

    fixed = varint(3 << 3 | 1) + bytes(8) + varint(4 << 3 | 5) + b"\xff" * 4
    before = (
        varint(1 << 3) + varint(number) + fixed + varint(2 << 3 | 2) + varint(number % 300) + b"\x92" * (number % 300)
    )
    for padded in (False, True):
        message = before + varint(18 << 3 | 2, padded=padded) + varint(4, padded=padded) + b"path"
        assert list(lancelot.protobuf_fields(message, 18)) == [b"path"]
    for damaged in (before[:-1] + b"\x80" * 11 + b"\0", message[:-7] + b"\xfb", message + b"\x0b"):
        with pytest.raises((IndexError, KeyError)):
            list(lancelot.protobuf_fields(damaged, 18))


# --- the newest version


def test_rows_that_another_connection_adds_changes_or_drops_are_seen(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_table({"text": ["first zebra"]})
    searcher = make_searcher(LANCEDB_PATH=folder)

    def found() -> list[str]:
        return [hit.text for hit in searcher.search(SearchRequest("zebra", 10, "text")).hits]

    assert found() == ["first zebra"]
    other = lancedb.connect(folder)
    other.open_table("documents").add(pa.table({"text": ["second zebra"]}))
    assert sorted(found()) == ["first zebra", "second zebra"]
    other.open_table("documents").delete("text = 'first zebra'")
    assert found() == ["second zebra"]
    other.drop_table("documents")
    waits: list[float] = []

    def replaced_meanwhile(seconds: float) -> None:
        waits.append(seconds)
        other.create_table("documents", pa.table({"body": ["third zebra"], "title": ["new"]}), mode="overwrite")

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", replaced_meanwhile)
        assert found() == ["third zebra"]
    assert len(waits) == 1


@pytest.mark.parametrize("others", [(), ("another",)], ids=["the only one", "one of two"])
def test_a_table_that_was_dropped_is_told_as_none(
    others: tuple[str, ...], make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    folder = make_table({"text": ["zebra"]})
    database = lancedb.connect(folder)
    for name in others:
        database.create_table(name, pa.table({"text": ["zebra"]}))
    searcher = make_searcher(LANCEDB_PATH=folder)
    asked = SearchRequest("zebra", 1, "text", table="documents")
    assert searcher.search(asked).hits
    database.drop_table("documents")
    with pytest.raises(LancelotError, match=r'^There is no table "documents"\.'):
        searcher.search(asked)
    database.create_table("documents", pa.table({"text": ["zebra again"]}))
    assert [hit.text for hit in searcher.search(asked).hits] == ["zebra again"]


def rewrite_before(name: str, monkeypatch: pytest.MonkeyPatch, rewrite: Callable[[], None]) -> None:
    """Rewrites the table once, at the moment when this function of the module is called."""
    call = getattr(lancelot, name)

    def late(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(lancelot, name, call)
        rewrite()
        return call(*args, **options)

    monkeypatch.setattr(lancelot, name, late)


def test_a_table_rewritten_under_the_reader_is_read_once_more(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_table({"text": ["old zebra"]})
    searcher = make_searcher(LANCEDB_PATH=folder)

    def rewrite() -> None:
        database = lancedb.connect(folder)
        database.drop_table("documents")
        database.create_table("documents", pa.table({"text": ["new zebra"]}))

    rewrite_before("rank_terms", monkeypatch, rewrite)
    page = searcher.search(SearchRequest("zebra", 10, "text"))
    assert [hit.text for hit in page.hits] == ["new zebra"]


def test_the_rows_that_are_read_are_those_that_were_ranked(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_table({"text": ["lion", "old zebra", "tiger"]})
    searcher = make_searcher(LANCEDB_PATH=folder)

    def rewrite() -> None:
        columns = pa.table({"text": ["bear", "wolf", "fox"]})
        lancedb.connect(folder).create_table("documents", columns, mode="overwrite")

    rewrite_before("fetch_hits", monkeypatch, rewrite)
    assert [hit.text for hit in searcher.search(SearchRequest("zebra", 10, "text")).hits] == ["old zebra"]
    assert searcher.search(SearchRequest("zebra", 10, "text")).hits == ()


def test_a_failure_of_the_engine_is_a_sentence_without_its_source_lines() -> None:
    with pytest.raises(LancelotError) as failure, lancelot.engine_errors("do it"):
        raise RuntimeError("it broke, /home/x/.cargo/registry/src/lance-1.0/src/a.rs:12:3")  # noqa: EM101, TRY003 - the engine's words
    assert str(failure.value).startswith("LanceDB could not do it: it broke.")


def test_a_panic_of_the_engine_is_a_sentence_and_an_interrupt_is_not_held_back() -> None:
    for panic in (type("PanicException", (BaseException,), {}), type("RustPanic", (Exception,), {})):
        with pytest.raises(LancelotError, match="could not do it"), lancelot.engine_errors("do it"):
            raise panic
    with pytest.raises(KeyboardInterrupt), lancelot.engine_errors("do it"):
        raise KeyboardInterrupt


# --- reading only


def stamps(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Content, mtime and ctime of everything below a folder, and of the folder itself."""
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns, path.stat().st_ctime_ns)
        for path in (folder, *folder.rglob("*"))
    }


@pytest.mark.parametrize("name", ["anythingllm", "langchain-json", "no-vector"])
def test_no_call_changes_a_byte_or_a_time_of_the_folder(  # noqa: PLR0913, PLR0917 - the servers that calls ask
    name: str,
    folder_copy: Callable[[str], Path],
    make_searcher: Callable[..., lancelot.Searcher],
    expected: dict[str, Any],
    embedding_server: Callable[..., str],
    chat_server: Callable[..., str],
) -> None:
    folder = folder_copy(name)
    before = stamps(folder)
    chat = {"LANCELOT_CHAT_MODEL": "m", "LANCELOT_CHAT_BASE_URL": chat_server()}
    searcher = make_searcher(LANCEDB_PATH=folder, OPENAI_BASE_URL=embedding_server(), **chat)
    for table, text in ((entry["name"], entry["pick"]["text"]) for entry in expected[name]["tables"]):
        for tool in lancelot.tools_for(searcher.settings):
            given_arguments = {
                "query": "python",
                "question": "python",
                "table": table,
                "searchType": "auto",
                "id": "row:1",
                "before": "3",
                "filter": json.dumps({text: {"exists": True}}),
                "verbose": True,
                "column": text,
            }
            names = {parameter.name for parameter in tool.parameters}
            arguments = {key: value for key, value in given_arguments.items() if key in names}
            assert tool.text(tool.run(searcher, **tool.parse_arguments(arguments, searcher.settings)))
        searcher.overview(limit=5, table=table)
        searcher.search(SearchRequest("python", 5, "text", table=table))
    assert stamps(folder) == before
