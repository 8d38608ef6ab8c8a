"""That nothing writes to a database folder: by every tool on real folders, and by the names in the source."""

import ast
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
import wire
from conftest import DATABASES, FOLDERS, child_environment
from lancedb import DBConnection
from lancedb.embeddings import EmbeddingFunctionRegistry
from lancedb.table import LanceTable

import lancelot

NOBODY = 65534


def fingerprint(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything about every entry of a folder that a write would change."""

    def facts(path: Path) -> tuple[object, ...]:
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        return (status.st_mode, status.st_uid, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, content)

    return {str(path.relative_to(folder)): facts(path) for path in (folder, *sorted(folder.rglob("*")))}


def calls_on(table: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    return (
        *(
            ("lancedb_search", {"query": "python text", "searchType": kind, "table": table})
            for kind in lancelot.SEARCH_TYPES
        ),
        ("lancedb_search", {"query": "python", "table": table, "textColumn": "nothing"}),
        ("lancedb_query", {"question": "How is a text cut?", "table": table, "limit": 200}),
        ("lancedb_query", {"question": "", "warmStart": True, "table": table}),
        ("lancedb_ask", {"question": "How is a text cut?", "table": table}),
        ("lancedb_read", {"id": "row:0", "table": table, "before": 2, "after": 2}),
        ("lancedb_files", {"table": table}),
        ("lancedb_search", {"query": "", "sort": "-text", "table": table}),
        ("lancedb_values", {"column": "text", "table": table}),
    )


def every_call(folder: str) -> Iterator[dict[str, Any]]:
    """Calls that run each tool on each table in each way, well and wrongly."""
    tables = json.loads((DATABASES / folder / "expected.json").read_text(encoding="utf-8"))["tables"]
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("lancedb_status", {"verbose": True}),
        ("lancedb_version", {}),
        ("lancedb_search", {"query": "python", "table": "no such table"}),
        *itertools.chain.from_iterable(calls_on(table["name"]) for table in tables),
    )
    for number, (tool, arguments) in enumerate(calls):
        yield wire.call(number, tool, **arguments)


def drive(server: wire.Server, folder: str) -> None:
    """Makes every call, reads a document, and checks that each tool and each search did its work at least once."""
    worked, ran = set(), set()
    try:
        for message in every_call(folder):
            answer = server.ask(message)["result"]
            tool, text = message["params"]["name"], answer["content"][0]["text"]
            worked |= set() if answer["isError"] else {tool}
            ran |= {json.loads(text)["searchType"]} if tool == "lancedb_search" and not answer["isError"] else set()
        documents = server.ask(wire.request("list", "resources/list"))["result"]["resources"]
        contents = server.ask(wire.request("read", "resources/read", uri=documents[0]["uri"]))["result"]["contents"]
        assert contents[0]["text"]
        assert server.end() == []
    finally:
        server.stop()
    assert worked == {tool.name for tool in lancelot.TOOLS if not tool.writes}, server.log
    by_vector = set() if folder == "no-vector" else {"vector", "hybrid"}
    assert ran == {"text", "fts", "filter"} | by_vector, server.log


@pytest.fixture
def endpoint(embedding_server: Callable[..., str], chat_server: Callable[..., str]) -> dict[str, str]:
    """The settings for vector search and for answers."""
    embeddings = {"OPENAI_BASE_URL": embedding_server(), "EMBEDDING_MODEL": "hash-embedder-384"}
    return embeddings | {"LANCELOT_CHAT_BASE_URL": chat_server(), "LANCELOT_CHAT_MODEL": "some-model"}


# What a table asks to be run


MODEL = {"name": "text-embedding-ada-002", "base_url": "URL", "host": "URL", "api_key": "k"}
COLUMNS = {"source_column": "text", "vector_column": "vector", "sourceColumn": "text", "vectorColumn": "vector"}
FUNCTIONS = [{"name": "openai", "model": MODEL, **COLUMNS}, {"name": "ollama", "model": MODEL, **COLUMNS}]
EMBEDDED = {"kind": {"Embedding": {"source_column": "text", "embedding_name": "URL"}}}
PREPARED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "functions": ({"embedding_functions": FUNCTIONS}, {}),
    "definitions": ({"lancedb::column_definitions": [{"kind": "Physical"}, {"kind": "Physical"}, EMBEDDED]}, {}),
    "view": ({"mv.definition": {"format": 1, "query": "SELECT * FROM 'URL'"}}, {}),
    "extension": ({}, {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": "URL"}),
    "computed": ({}, {}),
}
"""Metadata of a schema and of its text column that LanceDB, or what it is made of, gives a meaning to."""


def prepare(folder: Path, kind: str, address: str) -> None:
    """Makes a table with one kind of metadata, each address in it being this one."""
    of_schema, of_text = json.loads(json.dumps(PREPARED[kind]).replace("URL", address))
    columns = {"id": pa.string(), "text": pa.string(), "vector": pa.list_(pa.float32(), 384)}
    fields = [pa.field(name, of, metadata=of_text if name == "text" else None) for name, of in columns.items()]
    schema = pa.schema(fields, metadata={key: json.dumps(value) for key, value in of_schema.items()})
    rows = pa.Table.from_pylist([{"id": "1", "text": "python text", "vector": [0.1] * 384}], schema=schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddingFunctionRegistry, "parse_functions", lambda *_: {})
        table = lancedb.connect(folder).create_table(kind, rows)
    if kind == "computed":
        table.add_columns(computed={"upper": "upper(text)"})
    assert kind == "computed" or of_schema.keys() | of_text.keys() == {
        key.decode() for one in (table.schema, table.schema.field("text")) for key in one.metadata or {}
    }


def test_nothing_that_the_metadata_of_a_table_names_is_run_or_reached(endpoint: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for kind in PREPARED:
            prepare(tmp_path / "db", kind, f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        server = wire.Server(child_environment(LANCEDB_PATH=str(tmp_path / "db"), OPENAI_API_KEY="key", **endpoint))
        calls = [call for kind in PREPARED for call in calls_on(kind)]
        try:
            for number, (tool, arguments) in enumerate((*calls, ("lancedb_status", {"verbose": True}))):
                answer = server.ask(wire.call(number, tool, **arguments))["result"]
                assert answer["isError"] == ("textColumn" in arguments), answer
            assert server.end() == []
        finally:
            server.stop()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


# On real folders


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_tool_changes_a_byte_or_a_time_of_a_folder(
    folder: str, folder_copy: Callable[[str], Path], endpoint: dict[str, str]
) -> None:
    path = folder_copy(folder)
    before = fingerprint(path)
    drive(wire.Server(child_environment(LANCEDB_PATH=str(path), **endpoint)), folder)
    assert fingerprint(path) == before


def test_the_fingerprint_tells_a_file_that_was_written_and_put_back(folder_copy: Callable[[str], Path]) -> None:
    path = folder_copy("no-vector")
    before = fingerprint(path)
    (path / "expected.json").write_bytes((path / "expected.json").read_bytes())
    assert fingerprint(path) != before


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed: no read-only mount")
@pytest.mark.parametrize("folder", ["anythingllm", "langchain-json"])
def test_every_tool_works_on_a_read_only_mount(
    folder: str, folder_copy: Callable[[str], Path], endpoint: dict[str, str]
) -> None:
    path = folder_copy(folder)
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && ! touch "$1/probe" 2>/dev/null'
    inside = ("unshare", "--mount", "sh", "-c", f'{mount} && shift && exec "$@"', "sh", str(path))
    if subprocess.run([*inside, "true"], capture_output=True, check=False, timeout=30).returncode:
        pytest.skip("this user may not make a read-only mount")
    before = fingerprint(path)
    environ = child_environment(LANCEDB_PATH=str(path), **endpoint)
    drive(wire.Server(environ, command=(*inside, *wire.COMMAND)), folder)
    assert fingerprint(path) == before


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed: no user without rights")
@pytest.mark.parametrize("folder", ["lancedb-0.14", "no-vector"])
def test_every_tool_works_on_a_folder_of_another_user(
    folder: str, folder_copy: Callable[[str], Path], endpoint: dict[str, str]
) -> None:
    path = folder_copy(folder)
    powerless = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    try:
        for entry in (path, *path.rglob("*")):
            entry.chmod(0o555 if entry.is_dir() else 0o444)
            os.chown(entry, NOBODY, NOBODY)
    except PermissionError:
        pytest.skip("only root may give a folder to another user")
    probe = [*powerless, "touch", str(path / "probe"), str(path / "expected.json")]
    if subprocess.run(probe, capture_output=True, check=False, timeout=30).stderr.count(b"Permission denied") != 2:
        pytest.skip("this user keeps the right to write anywhere")
    before = fingerprint(path)
    environ = child_environment(LANCEDB_PATH=str(path), **endpoint)
    drive(wire.Server(environ, command=(*powerless, *wire.COMMAND)), folder)
    assert fingerprint(path) == before


@pytest.mark.parametrize("missing", ["missing", "missing/deeper", "parent/missing"])
def test_a_folder_that_is_missing_is_not_made(tmp_path: Path, missing: str) -> None:
    (tmp_path / "parent").mkdir()
    path = tmp_path / missing
    server = wire.Server(child_environment(LANCEDB_PATH=str(path)))
    try:
        for number, (tool, arguments) in enumerate(
            [
                ("lancedb_search", {"query": "python"}),
                ("lancedb_query", {"question": "python"}),
                ("lancedb_query", {"question": "", "warmStart": True}),
            ]
        ):
            answer = server.ask(wire.call(number, tool, **arguments))["result"]
            assert answer["isError"]
            assert str(path) in answer["content"][0]["text"]
        assert str(path) in wire.text_of(server.ask(wire.call(9, "lancedb_status")))
        server.end()
    finally:
        server.stop()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "home"] == ["parent"]
    assert list((tmp_path / "parent").iterdir()) == []


def test_a_server_writes_nothing_into_the_home_folder_either(machine: Path, endpoint: dict[str, str]) -> None:
    drive(wire.Server(child_environment(LANCEDB_PATH=str(DATABASES / "no-vector"), **endpoint)), "no-vector")
    assert list(machine.iterdir()) == []


# By the source


READS = frozenset(
    """
    blob_columns count_rows current_branch describe_namespace describe_query describe_secret describe_view
    embedding_functions fetch_blob_files fetch_blob_ranges fetch_blobs from_inner function_errors get_function
    get_lsm_stats get_lsm_write_spec head id index_stats infer_tokenizer_configs initial_storage_options
    latest_storage_options list_functions list_indices list_jobs list_materialized_views list_namespaces list_secrets
    list_tables list_versions list_views name namespace namespace_client namespace_exists open open_job
    open_materialized_view open_table schema search serialize stats table_exists table_names take_offsets take_row_ids
    to_arrow to_lance to_pandas to_polars tokenize uri uses_v2_manifest_paths version wait_for_index
    """.split()  # noqa: SIM905 - names are read best as words
)
"""What a connection and a table offer that writes nothing; whatever else they offer counts as writing."""

WRITES = (
    frozenset(name for kind in (DBConnection, LanceTable) for name in dir(kind) if not name.startswith("_")) - READS
) | {"write_dataset", "create_empty_table"}

SHARED = frozenset({"add", "branches", "create", "delete", "insert", "merge", "tags", "update"})
"""Names that sets, dictionaries and paths have too: calls of a database where what they are called on comes from one."""

OPENERS = frozenset({"_database", "_open", "connect", "open", "open_table"})


def is_table_like(name: str) -> bool:
    return name.strip("_") in {"table", "database", "db", "connection", "dataset"}


def opens(node: ast.AST) -> bool:
    """Whether an expression gives a table or a connection: by its name, or as the result of opening one."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return is_table_like(name)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in OPENERS
        case ast.Await(value=value) | ast.NamedExpr(value=value):
            return opens(value)
    return False


def opened_names(tree: ast.AST) -> set[str]:
    """The names that are given a table or a connection anywhere, also one out of a tuple."""
    names: set[str] = set()
    for node in ast.walk(tree):
        targets: Iterable[ast.AST] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.NamedExpr | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.withitem) and node.optional_vars:
            targets = [node.optional_vars]
        value = getattr(node, "value", None) or getattr(node, "context_expr", None)
        if value is not None and opens(value):
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return names


