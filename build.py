"""Builds `dist/lancelot.pyz`, the one file that ships, for the Python that runs this and its platform.

    python3 build.py          makes dist/lancelot.pyz, with SHA256SUMS, a bill of materials and the licences beside it
    python3 build.py bundle   makes it, then an MCPB bundle of it and server.json, the MCP Registry's entry for that
    python3 build.py papers   makes SHA256SUMS and server.json anew for all that lies in dist/
    python3 build.py check    makes it, then runs every check and test of the project
    python3 build.py test     makes an archive for each Python of this machine, and runs the tests of the built file
    python3 build.py lock     resolves the requirements anew into both lock files

With `--python` and `--platform`, the archive and the bundle are made for others than the Python that runs this:
each combination of the two is one file, such as dist/lancelot-1.0.0-cp312-macos_arm64.pyz. Both can be given
several times, or `all`; the one that is left out stands for what runs this.

Needs Python 3.10 or newer with pip, and the package index that pip is set up for. Everything it makes lies
in `build/` and `dist/`; what did not change since the last time is reused. The same commit built by the same
Python and zlib gives the same bytes.

Sections:
    Basics          folders, the one error class, announced steps, child processes
    Targets         the Pythons and platforms that archives are made for
    Lock files      what they pin, for which target, and how they are made
    Packages        the folder of installed packages, with their bytecode
    Archive         what ships of the packages, shiv's parts and the starting code in one file
    Papers          what an archive is checked by: sums, a bill of materials, licences
    Bundle          the archive as clients install it by a click, and the entry of a registry
    Checks          the environment for development, and the checks in it
    Command line    one function a command
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036  # an older one is what this is here to tell of
    sys.exit(
        "build.py needs Python 3.10 or newer, and this is " + sys.version.split()[0] + ": run it with a newer one."
    )

import argparse
import contextlib
import csv
import email
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import Any

import bootstrap
import lancelot

# ---------------------------------------------------------------------------------------------- Basics
# Folders, the one error class, and child processes. A step is announced on stderr before it starts;
# only the result goes to stdout.

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build"
ARCHIVE = ROOT / "dist" / "lancelot.pyz"


class BuildError(Exception):
    """The build cannot go on. The message says what happened and what to do about it."""


class NotServedError(BuildError):
    """The dependencies have no wheel for a target."""


def say(step: str) -> None:
    """Announce a step."""
    print(f"build: {step}", file=sys.stderr, flush=True)


def digest(*parts: str | bytes) -> str:
    """A short name for some content, the same wherever and whenever it is computed."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return total.hexdigest()[:16]


def sum_of(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def clean_environment(environment: Mapping[str, str], **changes: str) -> dict[str, str]:
    """The environment for a child whose output ends up in the archive: nothing in it may sway Python."""
    swaying = ("PYTHON", "SHIV_", "SOURCE_DATE_EPOCH")
    kept = {name: value for name, value in environment.items() if not name.startswith(swaying)}
    return kept | {"PYTHONHASHSEED": "0"} | changes


def ended(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a child in silence."""
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def run(command: Sequence[str], *, environment: Mapping[str, str], failure: str) -> None:
    """Run a child in silence; if it fails, show its output and raise `failure` as a BuildError."""
    done = ended(command, environment)
    if done.returncode:
        print(done.stdout, done.stderr, sep="", file=sys.stderr, flush=True)
        message = missing_wheel(done.stderr)
        raise NotServedError(message) if message else BuildError(failure)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Write a text, which is the same on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a temporary path to fill, which becomes `path` when all went well: no half-made file is taken for one."""
    temporary = path.with_name(path.name + ".tmp")
    remove(temporary)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    yield temporary
    remove(path)
    temporary.replace(path)


def remove_older(path: Path, pattern: str) -> None:
    """Remove what earlier versions of the inputs left beside `path`: half a gigabyte each."""
    for old in path.parent.glob(pattern):
        if old != path:
            remove(old)


# --------------------------------------------------------------------------------------------- Targets
# An archive holds compiled modules, so it is for one minor version of Python on one platform. What the program that
# starts it sees there, and what pip calls it, is in the table below. This machine need not be in it.

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

# The oldest systems that the dependencies have wheels for, pyarrow being the one that asks for the most.
# Wheels for newer systems than this are passed over; where they run, these run too.
GLIBC = (2, 28)
MACOS = 12


@dataclass(frozen=True)
class Platform:
    """A system and a processor: their names, the wheels that run there, the glibc needed.

    `name` is the one on the command line, `system` and `machine` are those that `bootstrap.interpreter` sees there, and
    `sys_platform` is what Python calls the system. If `wheels` is empty, pip chooses them by the running Python.
    """

    name: str
    system: str
    machine: str
    sys_platform: str
    wheels: tuple[str, ...] = ()
    glibc: tuple[int, int] | None = None


def linux(machine: str) -> Platform:
    """Every Linux of a processor from `GLIBC` on."""
    tags = [f"manylinux_{GLIBC[0]}_{minor}" for minor in range(GLIBC[1], 4, -1)]
    tags += ["manylinux2014", "manylinux2010", "manylinux1"]
    return Platform(f"linux-{machine}", "Linux", machine, "linux", tuple(f"{tag}_{machine}" for tag in tags), GLIBC)


PLATFORMS = (
    linux("x86_64"),
    linux("aarch64"),
    Platform("macos-arm64", "Darwin", "arm64", "darwin", (f"macosx_{MACOS}_0_arm64",)),  # pip adds the older ones
    Platform("windows-x86_64", "Windows", "AMD64", "win32", ("win_amd64",)),
)


@dataclass(frozen=True)
class Target:
    """What an archive is made for: a Python by its minor version and tag, as `bootstrap` calls it, and a platform."""

    platform: Platform
    python: str
    tag: str
    interpreter: str

    @property
    def stem(self) -> str:
        """The name of its files without their ending."""
        return f"lancelot-{lancelot.__version__}-{self.tag}-{self.platform.name.replace('-', '_')}"

    def __str__(self) -> str:
        """The target in a sentence."""
        return f"Python {self.python} on {self.platform.name}"


def target_of(python: str, platform: Platform) -> Target:
    """CPython of a minor version on a platform."""
    interpreter = f"CPython {python} on {platform.system} {platform.machine}"
    return Target(platform, python, f"cp{python.replace('.', '')}", interpreter)


def own_platform() -> Platform:
    """The platform of this machine: one of the table, or one that archives can be made for only here."""
    system, machine = platform.system(), bootstrap.machine()
    if bootstrap.glibc_version() and " " not in machine:
        return linux(machine)
    name = f"{system}-{machine}".lower().replace(" ", "_").replace("linux-", "linux-musl-")
    listed = (one for one in PLATFORMS if (one.system, one.machine, one.glibc) == (system, machine, None))
    return next(listed, Platform(name, system, machine, sys.platform))


def own_target() -> Target:
    """The Python that runs this, whatever it is, on this machine."""
    kind = {"cpython": "cp"}.get(sys.implementation.name, sys.implementation.name)
    threads = "t" if "free-threading" in sys.version else ""
    tag = "{}{}{}{}".format(kind, *sys.version_info[:2], threads)
    return Target(own_platform(), "{}.{}".format(*sys.version_info[:2]), tag, bootstrap.interpreter())


def interpreter_of(target: Target) -> str | None:
    """Return a Python on this machine of a target's minor version: this one, one on PATH or of pyenv; None if there is none."""
    if target.tag == own_target().tag:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    named = filter(None, [shutil.which(f"python{target.python}")])
    # A path may be a shim, so each is asked what it is.
    code = "import sys; print(sys.implementation.cache_tag, sys.executable, sep='\\n')"
    for path in (*named, *sorted(pyenv.glob(f"versions/{target.python}.*/bin/python"), reverse=True)):
        answer = ended((str(path), "-I", "-c", code), os.environ).stdout.splitlines()
        if answer[:1] == [f"cpython-{target.python.replace('.', '')}"]:
            return answer[1]
    return None


# ------------------------------------------------------------------------------------------ Lock files
# requirements.lock pins what the archive is made of and with, requirements-dev.lock what the checks need
# besides. An entry is a version, the environments that it is for, and the hashes of its files.

LOCK = ROOT / "requirements.lock"
DEV_LOCK = ROOT / "requirements-dev.lock"
LOCK_HEADER = "# Made by `python3 build.py lock` from pyproject.toml.\n"
UV = "uv==0.13.9"

# What packs, and what evaluates markers. shiv asks for pip and setuptools only to install packages by itself, which it
# is not asked to do here.
PACKER = frozenset({"shiv", "click", "colorama", "packaging"})
NEVER_SHIPPED = frozenset({"shiv", "pip", "setuptools"})

ENTRY = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^\s;\\]+)(?:[ ];[ ](?P<marker>[^\n\\]+))?[ ]\\\n"
    r"(?:[ ]+--hash=sha256:[0-9a-f]{64}(?:[ ]\\)?\n)+",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Entry:
    """One pinned version of a package in a lock file; `marker` says for which environments, "" for all."""

    name: str
    version: str
    marker: str
    text: str


