"""The bundle and the registry's entry: what a client's form asks for and what it starts is what the program has."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import PROJECT
from node import run_node

import build
import lancelot

SETTINGS = {setting.field: setting for setting in lancelot.SETTINGS}
TARGET = build.Target("3.12", build.PLATFORMS[0])
MANIFEST: dict[str, Any] = build.manifest(TARGET)

TEXT = {"type": "string"}
VARIABLE_SCHEMA = {
    "required": ["name"],
    "properties": {
        "name": TEXT,
        "description": TEXT,
        "placeholder": TEXT,
        "format": {"enum": ["string", "number", "boolean", "filepath"]},
        "isRequired": {"type": "boolean"},
        "isSecret": {"type": "boolean"},
    },
    "additionalProperties": False,
}
PACKAGE_SCHEMA = {
    "required": ["registryType", "identifier", "transport", "fileSha256"],
    "properties": {
        "registryType": {"const": "mcpb"},
        "identifier": {"type": "string", "pattern": r"^https://github\.com/[^/]+/[^/]+/releases/download/[^/]+/[^/]+$"},
        "version": {"type": "string", "minLength": 1, "not": {"const": "latest"}},
        "fileSha256": {"type": "string", "pattern": "^[a-f0-9]{64}$"},
        "transport": {"const": {"type": "stdio"}},
        "environmentVariables": {"type": "array", "items": VARIABLE_SCHEMA},
    },
    "additionalProperties": False,
}
ENTRY_SCHEMA = {
    "required": ["$schema", "name", "description", "version", "packages"],
    "properties": {
        "$schema": {"const": build.REGISTRY_SCHEMA},
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", "minLength": 3, "maxLength": 200},
        "title": {"type": "string", "minLength": 1, "maxLength": 100},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "version": {"type": "string", "maxLength": 255},
        "repository": {"required": ["url", "source"], "properties": {"url": TEXT, "source": TEXT}},
        "packages": {"type": "array", "minItems": 1, "items": PACKAGE_SCHEMA},
    },
    "additionalProperties": False,
}
"""The registry's schema of 2025-12-11, cut to what an entry of ours has and closed to anything else."""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of an archive that stands for the real one."""
    (tmp_path / "any.pyz").write_bytes(b"an archive")
    made = tmp_path / f"{TARGET.stem}.mcpb"
    build.write_bundle(tmp_path / "any.pyz", made, TARGET)
    return made


# The file


