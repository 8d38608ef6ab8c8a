"""Real clients that start the module and the file that ships, as people's programs do."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import wire
from client_files import COMMENTED, FOREIGN_JSON, WITHOUT_LAST_COMMAS
from conftest import DATABASES, child_environment
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from node import PACKAGES, run_node
from pythons import ARCHIVE, PYTHON

import lancelot_setup

SECONDS = 90
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lancedb_search", {"query": "beautiful ugly explicit implicit", "limit": 3, "searchType": "text"}),
    ("lancedb_query", {"question": "Is beautiful better than ugly?", "contextBudget": 2000}),
)


@pytest.fixture(params=["module", "archive"])
def program(request: pytest.FixtureRequest, archive_cache: Path) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of the server: the module, then the file that ships."""
    environ = child_environment(LANCEDB_PATH=str(DATABASES / "langchain"))
    if request.param == "module":
        return list(wire.COMMAND), environ
    if not ARCHIVE.exists():
        pytest.skip(f"{ARCHIVE} is not there: python3 build.py makes it")
    return [PYTHON, str(ARCHIVE)], environ | {"SHIV_ROOT": str(archive_cache)}


def check_answers(search: str, query: str) -> None:
    """That the search found the poem and the block quotes it."""
    answer = json.loads(search)
    assert answer["hits"][0]["source"] == "docs/peps/pep-0020.rst"
    assert answer["hits"][0]["score"] == 1.0
    assert query.startswith("# Context from vectorstore")
    assert "Beautiful is better than ugly." in query


Program = tuple[list[str], dict[str, str]]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_python_client_finds_and_reads_from_another_folder(program: Program, tmp_path: Path, mode: str) -> None:
    command, environ = program
    elsewhere = tmp_path / "påse med mellanslag"
    elsewhere.mkdir()
    server = StdioServerParameters(command=command[0], args=command[1:], env=environ, cwd=elsewhere)

    async def use() -> tuple[list[str], list[str], str]:
        with anyio.fail_after(SECONDS):
            async with Client(server, mode=mode) as client:
                names = [tool.name for tool in (await client.list_tools()).tools]
                results = [await client.call_tool(name, arguments) for name, arguments in CALLS]
                texts = [content.text for result in results for content in result.content if content.type == "text"]
                return names, texts, str(client.protocol_version)

    names, texts, version = anyio.run(use)
    assert names == wire.ALWAYS_OFFERED
    assert version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[mode]
    check_answers(*texts)
    assert list(elsewhere.iterdir()) == []


def test_the_typescript_client_finds_and_reads(program: Program, node_clients: Path, tmp_path: Path) -> None:
    command, environ = program
    calls = [{"name": name, "arguments": arguments} for name, arguments in CALLS]
    session = {"command": command[0], "args": command[1:], "env": environ, "calls": calls}
    answer = json.loads(run_node(["node", node_clients / "session.mjs", json.dumps(session)], cwd=tmp_path))
    assert answer["tools"] == wire.ALWAYS_OFFERED
    assert not any(result.get("isError") for result in answer["results"])
    check_answers(*(result["content"][0]["text"] for result in answer["results"]))


def test_the_typescript_client_reads_documents_of_any_name(
    node_clients: Path, tmp_path: Path, make_table: Callable[..., Path]
) -> None:
    names = sorted(wire.DOCUMENT_NAMES)
    folder = make_table({"source": names, "text": [f"text of {name}" for name in names]})
    session = {"command": wire.COMMAND[0], "args": wire.COMMAND[1:], "table": "documents"}
    session["env"] = child_environment(LANCEDB_PATH=str(folder))
    seen = json.loads(run_node(["node", node_clients / "documents.mjs", json.dumps(session)], cwd=tmp_path))
    assert [resource["description"] for resource in seen["resources"]] == [f"1 chunk in documents: {n}" for n in names]
    assert seen["texts"] == [[f"text of {name}"] * 2 for name in names]
    assert seen["completion"] == {"values": names, "total": len(names), "hasMore": False}
    assert seen["filledIn"] == [f"text of {name}" for name in names]
    assert seen["error"]["code"] == -32002
    assert 'There is no document "none" in documents.' in seen["error"]["message"]


