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
    What ships      which of the installed files go into the archive, and that they are for its target
    Archive         shiv's parts, the packages and the starting code in one file
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
    """Announces a step."""
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


def ended(
    command: Sequence[str], environment: Mapping[str, str], *, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a child in silence, with what it is given to read."""
    return subprocess.run(command, cwd=ROOT, env=environment, input=given, capture_output=True, text=True, check=False)


def printed(done: subprocess.CompletedProcess[str], failure: str) -> str:
    """What a child printed; where it failed, that is shown and `failure` raised as a BuildError."""
    if done.returncode:
        print(done.stdout, done.stderr, sep="", file=sys.stderr, flush=True)
        raise BuildError(failure)
    return done.stdout


def run(command: Sequence[str], *, environment: Mapping[str, str], failure: str) -> None:
    """Runs a child in silence; where it fails, its output is shown and `failure` raised as a BuildError."""
    printed(ended(command, environment), failure)


def remove(path: Path) -> None:
    """Removes a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Writes a text, which is the same on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Gives a temporary path to fill, which becomes `path` when all went well: no half-made file is taken for one."""
    temporary = path.with_name(path.name + ".tmp")
    remove(temporary)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    yield temporary
    remove(path)
    temporary.replace(path)


def remove_older(path: Path, pattern: str) -> None:
    """Removes what earlier versions of the inputs left beside `path`: half a gigabyte each."""
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

# What the head of a native file says of its processor: `e_machine` of ELF, `Machine` of PE, `cputype` of Mach-O.
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
PE_AMD64 = 0x8664
MACH_ARM64 = 0x0100000C


@dataclass(frozen=True)
class Platform:
    """A system and a processor: their names, the wheels that run there, the format of native files, the glibc needed.

    `name` is the one on the command line, `system` and `machine` are those that `bootstrap.interpreter` sees there, and
    `sys_platform` is what Python calls the system. Where `wheels` is empty, pip chooses them by the running Python.
    """

    name: str
    system: str
    machine: str
    sys_platform: str
    wheels: tuple[str, ...] = ()
    native: tuple[str, int] | None = None
    glibc: tuple[int, int] | None = None


def linux(machine: str) -> Platform:
    """Every Linux of a processor from `GLIBC` on."""
    major, newest = GLIBC
    tags = [f"manylinux_{major}_{minor}" for minor in range(newest, 4, -1)]
    tags += ["manylinux2014", "manylinux2010", "manylinux1"]
    native = ("ELF", ELF_MACHINES[machine]) if machine in ELF_MACHINES else None
    wheels = tuple(f"{tag}_{machine}" for tag in tags)
    return Platform(f"linux-{machine}", "Linux", machine, "linux", wheels, native, GLIBC)


def macos() -> Platform:
    """Every macOS on Apple's own processors from `MACOS` on."""
    recent = [f"macosx_{major}_0_{kind}" for major in range(MACOS, 10, -1) for kind in ("arm64", "universal2")]
    older = [f"macosx_10_{minor}_universal2" for minor in range(16, 3, -1)]
    return Platform("macos-arm64", "Darwin", "arm64", "darwin", (*recent, *older), ("Mach-O", MACH_ARM64))


PLATFORMS = (
    linux("x86_64"),
    linux("aarch64"),
    macos(),
    Platform("windows-x86_64", "Windows", "AMD64", "win32", ("win_amd64",), ("PE", PE_AMD64)),
)


@dataclass(frozen=True)
class Target:
    """What an archive is made for: a Python by its minor version and tag, as `bootstrap` calls it, and a platform."""

    platform: Platform
    python: str
    tag: str
    interpreter: str

    @property
    def minor(self) -> int:
        """The second number of the version."""
        return int(self.python.partition(".")[2])

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
    others = (one for one in PLATFORMS if not one.glibc)
    listed = (one for one in others if (one.system, one.machine) == (system, machine))
    return next(listed, Platform(name, system, machine, sys.platform))


def own_target() -> Target:
    """The Python that runs this, whatever it is, on this machine."""
    kind = {"cpython": "cp"}.get(sys.implementation.name, sys.implementation.name)
    threads = "t" if "free-threading" in sys.version else ""
    tag = "{}{}{}{}".format(kind, *sys.version_info[:2], threads)
    return Target(own_platform(), "{}.{}".format(*sys.version_info[:2]), tag, bootstrap.interpreter())


TELL = "import sys; print(sys.implementation.cache_tag, sys.executable, sep='\\n')"


def interpreter_at(python: str, path: str) -> str | None:
    """The Python behind a path, which may be a shim; None where it is not CPython of this minor version."""
    told = ended((path, "-I", "-c", TELL), os.environ).stdout.splitlines()
    return told[1] if told[:1] == [f"cpython-{python.replace('.', '')}"] else None


def interpreter_of(target: Target) -> str | None:
    """A Python on this machine of a target's minor version: this one, one on PATH, or one of pyenv's."""
    if target.tag == own_target().tag:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    beside = sorted(pyenv.glob(f"versions/{target.python}.*/bin/python"), reverse=True)
    named = filter(None, [shutil.which(f"python{target.python}")])
    found = (interpreter_at(target.python, str(path)) for path in (*named, *beside))
    return next(filter(None, found), None)


# ------------------------------------------------------------------------------------------ Lock files
# requirements.lock pins what the archive is made of and with, requirements-dev.lock what the checks need
# besides. An entry is a version, the environments that it is for, and the hashes of its files.

LOCK = ROOT / "requirements.lock"
DEV_LOCK = ROOT / "requirements-dev.lock"
LOCK_HEADER = "# Made by `python3 build.py lock` from pyproject.toml.\n"
UV = "uv==0.13.9"
OLDEST_PYTHON = "3.10"

# shiv asks for pip and setuptools only to install packages by itself, which it is not asked to do here.
PACKER = frozenset({"shiv", "click", "colorama"})
MARKERS = frozenset({"packaging"})
NEVER_SHIPPED = frozenset({"shiv", "pip", "setuptools"})

ENTRY = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^\s;\\]+)(?:[ ];[ ](?P<marker>[^\n\\]+))?[ ]\\\n"
    r"(?:[ ]+--hash=sha256:[0-9a-f]{64}(?:[ ]\\)?\n)+",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Entry:
    """One pinned version of a package in a lock file; `marker` says for which environments, where not for all."""

    name: str
    version: str
    marker: str
    text: str


def read_lock(text: str) -> tuple[Entry, ...]:
    """The entries of a lock file; a package has several where its version depends on the environment."""
    found = ENTRY.finditer(text)
    return tuple(Entry(one["name"], one["version"], one["marker"] or "", one[0]) for one in found)


def runtime_entries(text: str) -> tuple[Entry, ...]:
    """What the archive holds, out of the text of requirements.lock."""
    return tuple(entry for entry in read_lock(text) if entry.name not in NEVER_SHIPPED)


