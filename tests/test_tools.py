"""The tools as a client sees them: what `tools/list` says, what arguments are taken, what errors read like."""

import dataclasses
import json
import logging
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from conftest import DATABASES, FOLDERS, PROJECT, TESTS, child_environment
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from mcp import Client
from mcp.shared.exceptions import MCPError
from wire import ALWAYS_OFFERED

import lancelot

SNAPSHOTS = TESTS / "snapshots"
SECONDS = 60
NAMES = tuple(ALWAYS_OFFERED)
NO_VECTOR = DATABASES / "no-vector"
PEPS = {"LANCEDB_PATH": DATABASES / "anythingllm", "LANCEDB_TABLE": "python-peps"}

MakeSettings = Callable[..., lancelot.Settings]


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a call gave: one text, and whether it is an error."""

    text: str
    failed: bool

    @property
    def json(self) -> dict[str, Any]:
        assert not self.failed, self.text
        return json.loads(self.text, parse_constant=pytest.fail)


Call = Callable[..., Reply]


def session(settings: lancelot.Settings, use: Callable[[Client], Any]) -> Any:
    """Runs a client of a server in memory, for a bounded time."""

    async def run() -> Any:
        with anyio.fail_after(SECONDS):
            async with Client(lancelot.build_server(settings)) as client:
                return await use(client)

    return anyio.run(run)


def call_with(settings: lancelot.Settings, tool: str, **arguments: Any) -> Reply:
    result = session(settings, lambda client: client.call_tool(tool, arguments))
    (content,) = result.content
    assert content.type == "text"
    assert result.structured_content is None
    return Reply(content.text, bool(result.is_error))


@pytest.fixture
def make_call(make_settings: MakeSettings) -> Callable[..., Call]:
    """Calls over settings: `make_call(LANCEDB_PATH=…)("lancedb_search", query=…)`."""
    return lambda **environ: lambda tool, **arguments: call_with(make_settings(**environ), tool, **arguments)


@pytest.fixture
def call(make_call: Callable[..., Call]) -> Call:
    """Calls over the folder without vectors."""
    return make_call(LANCEDB_PATH=NO_VECTOR)


@pytest.fixture
def listing(make_settings: MakeSettings) -> list[dict[str, Any]]:
    """The tools as they go over the wire."""
    result = session(make_settings(), lambda client: client.list_tools())
    return [tool.model_dump(mode="json", by_alias=True, exclude_unset=True) for tool in result.tools]


@pytest.fixture
def schemas(listing: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool["inputSchema"] for tool in listing}


def nodes(value: Any) -> Iterator[Any]:
    """A JSON value and everything in it."""
    yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for child in inner:
        yield from nodes(child)


# The list of tools


def test_the_list_of_tools_is_the_one_recorded(listing: list[dict[str, Any]]) -> None:
    path = SNAPSHOTS / "tools.json"
    text = json.dumps(listing, indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, (
        "UPDATE_SNAPSHOTS=1 python -m pytest tests/test_tools.py rewrites it"
    )


def test_the_tools_are_listed_in_order(listing: list[dict[str, Any]]) -> None:
    assert [tool["name"] for tool in listing] == list(NAMES)


def test_no_schema_holds_what_clients_refuse(schemas: dict[str, dict[str, Any]]) -> None:
    for schema in schemas.values():
        keys = {key for node in nodes(schema) if isinstance(node, Mapping) for key in node}
        assert not keys & {"anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions", "$schema", "not", "nullable"}
        assert None not in list(nodes(schema))
        assert "null" not in list(nodes(schema))
        assert schema["type"] == "object"
        for parameter in schema["properties"].values():
            assert parameter["type"] in {"string", "integer", "boolean"}
            assert not any(isinstance(value, Mapping) for value in parameter.values())


def test_every_tool_and_every_parameter_is_described(listing: list[dict[str, Any]]) -> None:
    for tool in listing:
        assert len(tool["description"]) > 80
        assert tool["title"]
        for parameter in tool["inputSchema"]["properties"].values():
            assert parameter["description"].endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_annotations_say_that_a_tool_only_reads_and_whether_it_reaches_out(
    listing: list[dict[str, Any]], name: str
) -> None:
    (annotations,) = (tool["annotations"] for tool in listing if tool["name"] == name)
    hints = {hint: value for hint, value in annotations.items() if hint != "title"}
    assert hints == {
        "readOnlyHint": True,
        "destructiveHint": False,
        "idempotentHint": True,
        "openWorldHint": name in ("lancedb_search", "lancedb_query"),
    }


SPECIFIED = {
    "lancedb_search": {
        "query": ("string", None, None, None),
        "limit": ("integer", 1, 200, 20),
        "searchType": ("string", None, None, "auto"),
        "offset": ("integer", 0, 10_000_000, 0),
        "filter": ("string", None, None, None),
        "sort": ("string", None, None, None),
        "table": ("string", None, None, None),
        "textColumn": ("string", None, None, None),
        "vectorColumn": ("string", None, None, None),
    },
    "lancedb_query": {
        "question": ("string", None, None, None),
        "contextBudget": ("integer", 200, 1_000_000, 8000),
        "warmStart": ("boolean", None, None, False),
        "table": ("string", None, None, None),
        "limit": ("integer", 1, 200, 20),
        "filter": ("string", None, None, None),
    },
    "lancedb_read": {
        "id": ("string", None, None, None),
        "table": ("string", None, None, None),
        "limit": ("integer", 500, 60_000, 8000),
        "before": ("integer", 0, 20, 0),
        "after": ("integer", 0, 20, 0),
        "offset": ("integer", 0, 10_000_000, 0),
    },
    "lancedb_files": {
        "fileType": ("string", None, None, None),
        "sort": ("string", None, None, "name"),
        "table": ("string", None, None, None),
        "limit": ("integer", 1, 200, None),
        "offset": ("integer", 0, 10_000_000, 0),
    },
    "lancedb_values": {
        "column": ("string", None, None, None),
        "filter": ("string", None, None, None),
        "table": ("string", None, None, None),
        "limit": ("integer", 1, 200, 20),
        "offset": ("integer", 0, 10_000_000, 0),
    },
    "lancedb_status": {"verbose": ("boolean", None, None, False)},
    "lancedb_version": {},
}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_have_the_types_bounds_and_defaults_of_the_specification(
    schemas: dict[str, dict[str, Any]], name: str
) -> None:
    properties = schemas[name]["properties"]
    shown = {
        parameter: tuple(schema.get(key) for key in ("type", "minimum", "maximum", "default"))
        for parameter, schema in properties.items()
    }
    assert shown == SPECIFIED[name]


def test_only_the_query_the_question_the_id_and_the_column_are_required(schemas: dict[str, dict[str, Any]]) -> None:
    assert [schemas[name]["required"] for name in NAMES] == [["query"], ["question"], ["id"], [], ["column"], [], []]


def test_the_search_types_are_listed(schemas: dict[str, dict[str, Any]]) -> None:
    assert schemas["lancedb_search"]["properties"]["searchType"]["enum"] == [
        "vector",
        "text",
        "fts",
        "hybrid",
        "auto",
    ]


def test_defaults_in_schemas_follow_the_settings(make_settings: MakeSettings) -> None:
    settings = make_settings(LANCEDB_DEFAULT_LIMIT=7, LANCEDB_CONTEXT_BUDGET=900, LANCELOT_SEARCH_TYPE="text")
    search, query = (lancelot.find_tool(name).schema(settings)["properties"] for name in NAMES[:2])
    assert (search["limit"]["default"], query["limit"]["default"]) == (7, 7)
    assert (query["contextBudget"]["default"], search["searchType"]["default"]) == (900, "text")


def test_the_server_offers_tools_and_documents_and_nothing_else(make_settings: MakeSettings) -> None:
    async def capabilities(client: Client) -> Any:
        return client.server_capabilities.model_dump(exclude_none=True), client.instructions

    offered, instructions = session(make_settings(), capabilities)
    assert offered == {
        "tools": {"list_changed": False},
        "resources": {"list_changed": False, "subscribe": False},
        "completions": {},
    }
    assert all(name in instructions for name in NAMES[:6])


def test_a_client_may_keep_what_the_server_says_of_itself_for_an_hour(make_settings: MakeSettings) -> None:
    async def use(client: Client) -> list[Any]:
        return [await client.list_tools(), await client.list_resource_templates()]

    kept = {(listed.ttl_ms, listed.cache_scope) for listed in session(make_settings(), use)}
    assert kept == {(3_600_000, "private")}


# Instructions


def instructed(settings: lancelot.Settings) -> str:
    async def read(client: Client) -> str:
        return client.instructions or ""

    return session(settings, read)


def make_folders(folder: Path, *names: str) -> Path:
    """A folder that holds tables of these names, as far as its listing shows."""
    for name in names:
        (folder / name).mkdir()
    return folder


@pytest.mark.parametrize(
    ("tables", "named", "told"),
    [
        ([], "", "No table was seen there: what is wrong is told by lancedb_status. "),
        (["documents"], "", "Its table is documents. "),
        (["only"], "", "Its table is only. "),
        (["a", "documents"], "", "Its tables are a, documents. A call that names no table is about all of them. "),
        (["a"], "b", "Its table is a. Name one as table in every call: LANCEDB_TABLE names another, b. "),
        (["x" * 240], "", f"Its table is {'x' * 240}. "),
        (["b", "a"], "b", "Its tables are a, b. A call that names no table gets b; table * means all. "),
        (
            ["b", "a"],
            "",
            "Its tables are a, b. A call that names no table is about all of them. ",
        ),
    ],
)
def test_the_instructions_name_the_tables_and_the_one_that_needs_no_name(
    tables: list[str], named: str, told: str, tmp_path: Path, make_settings: MakeSettings
) -> None:
    folder = make_folders(tmp_path, *(f"{name}.lance" for name in tables), "other", "no name of a table.lance")
    text = instructed(make_settings(LANCEDB_PATH=folder, LANCEDB_TABLE=named))
    assert text.startswith(f"Lancelot searches the user's own documents in a LanceDB folder. {told}To answer")


@pytest.mark.parametrize("path", [None, "missing", "s3://bucket/folder", "\0"])
def test_the_instructions_are_there_whatever_the_folder_is(
    path: str | None, tmp_path: Path, make_settings: MakeSettings
) -> None:
    named = {} if path is None else {"LANCEDB_PATH": str(tmp_path / path) if path == "missing" else path}
    assert instructed(make_settings(**named)).startswith("Lancelot searches the user's own documents")


def test_the_tables_of_an_object_store_are_not_looked_for_at_the_start(make_settings: MakeSettings) -> None:
    text = instructed(make_settings(LANCEDB_PATH="s3://bucket/folder"))
    assert "Its tables are told by lancedb_status." in text


def test_a_folder_that_does_not_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answered = threading.Event()

    def wait(_folder: Path) -> list[Path]:
        answered.wait(SECONDS)
        return []

    monkeypatch.setattr(lancelot, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(Path, "iterdir", wait)
    assert lancelot.seen_tables(str(tmp_path)) == ()
    assert not answered.is_set()
    answered.set()


def test_the_instructions_tell_what_a_query_is_compared_by(make_settings: MakeSettings) -> None:
    words, meaning = (instructed(make_settings(**one)) for one in ({}, {"OPENAI_BASE_URL": "http://localhost:9/v1"}))
    assert "only words are compared" in words
    assert "Meaning is compared" in meaning


def test_the_instructions_name_the_tools_that_are_offered_and_no_others(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    plain = instructed(make_settings())
    every = instructed(make_settings(LANCELOT_CHAT_MODEL="m", LANCELOT_INDEX_ROOTS=str(tmp_path)))
    assert [name in plain for name in ("lancedb_ask", "lancedb_index")] == [False, False]
    assert [name in every for name in ("lancedb_ask", "lancedb_index")] == [True, True]


def test_the_longest_instructions_are_not_cut_by_a_client(make_settings: MakeSettings, tmp_path: Path) -> None:
    folder = make_folders(tmp_path, *(f"{n:090}.lance" for n in range(40)))
    environ = {"LANCEDB_TABLE": "x" * 90, "LANCELOT_CHAT_MODEL": "m", "LANCELOT_INDEX_ROOTS": str(tmp_path)}
    assert len(instructed(make_settings(LANCEDB_PATH=folder, **environ))) <= 2_000


def test_what_total_counts_is_said_as_it_is(make_settings: Callable[..., lancelot.Settings]) -> None:
    said = lancelot.instructions_for(make_settings())
    assert "total counts chunks, not documents: those with any of the query's words" in said
    query = lancelot.TOOLS[0].parameters[0]
    assert "total counts the chunks that hold any of the words, or meet the filter, not documents." in query.help


# Arguments


@pytest.mark.parametrize("limit", [3, "3", " 3 ", 3.0, "3.0", "+3", "3."])
def test_a_number_is_taken_in_every_form_that_models_write(call: Call, limit: object) -> None:
    reply = call("lancedb_search", query="python", limit=limit)
    assert len(reply.json["hits"]) == 3


@pytest.mark.parametrize("limit", [0, -1, 201, 3.5, "many", " ", True, False, [3], {"limit": 3}, math.inf, "1e1"])
def test_a_bad_number_is_refused_with_name_value_and_bounds(make_settings: MakeSettings, limit: object) -> None:
    tool = lancelot.find_tool("lancedb_search")
    assert tool is not None
    with pytest.raises(lancelot.LancelotError) as refused:
        tool.parse_arguments({"query": "x", "limit": limit}, make_settings())
    assert str(refused.value).startswith("limit is ")
    assert "a whole number from 1 to 200" in str(refused.value)


def test_a_refused_value_is_shown(call: Call) -> None:
    reply = call("lancedb_search", query="python", limit=201)
    assert reply.failed
    assert (
        reply.text
        == "limit is 201, which is not a whole number from 1 to 200. Give limit as a whole number from 1 to 200."
    )


def test_a_refused_value_that_is_long_is_cut(call: Call) -> None:
    reply = call("lancedb_search", query="python", limit="9" * 5000)
    assert reply.failed
    assert len(reply.text) < 300


@pytest.mark.parametrize("budget", [199, 1_000_001, "lots"])
def test_a_budget_out_of_bounds_is_refused_with_the_bounds(call: Call, budget: object) -> None:
    reply = call("lancedb_query", question="python", contextBudget=budget)
    assert reply.failed
    assert "contextBudget" in reply.text
    assert "from 200 to 1,000,000" in reply.text


@pytest.mark.parametrize("value", [True, "true", "True", " TRUE "])
def test_a_flag_is_taken_in_every_form_that_models_write(call: Call, value: object) -> None:
    assert "columns" in call("lancedb_status", verbose=value).json["tables"][0]


@pytest.mark.parametrize("value", [1, 0, "yes", [], "on"])
def test_a_flag_that_is_neither_true_nor_false_is_refused(make_settings: MakeSettings, value: object) -> None:
    tool = lancelot.find_tool("lancedb_status")
    assert tool is not None
    with pytest.raises(lancelot.LancelotError, match=r"verbose is .* not true or false"):
        tool.parse_arguments({"verbose": value}, make_settings())


@pytest.mark.parametrize("blank", [None, ""])
@pytest.mark.parametrize("tool", NAMES)
def test_an_optional_argument_that_is_null_or_blank_counts_as_left_out(
    call: Call, tool: str, blank: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: space)  # other tests write to the disk meanwhile
    given = {"lancedb_search": {"query": "python"}, "lancedb_query": {"question": "python"}}.get(tool, {})
    blanks = dict.fromkeys(SPECIFIED[tool], blank)
    assert call(tool, **{**blanks, **given}) == call(tool, **given)


@pytest.mark.parametrize("kind", ["TEXT", " text ", "Text"])
def test_a_search_type_is_taken_in_any_case(call: Call, kind: str) -> None:
    assert call("lancedb_search", query="python", searchType=kind).json["searchType"] == "text"


def test_an_unknown_search_type_is_refused_with_those_there_are(call: Call) -> None:
    reply = call("lancedb_search", query="python", searchType="semantic")
    assert reply.failed
    assert 'searchType is "semantic", which is not one of vector, text, fts, hybrid, auto.' in reply.text


@pytest.mark.parametrize("query", [5, ["python"], {"text": "python"}, True])
def test_a_query_that_is_no_string_is_refused(call: Call, query: object) -> None:
    reply = call("lancedb_search", query=query)
    assert reply.failed
    assert "query is " in reply.text
    assert "a string" in reply.text


@pytest.mark.parametrize(
    ("tool", "name", "given", "most"),
    [
        ("lancedb_search", "filter", {"query": "a"}, 500_000),
        ("lancedb_search", "table", {"query": "a"}, 4096),
        ("lancedb_search", "textColumn", {"query": "a"}, 4096),
        ("lancedb_read", "id", {}, 4096),
        ("lancedb_files", "fileType", {}, 4096),
    ],
)
def test_an_argument_that_is_too_long_is_refused_with_its_bound(
    call: Call, tool: str, name: str, given: dict[str, str], most: int
) -> None:
    reply = call(tool, **given, **{name: "a" * (most + 1)})
    assert reply.failed
    assert len(reply.text) < 400
    assert f"{most:,} characters" in reply.text


def test_what_a_call_names_wrongly_is_not_repeated_whole(call: Call) -> None:
    reply = call("lancedb_search", query="a", **{"x" * 9000: 1})
    assert (reply.failed, len(reply.text) < 600) == (True, True)


@pytest.mark.parametrize("tool", NAMES[:6])
def test_an_unknown_argument_is_refused_with_the_known_ones(call: Call, tool: str) -> None:
    reply = call(tool, query="python", question="python", top_k=5)
    assert reply.failed
    assert f"{tool} has no argument" in reply.text
    assert "top_k" in reply.text
    for name in SPECIFIED[tool]:
        assert name in reply.text


def test_a_tool_without_parameters_takes_anything(call: Call) -> None:
    assert call("lancedb_version", random_string="x", deep={"a": [1]}).json == call("lancedb_version").json


@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u3000", "\u00a0", "\x00"])
@pytest.mark.parametrize(("tool", "name"), [("lancedb_search", "query"), ("lancedb_query", "question")])
def test_a_blank_query_is_refused_in_a_sentence(call: Call, tool: str, name: str, blank: str) -> None:
    reply = call(tool, **{name: blank})
    assert reply.failed
    assert " is blank. Give " in reply.text


@pytest.mark.parametrize(("tool", "name"), [("lancedb_search", "query"), ("lancedb_query", "question")])
def test_a_query_that_is_missing_is_refused_in_a_sentence(call: Call, tool: str, name: str) -> None:
    reply = call(tool)
    assert reply.failed
    assert name in reply.text


@given(
    arguments=st.dictionaries(
        st.sampled_from([*SPECIFIED["lancedb_search"], "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
            max_leaves=4,
        ),
    )
)
@hypothesis_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
def test_arguments_are_read_or_refused_in_a_sentence_whatever_they_are(
    make_settings: MakeSettings, arguments: dict[str, Any]
) -> None:
    tool = lancelot.find_tool("lancedb_search")
    assert tool is not None
    refusals: list[str] = []
    values: dict[str, Any] = {"limit": 1, "search_type": "auto", "offset": 0}
    try:
        values = tool.parse_arguments(arguments, make_settings())
        assert set(values) == {field.name for field in dataclasses.fields(lancelot.SearchRequest)}
    except lancelot.LancelotError as error:
        refusals.append(str(error))
    assert all(sentence.encode().endswith(b".") and "\n" not in sentence for sentence in refusals)
    assert 1 <= values["limit"] <= 200
    assert 0 <= values["offset"] <= 10_000_000
    assert values["search_type"] in lancelot.SEARCH_TYPES


# Errors


def test_an_unknown_table_is_refused_with_the_near_and_the_existing_ones(make_call: Callable[..., Call]) -> None:
    call = make_call(LANCEDB_PATH=DATABASES / "anythingllm")
    reply = call("lancedb_search", query="python", table="python-pep")
    assert reply.failed
    assert reply.text == (
        'There is no table "python-pep". Did you mean python-peps? The tables are python-peps, world-notes.'
    )


@pytest.mark.parametrize("parameter", ["textColumn", "vectorColumn"])
def test_an_unknown_column_is_refused_with_the_existing_ones(make_call: Callable[..., Call], parameter: str) -> None:
    call = make_call(LANCEDB_PATH=DATABASES / "langchain", OPENAI_BASE_URL="http://127.0.0.1:9")
    reply = call("lancedb_search", query="python", **{parameter: "nothing"})
    assert reply.failed
    assert 'There is no column "nothing".' in reply.text
    assert "vector, id, text, metadata" in reply.text


def test_an_unknown_tool_is_refused_with_the_existing_ones(make_settings: MakeSettings) -> None:
    async def ask(client: Client) -> str:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("lancedb_drop", {})
        return str(refused.value)

    sentence = "There is no tool lancedb_drop; the tools are lancedb_search, lancedb_query"
    assert session(make_settings(), ask).startswith(sentence)


@pytest.fixture
def broken_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tool fails by a defect whose text must not get out."""

    def fail(*_: object, **__: object) -> str:
        message = "/secret/path and sk-secret"
        raise KeyError(message)

    monkeypatch.setattr(lancelot, "TOOLS", tuple(dataclasses.replace(tool, run=fail) for tool in lancelot.TOOLS))


