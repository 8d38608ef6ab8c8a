"""The status tells a model how to search: columns and why, indexes and what they cover, searches that work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from conftest import DATABASES
from lancedb.index import FTS, BTree

import lancelot

MakeSearcher = Callable[..., lancelot.Searcher]
ENDPOINT = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}


def table_of(searcher: lancelot.Searcher, *, verbose: bool = False) -> dict[str, Any]:
    """The only table in the status."""
    (table,) = json.loads(lancelot.status_json(searcher.status(), verbose=verbose))["tables"]
    return table


@pytest.fixture
def indexed(make_table: Callable[..., Path]) -> Path:
    """A table with two indexes and rows that came after them."""
    vectors = pa.array([[1.0, 0.0]] * 3, pa.list_(pa.float32(), 2))
    schema = pa.schema([("text", pa.string()), ("year", pa.int16()), ("vector", vectors.type)])
    folder = make_table(pa.table({"text": ["a", "b", "c"], "year": [1, 2, 3], "vector": vectors}, schema=schema))
    table = lancedb.connect(folder).open_table("documents")
    table.create_index("text", config=FTS(base_tokenizer="icu/split", with_position=True))
    table.create_index("year", config=BTree())
    table.add(pa.table({"text": ["d", "e"], "year": [4, 5], "vector": vectors[:2]}, schema=schema))
    return folder


def test_indexes_are_told_with_their_tokenizer_and_the_rows_they_cover(
    indexed: Path, make_searcher: MakeSearcher
) -> None:
    table = table_of(make_searcher(LANCEDB_PATH=indexed), verbose=True)
    assert table["rows"] == 5
    for index in table["indexes"]:
        index.pop("details", None)
    assert sorted(table["indexes"], key=lambda index: index["columns"]) == [
        {
            "columns": ["text"],
            "type": "FTS",
            "tokenizer": "icu/split",
            "phrases": True,
            "rowsCovered": 3,
            "rowsNotCovered": 2,
        },
        {"columns": ["year"], "type": "BTREE", "rowsCovered": 3, "rowsNotCovered": 2},
    ]


def test_a_status_is_short_and_verbose_adds_types_and_the_settings_of_indexes(
    indexed: Path, make_searcher: MakeSearcher
) -> None:
    short, verbose = (table_of(make_searcher(LANCEDB_PATH=indexed), verbose=verbose) for verbose in (False, True))
    assert ("columns" in short, short["filterBy"]) == (False, "year")
    assert all("details" not in index for index in short["indexes"])
    assert verbose["columns"] == {"text": "string", "year": "int16", "vector": "fixed_size_list<item: float>[2]"}
    (text,) = (index for index in verbose["indexes"] if index["columns"] == ["text"])
    assert text["details"]["with_position"] is True
    assert len(json.dumps(short)) < len(json.dumps(verbose)) / 2


@pytest.mark.parametrize(
    ("environ", "searches"),
    [
        ({}, ["fts", "text", "auto"]),
        (ENDPOINT | {"EMBEDDING_MODEL": "my-model"}, ["hybrid", "fts", "vector", "text", "auto"]),
        (ENDPOINT | {"EMBEDDING_MODEL": "nomic-embed-text"}, ["fts", "text", "auto"]),
        (ENDPOINT | {"EMBEDDING_DIMENSIONS": "384"}, ["fts", "text", "auto"]),
        (
            ENDPOINT | {"EMBEDDING_MODEL": "nomic-embed-text", "EMBEDDING_DIMENSIONS": "2"},
            ["hybrid", "fts", "vector", "text", "auto"],
        ),
    ],
    ids=str,
)
def test_the_searches_that_work_are_listed_the_best_one_first(
    indexed: Path, make_searcher: MakeSearcher, environ: dict[str, str], searches: list[str]
) -> None:
    table = table_of(make_searcher(LANCEDB_PATH=indexed, **environ), verbose=True)
    assert (table["searchTypes"], table["bestSearchType"]) == (searches, searches[0])


def test_the_searches_that_are_listed_run(indexed: Path, make_searcher: MakeSearcher) -> None:
    searcher = make_searcher(LANCEDB_PATH=indexed)
    for search_type in table_of(searcher)["searchTypes"]:
        page = searcher.search(lancelot.SearchRequest("b", 5, search_type))
        assert page.ran == {"auto": "text"}.get(search_type, search_type)
        assert page.notes == ()


@pytest.mark.parametrize(
    ("columns", "environ", "reasons"),
    [
        ({"text": ["a"], "vector": 2}, {}, {"text": "usual name", "vector": "only one"}),
        (
            {"story": ["a long story of some words"], "x": ["b c"], "embedding": 2},
            {},
            {"text": "longest texts", "vector": "only one"},
        ),
        ({"text": ["a"], "vector": 2, "other": 4}, {}, {"text": "usual name", "vector": "usual name"}),
        (
            {"text": ["a"], "small": 2, "large": 4},
            {"EMBEDDING_DIMENSIONS": "4"},
            {"text": "usual name", "vector": "length of the embedding model"},
        ),
        ({"path": ["/a"], "vector": 2}, {}, {"vector": "only one"}),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else None,
)
def test_why_a_column_was_chosen_is_told(
    columns: dict[str, Any],
    environ: dict[str, str],
    reasons: dict[str, str],
    make_table: Callable[..., Path],
    make_searcher: MakeSearcher,
) -> None:
    made = {
        name: pa.array([[1.0] * value], pa.list_(pa.float32(), value)) if isinstance(value, int) else value
        for name, value in columns.items()
    }
    assert table_of(make_searcher(LANCEDB_PATH=make_table(made), **environ), verbose=True)["chosenBy"] == reasons


def test_a_table_without_text_is_listed_as_one_that_cannot_be_searched(
    make_table: Callable[..., Path], make_searcher: MakeSearcher
) -> None:
    columns = {"path": ["/a.py"], "uuid": ["1"], "vector": pa.array([[1.0, 0.0]], pa.list_(pa.float32(), 2))}
    searcher = make_searcher(LANCEDB_PATH=make_table(columns))
    table = table_of(searcher)
    assert "searchTypes" not in table
    assert table["note"].startswith("vectors only")
    for search_type in lancelot.SEARCH_TYPES:
        with pytest.raises(lancelot.LancelotError, match="holds vectors only"):
            searcher.search(lancelot.SearchRequest("a", 5, search_type))
    assert [one.source for one in searcher.files(limit=5, offset=0).files] == ["/a.py"]


def test_a_status_of_real_folders_is_short(make_searcher: MakeSearcher, expected: dict[str, Any]) -> None:
    for folder, tables in expected.items():
        for named in ({}, {"LANCEDB_TABLE": tables["tables"][0]["name"]}):
            status = lancelot.examined_status(make_searcher(LANCEDB_PATH=DATABASES / folder, **named))
            assert len(text := lancelot.status_json(status, verbose=False)) < 900, text


def test_a_status_names_what_to_filter_by_also_inside_structs_and_json(
    make_table: Callable[..., Path], make_searcher: MakeSearcher
) -> None:
    rows = [{"published": "2024-05-01", "stats": {"year": 7}, "none": None}, {"tags": ["a"], "is_new": True}]
    inner = pa.array([{"city": "Oslo"}] * 3)
    columns = {"id": [1, 2, 3], "text": ["a"] * 3, "metadata": [*map(json.dumps, rows), "no JSON"], "place": inner}
    searcher = make_searcher(LANCEDB_PATH=make_table(columns))
    names = {
        "metadata.published": "date",
        "metadata.stats.year": "number",
        "metadata.tags": "list",
        "metadata.is_new": "boolean",
        "place.city": "text",
    }
    assert table_of(searcher)["filterBy"] == ", ".join(names)
    assert names.items() <= table_of(searcher, verbose=True)["columns"].items()
    for name in names:
        assert searcher.values(name, limit=1, offset=0).total == 1


def test_a_hostile_metadata_column_does_not_fill_a_status(
    make_table: Callable[..., Path], make_searcher: MakeSearcher
) -> None:
    deep = "{}"
    for _ in range(100):
        deep = f'{{"x": {deep}}}'
    wide = json.dumps({f"key {number}\n{'x' * 300}": number for number in range(20_000)})
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": ["a", "b"], "metadata": [deep, wide]}))
    assert len(table_of(searcher)["filterBy"]) <= 250
    assert len(table_of(searcher, verbose=True)["columns"]) <= 110


def test_of_the_checks_only_those_that_found_something_are_listed_unless_all_are_asked_for(
    make_table: Callable[..., Path], make_searcher: MakeSearcher
) -> None:
    folder = make_table({"path": ["/a.py"], "vector": pa.array([[1.0, 0.0]], pa.list_(pa.float32(), 2))})
    status = lancelot.examined_status(make_searcher(LANCEDB_PATH=folder, LANCEDB_DEFAULT_LIMIT="many"))
    short, all_of_it = (json.loads(lancelot.status_json(status, verbose=v)) for v in (False, True))
    listed = [line["status"] for line in all_of_it["health"]]
    assert [(line["name"], line["status"]) for line in short["health"]] == [
        ("settings", "failed"),
        ("other checks", "ok"),
    ]
    assert short["health"][-1]["message"] == f"{listed.count('ok')} well, 1 as noted"
    assert (listed.count("warning"), listed.count("failed")) == (1, 1)
    assert short["tables"][0]["note"] in [line["message"] for line in all_of_it["health"]][listed.index("warning")]
