"""README and changelog: what they say is what there is."""

from __future__ import annotations

import json
import re

import documents
from conftest import PROJECT

import lancelot
import lancelot_setup

README = documents.README.read_text(encoding="utf-8")


def test_tables_of_the_readme_are_those_of_the_program() -> None:
    assert documents.rendered(README) == README, f"the page is out of date; mend it with: {documents.COMMAND}"


def test_every_variable_that_the_readme_names_is_a_setting() -> None:
    named = set(re.findall(r"\b(?:LANCEDB|LANCELOT|OPENAI|EMBEDDING)_[A-Z_]+\b", README))
    assert named == {setting.name for setting in lancelot.SETTINGS}


def test_every_tool_that_the_readme_names_is_there() -> None:
    assert set(re.findall(r"\blancedb_[a-z]+\b", README)) == {tool.name for tool in lancelot.TOOLS}


def test_client_snippets_of_the_readme_are_what_init_writes_and_prints() -> None:
    shown = dict(
        re.findall(
            r"^([A-Z][^\n]*):\n\n```(?:json|toml|bash)\n(.*?)```$", documents.snippets(), re.DOTALL | re.MULTILINE
        )
    )
    clients = {title: text for titles, text in shown.items() for title in titles.split(", ")}
    for client in lancelot_setup.CLIENTS:
        assert client.format.entry(clients[client.title], client.keys) == client.entry(documents.SAMPLE, {})
    assert json.loads(clients["Claude Desktop"]) == json.loads(lancelot_setup.client_entry(documents.SAMPLE, {}))
    assert clients["Claude Code by its own command"] == lancelot_setup.claude_command(documents.SAMPLE, {}) + "\n"
    assert len(clients) == len(lancelot_setup.CLIENTS) + 1


def test_changelog_has_an_entry_for_this_version() -> None:
    assert f"## {lancelot.__version__}" in (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_readme_names_every_option_of_init_for_scripts() -> None:
    for option in (
        "--path",
        "--api-key-stdin",
        "--base-url",
        "--yes",
        "--model",
        "--show",
        "--client",
        "--scope",
        "--dry-run",
        "--remove",
    ):
        assert option in README
