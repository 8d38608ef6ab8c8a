"""Which files of a folder are indexed, and why others are left out."""

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lancelot
import lancelot_index
import lancelot_reading


@pytest.fixture
def make_files(tmp_path: Path) -> Callable[..., Path]:
    """A folder of files by their relative path: `make_files({"a/b.md": "text"})`."""

    def make(files: dict[str, str]) -> Path:
        root = tmp_path / "files"
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return root

    return make


def found(root: Path, **options: Any) -> list[str]:
    """The relative paths that are found, in their order."""
    listing = lancelot_index.FileFinder(root, **options).find()
    return [file.path.relative_to(root).as_posix() for file in listing.files]


def ignored(root: Path, **options: tuple[str, ...]) -> dict[str, int]:
    return dict(lancelot_index.FileFinder(root, **options).find().ignored)


def test_files_are_found_in_the_order_of_their_paths(make_files: Callable[..., Path]) -> None:
    root = make_files({"b.md": "b", "a/z.txt": "z", "a/a.txt": "a", "c/d/e.py": "e"})
    assert found(root) == ["a/a.txt", "a/z.txt", "b.md", "c/d/e.py"]


def test_hidden_files_and_folders_are_left_out_and_counted(make_files: Callable[..., Path]) -> None:
    root = make_files({".env": "KEY=1", ".git/config": "x", "a/.hidden/b.txt": "b", "c.txt": "c"})
    assert found(root) == ["c.txt"]
    assert ignored(root) == {"hidden": 3}


def test_an_ignore_file_holds_for_its_folder_and_those_below(make_files: Callable[..., Path]) -> None:
    root = make_files(
        {"a/.gitignore": "*.log\n/only-here.txt\n", "a/x.log": "", "a/b/y.log": "", "z.log": "", "a/only-here.txt": ""}
        | {"a/b/only-here.txt": ""}
    )
    assert found(root) == ["a/b/only-here.txt", "z.log"]


def test_the_ignore_file_of_the_deepest_folder_decides(make_files: Callable[..., Path]) -> None:
    root = make_files({".gitignore": "*.txt\n", "a/.gitignore": "!kept.txt\n", "a/kept.txt": "", "b/gone.txt": ""})
    assert found(root) == ["a/kept.txt"]


def test_a_file_below_an_ignored_folder_cannot_be_taken_back(make_files: Callable[..., Path]) -> None:
    root = make_files({".gitignore": "build/\n!build/kept.txt\n", "build/kept.txt": "", "a.txt": ""})
    assert found(root) == ["a.txt"]
    assert ignored(root) == {"hidden": 1, "ignored by pattern": 1}


def test_packages_and_bytecode_are_left_out_unless_an_ignore_file_takes_them_back(
    make_files: Callable[..., Path],
) -> None:
    files = {"node_modules/a/index.js": "", "__pycache__/b.txt": "", "db/t.lance/data.txt": "", "c.js": ""}
    assert found(make_files(files)) == ["c.js"]
    assert found(make_files({".gitignore": "!node_modules/"})) == ["c.js", "node_modules/a/index.js"]


def test_an_own_ignore_file_comes_after_that_of_git(make_files: Callable[..., Path]) -> None:
    root = make_files({".gitignore": "*.csv\n", ".lancelotignore": "!*.csv\n*.tmp\n", "a.csv": "", "b.tmp": ""})
    assert found(root) == ["a.csv"]


def test_patterns_of_the_command_include_and_exclude(make_files: Callable[..., Path]) -> None:
    root = make_files({"a.md": "", "b.txt": "", "docs/c.md": "", "docs/old/d.md": ""})
    assert found(root, include=("*.md",), exclude=("old/",)) == ["a.md", "docs/c.md"]
    assert ignored(root, include=("*.md",), exclude=("old/",)) == {"not included": 1, "ignored by pattern": 1}
    assert found(root, include=("/docs/",)) == ["docs/c.md", "docs/old/d.md"]
    assert found(root, include=("/docs/", "!d.md ")) == ["docs/c.md"]


