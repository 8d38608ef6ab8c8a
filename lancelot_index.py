"""Makes a LanceDB table from a folder of files: the command `index`, and the child process that reads files for it.

This is the only module that writes to a database. The server never loads it: its tool `lancedb_index` starts the
command as a child.

Sections, in order; each uses the ones above it and none below:

Reading     the bytes of a file to its text, in sections under their headings
Chunks      a document cut along its structure
Extraction  reading and cutting files in a process of its own
Finding     which files of a folder are indexed
Embedding   many texts to vectors, while the server is busy or fails
Table       the rows, columns and indexes of a table of files
Run         one folder into one table: what changed is read, embedded and written
Commands    `index` and its child, and their options
"""

from __future__ import annotations

import argparse
import array
import base64
import bisect
import codecs
import concurrent.futures
import contextlib
import csv
import datetime as dt
import errno
import functools
import hashlib
import html.parser
import io
import itertools
import json
import locale
import logging
import os
import re
import signal
import stat
import struct
import sys
import threading
import time
import zipfile
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NoReturn, cast

from lancelot import (
    COMPLETE_METADATA,
    EXTRACT_COMMAND,
    LENGTH_METADATA,
    MAX_DEPTH,
    MODEL_METADATA,
    OWN_METADATA,
    PLAIN_TEXT,
    PROGRAM,
    Embedder,
    KeyLookup,
    LancelotError,
    Session,
    T,
    Vector,
    __version__,
    agrees,
    check_data_is_inside,
    clean_surrogates,
    compact_json,
    embedding_model_of,
    engine_errors,
    file_sum,
    is_address,
    listed,
    load_lancedb,
    load_settings,
    logger,
    one_line,
    parse_json_object,
    plural,
    print_answer,
    quote_text,
    read_choice,
    read_index,
    read_name,
    read_path,
    reason_of,
    say,
    say_json,
    shorten,
    shown_path,
    take_stdio,
    type_of_option,
    visible,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from typing_extensions import Self

# ======================================================================================================================
# Reading
# ======================================================================================================================
# One function a format makes a Document of a file's bytes: its title, and its text in sections that know their headings.
# What is wrong with a file is an UnreadableError with the reason. Files may be hostile: sizes and depths are bounded, and
# all of this runs in a child process, see Extraction.


# --- the text of a file


MAX_FILE_BYTES = 50_000_000
MAX_CHARACTERS = 50_000_000
"""Characters that one document may give: tables and packed documents can hold far more text than bytes."""
MAX_SECTIONS = 1_000_000
MAX_TITLE = 300


class UnreadableError(LancelotError):
    """A file that gives no text: one sentence of why, without its path."""


class IgnoredError(UnreadableError):
    """A file that has no text to give, which is no failure: its reason is `binary` or `empty`."""


@dataclass(frozen=True)
class Section:
    """A part of a document along its own structure.

    `title` is a heading path such as "Guide > Install". `line` is the first line in the file, counted from 1, where
    lines are the place; elsewhere `place` says where it stands: "page 3", "row 12". `header` is the first row of the
    table that the text belongs to.
    """

    text: str
    title: str = ""
    line: int = 0
    place: str = ""
    header: str = ""


@dataclass(frozen=True)
class Document:
    """The text of a file, and which reader gave it."""

    extractor: str
    sections: tuple[Section, ...]
    missing: str = ""


_LETTER, _GAP = "[A-Za-z0-9+/]", r"(?:\s|&#(?:10|xA);){1,40}"
# Mail and drawing programs write it in lines.
_MORE = rf"(?:{_GAP}{_LETTER}{{20,}})*(?:{_GAP}{_LETTER}+(?=[=\"')]))?=*"
_DATA_URI = re.compile(rf";base64,[\w+/%=-]*{_MORE}")
_BASE64 = re.compile(rf"(?<!{_LETTER})(?:{_LETTER}{{200,}}|{_LETTER}{{60,}}(?:{_GAP}{_LETTER}{{60,}}){{2}}){_MORE}")
"""More than a hash or a short key has."""


def without_base64(text: str) -> str:
    """The text with a mark in the place of pictures and other bytes that are written in it; the lines stay."""

    def mark(found: re.Match[str]) -> str:
        feeds = "\n" * found[0].count("\n")
        if found[0].startswith(";"):
            return ";base64,…" + feeds
        # Sequences of genes, numbers in hexadecimal and long paths are words to search for.
        mixed = all(re.search(kind, found[0]) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
        return "…" + feeds if mixed else found[0]

    return _BASE64.sub(mark, _DATA_URI.sub(mark, text))


class HeadingPath:
    """The headings that are open at a place of a document, outermost first."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    def enter(self, level: int, title: str) -> str:
        """The path that holds from this heading on."""
        while self._open and self._open[-1][0] >= level:
            self._open.pop()
        self._open.append((level, shorten(one_line(without_base64(title)), MAX_TITLE // 3)))
        return self.title

    @property
    def title(self) -> str:
        """The path as one line; a long one keeps its end, which says most."""
        path = " > ".join(title for _, title in self._open if title)
        return path if len(path) <= MAX_TITLE else "…" + path[1 - MAX_TITLE :]


_TERMINAL_CODE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
"""A sequence of ECMA-48, such as a colour, or one that xterm added, such as a link or a title."""
_SOFT_DIVISION = re.compile(r"[ \t]?(?<!\S)(\S*[^\W\d_])[\u00ad¬][ \t]*\n[ \t]*(?=[^\W\d_])")


def readable(text: str) -> str:
    """The text without what colours it in a terminal, what nobody sees in its words, and marks where a line end divides one.

    Such a word goes to the next line, so that lines keep their numbers.
    """
    text = _TERMINAL_CODE.sub("", text) if "\x1b" in text else text
    return text if text.isascii() else visible(_SOFT_DIVISION.sub(r"\n\1", text))


def collect(extractor: str, sections: Iterable[Section], *, title: str = "") -> Document:
    """A document of the sections that hold text, those without a heading under its own `title`."""
    kept: list[Section] = []
    characters = 0
    for section in sections:
        text = readable(section.text)
        characters += len(text)
        if characters > MAX_CHARACTERS:
            raise UnreadableError(f"holds more than {MAX_CHARACTERS:,} characters of text")
        if len(kept) >= MAX_SECTIONS:
            raise UnreadableError(f"holds more than {MAX_SECTIONS:,} rows or paragraphs")
        if text and not text.isspace():
            text, own_title = without_base64(text), visible(section.title or title)
            same = text == section.text and own_title == section.title
            kept.append(section if same else replace(section, text=text, title=own_title))
    if not kept:
        raise IgnoredError("empty")
    return Document(extractor, tuple(kept))


_DIVIDED_WORD = re.compile(
    r"[ \t]?(?<!\S)([(\"'«„“‘\[]*)((?:[^\W\d_]+[-’'])*[^\W\d_]{2,})[-\u2010][ \t]*\n[ \t]*([^\W\d_]{2,})(?![\w@/\\=(]|\.\w)"
)
_HYPHENATED = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_AFTER_A_SUSPENDED_HYPHEN = frozenset("and bis et och oder og or ou und".split())  # noqa: SIM905 - words are read best as words


def with_whole_words(document: Document) -> Document:
    """Prose with words whole that line ends divide; they go to the next line, so that lines keep their numbers.

    The hyphen stays where the document writes the word with it elsewhere, or the word has others; a name keeps it too.
    """
    every = "\n".join(section.text for section in document.sections)
    if not _DIVIDED_WORD.search(every):
        return document
    words = set(_HYPHENATED.findall(every.lower()))

    def join(found: re.Match[str]) -> str:
        opening, left, right = found.groups()
        joined, hyphenated = f"{left}{right}".lower(), f"{left}-{right}".lower()
        if right in _AFTER_A_SUSPENDED_HYPHEN:
            return found[0]
        name = not right.islower() and not (left.isupper() and right.isupper())
        compound = "-" in left or left.lower() in ("self", "well") or hyphenated in words
        kept = "-" if name or (compound and joined not in words) else ""
        return f"\n{opening}{left}{kept}{right}"

    whole = (replace(section, text=_DIVIDED_WORD.sub(join, section.text)) for section in document.sections)
    return replace(document, sections=tuple(whole))


# --- bytes to text


_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""UTF-32 before UTF-16, whose little-endian mark is the beginning of its own."""

_LATIN_PAGES = ("cp1252", "cp1250", "cp1254", "iso8859-2")
_CODE_PAGES = (
    *("cp1252", "cp1250", "cp1251", "koi8-r", "cp932", "euc-jp", "gb18030", "big5", "cp949"),
    *("cp1253", "cp1254", "cp1255", "cp1256", "cp866"),
)
SURE = 0.05
"""The confidence below which a guess is told: bytes that leave ASCII are few, or fit several encodings."""
MUCH_LIKELIER = 1.25
"""How many times likelier than the usual Western code page another one must be."""
_DECLARED = re.compile(
    rb"""\A\s*<\?xml\b[^>]{0,200}?\sencoding\s*=\s*["']([\w.:-]{1,40})"""
    rb"""|<meta\b[^>]{0,300}?\bcharset\s*=\s*["']?\s*([\w.:-]{1,40})"""
    rb"""|\A(?:[^\n]{0,500}\n)?[ \t\f]*\#[^\n]{0,200}?coding[:=][ \t]*([\w.-]{1,40})""",
    re.IGNORECASE,
)
"""What XML, HTML and source code say of their encoding."""
_OLD_ENCODINGS = re.compile(r"iso|cp|koi8|mac|euc|gb|hz|big5|shift|johab|tis|kz|ptcp")
_SUPERSETS = {
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "tis-620": "cp874",
}
"""What browsers read instead of an encoding that is named: https://encoding.spec.whatwg.org/#names-and-labels"""
_CONTROL_BYTES = bytes({*range(7), *range(14, 27), *range(28, 32)})
_SAMPLE = 32_768


def _marked_text(content: bytes) -> str | None:
    """The text after a byte-order mark."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, "replace")
    return None


def _wide_encoding(content: bytes) -> str | None:
    """UTF-16 without a mark: zeros on one side of the pairs only, and nothing in the text that is not printed."""
    sample = content[: _SAMPLE // 4 * 2]
    zeros = sample[0::2].count(0), sample[1::2].count(0)
    # Where all letters are of ASCII, one side is zeros altogether; less of them are stray ones.
    fewest = len(sample) // 2 * (0.9 if sample.isascii() else 0.02)
    if min(zeros) or max(zeros) < max(fewest, 1):
        return None
    encoding = "utf-16-be" if zeros[0] else "utf-16-le"
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return None
    return encoding if all(letter.isprintable() or letter.isspace() for letter in text) else None


def _is_binary(content: bytes, *, unusual: bytes) -> bool:
    """Whether there are more than a few of the bytes that no text holds."""
    count = len(content) - len(content.translate(None, delete=unusual))
    return count > min(max(len(content) // 20, 1), 4 + len(content) // 2000)


def _telling_lines(content: bytes) -> bytes:
    """The first lines that leave ASCII, since what does not would hide what encoding the others have."""
    first = re.search(rb"[\x80-\xff]", content)
    at = first.start() if first else 0
    start = max(content.rfind(b"\n", 0, at) + 1, at - _SAMPLE // 8)
    lines = [line for line in content[start : start + _SAMPLE * 8].split(b"\n") if not line.isascii()]
    sample = b"\n".join(lines)[:_SAMPLE]
    whole = sample.rfind(b"\n", _SAMPLE // 2)
    return sample[:whole] if len(sample) == _SAMPLE and whole >= 0 else sample  # no character is cut in two


def _declared_encoding(content: bytes) -> str | None:
    """The encoding that a page or a program declares for itself, or None if there is none that Python knows."""
    head = content[:2048]
    found = _DECLARED.search(head)
    if not found or (found[2] and not head.lstrip().startswith(b"<")):
        return None
    try:
        name = codecs.lookup(next(filter(None, found.groups())).decode("ascii")).name
    except LookupError:
        return None
    return _SUPERSETS.get(name, name) if _OLD_ENCODINGS.match(name) else None


def _usual_page() -> str:
    """The code page of Latin script that this system has, or that of Western Europe."""
    usual = codecs.lookup(locale.getpreferredencoding(do_setlocale=False)).name
    return usual if usual in _LATIN_PAGES else "cp1252"


def _guess_encoding(content: bytes) -> tuple[str, bool]:
    """The code page of bytes that are neither UTF-8 nor declared, and whether that is sure.

    Where most bytes that leave ASCII stand alone, the script is Latin: those of East Asian encodings come in pairs. There
    the usual code page is read unless another one is much likelier.
    """
    from chardet import detect_all

    sample = _telling_lines(content).translate(None, delete=_CONTROL_BYTES)  # they would make it binary
    runs = re.findall(rb"[\x80-\xff]+", sample)
    is_latin = sum(len(run) == 1 for run in runs) * 2 >= sum(map(len, runs))
    pages = _LATIN_PAGES if is_latin else _CODE_PAGES
    found = detect_all(sample, ignore_threshold=True, include_encodings=pages, prefer_superset=True)
    confidences = {codecs.lookup(one["encoding"]).name: one["confidence"] for one in reversed(found) if one["encoding"]}
    usual = _usual_page()
    best = max(confidences, key=lambda name: confidences[name], default=usual)
    if is_latin and (len(runs) == 1 or confidences.get(best, 0) <= MUCH_LIKELIER * confidences.get(usual, 0)):
        best = usual
    return best, confidences.get(best, 0) >= SURE


def _narrow_text(content: bytes) -> tuple[str, str]:
    """UTF-8, also with a few broken places; else the encoding that is declared, else the code page that fits."""
    declared, guess = _declared_encoding(content), ""
    try:
        text = content.decode(declared if declared and declared.startswith("iso2022") else "utf-8")
    except UnicodeDecodeError:
        text = content.decode("utf-8", "replace")
        whole = len(re.findall(r"[^\x00-\x7f\ufffd]+", text))
        if text.count("\ufffd") * 5 > whole:
            if _is_binary(content, unusual=_CONTROL_BYTES):
                raise IgnoredError("binary") from None
            guess, is_sure = ("", True) if declared else _guess_encoding(content)
            text = content.decode(declared or guess, "replace")
            guess = "" if is_sure else guess
    if _is_binary(content, unusual=b"\x00"):
        raise IgnoredError("binary")
    return text, guess


def decode_text(content: bytes) -> tuple[str, str]:
    """The text of bytes in whatever encoding, with line feeds alone, and that encoding where it is an unsure guess, else "".

    IgnoredError is raised where they are no text.
    """
    text, guess = _marked_text(content), ""
    if text is None:
        wide = _wide_encoding(content)
        text, guess = (content.decode(wide, "replace"), "") if wide else _narrow_text(content)
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", " "), guess


# --- headings: Markdown and reStructuredText


@dataclass(frozen=True)
class Mark:
    """A heading of a text: the line where its part begins, counted from 0, its level and its words."""

    line: int
    level: int
    title: str


_WORD = re.compile(r"\w")
MAX_HEADER = 300
"""Characters of a table's header that are repeated where the table is cut."""


def cut_at_marks(lines: Sequence[str], marks: Iterable[Mark], *, path: HeadingPath | None = None) -> Iterator[Section]:
    """Every line in one section each, which begin at the marks."""
    path = path or HeadingPath()
    start, title, headings = 0, path.title, 0
    for mark in marks:
        # A heading without a body stays with the next one, whose title says it where it is below it.
        if sum(_WORD.search(line) is not None for line in itertools.islice(lines, start, mark.line)) > headings:
            yield Section("\n".join(lines[start : mark.line]), title, start + 1)
            start, headings = mark.line, 0
        title, headings = path.enter(mark.level, mark.title), headings + 1
    yield Section("\n".join(lines[start:]), title, start + 1)


def _atx_heading(line: str) -> tuple[int, str] | None:
    """The level and the words of `## Words ##`."""
    text = line.strip()
    level = len(text) - len(text.lstrip("#"))
    if not 1 <= level <= 6 or line.startswith(("    ", "\t")) or text[level : level + 1] not in ("", " ", "\t"):  # noqa: PLR2004 - Markdown has six levels
        return None
    words = text[level:].strip()
    bare = words.rstrip("#")
    return level, (bare.rstrip() if not bare or bare[-1] in " \t" else words)


_SETEXT = re.compile(r" {0,3}(?:=+|--+)[ \t]*")
_NO_PARAGRAPH = re.compile(r"\s*$|    |\t| {0,3}(?:[>#|<]|[-*+][ \t]|\d+[.)][ \t])")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_RAW_TAG = "(?:pre|script|style|textarea)"
_BLOCK_TAGS = frozenset(
    """
    address article aside base basefont blockquote body caption center col colgroup dd details dialog dir div dl dt
    fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hr html iframe legend li link
    main menu menuitem nav noframes ol optgroup option p param search section summary table tbody td tfoot th thead
    title tr track ul
    """.split()  # noqa: SIM905 - words are read best as words
)
_HTML_BLOCKS = tuple(
    (re.compile(f" {{0,3}}{opening}", re.IGNORECASE), re.compile(closing, re.IGNORECASE))
    for opening, closing in (
        (rf"<{_RAW_TAG}(?:\s|>|$)", f"</{_RAW_TAG}>"),
        ("<!(?=--)", "-->"),
        (r"<\?", r"\?>"),
        (r"<!\[CDATA\[", "]]>"),
        ("<![a-z]", ">"),
        (rf"</?(?:{'|'.join(sorted(_BLOCK_TAGS))})(?:\s|/?>|$)", r"^\s*$"),
        (r"</?[a-z][a-z0-9-]*(?:\s[^<>]*)?>\s*$", r"^\s*$"),
    )
)
"""How a block of HTML begins and ends, as CommonMark has it; one of the last kind does not interrupt a paragraph."""


def _verbatim_end(line: str, *, paragraph: bool) -> re.Pattern[str] | None:
    """What ends the code or HTML that begins with a line; None where none does, or where the line ends it too."""
    if fence := _FENCE.match(line):
        return re.compile(rf"^ {{0,3}}{fence[1][0]}{{{len(fence[1])},}}\s*$")
    for opening, closing in _HTML_BLOCKS[: -1 if paragraph else None]:
        if begins := opening.match(line):
            return None if closing.search(line, begins.end()) else closing
    return None


def _front_matter(lines: Sequence[str]) -> int:
    """How many lines of metadata stand at the beginning, with their rules: YAML or TOML."""
    rule = lines[0].rstrip()
    if rule not in ("---", "+++") or not any(map(str.strip, lines[1:2])):
        return 0
    ends = ("---", "...") if rule == "---" else ("+++",)
    return next((at for at in range(1, len(lines)) if lines[at].rstrip() in ends), -1) + 1


_FRONT_TITLE = re.compile(
    r"""^title[ \t]*[:=][ \t]*(?:[>|][-+]?\n[ \t]+)?(?:"([^"\n]+)"|'([^'\n]+)'|(.*))""", re.MULTILINE
)


def _front_title(lines: Sequence[str]) -> str:
    """The `title` of the metadata."""
    found = _FRONT_TITLE.search("\n".join(lines))
    if found is None:
        return ""
    return found[1] or found[2] or re.split(r"(?:^|[ \t])#", found[3], maxsplit=1)[0].strip()


def _seen_words(words: str) -> str:
    """The words of a heading that are seen: without comments, but for those in code."""
    return re.sub(r"(`[^`]*`)|<!--.*?(?:-->|$)", r"\1", words).strip()


def markdown_marks(lines: Sequence[str], *, start: int = 0) -> Iterator[Mark]:
    """The headings of both kinds, outside fenced code and HTML."""
    end: re.Pattern[str] | None = None
    paragraph = False
    for at in range(start, len(lines)):
        line, below = lines[at], paragraph
        paragraph = False
        if end:
            end = None if end.search(line) else end
        elif heading := _atx_heading(line):
            yield Mark(at, heading[0], _seen_words(heading[1]))
        elif below and _SETEXT.fullmatch(line):
            yield Mark(at - 1, 1 if "=" in line else 2, _seen_words(lines[at - 1]))
        else:
            end = _verbatim_end(line, paragraph=below)
            paragraph = end is None and not _NO_PARAGRAPH.match(line)


def _tables_apart(section: Section) -> Iterator[Section]:
    """A part of Markdown in parts of which each is a table with its header, or holds none."""
    lines, start = section.text.split("\n"), 0
    for at in range(1, len(lines)):
        if at <= start or "|" not in lines[at - 1] or not {"|", "-"} <= set(lines[at]) <= set("|-: \t"):
            continue
        end = next((below for below in range(at, len(lines)) if not lines[below].strip()), len(lines))
        header = shorten(one_line(lines[at - 1]), MAX_HEADER)
        for first, last, above in ((start, at - 1, ""), (at - 1, end, header)):
            if first < last:
                yield replace(section, text="\n".join(lines[first:last]), line=section.line + first, header=above)
        start = end
    yield replace(section, text="\n".join(lines[start:]), line=section.line + start)


def markdown_sections(lines: Sequence[str], *, start: int = 0, path: HeadingPath | None = None) -> Iterator[Section]:
    """Markdown by its headings and tables."""
    for section in cut_at_marks(lines, markdown_marks(lines, start=start), path=path):
        yield from _tables_apart(section)


def markdown_document(text: str) -> Document:
    """Markdown by its headings."""
    lines = text.split("\n")
    start = _front_matter(lines)
    return collect("markdown", markdown_sections(lines, start=start), title=_front_title(lines[:start]))


_RULE = re.compile(r"([!-/:-@\[-`{-~])\1+")


def _rule_of(line: str) -> str:
    """The character that a line repeats from end to end, or nothing."""
    text = line.rstrip()
    return text[0] if _RULE.fullmatch(text) else ""


def _underlines(rule: str, title: str) -> bool:
    """Whether a rule is long enough for a title, as docutils has it."""
    return bool(title.strip()) and not _rule_of(title) and len(rule.rstrip()) >= min(len(title.strip()), 4)


def rst_marks(lines: Sequence[str]) -> Iterator[Mark]:
    """The titles with a rule below, or above and below; the order in which the kinds appear makes the levels."""
    levels: dict[tuple[str, bool], int] = {}
    for at in range(1, len(lines)):
        rule, title = _rule_of(lines[at]), lines[at - 1]
        if not rule or not _underlines(lines[at], title):
            continue
        over = at > 1 and _rule_of(lines[at - 2]) == rule and len(lines[at - 2].rstrip()) == len(lines[at].rstrip())
        if over or (not title[0].isspace() and (at == 1 or not lines[at - 2].strip())):
            level = levels.setdefault((rule, over), len(levels) + 1)
            yield Mark(at - 2 if over else at - 1, level, title.strip())


def rst_document(text: str) -> Document:
    """ReStructuredText by its titles."""
    lines = text.split("\n")
    return collect("rst", cut_at_marks(lines, rst_marks(lines)))


def plain_document(text: str) -> Document:
    """Text without a structure that is known."""
    return collect("text", [Section(text, line=1)])


def prose_document(text: str) -> Document:
    """Text whose lines may divide words."""
    return with_whole_words(plain_document(text))


# --- source code


MAX_PARSED_CODE = 2_000_000
"""Characters of Python that are parsed; longer files are read by their lines."""
_MAX_CODE_LINE = 300
"""Characters of a line that may begin a definition."""


def _owned(lines: Sequence[str], owners: Sequence[str]) -> Iterator[Section]:
    """Neighbouring lines of one owner as a section; blank lines go with what stands above them."""
    start = 0
    for at in range(1, len(lines)):
        if owners[at] != owners[start] and lines[at].strip():
            yield Section("\n".join(lines[start:at]), owners[start], start + 1)
            start = at
    yield Section("\n".join(lines[start:]), owners[start], start + 1)


def _comments_above(lines: Sequence[str], at: int, starts: tuple[str, ...]) -> int:
    """Where the comments and decorations that stand directly above a line begin."""
    while at and lines[at - 1].lstrip().startswith(starts):
        at -= 1
    return at


def _python_owners(text: str, lines: Sequence[str]) -> list[str]:
    """The qualified name of the definition that each line of Python belongs to."""
    import ast
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    owners = [""] * len(lines)
    waiting: list[tuple[ast.AST, str]] = [(node, "") for node in tree.body]
    for node, outer in waiting:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        name = f"{outer} > {node.name}" if outer else node.name
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        start = _comments_above(lines, first, ("#",))
        end = node.end_lineno or node.lineno
        owners[start:end] = [name] * (end - start)
        if isinstance(node, ast.ClassDef):
            waiting += [(inner, name) for inner in node.body]
    return owners


_NAME = r"([A-Za-z_$][\w$]*)"
_MODIFIERS = r"(?:(?:export|default|declare|public|private|protected|internal|static|final|abstract|async|sealed|partial|open|override|virtual|readonly|unsafe|extern|const|inline|suspend|data|case|implicit|lazy|local|pub(?:\([\w ]+\))?)\s+)*"
_CONTAINERS = re.compile(
    rf"\s*{_MODIFIERS}(?:class|interface|struct|enum(?:\s+class)?|trait|impl(?:<[^>]*>)?|namespace|module|object|record|protocol|extension|defmodule|package|union|mod)\s+(?:[A-Z]+_[A-Z_]+\s+(?=\w))?([A-Za-z_$][\w$.:]*)(?!.*;\s*$)"
)
_GO_TYPE = re.compile(r"type\s+(\w+)\s+(?:struct|interface)\b")
_GO_METHOD = re.compile(r"func\s+\(\s*(?:\w+\s+)?\*?(\w+)[^)]*\)\s*(\w+)")
_KEYWORDS = re.compile(
    rf"\s*{_MODIFIERS}(?:function\b\s*[*&]?|func|fun(?:\s+<[^>]*>)?|fn|def|defp|sub|proc|macro_rules!|type|init(?=\()|constructor(?=\s*\())\s*([\w$.:]*[?!]?)"
)
_ASSIGNED = re.compile(
    rf"\s*{_MODIFIERS}(?:(?:const|let|var)\s+)?([\w$.]+)\s*(?::[^=]*)?(?:=|<-)\s*(?:async\s*)?(?:function\b|\([^()]*\)\s*(?::[^=]*)?=>|[\w$]+\s*=>)"
)
_SHELL = re.compile(r"\s*([\w.:-]+)\s*\(\)\s*(?:\{|\(|$)")
_TYPED = re.compile(r"\s*(?:@?[A-Za-z_][\w:<>,.?&*\[\]]*\s+[*&]*)+(~?[A-Za-z_][\w:~]*)\s*\([^;]*$")
_SCOPED = re.compile(r"([A-Za-z_]\w*::~?[\w:~]+)\s*\([^;]*$")
_METHOD = re.compile(rf"\s+{_MODIFIERS}(?:get\s+|set\s+|\*\s*)?(#?{_NAME[1:-1]})\s*\([^;]*\{{\s*$")
_SQL = re.compile(
    r"\s*create\s+(?:or\s+replace\s+)?(?:(?:temp|temporary|unique|materialized|global|virtual)\s+)*(?:table|view|function|procedure|index|trigger|type|schema|sequence)\s+(?:if\s+not\s+exists\s+)?([\w.\"`\[\]]+)",
    re.IGNORECASE,
)
_STATEMENT = re.compile(
    r"\s*(?:return|if|else|elif|elsif|for|foreach|while|switch|case|new|throw|delete|goto|using|typedef|do|catch|await|yield|import|from|when|match|assert|print|echo|in|not|and|or|unless|until|with|raise|except|try|end|default:)\b"
)
_COMMENTS = ("//", "/*", "*", "#", "--", "@", "'''", ";;")
_CLOSER = re.compile(r"\s*(?:[\]})]+|end\b|fi\b|done\b)")


@dataclass(frozen=True)
class Definition:
    """A definition that a line of code begins; one that is a `container` has others within."""

    name: str
    container: bool = False


def _typed_definition(line: str, family: str) -> Definition | None:
    """A function of a language that begins it with its type or, within a class, with its name."""
    if _STATEMENT.match(line):
        return None
    patterns = (_TYPED, _SCOPED, _METHOD) if family == "typed" else (_METHOD,)
    found = next((match for pattern in patterns if (match := pattern.match(line))), None)
    return Definition(found[1]) if found else None


def definition_of(line: str, family: str) -> Definition | None:
    """What a line of a language of this family defines."""
    if len(line) > _MAX_CODE_LINE or line.lstrip().startswith(_COMMENTS):
        return None
    if family == "sql":
        return Definition(found[1].strip('"`[]')) if (found := _SQL.match(line)) else None
    if found := _GO_METHOD.match(line):
        return Definition(f"{found[1]} > {found[2]}")
    if found := _CONTAINERS.match(line) or _GO_TYPE.match(line):
        return Definition(found[1].rstrip(":."), container=True)
    for pattern in (_KEYWORDS, _ASSIGNED, *([_SHELL] if family == "shell" else [])):
        if (found := pattern.match(line)) and not (pattern is _KEYWORDS and line.rstrip().endswith(";")):
            return Definition(found[1] or found[0].split()[-1])
    return _typed_definition(line, family) if family in ("typed", "script") else None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _closed_at_once(line: str) -> bool:
    return line.rstrip().endswith(("}", ";", " end")) and line.count("{") == line.count("}")


def _line_owners(lines: Sequence[str], family: str) -> list[str]:
    """The qualified name of the definition that each line of code belongs to, by indentation and closing lines."""
    owners = [""] * len(lines)
    opened: list[tuple[int, Definition]] = []
    for at, line in enumerate(lines):
        depth = _indent(line)
        found = definition_of(line, family) if line.strip() else None
        within = not any(depth > indent and not outer.container for indent, outer in opened[-1:])
        if found and within:
            opened = [(indent, outer) for indent, outer in opened if indent < depth] + [(depth, found)]
        owners[at] = " > ".join(definition.name for _, definition in opened)
        if found and within:
            above = _comments_above(lines, at, _COMMENTS)
            owners[above:at] = [owners[at]] * (at - above)
        closes = _CLOSER.match(line) and opened and depth <= opened[-1][0]
        if closes or (found and within and _closed_at_once(line)):
            opened = [(indent, outer) for indent, outer in opened if indent < depth]
    return owners


def code_document(text: str, family: str) -> Document:
    """Source code by its definitions; every line is in one section."""
    lines = text.split("\n")
    owners = None
    if family == "python" and len(text) <= MAX_PARSED_CODE:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            owners = _python_owners(text, lines)
    return collect("code", _owned(lines, owners or _line_owners(lines, family)))


# --- HTML


_UNSEEN = frozenset({"noscript", "script", "style", "template"})
_DISPLAY_NONE = re.compile(r"display\s*:\s*none", re.IGNORECASE)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BREAKS = _BLOCK_TAGS - {"td", "th"} | {"br", "pre", "select", "textarea"}
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())  # noqa: SIM905 - as above
_CLOSED_BY = {
    "p": _BREAKS - {"br"} | {"td", "th"},
    "li": {"li"},
    "tr": {"tr", "tbody", "tfoot"},
    "option": {"option"},
    **dict.fromkeys(("td", "th"), frozenset({"td", "th", "tr", "tbody", "tfoot"})),
    **dict.fromkeys(("dt", "dd"), frozenset({"dt", "dd"})),
}
"""Elements whose end is seldom written, and what begins after it."""
MAX_HIDDEN_DEPTH = 500
"""Elements inside one that is hidden that are told apart; browsers nest about as deep."""


_DECLARATION = re.compile(r"<!\[(?!CDATA\[)[^>]*>?", re.IGNORECASE)


def _is_unseen(tag: str, attributes: Mapping[str, str | None]) -> bool:
    """Whether a person never sees an element; a whole page that is hidden is shown by its scripts."""
    if tag in ("html", "body"):
        return False
    hidden = "hidden" in attributes and attributes["hidden"] != "until-found"
    return tag in _UNSEEN or hidden or bool(_DISPLAY_NONE.search(attributes.get("style") or ""))


class _HtmlText(html.parser.HTMLParser):
    """Gathers the lines of an HTML document below the headings that are open there."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.sections: list[Section] = []
        self._path = HeadingPath()
        self._parts: list[str] = []
        self._filled = False
        self._line = 1
        self._level = 0
        self._preformatted = 0
        self._in_title = False
        self._hidden: list[str] = []
        self._headers: list[str | None] = []
        self._header_until = ""

    def handle_data(self, data: str) -> None:
        """Takes text up, line by line where it is preformatted."""
        if self._hidden:
            return
        first = self.getpos()[0]
        for number, line in enumerate(data.split("\n") if self._preformatted else [data]):
            if number:
                self.flush()
            if not self._filled:
                self._line = first + number + line[: len(line) - len(line.lstrip())].count("\n")
            self._parts.append(line)
            self._filled = self._filled or not line.isspace()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begins a line, a cell, an item, or a part that nobody sees."""
        if self._hidden and tag in _CLOSED_BY.get(self._hidden[-1], ()):
            self._hidden.pop()
        attributes = dict(attrs)
        if self._hidden or _is_unseen(tag, attributes):
            if tag not in _VOID and len(self._hidden) < MAX_HIDDEN_DEPTH:
                self._hidden.append(tag)
            return
        self._break_at(tag, opens=True)
        self._see_table(tag)
        if tag in ("td", "th"):
            self._parts.append(" | " if self._filled else "")
        elif tag == "li":
            self._parts.append("- ")
        elif tag == "img" and (alt := attributes.get("alt")):
            self._parts.append(f" {alt} ")
            self._filled = True

    def handle_endtag(self, tag: str) -> None:
        """Ends a line, or a part that nobody sees."""
        if tag in self._hidden:
            while self._hidden.pop() != tag:
                pass
            return
        if self._hidden and not (self._hidden[0] in _CLOSED_BY and tag in _BREAKS):
            return
        self._hidden.clear()
        self._break_at(tag, opens=False)
        if tag in ("table", self._header_until):
            self._header_until = ""
        if tag == "table" and self._headers:
            self._headers.pop()

    def _see_table(self, tag: str) -> None:
        """Finds the header of a table: its `thead`, or a first row of `th` alone."""
        if tag == "table":
            self._headers.append(None)
        if tag in ("tbody", self._header_until):
            self._header_until = ""
        if self._headers and self._headers[-1] is None and tag in ("thead", "th", "td"):
            self._headers[-1] = ""
            self._header_until = {"thead": "thead", "th": "tr", "td": ""}[tag]
        elif tag == "td" and self._header_until == "tr":
            self._headers[-1] = self._header_until = ""

    def _break_at(self, tag: str, *, opens: bool) -> None:
        if tag not in _BREAKS:
            return
        self.flush()
        self._in_title = opens and tag == "title"
        self._level = _HEADINGS.get(tag, 0) if opens else 0
        if tag == "pre":
            self._preformatted = max(0, self._preformatted + (1 if opens else -1))

    def flush(self) -> None:
        """Ends the line."""
        text = "".join(self._parts)
        text = text.rstrip() if self._preformatted else " ".join(text.split())
        self._parts.clear()
        self._filled = False
        if self._in_title:
            self.title = self.title or one_line(text)
        elif text and (text != "-" or self._preformatted):
            title = self._path.enter(self._level, text) if self._level else self._path.title
            self._level = 0
            header = (self._headers[-1] or "") if self._headers else ""
            if self._header_until and len(header) < MAX_HEADER:
                self._headers[-1] = header = shorten(f"{header} | {text}".removeprefix(" | "), MAX_HEADER)
            self.sections.append(Section(text, title, self._line, header=header))


def html_document(text: str) -> Document:
    """HTML as a person sees it: a line for each block and row, below its headings."""
    reader = _HtmlText()
    # Python's parser stops at the declarations that Word leaves in pages; they say nothing to a person.
    reader.feed(_DECLARATION.sub(lambda found: "\n" * found[0].count("\n"), text))
    reader.close()
    reader.flush()
    return collect("html", reader.sections, title=reader.title)


# --- tables and records


MAX_FIELD = 131_072
"""Characters of one cell; Python's own limit. A longer one is a quote that is not closed: the table is read as text."""
_DELIMITERS = ",;\t|"
_TABLE_SAMPLE = 50
_NAMED_DELIMITER = re.compile(r'"?sep=([^\w"\n])"?[ ;,\t]*(?:\n|$)', re.IGNORECASE)
"""The first line by which a file tells Excel its separator; it is no row."""
MAX_NESTING = 200
"""Levels of nesting in JSON that are read."""


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)


