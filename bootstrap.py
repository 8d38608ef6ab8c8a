"""The first code that runs when the archive is started: it lies in there as `__main__.py`.

It refuses in one sentence what could only fail later and obscurely, unpacks the archive on its first
start, and hands over to shiv, which imports the packages and calls `lancelot.main`.

Any Python may be told to start the archive, and must be able to read this file to say what is wrong:
it keeps to the syntax that Python 2.7 and 3 share. Nothing here may write to stdout, which belongs to
the protocol. What is imported inside a function is imported after `isolate`.
"""

import os
import sys


def is_standard(folder):
    """Whether a folder of `sys.path` holds the standard library."""
    library = os.path.dirname(os.__file__)
    within = (folder + os.sep).startswith(library + os.sep) and "-packages" not in folder[len(library) :]
    zipped = "python%d%d.zip" % sys.version_info[:2]
    windows = os.name == "nt" and folder == sys.base_exec_prefix
    return within or windows or os.path.basename(folder) in ("lib-dynload", "DLLs", zipped)


def isolate():
    """Takes everything but the archive and Python's own library off `sys.path`.

    PYTHONPATH comes before the packages of the archive and would replace them; the packages of the
    machine come after, and an optional import would find one of a version that nobody has tried.
    """
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
    """The version of glibc as two numbers; None where there is another C library, such as musl."""
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    except (AttributeError, IndexError, OSError, ValueError):
        return None
    return tuple(int(part) for part in version.split(".")[:2])


def built_for():
    """What `build.py` wrote down about the Python that this archive is for."""
    import json

    return json.loads(__loader__.get_data("built_for.json").decode())


def refuse(sentence):
    """Ends the program with exit code 1 and a sentence on stderr."""
    sys.exit("%s %s" % (os.path.basename(sys.argv[0]), sentence))


def check_interpreter(expected, found):
    """Refuses a Python that the compiled modules inside cannot be loaded by."""
    if found != expected:
        refuse(
            "is for %s, but was started by %s: start it with the former, or get the archive made for the latter."
            % (expected, found)
        )


def check_glibc(needed, found):
    """Refuses a C library that is not the one the compiled modules inside need, or is older."""
    if needed and (found or (0, 0)) < tuple(needed):
        has = "glibc %d.%d" % found if found else "another C library"
        refuse(
            "needs glibc %d.%d or newer, but this system has %s: use it on one that has it." % (tuple(needed) + (has,))
        )


def unpacked_folder():
    """Where shiv unpacks this archive; raises RuntimeError where there is no home folder."""
    import types

    import _bootstrap

    environment = _bootstrap.Environment.from_json(__loader__.get_data("environment.json").decode())
    archive = types.SimpleNamespace(filename=sys.argv[0])
    return _bootstrap.cache_path(archive, environment.root, environment.build_id)


def unfinished(folder):
    """Where shiv unpacks what it then renames to `folder`: it stays behind where the process is killed meanwhile."""
    return folder.parent / (folder.name + ".tmp")


def check_space(archive, folder):
    """Raises OSError where the disk cannot hold what is inside, unless that is unpacked at this moment or was just now."""
    import shutil

    needed = sum(entry.file_size for entry in archive.infolist())
    free = shutil.disk_usage(str(folder.parent)).free
    # In this order: the one becomes the other.
    if free < needed and not unfinished(folder).exists() and not folder.exists():
        raise OSError("%d MB are free and %d MB needed" % (free / 1e6, needed / 1e6))


def check_owner(path, found):
    """Refuses a file or folder that another user made or can write to: what runs from it runs as this user."""
    import stat

    if found.st_uid not in (os.getuid(), 0) or stat.S_ISLNK(found.st_mode):
        why = "it is a link" if stat.S_ISLNK(found.st_mode) else "it belongs to another user"
    elif found.st_mode & 0o022:
        why = "others can write to it"
    else:
        return
    refuse("does not start from %s, since %s: remove it, or set SHIV_ROOT to a folder of your own." % (path, why))