def read_lock(path: Path) -> tuple[Entry, ...]:
    """The entries of a lock file; a package has several if its version depends on the environment."""
    found = ENTRY.finditer(path.read_text(encoding="utf-8"))
    return tuple(Entry(one["name"], one["version"], one["marker"] or "", one[0]) for one in found)


def runtime_entries() -> tuple[Entry, ...]:
    """What the archive holds."""
    return tuple(entry for entry in read_lock(LOCK) if entry.name not in NEVER_SHIPPED)


def development_entries() -> tuple[Entry, ...]:
    """What the checks need besides the runtime."""
    runtime = {entry.name for entry in runtime_entries()}
    return tuple(entry for entry in read_lock(DEV_LOCK) if entry.name not in runtime)


def entries_for(target: Target, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries that are for a target, without their markers, which pip compares with the Python that runs it.

    Our markers tell no patches of Python and no releases of a system apart. Their names:
    https://packaging.python.org/specifications/dependency-specifiers
    """
    from packaging.markers import Marker  # noqa: PLC0415 - found once packer_folder has made it

    implementation = target.interpreter.partition(" ")[0]
    environment = {
        "os_name": "nt" if target.platform.sys_platform == "win32" else "posix",
        "sys_platform": target.platform.sys_platform,
        "platform_machine": target.platform.machine,
        "platform_python_implementation": implementation,
        "platform_release": "",
        "platform_system": target.platform.system,
        "platform_version": "",
        "python_version": target.python,
        "python_full_version": f"{target.python}.0",
        "implementation_name": implementation.lower(),
        "implementation_version": f"{target.python}.0",
    }
    chosen = (entry for entry in entries if not entry.marker or Marker(entry.marker).evaluate(environment))
    return tuple(replace(entry, text=entry.text.replace(f" ; {entry.marker}", "", 1)) for entry in chosen)


def resolve(uv: Path, lock: Path, *options: str) -> None:
    """Resolve a part of pyproject.toml into a lock file for every Python and platform."""
    say(f"resolving {lock.name}")
    command = [
        *(str(uv), "--system-certs", "--no-python-downloads", "pip", "compile", "--quiet", "--upgrade", "--universal"),
        *("--python-version", PYTHONS[0], "--only-binary", ":all:", "--generate-hashes", "--no-header"),
        *("--output-file", lock.name, *options),
    ]
    failure = f"{lock.name} could not be resolved. Check the network and the requirements in pyproject.toml."
    run(command, environment=os.environ, failure=failure)
    write(lock, LOCK_HEADER + lock.read_text(encoding="utf-8"))


# -------------------------------------------------------------------------------------------- Packages
# pip installs what a lock file pins into a folder of its own, never into the Python that runs it, so neither
# venv nor ensurepip is needed. Which wheels are for a target is pip's to know. Bytecode is compiled here: an
# unpacked archive then starts without compiling even where nobody can write to it.


def wheel_options(target: Target) -> tuple[str, ...]:
    """The options of pip for the wheels of a target; without any, pip takes those for the Python that runs it.

    `pip install` compares what a package requires with that Python whatever its options say, so it is told not to: the
    lock has been resolved for every version.
    """
    platforms = tuple(f"--platform={tag}" for tag in target.platform.wheels)
    if target == own_target():
        return platforms
    python = (f"--python-version={target.python}", "--ignore-requires-python")
    return ("--implementation=cp", f"--abi={target.tag}", *python, *platforms)


def missing_wheel(output: str) -> str:
    """What to say if pip found no wheel of a package; "" if it failed otherwise, or could not reach an index."""
    missing = re.search(r"No matching distribution found for ([^\s;]+)", output)
    if not missing or "Retrying (" in output:
        return ""
    return f"The package index has no wheel of {missing[1]}"


def pip_install(requirement: str, folder: Path, *options: str) -> None:
    """Install a requirement, or a file of them, into a folder with the pip of this Python, as that is set up."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    needed = "This Python has no pip. Install it (Debian and Ubuntu: apt-get install python3-pip) and run this again."
    run((*pip, "--version"), environment=os.environ, failure=needed)
    command = (*pip, "install", "--no-user", "--only-binary=:all:", "--no-compile", "--target", str(folder), *options)
    failure = f"pip could not install {requirement}. Check the network and pip's settings, then run this again."
    run((*command, requirement), environment={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}, failure=failure)


def compile_folder(folder: Path, python: str | None = sys.executable) -> None:
    """Compile all modules of a folder to bytecode that is valid whatever the time stamp of its source.

    Bytecode is that of one minor version, so a Python of it must do it; None if this machine has none.
    """
    if python is None:
        return
    command = (
        *(python, "-S", "-m", "compileall", "-q", "-f", "-s", str(folder)),
        *("--invalidation-mode", "unchecked-hash", str(folder)),
    )
    failure = f"Some modules in {folder} could not be compiled. Remove that folder and run this again."
    run(command, environment=clean_environment(os.environ), failure=failure)


def installed(name: str, entries: tuple[Entry, ...], target: Target, where: Path) -> Path:
    """The folder with these entries installed and compiled, made only if it is not there yet.

    pip refuses any file whose hash is not among those of the entries.
    """
    kind = f"{name}-{target.tag}"
    folder = where / f"{kind}-{digest(sys.version, *(entry.text for entry in entries), *wheel_options(target))}"
    if not folder.exists():
        say(f"installing the {name} packages")
        with whole(folder) as temporary:
            temporary.mkdir()
            requirements = temporary.relative_to(ROOT) / "requirements.txt"
            write(ROOT / requirements, "".join(entry.text for entry in entries))
            options = ("--require-hashes", "--no-deps", *wheel_options(target))
            pip_install(f"-r{requirements}", temporary, *options)
            (ROOT / requirements).unlink()
            compile_folder(temporary, interpreter_of(target))
    remove_older(folder, f"{kind}-*")
    return folder


def packer_folder() -> Path:
    """The folder with what packs and reads the lock, which runs here; its modules can be imported from now on."""
    # Their markers are for pip to read: nothing else is there yet that could.
    entries = tuple(entry for entry in read_lock(LOCK) if entry.name in PACKER)
    folder = installed("packer", entries, own_target(), BUILD)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return folder


def runtime_folder(target: Target, where: Path = BUILD) -> Path:
    """The folder with the packages that ship, once the packer is there."""
    return installed("runtime", entries_for(target, runtime_entries()), target, where)


# --------------------------------------------------------------------------------------------- Archive
# Everything that is installed ships, but for what no import needs. shiv makes the archive out of the modules themselves.
# The packages are added here, since shiv leaves bytecode out and copies modes and, of a new version of a module, would
# compress half a gigabyte again. Then the starting code takes the place of shiv's. Every entry has the same time and mode.

# By a file's whole path below the folder, with slashes. Bytecode follows its source.
LEFT_OUT = re.compile(
    r"""
      bin/.*                          # commands of the packages; their first line names this machine's Python
    | [^/]*\.dist-info/RECORD         # lists bin/ with hashes that differ from machine to machine
    | [^/]*\.dist-info/(INSTALLER|REQUESTED|direct_url\.json)
    | (.*/)?(tests/.*|conftest\.py)
    | .*-pytest-[^/]*\.pyc            # what tests that ran in this checkout left
    | .*\.(pyi|pyx|pxd|pxi|c|cc|f90|h|hpp|a|lib|chm)
    | pyarrow/(include|src)/.*
    | pyarrow/_pyarrow_cpp_tests\..*
    | pyarrow/(flight\.py|_flight\..*|[^/]*arrow(_python)?_flight[^/]*)  # remote procedure calls; lancedb makes none; 33 MB
    | pyarrow/(_s3fs\..*|[^/]*arrow_s3[^/]*)                             # Arrow's way to S3; LanceDB has its own; 18 MB
      # two more copies of libarrow_python.so.NNNN, which is the one that gets loaded
    | pyarrow/libarrow_python(_parquet_encryption)?(\.so(\.\d+\.[^/]*)?|(\.\d+\.[^/]*)?\.dylib)
    | pythonwin/.*                    # an editor on Windows, which pywin32 brings; 7 MB; mcp needs the rest of it
    | numpy/(f2py|distutils)/.*       # they build extensions; only their users import them
    """,
    re.VERBOSE,
)
MODULES = ("lancelot.py", "lancelot_index.py", "lancelot_setup.py")
ENTRY_TIME = (1980, 1, 1, 0, 0, 0)
ENTRY_MODE = 0o100644
MADE_ON_UNIX = 3
BYTES_PER_MB = 1_000_000

SUMMARY = "A read-only MCP server that searches a LanceDB folder."
AUTHOR = "The Lancelot developers"
LICENCE = "Apache-2.0"
METADATA = f"""\
Metadata-Version: 2.4
Name: lancelot
Version: {lancelot.__version__}
Summary: {SUMMARY}
Author: {AUTHOR}
License-Expression: {LICENCE}
License-File: LICENSE
Requires-Python: >=3.10
Description-Content-Type: text/markdown

"""


def source_of(path: str) -> str:
    """The path of the module that a file of bytecode was compiled from; of any other file, its own."""
    return re.sub(r"__pycache__/([^/.]+)\.[^/]+\.pyc$", r"\1.py", path)


def ships(path: str) -> bool:
    """Return whether an installed file goes into the archive; `path` is below the folder, with slashes."""
    return not LEFT_OUT.fullmatch(path) and not LEFT_OUT.fullmatch(source_of(path))


def files_below(folder: Path) -> dict[str, Path]:
    """All files below a folder by their path in it, with slashes, in an order that is the same everywhere."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return dict(sorted((path.relative_to(folder).as_posix(), path) for path in files))


def add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add one file to an archive, so that the same content always gives the same bytes."""
    entry = zipfile.ZipInfo(name, ENTRY_TIME)
    entry.create_system = MADE_ON_UNIX
    entry.external_attr = ENTRY_MODE << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


def pack_folder(folder: Path, target: Path) -> None:
    """Pack what ships of a folder, as shiv lays an archive out."""
    with target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w") as archive:
            for name, path in files_below(folder).items():
                if ships(name):
                    add(archive, f"site-packages/{name}", path.read_bytes())


def packed_packages(site: Path, target: Target) -> Path:
    """The beginning of every archive, made only if it is not there yet: the packages."""
    packed = site.with_name(f"packed-{site.name}-{digest(LEFT_OUT.pattern, zlib.ZLIB_RUNTIME_VERSION)}.zip")
    if not packed.exists():
        say("compressing the packages")
        with whole(packed) as temporary:
            pack_folder(site, temporary)
    remove_older(packed, f"packed-runtime-{target.tag}-*")
    return packed


def make_own_folder(folder: Path, python: str | None) -> None:
    """Put together what the project itself has in the archive: the modules, its metadata and its licence."""
    metadata = folder / f"lancelot-{lancelot.__version__}.dist-info"
    (metadata / "licenses").mkdir(parents=True)
    write(metadata / "METADATA", METADATA + (ROOT / "README.md").read_text(encoding="utf-8"))
    shutil.copyfile(ROOT / "LICENSE", metadata / "licenses" / "LICENSE")
    for name in MODULES:
        shutil.copyfile(ROOT / name, folder / name)
    compile_folder(folder, python)


def pack_with_shiv(packer: Path, own: Path, build_id: str, target: Path) -> None:
    """Make shiv's archive of the project's own folder. Unpacked copies are told apart by `build_id`."""
    command = (
        *(sys.executable, "-s", "-m", "shiv", "--site-packages", str(own), "--reproducible"),
        *("--entry-point", "lancelot:main", "--build-id", build_id, "--output-file", str(target)),
    )
    failure = f"shiv could not pack the archive. Remove {BUILD} and run this again."
    run(command, environment=clean_environment(os.environ, PYTHONPATH=str(packer)), failure=failure)


def own_contents(own: Path, shell: Path, target: Target) -> dict[str, bytes]:
    """Everything in the archive but the packages, by name: shiv's part, bytecode, and the starting code."""
    with zipfile.ZipFile(shell) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    bytecode = {name: path for name, path in files_below(own).items() if name.endswith(".pyc")}
    contents |= {f"site-packages/{name}": path.read_bytes() for name, path in bytecode.items()}
    contents["__main__.py"] = (ROOT / "bootstrap.py").read_bytes()
    # What the starting code compares the Python with that it is started by.
    built_for = {"interpreter": target.interpreter, "glibc": target.platform.glibc}
    return contents | {"built_for.json": json.dumps(built_for).encode()}


def join(packed: Path, contents: Mapping[str, bytes], target: Path) -> None:
    """Write the archive: the packages, then everything else, then the SHA-256 of each, which `verify` compares."""
    with whole(target) as temporary:
        shutil.copyfile(packed, temporary)
        with zipfile.ZipFile(temporary, "a") as archive:
            for name in sorted(contents):
                add(archive, name, contents[name])
            sums = {name: hashlib.sha256(archive.read(name)).hexdigest() for name in sorted(archive.namelist())}
            add(archive, "record.json", json.dumps(sums, indent=0).encode())
        temporary.chmod(0o755)


def write_set_up(archive: Path, python: str) -> None:
    """Put a file beside an archive for Windows to double-click: the archive itself would start a server in a window.

    Windows' launcher starts the newest Python there is; this asks it for the right one.
    """
    lines = (
        "@echo off",
        f"py -{python} --version >nul 2>nul && (set RUN=py -{python}) || (set RUN=python)",
        f'%RUN% "%~dp0{archive.name}" init %*',
        "pause",
    )
    archive.with_suffix(".cmd").write_bytes("".join(f"{line}\r\n" for line in lines).encode("ascii"))


# ---------------------------------------------------------------------------------------------- Papers
# What an administrator checks an archive by: the sums of all files, and for each archive a bill of materials in
# CycloneDX's JSON (https://cyclonedx.org/docs/1.6/json/) and the licences of all that is inside, since packages differ
# from target to target. What wheels say of the parts that are compiled into them is in both, which cyclonedx-bom leaves
# out. They hold no time and no place.

REGISTRY_ENTRY = "server.json"
BILL = ".cdx.json"
PUBLISHED = ("*.pyz", "*.cmd", f"*{BILL}", "LICENSES*.txt", "*.mcpb", REGISTRY_ENTRY)

# Texts of licences that wheels lack, by the names of the packages.
SUPPLIED = ROOT / "licenses"
LICENCE_NAME = re.compile(r"licen[sc]e|copying|copyright|notice", re.IGNORECASE)
NO_TEXT = (".py", ".pyc", ".pyd", ".so", ".json")

Component = dict[str, Any]
"""A package, or a part such as a Rust crate in a native module, as a bill of materials has it."""


@dataclass(frozen=True)
class Package:
    """A package inside: what its metadata say of it, the texts of its licences by their path, and its parts.

    `purl` is its address in bills of materials (https://github.com/package-url/purl-spec).
    """

    name: str
    version: str
    licence: str
    purl: str
    files: Mapping[str, Path]
    parts: tuple[Component, ...] = ()


def normal(name: str) -> str:
    """The one form of a package's name (https://packaging.python.org/specifications/name-normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def stated_licence(message: Message) -> str:
    """The licence of a package by its metadata: an expression, else a short text, else what it is classified as."""
    classified = [line.rpartition(" :: ")[2] for line in message.get_all("Classifier", []) if "License ::" in line]
    texts = (message["License-Expression"], message["License"], " or ".join(classified), "see its licence file")
    return next(text.strip() for text in texts if text and text.strip() and "\n" not in text.strip())


def holds_licence(path: str) -> bool:
    """Return whether an installed file that ships is the text of a licence, by its place or its name."""
    name = PurePosixPath(path).name
    named = LICENCE_NAME.search(name) and not name.endswith(NO_TEXT)
    return ships(path) and bool(named or ".dist-info/licenses/" in path)


def licence_files(metadata: Path, name: str, licence: str) -> dict[str, Path]:
    """The texts of a package's licences by their path: its own first, then those of what others wrote in it.

    If its metadata have none, it is one of `SUPPLIED`, or ours if the licence is the same.
    """
    with (metadata / "RECORD").open(encoding="utf-8", newline="") as record:
        paths = sorted(row[0] for row in csv.reader(record) if row and holds_licence(row[0]))
    found = {path: metadata.parent / path for path in paths}
    own = {path: file for path, file in found.items() if file.is_relative_to(metadata)}
    supplied = SUPPLIED / f"{normal(name)}.txt"
    if not own and supplied.exists():
        own = {f"{SUPPLIED.name}/{supplied.name}": supplied}
    elif not own and licence == LICENCE:
        own = {"LICENSE": ROOT / "LICENSE"}
    elif not own:
        message = f"{name} brings no text of its licence ({licence}). Put it into {SUPPLIED.name}/{supplied.name}."
        raise BuildError(message)
    return own | found


def licence_entry(stated: str) -> dict[str, object]:
    """A licence as a bill of materials has it: an expression of SPDX's names, or a name."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression  # noqa: PLC0415

    try:
        return {"expression": canonicalize_license_expression(stated)}
    except InvalidLicenseExpression:
        return {"license": {"name": stated}}


def read_part(entry: Component) -> Component:
    """A component of a wheel's bill, without its name there and the folder that it was built in."""
    purl = re.sub(r"\?download_url=file:.*", "", entry["purl"])
    kept = {key: entry[key] for key in ("name", "version", "hashes", "licenses") if entry.get(key)}
    return {"type": "library", "bom-ref": purl, "purl": purl} | kept


def read_bill(path: Path) -> Iterator[Component]:
    """The parts that a wheel's own bill of materials names, the wheel's main one among them.

    Where it lies: https://packaging.python.org/specifications/recording-installed-packages
    """
    try:
        bill = json.loads(path.read_bytes())
    except ValueError:
        bill = {}
    if bill.get("bomFormat") != "CycloneDX":
        message = f"{path} is no bill of materials in CycloneDX's JSON. Teach build.py to read it."
        raise BuildError(message)
    main = bill.get("metadata", {}).get("component")
    yield from map(read_part, [*([main] if main else []), *bill.get("components", [])])


def read_package(metadata: Path) -> Package:
    """A package by its folder of metadata, with the parts that the bills of its wheel name, each once."""
    message = email.message_from_bytes((metadata / "METADATA").read_bytes())
    name, version, licence = message["Name"], message["Version"], stated_licence(message)
    purl = f"pkg:pypi/{normal(name)}@{version}"
    parts = (part for path in sorted((metadata / "sboms").glob("*")) for part in read_bill(path))
    others = {part["bom-ref"]: part for part in parts if part["bom-ref"].partition("?")[0] != purl}
    files = licence_files(metadata, name, licence)
    return Package(name, version, licence, purl, files, tuple(others[reference] for reference in sorted(others)))


def packages_in(site: Path, pattern: str = "*") -> list[Package]:
    """The packages that are installed in a folder, by name."""
    found = [read_package(metadata) for metadata in site.glob(f"{pattern}.dist-info")]
    return sorted(found, key=lambda package: package.name.lower())


def bill_of_materials(packages: Sequence[Package], archive: Path, target: Target) -> dict[str, object]:
    """An archive's packages and their parts, each once, in CycloneDX 1.6. The archive is named by its sum."""
    properties = {"archive": archive.name, "target": str(target)}
    own = {
        "type": "application",
        "bom-ref": "lancelot",
        "name": "lancelot",
        "version": lancelot.__version__,
        "hashes": [{"alg": "SHA-256", "content": sum_of(archive)}],
        "licenses": [{"license": {"id": LICENCE}}],
        "properties": [{"name": f"lancelot:{name}", "value": value} for name, value in properties.items()],
    }
    components: list[Component] = [
        {
            "type": "library",
            "bom-ref": package.purl,
            "purl": package.purl,
            "name": package.name,
            "version": package.version,
            "licenses": [licence_entry(package.licence)],
        }
        for package in packages
    ]
    components += [part for package in packages for part in package.parts]
    inside = {"lancelot": [package.purl for package in packages]}
    inside |= {package.purl: [part["bom-ref"] for part in package.parts] for package in packages if package.parts}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": list({one["bom-ref"]: one for one in components}.values()),
        "dependencies": [{"ref": ref, "dependsOn": parts} for ref, parts in inside.items()],
    }


