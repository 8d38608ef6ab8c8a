import shutil
import subprocess
import sys
from pathlib import Path


def other_pythons() -> dict[str, str]:
    """Other Pythons of this machine by version: those on PATH, and those installed beside this one."""
    named = (shutil.which(f"python{version}") for version in ("2.7", *(f"3.{minor}" for minor in range(6, 16))))
    beside = Path(sys.base_prefix).parent.glob("*/bin/python")
    tell = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    found = {}
    for python in (*filter(None, named), *map(str, beside)):
        told = subprocess.run([python, "-c", tell], capture_output=True, text=True, check=False, timeout=30)
        if told.returncode == 0:
            found[told.stdout.strip()] = python
    found.pop("{}.{}".format(*sys.version_info[:2]), None)
    return found
