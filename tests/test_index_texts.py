"""Texts with joints of their own, RTF, compressed files, and the kinds of files that are not read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from typing import TYPE_CHECKING

import pytest

import lancelot
import lancelot_reading
from lancelot_reading import IgnoredError, UnreadableError, cut_document, read_document

if TYPE_CHECKING:
    from pathlib import Path


def titles(name: str, text: str) -> list[tuple[str, int]]:
    """The title of each section of a text, and the line where it begins."""
    return [(section.title, section.line) for section in read_document(name, text.encode()).sections]


def refusal(name: str, content: bytes) -> str:
    with pytest.raises(UnreadableError) as caught:
        read_document(name, content)
    return caught.value.cause


YAML = """# settings
name: demo
version: 2
services:
  web: x

  db: y
list:
- a
text: |
  key: none
zeta: 1
"a key":

  b: c
"""
LATEX = r"""\title{A \emph{bold} claim}
before
\section{One \textbf{thing}}
a
\subsection*{Two}
b
% \section{none}
\section[short]{Three}
c
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", YAML, [("", 1), ("services", 4), ("list", 8), ("text", 10), ("", 12), ("a key", 13)]),
        ("a.toml", "x = 1\n[a.b]\ny = [\n  1]\n[[c]]\nz = 2\n", [("", 1), ("a.b", 2), ("c", 5)]),
        ("a.ini", "[one]\na=1\n; [no]\n[two] ; yes\nb=2\n", [("one", 1), ("two", 4)]),
        (
            "a.tex",
            LATEX,
            [("A bold claim", 1), ("One thing", 3), ("One thing > Two", 5), ("Three", 8)],
        ),
        ("a.org", "* One\na\n** Two\nb\n* Three\nc\n", [("One", 1), ("One > Two", 3), ("Three", 5)]),
        ("a.adoc", "= Guide\nx\n== Install\ny\n", [("Guide", 1), ("Guide > Install", 3)]),
        ("a.log", "2024-01-01 a\n[main] b\n", [("", 1)]),
    ],
)
def test_a_text_is_cut_at_its_own_joints(name: str, text: str, expected: list[tuple[str, int]]) -> None:
    assert titles(name, text) == expected
    assert "\n".join(section.text for section in read_document(name, text.encode()).sections) == text


def test_subtitles_are_what_is_said_with_its_time() -> None:
    srt = "1\r\n00:00:01,000 --> 00:00:04,000\r\nHello <i>there</i>\r\nfriend\r\n\r\n2\r\n01:01:05,5 --> 01:01:09,0\r\n{\\an8}Good &amp; bye\r\n"
    (chunk,) = cut_document(read_document("a.srt", srt.encode()), name="a.srt")
    assert (chunk.text, chunk.place) == ("Hello there\nfriend\nGood & bye", "times 0:00:01-1:01:05")
    vtt = "WEBVTT\n\nNOTE no\n\n00:01.000 --> 00:04.000 align:start\n<v.loud Bob>we <00:02.0>talk\n\n00:04.000 --> 00:06.000\nrolls\n\n00:06.000 --> 00:07.000\nrolls\non\n"
    sections = read_document("a.vtt", vtt.encode()).sections
    assert [(section.text, section.place) for section in sections] == [
        ("Bob: we talk", "time 1"),
        ("rolls", "time 4"),
        ("on", "time 6"),
    ]
    assert read_document("a.srt", b"no cue").extractor == "text"


RTF = r"""{\rtf1\ansi\ansicpg1250\deff0{\fonttbl{\f0\fswiss\fcharset238 Arial;}}
{\stylesheet{\s1\outlinelevel0 heading 1;}}{\info{\title Bericht \'e1 \u28450?}}
{\pict\pngblip 89504e470d0a1a0a%s}
\pard before\par \pard\s1\outlinelevel0\b Heizung\par
\pard\b0 tlak \'9aest \u-10179?\u-8704? {\field{\*\fldinst{HYPERLINK "https://example.org"}}{\fldrslt link}}\par
\pard\outlinelevel1 Ventil\par \trowd a\cell b\cell\row note{\footnote below}\par}""" % ("0123456789abcdef" * 50)


def test_rtf_is_its_paragraphs_below_its_headings_in_its_code_page() -> None:
    document = read_document("a.doc", RTF.encode())
    assert document.extractor == "rtf"
    chunks = list(cut_document(document, name="a.rtf"))
    assert [(chunk.title, chunk.place, chunk.text) for chunk in chunks] == [
        ("Bericht á 漢", "paragraph 1", "before"),
        ("Heizung", "paragraphs 2-3", "Heizung\ntlak šest 😀 link"),
        ("Heizung > Ventil", "paragraphs 4-6", "Ventil\na|b|\nnote below"),
    ]