def licence_texts(packages: Sequence[Package]) -> str:
    """The licences of packages, one after the other, each text of a package once.

    Of the parts that are compiled into native modules, wheels bring names and licences, but not the texts.
    """
    blocks = []
    for package in packages:
        blocks.append(f"{'=' * 80}\n{package.name} {package.version}: {package.licence}")
        texts: dict[str, list[str]] = {}
        for name, path in package.files.items():
            texts.setdefault(path.read_text(encoding="utf-8", errors="replace").strip(), []).append(name)
        blocks += [f"--- {', '.join(names)}\n\n{text}" for text, names in texts.items()]
    blocks.append(
        f"{'=' * 80}\nWhat is compiled into their native modules, with its licences, is in the bill of materials."
    )
    return "\n\n".join(blocks) + "\n"


def write_papers(packages: Sequence[Package], archive: Path, target: Target) -> None:
    """Put an archive's own papers beside it."""
    own = Package("lancelot", lancelot.__version__, LICENCE, "", {"LICENSE": ROOT / "LICENSE"})
    bill = bill_of_materials(packages, archive, target)
    write(archive.with_suffix(BILL), json.dumps(bill, indent=1) + "\n")
    licences = archive.with_name(f"LICENSES{archive.stem.removeprefix('lancelot')}.txt")
    write(licences, licence_texts([own, *packages]))


