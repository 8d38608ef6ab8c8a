import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pythons import other_pythons

import build

ROOT = Path(build.__file__).parent
LOCKS = (build.LOCK, build.DEV_LOCK)


def names(entries: tuple[build.Entry, ...]) -> set[str]:
    return {entry.name for entry in entries}


def dependencies() -> set[str]:
    block = re.search(r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert block
    return set(re.findall(r'^    "([a-z-]+)', block[1], re.MULTILINE))


# Basics


def test_a_digest_tells_apart_where_its_parts_end() -> None:
    assert build.digest("ab", "c") != build.digest("a", "bc")


def test_a_child_that_makes_the_archive_sees_nothing_that_sways_python() -> None:
    seen = build.clean_environment({"PYTHONOPTIMIZE": "2", "SHIV_ROOT": "/x", "SOURCE_DATE_EPOCH": "1", "PATH": "/bin"})
    assert seen == {"PATH": "/bin", "PYTHONHASHSEED": "0"}


def test_a_child_that_fails_ends_the_build_with_its_output_shown(capfd: pytest.CaptureFixture[str]) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('the cause')")
    with pytest.raises(build.BuildError, match="what to do"):
        build.run(command, environment=os.environ, failure="what to do")
    assert "the cause" in capfd.readouterr().err


def test_a_folder_that_was_not_finished_is_not_taken_for_one(tmp_path: Path) -> None:
    def fill_half() -> None:
        with build.whole(tmp_path / "folder") as folder:
            folder.mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_half()
    assert not (tmp_path / "folder").exists()


def test_a_finished_folder_replaces_the_one_before_it(tmp_path: Path) -> None:
    for name in ("old", "new"):
        with build.whole(tmp_path / "folder") as folder:
            folder.mkdir()
            (folder / name).touch()
    assert list(build.files_below(tmp_path / "folder")) == ["new"]


def test_what_an_earlier_lock_left_behind_is_removed(tmp_path: Path) -> None:
    kept = tmp_path / "build" / "runtime-2"
    for name in ("runtime-1", kept.name, "other-1"):
        (kept.parent / name).mkdir(parents=True)
    build.remove_older(kept, "runtime-*")
    assert sorted(path.name for path in kept.parent.iterdir()) == ["other-1", kept.name]


# Lock files


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.name))
def test_a_lock_file_holds_nothing_but_pinned_and_hashed_entries(lock: Path) -> None:
    rest = build.ENTRY.sub("", lock.read_text(encoding="utf-8"))
    assert build.read_lock(lock.read_text(encoding="utf-8"))
    assert [line for line in rest.splitlines() if line.strip() and not line.lstrip().startswith("#")] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.name))
def test_a_lock_file_names_no_host_and_no_path(lock: Path) -> None:
    assert re.findall(r"://|file:|--(?!hash=)|\s/\S+", lock.read_text(encoding="utf-8")) == []


def test_the_lock_pins_every_declared_dependency_and_shiv() -> None:
    pinned = names(build.read_lock(build.LOCK.read_text(encoding="utf-8")))
    assert len(dependencies()) == 14
    assert dependencies() | {"shiv"} <= pinned


def test_both_lock_files_pin_the_same_versions_of_what_they_share() -> None:
    runtime, development = (build.read_lock(lock.read_text(encoding="utf-8")) for lock in LOCKS)
    shared = names(runtime) & names(development)
    assert shared
    assert {(e.name, e.version) for e in runtime if e.name in shared} == {
        (e.name, e.version) for e in development if e.name in shared
    }


def test_the_tools_that_only_build_are_not_shipped() -> None:
    shipped = names(build.runtime_entries(build.LOCK.read_text(encoding="utf-8")))
    assert dependencies() <= shipped
    assert shipped.isdisjoint({"shiv", "pip", "setuptools"})


def test_the_environment_for_development_does_not_install_a_second_runtime() -> None:
    runtime = build.runtime_entries(build.LOCK.read_text(encoding="utf-8"))
    added = names(build.development_entries(build.DEV_LOCK.read_text(encoding="utf-8"), runtime))
    assert {"pytest", "hypothesis", "ruff", "mypy"} <= added
    assert added.isdisjoint(names(runtime))


