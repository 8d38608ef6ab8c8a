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
import logging
import math
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
from collections import ChainMap, Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import lancelot
from lancelot import PROGRAM, LancelotError, Session, compact_json, listed, one_line, plural, reason_of, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

# ======================================================================================================================
# Reading
# ======================================================================================================================
# One function a format makes a Document of a file's bytes: its title, and its text in sections that know their headings.
# What is wrong with a file is an UnreadableError with the reason. Files may be hostile: sizes and depths are bounded, and
# all of this runs in a child process, see Extraction.


MAX_FILE_BYTES = 50_000_000
MAX_CHARACTERS = 50_000_000  # of one document: tables and packed documents can hold far more text than bytes
MAX_SECTIONS = 1_000_000
MAX_TITLE = 300
MAX_HEADER = 300  # characters of a table's header that are repeated where the table is cut


class UnreadableError(LancelotError):
    """A file that gives no text: one sentence of why, without its path."""


class IgnoredError(UnreadableError):
    """A file that has no text to give, which is no failure: its reason is `binary` or `empty`."""


@dataclass(frozen=True)
class Section:
    """A part of a document along its own structure.

    `title` is a heading path such as "Guide > Install"; `line` the first line in the file, from 1, or 0 where `place` says
    where it stands: "page 3", "row 12"; `header` the first row of the table that the text belongs to.
    """

    text: str
    title: str = ""
    line: int = 0
    place: str = ""
    header: str = ""


@dataclass(frozen=True)
class Document:
    """The text of a file, which reader gave it, and what of the file is missing or doubtful, if anything."""

    extractor: str
    sections: tuple[Section, ...]
    missing: str = ""


_LETTER, _GAP = "[A-Za-z0-9+/]", r"(?:\s|&#(?:10|xA);){1,40}"
# Mail and drawing programs write it in lines.
_MORE = rf"(?:{_GAP}{_LETTER}{{20,}})*(?:{_GAP}{_LETTER}+(?=[=\"')]))?=*"
_BASE64 = re.compile(
    rf";base64,[\w+/%=-]*{_MORE}|(?<!{_LETTER})(?:{_LETTER}{{200,}}|{_LETTER}{{60,}}(?:{_GAP}{_LETTER}{{60,}}){{2}}){_MORE}"
)
"""The content of a data URI, or more than a hash or a short key has."""


def without_base64(text: str) -> str:
    """The text with a mark in the place of pictures and other bytes that are written in it; the lines stay."""

    def mark(run: re.Match[str]) -> str:
        is_uri = run[0].startswith(";")
        # Sequences of genes, numbers in hexadecimal and long paths are words to search for.
        if not is_uri and not all(re.search(kind, run[0]) for kind in ("[a-z]", "[A-Z]", "[0-9]")):
            return run[0]
        return (";base64,…" if is_uri else "…") + "\n" * run[0].count("\n")

    return _BASE64.sub(mark, text)


