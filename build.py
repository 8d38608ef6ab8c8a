"""Builds `dist/lancelot.pyz`, the one file that ships, for the Python that runs this and its platform.

    python3 build.py          makes dist/lancelot.pyz, with SHA256SUMS, a bill of materials and the licences beside it
    python3 build.py bundle   makes it, then an MCPB bundle of it and server.json, the MCP Registry's entry for that
    python3 build.py check    makes it, then runs every check and test of the project
    python3 build.py lock     resolves the requirements anew into both lock files

Needs Python 3.10 or newer with pip, and the package index that pip is set up for. Everything it makes lies
in `build/` and `dist/`; what did not change since the last time is reused. The same commit built by the same
Python and zlib gives the same bytes.

Sections:
    Basics          folders, the one error class, announced steps, child processes
    Lock files      what they pin, and how they are made
    Packages        the folder of installed packages, with their bytecode
    What ships      which of the installed files go into the archive
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
from dataclasses import dataclass
from pathlib import Path

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


def say(step: str) -> None:
    """Announces a step."""
    print(f"build: {step}", file=sys.stderr, flush=True)


def digest(*parts: str | bytes) -> str:
    """A short name for some content, the same wherever and whenever it is computed."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return total.hexdigest()[:16]


def clean_environment(environment: Mapping[str, str], **changes: str) -> dict[str, str]:
    """The environment for a child whose output ends up in the archive: nothing in it may sway Python."""
    swaying = ("PYTHON", "SHIV_", "SOURCE_DATE_EPOCH")
    kept = {name: value for name, value in environment.items() if not name.startswith(swaying)}
    return kept | {"PYTHONHASHSEED": "0"} | changes


def run(command: Sequence[str], *, environment: Mapping[str, str], failure: str) -> None:
    """Runs a child in silence; where it fails, its output is shown and `failure` raised as a BuildError."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="", file=sys.stderr, flush=True)
        raise BuildError(failure)


def remove(path: Path) -> None:
    """Removes a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
NEVER_SHIPPED = frozenset({"shiv", "pip", "setuptools"})

ENTRY = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^\s;\\]+)[^\n]*\\\n(?:[ ]+--hash=sha256:[0-9a-f]{64}(?:[ ]\\)?\n)+",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Entry:
    """One pinned version of a package in a lock file."""

    name: str
    version: str
    text: str


def read_lock(text: str) -> tuple[Entry, ...]:
    """The entries of a lock file; a package has several where its version depends on the environment."""
    return tuple(Entry(found["name"], found["version"], found[0]) for found in ENTRY.finditer(text))


def runtime_entries(text: str) -> tuple[Entry, ...]:
    """What the archive holds, out of the text of requirements.lock."""
    return tuple(entry for entry in read_lock(text) if entry.name not in NEVER_SHIPPED)


def packer_entries(text: str) -> tuple[Entry, ...]:
    """What shiv needs to run, out of the text of requirements.lock."""
    return tuple(entry for entry in read_lock(text) if entry.name in PACKER)


def development_entries(text: str, runtime: Iterable[Entry]) -> tuple[Entry, ...]:
    """What the checks need besides the runtime, out of the text of requirements-dev.lock."""
    present = {entry.name for entry in runtime}
    return tuple(entry for entry in read_lock(text) if entry.name not in present)


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
    lock.write_text(LOCK_HEADER + lock.read_text(encoding="utf-8"), encoding="utf-8")


# -------------------------------------------------------------------------------------------- Packages
# pip installs what a lock file pins into a folder of its own, never into the Python that runs it, so neither
# venv nor ensurepip is needed. Bytecode is compiled here: an unpacked archive then starts without compiling
# even where nobody can write to it.

# Wheels for newer systems than this are passed over; where they run, these run too.
GLIBC = (2, 28)
PIP_NEEDED = "This Python has no pip. Install it (Debian and Ubuntu: apt-get install python3-pip) and run this again."


def wheel_platforms() -> tuple[str, ...]:
    """The options of pip for wheels that run on every Linux from `GLIBC` on; other systems have one kind only."""
    if not bootstrap.glibc_version():
        return ()
    major, newest = GLIBC
    tags = [f"manylinux_{major}_{minor}" for minor in range(newest, 16, -1)] + ["manylinux2014"]
    return tuple(f"--platform={tag}_{platform.machine()}" for tag in tags)