def write_sums(folder: Path) -> None:
    """Put the sums of all that is published beside it, as `sha256sum --check` reads them."""
    files = sorted({path for pattern in PUBLISHED for path in folder.glob(pattern)})
    write(folder / "SHA256SUMS", "".join(f"{sum_of(path)}  {path.name}\n" for path in files))


# ---------------------------------------------------------------------------------------------- Bundle
# What clients install by a click: an MCPB bundle, a zip of the archive with a manifest that has the form for its
# settings (https://github.com/modelcontextprotocol/mcpb, MANIFEST.md), and the entry that the MCP Registry takes
# (https://github.com/modelcontextprotocol/registry, docs/reference/server-json). Both are made from the module's
# tables, which need none of its packages.

# What the specification calls current. 0.4 adds a type of server that this is not, and older clients refuse it.
MANIFEST_VERSION = "0.3"
MANIFEST_PLATFORMS = ("darwin", "linux", "win32")
BUNDLED = "lancelot.pyz"
REGISTRY_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
REGISTRY_NAME = "io.github.ayers-software-repair/lancelot"
REPOSITORY = "https://github.com/ayers-software-repair/lancelot"

# The settings that a client asks for when it installs the bundle, by their field, with their titles. Only the first is
# required: a client lets the person choose the folder and hands over its whole path.
FORM = {
    "path": "LanceDB folder",
    "table": "Table",
    "api_key": "OpenAI API key",
    "base_url": "Embedding server",
    "embedding_model": "Embedding model",
    "chat_model": "Chat model",
    "chat_base_url": "Chat model's server",
    "chat_api_key": "Chat model's API key",
}
FORM_SETTINGS = {setting.field: setting for setting in lancelot.SETTINGS if setting.field in FORM}


