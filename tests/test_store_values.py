"""The values of a column and rows in their order: what plain Python makes of them, for every type that a table can hold."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from conftest import DATABASES
from hypothesis import given, settings
from hypothesis import strategies as st

import lancelot

EPOCH = dt.datetime(2024, 3, 31, 0, 30, tzinfo=dt.timezone.utc)
MOMENTS = st.integers(-(10**6), 10**6).map(lambda minutes: EPOCH + dt.timedelta(minutes=minutes))
NAIVE = MOMENTS.map(lambda moment: moment.replace(tzinfo=None))
SPANS = st.integers(-9, 9).map(lambda seconds: dt.timedelta(seconds=seconds))
CLOCKS = st.integers(0, 59).map(lambda minute: dt.time(9, minute))
DAYS = MOMENTS.map(lambda moment: moment.date())
FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, -2.25, 4.0])
CENTS = st.integers(-500, 500).map(lambda cents: decimal.Decimal(cents) / 100)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)
WITH_ORDER: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float16": (pa.float16(), FLOATS),
    "float32": (pa.float32(), FLOATS),
    "float64": (pa.float64(), FLOATS),
    "decimal128": (pa.decimal128(12, 2), CENTS),
    "decimal256": (pa.decimal256(50, 3), CENTS),
    "date32": (pa.date32(), DAYS),
    "date64": (pa.date64(), DAYS),
    "timestamp": (pa.timestamp("ms"), NAIVE),
    "timestamp with zone": (pa.timestamp("us", "Europe/Stockholm"), MOMENTS),
    "timestamp in nanoseconds": (pa.timestamp("ns", "UTC"), MOMENTS),
    "time32": (pa.time32("s"), CLOCKS),
    "time64": (pa.time64("ns"), CLOCKS),
    "duration": (pa.duration("ms"), SPANS),
    "duration in nanoseconds": (pa.duration("ns"), SPANS),
    "text": (pa.string(), TEXTS),
    "large text": (pa.large_string(), TEXTS),
    "dictionary of texts": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "dictionary of numbers": (pa.dictionary(pa.int8(), pa.int64()), st.integers(-9, 9)),
}
JSON_VALUES = st.one_of(st.booleans(), st.integers(-9, 9), st.sampled_from([1.0, 0.5, -3.25]), TEXTS)


def rows_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Few different values, in many rows, some of which have none."""
    pools = st.lists(values, min_size=1, max_size=5)
    return pools.flatmap(lambda pool: st.lists(st.sampled_from([None, *pool]), max_size=30))


def scope_of(folder: Path, columns: dict[str, Any], *, where: str | None = None) -> lancelot.Scope:
    table = lancedb.connect(tempfile.mkdtemp(dir=folder)).create_table("documents", pa.table(columns))
    return lancelot.Scope(table, lancelot.table_layout(table), where)


def sorted_rows(scopes: list[lancelot.Scope], order: dict[str, bool]) -> list[int]:
    ranking = lancelot.sorted_rows(scopes, order)
    assert len(ranking.scores) == len(ranking.rows) == ranking.total
    return list(ranking.rows)