def test_a_line_that_is_no_pattern_is_passed_over(make_files: Callable[..., Path]) -> None:
    assert found(make_files({".gitignore": "!\n*.log\n", "a.log": "", "b.txt": ""})) == ["b.txt"]


def test_links_are_left_out_and_a_circle_ends(make_files: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("secret", encoding="utf-8")
    root = make_files({"a/b.txt": "b"})
    (root / "a" / "circle").symlink_to(root)
    (root / "out.txt").symlink_to(tmp_path / "outside.txt")
    (root / "dangling").symlink_to(root / "nothing")
    assert found(root) == ["a/b.txt"]
    assert ignored(root) == {"symbolic link": 3}


def test_what_is_no_regular_file_is_never_opened(make_files: Callable[..., Path]) -> None:
    root = make_files({"a.txt": "a"})
    os.mkfifo(root / "pipe.txt")
    assert found(root) == ["a.txt"]
    assert ignored(root) == {"no regular file": 1}


def test_a_name_that_is_no_utf8_is_told_apart_and_can_be_stored(make_files: Callable[..., Path]) -> None:
    root = make_files({"a.txt": "a"})
    for name in (b"caf\xe9.txt", b"caf\xe8.txt", b"two\nlines.txt"):
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_text("x", encoding="utf-8")
    sources = [file.source for file in lancelot_index.FileFinder(root).find().files]
    assert len(set(sources)) == 4
    assert all(source.encode() for source in sources)
    assert f"{root}/caf\\xe9.txt" in sources
    assert f"{root}/two\nlines.txt" in sources


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's identity")
def test_a_folder_that_cannot_be_listed_keeps_its_files_in_the_table(make_files: Callable[..., Path]) -> None:
    root = make_files({"a.txt": "a", "locked/b.txt": "b"})
    (root / "locked").chmod(0o700)
    for folder in (root, *root.parents[:4]):
        folder.chmod(folder.stat().st_mode | 0o055)
    program = (
        f"import os, sys; sys.path.insert(0, {str(Path(lancelot.__file__).parent)!r}); import lancelot, lancelot_index, pathlib\n"
        f"os.setuid(65534); found = lancelot_index.FileFinder(pathlib.Path({str(root)!r})).find()\n"
        f"print([f.path.name for f in found.files], found.failed, found.may_hold({str(root / 'locked' / 'b.txt')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    expected = {str(root / "locked"): "the folder cannot be listed (Permission denied)"}
    assert done.stdout.strip() == f"['a.txt'] {expected} True", done.stderr


# What git ignores


TREE = ("a", "ab", "a b", "a ", "#x", "!x", "[a]", "x.md", "x.txt", "d/a", "d/x.md", "d/e/a", "d/e/x.txt", "z/d/a")


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        pytest.param(b"*\n!*/\n!*.md\n", "x.md d/x.md", id="all but one kind"),
        pytest.param(b"\xef\xbb\xbfx.md\n", [name for name in TREE if "x.md" not in name], id="byte-order mark"),
        pytest.param(b"*\r\n!/x.*\r\n!d/\r\n", "x.md x.txt", id="CRLF"),
        pytest.param(b"*\n!/a\n!/d\n!d/e\n!d/e/*.txt\n", "a d/e/x.txt", id="anchored"),
        pytest.param(b"/*\n!/z\n", "z/d/a", id="leading slash"),
        pytest.param(b"*\n!*/\n!d/**/a\n", "d/a d/e/a", id="** between"),
        pytest.param(b"*\n!*/\n!**/e/*\n", "d/e/a d/e/x.txt", id="** before"),
        pytest.param(b"d/**\n[!d]\n?[b ]*\n*.*\n", ["#x", "!x", "[a]"], id="sets"),
        pytest.param(b"*\n!a \n", "a", id="space at the end"),
        pytest.param(b"*\n!a\\ \n", ["a "], id="escaped space"),
        pytest.param(b"*\n!\\#x\n!\\!x\n!\\[a]\n#a\n", ["#x", "!x", "[a]"], id="escaped characters"),
        pytest.param(b"*\n!*/\n![[:alpha:]][[:upper:]b]\n", "ab", id="kinds of characters"),
        pytest.param(b"*\n![]b[]*[]x]\n", ["[a]"], id="brackets in a set"),
        pytest.param(b"*\n![a-\n!a\\\n![[:any:]]\n!x.md\n", "x.md", id="no patterns"),
        pytest.param(b"*\n!X.md\n!a/\n", "", id="case and folders"),
    ],
)
def test_an_ignore_file_means_what_it_means_to_git(
    patterns: bytes, expected: str | list[str], make_files: Callable[..., Path]
) -> None:
    root = make_files(dict.fromkeys(TREE, ""))
    (root / ".gitignore").write_bytes(patterns)
    assert found(root) == sorted(expected if isinstance(expected, list) else expected.split())