def inspect(program: Program, node_clients: Path, cwd: Path, *options: str) -> dict[str, Any]:
    command, environ = program
    variables = [word for name, value in environ.items() for word in ("-e", f"{name}={value}")]
    inspector = node_clients / "node_modules" / ".bin" / "mcp-inspector"
    return json.loads(run_node([inspector, "--cli", *command, *variables, *options], cwd=cwd))


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_finds_no_fault_in_the_schemas(
    program: Program, node_clients: Path, tmp_path: Path, era: str
) -> None:
    listing = inspect(program, node_clients, tmp_path, "--method", "tools/list", "--strict", "--protocol-era", era)
    assert [tool["name"] for tool in listing["tools"]] == wire.ALWAYS_OFFERED


def test_the_inspector_lists_and_reads_documents(program: Program, node_clients: Path, tmp_path: Path) -> None:
    use = functools.partial(inspect, program, node_clients, tmp_path, "--protocol-era", "modern", "--method")
    address = "lancelot://vectorstore/docs/peps/pep-0020.rst"
    assert address in [resource["uri"] for resource in use("resources/list")["resources"]]
    (content,) = use("resources/read", "--uri", address)["contents"]
    assert (content["uri"], content["mimeType"]) == (address, "text/plain")
    assert "Beautiful is better than ugly." in content["text"]


def test_the_inspector_finds_and_reads(program: Program, node_clients: Path, tmp_path: Path) -> None:
    texts = []
    for name, arguments in CALLS:
        pairs = [f"{key}={value}" for key, value in arguments.items()]
        call = ("--method", "tools/call", "--protocol-era", "modern", "--tool-name", name, "--tool-arg", *pairs)
        result = inspect(program, node_clients, tmp_path, *call)
        assert not result.get("isError")
        texts.append(result["content"][0]["text"])
    check_answers(*texts)


@pytest.mark.parametrize(
    ("name", "reader", "before"),
    [
        ("vscode", "jsonc", COMMENTED.replace("KEY", "servers")),
        ("gemini", "stripped", WITHOUT_LAST_COMMAS.replace("KEY", "mcpServers")),
        ("claude-code", "json", FOREIGN_JSON.replace("KEY", "mcpServers")),
    ],
)
def test_a_client_s_own_reader_sees_what_was_written_and_what_was_there(
    name: str, reader: str, before: str, node_clients: Path, tmp_path: Path
) -> None:
    client = next(client for client in lancelot_setup.CLIENTS if client.name == name)
    path = tmp_path / "file"
    path.write_text(before, encoding="utf-8")
    entry = client.entry(["/opt/å \u2028/python3", 'C:\\"x".pyz'], {"SHIV_ROOT": "/a, }"})
    lancelot_setup.apply_edit(lancelot_setup.plan_edit(client, path, entry))
    read = json.loads(run_node(["node", node_clients / "read.mjs", reader, path], cwd=tmp_path))
    servers = read[client.key]
    assert servers.pop("lancelot") == entry
    assert servers.keys() == ({"other", "last"} if reader == "json" else {"other", "url"})
    lancelot_setup.apply_edit(lancelot_setup.plan_edit(client, path, None))
    assert path.read_text(encoding="utf-8") == before


def test_the_lock_of_the_node_clients_names_no_registry() -> None:
    lock = json.loads((PACKAGES / "package-lock.json").read_text(encoding="utf-8"))
    assert not any("resolved" in package for package in lock["packages"].values())
    installed = {name: package for name, package in lock["packages"].items() if name}
    assert all(package["integrity"].startswith("sha512-") for package in installed.values())
    assert installed["node_modules/@modelcontextprotocol/inspector"]["version"] == "2.12.0"
    assert installed["node_modules/@modelcontextprotocol/sdk"]["version"] == "1.32.2"