def is_there(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def in_order(values: list[Any], *, descends: bool, key: Callable[[Any], Any] = lambda value: value) -> list[int]:
    """The rows of these values as plain Python sorts them, those without a value last."""
    there = [row for row, value in enumerate(values) if is_there(value)]
    missing = [row for row, value in enumerate(values) if not is_there(value)]
    return sorted(there, key=lambda row: key(values[row]), reverse=descends) + missing


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("values")


# The order of rows


@pytest.mark.parametrize("name", WITH_ORDER)
@settings(max_examples=8)
@given(data=st.data(), descends=st.booleans())
def test_rows_are_sorted_as_python_sorts_them(
    name: str,
    data: st.DataObject,
    descends: bool,  # noqa: FBT001 - both directions
    folder: Path,
) -> None:
    kind, values = WITH_ORDER[name]
    stored = pa.array(data.draw(rows_of(values)), kind)
    nested = pa.StructArray.from_arrays([stored], ["in ner"])
    scope = scope_of(folder, {"c": stored, "s": nested})
    rows = in_order(stored.to_pylist(), descends=descends)
    assert sorted_rows([scope], {"c": descends}) == rows
    assert sorted_rows([scope], {"s.in ner": descends}) == rows


def float_or_same(value: Any) -> Any:
    """The value, where two NaN are one."""
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def by_type(value: Any) -> tuple[str, Any]:
    return "number" if type(value) in (int, float) else type(value).__name__, value


@settings(max_examples=30)
@given(values=rows_of(JSON_VALUES), descends=st.booleans())
def test_values_in_json_are_sorted_within_their_type(
    values: list[Any],
    descends: bool,  # noqa: FBT001 - both directions
    folder: Path,
) -> None:
    texts = pa.array([None if value is None else json.dumps({"k": value}) for value in values], pa.string())
    scope = scope_of(folder, {"js": texts, "ar": texts.cast(pa.json_())})
    rows = in_order(values, descends=descends, key=by_type)
    assert sorted_rows([scope], {"js.k": descends}) == rows
    assert sorted_rows([scope], {"ar.k": descends}) == rows


def test_rows_alike_in_one_column_are_sorted_by_the_next_and_then_by_row(folder: Path) -> None:
    scope = scope_of(folder, {"a": [1, 2, 1, None, 2, 1], "b": ["x", "x", "y", "x", "x", "x"]})
    assert sorted_rows([scope], {"a": True, "b": True}) == [1, 4, 2, 0, 5, 3]
    assert sorted_rows([scope], {"b": False, "a": False}) == [0, 5, 1, 4, 3, 2]
    assert sorted_rows([replace(scope, where="a = 1")], {"b": True}) == [2, 0, 5]
    assert sorted_rows([replace(scope, where="false")], {"b": True}) == []


DATES = ["8/25/2026, 1:02:03 AM", "12/1/2025, 9:00:00 PM", "", "8/9/2026, 1:02:03 AM", None]


def test_text_that_is_dates_is_sorted_as_dates_also_in_json(folder: Path) -> None:
    js = [json.dumps({"date": date}) for date in DATES]
    scope = scope_of(folder, {"published": DATES, "js": js})
    for name in ("published", "js.date"):
        assert sorted_rows([scope], {name: True}) == [0, 3, 1, 2, 4]
        assert sorted_rows([scope], {name: False}) == [1, 3, 0, 2, 4]


def test_long_texts_are_sorted_by_their_beginnings(folder: Path) -> None:
    texts = ["b" * 10**6, "a" * 10**6 + "b", "a" * 10**6 + "a"]
    js = [json.dumps({"k": text}) for text in texts]
    scope = scope_of(folder, {"c": texts, "js": js})
    assert [sorted_rows([scope], {name: False}) for name in ("c", "js.k")] == [[1, 2, 0]] * 2


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "tags",
            "The column tags holds list<item: string>, which has no order to sort by. Sort by a column of numbers",
        ),
        ("blob", "The column blob holds binary, which has no order"),
        ("s", r"The column s holds struct<n: int64>, which has no order"),
        ("ar", r"or by a key of its JSON, as in ar\.KEY\.$"),
        ("nosuch", r'There is no column "nosuch"\. The columns are tags, blob, ar, ar\.KEY of its JSON, s\.n\.$'),
        ("x" * 5000, "There is no column"),
        ("", "There is no column"),
    ],
)
def test_a_column_that_cannot_be_sorted_by_is_a_sentence(folder: Path, name: str, told: str) -> None:
    columns = {"tags": [["a"]], "blob": [b"x"], "s": [{"n": 1}], "ar": pa.array(["{}"], pa.json_())}
    with pytest.raises(lancelot.LancelotError, match=told):
        sorted_rows([scope_of(folder, columns)], {name: True})


def test_a_column_is_named_as_hits_name_it_if_no_other_has_the_name(folder: Path) -> None:
    meta = [json.dumps({"source": source, "title": source.upper()}) for source in ("b", "a", "c")]
    scope = scope_of(folder, {"chunk_id": [7, 8, 9], "body": ["z z", "y y", "x x"], "metadata": meta})
    orders = {name: sorted_rows([scope], {name: False}) for name in ("source", "title", "id", "text")}
    assert orders == {"source": [1, 0, 2], "title": [1, 0, 2], "id": [0, 1, 2], "text": [2, 1, 0]}


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ("date", {"date": False}),
        (" -a b.c ", {"a b.c": True}),
        ('{"date": "DESC", "title": "asc"}', {"date": True, "title": False}),
        ('{"-x": "asc"}', {"-x": False}),
        ("{}", None),
        (" ", None),
    ],
)
def test_an_order_is_read(given: str, order: dict[str, bool] | None) -> None:
    assert lancelot.parse_sort(given) == order