def pip_install(requirement: str, target: Path, *options: str) -> None:
    """Installs a requirement, or a file of them, into a folder with the pip of this Python, as that is set up."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run((*pip, "--version"), environment=os.environ, failure=PIP_NEEDED)
    command = (*pip, "install", "--no-user", "--only-binary=:all:", "--no-compile", "--target", str(target), *options)
    failure = f"pip could not install {requirement}. Check the network and pip's settings, then run this again."
    run((*command, requirement), environment={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}, failure=failure)


def install_entries(entries: Iterable[Entry], target: Path) -> None:
    """Installs what lock entries pin, refusing any file whose hash is not among theirs."""
    target.mkdir()
    requirements = target.relative_to(ROOT) / "requirements.txt"
    (ROOT / requirements).write_text("".join(entry.text for entry in entries), encoding="utf-8")
    pip_install(f"-r{requirements}", target, "--require-hashes", "--no-deps", *wheel_platforms())
    (ROOT / requirements).unlink()


def compile_folder(folder: Path) -> None:
    """Compiles all modules of a folder to bytecode that is valid whatever the time stamp of its source."""
    command = (
        *(sys.executable, "-S", "-m", "compileall", "-q", "-f", "-s", str(folder)),
        *("--invalidation-mode", "unchecked-hash", str(folder)),
    )
    failure = f"Some modules in {folder} could not be compiled. Remove that folder and run this again."
    run(command, environment=clean_environment(os.environ), failure=failure)


def installed(name: str, entries: tuple[Entry, ...]) -> Path:
    """The folder with these entries installed and compiled, made only where it is not there yet."""
    kind = f"{name}-{sys.implementation.cache_tag}"
    folder = BUILD / f"{kind}-{digest(sys.version, *(entry.text for entry in entries), *wheel_platforms())}"
    if not folder.exists():
        say(f"installing the {name} packages")
        with whole(folder) as temporary:
            install_entries(entries, temporary)
            compile_folder(temporary)
    remove_older(folder, f"{kind}-*")
    return folder


# ------------------------------------------------------------------------------------------ What ships
# Everything that is installed ships, but for what no import needs. A pattern stands for a file's whole path
# below the folder; `**` for any number of folders. Bytecode follows its source.

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
    "pyarrow/libarrow_python_parquet_encryption.so",
    "pyarrow/libarrow_python_parquet_encryption.so.*.*",
    "numpy/f2py/**",  # wraps Fortran; only its users import it
    "numpy/distutils/**",
)


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


# --------------------------------------------------------------------------------------------- Archive
# shiv makes the archive out of the module itself. The packages are added here, since shiv leaves bytecode out
# and copies modes and, of a new version of the module, would compress half a gigabyte again. Then the starting
# code takes the place of shiv's. Every entry has the same time and mode.

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


def packed_packages(site: Path) -> Path:
    """The beginning of every archive, made only where it is not there yet: the packages."""
    inputs = (Path(__file__).read_bytes(), zlib.ZLIB_RUNTIME_VERSION)
    packed = BUILD / f"packed-{site.name}-{digest(*inputs)}.zip"
    if not packed.exists():
        say("compressing the packages")
        with whole(packed) as temporary:
            pack_folder(site, temporary)
    remove_older(packed, f"packed-runtime-{sys.implementation.cache_tag}-*")
    return packed


def read_version(source: str) -> str:
    """The value of `__version__` in a module's source, which is not imported: its packages may be missing."""
    found = re.search(r'^__version__(?:: [^=\n]+)? = "([^"]+)"', source, re.MULTILINE)
    if found:
        return found[1]
    message = 'lancelot.py sets no __version__. Add a line such as __version__ = "1.0.0".'
    raise BuildError(message)


