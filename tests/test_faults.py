"""What is broken under a reader and what a client does wrong: each is a sentence, and the next good call is right."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wire
from conftest import DATABASES, PROGRAM, child_environment

import lancelot

pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes and links are those of POSIX")

MakeSearcher = Callable[..., lancelot.Searcher]
SENTENCES = (
    "The table is being rewritten by another program.",
    "LanceDB could not ",
    "The manifest of documents cannot be read.",
    "There is no table documents",
)
"""What a damaged table may be told as; a bug never."""
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lancedb_search", {"query": "needle", "searchType": "fts"}),
    ("lancedb_search", {"query": "needle", "searchType": "text", "filter": {"title": "T5"}}),
    ("lancedb_read", {"id": "i5"}),
)
REQUESTS = int(os.environ.get("REQUESTS", "2000"))
"""How many calls a client makes at once and cancels."""
PLACES = ("data", "_versions", "_deletions", "_indices")


def make_database(folder: Path) -> None:
    """A table of two fragments with a full-text index and a row that was deleted."""
    import lancedb
    import pyarrow as pa
    from lancedb.index import FTS

    def rows(first: int, end: int) -> pa.Table:
        numbers = range(first, end)
        columns: dict[str, Any] = {
            "id": [f"i{n}" for n in numbers],
            "title": [f"T{n}" for n in numbers],
            "text": [f"needle number {n} in a haystack" for n in numbers],
        }
        return pa.table(columns)

    table = lancedb.connect(folder).create_table("documents", rows(0, 40))
    table.create_index("text", config=FTS())
    table.add(rows(40, 60))
    table.delete("id = 'i3'")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine") / "db"
    make_database(folder)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lancelot, "RETRY_PAUSES", (0.01,))  # nobody rewrites the table
    return Path(shutil.copytree(pristine, tmp_path / "db"))


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes(byte ^ 0x55 if at % 7 == 0 else byte for at, byte in enumerate(content)))


def replaced(path: Path, make: Callable[[], Any]) -> None:
    path.unlink()
    make()


def link_to_a_pipe(path: Path) -> None:
    table = next(parent for parent in path.parents if parent.suffix == ".lance")
    os.mkfifo(pipe := table.with_name("pipe"))
    replaced(path, lambda: path.symlink_to(pipe))


FAULTS: dict[str, Callable[[Path], Any]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": flip,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "removed": lambda path: path.unlink(),
    "a folder": lambda path: replaced(path, path.mkdir),
    "a link to nothing": lambda path: replaced(path, lambda: path.symlink_to(path.parent / "nothing")),
    "a link to itself": lambda path: replaced(path, lambda: path.symlink_to(path.name)),
    "a pipe": lambda path: replaced(path, lambda: os.mkfifo(path)),
    "a link to a pipe": link_to_a_pipe,
}


def stamps(folder: Path) -> dict[str, tuple[int, ...]]:
    found = {path: path.lstat() for path in (folder, *folder.rglob("*"))}
    return {str(path): (one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_mode) for path, one in found.items()}


def answers(searcher: lancelot.Searcher) -> list[tuple[str, bool]]:
    return [
        lancelot.call_tool(tool, searcher, arguments)
        for name, arguments in CALLS
        if (tool := lancelot.find_tool(name)) is not None
    ]


def files_of(folder: Path, place: str) -> list[Path]:
    """The files of a place that the newest version needs: of its manifests one."""
    files = sorted(path for path in (folder / "documents.lance" / place).rglob("*") if path.is_file())
    return files[:1] if place == "_versions" else files


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_a_sentence_and_restored_it_is_right_again(
    fault: str, place: str, folder: Path, make_searcher: MakeSearcher, tmp_path: Path
) -> None:
    right = answers(make_searcher(LANCEDB_PATH=folder))
    assert not any(failed for _, failed in right)
    for path in files_of(folder, place):
        searcher = make_searcher(LANCEDB_PATH=folder)  # one that has nothing in memory yet
        shutil.copy2(path, kept := tmp_path / "kept")
        FAULTS[fault](path)
        before = stamps(folder)
        for (text, failed), (good, _) in zip(answers(searcher), right, strict=True):
            if failed:
                assert text.startswith(SENTENCES) or " is no file." in text, text
            elif place == "_indices" and text != good:  # a search without the index, which is told
                assert "since the full-text index failed" in json.loads(text)["note"]
            elif place != "_versions":  # where a version is gone, the one before it is the newest
                assert text == good
        status, failed = lancelot.call_tool(lancelot.TOOLS[-2], searcher, {})
        assert not failed, status
        assert "bug" not in status
        assert stamps(folder) == before
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        (folder / "pipe").unlink(missing_ok=True)
        shutil.copy2(kept, path)
        assert answers(searcher) == right


def test_failures_keep_no_descriptor_and_no_thread(folder: Path, make_searcher: MakeSearcher) -> None:
    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not tell a process its descriptors")
    (newest,) = files_of(folder, "_versions")
    content, searcher, counts = newest.read_bytes(), make_searcher(LANCEDB_PATH=folder), []
    for _ in range(8):
        newest.write_bytes(content[: len(content) // 2])
        assert all(failed for _, failed in answers(searcher))
        newest.write_bytes(content)
        assert not any(failed for _, failed in answers(searcher))
        counts.append(held())
    assert counts[-1] <= counts[1]


def test_a_folder_that_is_moved_away_is_a_sentence_and_moved_back_it_is_right(
    folder: Path, make_searcher: MakeSearcher
) -> None:
    searcher = make_searcher(LANCEDB_PATH=folder)
    right = answers(searcher)
    folder.rename(folder.with_name("away"))
    for text, failed in answers(searcher):
        assert failed
        assert "No such file or directory" in text or text.startswith(SENTENCES), text
    assert not folder.exists()
    folder.with_name("away").rename(folder)
    assert answers(searcher) == right


# A client that does wrong


@pytest.fixture
def server(tmp_path: Path) -> Iterator[wire.Server]:
    running = wire.Server(child_environment(LANCEDB_PATH=str(DATABASES / "no-vector")), cwd=tmp_path)
    yield running
    running.stop()


def test_what_a_client_sends_wrongly_does_not_keep_the_next_call_from_being_right(server: wire.Server) -> None:
    asked = wire.call("good", "lancedb_search", query="zen", searchType="text")
    right = wire.text_of(server.ask(asked))
    chance = random.Random(1)  # noqa: S311 - the same bytes every time
    server.write(b"".join(chance.randbytes(chance.randrange(300)) + b"\n" for _ in range(300)))
    assert wire.text_of(server.ask(asked)) == right
    large = server.ask(wire.call("large", "lancedb_search", query="zen " * 12_500_000))
    assert "zen" in wire.text_of(large)
    server.send(*(wire.call(number, "lancedb_search", query=f"zen {number}") for number in range(REQUESTS)))
    server.send(*(wire.notification("notifications/cancelled", requestId=number) for number in range(REQUESTS)))
    assert wire.text_of(server.ask(asked)) == right
    server.write(json.dumps(wire.call("half", "lancedb_version")).encode()[:60])
    server.close_input()
    assert server.wait() < 6
    assert server.process.returncode == 0
    assert "Traceback" not in server.log


# Where the indexer writes


def test_an_indexer_without_space_says_so_and_with_space_it_goes_on(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(20):
        (files / f"{number}.md").write_text(f"# Note {number}\n\nneedle {number} " + "words " * 2000, encoding="utf-8")
    command = [sys.executable, PROGRAM, "index", str(files), "--path", str(tmp_path / "db")]
    # A file may not grow over 20 kB, as on a full disk.
    cut = ["sh", "-c", 'ulimit -f 40; trap "" XFSZ; exec "$@"', "sh", *command]
    full = subprocess.run(cut, env=child_environment(), capture_output=True, text=True, check=False, timeout=60)
    assert full.returncode == 1, full.stderr
    assert "bug" not in full.stderr
    assert full.stderr.strip().endswith("."), full.stderr
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    settings = lancelot.load_settings({"LANCEDB_PATH": str(tmp_path / "db"), "LANCELOT_LOCAL_MODEL": "off"}, tmp_path)
    for number in range(20):
        page = lancelot.Searcher(settings).search(lancelot.SearchRequest(f"needle {number}", 5, "text"))
        assert page.hits[0].title == f"Note {number}"