@pytest.mark.parametrize(
    "given", ['{"a": "down"}', '{"a": null}', '{"a": {}}', "{a", json.dumps(dict.fromkeys("abcde", "asc"))]
)
def test_an_order_that_cannot_be_read_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r'-column, or {"column": "desc"} with at most 4 columns'):
        lancelot.parse_sort(given)


# The values of a column

ELEMENTS = {name: WITH_ORDER[name] for name in ("int8", "float32", "decimal128", "timestamp", "text", "bool")}
OTHERS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "binary": (pa.binary(), st.binary(max_size=3)),
    "large binary": (pa.large_binary(), st.binary(max_size=3)),
    "fixed binary": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "null": (pa.null(), st.none()),
    "struct": (
        pa.struct({"a": pa.int64(), "b": pa.string()}),
        st.fixed_dictionaries({"a": st.integers(0, 2), "b": TEXTS}),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(TEXTS, st.integers(0, 2), max_size=2).map(lambda d: [*d.items()]),
    ),
    "uuid": (pa.uuid(), st.uuids().map(lambda identity: identity.bytes)),
}


def values_of(folder: Path, columns: dict[str, Any], name: str = "c", **options: Any) -> lancelot.ValuePage:
    window = {"limit": 1000, "offset": 0}
    return lancelot.count_values([scope_of(folder, columns, **options)], name, **window)


def most_frequent(values: Iterable[Any], key: Callable[[Any], Any] = lambda value: value) -> list[tuple[Any, int]]:
    """What plain Python counts: the most frequent first, ties by value."""
    return sorted(Counter(values).items(), key=lambda pair: (-pair[1], key(pair[0])))


def quartiles(values: list[Any]) -> list[Any]:
    """The least, the three quartiles and the greatest of the values, each one of them."""
    ranked = sorted(values)
    return [ranked[max(1, math.ceil(len(ranked) * quarter / 4)) - 1] for quarter in range(5)] if ranked else []


@pytest.mark.parametrize("name", WITH_ORDER)
@settings(max_examples=8)
@given(data=st.data())
def test_values_are_counted_as_python_counts_them(name: str, data: st.DataObject, folder: Path) -> None:
    kind, strategy = WITH_ORDER[name]
    stored = pa.array(data.draw(rows_of(strategy)), kind)
    values = stored.to_pylist()
    columns = {
        "c": stored,
        "s": pa.StructArray.from_arrays([stored], ["c"]),
        "n": pa.array(range(len(stored)), pa.int64()),
    }
    for column, where, part in (("c", None, values), ("s.c", None, values), ("c", "n >= 5", values[5:])):
        page = values_of(folder, columns, column, where=where)
        there = list(filter(is_there, part))
        assert list(page.values) == most_frequent(there)
        assert (page.rows, page.total) == (len(part), len(set(there)))
        assert page.missing["nulls"] == part.count(None)
        assert page.missing["nan"] == len(part) - part.count(None) - len(there)
        if name not in ("bool", "text", "large text", "dictionary of texts"):
            assert list(page.spread.values()) == quartiles(there)
        else:
            assert page.spread == {}


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list])
@settings(max_examples=8)
@given(data=st.data())
def test_lists_are_counted_by_the_rows_that_hold_an_element(
    list_of: Callable[[pa.DataType], pa.DataType], name: str, data: st.DataObject, folder: Path
) -> None:
    kind, strategy = ELEMENTS[name]
    stored = pa.array(data.draw(rows_of(st.lists(strategy | st.none(), max_size=4))), list_of(kind))
    lists = [None if value is None else value for value in stored.to_pylist()]
    page = values_of(folder, {"c": stored})
    held = [element for value in lists for element in {*map(float_or_same, value or [])}]
    assert list(page.values) == most_frequent(filter(is_there, held))
    assert page.missing == {
        "nulls": lists.count(None),
        "nan": sum(any(isinstance(e, float) and math.isnan(e) for e in value or []) for value in lists),
        "emptyLists": lists.count([]),
        "nullElements": sum(None in (value or []) for value in lists),
    }