def plain_help(setting: lancelot.Setting, titles: Mapping[str, str]) -> str:
    """What a setting means, as text without marks, with the titles of variables that the reader does not see."""
    return re.sub("`([^`]+)`", lambda found: f'"{titles.get(found[1], found[1])}"', setting.help)


def form_entry(field: str) -> dict[str, object]:
    """A field of the form as the manifest has it."""
    setting = FORM_SETTINGS[field]
    titles = {FORM_SETTINGS[other].name: title for other, title in FORM.items()}
    default = "" if setting.default is None else f" Default: {setting.default}."
    if field == "path":
        description = "The folder of the LanceDB database to search."
        return {"type": "directory", "title": FORM[field], "description": description, "required": True}
    # Without a default, a client hands the variable over as it is written. A blank value counts as not set; the
    # setting's own default does not: a table that is named is not looked for.
    return {
        "type": "string",
        "title": FORM[field],
        "description": plain_help(setting, titles) + default,
        "required": False,
        **({"sensitive": True} if setting.secret else {}),
        "default": "",
    }


def check_platform(target: Target) -> None:
    """Raise BuildError if bundles cannot be for a target's platform."""
    if target.platform.sys_platform not in MANIFEST_PLATFORMS:
        supported = ", ".join(MANIFEST_PLATFORMS)
        message = f"Bundles are for {supported}, not {target.platform.sys_platform}. Use {ARCHIVE.name} itself."
        raise BuildError(message)