def make_own_folder(folder: Path) -> None:
    """Puts together what the project itself has in the archive: the module, its metadata and its licence."""
    source = (ROOT / "lancelot.py").read_bytes()
    version = read_version(source.decode())
    metadata = folder / f"lancelot-{version}.dist-info"
    (metadata / "licenses").mkdir(parents=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (metadata / "METADATA").write_text(METADATA.format(version=version) + readme, encoding="utf-8")
    (metadata / "licenses" / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
    (folder / "lancelot.py").write_bytes(source)
    compile_folder(folder)


def pack_with_shiv(packer: Path, own: Path, build_id: str, target: Path) -> None:
    """Makes shiv's archive of the project's own folder. Unpacked copies are told apart by `build_id`."""
    command = (
        *(sys.executable, "-s", "-m", "shiv", "--site-packages", str(own), "--reproducible"),
        *("--entry-point", "lancelot:main", "--build-id", build_id, "--output-file", str(target)),
    )
    failure = f"shiv could not pack the archive. Remove {BUILD} and run this again."
    run(command, environment=clean_environment(os.environ, PYTHONPATH=str(packer)), failure=failure)


def built_for() -> dict[str, object]:
    """What the starting code compares the Python with that it is started by."""
    return {"interpreter": bootstrap.interpreter(), "glibc": GLIBC if bootstrap.glibc_version() else None}


def own_contents(own: Path, shell: Path) -> dict[str, bytes]:
    """Everything in the archive but the packages, by name: shiv's part, bytecode, and the starting code."""
    with zipfile.ZipFile(shell) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    bytecode = {name: path for name, path in files_below(own).items() if name.endswith(".pyc")}
    contents |= {f"site-packages/{name}": path.read_bytes() for name, path in bytecode.items()}
    contents["__main__.py"] = (ROOT / "bootstrap.py").read_bytes()
    contents["built_for.json"] = json.dumps(built_for()).encode()
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


def unpacked_size(archive: Path) -> int:
    """How many bytes the files of an archive have once they are unpacked."""
    with zipfile.ZipFile(archive) as opened:
        return sum(entry.file_size for entry in opened.infolist())


# ---------------------------------------------------------------------------------------------- Papers
# What an administrator checks an archive by: the sums of the files, a bill of materials in CycloneDX's JSON
# (https://cyclonedx.org/docs/1.6/json/), and the licences of all that is inside. They hold no time and no place.


@dataclass(frozen=True)
class Package:
    """A package inside: what its metadata say of it, and the files of its licence."""

    name: str
    version: str
    licence: str
    files: tuple[Path, ...]


def read_package(metadata: Path) -> Package:
    """A package by its folder of metadata."""
    message = email.message_from_bytes((metadata / "METADATA").read_bytes())
    classified = [line.rpartition(" :: ")[2] for line in message.get_all("Classifier", []) if "License ::" in line]
    short = (message["License"] or "").strip() if len((message["License"] or "").strip().splitlines()) == 1 else ""
    licence = message["License-Expression"] or short or " or ".join(classified) or "see its licence file"
    named = re.compile("licen[sc]e|copying|notice", re.IGNORECASE)
    files = [path for path in metadata.rglob("*") if path.is_file() and named.match(path.name)]
    return Package(message["Name"], message["Version"], licence, tuple(sorted(files)))


def packages_in(site: Path) -> list[Package]:
    """The packages that are installed in a folder, by name."""
    found = [read_package(metadata) for metadata in site.glob("*.dist-info")]
    return sorted(found, key=lambda package: package.name.lower())


def bill_of_materials(packages: Iterable[Package], version: str) -> str:
    """The packages inside, their versions and licences, in CycloneDX 1.6."""
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{package.name.lower()}@{package.version}",
            "name": package.name,
            "version": package.version,
            "licenses": [{"license": {"name": package.licence}}],
            "purl": f"pkg:pypi/{package.name.lower()}@{package.version}",
        }
        for package in packages
    ]
    own: dict[str, object] = {"type": "application", "bom-ref": "lancelot", "name": "lancelot", "version": version}
    own["licenses"] = [{"license": {"id": LICENCE}}]
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": own}}
    return json.dumps(bill | {"components": components}, indent=1) + "\n"


def licence_texts(packages: Iterable[Package]) -> str:
    """The licences of all that is inside, one after the other."""
    parts = []
    for package in packages:
        texts = [path.read_text(encoding="utf-8", errors="replace").strip() for path in package.files]
        parts.append("\n\n".join([f"{'=' * 80}\n{package.name} {package.version}: {package.licence}", *texts]))
    return "\n\n".join(parts) + "\n"