class HeadingPath:
    """The headings that are open at a place of a document; their `title` is one line, of which a long one keeps its end."""

    def __init__(self) -> None:
        self.title = ""
        self._open: list[tuple[int, str]] = []

    def enter(self, level: int, title: str) -> str:
        """Open a heading in place of those of its level and below; return the title that holds from here on."""
        self._open = [heading for heading in self._open if heading[0] < level]
        self._open.append((level, shorten(one_line(without_base64(title)), MAX_TITLE // 3)))
        path = " > ".join(title for _, title in self._open if title)
        self.title = path if len(path) <= MAX_TITLE else "…" + path[1 - MAX_TITLE :]
        return self.title


_TERMINAL_CODE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
"""A sequence of ECMA-48, such as a colour, or one that xterm added, such as a link or a title."""
_SOFT_DIVISION = re.compile(r"[ \t]?(?<!\S)(\S*[^\W\d_])[\u00ad¬][ \t]*\n[ \t]*(?=[^\W\d_])")


def collect(extractor: str, sections: Iterable[Section], *, title: str = "") -> Document:
    """A document of the sections that hold text, those without a heading under its own `title`.

    Codes of terminals and invisible characters are left out. A word that such a character divides at a line end goes to
    the next line, so that lines keep their numbers.
    """
    kept: list[Section] = []
    characters = 0
    for section in sections:
        text = _TERMINAL_CODE.sub("", section.text) if "\x1b" in section.text else section.text
        text = text if text.isascii() else lancelot.visible(_SOFT_DIVISION.sub(r"\n\1", text))
        characters += len(text)
        if characters > MAX_CHARACTERS or len(kept) >= MAX_SECTIONS:
            raise UnreadableError(f"holds more than {MAX_CHARACTERS:,} characters or {MAX_SECTIONS:,} rows of text")
        if text and not text.isspace():
            title_here = lancelot.visible(section.title or title)
            kept.append(Section(without_base64(text), title_here, section.line, section.place, section.header))
    if not kept:
        raise IgnoredError("empty")
    return Document(extractor, tuple(kept))


def plain_document(text: str) -> Document:
    """Text without a structure that is known."""
    return collect("text", [Section(text, line=1)])


_DIVIDED_WORD = re.compile(
    r"[ \t]?(?<!\S)([(\"'«„“‘\[]*)((?:[^\W\d_]+[-’'])*[^\W\d_]{2,})[-\u2010][ \t]*\n[ \t]*([^\W\d_]{2,})(?![\w@/\\=(]|\.\w)"
)


def with_whole_words(document: Document) -> Document:
    """Prose with words whole that line ends divide; they go to the next line, so that lines keep their numbers.

    The hyphen stays where the document writes the word with it elsewhere, or the word has others; a name keeps it too.
    """
    text = "\n".join(section.text for section in document.sections).lower()
    words = set(re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)*", text))

    def join(division: re.Match[str]) -> str:
        opening, left, right = division.groups()
        if right in ("and", "bis", "et", "och", "oder", "og", "or", "ou", "und"):  # as in "pre- and postwar"
            return division[0]
        is_name = not right.islower() and not (left.isupper() and right.isupper())
        is_compound = "-" in left or left.lower() in ("self", "well") or f"{left}-{right}".lower() in words
        hyphen = "-" if is_name or (is_compound and f"{left}{right}".lower() not in words) else ""
        return f"\n{opening}{left}{hyphen}{right}"

    whole = (replace(section, text=_DIVIDED_WORD.sub(join, section.text)) for section in document.sections)
    return replace(document, sections=tuple(whole))


# --- bytes to text


_LATIN_PAGES = ("cp1252", "cp1250", "cp1254", "iso8859-2")
_CODE_PAGES = (
    *("cp1252", "cp1250", "cp1251", "koi8-r", "cp932", "euc-jp", "gb18030", "big5", "cp949"),
    *("cp1253", "cp1254", "cp1255", "cp1256", "cp866"),
)
_SUPERSETS = {"iso-8859-1": "cp1252", "iso-8859-9": "cp1254", "euc-kr": "cp949"}
"""What browsers read instead of an encoding that is named: https://encoding.spec.whatwg.org/#names-and-labels"""
CERTAIN = 0.95  # chardet's confidence in a byte-order mark, in what the text declares, and in others that have a form
SURE = 0.05  # below which a guess is reported: bytes that leave ASCII are few, or fit several encodings
_CONTROL_BYTES = bytes({*range(7), *range(14, 27), *range(28, 32)})
_SAMPLE = 32_768


def _decode_by_guess(content: bytes) -> tuple[str, str]:
    """The text of bytes that are neither UTF-8 nor declared, and the code page where that is unsure, else "".

    Where most bytes that leave ASCII stand alone, the script is Latin: those of East Asian encodings come in pairs.
    """
    from chardet import detect

    plain = content.translate(None, delete=_CONTROL_BYTES)  # which would make it binary for chardet
    if len(content) - len(plain) > min(max(len(content) // 20, 1), 4 + len(content) // 2000):
        raise IgnoredError("binary")
    # The lines that leave ASCII tell; the others would hide what encoding these have.
    first = re.search(rb"[\x80-\xff]", plain)
    at = first.start() if first else 0
    start = max(plain.rfind(b"\n", 0, at) + 1, at - _SAMPLE // 8)
    sample = b"\n".join(line for line in plain[start : start + _SAMPLE * 8].split(b"\n") if not line.isascii())
    if len(sample) > _SAMPLE:
        sample = sample[: max(sample.rfind(b"\n", _SAMPLE // 2, _SAMPLE), 0) or _SAMPLE]  # no character is cut in two
    runs = re.findall(rb"[\x80-\xff]+", sample)
    is_latin = sum(len(run) == 1 for run in runs) * 2 >= sum(map(len, runs))
    guess = detect(sample, include_encodings=_LATIN_PAGES if is_latin else _CODE_PAGES, prefer_superset=True)
    encoding = guess["encoding"] if guess["encoding"] and not (is_latin and len(runs) == 1) else "cp1252"
    return content.decode(encoding, "replace"), "" if guess["confidence"] >= SURE else codecs.lookup(encoding).name


def decode_text(content: bytes) -> tuple[str, str]:
    """The text of bytes in whatever encoding, with line feeds alone, and that encoding where it is an unsure guess, else "".

    It is UTF-8, also with a few broken places; else what is marked or declared, else the code page that fits.
    IgnoredError is raised where they are no text.
    """
    from chardet import detect

    guess, is_broken = "", False
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("utf-8-sig", "replace")
        is_broken = text.count("\ufffd") * 5 > len(re.findall(r"[^\x00-\x7f\ufffd]+", text))
    if is_broken or b"\0" in content or b"\x1b$" in content:  # as UTF-16 and ISO-2022, which can be UTF-8 too
        form = detect(content, max_bytes=_SAMPLE)
        encoding = (form["encoding"] or "").lower()
        if not encoding:
            raise IgnoredError("binary")
        if form["confidence"] >= CERTAIN and encoding not in ("ascii", "utf-8"):
            text = content.decode(_SUPERSETS.get(encoding, encoding), "replace")
        elif is_broken:
            text, guess = _decode_by_guess(content)
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", " "), guess


# --- headings: Markdown and reStructuredText


_WORD = re.compile(r"\w")
_BLOCK_TAGS = frozenset(
    """
    address article aside base basefont blockquote body caption center col colgroup dd details dialog dir div dl dt
    fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hr html iframe legend li link
    main menu menuitem nav noframes ol optgroup option p param search section summary table tbody td tfoot th thead
    title tr track ul
    """.split()  # noqa: SIM905 - words are read best as words
)
_VERBATIM = re.compile(
    rf"""^[ ]{{0,3}}(?:
      (?P<fence>`{{3,}}(?=[^`\n]*$)|~{{3,}})(?s:.*?)(?:^[ ]{{0,3}}(?P=fence)[`~]*[ \t]*$|\Z)
    | <(?:pre|script|style|textarea)(?=[\s>])(?s:.*?)(?:</(?:pre|script|style|textarea)>|\Z)
    | <!(?=--)(?s:.*?)(?:-->|\Z) | <\?(?s:.*?)(?:\?>|\Z) | <!\[CDATA\[(?s:.*?)(?:\]\]>|\Z) | <![a-z](?s:.*?)(?:>|\Z)
    | (?:</?(?:{"|".join(sorted(_BLOCK_TAGS))})(?=[\s/>])
        |(?<![^\n]\n)(?<![^\n]\n[ ])</?[a-z][a-z0-9-]*(?:\s[^<>\n]*)?>[ \t]*$)(?s:.*?)(?=^[ \t]*$|\Z)
    )""",
    re.MULTILINE | re.IGNORECASE | re.VERBOSE,
)
"""Code in fences and the blocks of HTML, as CommonMark has them; a tag of no block must stand alone after an empty line."""
_MARKDOWN_HEADING = re.compile(
    r"^ {0,3}(?:(#{1,6})(?:[ \t]+(.*))?|(?![>#|<]|[-*+][ \t]|\d+[.)][ \t])(\S.*)\n {0,3}(=+|--+)[ \t]*)$", re.MULTILINE
)
_NOT_SEEN = re.compile(r"(`[^`]*`)|<!--.*?(?:-->|$)|(?:^|[ \t])#+[ \t]*$")
_FRONT_MATTER = re.compile(r"(?:(---)|\+\+\+)[ \t]*\n(?=.*\S)(?s:.*?)^(?(1)(?:---|\.\.\.)|\+\+\+)[ \t]*$", re.MULTILINE)
_FRONT_TITLE = re.compile(
    r"""^title[ \t]*[:=][ \t]*(?:[>|][-+]?\n[ \t]+)?(?:"([^"\n]+)"|'([^'\n]+)'|((?:(?<![ \t])\#|[^\#\n])*))""",
    re.MULTILINE,
)
_TABLE = re.compile(r"^[^\n|]*\|.*\n(?=[-: \t]*\|)(?=[|: \t]*-)[-|: \t]+$(?:\n(?![ \t]*$).*)*", re.MULTILINE)


def cut_at_headings(
    text: str, headings: Iterable[tuple[re.Match[str], int, str]], path: HeadingPath
) -> Iterator[Section]:
    """Every line in one section each, which begin at the headings: where each stands, its level and its words."""
    start, line, body, title = 0, 1, 0, path.title
    for heading, level, words in headings:
        # A heading without a body stays with the next one, whose title says it where it is below it.
        if _WORD.search(text, body, heading.start()):
            yield Section(text[start : heading.start() - 1], title, line)
            line += text.count("\n", start, heading.start())
            start = heading.start()
        title, body = path.enter(level, words), heading.end()
    yield Section(text[start:], title, line)


def markdown_sections(text: str, path: HeadingPath, *, start: int = 0) -> Iterator[Section]:
    """Markdown by its headings of both kinds outside of code and HTML, and its tables; those before `start` are none."""
    hidden = _VERBATIM.sub(lambda block: "\n".join("<" * len(line) for line in block[0].split("\n")), text[start:])
    headings = []
    for heading in _MARKDOWN_HEADING.finditer(" " * start + hidden):
        marks, words, underlined, rule = heading.groups()
        level = len(marks) if marks else 1 if "=" in rule else 2
        headings.append((heading, level, _NOT_SEEN.sub(r"\1", without_base64(words or underlined or "")[:1000])))
    for section in cut_at_headings(text, headings, path):
        part, line = section.text, section.line
        cuts = [cut for table in _TABLE.finditer(part) for cut in (table.start(), table.end() + 1)]
        for number, (first, last) in enumerate(itertools.pairwise([0, *cuts, len(part) + 1])):
            header = shorten(one_line(part[first : part.find("\n", first)]), MAX_HEADER) if number % 2 else ""
            if first < last:
                yield replace(section, text=part[first : last - 1], line=line, header=header)
            line += part.count("\n", first, last)


def markdown_document(text: str) -> Document:
    """Markdown by its headings, the rest under the title of its front matter: YAML or TOML."""
    front = _FRONT_MATTER.match(text)
    title = _FRONT_TITLE.search(front[0]) if front else None
    sections = markdown_sections(text, HeadingPath(), start=front.end() if front else 0)
    return collect("markdown", sections, title=next(filter(None, title.groups()), "").strip() if title else "")


_RULE = r"([!-/:-@\[-`{-~])"
_RST_TITLE = re.compile(
    rf"^(?:({_RULE}\2+)[ \t]*\n|(?<![^\n]\n)(?=\S))(?!{_RULE}\3+[ \t]*$)(?=[ \t]*\S)(.*)\n({_RULE}\6+)[ \t]*$",
    re.MULTILINE,
)


def rst_document(text: str) -> Document:
    """ReStructuredText by its titles: a rule below, or above and below; the order of the kinds makes the levels."""
    levels: dict[tuple[str, bool], int] = {}
    headings = []
    for title in _RST_TITLE.finditer(text):
        above, words, below = title[1], title[4].strip(), title[5]
        if above in (None, below) and len(below) >= min(len(words), 4):  # as docutils has it
            level = levels.setdefault((below[0], above is not None), len(levels) + 1)
            headings.append((title, level, words))
    return collect("rst", cut_at_headings(text, headings, HeadingPath()))


# --- source code


MAX_PARSED_CODE = 2_000_000  # characters of Python that are parsed; longer files are read by their lines
_MAX_CODE_LINE = 300  # characters of a line that may begin a definition
_COMMENTS = ("//", "/*", "*", "#", "--", "@", "'''", ";;")
_TYPE = r"(?:@?[A-Za-z_][\w:<>,.?&*\[\]]*\s+[*&]*)"
_DEFINITION = re.compile(
    rf"""\s*(?:(?:export|default|declare|public|private|protected|internal|static|final|abstract|async|sealed|partial|open
        |override|virtual|readonly|unsafe|extern|const|inline|suspend|data|case|implicit|lazy|local|pub(?:\([\w ]+\))?)\s+)*
    (?:(?!.*;\s*$)(?:
        (?:class|interface|struct|enum(?:\s+class)?|trait|impl(?:<[^>]*>)?|namespace|module|object|record|protocol|extension
          |defmodule|package|union|mod)\s+(?:[A-Z]+_[A-Z_]+\s+(?=\w))?(?P<outer>[A-Za-z_$][\w$.:]*)
        |type\s+(?P<go>\w+)\s+(?:struct|interface)\b|func\s+\(\s*(?:\w+\s+)?\*?(\w+)[^)]*\)\s*(\w+)
        |(?:function\b[\s*&]*|(?:func|fun(?:\s+<[^>]*>)?|fn|defp?|sub|proc|macro_rules!|type)\s+)([\w$.:]+[?!]?))
    |(?i:create\s+(?:\w+\s+){{0,4}}?(?:table|view|function|procedure|index|trigger|type|schema|sequence)\s+
        (?:if\s+not\s+exists\s+)?["`\[]?([\w.]+))
    |(?:(?:let|var)\s+)?([\w$.]+)\s*(?::[^=]*)?(?:=|<-)\s*(?:async\s*)?(?:function\b|\([^()]*\)\s*(?::[^=]*)?=>|[\w$]+\s*=>)
    |(?!(?:return|if|else|elif|elsif|for|foreach|while|switch|case|new|throw|delete|goto|using|typedef|do|catch|await|yield
        |import|from|when|match|assert|print|echo|in|not|and|or|unless|until|with|raise|except|try|end)\b)
        (?:(?!.*(?:=>|\b(?:function|new)\b)){_TYPE}*(?:\*\s*)?([~\#]?[A-Za-z_$][\w$:~.-]*)\s*\([^;]*\{{\s*$
        |(?P<loose>)(?:{_TYPE}+(~?[A-Za-z_][\w:~]*)|([A-Za-z_]\w*::~?[\w:~]+)|([\w.:-]+)(?=\s*\(\)))\s*\([^;]*$))
    """,
    re.VERBOSE,
)
"""What has others within, a function by its keyword, one of SQL, one that is assigned, and one by its parentheses: with a
brace, or `loose`, in languages that write types or where nothing else looks like it."""
_CLOSER = re.compile(r"\s*(?:[\]})]+|end\b|fi\b|done\b)")


def _python_owners(text: str, count: int) -> list[str]:
    """The qualified name of the definition that each of the lines of Python belongs to."""
    import ast

    owners = [""] * count
    waiting: list[tuple[ast.AST, str]] = [(node, "") for node in ast.parse(text).body]
    for node, outer in waiting:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        name = f"{outer} > {node.name}" if outer else node.name
        start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        end = node.end_lineno or node.lineno
        owners[start:end] = [name] * (end - start)
        if isinstance(node, ast.ClassDef):
            waiting += [(inner, name) for inner in node.body]
    return owners


def _line_owners(lines: Sequence[str], *, loose: bool) -> list[str]:
    """The qualified name of the definition that each line of code belongs to, by indentation and closing lines."""
    owners = [""] * len(lines)
    opened: list[tuple[int, str, bool]] = []  # the indentation and the name of each, and whether it has others within
    for at, line in enumerate(lines):
        code = line.strip()
        indent = len(line) - len(line.lstrip())
        outer = [definition for definition in opened if definition[0] < indent]
        in_body = bool(opened) and outer == opened and not opened[-1][2]
        is_code = code and len(line) <= _MAX_CODE_LINE and not code.startswith(_COMMENTS)
        match = _DEFINITION.match(line) if is_code and not in_body else None
        begins = match is not None and (loose or match["loose"] is None)
        if match and begins:
            name = " > ".join(filter(None, match.groups())).rstrip(":.")
            opened = [*outer, (indent, name, bool(match["outer"] or match["go"]))]
        owners[at] = " > ".join(name for _, name, _ in opened)
        closes_at_once = code.endswith(("}", ";", " end")) and code.count("{") == code.count("}")
        if (begins and closes_at_once) or (opened and indent <= opened[-1][0] and _CLOSER.match(line)):
            opened = outer
    return owners


def code_document(text: str, kind: str) -> Document:
    """Source code by its definitions; every line is in one section, blank ones with what stands above them."""
    lines = text.split("\n")
    owners = None
    if kind == "python" and len(text) <= MAX_PARSED_CODE:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            owners = _python_owners(text, len(lines))
    owners = owners or _line_owners(lines, loose=kind == "loose")
    for at in range(len(lines) - 2, -1, -1):  # comments and decorators stand above what they belong to
        if owners[at + 1] and lines[at].lstrip().startswith(_COMMENTS):
            owners[at] = owners[at + 1]
    for at in range(1, len(lines)):
        owners[at] = owners[at] if lines[at].strip() else owners[at - 1]
    starts = [at for at in range(len(lines)) if at == 0 or owners[at] != owners[at - 1]]
    parts = itertools.pairwise([*starts, len(lines)])
    return collect("code", (Section("\n".join(lines[at:end]), owners[at], at + 1) for at, end in parts))


# --- HTML


_BREAKS = _BLOCK_TAGS - {"td", "th"} | {"br", "pre", "select", "textarea"}
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())  # noqa: SIM905 - as above
_END_OPTIONAL = ("dd", "dt", "li", "option", "p", "td", "th", "tr")
MAX_HIDDEN_DEPTH = 500  # elements inside a hidden one that are told apart; browsers nest about as deep


class _HtmlText(html.parser.HTMLParser):
    """Gathers the lines of an HTML document, each below the headings and the table's header that are open there."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.sections: list[Section] = []
        self._path = HeadingPath()
        self._parts: list[str] = []
        self._line = 0  # where the text of the line began; 0 before it has any
        self._tag = ""  # what the line is in, if it is a heading or the title of the page
        self._preformatted = 0
        self._hidden: list[str] = []
        self._headers: list[str | None] = []  # of each open table; None while its first row is still to come
        self._cells: set[str] = set()  # the tags of the line's cells
        self._divided = False
        self._in_head = False

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        for number, line in enumerate(data.split("\n") if self._preformatted else [data]):
            if number:
                self.flush()
            if self._divided and line.strip():
                cells = self._cells
                self.flush()
                self._cells = cells  # the row goes on
            if not self._line and line.strip():
                self._line = self.getpos()[0] + number + line[: len(line) - len(line.lstrip())].count("\n")
            self._parts.append(line)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        # One whose end may be left out ends where the next of its kind begins beside it.
        unclosed = list(itertools.takewhile(_END_OPTIONAL.__contains__, reversed(self._hidden)))
        if tag in unclosed:
            del self._hidden[-1 - unclosed.index(tag) :]
        is_hidden = "hidden" in attributes and attributes["hidden"] != "until-found"
        is_hidden = is_hidden or bool(re.search(r"display\s*:\s*none", attributes.get("style") or "", re.IGNORECASE))
        is_unseen = tag in ("noscript", "script", "style", "template")
        # A whole page that is hidden is shown by its scripts.
        if self._hidden or is_unseen or (is_hidden and tag not in ("html", "body")):
            if tag not in _VOID and len(self._hidden) < MAX_HIDDEN_DEPTH:
                self._hidden.append(tag)
            return
        self._break_at(tag, opens=True)
        if tag == "table":
            self._headers.append(None)
        elif tag in ("td", "th"):
            self._parts.append(" | " if self._line else "")
            self._cells.add(tag)
            self._divided = False
        elif tag == "li":
            self._parts.append("- ")
        elif tag == "img" and attributes.get("alt"):
            self.handle_data(f" {attributes['alt']} ")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            while self._hidden.pop() != tag:
                pass
            return
        if self._hidden and not (self._hidden[0] in _END_OPTIONAL and tag in _BREAKS):
            return
        self._hidden.clear()
        self._break_at(tag, opens=False)
        if tag == "table" and self._headers:
            self._headers.pop()

    def _break_at(self, tag: str, *, opens: bool) -> None:
        if tag not in _BREAKS:
            return
        if self._cells and tag in ("br", "div", "p"):  # which divides a row only where more text of the cell follows
            self._divided = self._divided or bool(self._parts[-1].strip(" |\n"))
            return
        self.flush()
        self._tag = tag if opens and re.fullmatch("title|h[1-6]", tag) else ""
        if tag == "pre":
            self._preformatted = max(0, self._preformatted + (1 if opens else -1))
        elif tag in ("table", "thead", "tbody"):
            self._in_head = opens and tag == "thead"

    def flush(self) -> None:
        text = "".join(self._parts)
        text = text.rstrip() if self._preformatted else " ".join(text.split())
        if self._tag == "title":
            self.title = self.title or one_line(text)
        elif text and (text != "-" or self._preformatted):
            title = self._path.enter(int(self._tag[1]), text) if self._tag else self._path.title
            header = self._headers[-1] if self._headers else ""
            if self._cells and (self._in_head or (header is None and self._cells == {"th"})):
                header = shorten(f"{header or ''} | {text}".removeprefix(" | "), MAX_HEADER)
            if self._headers and self._cells:
                self._headers[-1] = header or ""
            self.sections.append(Section(text, title, self._line, header=header or ""))
        self._parts, self._cells, self._line, self._tag, self._divided = [], set(), 0, "", False


def html_document(text: str) -> Document:
    """HTML as a person sees it, a line for each block and row, below its headings."""
    reader = _HtmlText()
    # Python's parser stops at the declarations that Word leaves in pages; they say nothing to a person.
    reader.feed(re.sub(r"<!\[(?!(?i:CDATA)\[)[^>]*>?", lambda odd: "\n" * odd[0].count("\n"), text))
    reader.close()
    reader.flush()
    return collect("html", reader.sections, title=reader.title)


# --- tables, records and notebooks


MAX_FIELD = 131_072
"""Characters of one cell; Python's own limit. A longer one is a quote that is not closed: the table is read as text."""
_NAMED_DELIMITER = re.compile(r'"?sep=([^\w"\n])"?[ ;,\t]*(?:\n|$)', re.IGNORECASE)
"""The first line by which a file tells Excel its separator; it is no row."""
_COLUMN_NAME = re.compile(r"(?![-+(]?[$€£]?\d[\d.,:/ %-]*\)?$).{1,100}", re.DOTALL)  # no number, no date, not long


def _delimiter(text: str, *, preferred: str) -> str:
    """The separator of the most regular table, or "" if none gives more than half of the first rows one width."""
    best, delimiter = (0.5, math.inf), ""
    for candidate in dict.fromkeys(f"{preferred},;\t|"):
        rows = itertools.islice(csv.reader(io.StringIO(text[: MAX_FIELD // 2]), delimiter=candidate), 50)
        widths = Counter(len(row) for row in rows if row)
        width, count = max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
        if width > 1 and (count / widths.total(), width) > best:
            best, delimiter = (count / widths.total(), width), candidate
    return delimiter


def _table_sections(text: str, delimiter: str) -> Iterator[Section]:
    """Each row as `column: value` lines; rows are counted as a table shows them, the header being row 1."""
    names: list[str] = []
    for number, row in enumerate(csv.reader(io.StringIO(text), delimiter=delimiter), 1):
        cells = [cell.strip() for cell in row]
        if number == 1 and 1 < len(row) == len(set(cells)) and all(map(_COLUMN_NAME.fullmatch, cells)):
            names = [one_line(cell) for cell in cells]
            continue
        named = zip([*names, *[""] * len(cells)], cells, strict=False)
        lines = [f"{name}: {cell}" if name else cell for name, cell in named if cell]
        yield Section(("\n" if names else " | ").join(lines), place=f"row {number}")


def csv_document(text: str, *, preferred: str) -> Document:
    """A table of separated values; as plain text where it is none, or has no row below its header."""
    named = _NAMED_DELIMITER.match(text)
    text = text[named.end() :] if named else text
    with contextlib.suppress(csv.Error, IgnoredError):
        if delimiter := named[1] if named else _delimiter(text, preferred=preferred):
            return collect("csv", _table_sections(text, delimiter))
    return plain_document(text)


def json_text(value: object, path: str = "") -> str:
    """A `path: value` line for each scalar of a JSON value, in order; empty ones and null are left out."""
    lines: list[str] = []
    left = MAX_CHARACTERS

    def add(value: object, path: str) -> None:
        nonlocal left
        if isinstance(value, dict):
            for key, inner in value.items():
                add(inner, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                add(inner, f"{path}[{number}]")
        elif value not in ("", None):
            scalar = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"{path}: {scalar}" if path else scalar)
            left -= len(lines[-1])
            if left < 0:
                raise UnreadableError(f"holds more than {MAX_CHARACTERS:,} characters")

    add(value, path)
    return "\n".join(lines)


def json_document(text: str) -> Document:
    """JSON: the records of an array, or the keys of an object; as plain text where it is broken."""
    try:
        value = json.loads(text)
    except ValueError:
        return plain_document(text)
    if isinstance(value, dict):
        return collect("json", (Section(json_text(inner, key), one_line(key)) for key, inner in value.items()))
    records = enumerate(value if isinstance(value, list) else [value], 1)
    return collect("json", (Section(json_text(record), place=f"record {at}") for at, record in records))


def jsonl_document(text: str) -> Document:
    """A JSON value a line; a line that is broken is kept as it is, and all of them as plain text if they are."""
    sections, is_json = [], False
    for number, line in enumerate(text.split("\n"), 1):
        record = line
        with contextlib.suppress(ValueError):
            record, is_json = json_text(json.loads(line)), True
        if record:
            sections.append(Section(record, place=f"line {number}"))
    return collect("jsonl", sections) if is_json else plain_document(text)


def _notebook_text(value: object) -> str:
    """A text that a notebook holds whole or as a list of lines."""
    return "".join(part for part in (value if isinstance(value, list) else [value]) if isinstance(part, str))


def _cell_sections(cell: Mapping[str, Any], path: HeadingPath, place: str) -> Iterator[Section]:
    """A cell of words by its headings, or one of code with what it says in words; pictures and markup are left out."""
    source = _notebook_text(cell.get("source", cell.get("input"))).replace("\r\n", "\n")
    if cell.get("cell_type") in ("markdown", "heading"):
        yield from (replace(section, line=0, place=place) for section in markdown_sections(source, path))
        return
    texts = [source]
    for output in cell.get("outputs") or ():
        words = _notebook_text(output.get("text") or output.get("data", {}).get("text/plain"))
        texts.append(words or ": ".join(str(output[key]) for key in ("ename", "evalue") if output.get(key)))
    yield Section("\n".join(filter(None, texts)), path.title, place=place)


def notebook_document(text: str) -> Document:
    """A Jupyter notebook cell by cell, code with what it printed; as JSON where it is none."""
    path = HeadingPath()
    try:
        notebook = json.loads(text)
        # Before 2015 the cells stood in a worksheet.
        cells = enumerate(notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"], 1)
        parts = [_cell_sections(cell, path, f"cell {at}") for at, cell in cells if isinstance(cell, dict)]
        return collect("notebook", itertools.chain.from_iterable(parts))
    except (AttributeError, LookupError, TypeError, ValueError):
        return json_document(text)


# --- PDF and Word documents


MAX_PAGES = 5000
MAX_UNPACKED = 100_000_000
_DAMAGE = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError),
    *(ValueError, struct.error, zlib.error, zipfile.BadZipFile),
)
"""What libraries raise for damaged files besides their own errors: most of what Python has."""
_SECRET_FIELD = 1 << 13


def _form_lines(page: Any) -> Iterator[str]:
    """What the fields of a page's forms hold, but for passwords, after what readers are shown as their names."""
    for annotation in page.get("/Annots") or ():
        levels = [annotation.get_object()]
        while "/Parent" in levels[-1] and len(levels) < lancelot.MAX_DEPTH:
            levels.append(levels[-1]["/Parent"].get_object())
        widget = ChainMap(*levels)
        kind, value = widget.get("/FT"), widget.get("/V")
        is_secret = kind == "/Tx" and int(widget.get("/Ff") or 0) & _SECRET_FIELD
        if value in (None, "", "/Off") or widget.get("/Subtype") != "/Widget" or kind == "/Sig" or is_secret:
            continue
        name = widget.get("/TU") or ".".join(str(level["/T"]) for level in reversed(levels) if "/T" in level)
        value = value.get_data().decode("utf-8", "replace") if hasattr(value, "get_data") else value
        values = map(str, value if isinstance(value, list) else [value])
        yield f"{name}: {', '.join(text.removeprefix('/') if kind == '/Btn' else text for text in values)}"


def _pdf_sections(reader: Any, damage: tuple[type[Exception], ...], lost: list[int]) -> Iterator[Section]:
    """The text of each page and its forms; the numbers of those that cannot be read go to `lost`."""
    complaints = io.StringIO()
    logging.getLogger("pypdf").addHandler(handler := logging.StreamHandler(complaints))
    for number, page in enumerate(reader.pages, 1):
        text, before = None, complaints.tell()
        with contextlib.suppress(*damage):
            text = str(page.extract_text())
        # pypdf logs some damage instead of raising it.
        if text is None or (not text.strip() and complaints.tell() > before):
            lost.append(number)
            continue
        lines = {text: None}
        with contextlib.suppress(*damage):
            for line in _form_lines(page):
                lines[line] = None
        yield Section("\n".join(lines), place=f"page {number}")
    logging.getLogger("pypdf").removeHandler(handler)


def pdf_document(content: bytes) -> Document:
    """A PDF page by page; pages that cannot be read are named as missing where others can."""
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    damage = (PyPdfError, *_DAMAGE)
    title, lost = "", list[int]()
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableError("is protected by a password")
        if len(reader.pages) > MAX_PAGES:
            raise UnreadableError(f"has more than {MAX_PAGES:,} pages")
        with contextlib.suppress(*damage):
            title = one_line(str(reader.metadata.title or "")) if reader.metadata else ""
        if re.match(r"untitled|microsoft word|\(|slide \d", title, re.IGNORECASE):  # a program left it there
            title = ""
        document = with_whole_words(collect("pdf", _pdf_sections(reader, damage, lost), title=title))
    except IgnoredError as error:
        reason = f"is a PDF with {plural(len(lost), 'unreadable page')}" if lost else "has no text: it may be scanned"
        raise UnreadableError(reason) from error
    except damage as error:
        raise UnreadableError(f"is a damaged PDF ({type(error).__name__})") from error
    pages = f"is read but for {plural(len(lost), 'unreadable page')}: {listed(map(str, lost), limit=10)}"
    return replace(document, missing=pages) if lost else document


# What mammoth would leave out with the text in it: fields, directions, annotated words and equations.
_WORD_WRAPPER = re.compile(
    rb'<(/?)(?:w:(?:fldSimple|dir|bdo|ruby|rubyBase|rt)|m:(?![rt][\s/>])\w+)(?=[\s/>])(?:"[^"]*"|[^>"])*?(/?)>'
)


def _readable_word(xml: bytes) -> bytes:
    """A part of a Word document in which every text stands in elements that mammoth reads."""
    xml = re.sub(rb"<w:cr\s*/>", b"<w:br/>", _WORD_WRAPPER.sub(rb"<\1w:smartTag\2>", xml))
    xml = re.sub(rb"<w:noBreakHyphen\s*/>", b"<w:t>-</w:t>", xml)
    return re.sub(rb"<(/?)m:([rt])(?=[\s/>])", rb"<\1w:\2", xml)


def docx_document(content: bytes) -> Document:
    """A Word document: paragraphs and table rows below their headings, then footnotes and endnotes.

    They are counted, since pages are made only when such a document is shown.
    """
    from xml.parsers.expat import ExpatError

    import mammoth

    file, core = io.BytesIO(), b""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(file, "w") as readable:
            # No more of a part is unpacked than its header says; pictures are not opened, and expat bounds entities.
            sizes = {part.filename: part.file_size for part in archive.infolist()}
            if sum(size for name, size in sizes.items() if name.endswith((".xml", ".rels"))) > MAX_UNPACKED:
                raise UnreadableError(f"unpacks to more than {MAX_UNPACKED // 1_000_000} MB")
            if not any(re.fullmatch(r"word/document\d*\.xml", name) for name in sizes):
                raise UnreadableError("is a zip archive with no Word document in it")
            with contextlib.suppress(KeyError), archive.open("docProps/core.xml") as part:
                core = part.read(MAX_FIELD)
            for name in (name for name in sizes if name.endswith((".xml", ".rels"))):
                xml = archive.read(name)
                readable.writestr(name, _readable_word(xml) if name.startswith("word/") else xml)
        options = {"include_embedded_style_map": False, "convert_image": lambda _: []}
        page = mammoth.convert_to_html(file, style_map="p[style-name='Title'] => h1:fresh", **options).value
    except (ExpatError, *_DAMAGE) as error:
        raise UnreadableError(f"is a damaged Word document ({type(error).__name__})") from error
    body, *notes = re.split(r'<ol>(?=<li id="(?:foot|end)note-)', re.sub(r'<a href="#[^"]*">↑</a>', "", page))
    title = re.search(r"<dc:title>([^<]*)<", core.decode("utf-8", "replace"))
    sections = [
        replace(section, line=0, place=f"{unit} {number}")
        for unit, text in [("paragraph", body), *(("note", text) for text in notes)]
        for number, section in enumerate(html_document(text).sections, 1)
    ]
    return collect("docx", sections, title=one_line(html.unescape(title[1])) if title else "")


# --- formats


_SUFFIXES: Mapping[Callable[[str], Document], str] = {
    markdown_document: "md markdown mdx mkd rmd qmd",
    rst_document: "rst rest",
    html_document: "html htm xhtml",
    functools.partial(csv_document, preferred=","): "csv",
    functools.partial(csv_document, preferred="\t"): "tsv tab",
    json_document: "json geojson",
    jsonl_document: "jsonl ndjson",
    notebook_document: "ipynb",
    functools.partial(code_document, kind="python"): "py pyi pyw",
    functools.partial(code_document, kind="loose"): (
        "java c h cc cpp cxx hh hpp hxx ino m mm cs dart d cu sh bash zsh ksh fish ps1 psm1"
    ),
    functools.partial(code_document, kind="strict"): (
        "js jsx mjs cjs ts tsx mts cts vue svelte rb php pl pm lua r kt kts swift scala ex exs jl go rs groovy gradle zig nim"
        " sql ddl"
    ),
    lambda text: with_whole_words(plain_document(text)): "txt text",
    plain_document: "log adoc tex org",
}
TEXT_READERS = {f".{suffix}": reader for reader, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
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


def read_document(name: str, content: bytes) -> Document:
    """The sections of a file, of which only the suffix of its name counts; UnreadableError says why there are none.

    What a file is is told from its content first, then from its suffix; text of any other kind is plain text.
    """
    suffix = Path(name).suffix.lower()
    is_word = suffix in (".docx", ".docm", ".dotx")
    if content.lstrip()[:5] == b"%PDF-" or (suffix == ".pdf" and b"%PDF-" in content[:1024]):
        return pdf_document(content)
    if content.startswith(b"PK\x03\x04") and (is_word or b"word/document" in content):
        return docx_document(content)
    if is_word and content.startswith(bytes.fromhex("d0cf11e0a1b11ae1")):
        raise UnreadableError("is a Word document of the old format, or protected by a password")
    try:
        text, guess = decode_text(content)
    except IgnoredError as error:
        if is_word or suffix == ".pdf" or suffix in TEXT_READERS:
            raise UnreadableError("holds binary data") from error
        raise
    try:
        document = TEXT_READERS.get(suffix, plain_document)(text)
    except RecursionError as error:
        raise UnreadableError("nests too deeply") from error
    doubt = f"is read as {guess}, which is a guess: save it as UTF-8 if letters are wrong"
    return replace(document, missing=doubt) if guess else document


# ======================================================================================================================
# Chunks
# ======================================================================================================================
# A document is cut at its headings, paragraphs and sentences into chunks of a bounded length that overlap a little.
# A chunk names the headings above it and where in the document it stands.


CHUNK_CHARACTERS = 1100
CHUNK_OVERLAP = 100
SMALL_CHUNK = 200  # characters below which it is joined to its neighbour: a heading alone, the last words of a section
MAX_CHUNKS = 100_000
_BLOCK = 20_000  # characters that the splitter gets at once: its time grows with the square of a run without spaces
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
    """The offsets of the pieces of a text; a small one is joined to a neighbour, which may make that a little too long."""
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

    texts = [lancelot.clean_surrogates(section.text).replace("\x00", " ") for section in sections]
    gap = "\n" if extractor in ("html", "docx", "markdown") else "\n\n"
    starts = list(itertools.accumulate((len(text) + len(gap) for text in texts[:-1]), initial=0))
    whole = gap.join(texts)
    line_feeds = array.array("Q", (match.start() for match in re.finditer("\n", whole)))

    def locate(offset: int) -> tuple[Section, str, int]:
        """The section of an offset, and its place: what is counted, such as lines or pages, and its number."""
        at = bisect.bisect_right(starts, offset) - 1
        section = sections[at]
        if section.line:
            lines = bisect.bisect_left(line_feeds, offset) - bisect.bisect_left(line_feeds, starts[at])
            return section, "line", section.line + lines
        unit, _, number = section.place.rpartition(" ")
        return section, unit, int(number or 0)

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
EXTRACT_MEMORY = 2 << 30  # bytes
EXTRACT_VARIABLES = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME"),
    *("PYTHONPATH", "SHIV_ROOT", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "USERPROFILE"),
)
"""All that the child gets of the environment: what starts it. A file that takes it over finds no key."""


@dataclass(frozen=True)
class Extraction:
    """What a file gave: its chunks, the hash of its bytes and what is `missing`; or why it `failed`, or is `ignored`."""

    chunks: tuple[Chunk, ...] = ()
    hash: str = ""
    failed: str = ""
    ignored: str = ""
    missing: str = ""


def open_without_links(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a path to read, waiting for no writer; OSError if a part of it is a symbolic link.

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


def read_regular(path: str | Path, most: int) -> bytes:
    """The bytes of a regular file that no link leads to; UnreadableError if there are none, or more than `most`."""
    try:
        opened = open_without_links(path)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise UnreadableError("is not a regular file")
        with os.fdopen(opened, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UnreadableError(f"cannot be opened ({reason_of(error)})") from error
    if len(content) > most:
        raise UnreadableError(f"is larger than {most / 1_000_000:g} MB")
    return content


def extract_file(path: str) -> Extraction:
    """Read and cut a file; what is wrong with it is in the result."""
    name = os.path.basename(path)  # noqa: PTH119 - a path that pathlib need not understand
    try:
        if Path(name).suffix.lower() in BINARY_SUFFIXES:
            return Extraction(ignored="binary")
        content = read_regular(path, MAX_FILE_BYTES)
        document = read_document(name, content)
        chunks = tuple(cut_document(document, name=name))
        return Extraction(chunks, hashlib.sha256(content).hexdigest(), missing=document.missing)
    except IgnoredError as error:
        return Extraction(ignored=error.cause)
    except UnreadableError as error:
        return Extraction(failed=error.cause)
    except MemoryError:
        return Extraction(failed=f"takes more than {EXTRACT_MEMORY >> 30} GB of memory to read")


def extract_files(reader: Iterable[bytes], writer: BinaryIO) -> None:
    """Answer each line, a path as JSON, by one line, an Extraction as JSON, until the input ends."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (EXTRACT_MEMORY, EXTRACT_MEMORY))
    alarm = getattr(signal, "alarm", lambda _seconds: None)
    for line in reader:
        alarm(EXTRACT_SECONDS * 2)  # for a parent that is no longer there to end what hangs
        answer = json.dumps(asdict(extract_file(json.loads(line))))
        writer.write(answer.encode() + b"\n")
        writer.flush()
        alarm(0)


@dataclass
class Extractor(contextlib.AbstractContextManager["Extractor"]):
    """Reads files, one at a time, in a child process that `command` starts with EXTRACT_VARIABLES of `environ`.

    The child is ended when a file takes longer than `seconds`, and started again for the next one.
    """

    command: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    seconds: float = EXTRACT_SECONDS
    child: Any = None

    def __exit__(self, *_: object) -> None:
        """End the child."""
        child, self.child = self.child, None
        if child:
            with contextlib.suppress(OSError), child:  # which closes its pipes and waits for it
                child.kill()

    def extract(self, path: str | os.PathLike[str]) -> Extraction:
        """What a file gives; a failure of the child is one of the file."""
        import subprocess

        self.child = self.child or subprocess.Popen(  # noqa: S603 - our own command, and paths go through its input
            self.command,
            env={name: value for name, value in self.environ.items() if name in EXTRACT_VARIABLES},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        child = self.child

        def exchange() -> Any:
            with contextlib.suppress(OSError):  # a child that is gone leaves nothing to read
                child.stdin.write(json.dumps(os.fspath(path)).encode() + b"\n")
                child.stdin.flush()
            return child.stdout.readline()

        try:
            answer = lancelot.bounded(exchange, seconds=self.seconds, name="the reading of a file")
            if answer.endswith(b"\n"):
                fields = json.loads(answer)
                return Extraction(tuple(Chunk(**chunk) for chunk in fields.pop("chunks", ())), **fields)
            code = child.wait(timeout=10)
            reason = f"ended the process that read it ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
        except (TimeoutError, subprocess.TimeoutExpired):
            reason = f"takes longer than {self.seconds:g} s to read"
        self.__exit__()
        return Extraction(failed=reason)


# ======================================================================================================================
# Finding
# ======================================================================================================================
# A folder is walked without following links. Hidden files, what ignore files name and what the patterns of a call leave
# out are passed over; what could not be looked at is named, since its rows must stay in the table.


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


def source_name(path: str | Path) -> str:
    """A path as text that the table can hold: bytes that are no UTF-8 are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_below(root: Path) -> Callable[[str], bool]:
    """Return a test of whether a source lies below a folder, by their names."""
    prefix = source_name(root).rstrip(os.sep) + os.sep
    return lambda source: source.startswith(prefix)


Pattern = tuple[re.Pattern[bytes], bool]
"""The paths that a pattern is about, those of folders with a slash at the end; whether it ignores them or takes them back."""

_TOKEN = re.compile(
    rb"(?P<deep>(?:\A|(?<=/))\*\*+(?:\\?/|\Z))|(?P<star>\*+)|(?P<any>\?)|(?P<char>\\.|[^\\\[])"
    rb"|\[(?=(?P<set>[!^]?\]?(?:\[:[^\]]*:\]|(?:\\.|[^\]\\])(?:-(?:\\.|[^\]\\]))?)*))(?P=set)\]|(?P<invalid>.)",
    re.DOTALL,
)
_SET_ITEM = re.compile(rb"\[:(?P<kind>[^\]]*):\]|(?P<low>\\.|[^\\])(?:-(?P<high>\\.|[^\]\\]))?", re.DOTALL)
_SET_KINDS: dict[bytes, bytes] = dict(
    re.findall(
        rb"(\w+)=(\S+)",
        rb"alnum=0-9A-Za-z alpha=A-Za-z blank=\x20\t cntrl=\x00-\x1f\x7f digit=0-9 graph=!-~ lower=a-z print=\x20-~ "
        rb"punct=!-/:-@\[-`{-~ space=\x20\t\n\r upper=A-Z xdigit=0-9A-Fa-f",
    )
)


def _token_regex(token: re.Match[bytes]) -> bytes:
    """The regular expression of a token, but NUL for `**/` and a line feed for `*`, which no pattern holds itself."""
    if token["invalid"]:
        raise ValueError
    if token["deep"]:
        return b"\0" if token[0].endswith(b"/") else b"\0.*"
    if token["set"] is None:
        return {"star": b"\n", "any": b"[^/]"}.get(token.lastgroup or "") or re.escape(token[0][-1:])
    negated, members = token["set"].startswith((b"!", b"^")), rb"\x00"
    for item in _SET_ITEM.finditer(token["set"], negated):
        if item["kind"] is not None:
            members += _SET_KINDS[item["kind"]]
        else:
            low, high = item["low"][-1], (item["high"] or item["low"])[-1]
            members += b"\\x%02x" % low + (b"-\\x%02x" % high if low <= high else b"")
    return b"(?!/)[%s%s]" % (b"^" if negated else b"", members)


def _leftmost(parts: Sequence[bytes], gap: bytes, numbers: Iterator[int]) -> bytes:
    """A regular expression of parts with gaps between them, each but the last matched where it fits first and nowhere else.

    Trying other places could find nothing more, and would take time that grows with a power of the length.
    """
    regex = parts[0]
    for part in parts[1:-1]:
        regex += b"(?=(?P<g%d>%s%s))(?P=g%d)" % (number := next(numbers), gap, part, number)
    return regex + b"".join(gap + part for part in parts[1:][-1:])


def pattern_regex(pattern: bytes) -> bytes:
    """The paths that a pattern without its `!` matches, as a regular expression; ValueError or KeyError if there are none.

    It matches as git's wildmatch.c and dir.c do: https://git-scm.com/docs/gitignore
    """
    end = rb"(?<!/)/\Z" if pattern.endswith(b"/") else rb"(?<!/)/?\Z"
    pattern = pattern.removesuffix(b"/")
    pattern = pattern.removeprefix(b"/") if b"/" in pattern else b"**/" + pattern
    # git compares what stands before the first of these by itself, so that `**` in their place is at the beginning, too.
    literal = re.split(rb"[*?\[\\]", pattern, maxsplit=1)[0]
    regex = re.escape(literal) + _TOKEN.sub(_token_regex, pattern[len(literal) :])
    numbers = itertools.count()
    groups = [_leftmost(group.split(b"\n"), b"[^/]*?", numbers) for group in regex.split(b"\0")]
    return _leftmost(groups, b"(?:[^/]*/)*?", numbers) + end


def read_patterns(folder: str, content: bytes) -> tuple[Pattern, ...]:
    """The patterns of an ignore file for the paths below its folder, a path that ends in a slash or "" for the top.

    A line that is no pattern is passed over, as git does; UnreadableError if the whole cannot be obeyed.
    """
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if b"\0" in content or max(map(len, lines)) > MAX_PATTERN_BYTES:
        raise UnreadableError(f"holds binary data or a line of more than {MAX_PATTERN_BYTES:,} bytes")
    patterns = []
    flags = re.DOTALL | (re.IGNORECASE if sys.platform in ("win32", "darwin") else 0)
    for line in lines:
        # Spaces at the end do not count, but one after a backslash is part of the name.
        text = b"".join(re.findall(rb"\\.|[^ ]| +(?=[^ ])", line.removesuffix(b"\r"), re.DOTALL))
        pattern = text.removeprefix(b"!")
        if text and not text.startswith(b"#"):
            with contextlib.suppress(KeyError, ValueError):
                regex = re.compile(re.escape(os.fsencode(folder)) + pattern_regex(pattern), flags)
                patterns.append((regex, pattern == text))
    return tuple(patterns)


def is_ignored(path: str, patterns: Sequence[Pattern]) -> bool | None:
    """Return whether a path, which ends in a slash if it is a folder's, is ignored, or None if no pattern is about it."""
    name = os.fsencode(path)
    # As in git, the last pattern decides, which is of the deepest folder.
    return next((ignores for regex, ignores in reversed(patterns) if regex.match(name)), None)


@contextlib.contextmanager
def _scan(folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    """The entries of a folder that no link leads to."""
    with contextlib.ExitStack() as opened:
        place: int | str = str(folder)
        if os.scandir in os.supports_fd:
            place = open_without_links(folder, os.O_DIRECTORY)
            opened.callback(os.close, place)
        elif os.path.realpath(folder) != place:  # Windows
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        yield opened.enter_context(os.scandir(place))


@dataclass
class FileFinder:
    """The files below a folder that are to be indexed. Symbolic links are never followed: what lies inside is found itself.

    With `within`, a folder above it, the way from there must not be hidden or ignored, and the ignore files on it hold.
    `ignored` counts files and whole folders by the reason; `failed` says by name why one could not be looked at.
    """

    root: Path
    within: Path | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    files: list[FoundFile] = field(default_factory=list, init=False)
    ignored: Counter[str] = field(default_factory=Counter, init=False)
    failed: dict[str, str] = field(default_factory=dict, init=False)
    notes: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Read the patterns."""
        self._top = self.within or self.root
        self._way = "".join(f"{name}/" for name in self.root.relative_to(self._top).parts)
        self._include = read_patterns(self._way, os.fsencode("\n".join(self.include or ["*"])))
        self._exclude = read_patterns(self._way, os.fsencode("\n".join(self.exclude)))
        self._waiting = [("", read_patterns("", ALWAYS_IGNORED), False)]

    def find(self) -> FileFinder:
        """Walk the folder, and put its files in the order of their names."""
        relative = self._way
        while self._waiting and not self.stop.is_set():
            relative, patterns, included = self._waiting.pop()
            folder = self._top / relative
            try:
                with _scan(folder) as entries:
                    patterns = self._patterns_in(relative, patterns)
                    for entry in entries:
                        self._look_at(entry, relative, patterns, included=included)
            except OSError as error:
                self.failed[source_name(folder)] = f"the folder cannot be listed ({reason_of(error)})"
            except UnreadableError as error:
                self.failed[source_name(folder)] = error.cause
        if not relative.startswith(self._way) and not self.stop.is_set():
            reasons = listed((*self.ignored, *self.failed.values()) or ["it is no longer there"])
            raise LancelotError(
                f"The folder {one_line(source_name(self.root))} is left out ({reasons}).",
                f"Name another one; a person can index it by `{PROGRAM} index`.",
            )
        self.files.sort(key=lambda file: file.source)
        return self

    def _patterns_in(self, relative: str, patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        """The patterns that hold in a folder, given those of the folders above; UnreadableError if they cannot be obeyed."""
        for name in IGNORE_FILES:
            path = self._top / relative / name
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if not stat.S_ISREG(path.lstat().st_mode):  # which is no ignore file for git either
                    shown = one_line(source_name(path))
                    self.notes = [f"Ignore files that are no regular files are not obeyed, such as {shown}."]
                    continue
                try:
                    patterns += read_patterns(relative, read_regular(path, MAX_IGNORE_BYTES))
                except UnreadableError as error:
                    raise UnreadableError(f"its {name} {error.cause}") from error
        if len(patterns) > MAX_PATTERNS:
            raise UnreadableError(f"more than {MAX_PATTERNS:,} patterns of ignore files hold there")
        return patterns

    def _look_at(
        self, entry: os.DirEntry[str], relative: str, patterns: tuple[Pattern, ...], *, included: bool
    ) -> None:
        """Note a file, a folder to go into, or why an entry is left out, if it is not beside the way to the root.

        `relative` is the path of its folder from the top, and `included` says whether `include` is about that folder.
        """
        name = f"{relative}{entry.name}/"
        path = self._top / name
        if self.stop.is_set() or not (name.startswith(self._way) or self._way.startswith(name)):
            return
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            name = name if is_folder else name.removesuffix("/")
            verdict = is_ignored(name, self._include)
            included = included if verdict is None else verdict
            against = {
                "symbolic link": entry.is_symlink(),
                "hidden": entry.name.startswith("."),
                "ignored by pattern": is_ignored(name, self._exclude) or is_ignored(name, patterns),
                "no regular file": not is_folder and not entry.is_file(follow_symlinks=False),
                "not included": not is_folder and not included,
            }
            if reason := next((reason for reason, holds in against.items() if holds), None):
                self.ignored[reason] += 1
            elif is_folder:
                self._waiting.append((name, patterns, included))
            else:
                state = entry.stat(follow_symlinks=False)
                self.files.append(FoundFile(path, source_name(path), state.st_size, state.st_mtime))
        except OSError as error:
            self.failed[source_name(path)] = f"it cannot be looked at ({reason_of(error)})"

    def may_hold(self, source: str) -> bool:
        """Return whether a file may still be there, since it or a folder above it could not be looked at."""
        return source in self.failed or any(source.startswith(folder + os.sep) for folder in self.failed)


# ======================================================================================================================
# Embedding
# ======================================================================================================================
# A table keeps the embedder that made its vectors: an endpoint, or the local model, which is for new tables where nothing
# else is set. Texts are embedded in batches, a few at a time, and each batch is sent again while the server is busy. Once
# a server fails for good, what is left gets no vector: the table can be searched by words, and a later run fills them in.


BULK_TEXTS = 64
BULK_CALLS = 4
BULK_RETRIES = 6
BULK_SECONDS = 300.0
LOCAL_TEXTS = 16
"""The local model takes one second or less for so many, after which a run can stop; one call uses all processors."""


@dataclass
class BulkEmbedder:
    """Embeds many texts by `server`; `failure` is the sentence on why no more are sent, or "" as long as that works."""

    endpoint: lancelot.EndpointEmbedder
    local: lancelot.LocalEmbedder
    stop: threading.Event = field(default_factory=threading.Event)
    failure: str = ""
    _chosen: lancelot.Embedder | None = field(default=None, init=False)
    _choice: str = field(default="", init=False)
    _refused: set[str] = field(default_factory=set, init=False)
    _worked: bool = field(default=False, init=False)

    @property
    def server(self) -> lancelot.Embedder:
        """The embedder that makes the vectors: the endpoint's, unless another was chosen."""
        return self._chosen or self.endpoint

    def choose(self, made_by: str | None, *, force: bool) -> None:
        """Choose the embedder for a table by the model that made its vectors, or None if it has none.

        By force that of the settings takes its place; the local model takes an endpoint's only if it is asked for by name.
        """
        if self.failure:
            return
        is_named = self.endpoint.model == lancelot.LOCAL_NAME
        is_default = not is_named and self.local.is_wanted and not self.endpoint.is_set
        wanted = self._chosen = self.local if is_named or is_default else self.endpoint
        if made_by in (None, wanted.model) or (force and not is_default):
            return
        self._chosen = self.local if made_by == lancelot.LOCAL_MODEL else self.endpoint
        anew = f"--force{' with EMBEDDING_MODEL=local' if is_default else ''} makes them by {wanted.model}."
        if not self.server.available:
            self._choice = f"The vectors are by {made_by}, and new chunks are left without one. {self.server.why_not}"
            self._choice += f" {anew}" if wanted.available else ""
        elif self.endpoint.is_named or self.server is not wanted:
            self._choice = f"The vectors are by {made_by}, which is used again; {anew}"

    @property
    def works(self) -> bool:
        """Return whether vectors can be made, and the server has not failed."""
        return not self.failure and self.server.available

    @property
    def notes(self) -> list[str]:
        """Sentences on why texts have no vector, or one of another model than that of the settings."""
        notes = [self._choice] if self._choice else []
        if self.failure:
            notes.append(f"Chunks were left without a vector: {self.failure}")
        elif not notes and not self.server.available:
            notes.append(self.server.why_not)
        refused = plural(len(self._refused), "text")
        return notes + ([f"The embedding server gave no vector for {refused}."] if self._refused else [])

    def length_of(self, model: str) -> int:
        """The length of a model's vectors, or 0 if the server gives none."""
        (vector,) = self.embed([lancelot.PLAIN_TEXT], model=model)
        return len(vector) if vector else 0

    def embed(
        self, texts: Sequence[str], *, model: str, report: Callable[[int], None] = lambda _done: None
    ) -> list[lancelot.Vector[float] | None]:
        """The vector of each text, or None for one that gets none; `report` gets how many are done."""
        size, calls = (LOCAL_TEXTS, 1) if self.server is self.local else (BULK_TEXTS, BULK_CALLS)
        batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
        vectors: list[lancelot.Vector[float] | None] = []
        with concurrent.futures.ThreadPoolExecutor(calls) as pool:
            for made in pool.map(lambda batch: self._batch(batch, model, BULK_RETRIES), batches):
                vectors += made
                report(len(vectors))
        return vectors

    def _batch(self, texts: list[str], model: str, retries: int) -> list[lancelot.Vector[float] | None]:
        if self.failure or self.stop.is_set():
            return [None] * len(texts)
        try:
            vectors = self.server.request_vectors(texts, model, seconds=BULK_SECONDS, retries=retries)
        except LancelotError as error:
            if error.kind != "refused-texts" or texts == [lancelot.PLAIN_TEXT]:
                self.failure = str(error)
                return [None] * len(texts)
            # Servers differ in how many texts they take, and in how long ones: what is refused is divided.
            if middle := len(texts) // 2:  # one more try for each half, since it was waited for already
                return self._batch(texts[:middle], model, 1) + self._batch(texts[middle:], model, 1)
            if not self._worked:  # it may be the fault of this text alone
                self._batch([lancelot.PLAIN_TEXT], model, 1)
            vectors = [None]
        else:
            self._worked = True
        self._refused.update(text for text, vector in zip(texts, vectors, strict=True) if vector is None)
        return [array.array("f", vector) if vector else None for vector in vectors]


# ======================================================================================================================
# Table
# ======================================================================================================================
# The one schema that `index` writes, and every call that writes: rows are added, replaced and deleted by their source.
# A table of another program is refused, since its rows are not ours to replace.


VECTOR_COLUMN = "vector"
SIZE_COLUMN = "file_size"
"""Earlier versions had no such column. A run adds it; a file without a size in it is compared by its content."""
LANGUAGES = (
    *("Arabic", "Danish", "Dutch", "English", "Finnish", "French", "German", "Greek", "Hungarian", "Italian"),
    *("Norwegian", "Portuguese", "Romanian", "Russian", "Spanish", "Swedish", "Tamil", "Turkish"),
)
SCALAR_INDEX_ROWS = 10_000
VECTOR_INDEX_ROWS = 50_000
"""Vectors from which an index pays: at 100,000 of length 384 a search takes a fifteenth of the time, and finds the same."""
PATTERNS_METADATA = b"index_patterns"
"""What --include and --exclude were given for each folder: in the metadata of a column, since a schema's own is fixed."""
Known = dict[str, dict[str, Any]]
"""Of each source in a table its `content_hash`, `modified_at`, SIZE_COLUMN if the table has that, and `count_all` chunks."""


def count_chunks(known: Known) -> int:
    """Return how many chunks a table holds of these sources."""
    return sum(row["count_all"] for row in known.values())


def part_of(known: Known, folder: Path) -> Known:
    """Return what is known of a folder that need not exist: by its name as given, else by its name without links."""
    # A folder that was moved may have left a link behind: what is meant is the old name.
    for name in (folder.absolute(), Path(os.path.realpath(folder))):
        below = is_below(name)
        if part := {source: row for source, row in known.items() if below(source)}:
            return part
    return {}


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
    names = ("id", "text", "title", "chunkSource", "file_name", "file_type", "chunk_index", "place", "extractor")
    kinds: dict[str, Any] = dict.fromkeys((*names, "content_hash"), pa.string())
    kinds |= {"chunk_index": pa.int32(), "modified_at": moment, "indexed_at": moment, SIZE_COLUMN: pa.int64()}
    notes: dict[str, Any] = {"chunkSource": {PATTERNS_METADATA: b"{}"}}
    columns = [pa.field(name, kind, metadata=notes.get(name)) for name, kind in kinds.items()]
    return pa.schema(columns, metadata={lancelot.OWN_METADATA: compact_json({"version": lancelot.__version__})})


def vector_field(model: str, length: int) -> pa.Field[Any]:
    """The column of vectors, which knows the model that makes them."""
    import pyarrow as pa

    metadata = {
        lancelot.MODEL_METADATA: model.encode(),
        lancelot.LENGTH_METADATA: str(length).encode(),
        lancelot.COMPLETE_METADATA: b"no",
    }
    return pa.field(VECTOR_COLUMN, pa.list_(pa.float32(), length), metadata=metadata)


def _metadata_names(schema: pa.Schema) -> set[str]:
    holders = {"": schema} | {f" of the column {column.name}": column for column in schema}
    return {f"the metadata {key.decode(errors='replace')}{of}" for of in holders for key in holders[of].metadata or ()}


def check_own_table(name: str, schema: pa.Schema) -> None:
    """Refuse a table to write to whose schema holds anything that `index` does not make: LanceDB acts on metadata."""
    made = chunk_schema()
    if VECTOR_COLUMN in schema.names:
        made = made.append(vector_field("", getattr(schema.field(VECTOR_COLUMN).type, "list_size", 1)))
    # Earlier versions made less.
    columns = {column.name for column in set(schema) ^ set(made)} - ({SIZE_COLUMN} - set(schema.names))
    differing = {f"the column {column}" for column in columns} | _metadata_names(schema) - _metadata_names(made)
    if lancelot.OWN_METADATA not in (schema.metadata or {}):
        cause = f"was not made by `{PROGRAM} index`"
    elif differing:
        cause = f"differs from what `{PROGRAM} index` makes ({listed(shorten(part, 80) for part in sorted(differing))})"
    else:
        return
    remedy = "Name another table with --table, or another folder with --path."
    raise LancelotError(f"The table {one_line(name)} {cause}, so it is left as it is.", remedy)


def any_of(column: str, values: Iterable[Any]) -> str:
    """The condition that a column holds one of these texts."""
    return f"{column} IN ({', '.join(map(lancelot.quote_text, values))})"


TRY_AGAIN = "See to the disk and its rights, then run it again: what was written stays, and the rest follows."
_writing = lancelot.engine_errors("write to the table", remedy=TRY_AGAIN)


@dataclass(frozen=True)
class ChunkTable:
    """The table that one run writes. Each change is one commit of whole files, so no reader sees half of one."""

    _table: Any

    @classmethod
    def open(cls, database: Path, name: str, *, create: bool = False) -> ChunkTable | None:
        """Open the table of this name, or return None if it is not there; `create` makes it, and what columns it misses."""
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name):
            cause = f'"{one_line(name)}" cannot be the name of a table.'
            raise LancelotError(cause, "Use letters of the English alphabet, digits, _, - and dots.")
        for folder in (database, *database.parents):
            if folder.suffix == ".lance":
                raise LancelotError(f"{database} is inside a table.", f"Set the folder to {folder.parent}.")
        exists = any((database / f"{name}.lance" / "_versions").glob("*.manifest"))
        if not exists and not create:
            return None
        with lancelot.engine_errors(f"open the table {one_line(name)}"):
            connection = lancelot.load_lancedb().connect(database)
            table = connection.open_table(name) if exists else connection.create_table(name, schema=chunk_schema())
        lancelot.check_data_is_inside(database, name, table)
        check_own_table(name, table.schema)
        opened = cls(table)
        if create and SIZE_COLUMN not in table.schema.names:
            opened.add_column(chunk_schema().field(SIZE_COLUMN))
        return opened

    @property
    def model(self) -> str | None:
        """The model of its vectors, or None if it has none."""
        return lancelot.embedding_model_of(self._table.schema, VECTOR_COLUMN)

    @property
    def length(self) -> int:
        """The length of its vectors, 0 where it has none."""
        schema = self._table.schema
        return schema.field(VECTOR_COLUMN).type.list_size if VECTOR_COLUMN in schema.names else 0

    @lancelot.engine_errors("read the table")
    def rows(self, *columns: str, where: str | None = None) -> pa.Table:
        """These columns of all rows, or of those that meet a condition."""
        query = self._table.search().select(list(columns))
        return cast("pa.Table", (query.where(where) if where else query).to_arrow())

    def known(self) -> Known:
        """What it holds of each source."""
        wanted = ("chunkSource", "content_hash", "modified_at", SIZE_COLUMN)
        columns = [name for name in wanted if name in self._table.schema.names]
        counted = self.rows(*columns).group_by(columns).aggregate([([], "count_all")]).to_pylist()
        return {row["chunkSource"]: row for row in counted}

    def patterns(self) -> dict[str, Any]:
        """The patterns of the last run over each folder."""
        noted = (self._table.schema.field("chunkSource").metadata or {}).get(PATTERNS_METADATA, b"")
        return lancelot.parse_json_object(noted.decode(errors="replace")) or {}

    def keep_patterns(self, folder: str, patterns: Mapping[str, Sequence[str]]) -> None:
        """Note the patterns of a folder for the runs to come; forget them where there are none."""
        wanted = self.patterns() | {folder: patterns}
        kept = {name: some for name, some in wanted.items() if any(some.values())}
        self._set_metadata("chunkSource", PATTERNS_METADATA, compact_json(kept))

    def note_vectors(self) -> list[str]:
        """Return the sources of the rows without a vector, and note whether there are any: readers cannot count them."""
        missing = self.rows("chunkSource", where=f"{VECTOR_COLUMN} IS NULL" if self.length else None)
        if self.length:
            self._set_metadata(VECTOR_COLUMN, lancelot.COMPLETE_METADATA, "no" if len(missing) else "yes")
        return cast("list[str]", missing["chunkSource"].to_pylist())

    @_writing
    def _set_metadata(self, column: str, key: bytes, value: str) -> None:
        if (self._table.schema.field(column).metadata or {}).get(key) != value.encode():
            self._table.update_field_metadata({"path": column, "metadata": {key.decode(): value}})

    @_writing
    def replace(self, files: Sequence[tuple[FoundFile, Extraction]], *, keep_vectors: bool = True) -> None:
        """Put files in the place of what the table holds of them, in one commit; texts that stay can keep their vectors."""
        import pyarrow as pa

        now, vectors = dt.datetime.now(dt.timezone.utc), {}
        theirs = any_of("chunkSource", (file.source for file, _ in files))
        if self.length and keep_vectors:
            kept = self.rows("text", VECTOR_COLUMN, where=theirs).to_pylist()
            vectors = {row["text"]: row[VECTOR_COLUMN] for row in kept if row[VECTOR_COLUMN]}
        rows = [
            {
                **vars(chunk),  # its text, title, place and extractor
                "id": chunk_id(file.source, chunk.index),
                "chunkSource": file.source,
                "file_name": source_name(file.path.name),
                "file_type": source_name(file.path.suffix).lower(),
                "chunk_index": chunk.index,
                "content_hash": extraction.hash,
                "modified_at": moment_of(file),
                "indexed_at": now,
                SIZE_COLUMN: file.size,
                VECTOR_COLUMN: vectors.get(chunk.text),
            }
            for file, extraction in files
            for chunk in extraction.chunks
        ]
        if self.length and not all(row[VECTOR_COLUMN] for row in rows):
            self._set_metadata(VECTOR_COLUMN, lancelot.COMPLETE_METADATA, "no")
        merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge = merge.when_not_matched_by_source_delete(theirs)
        merge.execute(pa.Table.from_pylist(rows, schema=self._table.schema), on_bad_vectors="null")

    @_writing
    def remove(self, sources: Iterable[str]) -> None:
        """Take sources out of the table, in one commit."""
        self._table.delete(any_of("chunkSource", sources))

    @_writing
    def update(self, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Set columns of rows that are there, by their `id`, which is among the names, in one commit."""
        import pyarrow as pa

        schema, columns = self._table.schema, zip(names, zip(*rows, strict=True), strict=True)
        batch = pa.table({name: pa.array(column, schema.field(name).type) for name, column in columns})
        self._table.merge_insert("id").when_matched_update_all().execute(batch)

    @_writing
    def add_column(self, column: pa.Field[Any]) -> None:
        """Give the table an empty column, in the place of one of its name."""
        if column.name in self._table.schema.names:
            self._table.drop_columns([column.name])
        self._table.add_columns(column)

    @_writing
    def make_indexes(self, language: str | None) -> None:
        """Make missing indexes and bring the others up to date; no language keeps the one of the table, at first English."""
        from lancedb.index import FTS, Bitmap, BTree, IvfFlat

        indexes = {index.columns[0]: index for index in self._table.list_indices()}
        rows = self._table.count_rows()
        wanted: dict[str, Any] = {}
        if rows >= SCALAR_INDEX_ROWS:  # what filters and updates look up; of fewer rows a scan is as fast
            wanted |= {"id": BTree(), "chunkSource": BTree(), "file_type": Bitmap()}
        if self.length and self._table.count_rows(f"{VECTOR_COLUMN} IS NOT NULL") >= VECTOR_INDEX_ROWS:
            wanted[VECTOR_COLUMN] = IvfFlat(distance_type="cosine")
        words: Any = {"base_tokenizer": "icu/split", "max_token_length": 128, "remove_stop_words": False}
        for column in ("text", "title") if rows else ():
            wanted[column] = FTS(**words, with_position=True, language=language or "English")
            if column in indexes and language not in (None, indexes[column].index_details.get("language", "English")):
                del indexes[column]
        for column, config in wanted.items():
            if column not in indexes:
                self._table.create_index(column, config=config)
        if any(index.num_unindexed_rows for index in self._table.list_indices()):
            self._table.optimize()


# ======================================================================================================================
# Run
# ======================================================================================================================
# A run compares the folder with what the table holds of it, and commits in batches, so that one that was stopped leaves
# a table that can be searched and the next run goes on from there. Vectors come last, also those that earlier runs left
# out, since they can take long: until then all words are found. A lock file keeps a second writer out.


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


def check_request(request: IndexRequest) -> IndexRequest:
    """The request with its folder resolved; LancelotError says why that cannot be."""
    try:
        folder = request.folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        cause, remedy = f"The folder {request.name} cannot be opened ({reason_of(error)})", "Name a folder that exists."
        with contextlib.suppress(LancelotError, ValueError):
            table = ChunkTable.open(request.database, request.table)
            if table and (known := part_of(table.known(), request.folder)):
                cause += f"; the table {request.table} keeps {plural(len(known), 'file')} of it"
                remedy = f"If it was renamed or deleted, `{PROGRAM} index --forget {request.name}` takes them out."
        raise LancelotError(f"{cause}.", remedy) from error
    if folder.is_file():
        raise LancelotError(f"{request.name} is no folder.", "Name the folder that it lies in.")
    if request.within and not folder.is_relative_to(request.within):
        cause = f"The folder {request.name} is not inside {one_line(str(request.within))}: a link leads out."
        raise LancelotError(cause, "Name a folder inside by a path without links.")
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
    table = ChunkTable.open(request.database, request.table)
    if not table or not (known := part_of(table.known(), request.folder)):
        cause = f"The table {request.table} of {request.database} holds nothing of {request.name}."
        raise LancelotError(cause, f"`{PROGRAM} files` lists what it holds.")
    if not request.dry_run:
        with write_lock(request.database):
            table.remove(known)
            table.note_vectors()
    return len(known), count_chunks(known)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file's content in hexadecimal, or "" if it cannot be read: the extractor says why."""
    with contextlib.suppress(UnreadableError):
        return hashlib.sha256(read_regular(path, MAX_FILE_BYTES)).hexdigest()
    return ""


@dataclass
class IndexRun:
    """One run over a folder, which can be stopped between two commits, and what it did.

    `report` gets what is being done ("files", "indexes", "vectors"), how many are done, and of how many. `chunks` are those
    of the folder in the table, `model` the one of its vectors; `partial` says that not all of the folder could be looked at.
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
    model: str | None = None
    ignored: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    partial: bool = False
    _known: Known = field(default_factory=dict)
    _touched: list[tuple[str, dt.datetime, int]] = field(default_factory=list)

    def run(self, *, confirm: Callable[[str], bool] = lambda _message: False) -> IndexRun:
        """Bring the table up to date with the folder; a dry run only finds out what that would be.

        `confirm` gets a sentence where more than half of the table would go, and says whether that is meant.
        """
        started, request = time.monotonic(), self.request
        # What is refused is refused before anything is made in the folder.
        listing = self._list_files(ChunkTable.open(request.database, request.table))
        if not self.stop.is_set():
            with contextlib.nullcontext() if request.dry_run else write_lock(request.database):
                table = ChunkTable.open(request.database, request.table, create=not request.dry_run)
                self._check_removal(table.known() if table else {}, listing, confirm)
                self.embedder.choose(table.model if table else None, force=request.force)
                if table and not request.dry_run:
                    self._update_table(table, listing)
                else:
                    self._index_files(None, listing)
            self.notes += self.embedder.notes
        self.seconds = time.monotonic() - started
        return self

    def _list_files(self, table: ChunkTable | None) -> FileFinder:
        """The files of the folder, by the patterns that are asked for, else by those of its last run.

        LancelotError if the folder cannot be listed, or if patterns leave no file, which is hardly meant.
        """
        request = self.request
        patterns = {"include": request.include, "exclude": request.exclude}
        if table and not request.no_patterns and not any(patterns.values()):
            kept = table.patterns().get(source_name(request.folder), {})
            patterns = {name: list(map(str, kept.get(name, ()))) for name in patterns}
            if shown := [f"--{name} '{one_line(value)}'" for name, some in patterns.items() for value in some]:
                self.notes.append(f"The patterns of the last run hold: {listed(shown)}. --no-patterns forgets them.")
        listing = FileFinder(request.folder, within=request.within, stop=self.stop, **patterns).find()
        if reason := listing.failed.get(source_name(request.folder)):
            cause = f"{request.name} was not indexed, since {reason}."
            raise LancelotError(cause, "See to its rights and its disk; what the table holds of it stays.")
        if listing.include and not listing.files and not self.stop.is_set():
            cause = f"No file of {request.name} matches {listed(listing.include)}."
            raise LancelotError(cause, "Give --include a pattern as in .gitignore, such as '*.md', or --no-patterns.")
        self.ignored, self.failed, self.partial = listing.ignored, listing.failed.copy(), bool(listing.failed)
        self.notes += listing.notes
        if self.partial:
            self.notes.append("Not all of the folder could be looked at: what the table holds of the rest stays.")
        return listing

    def _gone(self, listing: FileFinder, kept: set[str]) -> Known:
        """Return what the table holds of files that are gone, or nothing if the run was stopped before it saw all."""
        every = {} if self.stop.is_set() else self._known
        return {source: row for source, row in every.items() if source not in kept and not listing.may_hold(source)}

    def _check_removal(self, every: Known, listing: FileFinder, confirm: Callable[[str], bool]) -> None:
        """Refuse to take out all of a folder or more than half of the table, unless that is meant."""
        request, self._known = self.request, part_of(every, self.request.folder)
        gone = self._gone(listing, {file.source for file in listing.files if file.size})
        if not listing.files:  # a disk that is not there looks like that
            if gone and not request.force_empty:
                raise LancelotError(
                    f"There is no file to index in {request.name}, and the table {request.table} holds "
                    f"{plural(len(self._known), 'file')} of it, which stay there.",
                    "See whether its disk is mounted; --force-empty takes them out.",
                )
            return

        def is_most(sources: Known) -> bool:
            return len(sources) * 2 > len(every) or count_chunks(sources) * 2 > count_chunks(every)

        if is_most(gone):  # files that were renamed are not lost
            new = {hash_file(file.path) for file in listing.files if file.source not in every}
            gone = {source: row for source, row in gone.items() if row["content_hash"] not in new}
        if is_most(gone):
            message = (
                f"This run would take {len(gone):,} of {plural(len(every), 'file')} out of the table {request.table}, "
                f"since they are gone from {request.name}, or left out by a pattern."
            )
            if request.dry_run:
                self.notes.append(f"{message} It asks first, or needs --yes.")
            elif not confirm(message):
                raise LancelotError(message, f"Nothing was changed; run `{PROGRAM} index` with --yes if that is meant.")

    def _update_table(self, table: ChunkTable, listing: FileFinder) -> None:
        """Write what changed, then the vectors that are missing; by force those of another model are made anew."""
        embedder, model = self.embedder, self.embedder.server.model
        table.keep_patterns(source_name(listing.root), {"include": listing.include, "exclude": listing.exclude})
        if embedder.works and (self.request.force or not table.length):
            length = embedder.length_of(model)
            if length and (model, length) != (table.model, table.length):
                table.add_column(vector_field(model, length))
        self._index_files(table, listing)
        if not self.stop.is_set():
            if self._touched:
                table.update(("id", "modified_at", SIZE_COLUMN), self._touched)
            self.report("indexes", 0, 1)
            table.make_indexes(self.request.language)
            if table.length:
                self._fill_in_vectors(table)
        self.model = table.model
        self.without_vector = sum(map(is_below(self.request.folder), table.note_vectors()))

    def _index_files(self, table: ChunkTable | None, listing: FileFinder) -> None:
        """Bring in every file that is new or changed, and take out those that are gone; without a table only count."""
        kept: set[str] = set()
        chunks = {source: row["count_all"] for source, row in self._known.items()}
        for batch in self._batches(listing.files, kept):
            if table:
                table.replace(batch, keep_vectors=not (self.request.force and self.embedder.works))
            for file, extraction in batch:
                self.new += file.source not in self._known
                self.updated += file.source in self._known
                chunks[file.source] = len(extraction.chunks)
        if (gone := self._gone(listing, kept)) and table:
            table.remove(gone)
        self.removed = len(gone)
        self.chunks = sum(chunks.values()) - count_chunks(gone)

    def _batches(self, files: Sequence[FoundFile], kept: set[str]) -> Iterator[list[tuple[FoundFile, Extraction]]]:
        """Read what is new or changed, as much at a time as one commit takes in; add to `kept` what is not to be removed."""
        batch: list[tuple[FoundFile, Extraction]] = []
        for position, file in enumerate(files):
            if self.stop.is_set():
                break
            self.report("files", position, len(files))
            extraction = Extraction() if self._is_unchanged(file) else self.extractor.extract(file.path)
            if extraction.ignored:
                self.ignored[extraction.ignored] += 1
                continue
            kept.add(file.source)
            if problem := extraction.failed or extraction.missing:
                self.failed[file.source] = problem
            if extraction.hash:
                batch.append((file, extraction))
            if sum(len(read.chunks) for _, read in batch) >= BATCH_CHUNKS or len(batch) >= BATCH_FILES:
                yield batch
                batch = []
        if batch:
            yield batch

    def _is_unchanged(self, file: FoundFile) -> bool:
        """Return whether the table holds the file as it is; where only its size or time differs, its content is compared."""
        known = self._known.get(file.source)
        if known is None or self.request.force:
            return False
        state = (moment_of(file), file.size)
        if (known["modified_at"], known.get(SIZE_COLUMN)) != state:
            if known["content_hash"] != hash_file(file.path):
                return False
            self._touched += [(chunk_id(file.source, index), *state) for index in range(known["count_all"])]
        self.unchanged += 1
        return True

    def _fill_in_vectors(self, table: ChunkTable) -> None:
        """Embed the chunks that have no vector, also those of earlier runs: without a key, or while a server failed."""
        missing = table.rows("id", where=f"{VECTOR_COLUMN} IS NULL")["id"].to_pylist()
        done = 0

        def report(more: int) -> None:
            self.report("vectors", done + more, len(missing))

        for done in range(0, len(missing), BATCH_CHUNKS):
            if not self.embedder.works or self.stop.is_set():
                return
            report(0)
            where = any_of("id", missing[done : done + BATCH_CHUNKS])
            rows = table.rows("id", "text", where=where).to_pylist()
            texts = list(dict.fromkeys(row["text"] for row in rows))
            made = self.embedder.embed(texts, model=table.model or self.embedder.server.model, report=report)
            if lengths := {len(vector) for vector in made if vector} - {table.length}:
                change = f"vectors of length {max(lengths)} now, and those of the table have {table.length}"
                self.embedder.failure = f"{table.model} gives {change}; --force makes all of them anew."
            vectors = {text: one for text, one in zip(texts, made, strict=True) if one and len(one) == table.length}
            filled = [(row["id"], vectors[row["text"]]) for row in rows if row["text"] in vectors]
            if filled:
                table.update(("id", VECTOR_COLUMN), filled)
        if missing and not self.stop.is_set():
            table.make_indexes(self.request.language)


def index_object(run: IndexRun) -> dict[str, Any]:
    """What a run did, for a program or a model, with MAX_FAILED_SHOWN of the files that failed at most."""
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
        "stopped": run.stop.is_set(),
    }
    others = {"embeddingModel": run.model, "ignored": run.ignored, "failed": failed, "notes": run.notes}
    return answer | {name: value for name, value in others.items() if value}


def index_lines(run: IndexRun) -> str:
    """What a run did, for a person: one line, then why files were left out, and each that could not be read."""
    request = run.request
    did = "Would index" if request.dry_run else "Stopped indexing" if run.stop.is_set() else "Indexed"
    counts = f"{run.new:,} new, {run.updated:,} updated, {run.unchanged:,} unchanged, {run.removed:,} removed"
    files = f"{plural(run.new + run.updated + run.unchanged, 'file')} ({counts})"
    chunks = f"{plural(run.chunks, 'chunk')} in {run.seconds:.1f} s"
    lines = [f"{did} {request.name} into the table {request.table} of {request.database}: {files}, {chunks}"]
    if run.model:
        lines.append(f"vectors by {run.model}")
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


LONG_SECONDS = 10
"""Embedding that takes longer is announced."""


def _stop_event(*, at_end_of_input: bool) -> threading.Event:
    """An event that Ctrl-C or SIGTERM sets, or the end of our input: then the program that started this is gone."""
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
    if lancelot.is_address(settings.path):
        raise LancelotError(
            f"{lancelot.shown_path(settings.path)} is no folder of this machine.", "Name one with --path."
        )
    names = ("force", "include", "exclude", "no_patterns", "language", "dry_run", "force_empty", "within")
    folder, database = Path(options.forget or options.folder).absolute(), Path(settings.path).absolute()
    return IndexRequest(folder, database, settings.table, **{name: getattr(options, name) for name in names})


def _confirm_removal(message: str) -> bool:
    """Ask a person at a terminal, where Ctrl-C ends the run at once: nothing was written yet."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        return False
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return lancelot.agrees(f"{message} Is that meant?")
    finally:
        signal.signal(signal.SIGINT, handler)


def _index(session: Session, report: Callable[[str, int, int], None]) -> IndexRun:
    options, request = session.arguments, check_request(_index_request(session))
    stop, endpoint = _stop_event(at_end_of_input=options.report), lancelot.EndpointEmbedder(session.settings)
    failure = "--no-embeddings was given." if options.no_embeddings else ""
    embedder = BulkEmbedder(endpoint, lancelot.LocalEmbedder(session.settings), stop, failure)
    with Extractor([*session.command, lancelot.EXTRACT_COMMAND], environ=session.environ) as extractor:
        run = IndexRun(request, embedder, extractor, report, stop)
        return run.run(confirm=(lambda _message: True) if options.yes else _confirm_removal)


def _index_for_program(session: Session) -> int:
    """Print lines of JSON: progress four times a second, at the end what was done, or the reason why nothing was."""
    due = 0.0

    def report(doing: str, done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + 0.25
            lancelot.say_json(compact_json({"doing": doing, "done": done, "total": total}))
            sys.stdout.flush()

    try:
        lancelot.say_json(compact_json(index_object(_index(session, report))))
    except LancelotError as error:
        lancelot.say_json(compact_json({"error": str(error)}))
        return 1
    return 0


def _index_for_person(session: Session) -> int:
    import tqdm

    at_terminal, pace, is_told = sys.stderr is not None and sys.stderr.isatty(), lancelot.Pace(), False
    with tqdm.tqdm(file=sys.stderr, leave=False, disable=not at_terminal) as bar:

        def report(doing: str, done: int, total: int) -> None:
            nonlocal is_told
            left = pace.seconds_left(doing, done, total)
            if doing == "vectors" and left > LONG_SECONDS and not is_told:
                is_told = True
                bar.clear()
                lancelot.say(
                    f"Embedding {plural(total, 'chunk')} takes about {lancelot.duration(left)}. Words find all of them "
                    "already. A run that is stopped goes on where it was when it is started again.",
                    to=sys.stderr,
                )
            if at_terminal:
                if bar.desc != f"{doing}: ":
                    bar.set_description(doing, refresh=False)
                    bar.reset(total)
                bar.update(done - bar.n)

        run = _index(session, report)
    lancelot.print_answer(session, as_json=lambda: compact_json(index_object(run)), as_lines=lambda: index_lines(run))
    return 130 if run.stop.is_set() else int(run.partial)


def _forget(session: Session) -> int:
    request = _index_request(session)
    files, chunks = forget_folder(request)
    database, did = source_name(request.database), "Would take" if request.dry_run else "Took"
    counts = {"removedFiles": files, "removedChunks": chunks, "dryRun": request.dry_run}
    places = {"folder": source_name(request.folder), "table": request.table, "database": database}
    taken = f"{plural(files, 'file')} ({plural(chunks, 'chunk')}) of {request.name}"
    line = f"{did} {taken} out of the table {request.table} of {database}"
    lancelot.print_answer(session, as_json=lambda: compact_json(counts | places), as_lines=lambda: line)
    return 0


def command_index(session: Session) -> int:
    """`index`: bring a table up to date with a folder of files; exit code 1 where not all of it could be looked at."""
    if session.arguments.report:
        return _index_for_program(session)
    for problem in session.settings.problems:
        lancelot.say(f"{PROGRAM}: {problem}", to=sys.stderr)
    return _forget(session) if session.arguments.forget else _index_for_person(session)


def command_extract() -> int:
    """`extract`, which no person calls: the child process of an Extractor, until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the work when a person stops it
    reader, writer = lancelot.take_stdio()
    extract_files(reader.buffer, writer.buffer)
    return 0


def _add_index(parser: argparse.ArgumentParser) -> None:
    path, what = lancelot.type_of_option(lancelot.parse_path), parser.add_mutually_exclusive_group(required=True)
    what.add_argument("folder", nargs="?", metavar="FOLDER", type=path, help="the folder of files to index")
    shown = "take what the table holds of this folder out of it, such as the old name of one that was renamed"
    what.add_argument("--forget", metavar="OLD", type=path, help=shown)
    matched = "the files that this pattern matches, as in .gitignore; may be given several times"
    pattern = {"action": "append", "default": [], "metavar": "PATTERN"}
    language = {"type": str.capitalize, "choices": LANGUAGES, "metavar": "LANGUAGE"}
    shown = f"the language whose word endings the full-text index knows (English): {', '.join(LANGUAGES)}"
    flag = {"action": "store_true"}
    options: tuple[tuple[str, dict[str, Any], str], ...] = (
        (
            "--table",
            {"type": lancelot.type_of_option(lancelot.parse_name)},
            "the table to make or bring up to date (LANCEDB_TABLE)",
        ),
        ("--include", pattern, f"take only {matched}"),
        ("--exclude", pattern, f"leave out {matched}"),
        ("--language", language, shown),
        ("--force", flag, "read every file anew, also those that did not change"),
        ("--force-empty", flag, "take every file out where the folder has none any more; its disk may be missing"),
        (
            "--no-embeddings",
            flag,
            "make no vectors, and look for no key: a later run without this makes those that are missing",
        ),
        ("--no-patterns", flag, "forget the patterns of the runs before, which hold where none is given"),
        ("--yes", flag, "do not ask before more than half of the table is taken out of it"),
        ("--dry-run", flag, "only say what would be done"),
        ("--report", flag, argparse.SUPPRESS),
        ("--within", {"type": Path}, argparse.SUPPRESS),
    )
    for option, keywords, shown in options:
        parser.add_argument(option, help=shown, **keywords)


COMMANDS: Mapping[str, Callable[[Session], int]] = {"index": command_index}

OPTIONS: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {"index": _add_index}
