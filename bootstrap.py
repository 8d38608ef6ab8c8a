"""The first code that runs when the archive is started: it lies in there as `__main__.py`.

It refuses in one sentence what could only fail later and obscurely, unpacks the archive on its first
start, and hands over to shiv, which imports the packages and calls `lancelot.main`.

Any Python may be told to start the archive, and must be able to read this file to say what is wrong:
it keeps to the syntax that Python 2.7 and 3 share. Nothing here may write to stdout, which belongs to
the protocol. What is imported inside a function is imported after `isolate`.
"""

import os
import sys


def isolate():
    """Take everything but the archive and Python's own library off `sys.path`.

    PYTHONPATH would replace packages of the archive, and an optional import would find one of the machine.
    """
    library = os.path.dirname(os.__file__)

    def is_standard(folder):
        within = (folder + os.sep).startswith(library + os.sep) and "-packages" not in folder[len(library) :]
        zipped = "python%d%d.zip" % sys.version_info[:2]
        windows = os.name == "nt" and folder == sys.base_exec_prefix
        return within or windows or os.path.basename(folder) in ("lib-dynload", "DLLs", zipped)

    sys.path[1:] = [folder for folder in sys.path[1:] if is_standard(folder)]
    # The bytecode that was shipped is looked for beside its source only where this is not set.
    sys.pycache_prefix = None


def interpreter():
    """The kind of Python that compiled modules are bound to, in words such as `CPython 3.11 on Linux x86_64`."""
    import platform

    threads = " free-threaded" if "free-threading" in sys.version else ""
    python = "%s %d.%d%s" % ((platform.python_implementation(),) + sys.version_info[:2] + (threads,))
    # Windows on ARM runs Pythons built for either processor; only this text tells which.
    machine = next((name for name in ("AMD64", "ARM64") if "(%s)" % name in sys.version), platform.machine())
    bits = "" if sys.maxsize > 2**32 else " in 32 bits"
    return "%s on %s %s%s" % (python, platform.system(), machine, bits)


def refuse(sentence):
    """End the program with exit code 1 and a sentence on stderr."""
    sys.exit("%s %s" % (os.path.basename(sys.argv[0]), sentence))


def check_machine():
    """Refuse a Python and a C library that the compiled modules inside are not for, as `build.py` wrote it down."""
    import json
    import platform

    target = json.loads(__loader__.get_data("built_for.json").decode())
    if interpreter() != target["interpreter"]:
        sentence = "is for %s, but was started by %s: start it with the former, or get the archive made for the latter."
        refuse(sentence % (target["interpreter"], interpreter()))
    library, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2]) if library == "glibc" else (0, 0)
    if target["glibc"] and numbers < tuple(target["glibc"]):
        has = "%s %s" % (library, version) if library else "another C library"
        needed = "%d.%d" % tuple(target["glibc"])
        refuse("needs glibc %s or newer, but this system has %s: use it on one that has it." % (needed, has))


def unpacked_folder():
    """Where shiv unpacks this archive; raises RuntimeError if there is no home folder."""
    import types

    import _bootstrap

    environment = _bootstrap.Environment.from_json(__loader__.get_data("environment.json").decode())
    archive = types.SimpleNamespace(filename=sys.argv[0])
    return _bootstrap.cache_path(archive, environment.root, environment.build_id)


def check_owners(folder):
    """Refuse to start from, or to unpack to, what users other than this one and the administrator could have put there."""
    import stat

    root = folder.parent
    if not hasattr(os, "getuid") or not root.exists():
        return  # Windows keeps the folders of users apart by itself
    if "SHIV_ROOT" not in os.environ and root.stat().st_uid == os.getuid() and root.stat().st_mode & 0o022:
        root.chmod(root.stat().st_mode & ~0o022)  # earlier versions left it as the umask had it
    # shiv follows a link in place of its lock, and empties the file that it leads to.
    beside = (folder.with_name(folder.name + ".tmp"), folder.with_name(".%s_lock" % folder.name))
    for path in (root.resolve(), folder, folder / "site-packages") + beside:
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        link, foreign = stat.S_ISLNK(found.st_mode), found.st_uid not in (os.getuid(), 0)
        if link or foreign or found.st_mode & 0o022:
            why = "it is a link" if link else "it belongs to another user" if foreign else "others can write to it"
            remedy = "remove it, or set SHIV_ROOT to a folder of your own."
            refuse("does not start from %s, since %s: %s" % (path, why, remedy))