@pytest.mark.parametrize("name", OTHERS)
@settings(max_examples=8)
@given(data=st.data())
def test_values_without_an_order_are_counted_too(name: str, data: st.DataObject, folder: Path) -> None:
    kind, strategy = OTHERS[name]
    stored = data.draw(rows_of(strategy))
    page = values_of(folder, {"c": pa.array(stored, kind), "n": range(len(stored))})
    plain = [
        json.dumps(value, sort_keys=True, default=str)
        for value in pa.array(stored, kind).to_pylist()
        if value is not None
    ]
    assert {json.dumps(value, sort_keys=True, default=str): count for value, count in page.values} == Counter(plain)
    counts = [count for _, count in page.values]
    assert counts == sorted(counts, reverse=True)
    assert page.missing["nulls"] == len(stored) - len(plain)


@settings(max_examples=40)
@given(values=rows_of(JSON_VALUES | st.lists(JSON_VALUES | st.none(), max_size=3)))
def test_values_in_json_are_counted_by_path_and_by_element(values: list[Any], folder: Path) -> None:
    texts = pa.array([None if value is None else json.dumps({"a": {"b": value}}) for value in values], pa.string())
    lists = [value if isinstance(value, list) else [value] for value in values if value is not None]
    held = [element for value in lists for element in {by_type(element) for element in value} if element[1] is not None]
    for column, name in ((texts, "c.a.b"), (texts.cast(pa.json_()), "c.a.b")):
        page = values_of(folder, {"c": column}, name)
        assert [(by_type(value), count) for value, count in page.values] == most_frequent(held)
        assert (page.rows, page.missing["nulls"], page.missing["emptyLists"]) == (
            len(values),
            values.count(None),
            values.count([]),
        )


def test_numbers_nearly_all_different_are_told_by_their_range_alone(folder: Path) -> None:
    few, many = (values_of(folder, {"c": list(range(count))}) for count in (200, 201))
    assert (len(few.values), len(many.values)) == (200, 0)
    assert many.spread == {"min": 0, "lowerQuartile": 50, "median": 100, "upperQuartile": 150, "max": 200}
    answer = json.loads(lancelot.values_json(many))
    assert (answer["distinct"], answer["values"], "nextOffset" in answer, "hint" in answer) == (201, [], False, False)
    assert "are not listed" in answer["note"]
    assert len(values_of(folder, {"c": [*range(201)] * 2}).values) == 201


def test_text_that_is_dates_has_a_range_in_the_order_of_dates(folder: Path) -> None:
    js = [json.dumps({"date": date}) for date in DATES]
    for name in ("published", "js.date"):
        page = values_of(folder, {"published": DATES, "js": js}, name)
        assert [page.spread["min"], page.spread["max"]] == ["12/1/2025, 9:00:00 PM", "8/25/2026, 1:02:03 AM"]
        assert page.total == 4


@pytest.mark.parametrize("limit", [7, 20, 200])
def test_pages_of_values_give_each_once(folder: Path, limit: int) -> None:
    scope = scope_of(folder, {"c": [f"v{n % 97}" for n in range(500)]})
    pages = [lancelot.count_values([scope], "c", limit=limit, offset=offset) for offset in range(0, 97, limit)]
    assert [pair for page in pages for pair in page.values] == most_frequent(f"v{n % 97}" for n in range(500))
    offsets = [json.loads(lancelot.values_json(page)).get("nextOffset") for page in pages]
    assert offsets == [*range(limit, 97, limit), None]
    past = lancelot.count_values([scope], "c", limit=limit, offset=97)
    assert json.loads(lancelot.values_json(past))["hint"] == "Offset 97 is past the last of 97 values."


def test_an_answer_is_bounded_and_long_values_are_marked(folder: Path) -> None:
    texts = [f"{n} " + "\u8a9e" * 5000 for n in range(300)]
    page = values_of(folder, {"c": texts, "s": [{"deep": [text]} for text in texts]})
    answer = lancelot.values_json(page)
    shown = json.loads(answer)
    assert len(answer.encode()) < lancelot.MAX_ANSWER_BYTES
    assert 100 < shown["shown"] == len(shown["values"]) == shown["nextOffset"] < 300
    assert {(len(one["value"]), one["value"][-1]) for one in shown["values"]} == {(200, "\u2026")}
    nested = values_of(folder, {"c": [{"deep": [text]} for text in texts]})
    assert len(lancelot.values_json(nested).encode()) < lancelot.MAX_ANSWER_BYTES


