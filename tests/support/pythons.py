import os
import shutil
import subprocess
import sys
from pathlib import Path

import build

# The built file that is tested, and the Python that starts it: those that `build.py test` names, or this machine's.
ARCHIVE = Path(os.environ.get(build.TESTED_ARCHIVE, build.ARCHIVE))
PYTHON = os.environ.get(build.TESTED_PYTHON, sys.executable)
TELL = "import sys; print('.'.join(map(str, sys.version_info[:2])))"


def version_of(python: str) -> str | None:
    """The minor version of a Python; None where it does not start."""
    told = subprocess.run([python, "-c", TELL], capture_output=True, text=True, check=False, timeout=30)
    return told.stdout.strip() if told.returncode == 0 else None


def other_pythons(python: str = sys.executable) -> dict[str, str]:
    """Other Pythons of this machine by version: those on PATH, and those installed beside this one."""
    named = (shutil.which(f"python{version}") for version in ("2.7", *(f"3.{minor}" for minor in range(6, 16))))
    beside = Path(sys.base_prefix).parent.glob("*/bin/python")
    found = {version_of(path): path for path in (*filter(None, named), *map(str, beside))}
    return {version: path for version, path in found.items() if version not in (None, version_of(python))}