NAMES = (
    "a",
    "b",
    "ab",
    "foo",
    "foo.md",
    "bar.txt",
    "a b",
    "é",
    "[a]",
    "a*",
    "x-1",
    "A",
    "foo ",
    "a\\b",
    "#x",
    "!x",
    "_",
)
PATTERNS = (
    *("*", "!*/", "!*.md", "*.md", "/foo", "foo/", "a/**", "**/b", "a/**/b", "!foo.md", "foo/*", "!foo/bar.txt"),
    *(
        "\\#x",
        "\\!x",
        "a b",
        "foo\\ ",
        "foo ",
        "**/",
        "/**",
        "/*",
        "*/",
        "*/a",
        "**/foo/**",
        "a/*/b",
        "foo**/a",
        "a**b",
    ),
    *("**/a*b", "/", "//", "!", "a//b", "./a", "[a]", "\\[a\\]", "a\\*", "a/b/", "#x", "!x"),
)
PIECES = (
    *("a", "b", "foo", "*", "**", "***", "?", "[ab]", "[!a]", "[^b]", "[a-c]", "[]a]", "[[:alpha:]]", "[[:digit:]x]"),
    *(
        "[z-a]",
        "[a",
        "\\",
        "\\*",
        "/",
        "/",
        "/",
        ".md",
        "é",
        "[é]",
        " ",
        "\\ ",
        "\t",
        "!",
        "#",
        "[[:bad:]]",
        "[\\]a]",
        "A",
    ),
)


def write_tree(chance: random.Random, root: Path) -> None:
    """Folders, files and ignore files below a folder, by chance."""
    folders = [root]
    for _ in range(chance.randint(2, 8)):
        folders.append(chance.choice(folders) / chance.choice(NAMES))
        folders[-1].mkdir(parents=True, exist_ok=True)
    for folder in chance.choices(folders, k=20):
        path = folder / chance.choice(NAMES)
        path.exists() or path.touch()
    for folder in {root, *chance.choices(folders, k=2)}:
        text = ""
        for _ in range(chance.randint(1, 6)):
            own = chance.random() < 0.4
            pattern = "".join(chance.choices(PIECES, k=chance.randint(1, 5))) if own else chance.choice(PATTERNS)
            text += chance.choice(("", "", "", "!", "/")) + pattern + chance.choice(("\n", "\n", "\r\n", " \n"))
        mark = chance.choice(("", "", "", "\ufeff"))
        (folder / ".gitignore").write_text(mark + text, encoding="utf-8", newline="")


GIT = shutil.which("git") or ""