def test_values_that_fill_the_memory_are_counted_in_part_and_that_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot, "MOST_VALUE_BYTES", 500_000)
    monkeypatch.setattr(lancelot, "MERGED_BYTES", 100_000)
    page = values_of(folder, {"c": [f"{n:0100}" for n in range(40_000)]})
    assert page.rows < 40_000
    assert page.total == page.rows
    assert f"Only the first {page.rows:,} rows were counted" in page.notes[0]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("vector", r"^The column vector holds vectors, which are not counted\. Name another column\.$"),
        ("nosuch", r'There is no column "nosuch"\. The columns are c, js, js\.KEY of its JSON\.$'),
    ],
)
def test_a_column_that_cannot_be_counted_is_a_sentence(folder: Path, name: str, told: str) -> None:
    vector = pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))
    with pytest.raises(lancelot.LancelotError, match=told):
        values_of(folder, {"c": [1], "vector": vector, "js": pa.array(["{}"], pa.json_())}, name)


def test_a_key_that_no_row_has_is_answered_with_the_keys_there_are(folder: Path) -> None:
    page = values_of(folder, {"metadata": ['{"author": "A", "year": 1}', None]}, "metadata.autor")
    assert (page.total, page.notes) == (0, ("The keys of metadata are author, year.",))
    assert "No row holds a value here." in lancelot.values_lines(page)
    empty = values_of(folder, {"metadata": pa.array([], pa.string())}, "metadata.autor")
    assert json.loads(lancelot.values_json(empty))["hint"].startswith("There is no row to count")


@pytest.mark.parametrize(
    "column", ["year", "tags", "heading", "lent_out", "published", "place.city", "place.shelf", "big"]
)
def test_a_value_has_as_many_rows_as_a_filter_by_it_finds(
    column: str, make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    searcher = make_searcher(LANCEDB_PATH=DATABASES / "no-vector")
    answer = json.loads(lancelot.values_json(searcher.values(column, limit=30, offset=0)))
    assert answer["values"]
    for value, count in ((one["value"], one["count"]) for one in answer["values"]):
        condition = {"contains": value} if answer["type"].startswith("list") else value
        request = lancelot.SearchRequest("", 1, "auto", conditions={column: condition})
        assert searcher.search(request).total == count, value


def test_the_documents_of_each_value_are_counted_over_all_tables(
    make_searcher: Callable[..., lancelot.Searcher],
) -> None:
    searcher = make_searcher(LANCEDB_PATH=DATABASES / "anythingllm")
    answer = json.loads(lancelot.values_json(searcher.values("docSource", limit=200, offset=0)))
    sources: dict[str, set[str]] = {}
    for table in ("python-peps", "world-notes"):
        request = lancelot.SearchRequest("", 200, "auto", table=table, sort={"id": False})
        for hit in searcher.search(request).hits:
            sources.setdefault(hit.metadata["docSource"], set()).add(hit.source)
    assert {one["value"]: one["documents"] for one in answer["values"]} == {v: len(them) for v, them in sources.items()}
    assert answer["documents"] == searcher.files(limit=1, offset=0).total
    one_document = searcher.values("docSource", limit=5, offset=0, conditions={"title": "pep-0404.txt"})
    assert (one_document.documents, one_document.documents_of) == (1, (1,))


def test_a_column_of_some_tables_is_counted_there_and_the_others_are_named(
    make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    folder = make_table({"text": ["a", "b"], "kind": ["x", "y"]}, name="one")
    make_table({"text": ["c"], "kind": ["x"]}, name="two")
    make_table({"text": ["d"]}, name="three")
    page = make_searcher(LANCEDB_PATH=folder).values("kind", limit=9, offset=0)
    assert (page.table, page.values, page.rows, page.documents) == ("one, two", (("x", 2), ("y", 1)), 3, None)
    assert page.notes == ("Tables without such a column: three.",)
    make_table({"text": ["c"], "kind": [1]}, name="four")
    with pytest.raises(lancelot.LancelotError, match=r"different types in kind\. Name one table\."):
        make_searcher(LANCEDB_PATH=folder).values("kind", limit=9, offset=0)


def test_values_for_a_person(make_searcher: Callable[..., lancelot.Searcher]) -> None:
    searcher = make_searcher(LANCEDB_PATH=DATABASES / "no-vector")
    lines = lancelot.show_styles(lancelot.values_lines(searcher.values("rating", limit=2, offset=1))).splitlines()
    assert lines == [
        "library_records.rating (double): 7 different values in 103 rows of 24 documents; nulls 11; nan 11",
        "range: -inf to inf; quartiles: 0.0, 3.0, 4.5",
        "      11  4.5",
        "      10  -inf",
        "more from --offset 3",
    ]
