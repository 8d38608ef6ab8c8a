"""Documents to chunks, and the process that does it: sizes, coverage, places, and files that end their reader."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from email.message import EmailMessage
from pathlib import Path

import pytest
from conftest import PROJECT, child_environment
from hypothesis import given
from hypothesis import strategies as st

import lancelot
import lancelot_reading
from lancelot_reading import Chunk, Document, Section, cut_document

COMMAND = [sys.executable, str(PROJECT / "lancelot.py"), lancelot.EXTRACT_COMMAND]
WORDS = st.lists(
    st.text("abcdefgh", min_size=1, max_size=30) | st.sampled_from(["\n", "\n\n", ". ", "\t", "漢字。", "e\u0301"]),
    max_size=600,
)


def chunks_of(text: str, name: str = "notes.txt") -> list[Chunk]:
    return list(cut_document(lancelot_reading.read_document(name, text.encode()), name=name))


# Chunks


@given(st.sampled_from(["a.txt", "a.md", "a.rst", "a.py", "a.html", "a.csv"]), WORDS.map(" ".join))
def test_no_chunk_is_longer_than_allowed_and_no_word_is_lost_or_cut(name: str, text: str) -> None:
    if name == "a.csv":  # a table says nothing of columns without a value
        text = text.replace("\t", " ")
    if not text.strip():
        return
    chunks = chunks_of(text, name)
    assert all(0 < len(chunk.text) <= lancelot_reading.CHUNK_CHARACTERS for chunk in chunks)
    found = {word for chunk in chunks for word in re.findall("[a-h]+", chunk.text)}
    assert found == set(re.findall("[a-h]+", text))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))


@given(WORDS.map(" ".join))
def test_the_chunks_of_a_text_cover_it_and_stand_where_they_say(text: str) -> None:
    if not text.strip():
        return
    at = covered = 0
    for chunk in chunks_of(text):
        at = text.index(chunk.text, max(at, covered - lancelot_reading.CHUNK_OVERLAP - 1))
        assert not text[covered:at].strip()
        first, last = (text.count("\n", 0, end) + 1 for end in (at, at + len(chunk.text) - 1))
        assert chunk.place == (f"line {first}" if first == last else f"lines {first}-{last}")
        covered = at + len(chunk.text)
    assert not text[covered:].strip()


def test_a_long_text_is_cut_between_words_where_its_blocks_end() -> None:
    text = " ".join(f"word{number:06}" for number in range(20_000))
    chunks = chunks_of(text)
    assert {word for chunk in chunks for word in chunk.text.split()} == set(text.split())
    overlap = sum(len(chunk.text) for chunk in chunks) - len(text)
    assert overlap < len(chunks) * lancelot_reading.CHUNK_OVERLAP


def test_rows_are_packed_and_none_is_cut() -> None:
    rows = "".join(f"person {number},city {number},{'x' * 60}\n" for number in range(30))
    chunks = chunks_of("name,place,note\n" + rows, "people.csv")
    assert chunks[0].place == "rows 2-12"
    assert [int(number) for chunk in chunks for number in re.findall(r"name: person (\d+)", chunk.text)] == [*range(30)]
    assert all(chunk.text.startswith("name: ") and chunk.text.endswith("x" * 60) for chunk in chunks)


ROWS = [(f"person {number}", f"{'words ' * 8}{number}") for number in range(200)]


@pytest.mark.parametrize(
    ("name", "text", "header"),
    [
        (
            "a.md",
            "Intro\n\n| Name   | A \\| note |\n|:--|---:|\n"
            + "".join(f"| {a} | {b} |\n" for a, b in ROWS)
            + "\nAfter\n" * 400,
            "| Name | A \\| note |",
        ),
        ("a.md", "Name | Note\n--- | ---\n" + "\n".join(f"{a} | {b}" for a, b in ROWS), "Name | Note"),
        (
            "a.html",
            "<p>Intro<table><tr><th>Name</th><th>Note</th></tr>"
            + "".join(f"<tr><td>{a}</td><td>{b}</td></tr>" for a, b in ROWS)
            + "</table>"
            + "<p>After</p>" * 400,
            "Name | Note",
        ),
        (
            "a.ipynb",
            json.dumps(
                {
                    "cells": [
                        {
                            "cell_type": "markdown",
                            "source": "# Head\n\nName | Note\n--- | ---\n" + "\n".join(f"{a} | {b}" for a, b in ROWS),
                        }
                    ]
                }
            ),
            "Name | Note",
        ),
    ],
)
def test_a_table_that_is_cut_has_its_header_in_every_chunk(name: str, text: str, header: str) -> None:
    chunks = chunks_of(text, name)
    held = [lancelot.one_line(chunk.text) for chunk in chunks]
    rows = [text for text in held if "person" in text]
    assert len(rows) > 10
    assert all(text.startswith(("Intro", "# Head", header)) and text.count(header) == 1 for text in rows)
    assert not any(header in text for text in held if "person" not in text)
    assert {number for text in rows for number in re.findall(r"person (\d+)", text)} == {str(at) for at in range(200)}
    assert all(len(chunk.text) <= lancelot_reading.CHUNK_CHARACTERS + 1 for chunk in chunks)


def test_a_header_that_is_longer_than_it_says_is_repeated_in_part() -> None:
    header = "| " + " | ".join(f"column {number}" for number in range(60)) + " |"
    rows = "".join("| " + " | ".join(f"{at}-{number}" for number in range(60)) + " |\n" for at in range(20))
    chunks = chunks_of(f"{header}\n{'|-' * 60}|\n{rows}", "a.md")
    assert chunks[0].text.startswith(header)
    assert len(chunks) > 3
    assert all(chunk.text.startswith("| column 0 | column 1 |") for chunk in chunks)


def test_pages_run_on_and_sections_with_other_titles_do_not() -> None:
    pages = (
        Section("one", "T", place="page 1"),
        Section("two", "T", place="page 3"),
        Section("three", "U", place="page 3"),
    )
    chunks = list(cut_document(Document("pdf", pages), name="a.pdf"))
    assert [(chunk.text, chunk.title, chunk.place) for chunk in chunks] == [
        ("one\n\ntwo", "T", "pages 1-3"),
        ("three", "U", "page 3"),
    ]


def test_scraps_of_code_stand_with_their_neighbours() -> None:
    text = "namespace n {\nclass A {\n  int f() {\n    return 1;\n  }\n  int g() {\n    return 2;\n  }\n};\n}\n"
    assert [(chunk.title, chunk.place) for chunk in chunks_of(text, "a.cpp")] == [
        ("A > f", "lines 1-5"),
        ("A > g", "lines 6-10"),
    ]


def test_what_has_no_title_is_named_after_its_file() -> None:
    chunks = list(cut_document(Document("text", (Section("a\ud800\x00b"),)), name="My notes.v2.txt"))
    assert chunks == [Chunk("a\ufffd b", "My notes.v2", "", 0, "text")]
    assert next(cut_document(Document("text", (Section("a"),)), name=".bashrc")).title == ".bashrc"
    assert next(cut_document(Document("text", (Section("a"),)), name="\udcff\n.txt")).title == "\ufffd"


def test_more_chunks_than_allowed_are_left_out_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lancelot_reading, "MAX_CHUNKS", 3)
    (tmp_path / "a.txt").write_text("\n".join(f"word {number}" for number in range(1000)))
    (tmp_path / "b.txt").write_text("one")
    long, short = (next(lancelot_reading.extract_file(str(tmp_path / name))) for name in ("a.txt", "b.txt"))
    assert [chunk.index for chunk in long.chunks] == [0, 1, 2]
    assert long.missing == f"gives more than 3 chunks: what follows {long.chunks[-1].place} is left out"
    assert (len(short.chunks), short.missing) == (1, "")


def test_of_a_table_of_numbers_only_its_beginning_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lancelot_reading, "MAX_NUMBER_CHUNKS", 2)
    numbers = "time,temperature\n" + "".join(f"{at},{at / 7}\n" for at in range(1000))
    words = "time,remark\n" + "".join(f"{at},valve {at} opened\n" for at in range(1000))
    limits = [
        lancelot_reading.chunk_limit(lancelot_reading.read_document(name, text.encode()))
        for name, text in [("a.csv", numbers), ("a.csv", words), ("a.json", str(list(range(5000)))), ("a.txt", numbers)]
    ]
    assert limits == [2, lancelot_reading.MAX_CHUNKS, 2, lancelot_reading.MAX_CHUNKS]


def test_the_same_text_is_one_chunk_of_a_file() -> None:
    pages = [Section("All rights reserved. " * 50, place=f"page {number}") for number in range(1, 9)]
    chunks = list(cut_document(Document("pdf", (*pages, Section("Z" * 900, place="page 9"))), name="a.pdf"))
    assert len({chunk.text for chunk in chunks}) == len(chunks) < 4
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert (chunks[0].place, chunks[-1].place) == ("page 1", "page 9")


# One file


def test_a_file_gives_its_chunks_and_the_hash_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"# Head\r\nwords")
    found = next(lancelot_reading.extract_file(str(tmp_path / "a.md")))
    assert found.hash == hashlib.sha256(b"# Head\r\nwords").hexdigest()
    assert found.chunks == (Chunk("# Head\nwords", "Head", "lines 1-2", 0, "markdown"),)


def test_what_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lancelot_reading, "MAX_FILE_BYTES", 1_000_000)
    with (tmp_path / "big.txt").open("wb") as file:
        file.truncate(1_000_001)
    (tmp_path / "empty.txt").touch()
    os.mkfifo(tmp_path / "pipe.txt")
    found = {
        name: next(lancelot_reading.extract_file(str(tmp_path / name)))
        for name in ("big.txt", "empty.txt", "pipe.txt", "not there", "not there.png", ".")
    }
    assert found["big.txt"].failed == "is larger than 1 MB"
    assert found["empty.txt"].ignored == "empty"
    assert found["pipe.txt"].failed == "is not a regular file"
    assert "No such file" in found["not there"].failed
    assert found["not there.png"].ignored == "picture"
    assert found["."].failed


def test_a_file_that_takes_too_much_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(_name: str, _content: bytes) -> Document:
        raise MemoryError

    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setattr(lancelot_reading, "read_document", exhaust)
    assert (
        next(lancelot_reading.extract_file(str(tmp_path / "a.txt"))).failed == "takes more than 2 GB of memory to read"
    )


# The child process


def test_names_of_any_bytes_are_read(tmp_path: Path) -> None:
    names = [b"caf\xe9.txt", b"new\nline.md", "漢字.py".encode(), b' "quoted" {}.txt']
    with lancelot_reading.Extractor(COMMAND) as extractor:
        for name in names:
            path = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118 - a path of bytes
            with open(path, "wb") as file:  # noqa: PTH123 - a path of bytes
                file.write(b"x = 'hello'")
            assert [chunk.text for chunk in extractor.extract(os.fsdecode(path)).chunks] == ["x = 'hello'"]


@pytest.fixture
def misbehaving(tmp_path: Path) -> list[str]:
    """A child that does to each file what the file says."""
    program = f"""
