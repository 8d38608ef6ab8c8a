"""The Node.js clients and validators that tests run, installed once for a lock file."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import PROJECT, TESTS, child_environment

PACKAGES = TESTS / "clients"
"""The Node.js packages. Its `overrides` keep out a version of vite that names a package which no registry has: with that
in its lock file `npm ci` refuses to start."""
OLDEST_NODE = 20
INSTALL_SECONDS = 180
SECONDS = 90
NO_NETWORK = ("EAI_AGAIN", "ECONNREFUSED", "ENETUNREACH", "ENOTFOUND", "ETIMEDOUT", "ERR_SOCKET_TIMEOUT")


def installed_clients() -> Path:
    """A folder with the Node.js packages, installed once for a lock file; no script of a package is run."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    if os.name == "nt":
        pytest.skip("npm and the inspector are scripts of a shell here, which no test starts")
    version = run_node(["node", "--version"], cwd=PACKAGES).strip()
    if int(version.lstrip("v").partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node {version} is too old for these clients: {OLDEST_NODE} is needed")
    lock = (PACKAGES / "package-lock.json").read_bytes() + (PACKAGES / "package.json").read_bytes()
    folder = PROJECT / "build" / f"clients-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not folder.exists():
        install_node_clients(folder)
    for script in PACKAGES.glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


def install_node_clients(folder: Path) -> None:
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.copytree(PACKAGES, unfinished, ignore=shutil.ignore_patterns("node_modules"))
    command = ["npm", "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=unfinished, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    if done.returncode:
        shutil.rmtree(unfinished)
        unreachable = next((reason for reason in NO_NETWORK if reason in done.stderr), None)
        if unreachable:
            pytest.skip(f"npm cannot reach its registry: {unreachable}")
        pytest.fail(f"npm ci failed:\n{done.stderr[-2000:]}")
    unfinished.rename(folder)


def run_node(command: Sequence[str | Path], *, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