def _regularity(text: str, delimiter: str) -> tuple[float, int]:
    """The share of the first rows that have the most frequent width, where that is more than one; and that width."""
    widths = Counter(len(row) for row in itertools.islice(_rows(text, delimiter), _TABLE_SAMPLE) if row)
    width, count = max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    return (count / widths.total(), width) if width > 1 else (0.0, 0)


def _delimiter(text: str, *, preferred: str) -> str:
    """The separator that makes the most regular table, or nothing where none makes one."""
    sample = text[: MAX_FIELD // 2]
    order = preferred + _DELIMITERS.replace(preferred, "")
    scores = {delimiter: _regularity(sample, delimiter) for delimiter in order}
    best = max(order, key=lambda delimiter: scores[delimiter])
    return best if scores[best][0] > 0.5 else ""  # noqa: PLR2004 - half of the rows


_NUMBER = re.compile(r"[-+(]?[$€£]?\d[\d.,:/ %-]*\)?")


def _is_header(row: Sequence[str]) -> bool:
    """Whether a first row names columns: distinct short words, no numbers or dates, no gaps."""
    names = [cell.strip() for cell in row]
    return (
        len(names) > 1
        and len(set(names)) == len(names)
        and all(name and len(name) <= 100 and not _NUMBER.fullmatch(name) for name in names)  # noqa: PLR2004 - a name's length
    )


def _row_text(row: Sequence[str], header: Sequence[str]) -> str:
    if not header:
        return " | ".join(cell.strip() for cell in row if cell.strip())
    names = itertools.chain(header, itertools.repeat(""))
    cells = [(name, cell.strip()) for name, cell in zip(names, row, strict=False) if cell.strip()]
    return "\n".join(f"{name}: {cell}" if name else cell for name, cell in cells)


def _table_sections(text: str, delimiter: str) -> Iterator[Section]:
    """Each row as `column: value` lines; rows are counted as a table shows them, the header being row 1."""
    rows = _rows(text, delimiter)
    first = next(rows, [])
    header = [one_line(name) for name in first] if _is_header(first) else []
    alone = True
    if not header:
        yield Section(_row_text(first, []), place="row 1")
    for number, row in enumerate(rows, 2):
        if told := _row_text(row, header):
            alone = False
            yield Section(told, place=f"row {number}")
    if header and alone:
        yield Section(_row_text(first, []), place="row 1")


def csv_document(text: str, *, preferred: str) -> Document:
    """A table of separated values; as plain text where it is none."""
    if named := _NAMED_DELIMITER.match(text):
        text = text[named.end() :]
    try:
        delimiter = named[1] if named else _delimiter(text, preferred=preferred)
        return collect("csv", _table_sections(text, delimiter)) if delimiter else plain_document(text)
    except csv.Error:
        return plain_document(text)


def _entries(value: object, path: str) -> list[tuple[str, object]] | None:
    """What a JSON value holds with the path of each; None for one that holds nothing else."""
    if isinstance(value, dict):
        return [(f"{path}.{key}" if path else str(key), inner) for key, inner in value.items()]
    if isinstance(value, list):
        return [(f"{path}[{number}]", inner) for number, inner in enumerate(value)]
    return None


def _json_scalar(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def json_lines(value: object, path: str = "") -> Iterator[str]:
    """A `path: value` line for each scalar of a JSON value, in order; empty ones and null are left out."""
    levels = [iter([(path, value)])]
    while levels:
        here, inner = next(levels[-1], (None, None))
        if here is None:
            levels.pop()
        elif (held := _entries(inner, here)) is not None:
            levels.append(iter(held))
            if len(levels) > MAX_NESTING:
                raise UnreadableError(f"nests deeper than {MAX_NESTING} levels")
        elif inner not in ("", None):
            yield f"{here}: {_json_scalar(inner)}" if here else _json_scalar(inner)


def _joined(lines: Iterable[str]) -> str:
    """Lines as one text, refused before it grows past what a document may hold."""
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line)
        if size > MAX_CHARACTERS:
            raise UnreadableError(f"holds more than {MAX_CHARACTERS:,} characters of text")
        kept.append(line)
    return "\n".join(kept)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UnreadableError(f"nests deeper than {MAX_NESTING} levels") from error


def _json_sections(value: object) -> Iterator[Section]:
    if isinstance(value, list):
        for number, record in enumerate(value, 1):
            yield Section(_joined(json_lines(record)), place=f"record {number}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield Section(_joined(json_lines(inner, key)), title=HeadingPath().enter(1, key))
    else:
        yield Section(_joined(json_lines(value)))


def json_document(text: str) -> Document:
    """JSON: the records of an array, or the keys of an object; as plain text where it is broken."""
    try:
        value = _parse_json(text)
    except ValueError:
        return plain_document(text)
    return collect("json", _json_sections(value))


def _record_text(line: str) -> tuple[str, bool]:
    """The text of a line of JSON, and whether it is JSON."""
    try:
        return _joined(json_lines(_parse_json(line))), True
    except ValueError:
        return line, False


def jsonl_document(text: str) -> Document:
    """A JSON value a line; a line that is broken is kept as it is."""
    records = [(number, *_record_text(line)) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if records and not any(parsed for _, _, parsed in records):
        return plain_document(text)
    return collect("jsonl", (Section(record, place=f"line {number}") for number, record, _ in records))


# --- notebooks


def _joined_lines(value: object) -> str:
    """A text that a notebook holds whole or as a list of lines."""
    parts = value if isinstance(value, list) else [value]
    return "".join(part for part in parts if isinstance(part, str))


def _output_text(output: object) -> str:
    """What an output of a cell says in words; pictures and markup are left out."""
    if not isinstance(output, dict):
        return ""
    data = output.get("data")
    plain = data.get("text/plain") if isinstance(data, dict) else None
    error = ": ".join(str(output[key]) for key in ("ename", "evalue") if output.get(key))
    return _joined_lines(output.get("text")) or _joined_lines(plain) or error


def _cell_sections(cell: Mapping[str, Any], path: HeadingPath, place: str) -> Iterator[Section]:
    source = _joined_lines(cell.get("source", cell.get("input")))
    lines = source.replace("\r\n", "\n").split("\n")
    if cell.get("cell_type") in ("markdown", "heading"):
        for section in markdown_sections(lines, path=path):
            yield replace(section, line=0, place=place)
    else:
        outputs = cell.get("outputs")
        texts = [_output_text(output) for output in outputs] if isinstance(outputs, list) else []
        yield Section("\n".join([source, *filter(None, texts)]), path.title, place=place)


def _cells(notebook: object) -> list[Any] | None:
    """The cells of a notebook, also of the format before 2015; None for JSON of another kind."""
    if not isinstance(notebook, dict):
        return None
    sheets = notebook.get("worksheets")
    holder = sheets[0] if isinstance(sheets, list) and sheets and isinstance(sheets[0], dict) else notebook
    cells = holder.get("cells")
    return cells if isinstance(cells, list) else None


def notebook_document(text: str) -> Document:
    """A Jupyter notebook cell by cell, code with what it printed; as JSON where it is none."""
    try:
        cells = _cells(_parse_json(text))
    except ValueError:
        return plain_document(text)
    if cells is None:
        return json_document(text)
    path = HeadingPath()
    held = ((number, cell) for number, cell in enumerate(cells, 1) if isinstance(cell, dict))
    return collect(
        "notebook",
        (section for number, cell in held for section in _cell_sections(cell, path, f"cell {number}")),
    )


# --- PDF


MAX_PAGES = 5000
_PDF_DAMAGE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, OSError, RecursionError),
    *(TypeError, ValueError, struct.error, zlib.error),
)
"""What pypdf raises for damaged files besides its own errors: most of what Python has."""


def _open_pdf(content: bytes) -> Any:
    """The reader of a PDF, opened with the empty password where it has one."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableError("is protected by a password")
    if len(reader.pages) > MAX_PAGES:
        raise UnreadableError(f"has more than {MAX_PAGES:,} pages")
    return reader


def _pdf_title(reader: Any) -> str:
    """The title among a PDF's properties, unless a program left its own there."""
    try:
        title = one_line(str(reader.metadata.title or "")) if reader.metadata else ""
    except _PDF_DAMAGE:
        return ""
    return "" if re.match(r"untitled|microsoft word|\(|slide \d|$", title, re.IGNORECASE) else title


@dataclass
class _LostPages:
    """The pages of a PDF that cannot be read, and whether one of them unpacks to too much."""

    numbers: list[int] = field(default_factory=list)
    too_large: bool = False

    def __str__(self) -> str:
        why = "too much is packed into" if self.too_large else "damage keeps from being read"
        return f"{why} {'page' if len(self.numbers) == 1 else 'pages'} {listed(map(str, self.numbers), limit=10)}"


class _Complaints(logging.Handler):
    """Counts what pypdf logs instead of raising it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Counts one."""
        del record
        self.count += 1


def _page_text(page: Any, complaints: _Complaints) -> str:
    """A page's text; ValueError where there is none, and pypdf logged why instead of raising it."""
    before = complaints.count
    text = str(page.extract_text())
    if not text.strip() and complaints.count > before:
        raise ValueError
    return text


_SECRET_FIELD = 1 << 13


def _form_line(widget: Any) -> str:
    """What a field of a form holds, after what readers are shown as its name; "" for nothing or a password."""
    levels = [widget.get_object()]
    while "/Parent" in levels[-1] and len(levels) < MAX_DEPTH:
        levels.append(levels[-1]["/Parent"].get_object())

    def inherited(key: str) -> Any:
        return next((level[key] for level in levels if key in level), None)

    value = inherited("/V")
    kinds = levels[0].get("/Subtype"), inherited("/FT")
    if value in (None, "", "/Off") or kinds[0] != "/Widget" or kinds[1] not in ("/Tx", "/Btn", "/Ch"):
        return ""
    if int(inherited("/Ff") or 0) & _SECRET_FIELD and kinds[1] == "/Tx":
        return ""
    name = inherited("/TU") or ".".join(str(level["/T"]) for level in reversed(levels) if "/T" in level)
    value = value.get_data().decode("utf-8", "replace") if hasattr(value, "get_data") else value
    values = [str(one) for one in value] if isinstance(value, list) else [str(value)]
    return f"{name}: {', '.join(one.removeprefix('/') if kinds[1] == '/Btn' else one for one in values)}"


def _form_lines(page: Any, damage: tuple[type[Exception], ...]) -> list[str]:
    """The fields of a page's forms that are filled in, once each, up to one that is damaged."""
    lines: dict[str, None] = {}
    try:
        for widget in page.get("/Annots") or ():
            lines |= {line: None for line in [_form_line(widget)] if line}
    except damage:
        logger.debug("A form of a PDF is damaged.", exc_info=True)
    return list(lines)


def _pdf_sections(reader: Any, damage: tuple[type[Exception], ...], lost: _LostPages) -> Iterator[Section]:
    """The text of each page that can be read; the others go to `lost`."""
    complaints = _Complaints()
    logging.getLogger("pypdf").addHandler(complaints)
    for number, page in enumerate(reader.pages, 1):
        try:
            text = _page_text(page, complaints)
            yield Section("\n".join((text, *_form_lines(page, damage))), place=f"page {number}")
        except damage as error:  # noqa: PERF203 - each page may fail by itself
            lost.numbers.append(number)
            lost.too_large = lost.too_large or type(error).__name__ == "LimitReachedError"
    logging.getLogger("pypdf").removeHandler(complaints)


def pdf_document(content: bytes) -> Document:
    """A PDF page by page; pages that cannot be read are named as missing where others can."""
    from pypdf.errors import PyPdfError

    damage = (PyPdfError, *_PDF_DAMAGE)
    lost = _LostPages()
    try:
        reader = _open_pdf(content)
        document = collect("pdf", _pdf_sections(reader, damage, lost), title=_pdf_title(reader))
        document = with_whole_words(document)
    except IgnoredError as error:
        scanned = "has no text on any page: it may be scanned"
        raise UnreadableError(f"is a PDF without text that can be read: {lost}" if lost.numbers else scanned) from error
    except damage as error:
        raise UnreadableError(f"is a damaged PDF ({type(error).__name__})") from error
    return replace(document, missing=f"is read but for a part: {lost}") if lost.numbers else document


# --- Word documents


MAX_UNPACKED = 100_000_000
_MAIN_PART = re.compile(r"word/document\d*\.xml")
_DAMAGED_ZIP = (
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
    zlib.error,
    zipfile.BadZipFile,
)


class _Parts:
    """The parts of a packed document, unpacked no further than MAX_UNPACKED together, whatever their headers say."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._left = MAX_UNPACKED

    def find(self, pattern: str | re.Pattern[str]) -> str:
        """The name of the first part that matches, or nothing."""
        return next((name for name in self._archive.namelist() if re.fullmatch(pattern, name)), "")

    def read(self, name: str) -> bytes:
        """A part's content; nothing where it is not there."""
        if name not in self._archive.NameToInfo:
            return b""
        with self._archive.open(name) as part:
            content = part.read(self._left + 1)
        self._left -= len(content)
        if self._left < 0:
            raise UnreadableError(f"unpacks to more than {MAX_UNPACKED // 1_000_000} MB")
        return content


def _read_xml(
    content: bytes,
    *,
    start: Callable[[str, dict[str, str]], None],
    end: Callable[[str], None],
    data: Callable[[str], None],
) -> None:
    """Reads XML as it streams by; names and attributes are local ones. Entities cannot be declared, so none can grow."""
    from xml.parsers import expat

    def refuse(*_: object) -> NoReturn:
        raise UnreadableError("declares a document type in its XML, which no Word document does")

    def local(name: str) -> str:
        return name.rpartition(" ")[2]

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda name, given: start(local(name), {local(key): given[key] for key in given})
    parser.EndElementHandler = lambda name: end(local(name))
    parser.CharacterDataHandler = data
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise UnreadableError("is a damaged Word document: its XML is broken") from error


@dataclass
class _Style:
    name: str = ""
    base: str = ""
    level: int = -1


def _read_styles(content: bytes) -> dict[str, _Style]:
    """The paragraph styles of a document by their ids, which are localized as their names are not."""
    styles: dict[str, _Style] = {}
    current = _Style()

    def start(name: str, given: dict[str, str]) -> None:
        nonlocal current
        value = given.get("val", "")
        if name == "style":
            current = styles[given.get("styleId", "")] = _Style()
        elif name == "name":
            current.name = value.lower()
        elif name == "basedOn":
            current.base = value
        elif name == "outlineLvl" and value.isascii() and value.isdecimal():
            current.level = int(value[:3])

    if content:
        _read_xml(content, start=start, end=lambda _: None, data=lambda _: None)
    return styles


def _heading_level(styles: Mapping[str, _Style], style: str) -> int:
    """The heading level of a style or of one that it builds on, from 1; 0 for body text."""
    for _ in range(20):  # styles may name each other in a circle
        found = styles.get(style)
        if found is None:
            plain = re.fullmatch(r"Heading([1-9])", style)
            return int(plain[1]) if plain else 0
        named = re.fullmatch(r"heading ([1-9])", found.name)
        if found.level >= 0 or named:
            return int(named[1]) if named else (found.level + 1) % 10
        style = found.base
    return 0


_NOT_SHOWN = ("Fallback", "del", "moveFrom")
"""What older programs show instead of what came before it, and what tracked changes took away."""
_WORD_MARKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "ptab": "\t"}


