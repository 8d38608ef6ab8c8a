"""A folder of files becomes a table, is kept up to date, and loses nothing when a run is cut short."""

import contextlib
import dataclasses
import datetime as dt
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from conftest import Run, child_environment
from test_index_reading import make_pdf

import lancelot
import lancelot_index
import lancelot_reading

COMMAND = (sys.executable, str(lancelot.__file__))
FILES = {
    "guide.md": "# Guide\n\nHow to brew tea.\n\n## Water\n\nHeat the water to ninety degrees.\n",
    "notes/plan.txt": "Buy green tea and a kettle.\n",
    "notes/brew.py": "def steep(minutes):\n    return minutes * 60\n",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = tmp_path / "files"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def extractor() -> Iterator[lancelot_reading.Extractor]:
    with lancelot_reading.Extractor([*COMMAND, "extract"]) as started:
        yield started


@pytest.fixture
def index(
    tmp_path: Path, extractor: lancelot_reading.Extractor, make_settings: Callable[..., lancelot.Settings]
) -> Callable[..., lancelot_index.IndexRun]:
    """Runs over folders into `db`: `index(folder, force=True, OPENAI_BASE_URL=…)`, or all that it knows: `index()`."""

    def run(*folders: Path, yes: bool = False, **options: Any) -> lancelot_index.IndexRun:
        variables = {name: options.pop(name) for name in list(options) if name.isupper()}
        settings = make_settings(**variables)
        endpoint = lancelot.EndpointEmbedder(settings, key=lambda _: lancelot.KeyLookup(None))
        request = lancelot_index.IndexRequest(folders, tmp_path / "db", **{"table": "documents", **options})
        bulk = lancelot_index.BulkEmbedder(endpoint, lancelot.LocalEmbedder(settings))
        started = lancelot_index.IndexRun(request, bulk, extractor)
        return started.run(confirm=lambda _message: yes)

    return run


Index = Callable[..., lancelot_index.IndexRun]


def open_table(tmp_path: Path, name: str = "documents") -> Any:
    return lancedb.connect(tmp_path / "db").open_table(name)


def rows(tmp_path: Path, *, without: tuple[str, ...] = ("indexed_at",)) -> list[dict[str, Any]]:
    """Every row in the order of ids, without the times of indexing."""
    every = open_table(tmp_path).to_arrow().drop_columns(list(without)).to_pylist()
    return sorted(every, key=lambda row: row["id"])


def counts(summary: lancelot_index.IndexRun) -> tuple[int, int, int, int]:
    return len(summary.new), len(summary.updated), summary.unchanged, len(summary.removed)


# What a run does


def test_a_folder_becomes_a_table_that_search_works_on(
    files: Path, index: Index, tmp_path: Path, make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    summary = index(files)
    assert counts(summary) == (3, 0, 0, 0)
    searcher = make_searcher(LANCEDB_PATH=tmp_path / "db")
    page = searcher.search(lancelot.SearchRequest("heating waters", 3, "fts"))
    assert page.ran == "fts"
    assert page.notes == ()
    (hit,) = page.hits
    assert (hit.title, hit.source) == ("Guide > Water", str(files / "guide.md"))
    assert summary.chunks == open_table(tmp_path).count_rows()


@pytest.mark.parametrize("search", ["text", "fts"])
def test_a_word_that_lines_columns_or_pages_of_a_pdf_divide_is_found(
    search: lancelot.SearchType, tmp_path: Path, index: Index, make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    (tmp_path / "files").mkdir()
    divided = "an inspec-) Tj 0 -14 Td (tion of the boi-"
    (tmp_path / "files" / "a.pdf").write_bytes(make_pdf(divided, "lers in the har-", "bour"))
    index(tmp_path / "files")
    searcher = make_searcher(LANCEDB_PATH=tmp_path / "db")
    for word in ("inspection", "boilers", "harbour"):
        (hit,) = searcher.search(lancelot.SearchRequest(word, 3, search)).hits
        assert hit.metadata["place"] == "pages 1-3"


def test_every_column_of_a_row_tells_where_it_is_from(files: Path, index: Index, tmp_path: Path) -> None:
    before = dt.datetime.now(dt.timezone.utc)
    os.utime(files / "notes" / "plan.txt", (1_700_000_000, 1_700_000_000))
    index(files)
    (row,) = [row for row in rows(tmp_path, without=()) if row["file_name"] == "plan.txt"]
    assert row.pop("indexed_at") >= before
    assert row == {
        "id": lancelot_index.chunk_id(str(files / "notes" / "plan.txt"), 0),
        "text": "Buy green tea and a kettle.",
        "title": "plan",
        "chunkSource": str(files / "notes" / "plan.txt"),
        "file_name": "plan.txt",
        "file_type": ".txt",
        "chunk_index": 0,
        "place": "line 1",
        "extractor": "text",
        "content_hash": lancelot_index.hash_file(files / "notes" / "plan.txt"),
        "modified_at": dt.datetime.fromtimestamp(1_700_000_000, dt.timezone.utc),
        "file_size": 28,
    }


def test_a_second_run_changes_nothing(files: Path, index: Index, tmp_path: Path) -> None:
    index(files)
    version = open_table(tmp_path).version
    assert counts(index(files)) == (0, 0, 3, 0)
    assert open_table(tmp_path).version == version


def test_a_touched_file_is_not_a_changed_one_and_its_time_is_noted(files: Path, index: Index, tmp_path: Path) -> None:
    index(files)
    os.utime(files / "guide.md", (1, 1))
    assert counts(index(files)) == (0, 0, 3, 0)
    times = {row["modified_at"] for row in rows(tmp_path) if row["file_name"] == "guide.md"}
    assert times == {dt.datetime.fromtimestamp(1, dt.timezone.utc)}
    version = open_table(tmp_path).version
    index(files)
    assert open_table(tmp_path).version == version


def test_a_file_of_the_size_and_time_that_are_known_is_not_read_unless_by_force(
    files: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(files)
    path = files / "notes" / "plan.txt"
    before = path.stat()
    path.write_text("Buy black tea and a kettle.\n", encoding="utf-8")
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with monkeypatch.context() as patch:
        patch.setattr(lancelot_index, "hash_file", None)
        assert counts(index(files)) == (0, 0, 3, 0)
    assert counts(index(files, force=True)) == (0, 3, 0, 0)


def test_an_edit_that_keeps_the_time_is_seen_by_the_size(files: Path, index: Index) -> None:
    index(files)
    path = files / "notes" / "plan.txt"
    before = path.stat()
    path.write_text("Buy tea.\n", encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert counts(index(files)) == (0, 1, 2, 0)


def test_a_folder_whose_table_is_refused_gets_no_lock_file(files: Path, index: Index, tmp_path: Path) -> None:
    lancedb.connect(tmp_path / "db").create_table("documents", [{"id": "1", "text": "theirs"}])
    with pytest.raises(lancelot.LancelotError, match="was not made by"):
        index(files)
    assert [path.name for path in (tmp_path / "db").iterdir()] == ["documents.lance"]


def test_a_dry_run_makes_no_table_in_a_folder_that_is_left_of_one(files: Path, index: Index, tmp_path: Path) -> None:
    (tmp_path / "db" / "documents.lance").mkdir(parents=True)
    assert counts(index(files, dry_run=True)) == (3, 0, 0, 0)
    assert [path.name for path in (tmp_path / "db").rglob("*")] == ["documents.lance"]


def test_a_pattern_that_fits_no_file_changes_nothing(files: Path, index: Index, tmp_path: Path) -> None:
    with pytest.raises(lancelot.LancelotError, match=r"No file of .* matches"):
        index(files, include=("*.nothing",))
    assert not (tmp_path / "db").exists()
    index(files)
    for pattern in ("[", "", "*.nothing"):
        with pytest.raises(lancelot.LancelotError, match=r"No file of .* matches"):
            index(files, include=(pattern,))
    assert len({row["file_name"] for row in rows(tmp_path)}) == 3
    assert counts(index(files, include=("*.md",), yes=True)) == (0, 0, 1, 2)
    (files / "guide.md").rename(files / "guide.txt")
    with pytest.raises(lancelot.LancelotError, match=r"No file of .* matches \*\.md.* or --no-patterns"):
        index(files)


def test_patterns_hold_for_later_runs_over_the_folder_until_they_are_replaced_or_forgotten(
    files: Path, index: Index, tmp_path: Path
) -> None:
    def names() -> set[str]:
        return {row["file_name"] for row in rows(tmp_path)}

    def note(summary: lancelot_index.IndexRun) -> str:
        return "".join(note for note in summary.notes if "patterns" in note)

    assert not note(index(files, include=("*.md", "*.py"), exclude=("old's/",)))
    (files / "notes" / "more.txt").write_text("More tea.", encoding="utf-8")
    version = open_table(tmp_path).version
    summary = index(files)
    assert counts(summary) == (0, 0, 2, 0)
    assert "--include '*.md', --include '*.py', --exclude 'old's/'. --no-patterns" in note(summary)
    assert open_table(tmp_path).version == version
    assert counts(index(files, dry_run=True, no_patterns=True)) == (2, 0, 2, 0)
    assert counts(index(files / "notes")) == (2, 0, 1, 0)
    index(files, exclude=("*.py",))
    index(files)
    assert names() == {"guide.md", "plan.txt", "more.txt"}
    assert not note(index(files, no_patterns=True))
    assert names() == {"guide.md", "plan.txt", "more.txt", "brew.py"}
    assert not note(index(files))


def test_a_run_that_takes_out_more_than_half_of_the_table_changes_nothing_unless_it_is_confirmed(
    files: Path, index: Index, tmp_path: Path
) -> None:
    def refused(**options: Any) -> str:
        before, version = rows(tmp_path), open_table(tmp_path).version
        with pytest.raises(lancelot.LancelotError, match=r"Nothing was changed.*--yes") as caught:
            index(files, **options)
        assert rows(tmp_path) == before
        assert open_table(tmp_path).version == version
        return str(caught.value)

    index(files)
    (files / "new.md").write_text("New.", encoding="utf-8")
    assert "2 of 3 files" in refused(include=("*.md",))
    assert "2 of 3 files" in refused(exclude=("notes/",))
    told = index(files, include=("*.md",), dry_run=True)
    assert counts(told) == (1, 0, 1, 2)
    assert "2 of 3 files" in told.notes[0]
    assert counts(index(files)) == (1, 0, 3, 0)
    for name in ("new.md", "notes/plan.txt", "notes/brew.py"):
        (files / name).write_bytes(b"")
    assert "3 of 4 files" in refused()
    assert counts(index(files, yes=True)) == (0, 0, 1, 3)


def test_half_of_the_chunks_counts_too_and_other_folders_of_the_table_count_with_them(
    files: Path, index: Index, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("Words. " * 2000, encoding="utf-8")
    index(files)
    index(other)
    for name in ("guide.md", "notes/plan.txt"):
        (files / name).unlink()
    assert counts(index(files)) == (0, 0, 1, 2)
    (other / "b.txt").write_text("b", encoding="utf-8")
    (other / "a.txt").unlink()
    with pytest.raises(lancelot.LancelotError, match="1 of 2 files"):
        index(other)


def test_a_folder_that_was_renamed_inside_is_not_asked_about(files: Path, index: Index) -> None:
    index(files)
    (files / "notes").rename(files / "papers")
    assert counts(index(files)) == (2, 0, 1, 2)


def test_an_edit_redoes_one_file_and_leaves_no_old_chunk(files: Path, index: Index, tmp_path: Path) -> None:
    index(files)
    (files / "guide.md").write_text("# Guide\n\nOnly this.\n", encoding="utf-8")
    assert counts(index(files)) == (0, 1, 2, 0)
    assert [row["text"] for row in rows(tmp_path) if row["file_name"] == "guide.md"] == ["# Guide\n\nOnly this."]


def test_what_is_gone_renamed_or_emptied_leaves_the_table(files: Path, index: Index, tmp_path: Path) -> None:
    index(files)
    (files / "guide.md").rename(files / "manual.md")
    (files / "notes" / "plan.txt").write_text("", encoding="utf-8")
    assert counts(index(files)) == (1, 0, 1, 2)
    assert {row["file_name"] for row in rows(tmp_path)} == {"manual.md", "brew.py"}


def make_mail(*attached: str) -> bytes:
    """A mail of a certain date with texts attached to it."""
    mail = EmailMessage()
    mail["From"], mail["Subject"], mail["Date"] = "ann@example.org", "Tea", "Mon, 04 Mar 2024 10:20:00 +0100"
    mail["Message-ID"] = "<1@example.org>"
    mail.set_content("Which one?\n")
    for text in attached:
        mail.add_attachment(text, filename=f"{text}.txt")
    return mail.as_bytes()


def test_what_is_attached_to_a_mail_comes_and_goes_with_it(files: Path, index: Index, tmp_path: Path) -> None:
    def sources() -> list[str]:
        return sorted(
            {row["chunkSource"].removeprefix(str(files)) for row in rows(tmp_path) if "tea" in row["chunkSource"]}
        )

    mail, box = files / "tea.eml", files / "tea box"
    mail.write_bytes(make_mail("black", "green"))
    box.write_bytes(b"From a Mon Mar  4 10:20:00 2024\n%s\n" % make_mail("white") * 2)
    assert counts(index(files)) == (5, 0, 0, 0)
    boxed = [f"/tea box/{number}.eml{end}" for number in (1, 2) for end in ("", "/white.txt")]
    assert sources() == [*boxed, "/tea.eml", "/tea.eml/black.txt", "/tea.eml/green.txt"]
    version = open_table(tmp_path).version
    assert counts(index(files)) == (0, 0, 5, 0)
    assert open_table(tmp_path).version == version
    mail.write_bytes(make_mail("green"))
    box.write_bytes(b"From a Mon Mar  4 10:20:00 2024\n%s\n" % make_mail("white"))
    summary = index(files)
    assert counts(summary) == (0, 2, 3, 0)
    assert sources() == [*boxed[:2], "/tea.eml", "/tea.eml/green.txt"]
    assert summary.chunks == open_table(tmp_path).count_rows()
    mail.unlink()
    box.rename(files / "tea chest")
    assert counts(index(files)) == (1, 0, 3, 2)
    assert sources() == ["/tea chest/1.eml", "/tea chest/1.eml/white.txt"]


def test_a_mail_and_what_is_attached_have_its_date_whenever_its_file_is_touched(
    files: Path, index: Index, tmp_path: Path
) -> None:
    (files / "tea.eml").write_bytes(make_mail("green"))
    for moment in (1, 2):
        os.utime(files / "tea.eml", (moment, moment))
        index(files)
        dates = {
            row["file_name"]: row["modified_at"].isoformat() for row in rows(tmp_path) if "tea" in row["chunkSource"]
        }
        assert dates == dict.fromkeys(("tea.eml", "green.txt"), "2024-03-04T09:20:00+00:00")


def test_a_folder_in_the_place_of_a_mail_is_no_part_of_it(files: Path, index: Index, tmp_path: Path) -> None:
    (files / "tea.eml").write_bytes(make_mail("black", "green"))
    index(files)
    (files / "tea.eml").unlink()
    (files / "tea.eml").mkdir()
    (files / "tea.eml" / "green.txt").write_text("a text of its own")
    assert counts(index(files)) == (0, 1, 3, 1)
    assert [row["text"] for row in rows(tmp_path) if "tea" in row["chunkSource"]] == ["a text of its own"]
    shutil.rmtree(files / "tea.eml")
    (files / "tea.eml").write_bytes(make_mail("green"))
    index(files)
    assert len([row for row in rows(tmp_path) if "tea" in row["chunkSource"]]) == 2


def test_what_is_not_read_is_counted_by_kind_and_named_with_what_to_do(files: Path, index: Index) -> None:
    (files / "a.png").write_bytes(b"\x89PNG")
    (files / "b.zip").write_bytes(b"PK\x03\x04")
    (files / "c.min.js").write_text("x")
    mail = EmailMessage()
    mail["From"] = "ann@example.org"
    mail.add_attachment(b"RIFF", maintype="audio", subtype="wav", filename="d.wav")
    (files / "mail.eml").write_bytes(mail.as_bytes())
    summary = index(files)
    assert summary.ignored == {"archive": 1, "minified": 1, "picture": 1, "sound": 1}
    lines = lancelot_index.index_lines(summary).splitlines()
    assert "left out: 1 archive, 1 minified, 1 picture, 1 sound; --verbose names the files" in lines
    lines = lancelot_index.index_lines(summary, verbose=True).splitlines()
    assert f"left out: {files / 'b.zip'}: archive: unpack it" in lines
    assert f"left out: {files / 'c.min.js'}: minified" in lines
    assert f"left out: {files / 'mail.eml' / 'd.wav'}: sound: save what is said as text or subtitles" in lines


def test_two_folders_share_a_table_and_do_not_touch_each_other(files: Path, index: Index, tmp_path: Path) -> None:
    other = tmp_path / "files2"
    other.mkdir()
    (other / "a.txt").write_text("Other tea.", encoding="utf-8")
    index(files)
    assert counts(index(other)) == (1, 0, 0, 0)
    (files / "guide.md").unlink()
    assert counts(index(files)) == (0, 0, 2, 1)
    assert {row["file_name"] for row in rows(tmp_path)} == {"a.txt", "plan.txt", "brew.py"}


def test_a_part_of_the_folder_brings_only_that_part_up_to_date(files: Path, index: Index) -> None:
    index(files)
    (files / "guide.md").unlink()
    assert counts(index(files / "notes")) == (0, 0, 2, 0)


def test_all_is_read_anew_by_force(files: Path, index: Index) -> None:
    index(files)
    assert counts(index(files, force=True)) == (0, 3, 0, 0)


def test_a_dry_run_tells_the_same_and_writes_nothing(files: Path, index: Index, tmp_path: Path) -> None:
    (files / "broken.pdf").write_bytes(b"%PDF-1.7 and no more")
    (files / "empty.txt").write_bytes(b"")
    told = index(files, dry_run=True)
    assert not (tmp_path / "db").exists()
    done = index(files)
    for name in ("new", "updated", "unchanged", "removed", "chunks", "ignored", "failed"):
        assert getattr(told, name) == getattr(done, name), name
    (files / "guide.md").unlink()
    version = open_table(tmp_path).version
    assert counts(index(files, dry_run=True)) == (0, 0, 2, 1)
    assert open_table(tmp_path).version == version


def test_a_file_that_cannot_be_read_is_named_and_keeps_what_the_table_has(
    files: Path, index: Index, tmp_path: Path
) -> None:
    index(files)
    (files / "guide.md").write_bytes(b"%PDF-1.7 and no more")
    summary = index(files)
    assert list(summary.failed) == [str(files / "guide.md")]
    assert counts(summary) == (0, 0, 2, 0)
    assert "guide.md" in {row["file_name"] for row in rows(tmp_path)}
    assert f"not read: {files / 'guide.md'}: " in lancelot_index.index_lines(summary)


def test_the_summary_has_the_fields_that_programs_look_for(files: Path, index: Index) -> None:
    (files / ".hidden").write_text("x", encoding="utf-8")
    answer = lancelot_index.index_object(index(files))
    assert answer.pop("durationSeconds") >= 0
    assert answer == {
        "totalFiles": 3,
        "newFiles": 3,
        "updatedFiles": 0,
        "skippedFiles": 0,
        "removedFiles": 0,
        "ignoredFiles": 1,
        "failedFiles": 0,
        "totalChunks": 4,
        "chunksWithoutVector": 4,
        "folder": str(files),
        "table": "documents",
        "database": str(files.parent / "db"),
        "dryRun": False,
        "stopped": False,
        "kinds": {
            ".md": {"files": 1, "chunks": 2},
            ".py": {"files": 1, "chunks": 1},
            ".txt": {"files": 1, "chunks": 1},
        },
        "ignored": {"hidden": 1},
        "notes": ["No API key is set, so there are no embeddings."],
    }


def test_the_summary_counts_by_kind_what_the_table_holds_and_what_failed(files: Path, index: Index) -> None:
    (files / "broken.pdf").write_bytes(b"%PDF-1.4")
    (files / "LICENSE").write_text("Do as you like.", encoding="utf-8")
    index(files)
    (files / "notes" / "plan.txt").unlink()
    (files / "more.MD").write_text("# More\n\nwords", encoding="utf-8")
    lines = lancelot_index.index_lines(index(files))
    kinds = "2 .md (3 chunks), 1 .py (1 chunk), 1 without a suffix (1 chunk), 0 .pdf (0 chunks, 1 not read)"
    assert f"\nkinds: {kinds}\n" in lines


def test_a_run_tells_which_file_it_reads_and_how_much_is_done(files: Path, index: Index) -> None:
    told: list[tuple[str, int, int, str]] = []
    (files / "a.txt").write_text("word\n" * 40_000, encoding="utf-8")
    run = index(files)
    again = dataclasses.replace(run, report=lambda *what: told.append(what), _listings=[], _known={})
    again.request = dataclasses.replace(run.request, dry_run=True, force=True)
    again.run()
    read = [(*what, *more.rsplit(", ", 2)) for doing, *what, more in told if doing == "files"]
    assert [(*what, size, place) for *what, size, _, place in read] == [
        (0, 4, "0.0 of 0.2 MB", "at a.txt"),
        (1, 4, "0.2 of 0.2 MB", "at guide.md"),
        (2, 4, "0.2 of 0.2 MB", "at brew.py"),
        (3, 4, "0.2 of 0.2 MB", "at plan.txt"),
    ]
    assert all(pace.endswith(" chunks/s") for *_, pace, _ in read)


def test_thousands_of_failures_stay_a_short_answer(files: Path, index: Index) -> None:
    summary = index(files)
    failed = {f"/very/long/{'x' * 200}/{number}": "reason " * 100 for number in range(5000)}
    answer = lancelot_index.index_object(dataclasses.replace(summary, failed=failed))
    assert answer["failedFiles"] == 5000
    assert len(lancelot.compact_json(answer).encode()) < lancelot.MAX_ANSWER_BYTES


def taken(request: lancelot_index.IndexRequest) -> tuple[int, int]:
    known = lancelot_index.forget_folder(request)
    return len(known), lancelot_index.count_chunks(known)


# A folder that is empty, cannot be listed, or is gone


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a folder one that cannot be listed, for the superuser too."""
    scandir = os.scandir

    def lock(folder: Path) -> None:
        def refuse(path: Any) -> Any:
            if os.path.realpath(f"/proc/self/fd/{path}" if isinstance(path, int) else path) == str(folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)

    return lock


@pytest.mark.parametrize("left", ["nothing", "hidden", "ignored"])
@pytest.mark.parametrize("options", [{}, {"force": True}, {"dry_run": True}])
def test_a_folder_without_files_keeps_what_the_table_has_until_it_is_meant(
    left: str, options: dict[str, bool], files: Path, index: Index, tmp_path: Path
) -> None:
    index(files)
    before = rows(tmp_path)
    shutil.rmtree(files)
    files.mkdir()
    (files / {"nothing": "", "hidden": ".Trash", "ignored": "node_modules"}[left]).mkdir(exist_ok=True)
    with pytest.raises(lancelot.LancelotError) as refused:
        index(files, **options)
    assert str(refused.value) == (
        f"There is no file to index in {files}, and the table documents holds 3 files of it, which stay there. "
        "See whether its disk is mounted; --force-empty takes them out."
    )
    assert rows(tmp_path) == before
    assert counts(index(files, force_empty=True, **options)) == (0, 0, 0, 3)
    assert bool(rows(tmp_path)) == ("dry_run" in options)


def test_an_empty_folder_that_the_table_has_nothing_of_is_no_error(files: Path, index: Index, tmp_path: Path) -> None:
    index(files)
    (tmp_path / "empty").mkdir()
    summary = index(tmp_path / "empty")
    assert (counts(summary), summary.partial) == ((0, 0, 0, 0), False)


def test_a_folder_that_cannot_be_listed_is_told_and_keeps_what_the_table_has(
    files: Path, index: Index, tmp_path: Path, lock: Callable[[Path], None]
) -> None:
    index(files)
    before = rows(tmp_path)
    lock(files)
    for options in ({}, {"force_empty": True}, {"include": ("*.md",)}):
        with pytest.raises(lancelot.LancelotError, match=f"{files} was not indexed, since the folder cannot be listed"):
            index(files, **options)
    assert rows(tmp_path) == before


@pytest.mark.parametrize("force_empty", [False, True])
def test_files_of_a_part_that_cannot_be_listed_stay_in_the_table_and_it_is_told(
    files: Path, index: Index, tmp_path: Path, lock: Callable[[Path], None], *, force_empty: bool
) -> None:
    assert not index(files).partial
    lock(files / "notes")
    (files / "guide.md").unlink()
    (files / "new.md").write_text("New.\n", encoding="utf-8")
    summary = index(files, force_empty=force_empty)
    assert (counts(summary), summary.partial) == ((1, 0, 0, 1), True)
    assert summary.failed == {str(files / "notes"): "the folder cannot be listed (Permission denied)"}
    assert "note: Not all of the folder could be looked at: what the table holds of the rest stays." in (
        lancelot_index.index_lines(summary)
    )
    assert {row["file_name"] for row in rows(tmp_path)} == {"new.md", "plan.txt", "brew.py"}


def test_an_emptied_folder_with_a_part_that_cannot_be_listed_keeps_all(
    files: Path, index: Index, tmp_path: Path, lock: Callable[[Path], None]
) -> None:
    index(files)
    lock(files / "notes")
    (files / "guide.md").unlink()
    with pytest.raises(lancelot.LancelotError, match="holds 3 files of it, which stay there"):
        index(files)
    assert counts(index(files, force_empty=True)) == (0, 0, 0, 1)
    assert {row["file_name"] for row in rows(tmp_path)} == {"plan.txt", "brew.py"}


def test_files_that_go_away_while_a_run_reads_are_named_and_keep_what_the_table_has(
    files: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(files)
    before = rows(tmp_path)
    find = lancelot_index.FileFinder.find

    def find_and_lose(finder: lancelot_index.FileFinder) -> lancelot_index.FileFinder:
        listing = find(finder)
        files.rename(tmp_path / "elsewhere")
        files.mkdir()  # as where a disk was mounted
        return listing

    monkeypatch.setattr(lancelot_index.FileFinder, "find", find_and_lose)
    summary = index(files, force=True)
    assert (counts(summary), len(summary.failed)) == ((0, 0, 0, 0), 3)
    assert rows(tmp_path) == before


def test_a_folder_that_is_gone_is_refused_and_can_be_forgotten(files: Path, index: Index, tmp_path: Path) -> None:
    index(files)
    files.rename(tmp_path / "renamed")
    with pytest.raises(lancelot.LancelotError) as refused:
        index(files)
    assert str(refused.value) == (
        f"{files} cannot be opened (No such file or directory); the table documents keeps 3 files of it. "
        f"If it was moved, `lancelot index --moved {files} NEW` points the table to its new place; "
        f"if it was deleted, `lancelot index --forget {files}` takes them out."
    )
    index(tmp_path / "renamed")
    index(tmp_path / "renamed" / "notes")
    files.symlink_to(tmp_path / "renamed")
    request = lancelot_index.IndexRequest((files,), tmp_path / "db", "documents")
    chunks = lancelot_index.index_object(index(tmp_path / "renamed"))["totalChunks"]
    assert taken(dataclasses.replace(request, dry_run=True)) == (3, chunks)
    assert taken(request) == (3, chunks)
    assert {Path(row["chunkSource"]).parts[len(files.parent.parts)] for row in rows(tmp_path)} == {"renamed"}
    # Nothing is left under that name, which is a link to the other one now.
    assert taken(dataclasses.replace(request, folders=(files / ".." / "files" / "notes",))) == (2, 2)
    assert {row["file_name"] for row in rows(tmp_path)} == {"guide.md"}


def test_to_forget_what_the_table_does_not_hold_is_an_error_that_makes_nothing(
    files: Path, index: Index, tmp_path: Path
) -> None:
    request = lancelot_index.IndexRequest((tmp_path / "fil",), tmp_path / "db", "documents")
    with pytest.raises(lancelot.LancelotError, match=f"holds nothing of {tmp_path / 'fil'}\\."):
        lancelot_index.forget_folder(request)
    assert not (tmp_path / "db").exists()
    index(files)
    with pytest.raises(lancelot.LancelotError, match="`lancelot index --list` lists what it was made of"):
        lancelot_index.forget_folder(request)
    with lancelot_index.write_lock(tmp_path / "db"), pytest.raises(lancelot.LancelotError, match="Another run of"):
        lancelot_index.forget_folder(dataclasses.replace(request, folders=(files,)))
    assert len({row["file_name"] for row in rows(tmp_path)}) == 3


def test_what_is_forgotten_may_be_all_that_had_no_vector(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str]
) -> None:
    index(files / "notes", OPENAI_BASE_URL=embedding_server(), EMBEDDING_MODEL="hash-embedder-384")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "more.md").write_text("More.\n", encoding="utf-8")
    index(tmp_path / "more")

    def complete() -> bytes:
        return open_table(tmp_path).schema.field("vector").metadata[b"embedding_complete"]

    assert complete() == b"no"
    lancelot_index.forget_folder(lancelot_index.IndexRequest((tmp_path / "more",), tmp_path / "db", "documents"))
    assert complete() == b"yes"


# The folders and files that a table is made of


def roots_of(tmp_path: Path) -> dict[str, dict[str, Any]]:
    roots = lancelot_index.list_roots(lancelot_index.IndexRequest((), tmp_path / "db", "documents"))
    return {Path(root.pop("folder")).relative_to(tmp_path).as_posix(): root for root in roots}


def names_of(tmp_path: Path) -> set[str]:
    return {row["file_name"] for row in rows(tmp_path)}


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A second folder, of one file."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "a.txt").write_text("Other tea.", encoding="utf-8")
    return folder


def test_several_folders_and_files_are_one_run_and_one_summary(
    files: Path, other: Path, index: Index, tmp_path: Path
) -> None:
    letter = tmp_path / "letter.md"
    letter.write_text("A letter.", encoding="utf-8")
    (tmp_path / "beside.md").write_text("Beside.", encoding="utf-8")
    summary = index(files, letter, other, files / "notes")
    assert counts(summary) == (5, 0, 0, 0)
    answer = lancelot_index.index_object(summary)
    assert answer["folders"] == list(map(str, (files, letter, other, files / "notes")))
    assert answer["totalChunks"] == answer["chunksWithoutVector"] == 6
    assert f"Indexed {files}, {letter}, {other}, " in lancelot_index.index_lines(summary)
    assert {name: (root["files"], root["chunks"]) for name, root in roots_of(tmp_path).items()} == {
        "files": (3, 4),
        "letter.md": (1, 1),
        "other": (1, 1),
    }


def test_index_alone_brings_all_that_the_table_knows_up_to_date(
    files: Path, other: Path, index: Index, tmp_path: Path
) -> None:
    with pytest.raises(lancelot.LancelotError, match="knows no folder yet"):
        index()
    assert not (tmp_path / "db").exists()
    index(files, exclude=("*.py",))
    index(other)
    for folder in (files, other):
        (folder / "new.md").write_text(f"New in {folder}.", encoding="utf-8")
    (files / "guide.md").unlink()
    summary = index()
    assert (counts(summary), summary.partial) == ((2, 0, 2, 1), False)
    assert summary.notes[0].startswith(f"The patterns of the last run over {files} hold: --exclude '*.py'.")
    version = open_table(tmp_path).version
    assert counts(index()) == (0, 0, 4, 0)
    assert open_table(tmp_path).version == version


@pytest.mark.parametrize("how", ["missing", "emptied", "a link"])
def test_a_folder_that_is_not_as_it_was_is_named_and_stops_nothing(
    how: str, files: Path, other: Path, index: Index, tmp_path: Path
) -> None:
    index(files, other)
    files.rename(tmp_path / "elsewhere")
    if how == "emptied":
        files.mkdir()
    elif how == "a link":
        files.symlink_to(tmp_path / "elsewhere")
    (other / "new.md").write_text("New.", encoding="utf-8")
    summary = index()
    assert (counts(summary), summary.partial) == ((1, 0, 1, 0), True)
    told = {"missing": f"--moved {files} NEW", "emptied": "--force-empty", "a link": f"{files} is a link to "}[how]
    assert told in "".join(summary.notes)
    assert len(names_of(tmp_path)) == 5
    assert set(roots_of(tmp_path)) == {"files", "other"}
    assert roots_of(tmp_path)["files"].get("missing", False) == (how == "missing")


def test_a_single_file_leaves_the_table_when_it_is_deleted_and_not_with_its_disk(
    files: Path, index: Index, tmp_path: Path
) -> None:
    hidden, disk = files / ".draft.md", tmp_path / "disk"
    hidden.write_text("A draft.", encoding="utf-8")
    disk.mkdir()
    for name in ("x.md", "y.md"):
        (disk / name).write_text(name, encoding="utf-8")
    index(hidden, disk / "x.md")
    assert counts(index(files)) == (3, 0, 1, 0)  # which leaves hidden files out, but not one that was named
    for name in ("x.md", "y.md"):
        (disk / name).rename(tmp_path / name)
    assert (index().partial, "x.md" in names_of(tmp_path)) == (True, True)
    (tmp_path / "y.md").rename(disk / "y.md")
    hidden.unlink()
    assert counts(index()) == (0, 0, 3, 2)
    assert set(roots_of(tmp_path)) == {"files"}


def test_a_folder_in_another_keeps_its_own_patterns_and_what_the_outer_one_leaves_out(
    files: Path, index: Index, tmp_path: Path
) -> None:
    hidden = files / ".private"
    hidden.mkdir()
    (hidden / "diary.md").write_text("Dear diary.", encoding="utf-8")
    index(files)
    index(hidden)
    index(files / "notes", include=("*.py",), yes=True)
    version = open_table(tmp_path).version
    expected = {"guide.md", "brew.py", "diary.md"}
    for folders in ((), (files,), (hidden,), (files / "notes",)):
        assert index(*folders).removed == []
        assert (names_of(tmp_path), open_table(tmp_path).version) == (expected, version)
    shutil.rmtree(files / "notes")
    shutil.rmtree(hidden)
    assert counts(index(files, yes=True)) == (0, 0, 1, 2)
    assert set(roots_of(tmp_path)) == {"files"}


def test_of_a_table_of_an_earlier_version_the_topmost_folders_that_hold_files_are_taken(
    files: Path, other: Path, index: Index, tmp_path: Path
) -> None:
    index(files / "notes", other)
    index(files / "guide.md")
    field = {"path": "chunkSource", "metadata": {"index_patterns": f'{{"{other}":{{"exclude":["x"]}}}}'}}
    open_table(tmp_path).update_field_metadata(field)
    assert set(roots_of(tmp_path)) == {"files", "other"}
    assert roots_of(tmp_path)["other"]["exclude"] == ["x"]
    assert all(root["lastRun"].startswith("20") for root in roots_of(tmp_path).values())
    (files / "new.md").write_text("New.", encoding="utf-8")
    (tmp_path / "beside.md").write_text("Beside.", encoding="utf-8")
    assert counts(index()) == (1, 0, 4, 0)


@pytest.mark.parametrize(
    "noted", ["", "[]", "{", '{"/x":1,"/y":{"run":5,"include":"*","exclude":7},"/z":{"run":"x","exclude":[1]}}']
)
def test_whatever_is_noted_in_a_table_is_read(noted: str, files: Path, index: Index, tmp_path: Path) -> None:
    index(files)
    open_table(tmp_path).update_field_metadata({"path": "chunkSource", "metadata": {"index_patterns": noted}})
    listed = lancelot_index.list_roots(lancelot_index.IndexRequest((), tmp_path / "db", "documents"))
    assert [root["files"] for root in listed if root["folder"] == str(files)] == [3]
    assert lancelot_index.roots_lines(listed).count("\n") == len(listed)
    assert index().unchanged == 3


def test_what_was_moved_is_pointed_to_its_new_place_without_reading_or_embedding(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index(files, exclude=("*.log",), OPENAI_BASE_URL=embedding_server(), EMBEDDING_MODEL="m")
    before, new = rows(tmp_path), tmp_path / "papers"
    files.rename(new)
    request = lancelot_index.IndexRequest((files,), tmp_path / "db", "documents")
    with pytest.raises(lancelot.LancelotError, match="nowhere cannot be opened"):
        lancelot_index.move_folder(request, tmp_path / "nowhere")
    assert len(lancelot_index.move_folder(dataclasses.replace(request, dry_run=True), new)) == 3
    assert rows(tmp_path) == before
    monkeypatch.setattr(lancelot_index, "BATCH_CHUNKS", 1)
    assert len(lancelot_index.move_folder(request, new)) == 3
    monkeypatch.setattr(lancelot_index, "hash_file", None)
    summary = index()
    assert (counts(summary), summary.without_vector) == ((0, 0, 3, 0), 0)
    assert roots_of(tmp_path)["papers"]["exclude"] == ["*.log"]
    moved = rows(tmp_path)
    (tmp_path / "db").rename(tmp_path / "before")
    index(new)
    fresh = rows(tmp_path)
    for row in moved:
        assert len(row.pop("vector")) == 384
    assert moved == fresh
    with pytest.raises(lancelot.LancelotError, match="holds nothing of"):
        lancelot_index.move_folder(request, new)


def test_what_was_indexed_anew_before_it_was_pointed_to_its_new_place_is_there_once(
    files: Path, index: Index, tmp_path: Path
) -> None:
    index(files)
    files.rename(tmp_path / "papers")
    (tmp_path / "papers" / "guide.md").write_text("Changed.", encoding="utf-8")
    index(tmp_path / "papers" / "guide.md")
    lancelot_index.move_folder(lancelot_index.IndexRequest((files,), tmp_path / "db", "documents"), tmp_path / "papers")
    assert [row["text"] for row in rows(tmp_path) if row["file_name"] == "guide.md"] == ["Changed."]
    assert counts(index()) == (0, 0, 3, 0)


def test_a_file_of_a_new_name_is_read_and_embedded_again_since_its_name_is_embedded_too(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str]
) -> None:
    variables = {"OPENAI_BASE_URL": embedding_server(), "EMBEDDING_MODEL": "hash"}
    index(files / "notes" / "plan.txt", **variables)
    (before,) = (row["vector"] for row in rows(tmp_path))
    new = (files / "notes" / "plan.txt").rename(files / "shopping.txt")
    request = lancelot_index.IndexRequest((files / "notes" / "plan.txt",), tmp_path / "db", "documents")
    lancelot_index.move_folder(request, new)
    summary = index(**variables)
    assert (counts(summary), summary.without_vector) == ((0, 1, 0, 0), 0)
    assert [(row["file_name"], row["title"]) for row in rows(tmp_path)] == [("shopping.txt", "shopping")]
    assert before != rows(tmp_path)[0]["vector"]


def test_what_is_forgotten_is_no_longer_listed(files: Path, other: Path, index: Index, tmp_path: Path) -> None:
    index(files, other)
    (other / "a.txt").unlink()
    index(other, force_empty=True)
    for folder in (other, files):
        lancelot_index.forget_folder(lancelot_index.IndexRequest((folder,), tmp_path / "db", "documents"))
    assert roots_of(tmp_path) == {}


def test_a_dry_run_names_the_files(files: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index(files)
    (files / "guide.md").unlink()
    for number in range(3):
        (files / f"{number}.md").write_text(f"Number {number}.", encoding="utf-8")
    monkeypatch.setattr(lancelot_index, "MAX_CHANGES_SHOWN", 2)
    summary = index(files, dry_run=True)
    new = [str(files / f"{number}.md") for number in range(3)]
    assert lancelot_index.index_lines(summary).splitlines()[1:5] == [
        *(f"new: {name}" for name in new[:2]),
        "new: 1 more, which --verbose names",
        f"removed: {files / 'guide.md'}",
    ]
    assert f"new: {new[2]}" in lancelot_index.index_lines(summary, verbose=True)
    answer = lancelot_index.index_object(summary)
    assert (answer["new"], answer["updated"], answer["removed"]) == (new, [], [str(files / "guide.md")])


# The table


def test_a_table_of_another_program_is_never_touched(files: Path, index: Index, tmp_path: Path) -> None:
    database = lancedb.connect(tmp_path / "db")
    table = database.create_table("documents", [{"id": "1", "text": "theirs"}])
    version = table.version
    with pytest.raises(lancelot.LancelotError, match="was not made by `lancelot index`, so it is left as it is"):
        index(files)
    assert (table.version, table.to_arrow().to_pylist()) == (version, [{"id": "1", "text": "theirs"}])


def prepared_table(tmp_path: Path, schema: pa.Schema) -> Any:
    return lancedb.connect(tmp_path / "db").create_table("documents", schema=schema)


OWN = lancelot_index.chunk_schema()
CHANGED = {
    "metadata of the schema": (
        OWN.with_metadata({**(OWN.metadata or {}), b"embedding_functions": b"[]"}),
        "the metadata embedding_functions",
    ),
    "metadata of the engine": (
        OWN.with_metadata({**(OWN.metadata or {}), b"lancedb::column_definitions": b"[]"}),
        "the metadata lancedb::column_definitions",
    ),
    "metadata of a column": (
        OWN.set(1, pa.field("text", pa.string(), metadata={"lance-encoding:packed": "true"})),
        "the metadata lance-encoding:packed of the column text",
    ),
    "metadata of the vectors": (
        OWN.append(pa.field("vector", pa.list_(pa.float32(), 8), metadata={"a\nkey": ""})),
        "the metadata a key of the column vector",
    ),
    "a column more": (OWN.append(pa.field("more", pa.string())), "the column more"),
    "a column less": (OWN.remove(2), "the column title"),
    "another type": (OWN.set(6, pa.field("chunk_index", pa.string())), "the column chunk_index"),
    "no nulls": (OWN.set(0, pa.field("id", pa.string(), nullable=False)), "the column id"),
    "vectors of bytes": (OWN.append(pa.field("vector", pa.list_(pa.int8(), 8))), "the column vector"),
    "vectors of any length": (OWN.append(pa.field("vector", pa.list_(pa.float32()))), "the column vector"),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_table_with_our_mark_that_somebody_else_prepared_is_never_written_to(
    kind: str, files: Path, index: Index, tmp_path: Path
) -> None:
    schema, part = CHANGED[kind]
    version = prepared_table(tmp_path, schema).version
    for options in ({}, {"force": True}, {"dry_run": True}):
        with pytest.raises(lancelot.LancelotError) as refused:
            index(files, **options)
        told = f"The table documents differs from what `lancelot index` makes ({part}), so it is left as it is."
        assert str(refused.value).startswith(told)
    assert open_table(tmp_path).version == version


@pytest.mark.parametrize("length", [0, 8])
def test_a_table_of_an_earlier_version_is_brought_up_to_date(
    length: int, files: Path, index: Index, tmp_path: Path
) -> None:
    metadata = {"embedding_model": "m", "embedding_length": "8"}
    vectors = [pa.field("vector", pa.list_(pa.float32(), length), metadata=metadata)] if length else []
    mark: dict[bytes | str, bytes | str] = {b"lancelot": b'{"version":"0.0.9"}'}
    columns = [column.with_metadata(None) for column in OWN if column.name != "file_size"]
    prepared_table(tmp_path, pa.schema([*columns, *vectors], metadata=mark))
    assert counts(index(files)) == (3, 0, 0, 0)


def test_files_in_a_table_without_their_sizes_are_compared_by_content_once(
    files: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(files)
    before = rows(tmp_path)
    open_table(tmp_path).drop_columns(["file_size"])
    assert counts(index(files, dry_run=True)) == (0, 0, 3, 0)
    assert "file_size" not in open_table(tmp_path).schema.names
    assert counts(index(files)) == (0, 0, 3, 0)
    assert rows(tmp_path) == before
    monkeypatch.setattr(lancelot_index, "hash_file", None)
    version = open_table(tmp_path).version
    assert counts(index(files)) == (0, 0, 3, 0)
    assert open_table(tmp_path).version == version


def test_the_next_files_are_read_while_some_are_written_and_a_write_that_fails_ends_the_run(
    files: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, extract = threading.Event(), lancelot_reading.Extractor.extract
    replace_files, failing = lancelot_index.ChunkTable.replace, [True]
    failure = ("The disk is full.", lancelot_index.TRY_AGAIN)

    def read(extractor: lancelot_reading.Extractor, path: Path) -> lancelot_reading.Extraction:
        if path.name != "guide.md":  # the first in order
            reading.set()
        return extract(extractor, path)

    def write(table: lancelot_index.ChunkTable, batch: Any, *args: Any, **options: Any) -> None:
        ((file, _),) = batch
        if file.path.name == "guide.md":
            assert reading.wait(30), "nothing is read meanwhile"
        elif failing[0]:
            raise lancelot.LancelotError(*failure)
        replace_files(table, batch, *args, **options)

    monkeypatch.setattr(lancelot_reading.Extractor, "extract", read)
    monkeypatch.setattr(lancelot_index.ChunkTable, "replace", write)
    monkeypatch.setattr(lancelot_index, "BATCH_FILES", 1)
    with pytest.raises(lancelot.LancelotError, match="disk is full"):
        index(files)
    assert {row["chunkSource"] for row in rows(tmp_path)} == {str(files / "guide.md")}
    failing[0] = False
    assert counts(index(files)) == (2, 0, 1, 0)
    expected = rows(tmp_path)
    shutil.rmtree(tmp_path / "db")
    index(files)
    assert rows(tmp_path) == expected


def test_no_embedding_function_of_a_table_is_run_by_a_write(files: Path, index: Index, tmp_path: Path) -> None:
    model = {"name": "text-embedding-ada-002", "base_url": "http://127.0.0.1:1/v1", "api_key": "k", "max_retries": 0}
    function = {"name": "openai", "model": model, "source_column": "text", "vector_column": "vector"}
    metadata = {**(OWN.metadata or {}), b"embedding_functions": json.dumps([function]).encode()}
    table = prepared_table(tmp_path, OWN.append(lancelot_index.vector_field("m", 8)).with_metadata(metadata))
    index(files, table="other")  # loads the package as any command does
    found = lancelot_index.FoundFile(files / "guide.md", "guide.md", 1, 1.0)
    chunk = lancelot_reading.Chunk("words", "", "", 0, "text")
    with pytest.raises(KeyError, match="openai"):
        lancelot_index.ChunkTable(table).replace([(found, lancelot_reading.Extraction((chunk,)))])
    assert table.count_rows() == 0


def test_the_schema_tells_who_made_it(files: Path, index: Index, tmp_path: Path) -> None:
    index(files)
    metadata = open_table(tmp_path).schema.metadata
    assert json.loads(metadata[b"lancelot"]) == {"version": lancelot.__version__}


def test_every_option_of_the_full_text_indexes_is_set(files: Path, index: Index, tmp_path: Path) -> None:
    index(files)
    indexes = {found.columns[0]: found for found in open_table(tmp_path).list_indices()}
    for column in ("text", "title"):
        details = indexes[column].index_details
        assert details["base_tokenizer"] == "icu/split"
        assert details["language"] == "English"
        assert details["max_token_length"] == 128
        assert details["remove_stop_words"] is False
        assert all(details[name] for name in ("stem", "lower_case", "ascii_folding", "with_position"))
    assert indexes.keys() == {"text", "title"}
    assert all(found.num_unindexed_rows == 0 for found in indexes.values())


def test_a_large_table_gets_indexes_of_the_columns_that_filters_and_updates_use(
    files: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot_index, "SCALAR_INDEX_ROWS", 4)
    index(files)
    kinds = {found.columns[0]: found.index_type for found in open_table(tmp_path).list_indices()}
    assert kinds.items() >= {"id": "BTree", "chunkSource": "BTree", "file_type": "Bitmap"}.items()
    assert len(kinds) == 5


def test_a_language_is_kept_until_another_one_is_named(files: Path, index: Index, tmp_path: Path) -> None:
    def language() -> str:
        (found,) = [one for one in open_table(tmp_path).list_indices() if one.columns == ["text"]]
        return str(found.index_details["language"])

    index(files, language="Swedish")
    assert language() == "Swedish"
    (files / "more.txt").write_text("mer te", encoding="utf-8")
    index(files)
    assert language() == "Swedish"
    index(files, language="German")
    assert language() == "German"


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden", "ta ble", "tä"])
def test_a_name_that_is_none_for_a_table_is_refused(name: str, files: Path, index: Index) -> None:
    with pytest.raises(lancelot.LancelotError, match="cannot be the name of a table"):
        index(files, table=name)


def test_a_folder_that_is_not_there_is_refused(index: Index, tmp_path: Path) -> None:
    with pytest.raises(lancelot.LancelotError, match="missing cannot be opened"):
        index(tmp_path / "missing")
    assert not (tmp_path / "db").exists()


def test_two_runs_do_not_write_at_the_same_time(files: Path, index: Index, tmp_path: Path) -> None:
    with lancelot_index.write_lock(tmp_path / "db"), pytest.raises(lancelot.LancelotError, match="Another run of"):
        index(files)
    assert counts(index(files)) == (3, 0, 0, 0)


def test_a_table_whose_making_was_cut_short_is_made_again(files: Path, index: Index, tmp_path: Path) -> None:
    versions = tmp_path / "db" / "documents.lance" / "_versions"
    versions.mkdir(parents=True)
    (versions / "18446744073709551614.manifest#1").write_bytes(b"half")
    assert counts(index(files)) == (3, 0, 0, 0)


# Vectors


def test_a_later_run_with_a_server_fills_in_vectors_only(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str]
) -> None:
    index(files)
    before = rows(tmp_path)
    summary = index(files, OPENAI_BASE_URL=embedding_server(), EMBEDDING_MODEL="hash")
    assert counts(summary) == (0, 0, 3, 0)
    assert summary.without_vector == 0
    after = rows(tmp_path)
    assert all(len(row.pop("vector")) == 384 for row in after)
    assert after == before


def test_the_table_knows_its_model_and_queries_are_embedded_with_it(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str], make_searcher: Callable[..., Any]
) -> None:
    log = tmp_path / "log.jsonl"
    url = embedding_server("--log", str(log))
    index(files, OPENAI_BASE_URL=url, EMBEDDING_MODEL="model-of-the-table")
    field = open_table(tmp_path).schema.field("vector")
    assert field.metadata == {
        b"embedding_model": b"model-of-the-table",
        b"embedding_length": b"384",
        b"embedding_complete": b"yes",
    }
    searcher = make_searcher(LANCEDB_PATH=tmp_path / "db", OPENAI_BASE_URL=url, EMBEDDING_MODEL="another")
    assert searcher.search(lancelot.SearchRequest("tea", 3, "vector")).ran == "vector"
    sent = [json.loads(line)["body"]["model"] for line in log.read_text(encoding="utf-8").splitlines()]
    assert set(sent) == {"model-of-the-table"}


def test_a_reader_that_cannot_embed_with_the_model_of_the_table_says_so(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str], make_searcher: Callable[..., Any]
) -> None:
    index(files, OPENAI_BASE_URL=embedding_server(), EMBEDDING_MODEL="model-of-the-table")
    url = embedding_server("--fail-with", "404")
    searcher = make_searcher(LANCEDB_PATH=tmp_path / "db", OPENAI_BASE_URL=url)
    page = searcher.search(lancelot.SearchRequest("tea", 3, "vector"))
    assert page.ran == "text"
    assert "The vectors of documents were made with model-of-the-table." in page.notes[0]


def test_new_chunks_are_embedded_and_known_texts_are_not_sent_again(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str]
) -> None:
    log = tmp_path / "log.jsonl"
    variables = {"OPENAI_BASE_URL": embedding_server("--log", str(log)), "EMBEDDING_MODEL": "hash"}
    index(files, **variables)
    log.unlink()
    text = FILES["guide.md"] + "\n## Cups\n\nWarm the cups.\n"
    (files / "guide.md").write_text(text, encoding="utf-8")
    assert index(files, **variables).without_vector == 0
    sent = [json.loads(line)["body"]["input"] for line in log.read_text(encoding="utf-8").splitlines()]
    (title,) = (row["title"] for row in rows(tmp_path) if "Warm the cups" in row["text"])
    assert sent == [f"guide.md\n{title}\n\n## Cups\n\nWarm the cups."]


def test_a_server_that_fails_leaves_a_whole_table_without_vectors_and_a_note(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str]
) -> None:
    summary = index(files, OPENAI_BASE_URL=embedding_server("--fail-with", "401"), EMBEDDING_MODEL="hash")
    assert counts(summary) == (3, 0, 0, 0)
    assert summary.without_vector == summary.chunks == len(rows(tmp_path))
    assert "asks for an API key" in summary.notes[0]


def test_vectors_of_another_length_are_told_and_by_force_made_anew(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str]
) -> None:
    index(files, OPENAI_BASE_URL=embedding_server(), EMBEDDING_MODEL="m")
    url = embedding_server("--dimensions", "64")
    (files / "more.txt").write_text("More tea.", encoding="utf-8")
    summary = index(files, OPENAI_BASE_URL=url, EMBEDDING_MODEL="m")
    assert summary.without_vector == 1
    assert "m gives vectors of length 64 now, and those of the table have 384; --force" in summary.notes[0]
    assert "without a vector: 1 chunk" in lancelot_index.index_lines(summary)
    assert index(files, OPENAI_BASE_URL=url, EMBEDDING_MODEL="m", force=True).without_vector == 0
    assert open_table(tmp_path).schema.field("vector").metadata[b"embedding_length"] == b"64"


def test_force_without_a_server_keeps_the_vectors_that_there_are(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str]
) -> None:
    index(files, OPENAI_BASE_URL=embedding_server(), EMBEDDING_MODEL="m")
    before = rows(tmp_path)
    assert index(files, force=True).without_vector == 0
    assert index(files, force=True, OPENAI_BASE_URL=embedding_server("--fail-with", "401")).without_vector == 0
    assert rows(tmp_path) == before


def test_rows_that_have_no_vector_yet_are_told_by_searches_and_the_status(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str], make_searcher: Callable[..., Any]
) -> None:
    url = embedding_server()
    index(files, OPENAI_BASE_URL=url, EMBEDDING_MODEL="m")
    (files / "more.txt").write_text("More tea.", encoding="utf-8")
    index(files)
    searcher = make_searcher(LANCEDB_PATH=tmp_path / "db", OPENAI_BASE_URL=url)
    for search_type in ("vector", "hybrid"):
        (note,) = searcher.search(lancelot.SearchRequest("tea", 3, search_type)).notes
        assert note.startswith("1 row of documents has no vector, so that ")
        assert note.endswith("`lancelot index` makes the vectors that are missing.")
    told = [check.message for check in lancelot.examined_status(searcher).checks if check.status != "ok"]
    assert "1 row of documents has no vector, so only words find them." in told
    index(files, OPENAI_BASE_URL=url, EMBEDDING_MODEL="m")
    assert searcher.search(lancelot.SearchRequest("tea", 3, "vector")).notes == ()
    version = open_table(tmp_path).version
    index(files, OPENAI_BASE_URL=url, EMBEDDING_MODEL="m")
    assert open_table(tmp_path).version == version


def test_by_force_another_model_takes_the_place_of_the_one_before(
    files: Path, index: Index, tmp_path: Path, embedding_server: Callable[..., str]
) -> None:
    other = tmp_path / "more"
    other.mkdir()
    (other / "a.txt").write_text("Other tea.", encoding="utf-8")
    url = embedding_server()
    index(files, OPENAI_BASE_URL=url, EMBEDDING_MODEL="first")
    index(other, OPENAI_BASE_URL=url, EMBEDDING_MODEL="first")
    summary = index(files, OPENAI_BASE_URL=url, EMBEDDING_MODEL="second")
    assert summary.notes == ["The vectors are by first, which is used again; --force makes them by second."]
    assert open_table(tmp_path).schema.field("vector").metadata[b"embedding_model"] == b"first"
    summary = index(files, OPENAI_BASE_URL=url, EMBEDDING_MODEL="second", force=True)
    assert open_table(tmp_path).schema.field("vector").metadata[b"embedding_model"] == b"second"
    assert summary.without_vector == 0


def test_what_has_no_vector_is_counted_below_the_folder_alone(files: Path, index: Index, tmp_path: Path) -> None:
    other = tmp_path / "more"
    other.mkdir()
    (other / "a.txt").write_text("Other tea.", encoding="utf-8")
    index(files)
    summary = index(other)
    assert (summary.chunks, summary.without_vector) == (1, 1)


# Cut short


def start_index(files: Path, tmp_path: Path, *options: str, **environ: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "index", str(files), "--path", str(tmp_path / "db"), "--json", *options]
    return subprocess.Popen(
        command,
        env=child_environment(**environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def many_files(tmp_path: Path) -> Path:
    """Files enough for a run of some seconds and several commits."""
    root = tmp_path / "many"
    for number in range(1200):
        path = root / f"{number % 7}" / f"{number}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# Number {number}\n\n" + f"Some words on {number}. " * 60 + "\n", encoding="utf-8")
    return root


def test_a_run_that_is_killed_is_finished_by_the_next(many_files: Path, index: Index, tmp_path: Path) -> None:
    moments = [0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.2, 2.6] if not os.environ.get("KILLS") else []
    moments += [0.2 + 0.2 * number for number in range(int(os.environ.get("KILLS", "0")))]
    cut = 0
    for moment in moments:
        run = start_index(many_files, tmp_path)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.communicate(timeout=moment)
        cut += run.poll() is None
        run.kill()
        run.communicate(timeout=30)
    index(many_files)
    killed = rows(tmp_path)
    assert cut >= len(moments) // 2
    (tmp_path / "db").rename(tmp_path / "killed")
    index(many_files)
    assert killed == rows(tmp_path)


@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGINT"])
def test_a_run_that_is_stopped_ends_soon_and_leaves_whole_files(
    how: str, many_files: Path, index: Index, tmp_path: Path
) -> None:
    run = start_index(many_files, tmp_path, *(["--report"] if how == "end of input" else []))
    assert run.stdin is not None
    deadline = time.monotonic() + 30
    while not (tmp_path / "db" / "documents.lance" / "data").is_dir():
        assert time.monotonic() < deadline
        assert run.poll() is None
        threading.Event().wait(0.02)
    if how == "end of input":
        run.stdin.close()
        run.stdin = None
    else:
        run.send_signal(getattr(signal, how))
    out, err = run.communicate(timeout=30)
    answer = json.loads(out.splitlines()[-1])
    assert answer["stopped"], (out, err)
    assert 0 < answer["totalFiles"] < 1200
    by_file: dict[str, int] = {}
    for row in rows(tmp_path):
        by_file[row["chunkSource"]] = by_file.get(row["chunkSource"], 0) + 1
    assert len(by_file) == answer["totalFiles"]
    summary = index(many_files)
    assert len(summary.new) + summary.unchanged == 1200


# The local model

ON = {"LANCELOT_LOCAL_MODEL": "on"}
NOTES = {
    "leak.md": "# Boiler\n\nThe seal broke and water escaped.\n",
    "pay.md": "# Bill\n\nTo be paid in thirty days.\n",
}


def make_files(folder: Path, texts: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def vectors_of(tmp_path: Path) -> list[list[float] | None]:
    table = open_table(tmp_path)
    return table.to_arrow()["vector"].to_pylist() if "vector" in table.schema.names else [None] * table.count_rows()


def test_where_nothing_else_is_set_the_local_model_embeds_and_meaning_finds(
    tmp_path: Path, index: Index, make_searcher: Callable[..., lancelot.Searcher]
) -> None:
    folder = make_files(tmp_path / "notes", NOTES)
    run = index(folder, **ON)
    assert (run.model, run.without_vector, run.notes) == (lancelot.LOCAL_MODEL, 0, [])
    searcher = make_searcher(LANCEDB_PATH=tmp_path / "db", **ON)
    page = searcher.search(lancelot.SearchRequest("leaking heater", 5, "auto"))
    assert (page.ran, page.hits[0].title) == ("vector", "Boiler")
    version = open_table(tmp_path).version
    index(folder, **ON)
    assert open_table(tmp_path).version == version


def test_a_table_without_vectors_gets_them_in_the_next_run_and_none_when_they_are_not_wanted(
    tmp_path: Path, index: Index, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_files(tmp_path / "notes", NOTES)
    assert index(folder).without_vector == 2
    assert vectors_of(tmp_path) == [None, None]
    words = ("index", str(folder), "--path", str(tmp_path / "db"), "--json")
    monkeypatch.setenv("LANCELOT_LOCAL_MODEL", "on")
    report = json.loads(run(*words, "--no-embeddings").out)
    assert report["chunksWithoutVector"] == 2
    assert "--no-embeddings was given" in report["notes"][0]
    assert index(folder, **ON).without_vector == 0
    assert all(vectors_of(tmp_path))


def test_the_local_model_leaves_the_vectors_of_an_endpoint_alone(
    tmp_path: Path, index: Index, embedding_server: Callable[..., str]
) -> None:
    folder = make_files(tmp_path / "notes", NOTES)
    served = {"OPENAI_BASE_URL": embedding_server(), "EMBEDDING_MODEL": "hash"}
    assert index(folder, **served, **ON).model == "hash"
    before = vectors_of(tmp_path)
    make_files(folder, {"new.md": "# New\n\nWords that are new here.\n"})
    later = index(folder, **ON)
    assert (later.model, later.without_vector) == ("hash", 1)
    assert "The vectors are by hash, and new chunks are left without one." in later.notes[0]
    assert [vector for vector in vectors_of(tmp_path) if vector] == before
    named = index(folder, force=True, **served | ON | {"EMBEDDING_MODEL": "local"})
    assert (named.model, named.without_vector) == (lancelot.LOCAL_MODEL, 0)


def test_a_table_of_the_local_model_stays_with_it_whatever_is_set(
    tmp_path: Path, index: Index, embedding_server: Callable[..., str]
) -> None:
    folder = make_files(tmp_path / "notes", NOTES)
    index(folder, **ON)
    make_files(folder, {"new.md": "# New\n\nWords that are new here.\n"})
    served = {"OPENAI_BASE_URL": embedding_server(), "EMBEDDING_MODEL": "hash"}
    run = index(folder, **served, **ON)
    assert (run.model, run.without_vector) == (lancelot.LOCAL_MODEL, 0)
    assert "which is used again" in run.notes[0]
    assert index(folder, force=True, **served, **ON).model == "hash"


def test_a_damaged_model_leaves_a_table_for_words_and_says_so(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("model.onnx", "tokenizer.json")]
    for file in files:
        file.write_bytes(b"broken")
    monkeypatch.setattr(lancelot, "local_files", lambda: files)
    run = index(make_files(tmp_path / "notes", NOTES), **ON)
    assert run.without_vector == 2
    assert "is damaged" in " ".join(run.notes)