def manifest(target: Target) -> dict[str, object]:
    """What the bundle says of itself. Listed are the tools that are always there; settings bring in the others."""
    always = [tool for tool in lancelot.TOOLS if not tool.needs]
    start = {
        "command": "python3",
        "args": [f"${{__dirname}}/{BUNDLED}"],
        "env": {FORM_SETTINGS[field].name: f"${{user_config.{field}}}" for field in FORM},
        "platform_overrides": {"win32": {"command": "python"}},
    }
    next_minor = int(target.python.partition(".")[2]) + 1
    return {
        "manifest_version": MANIFEST_VERSION,
        "name": "lancelot",
        "display_name": "Lancelot",
        "version": lancelot.__version__,
        "description": SUMMARY,
        "author": {"name": AUTHOR},
        "repository": {"type": "git", "url": REPOSITORY},
        "license": LICENCE,
        "server": {"type": "python", "entry_point": BUNDLED, "mcp_config": start},
        "tools": [{"name": tool.name, "description": tool.description} for tool in always],
        "tools_generated": len(always) < len(lancelot.TOOLS),
        "compatibility": {
            "platforms": [target.platform.sys_platform],
            "runtimes": {"python": f">={target.python},<3.{next_minor}"},
        },
        "user_config": {field: form_entry(field) for field in FORM},
    }