@dataclass
class _Paragraph:
    style: str = ""
    level: int = -1
    parts: list[str] = field(default_factory=list)


class _WordText:
    """Gathers the paragraphs and table rows of a Word document; text boxes stand in paragraphs, tables in cells.

    Those with text are counted in `unit`, since pages are made only when such a document is shown.
    """

    def __init__(self, styles: Mapping[str, _Style], *, unit: str) -> None:
        self.title = ""
        self._unit = unit
        self.sections: list[Section] = []
        self._styles = styles
        self._path = HeadingPath()
        self._paragraphs: list[_Paragraph] = []
        self._cells: list[list[str]] = []
        self._rows: list[list[str]] = []
        self._in_text = 0
        self._not_shown = 0

    def start(self, name: str, given: dict[str, str]) -> None:
        """An element begins."""
        if name in _NOT_SHOWN:
            self._not_shown += 1
        elif name == "p":
            self._paragraphs.append(_Paragraph())
        elif name == "t":
            self._in_text += 1
        elif name in ("tr", "tc"):
            (self._rows if name == "tr" else self._cells).append([])
        elif self._paragraphs:
            self._mark(self._paragraphs[-1], name, given.get("val", ""))

    def _mark(self, paragraph: _Paragraph, name: str, value: str) -> None:
        if name == "pStyle":
            paragraph.style = value
        elif name == "outlineLvl" and value.isascii() and value.isdecimal():
            paragraph.level = int(value[:3])
        elif name in _WORD_MARKS and not self._not_shown and paragraph.parts:
            paragraph.parts.append(_WORD_MARKS[name])

    def data(self, text: str) -> None:
        """Characters between elements; only those of text runs count."""
        if self._in_text and self._paragraphs and not self._not_shown:
            self._paragraphs[-1].parts.append(text)

    def end(self, name: str) -> None:
        """An element ends."""
        if name in _NOT_SHOWN:
            self._not_shown -= 1
        elif name == "t":
            self._in_text -= 1
        elif name == "p":
            self._end_paragraph(self._paragraphs.pop())
        elif name == "tc" and self._rows:
            self._rows[-1].append(" ".join(self._cells.pop()))
        elif name == "tr":
            self._emit(" | ".join(self._rows.pop()), level=0)

    def _end_paragraph(self, paragraph: _Paragraph) -> None:
        text = "".join(paragraph.parts).strip()
        level = (paragraph.level + 1) % 10 if paragraph.level >= 0 else _heading_level(self._styles, paragraph.style)
        style = self._styles.get(paragraph.style)
        if style and style.name == "title" and not self.title:
            self.title = one_line(text)
        self._emit(text, level=level)

    def _emit(self, text: str, *, level: int) -> None:
        if self._cells and text:
            self._cells[-1].append(text)
        elif text.strip(" |"):
            title = self._path.enter(level, text) if level else self._path.title
            self.sections.append(Section(text, title, place=f"{self._unit} {len(self.sections) + 1}"))