@pytest.mark.skipif(not GIT, reason="there is no git to compare with")
@pytest.mark.parametrize("seed", range(30))
def test_the_files_of_a_generated_tree_are_those_that_git_lists(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    write_tree(random.Random(seed), root)  # noqa: S311 - the same trees in every run
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    subprocess.run([GIT, "init", "--quiet"], cwd=root, check=True)
    command = [GIT, "ls-files", "--others", "--exclude-standard", "-z"]
    every = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout.split(b"\0")
    listed = {os.fsdecode(name) for name in every if name}
    assert set(found(root)) == {name for name in listed if not Path(name).name.startswith(".")}


def test_what_git_excludes_in_a_working_copy_alone_is_left_out(make_files: Callable[..., Path]) -> None:
    root = make_files(
        {".git/info/exclude": "*.key\n", "a/b.key": "", "c.key": "", "d.txt": "", "e/.git": "gitdir: ../x"}
    )
    (root / ".gitignore").write_text("!c.key\n", encoding="utf-8")
    assert found(root) == ["c.key", "d.txt"]


# Ignore files that cannot be obeyed


def not_indexed(root: Path) -> dict[str, str]:
    """Why things could not be looked at, by their path from the root."""
    failed = lancelot_index.FileFinder(root).find().failed
    return {Path(name).relative_to(root).as_posix(): reason for name, reason in failed.items()}


@pytest.mark.parametrize("kind", ["pipe", "device", "link", "folder"])
def test_an_ignore_file_that_is_no_regular_file_is_not_opened_and_told(
    kind: str, make_files: Callable[..., Path]
) -> None:
    root = make_files({"a/x.md": "", "patterns": "*\n"})
    ignore = root / "a" / ".gitignore"
    if kind == "pipe":
        os.mkfifo(ignore)
    elif kind == "folder":
        ignore.mkdir()
    else:
        ignore.symlink_to("/dev/zero" if kind == "device" else root / "patterns")
    assert found(root) == ["a/x.md", "patterns"]
    listing = lancelot_index.FileFinder(root).find()
    assert listing.notes == [f"Ignore files that are no regular files are not obeyed, such as {ignore}."]
    assert not listing.failed


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"#" * 199_999 + b"\n" + b"#", "its .gitignore is larger than 0.2 MB"),
        (b"*a" * 2049, "its .gitignore holds binary data or a line of more than 4,096 bytes"),
        ("*.key\n".encode("utf-16"), "its .gitignore holds binary data or a line of more than 4,096 bytes"),
        (b"a\n" * 5000, "more than 5,000 patterns of ignore files hold there"),
    ],
)
def test_a_folder_whose_ignore_file_cannot_be_obeyed_is_not_indexed(
    content: bytes, reason: str, make_files: Callable[..., Path]
) -> None:
    root = make_files({"a/x.key": "", "b.md": "", "a/c/d.md": ""})
    (root / "a" / ".gitignore").write_bytes(content)
    assert found(root) == ["b.md"]
    assert not_indexed(root) == {"a": reason}
    assert lancelot_index.FileFinder(root).find().may_hold(str(root / "a" / "c" / "d.md"))


def test_an_ignore_file_that_cannot_be_read_keeps_its_folder_out(
    make_files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_path = lancelot_reading.open_without_links

    def refuse(path: Path, flags: int = os.O_RDONLY) -> int:
        if path.name == ".gitignore":
            raise PermissionError(13, "Permission denied")
        return open_path(path, flags)

    monkeypatch.setattr(lancelot_reading, "open_without_links", refuse)
    root = make_files({"a/x.key": "", "a/.gitignore": "*.key\n", "b.md": ""})
    assert found(root) == ["b.md"]
    assert not_indexed(root) == {
        "a": "its .gitignore cannot be opened (Permission denied)",
    }


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a" * 40 + "*b", "a" * 60),
        ("**/a*" * 40 + "b", "/".join(["aaaa"] * 40)),
        ("**/*/" * 100 + "b", "/".join(["a"] * 200)),
        ("[a-b]*?*" * 30 + "c", "a" * 200),
    ],
)
def test_matching_a_hostile_pattern_does_not_grow_with_a_power_of_its_length(pattern: str, name: str) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(lancelot.__file__).parent)!r}); import lancelot, lancelot_index\n"
        f"print(lancelot_index.is_ignored({name!r}, lancelot_index.read_patterns('', {pattern.encode()!r})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "None\n", done.stderr


def test_a_search_for_files_ends_where_the_run_is_stopped(make_files: Callable[..., Path]) -> None:
    stop = threading.Event()
    stop.set()
    listing = lancelot_index.FileFinder(make_files({"a.md": "", "b/c.md": ""}), stop=stop).find()
    assert (listing.files, listing.ignored, listing.failed) == ([], {}, {})