@pytest.mark.usefixtures("broken_tools")
def test_a_defect_says_that_it_is_one_without_its_inside_and_is_logged(
    call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="lancelot"):
        reply = call("lancedb_search", query="python")
    assert reply.failed
    assert "a bug in Lancelot" in reply.text
    assert "secret" not in reply.text
    assert "KeyError" not in reply.text
    (record,) = [record for record in caplog.records if record.name == "lancelot"]
    assert record.exc_info is not None
    assert "sk-secret" in str(record.exc_info[1])


def test_a_failure_is_logged_without_a_traceback(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lancelot"):
        assert call("lancedb_search", query="").failed
    (record,) = [record for record in caplog.records if record.name == "lancelot"]
    assert (record.levelname, record.exc_info) == ("INFO", None)


# Whatever is broken


BROKEN: dict[str, dict[str, object]] = {
    "no folder set": {},
    "a missing folder": {"LANCEDB_PATH": TESTS / "missing"},
    "a file": {"LANCEDB_PATH": TESTS / "conftest.py"},
    "a folder without tables": {"LANCEDB_PATH": TESTS / "support"},
    "a path that no system takes": {"LANCEDB_PATH": "x" * 5000},
    "bad settings": {
        "LANCEDB_PATH": NO_VECTOR,
        "LANCEDB_DEFAULT_LIMIT": "many",
        "LANCELOT_SEARCH_TYPE": "semantic",
        "OPENAI_BASE_URL": "localhost",
        "LANCELOT_EMBEDDING_TIMEOUT": "soon",
    },
    "a dead endpoint": {"LANCEDB_PATH": NO_VECTOR, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"},
    "an unknown table": {"LANCEDB_PATH": NO_VECTOR, "LANCEDB_TABLE": "nothing"},
    "an unknown column": {"LANCEDB_PATH": NO_VECTOR, "LANCEDB_TEXT_COLUMN": "nothing"},
}


@pytest.mark.parametrize("case", BROKEN)
def test_status_and_version_answer_whatever_is_broken(make_call: Callable[..., Call], case: str) -> None:
    call = make_call(**BROKEN[case])
    assert call("lancedb_version").json["lancelot"] == lancelot.__version__
    assert call("lancedb_status").json["lancelot"] == lancelot.__version__


@pytest.mark.parametrize(
    ("case", "clue"),
    [
        ("no folder set", "LANCEDB_PATH is empty"),
        ("a missing folder", "cannot be opened"),
        ("a file", "is a file, not a folder"),
    ],
)
def test_the_status_says_what_is_wrong_with_the_folder(make_call: Callable[..., Call], case: str, clue: str) -> None:
    status = make_call(**BROKEN[case])("lancedb_status").json
    assert status["connected"] is False
    assert clue in status["problem"]
    assert status["tables"] == []


def test_the_status_lists_each_setting_that_is_wrong(make_call: Callable[..., Call]) -> None:
    problems = make_call(**BROKEN["bad settings"])("lancedb_status").json["settingProblems"]
    for name in ("LANCEDB_DEFAULT_LIMIT", "LANCELOT_SEARCH_TYPE", "OPENAI_BASE_URL", "LANCELOT_EMBEDDING_TIMEOUT"):
        (problem,) = [problem for problem in problems if problem.startswith(name)]
        assert "allowed is" in problem


def test_the_version_names_protocol_and_what_is_enabled(make_call: Callable[..., Call]) -> None:
    version = make_call()("lancedb_version").json
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", version["mcpProtocol"])
    offered = {"localModel": None, "tools": list(NAMES)}
    assert version["enabled"] == {"searchTypes": ["text", "fts", "auto"], "embeddings": False} | offered
    with_endpoint = make_call(OPENAI_BASE_URL="http://127.0.0.1:9/v1")("lancedb_version").json
    assert with_endpoint["enabled"] == {"searchTypes": list(lancelot.SEARCH_TYPES), "embeddings": True} | offered


def test_the_status_reports_rows_columns_and_embeddings(make_call: Callable[..., Call]) -> None:
    status = make_call(**PEPS)("lancedb_status").json
    assert {table["name"]: table["rows"] for table in status["tables"]} == {"python-peps": 155, "world-notes": 177}
    assert (status["connected"], status["defaultTable"]) == (True, "python-peps")
    assert status["embeddings"]["available"] is False
    assert all("columns" not in table for table in status["tables"])


# Answers


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_query_known_of_a_real_folder_finds_its_rows(
    make_call: Callable[..., Call], expected: dict[str, Any], folder: str
) -> None:
    for table in expected[folder]["tables"]:
        call = make_call(LANCEDB_PATH=DATABASES / folder, LANCEDB_TABLE=table["name"])
        for query in table["queries"][:6]:
            answer = call("lancedb_search", query=query["query"], searchType="text", limit=10).json
            found = {str(hit["id"]) for hit in answer["hits"]}
            assert {str(row["id"]) for row in query["must_find"][:10]} <= found, query["query"]


def test_values_of_every_kind_become_json(call: Call) -> None:
    hits = [hit for word in ("the", "a", "e") for hit in call("lancedb_search", query=word, limit=200).json["hits"]]
    rows = [call("lancedb_read", id=number).json["metadata"] for number in {hit["id"] for hit in hits}]
    values = {name: {json.dumps(row.get(name)) for row in rows} for name in ("rating", "weight", "big", "price")}
    assert "null" in values["rating"]
    assert "null" in values["weight"]
    assert any(int(value) > 2**63 for value in values["big"] if value != "null")
    assert all(re.fullmatch(r'"-?\d+\.\d\d"|null', value) for value in values["price"])
    assert any(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d", str(row["seen_at"])) for row in rows)
    assert any(isinstance(row["place"], dict) and isinstance(row["place"].get("geo"), dict) for row in rows)
    assert all("cover" not in row for row in rows)
    assert any(row["always_null"] is None for row in rows)


def test_a_row_that_is_null_but_for_its_text_is_a_hit(call: Call) -> None:
    (hit, *_) = call("lancedb_search", query="heliotrope marmalade").json["hits"]
    assert (hit["id"], hit["title"], hit["score"]) == (9002, "", 1.0)


def test_a_lone_surrogate_in_a_query_is_shown_as_a_replacement(make_settings: MakeSettings) -> None:
    tool = lancelot.find_tool("lancedb_search")
    assert tool is not None
    searcher = lancelot.Searcher(make_settings(LANCEDB_PATH=NO_VECTOR))
    text, failed = lancelot.call_tool(tool, searcher, {"query": "python \ud800", "table": None})
    assert not failed
    assert json.loads(text.encode())["query"] == "python \ufffd"


def test_a_lone_surrogate_in_a_refused_argument_is_shown_as_a_replacement(make_settings: MakeSettings) -> None:
    tool = lancelot.find_tool("lancedb_search")
    assert tool is not None
    searcher = lancelot.Searcher(make_settings(LANCEDB_PATH=NO_VECTOR))
    for arguments in (
        {"query": "x", "searchType": "\ud800"},
        {"query": "x", "\ud800": 1},
        {"query": "x", "table": "\ud800"},
    ):
        text, failed = lancelot.call_tool(tool, searcher, arguments)
        assert failed
        assert "\ufffd" in text.encode().decode()


def test_answers_are_compact_and_not_escaped_to_ascii(make_call: Callable[..., Call]) -> None:
    reply = make_call(LANCEDB_PATH=DATABASES / "langchain")("lancedb_search", query="häst")
    assert "häst" in reply.text
    assert '":"' in reply.text
    assert "\n" not in reply.text


@pytest.mark.parametrize("budget", [200, 201, 500, 8000])
def test_a_block_is_never_longer_than_its_budget(make_call: Callable[..., Call], budget: int) -> None:
    reply = make_call(**PEPS)("lancedb_query", question="How are decorators written?", contextBudget=budget)
    assert not reply.failed
    assert 0 < len(reply.text) <= budget


def test_a_warm_start_needs_no_question(make_call: Callable[..., Call]) -> None:
    reply = make_call(**PEPS)("lancedb_query", question="", warmStart=True)
    assert not reply.failed
    assert "(warm start, no search)" in reply.text


def test_a_fallback_from_vector_search_is_told(make_call: Callable[..., Call]) -> None:
    answer = make_call(**PEPS)("lancedb_search", query="python", searchType="vector").json
    assert answer["searchType"] == "text"
    assert "No API key is set" in answer["note"]


# Imports


def loaded_after(program: str, *heavy: str) -> list[str]:
    """Which of these packages a program in a fresh interpreter has loaded at its end."""
    tell = f"import json, sys\nprint(json.dumps([name for name in {heavy!r} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{tell}"],
        cwd=PROJECT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("words", [["--help"], ["version"], ["search", "--help"]])
def test_help_and_version_load_no_heavy_package(words: list[str]) -> None:
    program = f"import contextlib, lancelot\nwith contextlib.suppress(SystemExit):\n    lancelot.main({words!r})"
    heavy = ("mcp", "mcp_types", "pydantic", "lancedb", "pyarrow", "numpy", "openai", "httpx2", "keyring", "anyio")
    assert loaded_after(program, *heavy, "cryptography", "platformdirs") == []


def test_the_watch_on_imports_sees_one() -> None:
    assert loaded_after("import platformdirs", "platformdirs", "keyring") == ["platformdirs"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_client_connects_and_lists_tools_before_the_database_is_imported(mode: str) -> None:
    program = f"""
import pathlib
import anyio, lancelot
from mcp import Client
async def run():
    settings = lancelot.load_settings({{"LANCEDB_PATH": {str(NO_VECTOR)!r}, "OPENAI_API_KEY": "sk-none"}}, pathlib.Path("none"))
    async with Client(lancelot.build_server(settings), mode={mode!r}) as client:
        assert len((await client.list_tools()).tools) == {len(NAMES)}
        assert (await client.list_resource_templates()).resource_templates
anyio.run(run)
"""
    assert loaded_after(program, "lancedb", "pyarrow", "openai", "keyring") == []
