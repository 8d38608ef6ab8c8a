"""Accounts and machines that lack something, as namespaces of Linux make them; None where that is not permitted."""

import functools
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import wire

Before = tuple[str, ...]
"""What stands before a command that is to run there."""


@functools.cache
def unshared(*options: str) -> Before | None:
    """A namespace of its own for each of the options of unshare(1), as whichever user may have it."""
    for user in ((), ("--map-root-user",)):
        before = ("unshare", *user, *options)
        if (
            shutil.which("unshare")
            and not subprocess.run([*before, "true"], capture_output=True, check=False, timeout=30).returncode
        ):
            return before
    return None


def without_network() -> Before | None:
    """A machine without any network interface that is up."""
    return unshared("--net")


def without_account() -> Before | None:
    """A user that the machine does not know, without a home and without a network, who is held to the modes of files."""
    return unshared("--net", "--user", "--map-user=12345", "--map-group=12345")


def with_mounts(script: str, *values: str) -> Before | None:
    """A machine where a shell script mounted something first; `$1` and so on are its values."""
    before = unshared("--mount")
    count = len(values)
    return before and (*before, "sh", "-e", "-c", f'{script}\nshift {count}; exec "$@"', "sh", *values)


def run_there(
    before: Before, *words: str, environ: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command of Lancelot there; it never ends with a traceback."""
    done = subprocess.run(
        [*before, *wire.COMMAND, *words],
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return done
