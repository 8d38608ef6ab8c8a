"""The values of a column and rows in their order: what plain Python makes of them, for every type that a table can hold."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
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
    assert lancelot.sorted_rows([scope], {"c": descends}) == rows
    assert lancelot.sorted_rows([scope], {"s.in ner": descends}) == rows


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
    assert lancelot.sorted_rows([scope], {"js.k": descends}) == rows
    assert lancelot.sorted_rows([scope], {"ar.k": descends}) == rows


def test_rows_alike_in_one_column_are_sorted_by_the_next_and_then_by_row(folder: Path) -> None:
    scope = scope_of(folder, {"a": [1, 2, 1, None, 2, 1], "b": ["x", "x", "y", "x", "x", "x"]})
    assert lancelot.sorted_rows([scope], {"a": True, "b": True}) == [1, 4, 2, 0, 5, 3]
    assert lancelot.sorted_rows([scope], {"b": False, "a": False}) == [0, 5, 1, 4, 3, 2]
    assert lancelot.sorted_rows([replace(scope, where="a = 1")], {"b": True}) == [2, 0, 5]
    assert lancelot.sorted_rows([replace(scope, where="false")], {"b": True}) == []


DATES = ["8/25/2026, 1:02:03 AM", "12/1/2025, 9:00:00 PM", "", "8/9/2026, 1:02:03 AM", None]


def test_text_that_is_dates_is_sorted_as_dates_also_in_json(folder: Path) -> None:
    js = [json.dumps({"date": date}) for date in DATES]
    scope = scope_of(folder, {"published": DATES, "js": js})
    for name in ("published", "js.date"):
        assert lancelot.sorted_rows([scope], {name: True}) == [0, 3, 1, 2, 4]
        assert lancelot.sorted_rows([scope], {name: False}) == [1, 3, 0, 2, 4]


def test_long_texts_are_sorted_by_their_beginnings(folder: Path) -> None:
    texts = ["b" * 10**6, "a" * 10**6 + "b", "a" * 10**6 + "a"]
    js = [json.dumps({"k": text}) for text in texts]
    scope = scope_of(folder, {"c": texts, "js": js})
    assert [lancelot.sorted_rows([scope], {name: False}) for name in ("c", "js.k")] == [[1, 2, 0]] * 2


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
        lancelot.sorted_rows([scope_of(folder, columns)], {name: True})


def test_a_column_is_named_as_hits_name_it_if_no_other_has_the_name(folder: Path) -> None:
    meta = [json.dumps({"source": source, "title": source.upper()}) for source in ("b", "a", "c")]
    scope = scope_of(folder, {"chunk_id": [7, 8, 9], "body": ["z z", "y y", "x x"], "metadata": meta})
    orders = {name: lancelot.sorted_rows([scope], {name: False}) for name in ("source", "title", "id", "text")}
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