def packer_entries(text: str) -> tuple[Entry, ...]:
    """What shiv needs to run, and what evaluates markers, out of the text of requirements.lock."""
    return tuple(entry for entry in read_lock(text) if entry.name in PACKER | MARKERS)


def development_entries(text: str, runtime: Iterable[Entry]) -> tuple[Entry, ...]:
    """What the checks need besides the runtime, out of the text of requirements-dev.lock."""
    present = {entry.name for entry in runtime}
    return tuple(entry for entry in read_lock(text) if entry.name not in present)


def marker_environment(target: Target) -> dict[str, str]:
    """What the markers of a lock file are compared with; ours tell no patches of Python and no releases of a system apart.

    The names: https://packaging.python.org/specifications/dependency-specifiers
    """
    implementation = target.interpreter.partition(" ")[0]
    return {
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


EVALUATE = """
import json, sys
from packaging.markers import Marker
markers, environment = json.load(sys.stdin)
print(json.dumps({marker: Marker(marker).evaluate(environment) for marker in markers}))
"""


def answered(packer: Path, code: str, question: object, failure: str) -> Any:  # noqa: ANN401  # whatever the code prints
    """What some code makes of a question, both in JSON, with the packages of the packer at hand."""
    environment = clean_environment(os.environ, PYTHONPATH=str(packer))
    done = ended((sys.executable, "-s", "-c", code), environment, given=json.dumps(question))
    return json.loads(printed(done, failure))


def entries_for(target: Target, entries: Iterable[Entry], packer: Path) -> tuple[Entry, ...]:
    """The entries that are for a target, without their markers, which pip compares with the Python that runs it."""
    entries = tuple(entries)
    question = [sorted({entry.marker for entry in entries} - {""}), marker_environment(target)]
    failure = f"The markers of {LOCK.name} could not be read. Make it anew."
    holds = {"": True, **answered(packer, EVALUATE, question, failure)}
    chosen = (entry for entry in entries if holds[entry.marker])
    return tuple(replace(entry, text=entry.text.replace(f" ; {entry.marker}", "", 1)) for entry in chosen)


def resolve(uv: Path, lock: Path, *options: str) -> None:
    """Resolves a part of pyproject.toml into a lock file for every Python and platform."""
    say(f"resolving {lock.name}")
    command = [
        *(str(uv), "--system-certs", "--no-python-downloads", "pip", "compile", "--quiet", "--upgrade", "--universal"),
        *("--python-version", OLDEST_PYTHON, "--only-binary", ":all:", "--generate-hashes", "--no-header"),
        *("--output-file", lock.name, *options),
    ]
    failure = f"{lock.name} could not be resolved. Check the network and the requirements in pyproject.toml."
    run(command, environment=os.environ, failure=failure)
    write(lock, LOCK_HEADER + lock.read_text(encoding="utf-8"))


# -------------------------------------------------------------------------------------------- Packages
# pip installs what a lock file pins into a folder of its own, never into the Python that runs it, so neither
# venv nor ensurepip is needed. Bytecode is compiled here: an unpacked archive then starts without compiling
# even where nobody can write to it.

PIP_NEEDED = "This Python has no pip. Install it (Debian and Ubuntu: apt-get install python3-pip) and run this again."


UNSERVED = re.compile(r"No matching distribution found for ([^\s;]+)")
UNREACHABLE = "Retrying ("


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


def unserved(output: str, target: Target) -> str | None:
    """What to say where pip found no wheel of a package; None where it failed otherwise, or asked no index."""
    missing = UNSERVED.search(output)
    if not missing or UNREACHABLE in output:
        return None
    return f"The package index has no wheel of {missing[1]} for {target}. Build for another Python or platform."


def pip_install(requirement: str, folder: Path, *options: str, target: Target | None = None) -> None:
    """Installs a requirement, or a file of them, into a folder with the pip of this Python, as that is set up."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run((*pip, "--version"), environment=os.environ, failure=PIP_NEEDED)
    command = (*pip, "install", "--no-user", "--only-binary=:all:", "--no-compile", "--target", str(folder), *options)
    done = ended((*command, requirement), {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"})
    message = unserved(done.stderr, target or own_target())
    if message:
        print(done.stderr, file=sys.stderr, flush=True)
        raise NotServedError(message)
    printed(done, f"pip could not install {requirement}. Check the network and pip's settings, then run this again.")


def install_entries(entries: Iterable[Entry], folder: Path, target: Target) -> None:
    """Installs what lock entries pin, refusing any file whose hash is not among theirs."""
    folder.mkdir()
    requirements = folder.relative_to(ROOT) / "requirements.txt"
    write(ROOT / requirements, "".join(entry.text for entry in entries))
    pip_install(f"-r{requirements}", folder, "--require-hashes", "--no-deps", *wheel_options(target), target=target)
    (ROOT / requirements).unlink()


def compile_folder(folder: Path, python: str | None = sys.executable) -> None:
    """Compiles all modules of a folder to bytecode that is valid whatever the time stamp of its source.

    Bytecode is that of one minor version, so a Python of it must do it; None where this machine has none.
    """
    if python is None:
        return
    command = (
        *(python, "-S", "-m", "compileall", "-q", "-f", "-s", str(folder)),
        *("--invalidation-mode", "unchecked-hash", str(folder)),
    )
    failure = f"Some modules in {folder} could not be compiled. Remove that folder and run this again."
    run(command, environment=clean_environment(os.environ), failure=failure)


def installed(name: str, entries: tuple[Entry, ...], target: Target, where: Path = BUILD) -> Path:
    """The folder with these entries installed and compiled, made only where it is not there yet."""
    kind = f"{name}-{target.tag}"
    folder = where / f"{kind}-{digest(sys.version, *(entry.text for entry in entries), *wheel_options(target))}"
    if not folder.exists():
        say(f"installing the {name} packages")
        with whole(folder) as temporary:
            install_entries(entries, temporary, target)
            compile_folder(temporary, interpreter_of(target))
    remove_older(folder, f"{kind}-*")
    return folder


@contextlib.contextmanager
def workshop(target: Target) -> Iterator[Path]:
    """Where an archive is put together. Only what this Python itself needs is kept: it is half a gigabyte a target."""
    if target == own_target():
        yield BUILD
        return
    folder = BUILD / "other"
    remove(folder)
    try:
        yield folder
    finally:
        remove(folder)


# ------------------------------------------------------------------------------------------ What ships
# Everything that is installed ships, but for what no import needs. A pattern stands for a file's whole path
# below the folder; `**` for any number of folders. Bytecode follows its source. What is left must be for the target:
# pip was told so, and each wheel's tags and each native file's head say whether it kept to that.

LEFT_OUT = (
    "bin/**",  # commands of the packages; their first line names this machine's Python
    "*.dist-info/RECORD",  # lists bin/ with hashes that differ from machine to machine
    "*.dist-info/INSTALLER",
    "*.dist-info/REQUESTED",
    "*.dist-info/direct_url.json",
    "**/tests/**",
    "**/conftest.py",
    "**/*.pyi",
    "**/*.pyx",
    "**/*.pxd",
    "**/*.pxi",
    "**/*.c",
    "**/*.cc",
    "**/*.f90",
    "**/*.h",
    "**/*.hpp",
    "**/*.a",
    "**/*.lib",
    "pyarrow/include/**",
    "pyarrow/src/**",
    "pyarrow/flight.py",  # remote procedure calls, which lancedb does not make; 33 MB with its libraries
    "pyarrow/_flight.*",
    "pyarrow/*arrow_flight*",
    "pyarrow/*arrow_python_flight*",
    "pyarrow/_s3fs.*",  # Arrow's own way to S3; LanceDB has its own; 18 MB
    "pyarrow/*arrow_s3*",
    "pyarrow/_pyarrow_cpp_tests.*",
    "pyarrow/libarrow_python.so",  # two more copies of libarrow_python.so.NNNN, which is the one that gets loaded
    "pyarrow/libarrow_python.so.*.*",
    "pyarrow/libarrow_python.dylib",
    "pyarrow/libarrow_python.*.*.dylib",
    "pyarrow/libarrow_python_parquet_encryption.so",
    "pyarrow/libarrow_python_parquet_encryption.so.*.*",
    "pyarrow/libarrow_python_parquet_encryption.dylib",
    "pyarrow/libarrow_python_parquet_encryption.*.*.dylib",
    "pythonwin/**",  # an editor on Windows, which pywin32 brings, and its help; 7 MB; mcp needs the rest of it
    "**/*.chm",
    "numpy/f2py/**",  # wraps Fortran; only its users import it
    "numpy/distutils/**",
)


# How much of a native file tells what it is for: where PE files have their head, compilers leave it this near. The
# versions of Java's classes begin at 45; no file is for so many processors.
HEAD = 4096
MACH_PARTS = 40


def as_expression(pattern: str) -> str:
    """A pattern of `LEFT_OUT` as a regular expression."""
    parts = re.split(r"(\*\*/|\*\*|\*)", pattern)
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    return "".join(wildcards.get(part, re.escape(part)) for part in parts)


LEFT_OUT_PATH = re.compile("|".join(as_expression(pattern) for pattern in LEFT_OUT))


def source_of(path: str) -> str:
    """The path of the module that a file of bytecode was compiled from; of any other file, its own."""
    return re.sub(r"__pycache__/([^/.]+)\.[^/]+\.pyc$", r"\1.py", path)


def ships(path: str) -> bool:
    """Whether an installed file goes into the archive; `path` is below the folder, with slashes."""
    return not LEFT_OUT_PATH.fullmatch(source_of(path))


def files_below(folder: Path) -> dict[str, Path]:
    """All files below a folder by their path in it, with slashes, in an order that is the same everywhere."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return dict(sorted((path.relative_to(folder).as_posix(), path) for path in files))


def tag_fits(tag: str, target: Target) -> bool:
    """Whether a wheel with this tag, such as `cp310-abi3-win_amd64`, can be loaded by a target.

    The rules: https://packaging.python.org/specifications/platform-compatibility-tags
    """
    python, abi, system = (part.split(".") for part in tag.split("-"))
    exact = target.tag in python and {target.tag, "abi3", "none"} & set(abi)
    stable = "abi3" in abi and {f"cp3{minor}" for minor in range(target.minor)} & set(python)
    pure = "none" in abi and {"py3", *(f"py3{minor}" for minor in range(target.minor + 1))} & set(python)
    return bool((exact or stable or pure) and {"any", *target.platform.wheels} & set(system))


def mach_processors(head: bytes) -> set[int]:
    """The processors of a Mach-O file, of which one for several has a table at its beginning."""
    if head.startswith(b"\xcf\xfa\xed\xfe"):
        return {int.from_bytes(head[4:8], "little")}
    parts = int.from_bytes(head[4:8], "big")
    # A Java class begins as a file for several processors does; its version follows where they are counted.
    if head.startswith(b"\xca\xfe\xba\xbe") and parts < MACH_PARTS:
        return {int.from_bytes(head[8 + 20 * part : 12 + 20 * part], "big") for part in range(parts)}
    return set()


def native_formats(head: bytes) -> set[tuple[str, int]]:
    """The formats and processors of a native file by its first bytes; empty where it is none."""
    if head.startswith(b"\x7fELF"):
        return {("ELF", int.from_bytes(head[18:20], "little"))}
    offset = int.from_bytes(head[0x3C:0x40], "little")
    if head.startswith(b"MZ") and head[offset : offset + 4] == b"PE\0\0":
        return {("PE", int.from_bytes(head[offset + 4 : offset + 6], "little"))}
    return {("Mach-O", processor) for processor in mach_processors(head)}


def wheel_tags(metadata: Path) -> list[str]:
    """The tags of an installed wheel."""
    message = email.message_from_bytes((metadata / "WHEEL").read_bytes())
    return message.get_all("Tag", [])


def foreign_files(folder: Path, target: Target) -> Iterator[str]:
    """The wheels and the native files below a folder that are not for a target, but for what does not ship."""
    for metadata in sorted(folder.glob("*.dist-info")):
        if not any(tag_fits(tag, target) for tag in wheel_tags(metadata)):
            yield metadata.name
    for name, path in files_below(folder).items():
        with path.open("rb") as file:
            formats = native_formats(file.read(HEAD))
        if formats and target.platform.native not in formats and ships(name):
            yield name


def check_fits(folder: Path, target: Target) -> None:
    """Refuses a folder of packages in which anything is for another machine; of others than the table's, pip is trusted."""
    listed = target.platform in PLATFORMS and target == target_of(target.python, target.platform)
    foreign = list(foreign_files(folder, target)) if listed else []
    if foreign:
        message = f"Not for {target}: {', '.join(foreign[:5])}. Remove {BUILD} and run this again."
        raise BuildError(message)


# --------------------------------------------------------------------------------------------- Archive
# shiv makes the archive out of the modules themselves. The packages are added here, since shiv leaves bytecode out
# and copies modes and, of a new version of a module, would compress half a gigabyte again. Then the starting
# code takes the place of shiv's. Every entry has the same time and mode.

MODULES = ("lancelot.py", "lancelot_index.py", "lancelot_setup.py")
SHEBANG = b"#!/usr/bin/env python3\n"
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
Version: {{version}}
Summary: {SUMMARY}
Author: {AUTHOR}
License-Expression: {LICENCE}
License-File: LICENSE
Requires-Python: >=3.10
Description-Content-Type: text/markdown

"""


def add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Adds one file to an archive, so that the same content always gives the same bytes."""
    entry = zipfile.ZipInfo(name, ENTRY_TIME)
    entry.create_system = MADE_ON_UNIX
    entry.external_attr = ENTRY_MODE << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


def pack_folder(folder: Path, target: Path) -> None:
    """Packs what ships of a folder, as shiv lays an archive out."""
    with target.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w") as archive:
            for name, path in files_below(folder).items():
                if ships(name):
                    add(archive, f"site-packages/{name}", path.read_bytes())


def packed_packages(site: Path, target: Target) -> Path:
    """The beginning of every archive, made only where it is not there yet: the packages."""
    inputs = (Path(__file__).read_bytes(), zlib.ZLIB_RUNTIME_VERSION)
    packed = site.with_name(f"packed-{site.name}-{digest(*inputs)}.zip")
    if not packed.exists():
        check_fits(site, target)
        say("compressing the packages")
        with whole(packed) as temporary:
            pack_folder(site, temporary)
    remove_older(packed, f"packed-runtime-{target.tag}-*")
    return packed


def read_version(source: str) -> str:
    """The value of `__version__` in a module's source, which is not imported: its packages may be missing."""
    found = re.search(r'^__version__(?:: [^=\n]+)? = "([^"]+)"', source, re.MULTILINE)
    if found:
        return found[1]
    message = 'lancelot.py sets no __version__. Add a line such as __version__ = "1.0.0".'
    raise BuildError(message)


def make_own_folder(folder: Path, python: str | None) -> None:
    """Puts together what the project itself has in the archive: the modules, its metadata and its licence."""
    version = read_version((ROOT / "lancelot.py").read_text(encoding="utf-8"))
    metadata = folder / f"lancelot-{version}.dist-info"
    (metadata / "licenses").mkdir(parents=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    write(metadata / "METADATA", METADATA.format(version=version) + readme)
    (metadata / "licenses" / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
    for name in MODULES:
        (folder / name).write_bytes((ROOT / name).read_bytes())
    compile_folder(folder, python)


def pack_with_shiv(packer: Path, own: Path, build_id: str, target: Path) -> None:
    """Makes shiv's archive of the project's own folder. Unpacked copies are told apart by `build_id`."""
    command = (
        *(sys.executable, "-s", "-m", "shiv", "--site-packages", str(own), "--reproducible"),
        *("--entry-point", "lancelot:main", "--build-id", build_id, "--output-file", str(target)),
    )
    failure = f"shiv could not pack the archive. Remove {BUILD} and run this again."
    run(command, environment=clean_environment(os.environ, PYTHONPATH=str(packer)), failure=failure)


def built_for(target: Target) -> dict[str, object]:
    """What the starting code compares the Python with that it is started by."""
    return {"interpreter": target.interpreter, "glibc": target.platform.glibc}


def own_contents(own: Path, shell: Path, target: Target) -> dict[str, bytes]:
    """Everything in the archive but the packages, by name: shiv's part, bytecode, and the starting code."""
    with zipfile.ZipFile(shell) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    bytecode = {name: path for name, path in files_below(own).items() if name.endswith(".pyc")}
    contents |= {f"site-packages/{name}": path.read_bytes() for name, path in bytecode.items()}
    contents["__main__.py"] = (ROOT / "bootstrap.py").read_bytes()
    contents["built_for.json"] = json.dumps(built_for(target)).encode()
    return contents


def record_of(archive: zipfile.ZipFile) -> bytes:
    """The SHA-256 of every file in an archive by its name, as JSON: what `lancelot verify` compares."""
    hashes = {name: hashlib.sha256(archive.read(name)).hexdigest() for name in sorted(archive.namelist())}
    return json.dumps(hashes, indent=0).encode()


def join(packed: Path, contents: Mapping[str, bytes], target: Path) -> None:
    """Writes the archive: the packages, then everything else, then the record of both."""
    with whole(target) as temporary:
        shutil.copyfile(packed, temporary)
        with zipfile.ZipFile(temporary, "a") as archive:
            for name in sorted(contents):
                add(archive, name, contents[name])
            add(archive, "record.json", record_of(archive))
        temporary.chmod(0o755)


SET_UP = """\
@echo off
rem Sets Lancelot up, with the Python that the archive beside this file is for.
setlocal
set "ARCHIVE=%~dp0{archive}"
py -{python} --version >nul 2>nul
if errorlevel 1 goto other
py -{python} "%ARCHIVE%" init %*
goto end
:other
python "%ARCHIVE%" init %*
:end
set "RESULT=%errorlevel%"
pause
exit /b %RESULT%
"""


def write_set_up(archive: Path, python: str) -> None:
    """Puts a file beside an archive for Windows to double-click: the archive itself would start a server in a window.

    Windows' launcher starts the newest Python there is; this asks it for the right one.
    """
    text = SET_UP.format(archive=archive.name, python=python)
    archive.with_suffix(".cmd").write_bytes(text.replace("\n", "\r\n").encode("ascii"))


def unpacked_size(archive: Path) -> int:
    """How many bytes the files of an archive have once they are unpacked."""
    with zipfile.ZipFile(archive) as opened:
        return sum(entry.file_size for entry in opened.infolist())


# ---------------------------------------------------------------------------------------------- Papers
# What an administrator checks an archive by: the sums of all files, and for each archive a bill of materials in
# CycloneDX's JSON (https://cyclonedx.org/docs/1.6/json/) and the licences of all that is inside, since packages differ
# from target to target. What wheels say of the parts that are compiled into them is in both. They hold no time and no
# place.

REGISTRY_ENTRY = "server.json"
BILL = ".cdx.json"
LICENCES = "LICENSES*.txt"
PUBLISHED = ("*.pyz", "*.cmd", f"*{BILL}", LICENCES, "*.mcpb", REGISTRY_ENTRY)

# Texts of licences that wheels lack, by the names of the packages.
SUPPLIED = ROOT / "licenses"
LICENCE_NAME = re.compile(r"licen[sc]e|copying|copyright|notice", re.IGNORECASE)
NO_TEXT = (".py", ".pyc", ".pyd", ".so", ".json")


@dataclass(frozen=True)
class Part:
    """What a wheel's own bill of materials says is in it, such as a Rust crate in a native module."""

    name: str
    version: str
    licence: str
    purl: str
    hashes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Package:
    """A package inside: what its metadata say of it, the texts of its licences by their path, and its parts."""

    name: str
    version: str
    licence: str
    files: Mapping[str, Path]
    parts: tuple[Part, ...] = ()

    @property
    def purl(self) -> str:
        """Its address in bills of materials (https://github.com/package-url/purl-spec)."""
        return f"pkg:pypi/{normal(self.name)}@{self.version}"


def normal(name: str) -> str:
    """The one form of a package's name (https://packaging.python.org/specifications/name-normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def stated_licence(message: Message) -> str:
    """The licence of a package by its metadata: an expression, else a short text, else what it is classified as."""
    classified = [line.rpartition(" :: ")[2] for line in message.get_all("Classifier", []) if "License ::" in line]
    short = (message["License"] or "").strip() if len((message["License"] or "").strip().splitlines()) == 1 else ""
    return message["License-Expression"] or short or " or ".join(classified) or "see its licence file"


def holds_licence(path: str) -> bool:
    """Whether an installed file that ships is the text of a licence, by its place or its name."""
    name = PurePosixPath(path).name
    named = LICENCE_NAME.search(name) and not name.endswith(NO_TEXT)
    return ships(path) and bool(named or ".dist-info/licenses/" in path)


def supplied_text(name: str, licence: str) -> dict[str, Path]:
    """The text for a package whose metadata have none: one of `SUPPLIED`, or ours where the licence is the same."""
    kept = SUPPLIED / f"{normal(name)}.txt"
    if kept.exists():
        return {f"{SUPPLIED.name}/{kept.name}": kept}
    if licence == LICENCE:
        return {"LICENSE": ROOT / "LICENSE"}
    message = f"{name} brings no text of its licence ({licence}). Put it into {SUPPLIED.name}/{kept.name}."
    raise BuildError(message)


def licence_files(metadata: Path, name: str, licence: str) -> dict[str, Path]:
    """The texts of a package's licences by their path: its own first, then those of what others wrote in it."""
    with (metadata / "RECORD").open(encoding="utf-8", newline="") as record:
        paths = sorted(row[0] for row in csv.reader(record) if row and holds_licence(row[0]))
    found = {path: metadata.parent / path for path in paths}
    own = {path: file for path, file in found.items() if file.is_relative_to(metadata)}
    return (own or supplied_text(name, licence)) | found


def read_part(entry: Mapping[str, Any]) -> Part:
    """A component of a CycloneDX bill, without the folder that it was built in."""
    licences = [one.get("license", {}) | one for one in entry.get("licenses", [])]
    stated = [one.get("expression") or one.get("id") or one.get("name", "") for one in licences]
    purl = re.sub(r"\?download_url=file:.*", "", entry.get("purl", ""))
    hashes = tuple((one["alg"], one["content"]) for one in entry.get("hashes", []))
    return Part(entry["name"], entry.get("version", ""), " AND ".join(filter(None, stated)), purl, hashes)


def read_bill(path: Path) -> Iterator[Part]:
    """The parts that a wheel's own bill of materials names, the wheel's main one among them."""
    try:
        bill = json.loads(path.read_bytes())
    except ValueError:
        bill = {}
    if bill.get("bomFormat") != "CycloneDX":
        message = f"{path} is no bill of materials in CycloneDX's JSON. Teach build.py to read it."
        raise BuildError(message)
    main = bill.get("metadata", {}).get("component")
    yield from map(read_part, [*([main] if main else []), *bill.get("components", [])])


def parts_of(metadata: Path) -> tuple[Part, ...]:
    """The parts of a package, as the bills that its wheel brings name them; wheels bring none, one or several.

    Where they lie: https://packaging.python.org/specifications/recording-installed-packages
    """
    found = {part for path in (metadata / "sboms").glob("*") for part in read_bill(path)}
    return tuple(sorted(found, key=lambda part: (part.name, part.version, part.purl, part.licence, part.hashes)))


def read_package(metadata: Path) -> Package:
    """A package by its folder of metadata."""
    message = email.message_from_bytes((metadata / "METADATA").read_bytes())
    name, licence = message["Name"], stated_licence(message)
    package = Package(name, message["Version"], licence, licence_files(metadata, name, licence))
    others = (part for part in parts_of(metadata) if part.purl.partition("?")[0] != package.purl)
    return replace(package, parts=tuple(others))


def packages_in(site: Path, pattern: str = "*") -> list[Package]:
    """The packages that are installed in a folder, by name."""
    found = [read_package(metadata) for metadata in site.glob(f"{pattern}.dist-info")]
    return sorted(found, key=lambda package: package.name.lower())


def packages_inside(site: Path, packer: Path) -> list[Package]:
    """The packages of an archive: those that it was made of, and shiv, whose starting code is in it too."""
    return packages_in(site) + packages_in(packer, "shiv-*")


def everything_in(packages: Sequence[Package]) -> list[Package | Part]:
    """The packages, then the parts of all of them."""
    return [*packages, *(part for package in packages for part in package.parts)]


CANONICAL = """
import json, sys
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
def canonical(text):
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return ""
print(json.dumps({text: canonical(text) for text in json.load(sys.stdin)}))
"""
SPDX_ID = re.compile(r"(?!LicenseRef-)[A-Za-z0-9.-]+")


def expressions_of(packages: Sequence[Package], packer: Path) -> dict[str, str]:
    """The SPDX expression for each licence that packages and their parts state; empty for what is none."""
    stated = {one.licence for one in everything_in(packages)}
    failure = f"The names of licences could not be read. Remove {BUILD} and run this again."
    found: dict[str, str] = answered(packer, CANONICAL, sorted(stated), failure)
    return found


def licence_entries(licence: str, expression: str) -> list[dict[str, object]]:
    """A licence as a bill of materials has it: one of SPDX's list, an expression of several, or a name."""
    if SPDX_ID.fullmatch(expression):
        return [{"license": {"id": expression}}]
    if expression:
        return [{"expression": expression}]
    return [{"license": {"name": licence}}]


def reference(one: Package | Part) -> str:
    """What a bill of materials refers to a component by."""
    return one.purl or f"{one.name}@{one.version}"


def component(one: Package | Part, expressions: Mapping[str, str]) -> dict[str, object]:
    """A package or a part as a bill of materials has it."""
    entry: dict[str, object] = {"type": "library", "bom-ref": reference(one), "name": one.name, "version": one.version}
    if isinstance(one, Part) and one.hashes:
        entry["hashes"] = [{"alg": kind, "content": content} for kind, content in one.hashes]
    if one.licence:
        entry["licenses"] = licence_entries(one.licence, expressions[one.licence])
    return entry | ({"purl": one.purl} if one.purl else {})


def own_component(archive: Path, target: Target) -> dict[str, object]:
    """The archive that a bill of materials is for, told apart from any other by its sum."""
    properties = {"archive": archive.name, "target": str(target)}
    return {
        "type": "application",
        "bom-ref": "lancelot",
        "name": "lancelot",
        "version": lancelot.__version__,
        "hashes": [{"alg": "SHA-256", "content": sum_of(archive)}],
        "licenses": [{"license": {"id": LICENCE}}],
        "properties": [{"name": f"lancelot:{name}", "value": value} for name, value in properties.items()],
    }


def bill_of_materials(
    packages: Sequence[Package], expressions: Mapping[str, str], archive: Path, target: Target
) -> dict[str, object]:
    """An archive's packages and their parts, each once, in CycloneDX 1.6."""
    once: dict[str, Package | Part] = {}
    for one in everything_in(packages):
        once.setdefault(reference(one), one)
    held: dict[str, Sequence[Package | Part]] = {package.purl: package.parts for package in packages if package.parts}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own_component(archive, target)},
        "components": [component(one, expressions) for one in once.values()],
        "dependencies": [
            {"ref": ref, "dependsOn": list(dict.fromkeys(map(reference, inside)))}
            for ref, inside in ({"lancelot": packages} | held).items()
        ],
    }


RULE = "=" * 80
PARTS_HEAD = f"""{RULE}
Compiled into native modules of the packages above

These are in the bills of materials that the packages bring, with the licences stated there. The packages do not bring
the texts of these licences.

"""


def parts_table(packages: Iterable[Package]) -> str:
    """The name, version and licence of each part, once."""
    rows = {(part.name, part.version, part.licence or "not stated") for package in packages for part in package.parts}
    width = max((len(name) + len(version) for name, version, _ in rows), default=0) + 3
    return "\n".join(f"{f'{name} {version}':{width}}{licence}" for name, version, licence in sorted(rows))


def texts_of(package: Package) -> dict[str, list[str]]:
    """The texts of a package's licences, with the paths where each lies."""
    found: dict[str, list[str]] = {}
    for name, path in package.files.items():
        found.setdefault(path.read_text(encoding="utf-8", errors="replace").strip(), []).append(name)
    return found


def licence_texts(packages: Sequence[Package]) -> str:
    """The licences of packages, one after the other, each text of a package once, and the table of their parts."""
    said = []
    for package in packages:
        said.append(f"{RULE}\n{package.name} {package.version}: {package.licence}")
        said += [f"--- {', '.join(names)}\n\n{text}" for text, names in texts_of(package).items()]
    table = parts_table(packages)
    return "\n\n".join([*said, PARTS_HEAD + table] if table else said) + "\n"


def sums_of(files: Iterable[Path]) -> str:
    """The SHA-256 of files as `sha256sum --check` reads them."""
    return "".join(f"{sum_of(path)}  {path.name}\n" for path in sorted(files))


def licences_beside(archive: Path) -> Path:
    """Where the licences of an archive are."""
    return archive.with_name(f"LICENSES{archive.stem.removeprefix('lancelot')}.txt")


def write_papers(packages: Sequence[Package], packer: Path, archive: Path, target: Target) -> None:
    """Puts an archive's own papers beside it."""
    own = Package("lancelot", lancelot.__version__, LICENCE, {"LICENSE": ROOT / "LICENSE"})
    bill = bill_of_materials(packages, expressions_of(packages, packer), archive, target)
    write(archive.with_suffix(BILL), json.dumps(bill, indent=1) + "\n")
    write(licences_beside(archive), licence_texts([own, *packages]))


def write_sums(folder: Path, without: Iterable[Path] = ()) -> None:
    """Puts the sums of all that is published beside it, but for what is not to be."""
    files = {path for pattern in PUBLISHED for path in folder.glob(pattern)}
    write(folder / "SHA256SUMS", sums_of(files.difference(without)))


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


@dataclass(frozen=True)
class FormField:
    """A setting that a client asks for when it installs the bundle, by its field in `lancelot.Settings`.

    `help` is for what is chosen otherwise than it is written into a variable.
    """

    field: str
    title: str
    kind: str = "string"
    required: bool = False
    help: str = ""


# A client lets the person choose the folder and hands over its whole path, so the setting's own help would mislead.
FORM = (
    FormField(
        "path", "LanceDB folder", "directory", required=True, help="The folder of the LanceDB database to search."
    ),
    FormField("table", "Table"),
    FormField("api_key", "OpenAI API key"),
    FormField("base_url", "Embedding server"),
    FormField("embedding_model", "Embedding model"),
    FormField("chat_model", "Chat model"),
    FormField("chat_base_url", "Chat model's server"),
    FormField("chat_api_key", "Chat model's API key"),
)


def setting_of(form_field: FormField) -> lancelot.Setting:
    """The setting that a field of the form is for."""
    return next(setting for setting in lancelot.SETTINGS if setting.field == form_field.field)


def plain_help(setting: lancelot.Setting, titles: Mapping[str, str]) -> str:
    """What a setting means, as text without marks, with the titles of variables that the reader does not see."""
    return re.sub("`([^`]+)`", lambda found: f'"{titles.get(found[1], found[1])}"', setting.help)


def form_entry(form_field: FormField) -> dict[str, object]:
    """A field of the form as the manifest has it."""
    setting = setting_of(form_field)
    titles = {setting_of(one).name: one.title for one in FORM}
    default = "" if setting.default is None else f" Default: {setting.default}."
    entry: dict[str, object] = {"type": form_field.kind, "title": form_field.title}
    description = form_field.help or plain_help(setting, titles)
    entry |= {"description": description + default, "required": form_field.required}
    if setting.secret:
        entry["sensitive"] = True
    if not form_field.required:
        # Without one, a client hands the variable over as it is written. A blank value counts as not set; the
        # setting's own default does not: a table that is named is not looked for.
        entry["default"] = ""
    return entry


def start_entry() -> dict[str, object]:
    """How a client starts the archive of an unpacked bundle."""
    return {
        "command": "python3",
        "args": [f"${{__dirname}}/{BUNDLED}"],
        "env": {setting_of(one).name: f"${{user_config.{one.field}}}" for one in FORM},
        "platform_overrides": {"win32": {"command": "python"}},
    }


def compatibility(target: Target) -> dict[str, object]:
    """The platform and the Python that the archive is for."""
    system = target.platform.sys_platform
    if system not in MANIFEST_PLATFORMS:
        message = f"Bundles are for {', '.join(MANIFEST_PLATFORMS)}, not {system}. Use {ARCHIVE.name} itself."
        raise BuildError(message)
    return {"platforms": [system], "runtimes": {"python": f">={target.python},<3.{target.minor + 1}"}}


def manifest(target: Target) -> dict[str, object]:
    """What the bundle says of itself. Listed are the tools that are always there; settings bring in the others."""
    always = [tool for tool in lancelot.TOOLS if not tool.needs]
    return {
        "manifest_version": MANIFEST_VERSION,
        "name": "lancelot",
        "display_name": "Lancelot",
        "version": lancelot.__version__,
        "description": SUMMARY,
        "author": {"name": AUTHOR},
        "repository": {"type": "git", "url": REPOSITORY},
        "license": LICENCE,
        "server": {"type": "python", "entry_point": BUNDLED, "mcp_config": start_entry()},
        "tools": [{"name": tool.name, "description": tool.description} for tool in always],
        "tools_generated": len(always) < len(lancelot.TOOLS),
        "compatibility": compatibility(target),
        "user_config": {one.field: form_entry(one) for one in FORM},
    }


def json_text(value: object) -> str:
    """JSON for a file that people read too."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_bundle(archive: Path, bundle: Path, target: Target) -> None:
    """Packs an archive and its manifest, so that the same archive always gives the same bytes."""
    contents = {"manifest.json": json_text(manifest(target)).encode(), BUNDLED: archive.read_bytes()}
    contents |= {name: (ROOT / name).read_bytes() for name in ("README.md", "LICENSE")}
    with whole(bundle) as temporary, zipfile.ZipFile(temporary, "w") as packed:
        for name, content in contents.items():
            add(packed, name, content)


def registry_variable(setting: lancelot.Setting) -> dict[str, object]:
    """A setting as the registry has it. Its default is only shown, for the reason that `form_entry` has."""
    form_field = next((one for one in FORM if one.field == setting.field), None)
    entry: dict[str, object] = {"name": setting.name, "description": plain_help(setting, {})}
    if isinstance(setting.default, int | float):
        entry["format"] = "number"
    if setting.default is not None:
        entry["placeholder"] = str(setting.default)
    required = form_field is not None and form_field.required
    return entry | {"isRequired": required, "isSecret": setting.secret}


def registry_package(bundle: Path) -> dict[str, object]:
    """A bundle as the registry has it, where a release has it."""
    return {
        "registryType": "mcpb",
        "identifier": f"{REPOSITORY}/releases/download/v{lancelot.__version__}/{bundle.name}",
        "version": lancelot.__version__,
        "fileSha256": sum_of(bundle),
        "transport": {"type": "stdio"},
        "environmentVariables": [registry_variable(setting) for setting in lancelot.SETTINGS],
    }


def registry_entry(bundles: Iterable[Path]) -> dict[str, object]:
    """The server as the MCP Registry lists it, with its bundles."""
    return {
        "$schema": REGISTRY_SCHEMA,
        "name": REGISTRY_NAME,
        "title": "Lancelot",
        "description": SUMMARY,
        "version": lancelot.__version__,
        "repository": {"url": REPOSITORY, "source": "github"},
        "packages": [registry_package(bundle) for bundle in bundles],
    }


def sum_inside(bundle: Path) -> str:
    """The SHA-256 of the archive in a bundle."""
    with zipfile.ZipFile(bundle) as opened:
        return hashlib.sha256(opened.read(BUNDLED)).hexdigest()


def sum_billed(bill: Path) -> str:
    """The SHA-256 of the archive that a bill of materials is for; empty where it says none."""
    own = json.loads(bill.read_bytes())["metadata"]["component"]
    return "".join(one["content"] for one in own.get("hashes", []))


def stale_files(folder: Path) -> list[Path]:
    """The bundles, bills and licences in a folder whose archive is not in it: it was made anew since, or removed.

    Licences name no archive; they are made with the bill beside them.
    """
    there = {sum_of(archive) for archive in folder.glob("*.pyz")}
    made_of = {path: sum_inside(path) for path in folder.glob("*.mcpb")}
    made_of |= {path: sum_billed(path) for path in folder.glob(f"*{BILL}")}
    current = {path for path, archive in made_of.items() if archive in there}
    billed = (path.with_name(path.name.replace(BILL, ".pyz")) for path in current if path.name.endswith(BILL))
    return sorted({*made_of, *folder.glob(LICENCES)} - current - set(map(licences_beside, billed)))


def write_registry_entry(folder: Path, without: Iterable[Path] = ()) -> None:
    """Puts the registry's entry beside the bundles of this version; where there are none, there is no entry."""
    bundles = set(folder.glob(f"lancelot-{lancelot.__version__}-*.mcpb")).difference(without)
    if bundles:
        write(folder / REGISTRY_ENTRY, json_text(registry_entry(sorted(bundles))))
    else:
        remove(folder / REGISTRY_ENTRY)


# ---------------------------------------------------------------------------------------------- Checks
# The checks run in an environment of their own, on the very packages that ship. All of them run, whatever
# the ones before them found; the tests come last, so that their closing line stands at the end.


@dataclass(frozen=True)
class Check:
    """A module to run, with its arguments, in the environment for development."""

    name: str
    module: str
    arguments: tuple[str, ...]


CHECKS = (
    Check("ruff check", "ruff", ("check", ".")),
    Check("ruff format", "ruff", ("format", "--check", ".")),
    Check("mypy", "mypy", ()),
    # What a module's tests share is made once: a module stays with one process.
    Check("pytest", "pytest", ("-n", "auto", "--dist", "loadfile")),
)


# The tests of the built file, and the variables that tell them of another than dist/lancelot.pyz with this Python.
FILE_TESTS = Check("pytest", "pytest", ("tests/test_archive.py", "tests/test_clients.py", "-k", "archive"))
TESTED_ARCHIVE = "LANCELOT_TEST_ARCHIVE"
TESTED_PYTHON = "LANCELOT_TEST_PYTHON"


def development_python(folders: Sequence[Path]) -> Path:
    """The Python of an environment that sees these folders and nothing else that is installed on the machine."""
    environment = BUILD / f"dev-{sys.implementation.cache_tag}"
    command = (sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment))
    failure = "No environment could be made. Install Python's venv module and run this again."
    run(command, environment=os.environ, failure=failure)
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = next(environment.rglob("site-packages"))
    # Not a bare path: packages for Windows have .pth files of their own in there.
    write(site / "lancelot.pth", "".join(f"import site; site.addsitedir({str(folder)!r})\n" for folder in folders))
    return python