def sums_of(files: Iterable[Path]) -> str:
    """The SHA-256 of files as `sha256sum --check` reads them."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files))


def write_papers(site: Path, version: str) -> None:
    """Puts the papers beside the archive."""
    packages = packages_in(site)
    bill, licences = ARCHIVE.with_name("lancelot.cdx.json"), ARCHIVE.with_name("LICENSES.txt")
    bill.write_text(bill_of_materials(packages, version), encoding="utf-8")
    licences.write_text(licence_texts(packages), encoding="utf-8")
    ARCHIVE.with_name("SHA256SUMS").write_text(sums_of((ARCHIVE, bill, licences)), encoding="utf-8")


# ---------------------------------------------------------------------------------------------- Bundle
# What clients install by a click: an MCPB bundle, a zip of the archive with a manifest that has the form for its
# settings (https://github.com/modelcontextprotocol/mcpb, MANIFEST.md), and the entry that the MCP Registry takes
# (https://github.com/modelcontextprotocol/registry, docs/reference/server-json). Both are made from the module's
# tables, which need none of its packages.

# What the specification calls current. 0.4 adds a type of server that this is not, and older clients refuse it.
MANIFEST_VERSION = "0.3"
MANIFEST_PLATFORMS = ("darwin", "linux", "win32")
REGISTRY_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
REGISTRY_NAME = "io.github.ayers-software-repair/lancelot"
REPOSITORY = "https://github.com/ayers-software-repair/lancelot"
REGISTRY_ENTRY = ARCHIVE.with_name("server.json")


@dataclass(frozen=True)
class FormField:
    """A setting that a client asks for when it installs the bundle, by its field in `lancelot.Settings`."""

    field: str
    title: str
    kind: str = "string"
    required: bool = False


FORM = (
    FormField("path", "LanceDB folder", kind="directory", required=True),
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
    entry |= {"description": plain_help(setting, titles) + default, "required": form_field.required}
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
        "args": [f"${{__dirname}}/{ARCHIVE.name}"],
        "env": {setting_of(one).name: f"${{user_config.{one.field}}}" for one in FORM},
        "platform_overrides": {"win32": {"command": "python"}},
    }


def compatibility() -> dict[str, object]:
    """The platform and the Python that the archive is for."""
    if sys.platform not in MANIFEST_PLATFORMS:
        message = f"Bundles are for {', '.join(MANIFEST_PLATFORMS)}, not {sys.platform}. Use {ARCHIVE.name} itself."
        raise BuildError(message)
    major, minor = sys.version_info[:2]
    return {"platforms": [sys.platform], "runtimes": {"python": f">={major}.{minor},<{major}.{minor + 1}"}}


def manifest() -> dict[str, object]:
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
        "server": {"type": "python", "entry_point": ARCHIVE.name, "mcp_config": start_entry()},
        "tools": [{"name": tool.name, "description": tool.description} for tool in always],
        "tools_generated": len(always) < len(lancelot.TOOLS),
        "compatibility": compatibility(),
        "user_config": {one.field: form_entry(one) for one in FORM},
    }


def bundle_name() -> str:
    """The bundle's file name, which tells apart all that the starting code tells apart."""
    kind = {"cpython": "cp"}.get(sys.implementation.name, sys.implementation.name)
    threads = "t" if "free-threading" in sys.version else ""
    system = platform.system().lower()
    system += "-musl" if system == "linux" and not bootstrap.glibc_version() else ""
    machine = bootstrap.machine().lower().replace(" ", "_")
    python = "{}{}{}{}".format(kind, *sys.version_info[:2], threads)
    return f"lancelot-{lancelot.__version__}-{python}-{system}-{machine}.mcpb"


