"""Anything in, a right answer or a sentence out. `FUZZ=500 pytest tests/test_fuzz.py` tries 500 times as much: about an hour."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
import wire
from conftest import DATABASES, child_environment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lancedb.index import FTS

import lancelot

FUZZ = int(os.environ.get("FUZZ", "1"))


def tried(times: int) -> Any:
    """A few examples, or as many times more as FUZZ says."""
    return settings(
        max_examples=times * FUZZ,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def searcher_of(folder: Path, home: Path) -> lancelot.Searcher:
    environ = {"LANCEDB_PATH": str(folder), "LANCELOT_LOCAL_MODEL": "off"}
    return lancelot.Searcher(lancelot.load_settings(environ, home))


def check_answer(tool: lancelot.Tool, searcher: lancelot.Searcher, arguments: dict[str, Any]) -> str:
    """The answer of a call, which must be no bug, be one that the wire can bear and stay below its bound."""
    text, failed = lancelot.call_tool(tool, searcher, arguments)
    assert "because of a bug" not in text, (tool.name, arguments)
    encoded = lancelot.clean_surrogates(text).encode()
    if tool.name != "lancedb_query":
        assert len(encoded) < lancelot.MAX_ANSWER_BYTES, (tool.name, arguments)
        assert failed or isinstance(json.loads(text), dict)
    return text


# Columns of every type


NUMBERS = st.integers(-(2**31), 2**31 - 1)
SIMPLE_TYPES: dict[Any, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=40),
    pa.large_string(): st.text(max_size=40),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.binary(): st.binary(max_size=20),
    pa.binary(4): st.binary(min_size=4, max_size=4),
    pa.date32(): NUMBERS,
    pa.date64(): NUMBERS.map(lambda day: day * 86_400_000),
    pa.time32("s"): st.integers(0, 86_399),
    pa.time64("ns"): st.integers(0, 86_399_999_999_999),
    **{pa.timestamp(unit): st.integers(-(2**63), 2**63 - 1) for unit in ("s", "ms", "us", "ns")},
    pa.timestamp("us", "UTC"): st.integers(-(2**63), 2**63 - 1),
    pa.timestamp("ms", "Europe/Helsinki"): st.integers(-(2**55), 2**55),
    **{pa.duration(unit): st.integers(-(2**63), 2**63 - 1) for unit in ("s", "ms", "us", "ns")},
    pa.decimal128(20, 3): st.decimals(-(10**16), 10**16, places=3),
    pa.decimal256(50, 3): st.decimals(-(10**16), 10**16, places=3),
    pa.null(): st.none(),
}
"""The values of each type, those that Python cannot hold included: whole numbers are taken as they are stored."""


@st.composite
def columns(draw: st.DrawFn) -> pa.Array[Any]:
    """A column of three rows, nested or not."""
    kind = draw(st.sampled_from(list(SIMPLE_TYPES)))
    values = draw(st.lists(st.none() | SIMPLE_TYPES[kind], min_size=3, max_size=3))
    is_counted = pa.types.is_temporal(kind)
    stored = pa.int32() if kind in (pa.date32(), pa.time32("s")) else pa.int64()
    column: Any = pa.array(values, stored).view(kind) if is_counted else pa.array(values, kind)
    for shape in draw(st.lists(st.sampled_from(["list", "large list", "struct", "dictionary"]), max_size=2)):
        if shape == "list":
            column = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), column)
        elif shape == "large list":
            column = pa.LargeListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int64()), column)
        elif shape == "struct":
            column = pa.StructArray.from_arrays([column], names=["inner"])
        elif pa.types.is_string(column.type):
            column = column.dictionary_encode()
    return column


NAMES = st.sampled_from(
    ["a", "A b", "metadata", "source", "title", "id", "vector", "ä", "x-y", "select", "date", "_score"]
)


@tried(5)
@given(
    st.dictionaries(NAMES, columns(), min_size=1, max_size=4), st.lists(st.text(max_size=60), min_size=3, max_size=3)
)
def test_rows_of_every_type_are_answered(
    tmp_path_factory: pytest.TempPathFactory, others: dict[str, Any], texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    try:
        lancedb.connect(folder).create_table("documents", pa.table({**others, "text": pa.array(texts, pa.string())}))
    except (RuntimeError, ValueError, OSError, pa.ArrowInvalid):
        return  # what the database cannot hold
    searcher = searcher_of(folder, folder)
    query = next(iter(" ".join(texts).split()), "word")
    name = next(iter(others))
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("lancedb_search", {"query": query, "searchType": "text"}),
        ("lancedb_search", {"query": query, "searchType": "fts"}),
        ("lancedb_search", {"query": "", "sort": name}),
        ("lancedb_search", {"query": "", "filter": {name: {"exists": True}}}),
        ("lancedb_values", {"column": name}),
        ("lancedb_read", {"id": "row:0"}),
        ("lancedb_files", {}),
        ("lancedb_query", {"question": query}),
        ("lancedb_status", {"verbose": True}),
    )
    for tool_name, arguments in calls:
        tool = lancelot.find_tool(tool_name)
        assert tool is not None
        text = check_answer(tool, searcher, arguments)
        if tool_name == "lancedb_status":
            assert "bug" not in text, text


# Arguments, filters and queries


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> lancelot.Searcher:
    """A table with columns of the usual types and a full-text index."""
    folder = tmp_path_factory.mktemp("fuzz") / "db"
    rows = range(30)
    data: dict[str, Any] = {
        "id": [f"i{n}" for n in rows],
        "title": [None if n % 7 == 0 else f"Title {n}" for n in rows],
        "source": [f"a/b{n // 3}.md" for n in rows],
        "text": [f"needle {n} straße ΣΑΣ 東京都 e\u0301 {'x' * n}" for n in rows],
        "year": pa.array([1900 + n for n in rows], pa.int16()),
        "rating": [float("nan") if n == 3 else n / 3 for n in rows],
        "when": pa.array(list(rows), pa.timestamp("ms", "UTC")),
        "day": pa.array(list(rows), pa.int32()).view(pa.date32()),
        "tags": [[f"t{n % 3}"] for n in rows],
        "price": pa.array(list(rows), pa.decimal128(10, 2)),
        "good": [n % 2 == 0 for n in rows],
        "metadata": [{"lang": "sv", "page": n} for n in rows],
        "json": [json.dumps({"a": n, "b": ["c"]}) for n in rows],
        "vector": pa.array([[float(n), 1.0] for n in rows], pa.list_(pa.float32(), 2)),
    }
    made = lancedb.connect(folder).create_table("documents", pa.table(data))
    made.create_index("text", config=FTS())
    return searcher_of(folder, folder.parent)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(
        ["needle", "i5", "Title 2", "2020-01-01", "1970-01-01T00:00:00Z", "12:00", "1e400", "'", '"', "\\", "%", "`"]
    )
)
WORDS = st.lists(
    st.text(max_size=8)
    | st.sampled_from(
        ["needle", "straße", "ΣΑΣ", "東京", "+e\u0301", '-"a b"', "\\ud800", "C++", "*", "~2", "^", "AND", "()"]
    ),
    max_size=6,
).map(" ".join)
COLUMNS = st.sampled_from(
    [
        "id",
        "title",
        "source",
        "text",
        "year",
        "rating",
        "when",
        "day",
        "tags",
        "price",
        "good",
        "metadata",
        "metadata.lang",
        "metadata.page",
        "json",
        "json.a",
        "json.b",
        "vector",
        "file_type",
        "sourceModified",
        "nothing",
        "metadata.x.y",
        "$or",
        "$and",
    ]
) | st.text(max_size=10)
OPERATORS = st.sampled_from([*lancelot.OPERATORS, *(f"${name}" for name in lancelot.OPERATORS), "like", ""])
CONDITIONS = (
    SCALARS
    | st.lists(SCALARS, max_size=4)
    | st.dictionaries(OPERATORS, SCALARS | st.lists(SCALARS, max_size=3), max_size=3)
)
FILTERS: st.SearchStrategy[Any] = st.recursive(
    st.dictionaries(COLUMNS, CONDITIONS, max_size=3),
    lambda inner: (
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"$and": st.lists(inner, max_size=3)})
    ),
    max_leaves=4,
)
VALUES: st.SearchStrategy[Any] = (
    SCALARS | WORDS | FILTERS | FILTERS.map(json.dumps) | st.lists(SCALARS, max_size=3) | COLUMNS
)
OFFERED = [tool for tool in lancelot.TOOLS if not tool.needs]


@st.composite
def tool_calls(draw: st.DrawFn) -> tuple[lancelot.Tool, dict[str, Any]]:
    """A call with those arguments that fit, any values in some of them, and now and then one that there is not."""
    tool = draw(st.sampled_from(OFFERED))
    arguments: dict[str, Any] = {}
    for parameter in tool.parameters:
        if parameter.required or draw(st.integers(0, 3)) == 0:
            fitting = st.sampled_from(parameter.choices) if parameter.choices else WORDS
            usual: st.SearchStrategy[Any] = {"filter": FILTERS, "column": COLUMNS, "sort": COLUMNS}.get(
                parameter.name, fitting
            )
            arguments[parameter.name] = draw(usual if draw(st.integers(0, 4)) else VALUES)
    if draw(st.integers(0, 20)) == 0:
        arguments[draw(st.text(max_size=10))] = draw(VALUES)
    return tool, arguments


@tried(40)
@given(tool_calls())
def test_any_call_is_answered_or_told_in_a_sentence(
    table: lancelot.Searcher, asked: tuple[lancelot.Tool, dict[str, Any]]
) -> None:
    check_answer(asked[0], table, asked[1])


@tried(40)
@given(FILTERS, WORDS, st.sampled_from(["text", "fts", "auto"]))
def test_a_filter_and_its_contrary_share_no_row(
    table: lancelot.Searcher, conditions: dict[str, Any], query: str, kind: str
) -> None:
    search = lancelot.TOOLS[0]
    arguments = {"query": query, "searchType": kind, "filter": conditions, "limit": 100}
    text, failed = lancelot.call_tool(search, table, arguments)
    assert "because of a bug" not in text, arguments
    if failed or not query.strip() or not conditions:
        return
    found = {hit["id"] for hit in json.loads(text)["hits"]}
    everything, is_refused = lancelot.call_tool(search, table, {"query": "", "filter": conditions, "limit": 100})
    if not is_refused:
        assert found <= {hit["id"] for hit in json.loads(everything)["hits"]}, arguments


# The wire


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], wire.Server]]:
    running = wire.Server(
        child_environment(LANCEDB_PATH=str(DATABASES / "no-vector")), cwd=tmp_path_factory.mktemp("wire")
    )
    yield lambda: running
    running.stop()


JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
METHODS = st.sampled_from(
    [
        "initialize",
        "ping",
        "tools/list",
        "tools/call",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "completion/complete",
        "prompts/list",
        "logging/setLevel",
        "server/discover",
        "notifications/cancelled",
        "notifications/initialized",
        "notifications/progress",
        "subscriptions/listen",
        "nothing",
    ]
)
PARAMETERS = st.dictionaries(
    st.sampled_from(
        [
            "name",
            "arguments",
            "uri",
            "cursor",
            "requestId",
            "protocolVersion",
            "capabilities",
            "clientInfo",
            "ref",
            "argument",
            "_meta",
            "level",
        ]
    ),
    JSON | st.sampled_from(["lancedb_version", "lancedb_search", "lancelot://library_records/x", "2025-11-25"]),
    max_size=4,
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": st.integers() | JSON,
        "method": METHODS | JSON,
        "params": PARAMETERS | JSON,
    },
)
LINES = (MESSAGES | JSON).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60)


@tried(8)
@given(lines=st.lists(LINES, max_size=10), number=st.integers(1, 10**9))
def test_any_lines_leave_a_server_that_answers(
    server: Callable[[], wire.Server], lines: list[bytes], number: int
) -> None:
    running = server()
    running.write(b"".join(line.replace(b"\n", b" ") + b"\n" for line in lines))
    answer = running.ask(wire.call(f"asked {number}", "lancedb_version"))
    assert "result" in answer or "error" in answer
    assert "Traceback" not in running.log, running.log[-2000:]
