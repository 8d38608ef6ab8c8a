"""A table that follows its folders: what changes in any order ends as a fresh run would, and nobody sees half a file."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lancedb
import pytest
from conftest import child_environment
from hypothesis import given, settings
from hypothesis import strategies as st

import lancelot
import lancelot_index
import lancelot_reading

COMMAND = (sys.executable, str(lancelot.__file__))


@pytest.fixture(scope="module")
def extractor() -> Iterator[lancelot_reading.Extractor]:
    with lancelot_reading.Extractor([*COMMAND, "extract"]) as started:
        yield started


def index(
    folders: Sequence[Path], database: Path, extractor: lancelot_reading.Extractor, made: lancelot.Settings
) -> lancelot_index.IndexRun:
    """A run that takes out whatever is gone, without vectors."""
    request = lancelot_index.IndexRequest(folders, database, "documents", force_empty=True)
    embedder = lancelot_index.BulkEmbedder(
        lancelot.EndpointEmbedder(made), lancelot.LocalEmbedder(made), failure="There are none."
    )
    return lancelot_index.IndexRun(request, embedder, extractor).run(confirm=lambda _message: True)


# What a change sets off


@pytest.mark.parametrize(
    ("path", "concerns"),
    [
        ("a.md", True),
        ("deep/a.md", True),
        ("", True),
        (".gitignore", True),
        ("deep/.lancelotignore", True),
        (".git/info/exclude", True),
        ("deep/.git/index", False),
        (".hidden", False),
        ("db/documents.lance", False),
        ("db/documents.lance/data/1.lance", False),
        ("db/.lancelot.lock", False),
        ("../beside.md", False),
    ],
)
def test_only_what_may_be_indexed_sets_off_a_run(path: str, *, concerns: bool) -> None:
    root = Path("/home/.me/files.lance")  # whose own name does not matter
    assert lancelot_index.may_concern(root)(os.path.normpath(root / path)) == concerns


NAMES = ("a.md", "b.txt", "in/c.md", "in/deep/d.md", "out/e.txt")
PLACES = [f"{root}/{name}" for root in ("one", "two") for name in (*NAMES, "in", "out")]
PATTERNS = ("*.txt", "/in/", "deep", "!c.md", "")
CHANGES = st.one_of(
    st.tuples(st.just("write"), st.sampled_from([*PLACES, "single.md"]), st.integers(1, 30)),
    st.tuples(st.just("delete"), st.sampled_from([*PLACES, "single.md"]), st.just(0)),
    st.tuples(st.just("rename"), st.sampled_from([*PLACES, "single.md"]), st.sampled_from(PLACES)),
    st.tuples(st.just("ignore"), st.sampled_from(["one", "one/in", "two"]), st.sampled_from(PATTERNS)),
)


def change(home: Path, kind: str, name: str, value: Any) -> list[Path]:
    """Make a change, where it can be made, and return the paths that are told of."""
    path = home / name
    with contextlib.suppress(OSError):
        if kind == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            # Another length each: an edit that keeps length and time is not seen by any run.
            path.write_text(f"# Number {value}\n\n" + "words of tea " * value * 10, encoding="utf-8")
        elif kind == "delete":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif kind == "ignore":
            path = path / ".gitignore"
            path.write_text(value, encoding="utf-8")
        else:
            path.replace(home / value)
            return [path, home / value]
    return [path]


def rows(database: Path) -> list[dict[str, Any]]:
    table = lancedb.connect(database).open_table("documents").to_arrow()
    return sorted(table.drop_columns(["indexed_at"]).to_pylist(), key=lambda row: row["id"])


@settings(max_examples=3)
@given(changes=st.lists(CHANGES, min_size=200, max_size=200), pauses=st.integers(20, 60))
def test_changes_in_any_order_end_in_the_table_of_a_fresh_run(
    changes: list[tuple[str, str, Any]], pauses: int, extractor: lancelot_reading.Extractor
) -> None:
    with tempfile.TemporaryDirectory() as place:
        home, made = Path(place).resolve(), lancelot.load_settings({"LANCELOT_LOCAL_MODEL": "off"}, Path(place))
        (home / "beside.md").write_text("Beside.", encoding="utf-8")
        roots = [home / "one", home / "two", home / "single.md"]
        for root in roots[:2]:
            root.mkdir()
        index(roots, home / "db", extractor, made)
        for start in range(0, len(changes), pauses):
            paths = [path for told in changes[start : start + pauses] for path in change(home, *told)]
            for root in roots[:2]:
                root.mkdir(exist_ok=True)
            due = [root for root in roots if any(map(lancelot_index.may_concern(root), map(str, paths)))]
            with contextlib.suppress(lancelot_index.FolderError):  # a file that never was
                if due:  # as none stands for all
                    index(due, home / "db", extractor, made)
        index(roots, home / "fresh", extractor, made)
        assert rows(home / "db") == rows(home / "fresh")


def test_a_search_sees_all_of_a_file_or_all_of_what_it_was(
    tmp_path: Path, extractor: lancelot_reading.Extractor, make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    file, database = tmp_path / "files" / "guide.md", tmp_path / "db"
    file.parent.mkdir()

    def write(version: int) -> None:
        parts = (f"# Part {part}\n\nversion{version} steeping " + "words " * 120 for part in range(version))
        file.write_text("\n\n".join(parts), encoding="utf-8")
        index([file.parent], database, extractor, make_searcher().settings)

    write(1)
    searcher, seen = make_searcher(LANCEDB_PATH=database), set()
    writer = threading.Thread(target=lambda: [write(version) for version in (7, 2, 9, 3, 8, 1, 6, 2, 5)])
    writer.start()
    while writer.is_alive():
        page = searcher.search(lancelot.SearchRequest("steeping", 50, "text"))
        (version,) = {hit.text.split("version")[1].split()[0] for hit in page.hits}
        assert len(page.hits) == page.total == int(version)
        seen.add(version)
    writer.join()
    assert len(seen) > 2


# The command


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `index --watch` with these words, and waits until it watches."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        with (
            (tmp_path / "out").open("w", encoding="utf-8") as out,
            (tmp_path / "err").open("w", encoding="utf-8") as err,
        ):
            command = [*COMMAND, "index", *words, "--path", str(tmp_path / "db"), "--watch"]
            started.append(subprocess.Popen(command, env=child_environment(), stdout=out, stderr=err, text=True))
        until(lambda: "Watching for changes" in (tmp_path / "err").read_text(encoding="utf-8"))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(10)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_a_table_follows_its_folders_while_others_read_and_write_until_it_is_stopped(
    tmp_path: Path,
    watching: Callable[..., subprocess.Popen[str]],
    extractor: lancelot_reading.Extractor,
    make_searcher: Callable[..., lancelot.Searcher],
) -> None:
    notes, letter = tmp_path / "notes", tmp_path / "letter.md"
    notes.mkdir()
    (notes / "a.md").write_text("Alpha.", encoding="utf-8")
    letter.write_text("A letter.", encoding="utf-8")
    made = make_searcher().settings
    index([notes, letter], tmp_path / "db", extractor, made)
    process = watching()

    def says(line: str) -> None:
        until(lambda: line in (tmp_path / "out").read_text(encoding="utf-8"))

    (notes / "new").mkdir()
    (notes / "new" / "b.md").write_text("Bravo.", encoding="utf-8")
    (notes / "a.md").rename(notes / "c.md")
    letter.write_text("Another letter.", encoding="utf-8")
    for line in (f"new: {notes / 'new' / 'b.md'}", f"removed: {notes / 'a.md'}", f"updated: {letter}"):
        says(line)
    other = tmp_path / "other"
    other.mkdir()
    (other / "d.md").write_text("Delta.", encoding="utf-8")
    assert index([other], tmp_path / "db", extractor, made).new == [str(other / "d.md")]
    (notes / ".gitignore").write_text("new/\n", encoding="utf-8")
    says(f"removed: {notes / 'new' / 'b.md'}")
    assert {row["file_name"] for row in rows(tmp_path / "db")} == {"c.md", "letter.md", "d.md"}
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert not (tmp_path / "err").read_text(encoding="utf-8").partition("Ctrl-C ends it.\n")[2]