def failed_checks(python: Path, checks: Iterable[Check], **variables: str) -> list[str]:
    """Runs all checks, their output unfiltered, and gives the names of those that failed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environment, failed = kept | variables, []
    for check in checks:
        say(f"checking with {check.name}")
        command = (str(python), "-m", check.module, *check.arguments)
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(check.name)
    return failed


# ---------------------------------------------------------------------------------------- Command line
# One function a command. Each is given what was asked for on the command line.

ALL = "all"


@dataclass(frozen=True)
class Request:
    """What to make: the targets that were named; none stand for dist/lancelot.pyz, which is for the running Python.

    Where `every` is set, targets that the dependencies do not serve are no failure, unless that is all of them.
    """

    targets: tuple[Target, ...] = ()
    every: bool = False


NOTHING_NAMED = Request()


def runtime_folder(target: Target, packer: Path, where: Path) -> Path:
    """The folder with the packages that ship."""
    entries = runtime_entries(LOCK.read_text(encoding="utf-8"))
    return installed("runtime", entries_for(target, entries, packer), target, where)


def packer_folder() -> Path:
    """The folder with what packs and reads the lock, which runs here."""
    try:
        return installed("packer", packer_entries(LOCK.read_text(encoding="utf-8")), own_target())
    except NotServedError as error:
        message = (
            "pip finds not even what packs the archive, which every Python can run. Check its settings and its index."
        )
        raise BuildError(message) from error


def build_for(target: Target, archive: Path, where: Path) -> None:
    """Makes an archive with its papers, and prints its path and sizes."""
    say(f"{archive.name}, for {target}")
    packer, python = packer_folder(), interpreter_of(target)
    if python is None:
        say(f"there is no Python {target.python} here: {archive.name} gets no bytecode, its first start compiles")
    site = runtime_folder(target, packer, where)
    packages = packages_inside(site, packer)
    packed = packed_packages(site, target)
    say("packing the archive")
    own, shell = where / "own", where / "shell.pyz"
    with whole(own) as temporary:
        make_own_folder(temporary, python)
    build_id = digest(packed.read_bytes(), *(path.read_bytes() for path in files_below(own).values()))
    pack_with_shiv(packer, own, build_id, shell)
    join(packed, own_contents(own, shell, target), archive)
    write_papers(packages, packer, archive, target)
    if target.platform.sys_platform == "win32":
        write_set_up(archive, target.python)
    sizes = (archive.stat().st_size / BYTES_PER_MB, unpacked_size(archive) / BYTES_PER_MB)
    print("{}: {:.1f} MB, unpacked {:.1f} MB".format(archive, *sizes), flush=True)


def archive_of(target: Target) -> Path:
    """Where the archive of a target that was named goes."""
    return ARCHIVE.with_name(f"{target.stem}.pyz")


def build_served(target: Target, archive: Path, make: Callable[[Target, Path], None]) -> str:
    """Makes an archive and something of it; gives what to say where the dependencies do not serve the target."""
    try:
        with workshop(target) as where:
            build_for(target, archive, where)
    except NotServedError as error:
        return str(error)
    make(target, archive)
    return ""


def build_requested(request: Request, make: Callable[[Target, Path], None] = lambda *_: None) -> None:
    """Makes the archives that were asked for and something of each, then the papers of them all.

    Those that are not served are told of at the end; where they were asked for by name, that is a failure.
    """
    jobs = [(target, archive_of(target)) for target in request.targets] or [(own_target(), ARCHIVE)]
    not_served = list(filter(None, (build_served(target, archive, make) for target, archive in jobs)))
    write_common_papers()
    for said in not_served:
        say(said)
    if not_served and (not request.every or len(not_served) == len(jobs)):
        message = f"Not made: {len(not_served)} of {len(jobs)}. What could be made is in {ARCHIVE.parent}."
        raise BuildError(message)


def write_common_papers(_request: Request = NOTHING_NAMED) -> None:
    """Makes anew what there is once for all archives and bundles, and names what is stale and so not in it."""
    folder = ARCHIVE.parent
    stale = stale_files(folder)
    for path in stale:
        say(f"{path.name} is of an archive that is not in {folder}, so no paper lists it. Make it anew or remove it.")
    write_registry_entry(folder, stale)
    write_sums(folder, stale)


def build_bundle(target: Target, archive: Path) -> None:
    """Makes the bundle of an archive and prints its path and size."""
    say("packing the bundle")
    bundle = ARCHIVE.with_name(f"{target.stem}.mcpb")
    write_bundle(archive, bundle, target)
    print(f"{bundle}: {bundle.stat().st_size / BYTES_PER_MB:.1f} MB", flush=True)


def build_bundles(request: Request) -> None:
    """Makes the archives that were asked for and their bundles."""
    for target in request.targets or [own_target()]:
        compatibility(target)
    build_requested(request, build_bundle)


def prepared_python() -> Path:
    """The Python of the environment for development, with the packages that ship."""
    own, lock = own_target(), LOCK.read_text(encoding="utf-8")
    development = development_entries(DEV_LOCK.read_text(encoding="utf-8"), runtime_entries(lock))
    runtime = runtime_folder(own, packer_folder(), BUILD)
    return development_python((ROOT, installed("development", development, own), runtime))


def check_project(_request: Request) -> None:
    """Makes the archive, then runs every check; raises where one failed."""
    build_requested(NOTHING_NAMED)
    failed = failed_checks(prepared_python(), CHECKS)
    if failed:
        message = f"Failed: {', '.join(failed)}. Mend what is said above and run this again."
        raise BuildError(message)


def tested_targets(request: Request) -> dict[Target, str]:
    """The targets whose archives can be tested on this machine, each with its Python."""
    candidates = request.targets or tuple(target_of(python, own_platform()) for python in PYTHONS)
    found = {target: interpreter_of(target) for target in candidates if target.platform == own_platform()}
    there = {target: python for target, python in found.items() if python}
    missing = [str(target) for target in candidates if target not in there]
    if not there or (request.targets and missing and not request.every):
        message = f"This machine cannot test archives for {', '.join(missing)}. Run this where such a Python is."
        raise BuildError(message)
    return there


def check_archives(request: Request) -> None:
    """Makes an archive for each Python of this machine and runs the tests of the built file with it."""
    tested = tested_targets(request)
    build_requested(Request(tuple(tested)))
    python, failed = prepared_python(), []
    for target, interpreter in tested.items():
        say(f"testing {archive_of(target).name} with {interpreter}")
        variables = {TESTED_ARCHIVE: str(archive_of(target)), TESTED_PYTHON: interpreter}
        if failed_checks(python, [FILE_TESTS], **variables):
            failed.append(str(target))
    if failed:
        message = f"Failed: {', '.join(failed)}. Mend what is said above and run this again."
        raise BuildError(message)
    print(f"Passed: {', '.join(map(str, tested))}")


def make_locks(_request: Request) -> None:
    """Resolves the requirements anew into both lock files."""
    say("installing the resolver")
    with whole(BUILD / "uv") as folder:
        pip_install(UV, folder)
    uv = BUILD / "uv" / "bin" / ("uv.exe" if os.name == "nt" else "uv")
    resolve(uv, LOCK, "--group", "build", "pyproject.toml")
    resolve(uv, DEV_LOCK, "--group", "dev", "--constraints", LOCK.name)


COMMANDS: Mapping[str, Callable[[Request], None]] = {
    "archive": build_requested,
    "bundle": build_bundles,
    "papers": write_common_papers,
    "check": check_project,
    "test": check_archives,
    "lock": make_locks,
}
WITH_TARGETS = ("archive", "bundle", "test")


def requested(pythons: Sequence[str], platforms: Sequence[str]) -> Request:
    """The product of what the two options name; the one that was not given stands for what runs this."""
    if not pythons and not platforms:
        return NOTHING_NAMED
    own = own_target()
    versions = PYTHONS if ALL in pythons else tuple(dict.fromkeys(pythons)) or (own.python,)
    systems = [one for one in PLATFORMS if {one.name, ALL} & set(platforms)] or [own.platform]
    every = ALL in (*pythons, *platforms)
    return Request(tuple(target_of(version, system) for system in systems for version in versions), every=every)


def parse(argv: Sequence[str] | None) -> tuple[str, Request]:
    """The command and what it is for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS), default="archive")
    names = tuple(one.name for one in PLATFORMS)
    parser.add_argument("--python", action="append", default=[], choices=(*PYTHONS, ALL), help="may be repeated")
    parser.add_argument("--platform", action="append", default=[], choices=(*names, ALL), help="may be repeated")
    given = parser.parse_args(argv)
    request = requested(given.python, given.platform)
    if request.targets and given.command not in WITH_TARGETS:
        parser.error(f"--python and --platform are for {', '.join(WITH_TARGETS)}, not for {given.command}")
    return given.command, request


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives the exit code: 0 well, 1 a failure, 2 wrong usage."""
    command, request = parse(argv)
    try:
        COMMANDS[command](request)
    except BuildError as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"{error}. See that {ROOT} can be written and has 3 GB free, then run this again.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