import os, signal, sys, time
sys.path.insert(0, {str(PROJECT)!r})
import lancelot, lancelot_reading
read = lancelot_reading.read_document
def act(name, content):
    if content.startswith(b"act:"):
        exec(content[4:])
    return read(name, content)
lancelot_reading.read_document = act
sys.exit(lancelot.main(["extract"]))
"""
    (tmp_path / "child.py").write_text(program)
    return [sys.executable, str(tmp_path / "child.py")]


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("while True: pass", "takes longer than 1 s to read"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(99)", "takes longer than 1 s to read"),
        ("os._exit(7)", "ended the process that read it (exit code 7)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended the process that read it (signal 11)"),
        ("raise KeyError", "ended the process that read it (exit code 3)"),
        ("bytearray(3 << 30)", "takes more than 2 GB of memory to read"),
    ],
)
def test_a_file_that_ends_its_reader_fails_and_the_next_is_read(
    action: str, reason: str, misbehaving: list[str], tmp_path: Path
) -> None:
    (tmp_path / "bad.txt").write_text(f"act:{action}")
    (tmp_path / "good.txt").write_text("good")
    with lancelot_reading.Extractor(misbehaving, seconds=60) as extractor:
        assert extractor.extract(tmp_path / "good.txt").chunks[0].text == "good"
        extractor.seconds = 1
        assert extractor.extract(tmp_path / "bad.txt").failed == reason
        extractor.seconds = 60
        assert extractor.extract(tmp_path / "good.txt").chunks[0].text == "good"


def test_a_part_that_ends_the_reader_costs_what_comes_after_it_and_not_the_mail(
    misbehaving: list[str], tmp_path: Path
) -> None:
    mail = EmailMessage()
    mail["From"] = mail["Subject"] = "words"
    for text in ("good", "act:os._exit(7)", "late"):
        mail.add_attachment(text, filename=f"{text[:4]}.txt")
    (tmp_path / "a.eml").write_bytes(mail.as_bytes())
    with lancelot_reading.Extractor(misbehaving) as extractor:
        found = extractor.extract(tmp_path / "a.eml")
    assert [document.name for document in found.documents] == ["", "good.txt"]
    assert found.missing == "is read in part: the rest ended the process that read it (exit code 7)"
    assert found.chunks[0].title == "words"


def test_a_reader_is_given_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    answer = "import json, os; input(); print(json.dumps({'failed': ' '.join(os.environ)}))"
    for environ in (os.environ, {}):
        with lancelot_reading.Extractor([sys.executable, "-c", answer], environ=environ) as extractor:
            given = set(extractor.extract(tmp_path / "a.txt").failed.split())
        assert given <= {*lancelot_reading.EXTRACT_VARIABLES, "LC_CTYPE"}
        assert ("PATH" in given) == bool(environ)


def test_what_a_reader_prints_is_no_answer(misbehaving: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("act:print('{}', flush=True)")
    with lancelot_reading.Extractor(misbehaving) as extractor:
        assert extractor.extract(tmp_path / "a.txt").chunks[0].text.startswith("act:")


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with lancelot_reading.Extractor(COMMAND) as extractor:
        extractor.extract(tmp_path / "a.txt")
        child = extractor.child
        assert child is not None
    assert child.returncode is not None


def test_the_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(PROJECT)!r})
import lancelot, lancelot_reading
extractor = lancelot_reading.Extractor({COMMAND!r})
extractor.extract({str(tmp_path / "a.txt")!r})
print(extractor.child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env=child_environment(), capture_output=True, check=False, timeout=60
    )
    status = Path(f"/proc/{int(ended.stdout)}/stat")
    if not Path("/proc/self").exists():
        pytest.skip("without /proc")
    for _ in range(200):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the child is still there")


def test_the_child_answers_a_line_with_a_line_and_loads_no_database(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    requests = [str(tmp_path / name) for name in ("a.txt", "gone")]
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:]],
        input="".join(json.dumps(request) + "\n" for request in requests).encode(),
        env=child_environment(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    first, second = map(json.loads, ended.stdout.splitlines())
    assert first["chunks"] == [{"text": "words", "title": "a", "place": "line 1", "index": 0, "extractor": "text"}]
    assert second["failed"] == "cannot be opened (No such file or directory)"
    assert not re.search(rb"\| +(lancedb|pyarrow|mcp|openai|numpy)\b", ended.stderr)
