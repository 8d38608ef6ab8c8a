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

    PYTHONPATH comes before the packages of the archive and would replace them; the packages of the
    machine come after, and an optional import would find one of a version that nobody has tried.
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


def machine():
    """The processor that Python was built for, which can differ from the one it runs on."""
    import platform

    # Windows on ARM runs Pythons built for either; only this text tells which.
    name = next((name for name in ("AMD64", "ARM64") if "(%s)" % name in sys.version), platform.machine())
    return name if sys.maxsize > 2**32 else name + " in 32 bits"


def interpreter():
    """The kind of Python that compiled modules are bound to, in words such as `CPython 3.11 on Linux x86_64`."""
    import platform

    threads = " free-threaded" if "free-threading" in sys.version else ""
    python = "%s %d.%d%s" % ((platform.python_implementation(),) + sys.version_info[:2] + (threads,))
    return "%s on %s %s" % (python, platform.system(), machine())


def glibc_version():
    """Return the version of glibc as two numbers, or None if there is another C library, such as musl."""
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    except (AttributeError, IndexError, OSError, ValueError):
        return None
    return tuple(int(part) for part in version.split(".")[:2])


def refuse(sentence):
    """End the program with exit code 1 and a sentence on stderr."""
    sys.exit("%s %s" % (os.path.basename(sys.argv[0]), sentence))


def check_machine():
    """Refuse a Python and a C library that the compiled modules inside are not for, as `build.py` wrote it down."""
    import json

    target = json.loads(__loader__.get_data("built_for.json").decode())
    if interpreter() != target["interpreter"]:
        refuse(
            "is for %s, but was started by %s: start it with the former, or get the archive made for the latter."
            % (target["interpreter"], interpreter())
        )
    needed, found = target["glibc"], glibc_version()
    if needed and (found or (0, 0)) < tuple(needed):
        has = "glibc %d.%d" % found if found else "another C library"
        refuse(
            "needs glibc %d.%d or newer, but this system has %s: use it on one that has it." % (tuple(needed) + (has,))
        )


def unpacked_folder():
    """Where shiv unpacks this archive; raises RuntimeError if there is no home folder."""
    import types

    import _bootstrap

    environment = _bootstrap.Environment.from_json(__loader__.get_data("environment.json").decode())
    archive = types.SimpleNamespace(filename=sys.argv[0])
    return _bootstrap.cache_path(archive, environment.root, environment.build_id)


def unfinished(folder):
    """Where shiv unpacks what it then renames to `folder`: it stays behind if the process is killed meanwhile."""
    return folder.parent / (folder.name + ".tmp")


def check_owners(folder):
    """Refuse to start from, or to unpack to, what users other than this one and the administrator could have put there."""
    import stat

    root = folder.parent
    if not hasattr(os, "getuid") or not root.exists():
        return  # Windows keeps the folders of users apart by itself
    if "SHIV_ROOT" not in os.environ and root.stat().st_uid == os.getuid() and root.stat().st_mode & 0o022:
        root.chmod(root.stat().st_mode & ~0o022)  # earlier versions left it as the umask had it
    # shiv follows a link in place of its lock, and empties the file that it leads to.
    lock_file = root / (".%s_lock" % folder.name)
    for path in (root.resolve(), folder, folder / "site-packages", unfinished(folder), lock_file):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(found.st_mode):
            why = "it is a link"
        elif found.st_uid not in (os.getuid(), 0):
            why = "it belongs to another user"
        elif found.st_mode & 0o022:
            why = "others can write to it"
        else:
            continue
        refuse("does not start from %s, since %s: remove it, or set SHIV_ROOT to a folder of your own." % (path, why))


def lock(folder, kind):
    """Lock a folder for as long as this process lives; return False if others hold a lock that excludes it.

    `kind` is `LOCK_SH`, which those hold that run from the folder, or `LOCK_EX`. Where there are no such locks, as on
    Windows, which itself keeps what runs from being removed, it is as if nobody held one.
    """
    try:
        import fcntl

        fcntl.flock(os.open(str(folder), os.O_RDONLY), getattr(fcntl, kind) | fcntl.LOCK_NB)
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

    if not lock(path, "LOCK_EX"):
        return False
    hidden = path.parent / ("." + path.name + ".removed")
    try:
        path.rename(hidden)  # in one step: nobody starts from half a copy
    except OSError:
        return False
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
    """Unpack into a folder, of which nothing is to be seen until it is whole, and nothing is left if that fails.

    Then remove what nobody needs beside it; of other versions, half a gigabyte each, the last one is kept.
    """
    import shutil
    import tempfile

    import _bootstrap

    folder.parent.mkdir(parents=True, exist_ok=True)
    # On Windows shiv waits for ever for its lock in a folder that cannot be written.
    tempfile.TemporaryFile(dir=str(folder.parent)).close()
    with _bootstrap.current_zipfile() as archive:
        try:
            _bootstrap.extract_site_packages(archive, folder)
        except BaseException:
            shutil.rmtree(str(unfinished(folder)), ignore_errors=True)
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

    def is_damaged():  # somebody removed files; otherwise a copy is whole or not there
        return folder.exists() and not module.exists()

    try:
        folder = unpacked_folder()
        module = folder / "site-packages" / "lancelot.py"
        check_owners(folder)
        if not module.exists():
            mask = os.umask(0o077)
            if is_damaged() and not remove_copy(folder) and is_damaged():
                refuse("is damaged where it was unpacked: end what runs from %s, and remove that folder." % folder)
            unpack_to(folder)
            os.umask(mask)
        lock(folder, "LOCK_SH")
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, RuntimeError) as error:
        refuse(
            "cannot be unpacked into %s (%s): set SHIV_ROOT to a folder that can be written and has 500 MB free."
            % (os.environ.get("SHIV_ROOT", "~/.shiv"), error)
        )
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