def json_text(value: object) -> str:
    """JSON for a file that people read too."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_bundle(archive: Path, bundle: Path) -> None:
    """Packs an archive and its manifest, so that the same archive always gives the same bytes."""
    contents = {"manifest.json": json_text(manifest()).encode(), ARCHIVE.name: archive.read_bytes()}
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


def registry_entry(bundle: Path) -> dict[str, object]:
    """The server as the MCP Registry lists it, with the bundle where a release has it."""
    package = {
        "registryType": "mcpb",
        "identifier": f"{REPOSITORY}/releases/download/v{lancelot.__version__}/{bundle.name}",
        "version": lancelot.__version__,
        "fileSha256": hashlib.sha256(bundle.read_bytes()).hexdigest(),
        "transport": {"type": "stdio"},
        "environmentVariables": [registry_variable(setting) for setting in lancelot.SETTINGS],
    }
    return {
        "$schema": REGISTRY_SCHEMA,
        "name": REGISTRY_NAME,
        "title": "Lancelot",
        "description": SUMMARY,
        "version": lancelot.__version__,
        "repository": {"url": REPOSITORY, "source": "github"},
        "packages": [package],
    }


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
    Check("pytest", "pytest", ()),
)


def development_python(folders: Sequence[Path]) -> Path:
    """The Python of an environment that sees these folders and nothing else that is installed on the machine."""
    environment = BUILD / f"dev-{sys.implementation.cache_tag}"
    command = (sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment))
    failure = "No environment could be made. Install Python's venv module and run this again."
    run(command, environment=os.environ, failure=failure)
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = next(environment.rglob("site-packages"))
    (site / "lancelot.pth").write_text("".join(f"{folder}\n" for folder in folders), encoding="utf-8")
    return python


def failed_checks(python: Path, checks: Iterable[Check]) -> list[str]:
    """Runs all checks, their output unfiltered, and gives the names of those that failed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    failed = []
    for check in checks:
        say(f"checking with {check.name}")
        command = (str(python), "-m", check.module, *check.arguments)
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(check.name)
    return failed


# ---------------------------------------------------------------------------------------- Command line
# One function a command.


def build_archive() -> None:
    """Makes dist/lancelot.pyz and prints its path and sizes."""
    lock = LOCK.read_text(encoding="utf-8")
    packer = installed("packer", packer_entries(lock))
    site = installed("runtime", runtime_entries(lock))
    packed = packed_packages(site)
    say("packing the archive")
    own, shell = BUILD / "own", BUILD / "shell.pyz"
    with whole(own) as temporary:
        make_own_folder(temporary)
    build_id = digest(packed.read_bytes(), *(path.read_bytes() for path in files_below(own).values()))
    pack_with_shiv(packer, own, build_id, shell)
    join(packed, own_contents(own, shell), ARCHIVE)
    write_papers(site, read_version((ROOT / "lancelot.py").read_text(encoding="utf-8")))
    sizes = (ARCHIVE.stat().st_size / BYTES_PER_MB, unpacked_size(ARCHIVE) / BYTES_PER_MB)
    print("{}: {:.1f} MB, unpacked {:.1f} MB".format(ARCHIVE, *sizes))


def build_bundle() -> None:
    """Makes the archive, then its bundle and the registry's entry, and prints the bundle's path and size."""
    compatibility()
    build_archive()
    say("packing the bundle")
    bundle = ARCHIVE.with_name(bundle_name())
    write_bundle(ARCHIVE, bundle)
    REGISTRY_ENTRY.write_text(json_text(registry_entry(bundle)), encoding="utf-8")
    with ARCHIVE.with_name("SHA256SUMS").open("a", encoding="utf-8") as sums:
        sums.write(sums_of((bundle, REGISTRY_ENTRY)))
    print(f"{bundle}: {bundle.stat().st_size / BYTES_PER_MB:.1f} MB")


def check_project() -> None:
    """Makes the archive, then runs every check; raises where one failed."""
    build_archive()
    runtime = runtime_entries(LOCK.read_text(encoding="utf-8"))
    development = development_entries(DEV_LOCK.read_text(encoding="utf-8"), runtime)
    folders = (ROOT, installed("development", development), installed("runtime", runtime))
    failed = failed_checks(development_python(folders), CHECKS)
    if failed:
        message = f"Failed: {', '.join(failed)}. Mend what is said above and run this again."
        raise BuildError(message)


def make_locks() -> None:
    """Resolves the requirements anew into both lock files."""
    say("installing the resolver")
    with whole(BUILD / "uv") as folder:
        pip_install(UV, folder)
    uv = BUILD / "uv" / "bin" / ("uv.exe" if os.name == "nt" else "uv")
    resolve(uv, LOCK, "--group", "build", "pyproject.toml")
    resolve(uv, DEV_LOCK, "--group", "dev", "--constraints", LOCK.name)


COMMANDS: Mapping[str, Callable[[], None]] = {
    "archive": build_archive,
    "bundle": build_bundle,
    "check": check_project,
    "lock": make_locks,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives the exit code: 0 well, 1 a failure, 2 wrong usage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS), default="archive")
    command = parser.parse_args(argv).command
    try:
        COMMANDS[command]()
    except BuildError as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"{error}. See that {ROOT} can be written and has 3 GB free, then run this again.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