# Packages


def test_a_python_without_pip_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho No module named pip >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(build.BuildError, match="no pip"):
        build.pip_install("anything", tmp_path / "target")


def test_bytecode_is_the_same_wherever_a_folder_lies_and_whatever_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = set()
    for number, optimize in enumerate(("0", "2")):
        monkeypatch.setenv("PYTHONOPTIMIZE", optimize)
        monkeypatch.setenv("PYTHONHASHSEED", str(number + 1))
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        (folder / "module.py").write_text('"""Text."""\nNAMES = {"a", "b", "c", "d"}\nassert "a" in {"a", "b", "c"}\n')
        os.utime(folder / "module.py", (number, number))
        build.compile_folder(folder)
        (compiled,) = folder.rglob("*.pyc")
        made.add((compiled.name, compiled.read_bytes()))
    assert len(made) == 1


# What ships


@pytest.mark.parametrize(
    "path",
    [
        "bin/shiv",
        "mcp-2.3.0.dist-info/RECORD",
        "numpy/tests/test_lazyloading.py",
        "numpy/_core/tests/data/astype_copy.pkl",
        "numpy/conftest.py",
        "numpy/__pycache__/conftest.cpython-311.pyc",
        "numpy/__init__.pyi",
        "pyarrow/lib.pxd",
        "pyarrow/include/arrow/api.h",
        "pyarrow/flight.py",
        "pyarrow/__pycache__/flight.cpython-311.pyc",
        "pyarrow/_flight.cpython-311-x86_64-linux-gnu.so",
        "pyarrow/libarrow_flight.so.2600",
        "pyarrow/libarrow_python.so",
        "pyarrow/libarrow_python.so.2600.1.0",
        "numpy/f2py/__pycache__/crackfortran.cpython-311.pyc",
    ],
)
def test_what_no_import_needs_is_left_out(path: str) -> None:
    assert not build.ships(path)


@pytest.mark.parametrize(
    "path",
    [
        "typing_extensions.py",
        "__pycache__/typing_extensions.cpython-311.pyc",
        "mcp-2.3.0.dist-info/METADATA",
        "keyring-25.7.0.dist-info/entry_points.txt",
        "cryptography-50.0.2.dist-info/licenses/LICENSE",
        "pyarrow/libarrow_python.so.2600",
        "pyarrow/libarrow.so.2600",
        "pyarrow/lib.cpython-311-x86_64-linux-gnu.so",
        "tzdata/zoneinfo/Europe/Stockholm",
        "lancedb/py.typed",
    ],
)
def test_what_runs_or_tells_of_it_ships(path: str) -> None:
    assert build.ships(path)


# Archive


def test_a_folder_is_packed_to_the_same_bytes_whatever_its_modes_and_times(tmp_path: Path) -> None:
    hashes = set()
    for number, mode in enumerate((0o600, 0o755)):
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        for name in ("b.py", "a.py")[:: 1 - 2 * number]:
            (folder / name).write_text(name)
            (folder / name).chmod(mode)
            os.utime(folder / name, (number, 10**9 * number))
        build.pack_folder(folder, tmp_path / f"{number}.zip")
        hashes.add(hashlib.sha256((tmp_path / f"{number}.zip").read_bytes()).hexdigest())
    assert len(hashes) == 1


def test_an_archive_is_the_packages_followed_by_everything_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "package.py").touch()
    build.pack_folder(tmp_path / "folder", tmp_path / "packed.zip")
    build.join(tmp_path / "packed.zip", {"b": b"2", "a": b"1"}, tmp_path / "whole.pyz")
    with zipfile.ZipFile(tmp_path / "whole.pyz") as archive:
        assert archive.namelist() == ["site-packages/package.py", "a", "b", "record.json"]
        assert archive.testzip() is None
    assert (tmp_path / "whole.pyz").read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert os.access(tmp_path / "whole.pyz", os.X_OK)


@pytest.mark.parametrize("line", ['__version__ = "1.2.3"', '__version__: Final = "1.2.3"'])
def test_the_version_is_read_without_importing_the_module(line: str) -> None:
    assert build.read_version(f"import nothing_of_this_name\n{line}\n") == "1.2.3"