def test_a_bundle_holds_the_manifest_the_archive_and_its_licence(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as opened:
        assert opened.namelist() == ["manifest.json", "lancelot.pyz", "README.md", "LICENSE"]
        assert opened.read("lancelot.pyz") == b"an archive"
        assert json.loads(opened.read("manifest.json")) == MANIFEST


def test_the_same_archive_gives_the_same_bundle_whatever_its_mode_and_time(bundle: Path, tmp_path: Path) -> None:
    archive = tmp_path / "any.pyz"
    archive.chmod(0o755)
    os.utime(archive, (1, 1))
    build.write_bundle(archive, tmp_path / "again", TARGET)
    assert (tmp_path / "again").read_bytes() == bundle.read_bytes()


# The manifest


def test_the_manifest_holds_no_place_of_the_machine_that_made_it() -> None:
    text = json.dumps(MANIFEST)
    assert str(PROJECT) not in text
    assert str(Path.home()) not in text
    assert sys.executable not in text


def test_a_client_starts_the_archive_inside_with_its_own_python() -> None:
    server = MANIFEST["server"]
    assert (server["type"], server["entry_point"]) == ("python", "lancelot.pyz")
    assert server["mcp_config"]["command"] == "python3"
    assert server["mcp_config"]["args"] == ["${__dirname}/lancelot.pyz"]
    assert server["mcp_config"]["platform_overrides"] == {"win32": {"command": "python"}}


def test_the_form_asks_for_settings_alone_and_hands_each_over_by_its_variable() -> None:
    assert set(MANIFEST["user_config"]) <= set(SETTINGS)
    expected = {SETTINGS[field].name: f"${{user_config.{field}}}" for field in MANIFEST["user_config"]}
    assert MANIFEST["server"]["mcp_config"]["env"] == expected


def test_the_form_requires_the_folder_and_nothing_else() -> None:
    required = [field for field, entry in MANIFEST["user_config"].items() if entry["required"]]
    assert required == ["path"]
    assert MANIFEST["user_config"]["path"]["type"] == "directory"


def test_the_form_says_of_the_folder_only_what_can_be_chosen_there() -> None:
    described = MANIFEST["user_config"]["path"]["description"]
    assert described == "The folder of the LanceDB database to search."
    assert [mark for mark in ("~", "://") if mark in described] == []


def test_the_form_hides_every_secret_and_only_those() -> None:
    hidden = {field for field, entry in MANIFEST["user_config"].items() if entry.get("sensitive")}
    assert hidden == {field for field in MANIFEST["user_config"] if SETTINGS[field].secret}
    assert {"api_key", "chat_api_key"} <= hidden


def test_the_form_speaks_of_its_own_fields_by_their_titles_not_by_variables() -> None:
    described = json.dumps([entry["description"] for entry in MANIFEST["user_config"].values()])
    assert [name for name in MANIFEST["server"]["mcp_config"]["env"] if name in described] == []
    assert "`" not in described


def test_a_form_of_which_only_the_folder_is_filled_in_sets_only_the_folder(tmp_path: Path) -> None:
    values = {f"${{user_config.{field}}}": entry.get("default") for field, entry in MANIFEST["user_config"].items()}
    values["${user_config.path}"] = str(tmp_path)
    environ = {name: values[value] for name, value in MANIFEST["server"]["mcp_config"]["env"].items()}
    settings = lancelot.load_settings(environ, tmp_path / "none")
    assert [name for name in environ if settings.is_set(name)] == [SETTINGS["path"].name]
    assert settings.problems == ()


def test_the_manifest_lists_the_tools_that_are_always_there_and_says_that_settings_bring_more() -> None:
    always = {tool.name: tool.description for tool in lancelot.TOOLS if not tool.needs}
    assert {tool["name"]: tool["description"] for tool in MANIFEST["tools"]} == always
    assert MANIFEST["tools_generated"] == any(tool.needs for tool in lancelot.TOOLS)


@pytest.mark.parametrize(
    ("platform", "system"),
    [*zip(build.PLATFORMS, ("linux", "linux", "darwin", "win32"), strict=True)],
)
def test_the_manifest_is_for_one_platform_and_one_minor_version_of_python(
    platform: build.Platform, system: str
) -> None:
    made: dict[str, Any] = build.manifest(build.Target("3.10", platform))
    assert made["compatibility"] == {"platforms": [system], "runtimes": {"python": ">=3.10,<3.11"}}


def test_the_validator_of_the_format_takes_the_manifest(tmp_path: Path, node_clients: Path) -> None:
    (tmp_path / "manifest.json").write_text(build.json_text(MANIFEST), encoding="utf-8")
    validator = node_clients / "node_modules" / ".bin" / "mcpb"
    assert "Manifest schema validation passes!" in run_node(
        [validator, "validate", tmp_path / "manifest.json"], cwd=tmp_path
    )


# Papers that list bundles


def papers_made(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, str]:
    """Makes the common papers of a folder and gives their texts."""
    monkeypatch.setattr(build, "ARCHIVE", folder / "lancelot.pyz")
    assert build.main(["papers"]) == 0
    return {name: (folder / name).read_text(encoding="utf-8") for name in ("SHA256SUMS", "server.json")}


def test_a_bundle_of_an_archive_that_is_made_anew_is_removed(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(bundle.name in text for text in papers_made(monkeypatch, tmp_path).values())
    monkeypatch.setattr(build, "make_archive", lambda _target, _archive: None)
    assert build.main(["--python", TARGET.python, "--platform", TARGET.platform.name]) == 0
    assert not bundle.exists()
    assert not (tmp_path / "server.json").exists()
    assert (tmp_path / "SHA256SUMS").read_text(encoding="utf-8").split()[1:] == ["any.pyz"]


# The registry's entry


def test_the_entry_lists_every_bundle_of_this_version_that_lies_there(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = build.Target("3.13", build.PLATFORMS[-1])
    build.write_bundle(tmp_path / "any.pyz", tmp_path / f"{other.stem}.mcpb", other)
    (tmp_path / "lancelot-0.0.0-cp312-linux_x86_64.mcpb").touch()
    monkeypatch.setattr(build, "ARCHIVE", tmp_path / "lancelot.pyz")
    build.write_common_papers()
    entry = json.loads((tmp_path / "server.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(ENTRY_SCHEMA).validate(entry)
    assert [part["identifier"].rpartition("/")[2] for part in entry["packages"]] == [bundle.name, f"{other.stem}.mcpb"]


def test_the_entry_is_what_the_schema_of_the_registry_allows(bundle: Path) -> None:
    jsonschema.Draft7Validator(ENTRY_SCHEMA).validate(build.registry_entry([bundle]))


def test_the_entry_names_the_bundle_of_this_release_and_its_sum(bundle: Path) -> None:
    entry: dict[str, Any] = build.registry_entry([bundle])
    (package,) = entry["packages"]
    assert entry["version"] == package["version"] == lancelot.__version__
    assert package["identifier"].endswith(f"/v{lancelot.__version__}/{bundle.name}")
    assert package["fileSha256"] == hashlib.sha256(bundle.read_bytes()).hexdigest()


def test_the_entry_has_every_setting_with_its_secrets_marked(bundle: Path) -> None:
    entry: dict[str, Any] = build.registry_entry([bundle])
    variables = entry["packages"][0]["environmentVariables"]
    assert [(one["name"], one["isSecret"]) for one in variables] == [
        (one.name, one.secret) for one in lancelot.SETTINGS
    ]
    assert [one["name"] for one in variables if one["isRequired"]] == [SETTINGS["path"].name]


def test_the_entry_sets_no_default_since_a_setting_that_is_set_counts_as_the_person_s(bundle: Path) -> None:
    entry: dict[str, Any] = build.registry_entry([bundle])
    assert [one for one in entry["packages"][0]["environmentVariables"] if {"default", "value"} & one.keys()] == []