def _property_title(content: bytes) -> str:
    """The title among the properties of a document."""
    open_elements: list[str] = []
    title: list[str] = []
    if content:
        _read_xml(
            content,
            start=lambda name, _: open_elements.append(name),
            end=lambda _: open_elements.__delitem__(-1),
            data=lambda text: title.append(text) if open_elements[-1:] == ["title"] else None,
        )
    return one_line("".join(title))


def _word_document(parts: _Parts) -> Document:
    main = parts.find(_MAIN_PART)
    if not main:
        raise UnreadableError("is a zip archive with no Word document in it")
    styles = _read_styles(parts.read("word/styles.xml"))
    body = _WordText(styles, unit="paragraph")
    _read_xml(parts.read(main), start=body.start, end=body.end, data=body.data)
    notes = _WordText(styles, unit="note")
    for name in ("word/footnotes.xml", "word/endnotes.xml"):
        if content := parts.read(name):
            _read_xml(content, start=notes.start, end=notes.end, data=notes.data)
    title = _property_title(parts.read("docProps/core.xml")) or body.title
    return collect("docx", [*body.sections, *notes.sections], title=title)


def docx_document(content: bytes) -> Document:
    """A Word document: paragraphs and table rows below their headings, then footnotes and endnotes."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _word_document(_Parts(archive))
    except _DAMAGED_ZIP as error:
        raise UnreadableError("is a damaged Word document") from error


# --- formats


_LANGUAGES = {
    "python": "py pyi pyw",
    "script": "js jsx mjs cjs ts tsx mts cts vue svelte rb php pl pm lua r kt kts swift scala ex exs jl go rs groovy gradle zig nim",
    "typed": "java c h cc cpp cxx hh hpp hxx ino m mm cs dart d cu",
    "shell": "sh bash zsh ksh fish ps1 psm1",
    "sql": "sql ddl",
}
_FAMILIES = {f".{suffix}": family for family, suffixes in _LANGUAGES.items() for suffix in suffixes.split()}
TEXT_READERS: Mapping[str, Callable[[str], Document]] = {
    **dict.fromkeys((".md", ".markdown", ".mdx", ".mkd", ".rmd", ".qmd"), markdown_document),
    **dict.fromkeys((".rst", ".rest"), rst_document),
    **dict.fromkeys((".html", ".htm", ".xhtml"), html_document),
    ".csv": functools.partial(csv_document, preferred=","),
    **dict.fromkeys((".tsv", ".tab"), functools.partial(csv_document, preferred="\t")),
    **dict.fromkeys((".json", ".geojson"), json_document),
    **dict.fromkeys((".jsonl", ".ndjson"), jsonl_document),
    ".ipynb": notebook_document,
    **{suffix: functools.partial(code_document, family=family) for suffix, family in _FAMILIES.items()},
    **dict.fromkeys((".txt", ".text"), prose_document),
    **dict.fromkeys((".log", ".adoc", ".tex", ".org"), plain_document),
}
BINARY_SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in """
    7z a aac ai apk avi avif bin bmp bz2 cab class db deb dll dmg doc dylib ear eot epub exe fla flac gif gz heic icns
    ico img iso jar jpeg jpg lance lib lz4 lzma m4a m4v mkv mobi mov mp3 mp4 mpeg mpg msi npy npz o obj odp ods odt ogg
    opus otf parquet pickle pkl png ppt pptx psd pt pth pyc pyd pyo pyz rar rpm safetensors so sqlite sqlite3 swf tar
    tgz tif tiff ttf war wasm wav webm webp whl wma wmv woff woff2 xls xlsb xlsm xlsx xz zip zst
    """.split()  # noqa: SIM905 - words are read best as words
)
"""Files that are not even opened: pictures, sound, programs, archives, and documents that there is no reader for."""
_PACKED_SUFFIXES = frozenset({".pdf", ".docx", ".docm", ".dotx"})
_OLE = bytes.fromhex("d0cf11e0a1b11ae1")


def _packed_document(suffix: str, content: bytes) -> Document | None:
    """The document of bytes that are no text, known by how they begin; None for all others."""
    if content.lstrip()[:5] == b"%PDF-" or (suffix == ".pdf" and b"%PDF-" in content[:1024]):
        return pdf_document(content)
    if content.startswith(b"PK\x03\x04") and (suffix in _PACKED_SUFFIXES or b"word/document" in content):
        return docx_document(content)
    if content.startswith(_OLE) and suffix in _PACKED_SUFFIXES:
        raise UnreadableError("is a Word document of the old format, or protected by a password")
    return None


def read_document(name: str, content: bytes) -> Document:
    """The sections of a file, of which only the suffix of its name counts; UnreadableError says why there are none.

    What a file is is told from its content first, then from its suffix; text of any other kind is plain text.
    """
    suffix = Path(name).suffix.lower()
    if len(content) > MAX_FILE_BYTES:
        raise UnreadableError(f"is larger than {MAX_FILE_BYTES // 1_000_000} MB")
    if suffix in BINARY_SUFFIXES:
        raise IgnoredError("binary")
    if document := _packed_document(suffix, content):
        return document
    try:
        text, guess = decode_text(content)
    except IgnoredError as error:
        if suffix in TEXT_READERS or suffix in _PACKED_SUFFIXES:
            raise UnreadableError("holds binary data") from error
        raise
    document = TEXT_READERS.get(suffix, plain_document)(text)
    doubt = f"is read as {guess}, which is a guess: save it as UTF-8 if letters are wrong"
    return replace(document, missing=doubt) if guess else document


# ======================================================================================================================
# Chunks
# ======================================================================================================================
# A document is cut at its headings, paragraphs and sentences into chunks of a bounded length that overlap a little.
# A chunk names the headings above it and where in the document it stands.


CHUNK_CHARACTERS = 1100
CHUNK_OVERLAP = 100
SMALL_CHUNK = 200
"""Characters below which a chunk is joined to its neighbour: a heading alone, or the last words of a section."""
MAX_CHUNKS = 100_000
_BLOCK = 20_000
"""Characters that the splitter gets at once; its time grows with the square of a run without spaces."""
_BLOCK_END = re.compile(r".*\n\n|.*\n|.* |.*\s", re.DOTALL)
_SCRAP = 80
_CLOSING = re.compile(r"\W*(?:end|fi|done|esac)?\W*")


@dataclass(frozen=True)
class Chunk:
    """A part of a document that a search finds: its text, its headings, its place in the file, its number from 0."""

    text: str
    title: str
    place: str
    index: int
    extractor: str


def _without_scraps(sections: Iterable[Section]) -> list[Section]:
    """Sections of code, with those that say little alone joined to a neighbour: closing brackets, a line before a definition."""
    parts: list[Section] = []
    for part in sections:
        last = parts[-1] if parts else part
        text = f"{last.text}\n{part.text}"
        adjoins = len(last.text) <= CHUNK_CHARACTERS and last.line + last.text.count("\n") + 1 == part.line
        outer = not last.title or part.title.startswith(f"{last.title} > ") or last.text.rstrip().endswith("{")
        if adjoins and len(part.text) <= _SCRAP and _CLOSING.fullmatch(part.text):
            parts[-1] = replace(last, text=text)
        elif adjoins and outer and len(last.text.strip()) <= _SCRAP:
            parts[-1] = replace(part, text=text, line=last.line)
        else:
            parts.append(part)
    return parts


def _spans(text: str, splitter: Any) -> list[tuple[int, int]]:
    """Where the pieces of a text begin and end; a small one is joined to a neighbour, which may make that a little longer."""
    spans: list[tuple[int, int]] = []
    start = 0
    while start < len(text):
        # A block ends between paragraphs, lines or words, in its second half if at all possible.
        gap = _BLOCK_END.match(text, start + _BLOCK // 2, start + _BLOCK) if start + _BLOCK < len(text) else None
        block = text[start : gap.end() if gap else start + _BLOCK]
        words = block.strip()
        fits = 0 < len(words) <= CHUNK_CHARACTERS
        for at, piece in [(block.find(words), words)] if fits else splitter.chunk_indices(block):
            begin, end = start + at, start + at + len(piece)
            first, last = spans[-1] if spans else (begin, begin)
            small = min(last - first, len(piece)) < SMALL_CHUNK
            if spans and small and end - first <= CHUNK_CHARACTERS + SMALL_CHUNK:
                spans[-1] = (first, end)
            else:
                spans.append((begin, end))
        start += len(block)
    return spans


def _pieces(sections: Sequence[Section], extractor: str) -> Iterator[tuple[str, str]]:
    """The pieces of neighbouring sections, packed together as far as they fit, with their places, such as `lines 10-24`."""
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

    texts = [clean_surrogates(section.text).replace("\x00", " ") for section in sections]
    gap = "\n" if extractor in ("html", "docx", "markdown") else "\n\n"
    starts = list(itertools.accumulate((len(text) + len(gap) for text in texts[:-1]), initial=0))
    whole = gap.join(texts)
    line_feeds = array.array("Q", (match.start() for match in re.finditer("\n", whole)))

    def locate(offset: int) -> tuple[Section, str, int]:
        """The section of an offset, and its place: what is counted, such as lines or pages, and its number."""
        at = bisect.bisect_right(starts, offset) - 1
        unit, _, number = sections[at].place.rpartition(" ")
        lines = bisect.bisect_left(line_feeds, offset) - bisect.bisect_left(line_feeds, starts[at])
        line = sections[at].line
        return (sections[at], "line", line + lines) if line else (sections[at], unit, int(number or 0))

    # Markdown is cut along its blocks. Records do not overlap: each says all of itself.
    overlap = 0 if extractor in ("csv", "json", "jsonl") else CHUNK_OVERLAP
    room = CHUNK_CHARACTERS - max(len(section.header) for section in sections)
    splitter = (MarkdownSplitter if extractor == "markdown" else TextSplitter)(room, overlap=overlap)
    for start, end in _spans(whole, splitter):
        (section, unit, first), (_, _, last) = locate(start), locate(end - 1)
        place = f"{unit} {first}" if first == last else f"{unit}s {first}-{last}"
        piece, header = whole[start:end], section.header
        if header and not one_line(piece[: MAX_HEADER * 4]).startswith(header.rstrip("…")):
            piece = f"{header}\n{piece}"  # a table that goes on
        yield piece, place if unit else ""


def cut_document(document: Document, *, name: str) -> list[Chunk]:
    """The chunks of a document in order; what has no heading is titled with the file's name without its suffix."""
    parts = _without_scraps(document.sections) if document.extractor == "code" else document.sections
    chunks: list[Chunk] = []
    runs = itertools.groupby(parts, key=lambda part: (part.title, bool(part.line), part.place.rpartition(" ")[0]))
    for (title, *_), group in runs:
        heading = shorten(one_line(title) or one_line(Path(name).stem) or one_line(name), MAX_TITLE)
        for piece, place in _pieces(list(group), document.extractor):
            if len(chunks) >= MAX_CHUNKS:
                raise UnreadableError(f"gives more than {MAX_CHUNKS:,} chunks")
            chunks.append(Chunk(piece, heading, place, len(chunks), document.extractor))
    return chunks