def check_owners(folder):
    """Refuses to start from, or to unpack to, what users other than this one and the administrator could have put there."""
    root = folder.parent
    if not hasattr(os, "getuid") or not root.exists():
        return  # Windows keeps the folders of users apart by itself
    if "SHIV_ROOT" not in os.environ and root.stat().st_uid == os.getuid() and root.stat().st_mode & 0o022:
        root.chmod(root.stat().st_mode & ~0o022)  # earlier versions left it as the umask had it
    check_owner(root, root.stat())
    # shiv follows a link in place of its lock, and empties the file that it leads to.
    for path in (folder, folder / "site-packages", unfinished(folder), root / (".%s_lock" % folder.name)):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        check_owner(path, found)


def unpack_to(folder):
    """Unpacks into a folder, of which nothing is to be seen until it is whole, and nothing is left where that fails."""
    import shutil
    import tempfile

    import _bootstrap

    folder.parent.mkdir(parents=True, exist_ok=True)
    # On Windows shiv waits for ever for its lock in a folder that cannot be written.
    tempfile.TemporaryFile(dir=str(folder.parent)).close()
    with _bootstrap.current_zipfile() as archive:
        check_space(archive, folder)
        try:
            _bootstrap.extract_site_packages(archive, folder)
        except BaseException:
            shutil.rmtree(str(unfinished(folder)), ignore_errors=True)
            raise


def lock(folder, kind):
    """Locks a folder for as long as this process lives; False where others hold a lock that excludes it.

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
    """Removes an unpacked copy unless somebody runs from it; True where it is gone."""
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
    """Removes what starts and removals that were killed left beside a copy; nobody unpacks for an hour."""
    import shutil
    import time

    name = folder.name.rpartition("_")[0]
    found = set(folder.parent.glob(name + "_*.tmp")) | set(folder.parent.glob("lancelot*_*.tmp"))
    halves = [path for path in found if path.stat().st_mtime < time.time() - 3600]
    for path in halves + list(folder.parent.glob(".*_*.removed")):
        shutil.rmtree(str(path), ignore_errors=True)


def make_room(folder):
    """Removes what nobody needs beside a copy; of other versions, half a gigabyte each, the last one is kept."""
    try:
        for path in copies(folder)[1:]:
            remove_copy(path)
        remove_leftovers(folder)
    except OSError:
        pass  # another start removes the same


def is_damaged(folder):
    """Whether an unpacked copy is there that cannot be started; `folder` is nothing or whole where nobody removed files."""
    return folder.exists() and not (folder / "site-packages" / "lancelot.py").exists()


def unpack_anew(folder):
    """Unpacks into a folder, instead of what is left there of a damaged copy."""
    if is_damaged(folder) and not remove_copy(folder) and is_damaged(folder):
        refuse("is damaged where it was unpacked: end what runs from %s, and remove that folder." % folder)
    unpack_to(folder)
    make_room(folder)


def unpack():
    """Unpacks the packages where that was not done yet; shiv would, but with a traceback where it cannot."""
    import zipfile
    import zlib

    root = os.environ.get("SHIV_ROOT", "~/.shiv")
    try:
        folder = unpacked_folder()
        check_owners(folder)
        if not (folder / "site-packages" / "lancelot.py").exists():
            mask = os.umask(0o077)
            unpack_anew(folder)
            os.umask(mask)
        lock(folder, "LOCK_SH")
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, RuntimeError) as error:
        refuse(
            "cannot be unpacked into %s (%s): set SHIV_ROOT to a folder that can be written and has 500 MB free."
            % (root, error)
        )
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        refuse("is damaged (%s): get it anew." % error)


def verify():
    """Compares the unpacked copy with the archive by the modules inside the archive: the copy's own may be the damage."""
    sys.path.insert(0, os.path.join(sys.argv[0], "site-packages"))
    import contextlib

    import lancelot
    import lancelot_setup

    with contextlib.suppress(RuntimeError):  # without a home folder there is no copy
        lancelot_setup.UNPACKED = unpacked_folder() / "site-packages"
    sys.exit(lancelot.main())


def main():
    """Starts Lancelot, or says why it cannot."""
    isolate()
    target = built_for()
    check_interpreter(target["interpreter"], interpreter())
    check_glibc(target["glibc"], glibc_version())
    if sys.argv[1:2] == ["verify"]:
        verify()
    unpack()

    import _bootstrap

    _bootstrap.bootstrap()


if __name__ == "__main__":
    main()
