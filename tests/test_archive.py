"""The file that ships, started as its users start it."""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import wire
from pythons import other_pythons

import build

ARCHIVE = build.ARCHIVE
VERSION = build.read_version((build.ROOT / "lancelot.py").read_text(encoding="utf-8"))
BARE = (sys.executable, "-I", "-S")
LIMIT = 60
REPRODUCIBLE = "LANCELOT_TEST_REPRODUCIBLE"

pytestmark = pytest.mark.skipif(
    not ARCHIVE.exists(), reason="dist/lancelot.pyz is not there: python3 build.py makes it"
)


@dataclass(frozen=True)
class Unpacked:
    """Where the archive was unpacked, and how the two starts went that did it at the same time."""

    root: Path
    starts: tuple[tuple[int, str, str], ...]

    @property
    def site(self) -> Path:
        (site,) = self.root.glob("*/site-packages")
        return site


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unpacked]:
    root = tmp_path_factory.mktemp("root")
    command = [*BARE, str(ARCHIVE), "version"]
    environment = {"SHIV_ROOT": str(root)}
    starts = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [(*start.communicate(timeout=LIMIT), start.returncode) for start in starts]
    yield Unpacked(root, tuple((code, out, err) for out, err, code in ends))
    shutil.rmtree(root)


def start(
    *arguments: str,
    root: Path,
    archive: Path = ARCHIVE,
    python: tuple[str, ...] = BARE,
    cwd: Path | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*python, str(archive), *arguments],
        env={"SHIV_ROOT": str(root), **environment},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )


def run_inside(code: str, unpacked: Unpacked, python: tuple[str, ...] = BARE, **environment: str) -> str:
    """What some code prints that runs with the packages of the archive, reached as shiv lets one reach them."""
    done = start("-c", code, root=unpacked.root, python=python, SHIV_INTERPRETER="1", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def listing(folder: Path) -> dict[str, int]:
    return {name: path.stat().st_mtime_ns for name, path in build.files_below(folder).items()}


# Starting


def test_two_first_starts_at_once_both_say_the_version_and_nothing_else(unpacked: Unpacked) -> None:
    assert [(code, err) for code, _, err in unpacked.starts] == [(0, "")] * 2
    assert all(VERSION in out for _, out, _ in unpacked.starts)


def test_a_bare_python_starts_it_from_another_folder(unpacked: Unpacked, tmp_path: Path) -> None:
    done = start("version", root=unpacked.root, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert VERSION in done.stdout


def test_a_symbolic_link_starts_the_copy_that_is_unpacked_already(unpacked: Unpacked, tmp_path: Path) -> None:
    link = tmp_path / "lancelot"
    link.symlink_to(ARCHIVE)
    before = sorted(path.name for path in unpacked.root.iterdir())
    done = start("version", root=unpacked.root, archive=link)
    assert VERSION in done.stdout
    assert sorted(path.name for path in unpacked.root.iterdir()) == before


def test_it_starts_by_itself_where_python3_is_the_right_one(unpacked: Unpacked, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    done = subprocess.run(
        [ARCHIVE, "version"],
        env={"SHIV_ROOT": str(unpacked.root), "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert VERSION in done.stdout


# Packages

SHADOWED = ("mcp", "lancedb", "pyarrow", "openai", "json", "platform", "tempfile")

IMPORTS = """
import sys
from importlib.machinery import SourceFileLoader
compiled, compile_source = [], SourceFileLoader.source_to_code
SourceFileLoader.source_to_code = lambda *given, **named: compiled.append(given[2]) or compile_source(*given, **named)
import lancelot, mcp.server, mcp.server.stdio, lancedb, lancedb.index, pyarrow.compute, pyarrow.dataset, pyarrow.fs
import pyarrow.parquet, openai, keyring, keyring.backends.SecretService, platformdirs, cryptography.fernet
"""

ROUND_TRIP = """
import lancedb, lancedb.index, tempfile
with tempfile.TemporaryDirectory() as folder:
    rows = [{"id": n, "text": f"the row {n}", "vector": [float(n), 1.0]} for n in range(3)]
    table = lancedb.connect(folder).create_table("t", rows)
    table.create_index("text", config=lancedb.index.FTS())
    again = lancedb.connect(folder).open_table("t")
    nearest = again.search([2.0, 1.0]).limit(1).to_list()[0]["id"]
    found = again.search("row", query_type="fts").where("id > 0").to_arrow().num_rows
    print(nearest, found, again.to_arrow().schema.field("vector").type)
"""


def test_what_was_left_out_is_not_missed_by_any_import(unpacked: Unpacked) -> None:
    assert run_inside(IMPORTS + "print('done')", unpacked) == "done\n"


def test_lancedb_writes_and_reads_with_the_packages_that_ship(unpacked: Unpacked) -> None:
    assert run_inside(ROUND_TRIP, unpacked) == "2 2 fixed_size_list<item: float>[2]\n"


def test_nothing_of_the_machine_stands_in_for_what_ships(unpacked: Unpacked, tmp_path: Path) -> None:
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("print('shadowed')\n")
    code = "import lancelot, mcp, lancedb, sys; print(lancelot.__file__, mcp.__file__, sys.path[2:])"
    printed = run_inside(code, unpacked, python=(sys.executable,), PYTHONPATH=str(tmp_path))
    assert printed.startswith(f"{unpacked.site}/lancelot.py {unpacked.site}/mcp/__init__.py ")
    assert str(tmp_path) not in printed
    assert printed.count("-packages") == printed.count(str(unpacked.site)) == 3


def test_the_metadata_of_the_project_can_be_read(unpacked: Unpacked) -> None:
    code = "from importlib.metadata import version; print(version('lancelot'), version('mcp'))"
    assert run_inside(code, unpacked).startswith(f"{VERSION} 2.")


def test_the_licence_ships() -> None:
    with zipfile.ZipFile(ARCHIVE) as archive:
        shipped = archive.read(f"site-packages/lancelot-{VERSION}.dist-info/licenses/LICENSE")
    assert shipped == (build.ROOT / "LICENSE").read_bytes()


# Bytecode


def test_every_module_ships_with_bytecode_that_is_never_compared_with_its_source() -> None:
    unchecked_hash = (1).to_bytes(4, "little")
    with zipfile.ZipFile(ARCHIVE) as archive:
        packages = [name for name in archive.namelist() if name.startswith("site-packages/")]
        heads = {name: archive.open(name).read(8) for name in packages if name.endswith(".pyc")}
    sources = {name for name in packages if name.endswith(".py")}
    assert "site-packages/lancelot.py" in sources
    assert {build.source_of(name) for name in heads} == sources
    assert set(heads.values()) == {importlib.util.MAGIC_NUMBER + unchecked_hash}


@pytest.mark.parametrize("environment", [{}, {"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONPYCACHEPREFIX": "elsewhere"}])
def test_no_import_compiles_or_writes_anything(unpacked: Unpacked, tmp_path: Path, environment: dict[str, str]) -> None:
    elsewhere = {name: value.replace("elsewhere", str(tmp_path)) for name, value in environment.items()}
    before = listing(unpacked.root)
    code = IMPORTS + "print(len(sys.modules) > 500, compiled)"
    assert run_inside(code, unpacked, python=(sys.executable,), **elsewhere) == "True []\n"
    assert listing(unpacked.root) == before
    assert [path for path in tmp_path.rglob("*.pyc") if ARCHIVE.name in str(path)] == []


# Refusals


def thin_archive(folder: Path, **changes: object) -> Path:
    """The archive without its packages, as if it had been built for something else."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        parts = {name: archive.read(name) for name in archive.namelist() if not name.startswith("site-packages/")}
    parts["built_for.json"] = json.dumps(json.loads(parts["built_for.json"]) | changes).encode()
    with zipfile.ZipFile(folder / "thin.pyz", "w") as thin:
        for name, content in parts.items():
            thin.writestr(name, content)
    return folder / "thin.pyz"


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a refusal."""
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"[^\n]+\.\n", done.stderr)
    return done.stderr


def test_every_other_python_of_this_machine_is_refused_before_anything_is_unpacked(tmp_path: Path) -> None:
    others = other_pythons()
    if not others:
        pytest.skip("no other Python on this machine")
    here = "CPython {}.{}".format(*sys.version_info[:2])
    for version, python in others.items():
        said = refusal(start("version", root=tmp_path / "root", python=(python,)))
        assert said.startswith(f"lancelot.pyz is for {here} on ")
        assert re.search(rf"started by \w+ {re.escape(version)} ", said)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    "expected",
    ["CPython 3.99 on Linux x86_64", "PyPy 3.11 on Linux x86_64", "CPython 3.11 on Windows AMD64"],
)
def test_another_implementation_or_platform_is_refused_in_a_sentence(tmp_path: Path, expected: str) -> None:
    archive = thin_archive(tmp_path, interpreter=expected)
    said = refusal(start("version", root=tmp_path / "root", archive=archive))
    assert said.startswith(f"thin.pyz is for {expected}, but was started by CPython ")
    assert not (tmp_path / "root").exists()


def test_an_older_glibc_is_refused_in_a_sentence(tmp_path: Path) -> None:
    archive = thin_archive(tmp_path, glibc=[2, 999])
    said = refusal(start("version", root=tmp_path / "root", archive=archive))
    assert said.startswith("thin.pyz needs glibc 2.999 or newer, but this system has ")
    assert not (tmp_path / "root").exists()


def test_a_folder_that_cannot_be_written_is_a_sentence_that_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refusal(start("version", root=tmp_path / "file" / "root"))
    assert str(tmp_path / "file" / "root") in said
    assert "set SHIV_ROOT to a folder that can be written" in said


# Sizes and bytes


def test_the_archive_and_what_it_unpacks_to_stay_below_their_limits() -> None:
    assert ARCHIVE.stat().st_size < 165 * build.BYTES_PER_MB
    assert build.unpacked_size(ARCHIVE) < 470 * build.BYTES_PER_MB


def test_no_entry_tells_of_the_machine_that_made_it() -> None:
    with zipfile.ZipFile(ARCHIVE) as archive:
        entries = archive.infolist()
    assert {(entry.date_time, entry.external_attr, entry.create_system) for entry in entries} == {
        (build.ENTRY_TIME, build.ENTRY_MODE << 16, build.MADE_ON_UNIX)
    }
    names = [entry.filename for entry in entries]
    assert len(set(names)) == len(names)
    assert not [
        name for name in names if re.search(r"-info/(RECORD|INSTALLER|REQUESTED|direct_url)|^site-packages/bin/", name)
    ]


@pytest.mark.skipif(
    not os.environ.get(REPRODUCIBLE), reason=f"builds twice from nothing: set {REPRODUCIBLE}=1 to run it"
)
def test_two_checkouts_give_the_same_bytes(tmp_path: Path) -> None:
    python = Path(sys.executable).resolve()  # the environment of the tests has no pip
    made = []
    for seed, umask, zone in (("1", 0o022, "Asia/Tokyo"), ("2", 0o077, "America/New_York")):
        checkout = tmp_path / f"checkout{seed}"
        checkout.mkdir()
        for name in ("build.py", "bootstrap.py", "lancelot.py", "README.md", "LICENSE", build.LOCK.name):
            shutil.copyfile(build.ROOT / name, checkout / name)
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
        subprocess.run([python, "build.py"], cwd=checkout, env=environment, umask=umask, check=True, timeout=600)
        made.append((checkout / "dist" / ARCHIVE.name).read_bytes())
        shutil.rmtree(checkout)
    assert made[0] == made[1]


# Papers and verification


def test_the_sums_beside_the_archive_are_right() -> None:
    lines = (ARCHIVE.parent / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    named = {name: digest for digest, name in (line.split("  ") for line in lines)}
    bundled = {name for name in named if name.endswith(".mcpb")} | ({"server.json"} & named.keys())
    assert named.keys() - bundled == {"lancelot.pyz", "lancelot.cdx.json", "LICENSES.txt"}
    assert len(bundled) in (0, 2), "a bundle and the registry's entry for it are made together"
    for name, digest in named.items():
        assert hashlib.sha256((ARCHIVE.parent / name).read_bytes()).hexdigest() == digest


def test_the_bill_of_materials_names_all_that_is_inside() -> None:
    bill = json.loads((ARCHIVE.parent / "lancelot.cdx.json").read_text(encoding="utf-8"))
    with zipfile.ZipFile(ARCHIVE) as archive:
        folders = {name.split("/")[1] for name in archive.namelist() if ".dist-info/" in name}
    inside = {folder.partition("-")[0].replace("_", "-").replace(".", "-").lower() for folder in folders} - {"lancelot"}
    assert {part["name"].replace("_", "-").replace(".", "-").lower() for part in bill["components"]} == inside
    assert all(part["licenses"][0]["license"]["name"] for part in bill["components"])


def test_a_copy_as_it_was_built_is_verified(unpacked: Unpacked) -> None:
    done = start("verify", root=unpacked.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert " files, 0 problems\n" in done.stdout
    assert hashlib.sha256(ARCHIVE.read_bytes()).hexdigest() in done.stdout


def test_what_was_changed_added_or_removed_after_unpacking_is_named(unpacked: Unpacked, tmp_path: Path) -> None:
    site = tmp_path / "shiv" / unpacked.site.relative_to(unpacked.root)
    shutil.copytree(unpacked.root, tmp_path / "shiv", copy_function=os.link)
    for name in ("mcp/py.typed", "tqdm/std.py"):
        (site / name).unlink()
    (site / "tqdm" / "std.py").write_text("changed = True\n", encoding="utf-8")
    (site / "added.py").write_text("added = True\n", encoding="utf-8")
    done = start("verify", root=tmp_path / "shiv")
    assert done.returncode == 1
    assert f"failed: {site / 'added.py'} was added\n" in done.stdout
    assert f"failed: {site / 'mcp' / 'py.typed'} is missing\n" in done.stdout
    assert f"failed: {site / 'tqdm' / 'std.py'} differs\n" in done.stdout
    assert ", 3 problems\n" in done.stdout


# The unpacked copies


def make_copies(root: Path, *names: str) -> list[Path]:
    """Stands for what other versions unpacked: each newer than the one before, all older than now."""
    for age, name in enumerate(reversed(names)):
        (root / name / "site-packages").mkdir(parents=True)
        (root / name / "site-packages" / "lancelot.py").write_text("", encoding="utf-8")
        os.utime(root / name, (1_600_000_000 - age, 1_600_000_000 - age))
    (root / "other.pyz_1" / "site-packages").mkdir(parents=True)
    return [root / name for name in names]


def test_a_first_start_removes_all_but_the_last_version_before(tmp_path: Path) -> None:
    root = tmp_path / "root"
    oldest, older, last = make_copies(root, "lancelot.pyz_a", "lancelot.pyz_b", "renamed_c")
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCKED, str(oldest)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    assert start("version", root=root).returncode == 0
    assert (oldest.exists(), older.exists(), last.exists()) == (True, False, True)
    assert (root / "other.pyz_1").exists()
    shown = start("cache", root=root)
    assert [line.rpartition(", ")[2] for line in shown.stdout.splitlines()] == ["this one", *["another version"] * 2]
    assert oldest.exists()
    assert f"{oldest}: 0 MB, kept, since it is in use" in start("cache", "--clear", root=root).stdout
    holder.communicate(timeout=30)
    assert f"{oldest}: 0 MB, removed" in start("cache", "--clear", root=root).stdout
    assert sorted(path.name for path in root.iterdir() if not path.name.startswith(".")) == [
        start_folder(root).name,
        "other.pyz_1",
    ]


LOCKED = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_SH)
print("locked", flush=True)
sys.stdin.read()
"""


def start_folder(root: Path) -> Path:
    """The copy that the archive unpacked."""
    (found,) = (path.parent.parent for path in root.glob("*_*/site-packages/mcp"))
    return found


def test_a_running_server_keeps_its_copy(unpacked: Unpacked) -> None:
    server = subprocess.Popen(
        [*BARE, str(ARCHIVE)],
        env={"SHIV_ROOT": str(unpacked.root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(wire.handshake(1)).encode() + b"\n")
    server.stdin.flush()
    assert json.loads(server.stdout.readline())["id"] == 1
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    held = subprocess.run(
        [sys.executable, "-c", code, str(unpacked.site.parent)], capture_output=True, text=True, check=False, timeout=30
    )
    assert "BlockingIOError" in held.stderr
    server.communicate(timeout=30)
