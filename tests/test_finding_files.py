"""Which files of a folder are indexed, and why others are left out."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import lancelot


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


def found(root: Path, **options: tuple[str, ...]) -> list[str]:
    """The relative paths that are found, in their order."""
    listing = lancelot.FileFinder(root, **options).find()
    return [file.path.relative_to(root).as_posix() for file in listing.files]


def ignored(root: Path, **options: tuple[str, ...]) -> dict[str, int]:
    return dict(lancelot.FileFinder(root, **options).find().ignored)


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
    sources = [file.source for file in lancelot.FileFinder(root).find().files]
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
        f"import os, sys; sys.path.insert(0, {str(Path(lancelot.__file__).parent)!r}); import lancelot, pathlib\n"
        f"import pathspec; os.setuid(65534); found = lancelot.FileFinder(pathlib.Path({str(root)!r})).find()\n"
        f"print([f.path.name for f in found.files], found.failed, found.may_hold({str(root / 'locked' / 'b.txt')!r}))"
    )
    import sys

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    expected = {str(root / "locked"): "the folder cannot be listed (Permission denied)"}
    assert done.stdout.strip() == f"['a.txt'] {expected} True", done.stderr