LOCKED = {}  # the open folder of each lock: a second one of the same process would exclude it too


def lock(folder, kind):
    """Lock a folder for as long as this process lives; return False if others hold a lock that excludes it.

    `kind` is `LOCK_SH`, which those hold that run from it, or `LOCK_EX`. Windows itself keeps what runs from removal.
    """
    try:
        import fcntl

        if folder not in LOCKED:
            LOCKED[folder] = os.open(str(folder), os.O_RDONLY)
        fcntl.flock(LOCKED[folder], getattr(fcntl, kind) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def copies(folder):
    """The other unpacked copies of Lancelot beside this one, the newest first."""
    found = [path.parent.parent for path in folder.parent.glob("*_*/site-packages/lancelot.py")]
    others = [path for path in found if path != folder and not path.name.endswith((".tmp", ".removed"))]
    return sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)


def remove_copy(path):
    """Remove an unpacked copy unless somebody runs from it; return whether it is gone."""
    import shutil

    hidden = path.with_name("." + path.name + ".removed")
    try:
        if not lock(path, "LOCK_EX"):
            return False
        path.rename(hidden)  # in one step: nobody starts from half a copy
        LOCKED.pop(path, None)  # of what is there under this name next
    except OSError:
        return not path.exists()
    shutil.rmtree(str(hidden), ignore_errors=True)
    return True


def remove_leftovers(folder):
    """Remove what starts and removals that were killed left beside a copy; nobody unpacks for an hour."""
    import shutil
    import time

    found = folder.parent.glob("lancelot*_*.tmp")
    halves = [path for path in found if path.stat().st_mtime < time.time() - 3600]
    for path in halves + list(folder.parent.glob(".*_*.removed")):
        shutil.rmtree(str(path), ignore_errors=True)


def unpack_to(folder):
    """Unpack into a folder that is seen only when it is whole; then remove older copies but the last one."""
    import shutil
    import tempfile

    import _bootstrap

    folder.parent.mkdir(parents=True, exist_ok=True)
    # On Windows shiv waits for ever for its lock in a folder that cannot be written.
    tempfile.TemporaryFile(dir=str(folder.parent)).close()
    try:
        with _bootstrap.current_zipfile() as archive:
            _bootstrap.extract_site_packages(archive, folder)
    except BaseException:
        shutil.rmtree(str(folder) + ".tmp", ignore_errors=True)
        raise
    try:
        for path in copies(folder)[1:]:
            remove_copy(path)
        remove_leftovers(folder)
    except OSError:
        pass  # another start removes the same


def unpack():
    """Unpack the packages if that was not done yet; shiv would, but with a traceback where it cannot."""
    import zipfile
    import zlib

    try:
        folder = unpacked_folder()
        check_owners(folder)
        module = folder / "site-packages" / "lancelot.py"
        if not module.exists():
            mask = os.umask(0o077)
            # A copy is whole or not there, unless somebody removed files from it.
            if folder.exists() and not module.exists() and not remove_copy(folder):
                refuse("is damaged where it was unpacked: end what runs from %s, and remove that folder." % folder)
            unpack_to(folder)
            os.umask(mask)
        lock(folder, "LOCK_SH")
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, RuntimeError) as error:
        where, remedy = os.environ.get("SHIV_ROOT", "~/.shiv"), "a folder that can be written and has 600 MB free"
        refuse("cannot be unpacked into %s (%s): set SHIV_ROOT to %s." % (where, error, remedy))
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        refuse("is damaged (%s): get it anew." % error)


def verify():
    """Compare the unpacked copy with the archive by the modules inside the archive: the copy's own may be the damage."""
    sys.path.insert(0, os.path.join(sys.argv[0], "site-packages"))
    import contextlib

    import lancelot
    import lancelot_setup

    with contextlib.suppress(RuntimeError):  # without a home folder there is no copy
        lancelot_setup.UNPACKED = unpacked_folder() / "site-packages"
    sys.exit(lancelot.main())


def main():
    """Start Lancelot, or say why it cannot."""
    isolate()
    check_machine()
    if sys.argv[1:2] == ["verify"]:
        verify()
    unpack()
    import _bootstrap

    _bootstrap.bootstrap()


if __name__ == "__main__":
    main()