def json_text(value: object) -> str:
    """JSON for a file that people read too."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_bundle(archive: Path, bundle: Path, target: Target) -> None:
    """Pack an archive and its manifest, so that the same archive always gives the same bytes."""
    contents = {"manifest.json": json_text(manifest(target)).encode(), BUNDLED: archive.read_bytes()}
    contents |= {name: (ROOT / name).read_bytes() for name in ("README.md", "LICENSE")}
    with whole(bundle) as temporary, zipfile.ZipFile(temporary, "w") as packed:
        for name, content in contents.items():
            add(packed, name, content)


def registry_variable(setting: lancelot.Setting) -> dict[str, object]:
    """A setting as the registry has it. Its default is only shown, for the reason that `form_entry` has."""
    entry: dict[str, object] = {"name": setting.name, "description": plain_help(setting, {})}
    if isinstance(setting.default, int | float):
        entry["format"] = "number"
    if setting.default is not None:
        entry["placeholder"] = str(setting.default)
    return entry | {"isRequired": setting.field == "path", "isSecret": setting.secret}


def registry_entry(bundles: Iterable[Path]) -> dict[str, object]:
    """The server as the MCP Registry lists it, with its bundles where a release has them."""
    return {
        "$schema": REGISTRY_SCHEMA,
        "name": REGISTRY_NAME,
        "title": "Lancelot",
        "description": SUMMARY,
        "version": lancelot.__version__,
        "repository": {"url": REPOSITORY, "source": "github"},
        "packages": [
            {
                "registryType": "mcpb",
                "identifier": f"{REPOSITORY}/releases/download/v{lancelot.__version__}/{bundle.name}",
                "version": lancelot.__version__,
                "fileSha256": sum_of(bundle),
                "transport": {"type": "stdio"},
                "environmentVariables": [registry_variable(setting) for setting in lancelot.SETTINGS],
            }
            for bundle in bundles
        ],
    }


def write_common_papers(*_: object, **__: object) -> None:
    """Make anew what there is once for all archives and bundles in dist/: the registry's entry and the sums."""
    folder = ARCHIVE.parent
    bundles = sorted(folder.glob(f"lancelot-{lancelot.__version__}-*.mcpb"))
    remove(folder / REGISTRY_ENTRY)
    if bundles:
        write(folder / REGISTRY_ENTRY, json_text(registry_entry(bundles)))
    write_sums(folder)


def remove_stale_bundle(_target: Target, archive: Path, bundle: Path) -> None:
    """Remove a bundle that holds another archive than the one just made for its target."""
    if bundle.exists():
        with zipfile.ZipFile(bundle) as opened:
            stale = opened.read(BUNDLED) != archive.read_bytes()
        if stale:
            say(f"{bundle.name} held an archive made before: it is removed, make it anew")
            remove(bundle)


# ---------------------------------------------------------------------------------------------- Checks
# The checks run in an environment of their own, on the very packages that ship. All of them run, whatever
# the ones before them found; the tests come last, so that their closing line stands at the end.

CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    # What a module's tests share is made once: a module stays with one process.
    ("pytest", "-n", "auto", "--dist", "loadfile"),
)
# The tests of the built file, and the variables that tell them of another than dist/lancelot.pyz with this Python.
FILE_TESTS = ("pytest", "tests/test_build_archive.py", "tests/test_tools_clients.py", "-k", "archive")
TESTED_ARCHIVE = "LANCELOT_TEST_ARCHIVE"
TESTED_PYTHON = "LANCELOT_TEST_PYTHON"