# Folders that are changed meanwhile


def swap(folder: Path, outside: Path) -> None:
    """Puts a link in the place of a folder."""
    folder.rename(folder.with_name(f"{folder.name}-gone"))
    folder.symlink_to(outside)


@pytest.mark.parametrize("system", ["with handles of folders", "without"])
def test_a_folder_that_became_a_link_since_it_was_found_gives_nothing_from_outside(
    system: str, make_files: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "without":
        monkeypatch.setattr(os, "supports_dir_fd", set())
        monkeypatch.setattr(os, "supports_fd", set())
    root = make_files({"a/secret.txt": "harmless", "b.md": "b"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("from outside", encoding="utf-8")
    (outside / "more.txt").write_text("from outside", encoding="utf-8")
    seen = lancelot_index.FileFinder(root).find().files[0].path
    assert next(lancelot_reading.extract_file(str(seen))).chunks
    assert lancelot_index.hash_file(seen)
    scan = lancelot_index._scan  # noqa: SLF001

    def scan_late(folder: Path) -> Any:
        if folder == root / "a":
            swap(folder, outside)
        return scan(folder)

    monkeypatch.setattr(lancelot_index, "_scan", scan_late)
    listing = lancelot_index.FileFinder(root).find()
    assert [file.path.name for file in listing.files] == ["b.md"]
    assert list(listing.failed) == [str(root / "a")]
    assert next(lancelot_reading.extract_file(str(seen))).failed.startswith("cannot be opened")
    assert lancelot_index.hash_file(seen) == ""


def test_a_file_that_became_a_link_or_a_pipe_is_not_read(make_files: Callable[..., Path], tmp_path: Path) -> None:
    root = make_files({"a.txt": "a"})
    (tmp_path / "outside.txt").write_text("secret", encoding="utf-8")
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    os.mkfifo(root / "pipe.txt")
    assert next(lancelot_reading.extract_file(str(root / "link.txt"))).failed.startswith("cannot be opened")
    assert next(lancelot_reading.extract_file(str(root / "pipe.txt"))).failed == "is not a regular file"
    assert lancelot_index.hash_file(root / "link.txt") == ""
    assert lancelot_index.hash_file(root / "pipe.txt") == ""


# A folder below one that a model may index


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        (".ssh", "hidden"),
        (".ssh/deep", "hidden"),
        ("node_modules/a", "ignored by pattern"),
        ("private/notes", "ignored by pattern"),
        ("docs/old", "ignored by pattern"),
        ("link", "symbolic link"),
        ("gone", "it is no longer there"),
    ],
)
def test_a_folder_behind_one_that_is_left_out_is_refused(
    named: str, reason: str, make_files: Callable[..., Path]
) -> None:
    files = dict.fromkeys((".ssh/deep/id", "node_modules/a/b.js", "private/notes/a.md", "docs/old/b.md"), "")
    top = make_files(files | {".gitignore": "private/\n", "docs/.gitignore": "/old\n"})
    (top / "link").symlink_to(top / "docs")
    with pytest.raises(lancelot.LancelotError) as raised:
        lancelot_index.FileFinder(top / named, within=top).find()
    assert raised.value.cause == f"The folder {top / named} is left out ({reason})."


def test_the_ignore_files_on_the_way_to_a_folder_hold_and_nothing_beside_it_is_taken(
    make_files: Callable[..., Path],
) -> None:
    files = dict.fromkeys(("a/b/c.md", "a/b/d.key", "a/b/e/f.md", "a/b/e/g.txt", "a/beside.md", "beside.md"), "")
    top = make_files(files | {".gitignore": "*.key\n", "a/.gitignore": "/b/e/*.txt\n"})
    assert found(top / "a" / "b", within=top) == ["c.md", "e/f.md"]
    assert found(top / "a" / "b", within=top, include=("/e/",)) == ["e/f.md"]
    assert found(top / "a" / "b", within=top, exclude=("a/", "/e/")) == ["c.md"]
    assert found(top / "a" / "b") == ["c.md", "d.key", "e/f.md", "e/g.txt"]