def test_a_module_without_a_version_is_a_sentence() -> None:
    with pytest.raises(build.BuildError, match="__version__"):
        build.read_version("version = 1\n")


# Papers


def make_package(site: Path, name: str, **metadata: str) -> None:
    folder = site / f"{name}-1.0.dist-info"
    (folder / "licenses").mkdir(parents=True)
    lines = [f"Name: {name}", "Version: 1.0", *(f"{key.replace('_', '-')}: {value}" for key, value in metadata.items())]
    (folder / "METADATA").write_text("\n".join(lines) + "\n\nA description.\n", encoding="utf-8")
    (folder / "licenses" / "LICENSE").write_text(f"Licence of {name}.\n", encoding="utf-8")


def test_a_package_s_licence_is_found_wherever_its_metadata_have_it(tmp_path: Path) -> None:
    make_package(tmp_path, "b", License_Expression="MIT", License="ignored")
    make_package(tmp_path, "A", License="BSD-2-Clause")
    make_package(tmp_path, "c", Classifier="License :: OSI Approved :: Apache Software License")
    make_package(tmp_path, "d")
    found = [(package.name, package.licence) for package in build.packages_in(tmp_path)]
    assert found == [
        ("A", "BSD-2-Clause"),
        ("b", "MIT"),
        ("c", "Apache Software License"),
        ("d", "see its licence file"),
    ]


def test_the_bill_of_materials_names_every_package_and_no_time(tmp_path: Path) -> None:
    make_package(tmp_path, "b", License_Expression="MIT")
    bill = json.loads(build.bill_of_materials(build.packages_in(tmp_path), "9"))
    assert bill.keys() == {"bomFormat", "specVersion", "version", "metadata", "components"}
    assert bill["metadata"]["component"]["version"] == "9"
    assert [(part["purl"], part["licenses"]) for part in bill["components"]] == [
        ("pkg:pypi/b@1.0", [{"license": {"name": "MIT"}}])
    ]


def test_the_licences_stand_one_after_the_other(tmp_path: Path) -> None:
    make_package(tmp_path, "b", License_Expression="MIT")
    make_package(tmp_path, "a", License_Expression="MIT")
    text = build.licence_texts(build.packages_in(tmp_path))
    assert text.index("Licence of a.") < text.index("b 1.0: MIT") < text.index("Licence of b.")


def test_sums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    assert build.sums_of([tmp_path / "x"]) == f"{hashlib.sha256(b'1').hexdigest()}  x\n"


# Checks


def test_the_tests_run_last_so_that_their_closing_line_ends_the_output() -> None:
    assert build.CHECKS[-1].name == "pytest"


def test_every_check_runs_and_those_that_failed_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    checks = (
        build.Check("a module that is missing", "no_such_module", ()),
        build.Check("the calendar", "calendar", ("2026", "1")),
    )
    assert build.failed_checks(Path(sys.executable), checks) == ["a module that is missing"]
    assert "January 2026" in capfd.readouterr().out


# Command line


def test_a_failure_is_a_sentence_on_stderr_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise build.BuildError("Something is missing. Install it.")  # noqa: EM101, TRY003  # nothing but the text matters

    monkeypatch.setattr(build, "COMMANDS", {"archive": fail})
    assert build.main([]) == 1
    assert capsys.readouterr() == ("", "build: Something is missing. Install it.\n")


def test_help_says_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"build.py {command}" in text for command in build.COMMANDS if command != "archive")
    assert "dist/lancelot.pyz" in text


def test_an_old_python_is_refused_in_a_sentence(tmp_path: Path) -> None:
    old = [python for version, python in other_pythons().items() if version in ("3.7", "3.8", "3.9")]
    if not old:
        pytest.skip("no Python 3.7 to 3.9 on this machine")
    refused = subprocess.run(
        [old[0], ROOT / "build.py"], cwd=tmp_path, check=False, timeout=30, capture_output=True, text=True
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.fullmatch(r"build.py needs Python 3.10 or newer, and this is 3\.\d\.\d+: [^\n]+\.\n", refused.stderr)