def test_broken_rtf_is_refused_in_a_sentence() -> None:
    assert refusal("a.rtf", rb"{\rtf1\u99999999 x}") == "is a damaged RTF document (ValueError)"
    assert refusal("a.rtf", rb"{\rtf1{\pict\bin x}}") == "is a damaged RTF document (ValueError)"
    assert refusal("a.rtf", rb"{\rtf1 {{{{") == "empty"
    assert read_document("a.rtf", rb"{\rtf1\ansicpg99999 words").sections[0].text == "words"


PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_compressed_file_is_read_as_what_is_in_it(suffix: str) -> None:
    pack = PACKERS[suffix]
    for name in (f"guide.md{suffix}", "guide.md"):
        assert read_document(name, pack(b"# Head\nwords")).sections[0].title == "Head"
    (chunk,) = cut_document(read_document(f"changelog.Debian{suffix}", pack(b"x")), name=f"changelog.Debian{suffix}")
    assert chunk.title == "changelog.Debian"
    assert refusal(f"a{suffix}", pack(b"x" * 1000)[:-9]).startswith("is damaged where it is compressed")
    assert refusal(f"a{suffix}", pack(bytes(60_000_000))) == "unpacks to more than 50 MB"
    assert refusal(f"a{suffix}", pack(pack(b"x"))) == "archive"
    assert refusal(f"a.png{suffix}", pack(b"x")) == "picture"
    assert refusal(f"a.txt{suffix}", pack(b"")) == "empty"
    assert refusal(f"a{suffix}", b"\0\1\2\3" * 9) == f"is damaged, or no {suffix[1:].upper()} file"


def test_an_archive_is_named_as_such_whatever_its_name() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    for content in (buffer.getvalue(), gzip.compress(buffer.getvalue())):
        with pytest.raises(IgnoredError, match="archive"):
            read_document("a", content)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "picture"),
        (b"\x7fELF\2\1\1" + bytes(9), "program"),
        (b"SQLite format 3\0\x10\0\1\1\0" + bytes(80), "database"),
        (b"PK\x03\x04" + bytes(30), "archive"),
        (b"\0\0\0\x20ftypisom" + bytes(9), "video"),
        (bytes(range(256)) * 9, "binary"),
    ],
)
def test_what_is_not_read_is_named_by_its_content_where_its_name_says_nothing(content: bytes, kind: str) -> None:
    with pytest.raises(IgnoredError, match=kind):
        read_document("a", content)


def test_no_suffix_is_both_read_and_not() -> None:
    unread = {f".{suffix}" for _, suffixes in lancelot_reading.UNREAD.values() for suffix in suffixes.split()}
    assert not unread & {*lancelot_reading.TEXT_READERS, ".eml", ".gz", ".rtf", ".pdf", ".docx"}


HOSTILE = {
    "fields.rtf": rb"{\rtf1" + rb'{\field{\*\fldinst{ HYPERLINK "x" ' * 100_000,
    "pictures.rtf": rb"{\rtf1{\pict " + b"0a" * 10_000_000 + b"}}",
    "braces.rtf": rb"{\rtf1" + b"{" * 1_000_000,
    "cues.vtt": b"00:01.000 --> 00:02.000\n" * 100_000,
    "lines.srt": b"00:00:01,000 --> 00:00:02,000\n" + b"a\n" * 1_000_000,
    "marks.vtt": b"00:01.000 --> 00:02.000\n" + b"<" * 1_000_000,
    "keys.yaml": b"a:\n" * 500_000,
    "lines.yaml": b"a:\n" + b"\n" * 2_000_000,
    "sections.tex": b"\\section{" + b"{" * 1_000_000,
    "parts.eml": b"Subject: x\nContent-Type: multipart/mixed; boundary=x\n\n" + b"--x\n\n" * 50_000,
    "nested.eml": b"".join(
        b"Content-Type: multipart/mixed; boundary=x%d\n\n--x%d\n" % (number, number) for number in range(5000)
    ),
    "header.eml": b"Subject: " + b"=?utf-8?q?a?= " * 100_000 + b"\n\nx",
    "flowed.eml": b"Subject: x\nContent-Type: text/plain; format=flowed\n\n" + b"> a \n" * 500_000,
    "times.mbox": b"From " + b"11:11 " * 200_000 + b"\n!",
    "mails.mbox": b"From a 10:20\nSubject: x\n\n" * 50_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_read_in_seconds(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(HOSTILE[name])

    def run() -> int:
        return sum(1 for _ in lancelot_reading.extract_file(str(tmp_path / name)))

    assert lancelot.bounded(run, seconds=45, name=name)