def writing_names(source: str) -> list[tuple[int, str]]:
    """The lines that name a LanceDB call that writes, called or handed on, and the name."""
    tree = ast.parse(source)
    opened = opened_names(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            on_a_table = opens(node.value) or (isinstance(node.value, ast.Name) and node.value.id in opened)
            if node.attr in WRITES | SHARED and (on_a_table or node.attr not in SHARED):
                found.append((node.lineno, node.attr))
        if isinstance(node, ast.Constant) and node.value in WRITES - SHARED:
            found.append((node.lineno, str(node.value)))
    return found


SAMPLES = {
    'table.add([{"a": 1}])': "add",
    "self.table.delete('true')": "delete",
    "store.open('x').update(values={})": "update",
    "t = database.open_table('x')\nt.delete('true')": "delete",
    "t, layout = self._open(None)\nt.add([])": "add",
    "(t := self.store.open('x')).add([])": "add",
    "self._database.create_table('x')": "create_table",
    "anything.optimize()": "optimize",
    "write = found.merge_insert": "merge_insert",
    "getattr(thing, 'drop_table')('x')": "drop_table",
    "lancedb.connect('x').drop_all_tables()": "drop_all_tables",
    "thing.checkout(3)": "checkout",
    "thing.create_fts_index('text')": "create_fts_index",
}


@pytest.mark.parametrize(("code", "name"), SAMPLES.items())
def test_the_search_for_writing_calls_finds_one(code: str, name: str) -> None:
    assert [found for _, found in writing_names(code)] == [name]


def test_the_search_for_writing_calls_takes_no_set_or_dictionary_for_a_table() -> None:
    assert writing_names("seen.add(1)\nvalues.update(a=1)\nreal.update({})\npath.parent.delete()") == []


def test_what_lancedb_writes_with_is_known() -> None:
    known = """
        add add_columns alter_columns checkout cleanup_old_versions compact_files create_fts_index create_index
        create_scalar_index create_table delete drop_all_tables drop_columns drop_database drop_index drop_table
        merge_insert optimize rename_table restore update
    """
    assert set(known.split()) <= WRITES


def test_no_module_but_the_one_that_indexes_names_a_call_that_writes() -> None:
    names = {path.name: writing_names(path.read_text(encoding="utf-8")) for path in wire.MODULES}
    assert {name for name, calls in names.items() if calls} == {"lancelot_index.py"}
    assert "create_table" in {name for _, name in names["lancelot_index.py"]}


def test_a_server_that_searched_has_loaded_neither_what_indexes_nor_what_sets_up() -> None:
    command = (sys.executable, "-v", str(wire.MODULE))
    server = wire.Server(child_environment(LANCEDB_PATH=str(DATABASES / "langchain")), command=command)
    try:
        for number, (tool, arguments) in enumerate((("lancedb_search", {"query": "python"}), ("lancedb_status", {}))):
            assert not server.ask(wire.call(number, tool, **arguments))["result"]["isError"]
        server.end()
    finally:
        server.stop()
    loaded = set(re.findall(r"^import '(\w+)'", server.log, re.MULTILINE))
    assert {"lancedb", "mcp"} <= loaded
    assert not {name for name in loaded if name.startswith("lancelot")}


def test_a_write_to_a_folder_is_noticed(folder_copy: Callable[[str], Path]) -> None:
    import lancedb

    path = folder_copy("langchain")
    before = fingerprint(path)
    lancedb.connect(path).open_table("vectorstore").delete("id IS NOT NULL")
    assert fingerprint(path) != before