def prepared_python() -> Path:
    """The Python of an environment that sees the project, its packages and those of development, and nothing else."""
    packer_folder()
    own = own_target()
    development = installed("development", development_entries(), own, BUILD)
    folders = (ROOT, development, runtime_folder(own))
    environment = BUILD / f"dev-{sys.implementation.cache_tag}"
    command = (sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment))
    failure = "No environment could be made. Install Python's venv module and run this again."
    run(command, environment=os.environ, failure=failure)
    site = next(environment.rglob("site-packages"))
    # Not a bare path: packages for Windows have .pth files of their own in there.
    write(site / "lancelot.pth", "".join(f"import site; site.addsitedir({str(folder)!r})\n" for folder in folders))
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def failed_checks(python: Path, checks: Iterable[Sequence[str]], **variables: str) -> list[str]:
    """Run all checks, modules with their arguments, and return those that failed. Their output is not filtered."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    failed = []
    for check in checks:
        say(f"checking with {' '.join(check[:2])}")
        if subprocess.run((str(python), "-m", *check), cwd=ROOT, env=kept | variables, check=False).returncode:
            failed.append(check[0])
    return failed


# ---------------------------------------------------------------------------------------- Command line
# One function a command. Each is given the targets that were named, none for dist/lancelot.pyz, which is for the running
# Python; and whether every one of a kind was asked for: then those that the dependencies do not serve are no failure,
# unless that is all of them.

ALL = "all"
Targets = tuple[Target, ...]
Maker = Callable[[Target, Path, Path], None]


def build_for(target: Target, archive: Path, where: Path) -> None:
    """Make an archive with its papers, and print its path and sizes."""
    say(f"{archive.name}, for {target}")
    packer, python = packer_folder(), interpreter_of(target)
    if python is None:
        say(f"there is no Python {target.python} here: {archive.name} gets no bytecode, its first start compiles")
    site = runtime_folder(target, where)
    # shiv's starting code is in the archive too.
    packages = packages_in(site) + packages_in(packer, "shiv-*")
    packed = packed_packages(site, target)
    say("packing the archive")
    own, shell = where / "own", where / "shell.pyz"
    with whole(own) as temporary:
        make_own_folder(temporary, python)
    build_id = digest(packed.read_bytes(), *(path.read_bytes() for path in files_below(own).values()))
    pack_with_shiv(packer, own, build_id, shell)
    join(packed, own_contents(own, shell, target), archive)
    write_papers(packages, archive, target)
    if target.platform.sys_platform == "win32":
        write_set_up(archive, target.python)
    with zipfile.ZipFile(archive) as opened:
        unpacked = sum(entry.file_size for entry in opened.infolist())
    print(
        f"{archive}: {archive.stat().st_size / BYTES_PER_MB:.1f} MB, unpacked {unpacked / BYTES_PER_MB:.1f} MB",
        flush=True,
    )


def build_all(targets: Targets = (), *, every: bool = False, make: Maker = remove_stale_bundle) -> None:
    """Make the archives that were asked for and `make` something of each, then the papers of them all."""
    jobs = [(target, ARCHIVE.with_name(f"{target.stem}.pyz")) for target in targets] or [(own_target(), ARCHIVE)]
    not_served = []
    for target, archive in jobs:
        where = BUILD if target == own_target() else BUILD / "other"
        try:
            build_for(target, archive, where)
            make(target, archive, ARCHIVE.with_name(f"{target.stem}.mcpb"))
        except NotServedError as error:
            not_served.append(f"{error} for {target}. Build for another Python or platform.")
        finally:  # half a gigabyte a target: only what this Python itself needs is kept
            remove(BUILD / "other")
    write_common_papers()
    for message in not_served:
        say(message)
    if not_served and (not every or len(not_served) == len(jobs)):
        message = f"Not made: {len(not_served)} of {len(jobs)}. What could be made is in {ARCHIVE.parent}."
        raise BuildError(message)


def make_bundle(target: Target, archive: Path, bundle: Path) -> None:
    """Make the bundle of an archive and print its path and size."""
    say("packing the bundle")
    write_bundle(archive, bundle, target)
    print(f"{bundle}: {bundle.stat().st_size / BYTES_PER_MB:.1f} MB", flush=True)


def build_bundles(targets: Targets, *, every: bool) -> None:
    """Make the archives that were asked for and their bundles."""
    for target in targets or [own_target()]:
        check_platform(target)
    build_all(targets, every=every, make=make_bundle)


def check_failed(failed: Sequence[str]) -> None:
    """Raise BuildError if something failed."""
    if failed:
        message = f"Failed: {', '.join(failed)}. Mend what is said above and run this again."
        raise BuildError(message)


def check_project(_targets: Targets, *, every: bool) -> None:  # noqa: ARG001
    """Make the archive, then run every check; BuildError if one failed."""
    build_all()
    check_failed(failed_checks(prepared_python(), CHECKS))


def check_archives(targets: Targets, *, every: bool) -> None:
    """Make an archive for each Python of this machine and run the tests of the built file with it."""
    candidates = targets or tuple(target_of(python, own_platform()) for python in PYTHONS)
    pythons = {target: interpreter_of(target) for target in candidates if target.platform == own_platform()}
    tested = {target: python for target, python in pythons.items() if python}
    if not tested or (targets and not every and len(tested) < len(targets)):
        missing = ", ".join(str(target) for target in candidates if target not in tested)
        message = f"This machine cannot test archives for {missing}. Run this where such a Python is."
        raise BuildError(message)
    build_all(tuple(tested))
    failed, development = [], prepared_python()
    for target, python in tested.items():
        archive = ARCHIVE.with_name(f"{target.stem}.pyz")
        say(f"testing {archive.name} with {python}")
        variables = {TESTED_ARCHIVE: str(archive), TESTED_PYTHON: python}
        failed += [str(target)] if failed_checks(development, [FILE_TESTS], **variables) else []
    check_failed(failed)
    print(f"Passed: {', '.join(map(str, tested))}")


def make_locks(*_: object, **__: object) -> None:
    """Resolve the requirements anew into both lock files."""
    say("installing the resolver")
    with whole(BUILD / "uv") as folder:
        pip_install(UV, folder)
    uv = BUILD / "uv" / "bin" / ("uv.exe" if os.name == "nt" else "uv")
    resolve(uv, LOCK, "--group", "build", "pyproject.toml")
    resolve(uv, DEV_LOCK, "--group", "dev", "--constraints", LOCK.name)


COMMANDS: Mapping[str, Callable[..., None]] = {
    "archive": build_all,
    "bundle": build_bundles,
    "papers": write_common_papers,
    "check": check_project,
    "test": check_archives,
    "lock": make_locks,
}
WITH_TARGETS = ("archive", "bundle", "test")


def named_targets(pythons: Sequence[str], platforms: Sequence[str]) -> Targets:
    """The product of what the two options name; the one that was not given stands for what runs this."""
    if not pythons and not platforms:
        return ()
    own = own_target()
    versions = PYTHONS if ALL in pythons else tuple(dict.fromkeys(pythons)) or (own.python,)
    systems = [one for one in PLATFORMS if {one.name, ALL} & set(platforms)] or [own.platform]
    return tuple(target_of(version, system) for system in systems for version in versions)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 well, 1 a failure, 2 wrong usage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS), default="archive")
    names = tuple(one.name for one in PLATFORMS)
    parser.add_argument("--python", action="append", default=[], choices=(*PYTHONS, ALL), help="may be repeated")
    parser.add_argument("--platform", action="append", default=[], choices=(*names, ALL), help="may be repeated")
    given = parser.parse_args(argv)
    targets = named_targets(given.python, given.platform)
    if targets and given.command not in WITH_TARGETS:
        parser.error(f"--python and --platform are for {', '.join(WITH_TARGETS)}, not for {given.command}")
    try:
        COMMANDS[given.command](targets, every=ALL in (*given.python, *given.platform))
    except BuildError as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"{error}. See that {ROOT} can be written and has 3 GB free, then run this again.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
