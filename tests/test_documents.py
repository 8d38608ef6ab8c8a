"""README, docs and changelog: what they say is what there is."""

from __future__ import annotations

import ast
import json
import posixpath
import re

import documents
import pytest
import wire
from conftest import PROJECT

import lancelot
import lancelot_setup

PAGES = {page.relative_to(PROJECT).as_posix(): page.read_text(encoding="utf-8") for page in documents.PAGES}
README, ALL = PAGES["README.md"], "\n".join(PAGES.values())


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_a_page_are_those_of_the_program(page: str) -> None:
    assert documents.rendered(PAGES[page]) == PAGES[page], f"{page} is out of date; mend it with: {documents.COMMAND}"


def test_every_table_made_from_the_program_stands_in_one_place() -> None:
    assert sorted(found[2] for found in documents.MARKED.finditer(ALL)) == sorted(documents.PARTS)


def test_the_readme_is_what_a_newcomer_reads() -> None:
    assert len(README.splitlines()) <= 200


def anchors(text: str) -> set[str]:
    """What the headings of a page are linked by, as GitHub makes it."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_between_the_pages_leads_somewhere(page: str) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", PAGES[page]):
        name, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), name)) if name else page
        assert target in PAGES, link
        assert not anchor or anchor in anchors(PAGES[target]), link


def test_every_page_is_linked_from_the_readme() -> None:
    assert [page for page in PAGES if page != "README.md" and f"]({page}" not in README] == []


def test_every_variable_that_the_pages_name_is_a_setting() -> None:
    named = set(re.findall(r"\b(?:LANCEDB|LANCELOT|OPENAI|EMBEDDING)_[A-Z_]+\b", ALL))
    assert named == {setting.name for setting in lancelot.SETTINGS}


def test_every_tool_that_the_pages_name_is_there() -> None:
    assert set(re.findall(r"\blancedb_[a-z]+\b", ALL)) == {tool.name for tool in lancelot.TOOLS}


def test_client_snippets_are_what_init_writes_and_prints() -> None:
    shown = dict(
        re.findall(
            r"^([A-Z][^\n]*):\n\n```(?:json|toml|bash)\n(.*?)```$", documents.snippets(), re.DOTALL | re.MULTILINE
        )
    )
    clients = {title: text for titles, text in shown.items() for title in titles.split(", ")}
    for client in lancelot_setup.CLIENTS:
        assert lancelot_setup.entry_in(client, clients[client.title].encode()) == client.entry(documents.SAMPLE, {})
    assert json.loads(clients["Claude Desktop"]) == json.loads(lancelot_setup.client_entry(documents.SAMPLE, {}))
    assert clients["Claude Code by its own command"] == lancelot_setup.claude_command(documents.SAMPLE, {}) + "\n"
    assert len(clients) == len(lancelot_setup.CLIENTS) + 1


def test_changelog_has_an_entry_for_this_version() -> None:
    assert f"## {lancelot.__version__}" in (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_architecture_page_names_only_what_is_there() -> None:
    trees = [
        ast.parse(path.read_text(encoding="utf-8")) for path in (*wire.MODULES, PROJECT / "tests" / "test_style.py")
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    defined |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    words = re.findall(r"`([A-Za-z_.]+)(?:\(.*?\))?`", PAGES["docs/architecture.md"])
    named = {part for word in words if re.search(r"_|[a-z][A-Z]|^[A-Z]", word) for part in word.split(".")}
    given = "py lancelot_index lancelot_reading lancelot_setup test_style USER_FILES PROJECT_FILES RULES SPECIFIED"
    given += " mcpServers searchType orderBy order_by"
    known = (
        defined
        | {*given.split()}
        | {tool.name for tool in lancelot.TOOLS}
        | {setting.name for setting in lancelot.SETTINGS}
    )
    assert {"Searcher", "cut_document", "plan_edit", "_SUFFIXES"} <= named
    assert named - known == set()