# ======================================================================================================================
# Extraction
# ======================================================================================================================
# A child process reads and cuts one file after the other, with limits on memory and time and without the environment's
# keys: a hostile file costs its own chunks and nothing else. `command_extract` is what runs in it.


EXTRACT_SECONDS = 60
EXTRACT_MEMORY = 2 << 30
"""Bytes of memory that reading one file may take."""
EXTRACT_VARIABLES = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME"),
    *("PYTHONPATH", "SHIV_ROOT", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "USERPROFILE"),
)
"""All that the child gets of the environment: what starts it. A file that takes it over finds no key."""


@dataclass(frozen=True)
class Extraction:
    """What a file gave: its chunks and the hash of its bytes, or why it `failed`, or why it is `ignored`.

    `missing` says what of it is not among the chunks.
    """

    chunks: tuple[Chunk, ...] = ()
    hash: str = ""
    failed: str = ""
    ignored: str = ""
    missing: str = ""


def open_without_links(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a path to read, waiting for no writer; OSError where a part of it is a symbolic link.

    Paths are resolved before they are checked, so that a link on one has taken the place of what was checked.
    """
    names = os.path.abspath(path)  # noqa: PTH100 - Path would fold a trailing name
    if os.open not in os.supports_dir_fd:  # Windows, where what was opened can only be compared afterwards
        opened = os.open(names, flags | getattr(os, "O_BINARY", 0))
        if os.path.realpath(names) == names and os.path.samestat(os.fstat(opened), os.lstat(names)):
            return opened
        os.close(opened)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    root, *folders = Path(names).parts
    last = folders.pop() if folders else "."
    # O_PATH, where there is one, passes through folders that cannot be listed.
    passing = os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)
    place = os.open(root, passing)
    try:
        for name in folders:
            outer, place = place, os.open(name, passing, dir_fd=place)
            os.close(outer)
        return os.open(last, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    finally:
        os.close(place)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file that no link leads to; UnreadableError where it is of another kind."""
    opened = open_without_links(path)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise UnreadableError("is not a regular file")
    return os.fdopen(opened, "rb")


def read_regular(path: str | Path, most: int) -> bytes:
    """The bytes of a regular file that no link leads to; UnreadableError where they are more than `most`."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UnreadableError(f"is larger than {most / 1_000_000:g} MB")
    return content


def extract_file(path: bytes) -> Extraction:
    """Reads and cuts a file; what is wrong with the file is in the answer."""
    name = os.path.basename(os.fsdecode(path))  # noqa: PTH119 - a path that pathlib need not understand
    digest = ""
    try:
        if Path(name).suffix.lower() in BINARY_SUFFIXES:
            return Extraction(ignored="binary")
        content = read_regular(os.fsdecode(path), MAX_FILE_BYTES)
        digest = hashlib.sha256(content).hexdigest()
        document = read_document(name, content)
        return Extraction(tuple(cut_document(document, name=name)), digest, missing=document.missing)
    except IgnoredError as error:
        return Extraction(hash=digest, ignored=error.cause)
    except UnreadableError as error:
        return Extraction(hash=digest, failed=error.cause)
    except OSError as error:
        return Extraction(failed=f"cannot be opened: {error.strerror or error}")
    except MemoryError:
        return Extraction(hash=digest, failed=f"takes more than {EXTRACT_MEMORY >> 30} GB of memory to read")


def extract_files(reader: Iterable[bytes], writer: BinaryIO) -> None:
    """Answers each line `{"path": base64 of the path's bytes}` with one line, an Extraction as JSON, until the input ends."""
    for line in reader:
        path = base64.b64decode(json.loads(line)["path"])
        if hasattr(signal, "alarm"):
            signal.alarm(EXTRACT_SECONDS * 2)  # for a parent that is no longer there to end what hangs
        answer = asdict(extract_file(path))
        writer.write(json.dumps({key: value for key, value in answer.items() if value}).encode() + b"\n")
        writer.flush()
        if hasattr(signal, "alarm"):
            signal.alarm(0)


def limit_extractor() -> None:
    """Makes a file that takes too much memory fail here, where nothing else does."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (EXTRACT_MEMORY, EXTRACT_MEMORY))


class Extractor:
    """Reads files in a child process, so that a hostile one costs no more than its own chunks.

    `command` starts the child, which gets EXTRACT_VARIABLES alone of `environ`. It is started with the first file, ended
    when a file takes longer than `seconds`, and started again for the next one. It is one file at a time: a second thread
    needs an Extractor of its own.
    """

    def __init__(
        self, command: Sequence[str], *, environ: Mapping[str, str] | None = None, seconds: float = EXTRACT_SECONDS
    ) -> None:
        self._command = list(command)
        self._environ = {name: value for name, value in (environ or {}).items() if name in EXTRACT_VARIABLES}
        self.seconds = seconds
        self.child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Nothing is started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the child."""
        self.close()

    def close(self) -> None:
        """Ends the child."""
        child, self.child = self.child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                pipe and pipe.close()
        child.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        import subprocess

        if self.child is None:
            self.child = subprocess.Popen(  # noqa: S603 - our own command, and paths go through its input
                self._command,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self.child

    def _ask(self, path: str | os.PathLike[str]) -> tuple[bytes, bool]:
        """The child's answer, empty when it died; and whether it was ended because its time was over."""
        child = self._start()
        requests, answers = cast("IO[bytes]", child.stdin), cast("IO[bytes]", child.stdout)
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(self.seconds, end)
        timer.daemon = True
        timer.start()
        request = {"path": base64.b64encode(os.fsencode(path)).decode()}
        try:
            requests.write(json.dumps(request).encode() + b"\n")
            requests.flush()
            return answers.readline(), late.is_set()
        except OSError:
            return b"", late.is_set()
        finally:
            timer.cancel()

    def _why_it_ended(self, *, late: bool) -> str:
        if late:
            return f"takes longer than {self.seconds:g} s to read"
        code = self.child.wait(timeout=10) if self.child else None
        return f"ended the process that read it ({f'signal {-code}' if code and code < 0 else f'exit code {code}'})"

    def extract(self, path: str | os.PathLike[str]) -> Extraction:
        """What the file gives; a failure of the child is one of the file."""
        answer, late = self._ask(path)
        if not answer.endswith(b"\n"):
            failed = self._why_it_ended(late=late)
            self.close()
            return Extraction(failed=failed)
        read = json.loads(answer)
        chunks = tuple(Chunk(**chunk) for chunk in read.pop("chunks", ()))
        return Extraction(chunks, **read)


# ======================================================================================================================
# Finding
# ======================================================================================================================
# A folder is walked without following links. Hidden files, what ignore files name and what the patterns of a call leave
# out are passed over; what could not be looked at is told, since its rows then must stay.


IGNORE_FILES = (".git/info/exclude", ".gitignore", ".lancelotignore")
ALWAYS_IGNORED = b"node_modules/\n__pycache__/\n*.lance/"
"""What an ignore file can take back with `!`: packages of others, bytecode, and databases of LanceDB."""
MAX_IGNORE_BYTES = 200_000
MAX_PATTERN_BYTES = 4096
MAX_PATTERNS = 5000
"""Bytes of an ignore file, bytes of a pattern in it, and patterns that hold in one folder: more are not obeyed, and what
they are about is not indexed."""


@dataclass(frozen=True)
class FoundFile:
    """A file to index: where it lies and the name that the table knows it by."""

    path: Path
    source: str
    size: int
    modified: float


@dataclass(frozen=True)
class Listing:
    """The files of a folder in order, why others were left out, and what could not be looked at.

    `ignored` counts files, and whole folders as one; `failed` holds the reason by name, of files and of folders; `notes`
    are sentences on what else to know.
    """

    files: tuple[FoundFile, ...]
    ignored: Mapping[str, int]
    failed: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def may_hold(self, source: str) -> bool:
        """Whether a file that was not found may still be there, since it or a folder above it could not be looked at."""
        return source in self.failed or any(source.startswith(folder + os.sep) for folder in self.failed)


@dataclass(frozen=True)
class Pattern:
    """A pattern of gitignore, which is about folders alone where it ends in a slash, and takes back where it begins with `!`."""

    regex: re.Pattern[bytes]
    folders_only: bool
    ignores: bool


@dataclass(frozen=True)
class Rules:
    """Patterns of one ignore file or option, the last one first, for the paths below a folder."""

    folder: str
    patterns: tuple[Pattern, ...]

    def ignores(self, path: str) -> bool | None:
        """Whether they ignore a path, which ends in a slash where it is a folder; None where they say nothing of it."""
        name = os.fsencode(path.removeprefix(self.folder))
        is_folder, name = name.endswith(b"/"), name.removesuffix(b"/")
        for pattern in self.patterns:
            if (is_folder or not pattern.folders_only) and pattern.regex.match(name):
                return pattern.ignores
        return None


def source_name(path: str | Path) -> str:
    """A path as text that the table can hold: bytes that are no UTF-8 are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_below(root: Path) -> Callable[[str], bool]:
    """Tells whether a source lies below a folder, by their names."""
    prefix = source_name(root).rstrip(os.sep) + os.sep
    return lambda source: source.startswith(prefix)


_SET_ITEM = re.compile(rb"\[:(?P<kind>[^\]]*):\]|(?P<low>\\.|[^\\])(?:-(?P<high>\\.|[^\]\\]))?", re.DOTALL)
_SET_KINDS = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t\n\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}


def _set_regex(pattern: bytes, start: int) -> tuple[bytes, int]:
    """The set of characters whose `[` stands before `start`, as a regular expression, and where it ends."""
    negated = pattern[start : start + 1] in (b"!", b"^")
    at, members = start + negated, rb"\x00"
    while at == start + negated or pattern[at : at + 1] != b"]":
        item = _SET_ITEM.match(pattern, at)
        if item is None or item["kind"] not in (None, *_SET_KINDS):
            raise ValueError
        if item["kind"]:
            members += _SET_KINDS[item["kind"]]
        else:
            low, high = item["low"][-1], (item["high"] or item["low"])[-1]
            members += b"\\x%02x" % low + (b"-\\x%02x" % high if low <= high else b"")
        at = item.end()
    return b"(?!/)[%s%s]" % (b"^" if negated else b"", members), at + 1


def _leftmost(parts: Sequence[bytes], gap: bytes, numbers: Iterator[int]) -> bytes:
    """A regular expression of parts with gaps between them, each but the last taken where it is found first and nowhere else.

    Trying other places could find nothing more, and would take time that grows with a power of the length.
    """
    regex = parts[0]
    for part in parts[1:-1]:
        regex += b"(?=(?P<g%d>%s%s))(?P=g%d)" % (number := next(numbers), gap, part, number)
    return regex + b"".join(gap + part for part in parts[1:][-1:])


def pattern_regex(pattern: bytes) -> bytes:
    """The paths that a pattern without its `!` matches, as a regular expression; ValueError where there are none.

    It matches as git's wildmatch.c and dir.c do: https://git-scm.com/docs/gitignore
    """
    pattern = pattern.removesuffix(b"/")
    pattern = pattern.removeprefix(b"/") if b"/" in pattern else b"**/" + pattern
    # git compares what stands before the first of these by itself, so that `**` in their place is at the beginning, too.
    literal = len(re.split(rb"[*?\[\\]", pattern, maxsplit=1)[0])
    at, groups = 0, [[b""]]  # what stands between `**`, each divided at its `*`
    while token := re.compile(rb"\*+|\\?.", re.DOTALL).match(pattern, at):
        start, at = token.span()
        across = re.compile(rb"\\?/|\Z").match(pattern, at) if token[0].startswith(b"**") else None
        if across and (start == literal or pattern[start - 1 : start] == b"/"):
            at = across.end()
            groups.append([b"" if across[0] else b".*"])
        elif token[0].startswith(b"*"):
            groups[-1].append(b"")
        elif token[0] == b"[":
            regex, at = _set_regex(pattern, at)
            groups[-1][-1] += regex
        elif token[0] == b"\\":
            raise ValueError
        else:
            groups[-1][-1] += b"[^/]" if token[0] == b"?" else re.escape(token[0][-1:])
    numbers = itertools.count()
    return _leftmost([_leftmost(parts, b"[^/]*?", numbers) for parts in groups], b"(?:[^/]*/)*?", numbers) + rb"\Z"


def _pattern_lines(content: bytes) -> Iterator[bytes]:
    """The lines of an ignore file without the spaces at their ends; UnreadableError where one cannot be obeyed."""
    if b"\0" in content:
        raise UnreadableError("holds binary data")
    for line in content.removeprefix(codecs.BOM_UTF8).split(b"\n"):
        if len(line) > MAX_PATTERN_BYTES:
            raise UnreadableError(f"has a line of more than {MAX_PATTERN_BYTES:,} bytes")
        text = line.removesuffix(b"\r")
        stripped = text.rstrip(b" ")
        backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
        yield text[: len(stripped) + backslashes % 2]  # a space after a backslash is part of the name


def read_rules(folder: str, content: bytes) -> Rules:
    """Rules for the paths below a folder, which is relative to the one that is indexed and ends in a slash, or is "".

    A line that is no pattern is passed over, as git does; UnreadableError where the whole cannot be obeyed.
    """
    patterns = []
    flags = re.DOTALL | (re.IGNORECASE if sys.platform in ("win32", "darwin") else 0)
    for line in _pattern_lines(content):
        pattern = line.removeprefix(b"!")
        if line and not line.startswith(b"#"):
            with contextlib.suppress(ValueError):
                regex = re.compile(pattern_regex(pattern), flags)
                patterns.append(Pattern(regex, pattern.endswith(b"/"), ignores=pattern == line))
    return Rules(folder, tuple(reversed(patterns)))


@contextlib.contextmanager
def _opened_folder(folder: Path) -> Iterator[int | str]:
    """A folder that no link leads to, as os.scandir takes it."""
    if os.scandir not in os.supports_fd:  # Windows
        if os.path.realpath(folder) != str(folder):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        yield str(folder)
        return
    opened = open_without_links(folder, os.O_DIRECTORY)
    try:
        yield opened
    finally:
        os.close(opened)


def _first_verdict(verdicts: Iterable[bool | None]) -> bool:
    return next((verdict for verdict in verdicts if verdict is not None), False)


class FileFinder:
    """Finds the files of a folder. Symbolic links are never followed: what lies inside is found itself.

    With `within`, a folder above it, the way from there must not be hidden or ignored, and the ignore files on it hold.
    """

    def __init__(
        self,
        root: Path,
        *,
        within: Path | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        stop: threading.Event | None = None,
    ) -> None:
        self.root = root
        self._top = within or root
        way = root.relative_to(self._top).as_posix()
        self._way = "" if way == "." else f"{way}/"
        self._include = read_rules("", os.fsencode("\n".join(include))) if include else None
        self._exclude = read_rules("", os.fsencode("\n".join(exclude)))
        self._stop = stop or threading.Event()
        self._files: list[FoundFile] = []
        self._ignored: Counter[str] = Counter()
        self._failed: dict[str, str] = {}
        self._not_obeyed: list[Path] = []

    def find(self) -> Listing:
        """Every file below the folder that is to be indexed, in the order of their names."""
        waiting: list[tuple[Path, str, tuple[Rules, ...]]] = [(self._top, "", (read_rules("", ALWAYS_IGNORED),))]
        while waiting and not self._stop.is_set():
            folder, relative, rules = waiting.pop()
            below = self._look(folder, relative, rules)
            waiting += below
            if self._next_on_the_way(relative) and not below and not self._stop.is_set():
                reasons = listed((*self._ignored, *self._failed.values()) or ["it is no longer there"])
                raise LancelotError(
                    f"The folder {one_line(source_name(self.root))} is left out ({reasons}).",
                    f"Name another one; a person can index it by `{PROGRAM} index`.",
                )
        files = sorted(self._files, key=lambda found: found.source)
        notes = [
            f"{plural(len(self._not_obeyed), 'ignore file')} not obeyed, since no regular file: {one_line(source_name(path))}"
            for path in self._not_obeyed[:1]
        ]
        return Listing(tuple(files), dict(self._ignored), dict(self._failed), tuple(notes))

    def _next_on_the_way(self, relative: str) -> str:
        """The folder to go into from one above the root; "" for the root and what lies below."""
        return self._way[len(relative) :].partition("/")[0] if self._way.startswith(relative) else ""

    def _look(self, folder: Path, relative: str, rules: tuple[Rules, ...]) -> list[tuple[Path, str, tuple[Rules, ...]]]:
        """Takes the files of one folder and gives the folders in it, with the rules that hold there."""
        only = self._next_on_the_way(relative)
        try:
            with _opened_folder(folder) as opened, os.scandir(opened) as entries:
                rules = self._rules_in(folder, relative, rules)
                return [
                    (folder / entry.name, f"{relative}{entry.name}/", rules)
                    for entry in entries
                    if only in ("", entry.name) and not self._stop.is_set()
                    if self._take(entry, folder, relative + entry.name, rules)
                ]
        except OSError as error:
            self._failed[source_name(folder)] = f"the folder cannot be listed ({reason_of(error)})"
        except UnreadableError as error:
            self._failed[source_name(folder)] = error.cause
        return []

    def _rules_in(self, folder: Path, relative: str, rules: tuple[Rules, ...]) -> tuple[Rules, ...]:
        """The rules that hold in a folder, given those of the folders above; UnreadableError where they cannot be obeyed.

        What is no regular file is no ignore file for git either, and is passed over.
        """
        for name in IGNORE_FILES:
            path = folder / name
            try:
                if stat.S_ISREG(path.lstat().st_mode):
                    rules += (read_rules(relative, read_regular(path, MAX_IGNORE_BYTES)),)
                else:
                    self._not_obeyed.append(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, UnreadableError) as error:
                reason = error.cause if isinstance(error, UnreadableError) else f"cannot be read ({reason_of(error)})"
                raise UnreadableError(f"its {name} {reason}") from error
        if sum(len(one.patterns) for one in rules) > MAX_PATTERNS:
            raise UnreadableError(f"more than {MAX_PATTERNS:,} patterns of ignore files hold there")
        return rules

    def _take(self, entry: os.DirEntry[str], folder: Path, relative: str, rules: Sequence[Rules]) -> bool:
        """Takes a file in, or counts why not; whether it is a folder to go into."""
        path = folder / entry.name
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            reason = self._reason_against(entry, relative, rules, is_folder=is_folder)
            if reason:
                self._ignored[reason] += 1
            elif not is_folder:
                state = entry.stat(follow_symlinks=False)
                self._files.append(FoundFile(path, source_name(path), state.st_size, state.st_mtime))
        except OSError as error:
            self._failed[source_name(path)] = f"it cannot be looked at ({reason_of(error)})"
            return False
        return is_folder and not reason

    def _reason_against(
        self, entry: os.DirEntry[str], relative: str, rules: Sequence[Rules], *, is_folder: bool
    ) -> str:
        """Why an entry is left out, in a word or two; "" where it is not."""
        path = f"{relative}/" if is_folder else relative
        below_root = path[len(self._way) :]
        if entry.is_symlink():
            return "symbolic link"
        if entry.name.startswith("."):
            return "hidden"
        # As in git, the last rules that say anything of a path decide: those of the deepest folder.
        if self._exclude.ignores(below_root) or _first_verdict(one.ignores(path) for one in reversed(rules)):
            return "ignored by pattern"
        if is_folder:
            return ""
        if not entry.is_file(follow_symlinks=False):
            return "no regular file"
        folders = (below_root[: found.end()] for found in reversed(list(re.finditer("/", below_root))))
        included = self._include is None or _first_verdict(map(self._include.ignores, (below_root, *folders)))
        return "" if included else "not included"


# ======================================================================================================================
# Embedding
# ======================================================================================================================
# Texts are embedded in batches, a few at a time, and each batch is asked for again while the server is busy. Once a
# server fails for good, what is left gets no vector: the table can be searched by words, and a later run fills them in.


def groups(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in their order, `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


BULK_TEXTS = 64
BULK_CALLS = 4
BULK_RETRIES = 6
BULK_SECONDS = 300.0


class BulkEmbedder:
    """Embeds many texts: in batches, a few at a time, each asked again while the server is busy.

    A server that fails for good is not asked again: the texts that are left get no vector, and `notes` says why.
    """

    def __init__(self, embedder: Embedder, *, stop: threading.Event | None = None) -> None:
        self.model = embedder.model
        self.is_named = embedder.is_named
        self._embedder = embedder
        self._stop = stop or threading.Event()
        self._failure: str = ""
        self._refused: set[str] = set()
        self._worked = False

    @property
    def works(self) -> bool:
        """Whether vectors can be asked for, and the server has not failed."""
        return self._embedder.available and not self._failure

    def give_up(self, why: str) -> None:
        """Asks no more, for the reason in this sentence."""
        self._failure = self._failure or why

    @property
    def notes(self) -> list[str]:
        """Sentences on why texts have no vector."""
        notes = [] if self._embedder.available else [self._embedder.why_not]
        notes += [f"Chunks were left without a vector: {self._failure}"] if self._failure else []
        refused = plural(len(self._refused), "text")
        return notes + ([f"The embedding server gave no vector for {refused}."] if self._refused else [])

    def length_of(self, model: str) -> int:
        """The length of a model's vectors, 0 where the server does not tell."""
        (vector,) = self.embed([PLAIN_TEXT], model=model)
        return len(vector) if vector else 0

    def embed(self, texts: Sequence[str], *, model: str) -> list[Vector[float] | None]:
        """The vector of each text, None where there is none."""
        batches = [list(batch) for batch in groups(texts, BULK_TEXTS)]
        with concurrent.futures.ThreadPoolExecutor(BULK_CALLS) as pool:
            return list(itertools.chain.from_iterable(pool.map(lambda batch: self._batch(batch, model), batches)))

    def _batch(self, texts: list[str], model: str, *, retries: int = BULK_RETRIES) -> list[Vector[float] | None]:
        if self._failure or self._stop.is_set():
            return [None] * len(texts)
        try:
            vectors = self._embedder.ask(texts, model, seconds=BULK_SECONDS, retries=retries)
        except LancelotError as error:
            if error.kind == "refused-texts":
                return self._in_halves(texts, model, error)
            self._failure = str(error)
            return [None] * len(texts)
        self._worked = True
        self._refused.update(text for text, vector in zip(texts, vectors, strict=True) if vector is None)
        return [array.array("f", vector) if vector else None for vector in vectors]

    def _in_halves(self, texts: list[str], model: str, error: LancelotError) -> list[Vector[float] | None]:
        """Servers differ in how many texts they take, and in how long ones: what is refused is divided."""
        if len(texts) > 1:
            middle = len(texts) // 2
            # It was waited for already.
            return self._batch(texts[:middle], model, retries=1) + self._batch(texts[middle:], model, retries=1)
        if texts == [PLAIN_TEXT]:
            self._failure = str(error)
            return [None]
        if not self._worked:
            # It may be the fault of this text alone.
            self._batch([PLAIN_TEXT], model, retries=1)
        self._refused.add(texts[0])
        return [None]


# ======================================================================================================================
# Table
# ======================================================================================================================
# The one schema that `index` writes, and every call that writes: rows are added, replaced and deleted by their source.
# A table of another program is refused, since its rows are not ours to replace.


VECTOR_COLUMN = "vector"
SIZE_COLUMN = "file_size"
"""Earlier versions had no such column. A run adds it; what has no size in it is compared by its content."""
LANGUAGES = (
    *("Arabic", "Danish", "Dutch", "English", "Finnish", "French", "German", "Greek", "Hungarian", "Italian"),
    *("Norwegian", "Portuguese", "Romanian", "Russian", "Spanish", "Swedish", "Tamil", "Turkish"),
)
SCALAR_INDEX_ROWS = 10_000
VECTOR_INDEX_ROWS = 50_000
"""Vectors from which an index pays: at 100,000 of length 384 a search takes a fifteenth of the time, and finds the same."""
PATTERNS_METADATA = b"index_patterns"
"""What --include and --exclude were given for each folder: in the metadata of a column, since a schema's own is fixed."""
TRY_AGAIN = "See to the disk and its rights, then run it again: what was written stays, and the rest follows."


def chunk_id(source: str, index: int) -> str:
    """The id of a chunk: the same in every run and on every machine that knows the source by this name."""
    return hashlib.sha256(f"{source}\0{index}".encode()).hexdigest()[:32]


def moment_of(file: FoundFile) -> dt.datetime:
    """When a file was modified, within what a time stamp holds: file systems can hold other times."""
    return dt.datetime.fromtimestamp(min(max(file.modified, 0.0), 253_402_300_799.0), dt.timezone.utc)


def chunk_schema() -> pa.Schema:
    """The columns of a table of chunks without its vectors, and the mark by which it is known again."""
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    kinds = {"chunk_index": pa.int32(), "modified_at": moment, "indexed_at": moment, SIZE_COLUMN: pa.int64()}
    names = (
        *("id", "text", "title", "chunkSource", "file_name", "file_type", "chunk_index", "place", "extractor"),
        *("content_hash", "modified_at", "indexed_at", SIZE_COLUMN),
    )
    notes: dict[str, Any] = {"chunkSource": {PATTERNS_METADATA: b"{}"}}
    columns = [pa.field(name, kinds.get(name, pa.string()), metadata=notes.get(name)) for name in names]
    return pa.schema(columns, metadata={OWN_METADATA: compact_json({"version": __version__})})


def vector_field(model: str, length: int) -> pa.Field[Any]:
    """The column of vectors, which knows the model that makes them."""
    import pyarrow as pa

    metadata = {MODEL_METADATA: model.encode(), LENGTH_METADATA: str(length).encode(), COMPLETE_METADATA: b"no"}
    return pa.field(VECTOR_COLUMN, pa.list_(pa.float32(), length), metadata=metadata)


def _metadata_names(schema: pa.Schema) -> set[str]:
    holders = {"": schema} | {f" of the column {column.name}": column for column in schema}
    return {f"the metadata {key.decode(errors='replace')}{of}" for of in holders for key in holders[of].metadata or ()}


def check_own_table(name: str, schema: pa.Schema) -> None:
    """Refuse a table to write to whose schema holds anything that `index` does not make: LanceDB acts on metadata."""
    cause = f"was not made by `{PROGRAM} index`"
    if OWN_METADATA in (schema.metadata or {}):
        made = chunk_schema()
        if VECTOR_COLUMN in schema.names:
            made = made.append(vector_field("", getattr(schema.field(VECTOR_COLUMN).type, "list_size", 1)))
        # Earlier versions made less.
        columns = {column.name for column in set(schema) ^ set(made)} - ({SIZE_COLUMN} - set(schema.names))
        differing = {f"the column {column}" for column in columns} | _metadata_names(schema) - _metadata_names(made)
        if not differing:
            return
        cause = f"differs from what `{PROGRAM} index` makes ({listed(shorten(part, 80) for part in sorted(differing))})"
    raise LancelotError(
        f"The table {one_line(name)} {cause}, so it is left as it is.",
        "Name another table with --table, or another folder with --path.",
    )


def in_sources(sources: Iterable[str]) -> str:
    """The condition that a row is of one of these sources."""
    return f"chunkSource IN ({', '.join(map(quote_text, sources))})"


_writing = engine_errors("write to the table", remedy=TRY_AGAIN)


class ChunkTable:
    """The table that one run writes. Each change is one commit of whole files, so no reader sees half of one."""

    def __init__(self, table: Any) -> None:
        self._table = table

    @classmethod
    def open(cls, database: Path, name: str, *, create: bool) -> ChunkTable | None:
        """Open the table of this name; where it is not there, make it if `create` says so, else return None."""
        exists = any((database / f"{name}.lance" / "_versions").glob("*"))
        if not exists and not create:
            return None
        with engine_errors(f"open the table {one_line(name)}"):
            connection = load_lancedb().connect(database)
            table = connection.open_table(name) if exists else connection.create_table(name, schema=chunk_schema())
        check_data_is_inside(database, name, table)
        check_own_table(name, table.schema)
        return cls(table)

    def has(self, column: str) -> bool:
        """Return whether the table has a column."""
        return column in self._table.schema.names

    @property
    def model(self) -> str | None:
        """The model of its vectors, or None if it has none."""
        return embedding_model_of(self._table.schema, VECTOR_COLUMN)

    @property
    def length(self) -> int:
        """The length of its vectors, 0 where it has none."""
        return self._table.schema.field(VECTOR_COLUMN).type.list_size if self.has(VECTOR_COLUMN) else 0

    @engine_errors("read the table")
    def rows(self, *columns: str, where: str | None = None) -> pa.Table:
        """These columns of all rows, or of those that meet a condition."""
        query = self._table.search().select(list(columns))
        return cast("pa.Table", (query.where(where) if where else query).to_arrow())

    @_writing
    def add_column(self, column: pa.Field[Any]) -> None:
        """Give the table an empty column, in the place of one of its name."""
        import pyarrow as pa

        if self.has(column.name):
            self._table.drop_columns([column.name])
        self._table.add_columns(pa.schema([column]))

    def patterns(self) -> dict[str, Any]:
        """The patterns of the last run over each folder."""
        noted = (self._table.schema.field("chunkSource").metadata or {}).get(PATTERNS_METADATA, b"")
        return parse_json_object(noted.decode(errors="replace")) or {}

    def keep_patterns(self, folder: str, patterns: Mapping[str, Sequence[str]]) -> None:
        """Note the patterns of a folder for the runs to come; forget them where there are none."""
        wanted = self.patterns() | {folder: patterns}
        kept = {name: some for name, some in wanted.items() if any(some.values())}
        self._set_metadata("chunkSource", PATTERNS_METADATA, compact_json(kept))

    def set_complete(self, *, complete: bool) -> None:
        """Note in the schema whether every row has its vector; readers cannot count at every search."""
        if self.length:
            self._set_metadata(VECTOR_COLUMN, COMPLETE_METADATA, "yes" if complete else "no")

    @_writing
    def _set_metadata(self, column: str, key: bytes, value: str) -> None:
        if (self._table.schema.field(column).metadata or {}).get(key) != value.encode():
            self._table.update_field_metadata({"path": column, "metadata": {key.decode(): value}})

    def without_vector(self, column: str) -> list[str]:
        """A column of the rows that have no vector."""
        rows = self.rows(column, where=f"{VECTOR_COLUMN} IS NULL" if self.length else None)
        return cast("list[str]", rows[column].to_pylist())

    @_writing
    def replace(self, files: Sequence[tuple[FoundFile, Extraction]], vectors: Mapping[str, Vector[float]]) -> None:
        """Put files in the place of what the table holds of them, in one commit; `vectors` are those of their texts."""
        import pyarrow as pa

        now = dt.datetime.now(dt.timezone.utc)
        rows = [
            {
                "id": chunk_id(file.source, chunk.index),
                "text": chunk.text,
                "title": chunk.title,
                "chunkSource": file.source,
                "file_name": source_name(file.path.name),
                "file_type": source_name(file.path.suffix).lower(),
                "chunk_index": chunk.index,
                "place": chunk.place,
                "extractor": chunk.extractor,
                "content_hash": extraction.hash,
                "modified_at": moment_of(file),
                "indexed_at": now,
                SIZE_COLUMN: file.size,
                VECTOR_COLUMN: vectors.get(chunk.text),
            }
            for file, extraction in files
            for chunk in extraction.chunks
        ]
        merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge = merge.when_not_matched_by_source_delete(in_sources(file.source for file, _ in files))
        merge.execute(pa.Table.from_pylist(rows, schema=self._table.schema), on_bad_vectors="null")

    @_writing
    def remove(self, sources: Iterable[str]) -> None:
        """Take sources out of the table, in one commit."""
        self._table.delete(in_sources(sources))

    @_writing
    def update(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Set columns of the rows that are there, by their `id`, in one commit."""
        import pyarrow as pa

        schema = self._table.schema
        rows = pa.table({name: pa.array(values, schema.field(name).type) for name, values in columns.items()})
        self._table.merge_insert("id").when_matched_update_all().execute(rows)

    @engine_errors("build the indexes", remedy=TRY_AGAIN)
    def make_indexes(self, language: str | None) -> None:
        """Make the indexes that are missing, bring the others up to date, and tidy the files up.

        `language` is that of the stemming; None keeps the one that the table has, which is English at first.
        """
        from lancedb.index import FTS, Bitmap, BTree, IvfFlat

        rows = self._table.count_rows()
        indexes = {index.columns[0]: read_index(index) for index in self._table.list_indices()}
        # What filters and updates look up; of fewer rows a scan is as fast.
        scalar = {"id": BTree, "chunkSource": BTree, "file_type": Bitmap} if rows >= SCALAR_INDEX_ROWS else {}
        wanted: dict[str, Any] = {column: kind() for column, kind in scalar.items() if column not in indexes}
        words: Any = {"base_tokenizer": "icu/split", "max_token_length": 128, "remove_stop_words": False}
        for column in ("text", "title") if rows else ():
            kept = indexes[column].details.get("language", "English") if column in indexes else None
            if kept is None or language not in (None, kept):
                wanted[column] = FTS(**words, with_position=True, language=language or "English")
        vectors = self._table.count_rows(f"{VECTOR_COLUMN} IS NOT NULL") if self.length else 0
        if vectors >= VECTOR_INDEX_ROWS and VECTOR_COLUMN not in indexes:
            wanted[VECTOR_COLUMN] = IvfFlat(distance_type="cosine")
        for column, config in wanted.items():
            self._table.create_index(column, config=config)
        if any(index.uncovered for index in map(read_index, self._table.list_indices())):
            self._table.optimize()


# ======================================================================================================================
# Run
# ======================================================================================================================
# A run compares the folder with what the table holds of it, and commits in batches, so that one that was stopped leaves
# a table that can be searched and the next run goes on from there. A lock file keeps a second writer out.


LOCK_FILE = ".lancelot.lock"
BATCH_CHUNKS = 1000
BATCH_FILES = 200
"""Chunks and files that one commit takes in; a file is never divided, however many chunks it has."""
MAX_FAILED_SHOWN = 200


@dataclass(frozen=True)
class IndexRequest:
    """What a person wants indexed, into which table of which folder, and how."""

    folder: Path
    database: Path
    table: str
    force: bool = False
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    no_patterns: bool = False
    language: str | None = None
    dry_run: bool = False
    force_empty: bool = False
    within: Path | None = None
    """A folder that it must lie in, and not be hidden or ignored there, where a model asks instead of a person."""

    @property
    def name(self) -> str:
        """The folder's name for a sentence."""
        return one_line(source_name(self.folder))


def open_table(request: IndexRequest, *, create: bool = False) -> ChunkTable | None:
    """The table of a request, or None if it is not there; LancelotError where there can be none of its name or place."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", request.table):
        raise LancelotError(
            f'"{one_line(request.table)}" cannot be the name of a table.',
            "Use letters of the English alphabet, digits, _, - and dots.",
        )
    for parent in (request.database, *request.database.parents):
        if parent.suffix == ".lance":
            raise LancelotError(f"{request.database} is inside a table.", f"Set the folder to {parent.parent}.")
    return ChunkTable.open(request.database, request.table, create=create)


Known = dict[str, dict[str, Any]]
"""What a table holds of each source: `content_hash`, `modified_at`, SIZE_COLUMN where it has that, and `count_all` chunks."""


def known_sources(table: ChunkTable | None) -> Known:
    """What a table holds of all sources."""
    if table is None:
        return {}
    columns = ["chunkSource", "content_hash", "modified_at", *([SIZE_COLUMN] if table.has(SIZE_COLUMN) else [])]
    counted = table.rows(*columns).group_by(columns).aggregate([([], "count_all")])
    return {row["chunkSource"]: row for row in counted.to_pylist()}


def sources_below(known: Known, folder: str | Path) -> Known:
    """What of it lies below a folder."""
    below = is_below(Path(folder))
    return {source: row for source, row in known.items() if below(source)}


def count_chunks(known: Known) -> int:
    """The number of chunks of these sources."""
    return sum(row["count_all"] for row in known.values())


def known_by_name(request: IndexRequest, table: ChunkTable | None) -> Known:
    """What a table holds of a folder that need not exist."""
    every = known_sources(table)
    # A folder that was moved may have left a link behind: what is meant is the old name.
    names = (resolve(request.folder) for resolve in (os.path.abspath, os.path.realpath))
    return next(filter(None, (sources_below(every, name) for name in names)), {})


def check_request(request: IndexRequest) -> IndexRequest:
    """The request with its folder resolved; LancelotError says what is wrong with it."""
    try:
        folder = request.folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        cause, remedy = f"The folder {request.name} cannot be opened ({reason_of(error)})", "Name a folder that exists."
        with contextlib.suppress(LancelotError, ValueError):
            if known := known_by_name(request, open_table(request)):
                cause += f"; the table {request.table} keeps {plural(len(known), 'file')} of it"
                remedy = f"If it was renamed or deleted, `{PROGRAM} index --forget {request.name}` takes them out."
        raise LancelotError(f"{cause}.", remedy) from error
    if request.within and not folder.is_relative_to(request.within):
        raise LancelotError(
            f"The folder {request.name} is not inside {one_line(str(request.within))}: a link leads out.",
            "Name a folder inside by a path without links.",
        )
    return replace(request, folder=folder)


def write_lock(database: Path) -> contextlib.AbstractContextManager[Any]:
    """Keep other runs out of a database folder, which is made where it is not there; the system frees it with the process."""
    import filelock

    try:
        database.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(database / LOCK_FILE, timeout=0).acquire()
    except filelock.Timeout as error:
        cause = f"Another run of `{PROGRAM} index` is writing to {database}."
        raise LancelotError(cause, "Try again when it is done.") from error
    except OSError as error:
        cause = f"The database folder {database} cannot be written to ({reason_of(error)})."
        raise LancelotError(cause, "Name another one with --path, or see to its rights and its disk.") from error


def forget_folder(request: IndexRequest) -> tuple[int, int]:
    """Take the files of a folder out of the table; return how many files and chunks that were, or in a dry run would be."""
    table = open_table(request)
    known = known_by_name(request, table)
    if table is None or not known:
        cause = f"The table {request.table} of {request.database} holds nothing of {request.name}."
        raise LancelotError(cause, f"`{PROGRAM} files` lists what it holds.")
    if not request.dry_run:
        with write_lock(request.database):
            table.remove(known)
            table.set_complete(complete=not table.without_vector("id"))
    return len(known), count_chunks(known)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file's content in hexadecimal, "" where it cannot be read: the extractor says why."""
    with contextlib.suppress(OSError, UnreadableError), open_regular(path) as file:
        return file_sum(file)
    return ""


@dataclass
class IndexRun:
    """One run over a folder, which can be stopped between two commits, and what it did.

    `report` gets what is being done ("files", "vectors", "indexes"), how many are done, and of how many. `unchanged` files
    were there already; `chunks` are those of the folder's files in the table; `partial` says that not all of the folder
    could be looked at.
    """

    request: IndexRequest
    embedder: BulkEmbedder
    extractor: Extractor
    report: Callable[[str, int, int], None] = lambda *_: None
    stop: threading.Event = field(default_factory=threading.Event)
    new: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    chunks: int = 0
    without_vector: int = 0
    ignored: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    partial: bool = False
    _known: Known = field(default_factory=dict)
    _touched: list[tuple[FoundFile, int]] = field(default_factory=list)
    _waiting: list[tuple[FoundFile, Extraction]] = field(default_factory=list)

    @property
    def stopped(self) -> bool:
        """Whether it ended before all was done."""
        return self.stop.is_set()

    def run(self, *, confirm: Callable[[str], bool] = lambda _message: False) -> IndexRun:
        """Bring the table up to date with the folder; a dry run only finds out what that would be.

        `confirm` gets a sentence where more than half of the table would go, and says whether that is meant.
        """
        started = time.monotonic()
        # What is refused is refused before anything is made in the folder.
        patterns = self._patterns(open_table(self.request))
        listing = self._list_files(patterns)
        if not self.stopped:
            with contextlib.nullcontext() if self.request.dry_run else write_lock(self.request.database):
                self._update_table(patterns, listing, confirm)
        if self.partial:
            self.notes.append("Not all of the folder could be looked at: what the table holds of the rest stays.")
        self.notes += self.embedder.notes
        self.seconds = time.monotonic() - started
        return self

    def _patterns(self, table: ChunkTable | None) -> dict[str, list[str]]:
        """The patterns that are asked for, else those of the folder's last run."""
        patterns = {"include": list(self.request.include), "exclude": list(self.request.exclude)}
        if table is None or self.request.no_patterns or any(patterns.values()):
            return patterns
        kept = table.patterns().get(source_name(self.request.folder), {})
        patterns = {name: list(map(str, kept.get(name, ()))) for name in patterns}
        if any(patterns.values()):
            shown = listed(f"--{name} '{one_line(value)}'" for name, some in patterns.items() for value in some)
            self.notes.append(
                f"The patterns of the last run over this folder hold: {shown}. --no-patterns forgets them."
            )
        return patterns

    def _list_files(self, patterns: Mapping[str, Sequence[str]]) -> Listing:
        """The files of the folder; LancelotError where it cannot be listed, or patterns leave none, which is hardly meant."""
        request = self.request
        listing = FileFinder(request.folder, within=request.within, stop=self.stop, **patterns).find()
        if reason := listing.failed.get(source_name(request.folder)):
            cause = f"{request.name} was not indexed, since {reason}."
            raise LancelotError(cause, "See to its rights and its disk; what the table holds of it stays.")
        if patterns["include"] and not listing.files and not self.stopped:
            raise LancelotError(
                f"No file of {request.name} matches {listed(patterns['include'])}.",
                "Give --include a pattern as in .gitignore, such as '*.md', or --no-patterns; nothing was changed.",
            )
        self.ignored.update(listing.ignored)
        self.failed.update(listing.failed)
        self.notes += listing.notes
        self.partial = bool(listing.failed)
        return listing

    def _update_table(
        self, patterns: Mapping[str, Sequence[str]], listing: Listing, confirm: Callable[[str], bool]
    ) -> None:
        request = self.request
        table = open_table(request, create=not request.dry_run)
        every = known_sources(table)
        self._known = sources_below(every, request.folder)
        self._check_removal(every, listing, confirm)
        if request.dry_run:
            table = None
        if table:
            table.keep_patterns(source_name(request.folder), patterns)
            self._add_columns(table)
        self._index_files(table, listing)
        if table and not self.stopped:
            self._note_times(table)
            self._fill_in_vectors(table)
            self.report("indexes", 0, 1)
            table.make_indexes(request.language)
        if table:
            missing = table.without_vector("chunkSource")
            table.set_complete(complete=not missing)
            self.without_vector = sum(map(is_below(request.folder), missing))

    def _gone(self, listing: Listing, kept: Collection[str]) -> Known:
        here = {source for source in self._known if source in kept or listing.may_hold(source)}
        return {source: row for source, row in self._known.items() if source not in here}

    def _check_removal(self, every: Known, listing: Listing, confirm: Callable[[str], bool]) -> None:
        """Refuse to take out all of a folder or more than half of the table, unless that is meant."""
        request, all_chunks = self.request, count_chunks(every)
        gone = self._gone(listing, {file.source for file in listing.files if file.size})
        if not listing.files and gone and not request.force_empty:  # a disk that is not there looks like that
            raise LancelotError(
                f"There is no file to index in {request.name}, and the table {request.table} holds "
                f"{plural(len(self._known), 'file')} of it, which stay there.",
                "See whether its disk is mounted; --force-empty takes them out.",
            )

        def is_most(sources: Known) -> bool:
            return len(sources) * 2 > len(every) or count_chunks(sources) * 2 > all_chunks

        if is_most(gone):  # files that were renamed are not lost
            new = {hash_file(file.path) for file in listing.files if file.source not in every}
            gone = {source: row for source, row in gone.items() if row["content_hash"] not in new}
        if not listing.files or not is_most(gone):
            return
        message = (
            f"This run would take {len(gone):,} of {plural(len(every), 'file')} out of the table {request.table}, since "
            f"they are gone from {request.name}, or left out by a pattern."
        )
        if request.dry_run:
            self.notes.append(f"{message} It asks first, or needs --yes.")
        elif not confirm(message):
            raise LancelotError(message, f"Nothing was changed; run `{PROGRAM} index` with --yes if that is meant.")

    def _add_columns(self, table: ChunkTable) -> None:
        """Add the columns that are missing; by force the vectors of another model get a new one, too."""
        model = self.embedder.model
        if not table.has(SIZE_COLUMN):
            table.add_column(chunk_schema().field(SIZE_COLUMN))
        if table.length and not self.request.force:
            if model != table.model and self.embedder.works and self.embedder.is_named:
                self.notes.append(
                    f"The vectors are by {table.model}, which is used again; --force makes them by {model}."
                )
            return
        length = self.embedder.length_of(model) if self.embedder.works else 0
        if length and (model, length) != (table.model, table.length):
            table.add_column(vector_field(model, length))

    def _index_files(self, table: ChunkTable | None, listing: Listing) -> None:
        """Bring in every file that is new or changed, and take out those that are gone."""
        kept = set()
        for position, file in enumerate(listing.files):
            if self.stopped:
                break
            self.report("files", position, len(listing.files))
            if self._is_unchanged(file) or self._read(file):
                kept.add(file.source)
            waiting = sum(len(extraction.chunks) for _, extraction in self._waiting)
            if waiting >= BATCH_CHUNKS or len(self._waiting) >= BATCH_FILES:
                self._write(table)
        self._write(table)
        gone = {} if self.stopped else self._gone(listing, kept)
        if gone and table:
            table.remove(gone)
        self.removed = len(gone)
        self.chunks += count_chunks(self._known) - count_chunks(gone)

    def _is_unchanged(self, file: FoundFile) -> bool:
        """Whether the table holds the file as it is; where only its size or time differs, its content is compared."""
        known = self._known.get(file.source)
        if known is None or self.request.force:
            return False
        if (known["modified_at"], known.get(SIZE_COLUMN)) != (moment_of(file), file.size):
            if known["content_hash"] != hash_file(file.path):
                return False
            self._touched.append((file, known["count_all"]))
        self.unchanged += 1
        return True

    def _read(self, file: FoundFile) -> bool:
        """Read a file to be written; return whether it has a place in the table, or keeps the one it had."""
        extraction = self.extractor.extract(file.path)
        if extraction.ignored:
            self.ignored[extraction.ignored] += 1
        elif extraction.failed:
            self.failed[file.source] = extraction.failed
        else:
            known = self._known.get(file.source)
            self.new += known is None
            self.updated += known is not None
            self.chunks += len(extraction.chunks) - (known["count_all"] if known else 0)
            self.failed |= {file.source: extraction.missing} if extraction.missing else {}
            self._waiting.append((file, extraction))
        return not extraction.ignored

    def _write(self, table: ChunkTable | None) -> None:
        """Write the files that wait, in one commit, with the vectors that the table has for their texts."""
        files, self._waiting = self._waiting, []
        if not files or not table:
            return
        vectors, anew = {}, self.request.force and self.embedder.works
        changed = [file.source for file, _ in files if file.source in self._known]
        if changed and table.length and not anew:
            where = f"{in_sources(changed)} AND {VECTOR_COLUMN} IS NOT NULL"
            rows = table.rows("text", VECTOR_COLUMN, where=where).to_pylist()
            vectors = {row["text"]: array.array("f", row[VECTOR_COLUMN]) for row in rows}
        if any(chunk.text not in vectors for _, extraction in files for chunk in extraction.chunks):
            table.set_complete(complete=False)
        table.replace(files, vectors)

    def _note_times(self, table: ChunkTable) -> None:
        """Note the new times and sizes of files whose content is the same."""
        rows = [(chunk_id(file.source, at), file) for file, chunks in self._touched for at in range(chunks)]
        if rows:
            times, sizes = [moment_of(file) for _, file in rows], [file.size for _, file in rows]
            table.update({"id": [row for row, _ in rows], "modified_at": times, SIZE_COLUMN: sizes})

    def _fill_in_vectors(self, table: ChunkTable) -> None:
        """Embed the chunks that have no vector, also those of earlier runs: without a key, or while a server failed."""
        missing = table.without_vector("id") if table.length else []
        for start in range(0, len(missing), BATCH_CHUNKS):
            if not self.embedder.works or self.stopped:
                return
            self.report("vectors", start, len(missing))
            ids = ", ".join(map(quote_text, missing[start : start + BATCH_CHUNKS]))
            rows = table.rows("id", "text", where=f"id IN ({ids})").to_pylist()
            vectors = self._embed(table, list(dict.fromkeys(row["text"] for row in rows)))
            filled = {row["id"]: vectors[row["text"]] for row in rows if row["text"] in vectors}
            if filled:
                table.update({"id": list(filled), VECTOR_COLUMN: list(filled.values())})

    def _embed(self, table: ChunkTable, texts: Sequence[str]) -> dict[str, Vector[float]]:
        """The vectors of texts, as far as they have one of the table's length."""
        vectors = self.embedder.embed(texts, model=table.model or self.embedder.model)
        lengths = {len(vector) for vector in vectors if vector} - {table.length}
        if lengths:
            self.embedder.give_up(
                f"{table.model} gives vectors of length {max(lengths)} now, and those of the table have {table.length}; "
                "--force makes all of them anew."
            )
        return {text: one for text, one in zip(texts, vectors, strict=True) if one and len(one) == table.length}


def index_object(run: IndexRun) -> dict[str, Any]:
    """What a run did, for a program or a model; at most MAX_FAILED_SHOWN of the files that failed are named."""
    failed = [
        {"path": one_line(source), "reason": shorten(one_line(reason), 200)}
        for source, reason in itertools.islice(sorted(run.failed.items()), MAX_FAILED_SHOWN)
    ]
    answer = {
        "totalFiles": run.new + run.updated + run.unchanged,
        "newFiles": run.new,
        "updatedFiles": run.updated,
        "skippedFiles": run.unchanged,
        "removedFiles": run.removed,
        "ignoredFiles": run.ignored.total(),
        "failedFiles": len(run.failed),
        "totalChunks": run.chunks,
        "chunksWithoutVector": run.without_vector,
        "durationSeconds": round(run.seconds, 2),
        "folder": source_name(run.request.folder),
        "table": run.request.table,
        "database": source_name(run.request.database),
        "dryRun": run.request.dry_run,
        "stopped": run.stopped,
    }
    return answer | {k: v for k, v in (("ignored", run.ignored), ("failed", failed), ("notes", run.notes)) if v}


def index_lines(run: IndexRun) -> str:
    """What a run did, for a person: one line, then why files were left out, and each that could not be read."""
    request = run.request
    did = "Would index" if request.dry_run else "Stopped indexing" if run.stopped else "Indexed"
    counts = f"{run.new:,} new, {run.updated:,} updated, {run.unchanged:,} unchanged, {run.removed:,} removed"
    files = f"{plural(run.new + run.updated + run.unchanged, 'file')} ({counts})"
    chunks = f"{plural(run.chunks, 'chunk')} in {run.seconds:.1f} s"
    lines = [f"{did} {request.name} into the table {request.table} of {request.database}: {files}, {chunks}"]
    if 0 < run.without_vector < run.chunks:
        lines.append(f"without a vector: {plural(run.without_vector, 'chunk')}")
    if run.ignored:
        lines.append(f"left out: {listed(f'{count:,} {reason}' for reason, count in sorted(run.ignored.items()))}")
    lines += [f"note: {note}" for note in run.notes]
    lines += [f"not read: {one_line(source)}: {reason}" for source, reason in sorted(run.failed.items())]
    return "\n".join(lines)


# ======================================================================================================================
# Commands
# ======================================================================================================================
# COMMANDS and OPTIONS are what the command line of `lancelot` looks up here. A run reports to a person with a bar, to
# another program in lines of JSON, and stops between two commits when it is asked to.


REPORT_SECONDS = 0.25
"""Between two reports of progress to another program."""


def _stop_event(*, at_end_of_input: bool) -> threading.Event:
    """An event that Ctrl-C, a polite end of the process and, where wanted, the end of our input set.

    A second signal ends the process at once. Our input ends when the program that started this closes it, or is gone.
    """
    stop = threading.Event()

    def handle(_signal: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    def wait() -> None:
        while os.read(0, 4096):
            pass
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    if at_end_of_input:
        threading.Thread(target=wait, daemon=True).start()
    return stop


def _index_request(session: Session) -> IndexRequest:
    options, settings = session.arguments, session.settings
    if settings.path is None:
        raise LancelotError("No folder is set for the table.", "Name one with --path, or run `init`.")
    if is_address(settings.path):
        raise LancelotError(f"{shown_path(settings.path)} is no folder of this machine.", "Name one with --path.")
    names = ("force", "include", "exclude", "no_patterns", "language", "dry_run", "force_empty", "within")
    folder, database = Path(options.forget or options.folder).absolute(), Path(settings.path).absolute()
    return IndexRequest(folder, database, settings.table, **{name: getattr(options, name) for name in names})


def _confirm_removal(message: str) -> bool:
    """Ask a person at a terminal, where Ctrl-C ends the run at once: nothing was written yet."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        return False
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return agrees(f"{message} Is that meant?")
    finally:
        signal.signal(signal.SIGINT, handler)


def _index(session: Session, report: Callable[[str, int, int], None]) -> IndexRun:
    options, request = session.arguments, check_request(_index_request(session))
    stop = _stop_event(at_end_of_input=options.report)
    embedder = Embedder(session.settings)
    if options.no_vectors:
        embedder = Embedder(load_settings({}, request.database), key=lambda _: KeyLookup(None))
    with Extractor([*session.command, EXTRACT_COMMAND], environ=session.environ) as extractor:
        run = IndexRun(request, BulkEmbedder(embedder, stop=stop), extractor, report, stop)
        return run.run(confirm=(lambda _message: True) if options.yes else _confirm_removal)


def _index_for_program(session: Session) -> int:
    """Print lines of JSON: progress now and then, and at the end what was done, or the reason why nothing was."""
    last = 0.0

    def report(doing: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_SECONDS:
            last = time.monotonic()
            say_json(compact_json({"doing": doing, "done": done, "total": total}))
            sys.stdout.flush()

    try:
        say_json(compact_json(index_object(_index(session, report))))
    except LancelotError as error:
        say_json(compact_json({"error": str(error)}))
        return 1
    return 0


def _forget(session: Session) -> int:
    request = _index_request(session)
    files, chunks = forget_folder(request)
    folder, database = source_name(request.folder), source_name(request.database)
    counts = {"removedFiles": files, "removedChunks": chunks, "dryRun": request.dry_run}
    places = {"folder": folder, "table": request.table, "database": database}
    line = (
        f"{'Would take' if request.dry_run else 'Took'} {plural(files, 'file')} ({plural(chunks, 'chunk')}) of "
        f"{request.name} out of the table {request.table} of {database}"
    )
    print_answer(session, as_json=lambda: compact_json(counts | places), as_lines=lambda: line)
    return 0


def command_index(session: Session) -> int:
    """`index`: bring a table up to date with a folder of files; exit code 1 where not all of it could be looked at."""
    if session.arguments.report:
        return _index_for_program(session)
    for problem in session.settings.problems:
        say(f"{PROGRAM}: {problem}", to=sys.stderr)
    if session.arguments.forget:
        return _forget(session)
    import tqdm

    at_terminal = sys.stderr is not None and sys.stderr.isatty()
    with tqdm.tqdm(file=sys.stderr, leave=False, disable=not at_terminal) as bar:

        def report(doing: str, done: int, total: int) -> None:
            if bar.desc != f"{doing}: ":
                bar.reset(total)
                bar.set_description(doing)
            bar.update(done - bar.n)

        run = _index(session, report if at_terminal else lambda *_: None)
    print_answer(session, as_json=lambda: compact_json(index_object(run)), as_lines=lambda: index_lines(run))
    return 130 if run.stopped else int(run.partial)


def command_extract() -> int:
    """`extract`, which no person calls: the child process of an Extractor, until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the work when a person stops it
    stdio = take_stdio()
    limit_extractor()
    extract_files(stdio.reader.buffer, stdio.writer.buffer)
    return 0


def _language(text: str) -> str:
    return read_choice(text, choices=[name.lower() for name in LANGUAGES]).capitalize()


def _add_index(parser: argparse.ArgumentParser) -> None:
    path, what = type_of_option(read_path), parser.add_mutually_exclusive_group(required=True)
    what.add_argument("folder", nargs="?", metavar="FOLDER", type=path, help="the folder of files to index")
    shown = "take what the table holds of this folder out of it, such as the old name of one that was renamed"
    what.add_argument("--forget", metavar="OLD", type=path, help=shown)
    shown = "the table to make or bring up to date (LANCEDB_TABLE)"
    parser.add_argument("--table", type=type_of_option(read_name), help=shown)
    for option, verb in (("--include", "take only"), ("--exclude", "leave out")):
        shown = f"{verb} the files that this pattern matches, as in .gitignore; may be given several times"
        parser.add_argument(option, action="append", default=[], metavar="PATTERN", help=shown)
    shown = f"the language whose word endings the full-text index knows (English): {', '.join(LANGUAGES)}"
    parser.add_argument("--language", type=type_of_option(_language), metavar="LANGUAGE", help=shown)
    for option, shown in (
        ("--force", "read every file anew, also those that did not change"),
        ("--force-empty", "take every file out where the folder has none any more; its disk may be missing"),
        ("--no-patterns", "forget the patterns of the runs before, which hold where none is given"),
        ("--yes", "do not ask before more than half of the table is taken out of it"),
        ("--dry-run", "only say what would be done"),
        ("--report", argparse.SUPPRESS),
        ("--no-vectors", argparse.SUPPRESS),  # for `demo`, which looks for no key and asks no server whatever is set
    ):
        parser.add_argument(option, action="store_true", help=shown)
    parser.add_argument("--within", type=Path, help=argparse.SUPPRESS)


COMMANDS: Mapping[str, Callable[[Session], int]] = {"index": command_index}

OPTIONS: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {"index": _add_index}
