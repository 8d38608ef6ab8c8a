"""Reads files and cuts them into chunks, in a process of its own: the room between a folder of files and its table.

`lancelot_index` starts that process, the command `extract` of this module, and is handed the chunks. The server never
loads it.

Sections, in order; each uses the ones above it and none below:

Reading     the bytes of a file to its text, in sections under their headings
Chunks      a document cut along its structure
Extraction  reading and cutting files in a process of its own
"""

from __future__ import annotations

import array
import bisect
import bz2
import codecs
import contextlib
import csv
import errno
import functools
import gzip
import hashlib
import html.parser
import io
import itertools
import json
import lzma
import math
import os
import posixpath
import re
import signal
import stat
import struct
import urllib.parse
import zipfile
import zlib
from collections import Counter, deque
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from xml.etree import ElementTree as ET

import lancelot
from lancelot import LancelotError, listed, one_line, plural, reason_of, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from email.message import Message

    from python_calamine import CalamineSheet, CalamineWorkbook


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
    """A file that has no text worth a search, which is no failure: its reason is a word or two, such as `empty`."""


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
    """The text of a file, which reader gave it, and what of the file is missing or doubtful, if anything.

    A mail has its `date`, in seconds since 1970, and what lies in it are `parts`: the name and the bytes of each.
    """

    extractor: str
    sections: tuple[Section, ...]
    missing: str = ""
    date: float | None = None
    parts: tuple[tuple[str, bytes], ...] = ()


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
        # The search takes a millisecond for a thousand characters, and few texts have what it looks for.
        text = _SOFT_DIVISION.sub(r"\n\1", text) if "\u00ad" in text or "¬" in text else text
        text = lancelot.visible(text)
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

    if content.startswith(b"PK\x03\x04"):  # an archive, whose files may be texts
        raise IgnoredError("binary")
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


# --- texts with joints of their own: LaTeX, settings, subtitles


_BRACES = r"\{((?:[^{}\n]|\{[^{}\n]*\}){1,500})\}"
_LATEX_LEVELS = ("part", "chapter", "section", "subsection", "subsubsection", "paragraph")
_TABLE_NAME = re.compile(r"^(?P<mark>)\[{1,2}(?P<words>[^\[\]\n]{1,200})\]{1,2}[ \t]*(?:[#;].*)?$", re.MULTILINE)
_JOINTS = {
    "latex": re.compile(
        rf"^[ \t]*\\(?P<mark>{'|'.join(_LATEX_LEVELS)})\*?(?:\[[^\]\n]*\])?(?P<words>{_BRACES})", re.MULTILINE
    ),
    # A key whose value stands on the line has no title of its own.
    "yaml": re.compile(
        r"""^(?P<mark>)(?:["']?(?P<words>\w[^\n:#"']{0,100})["']?:(?=[ \t]*(?:[|>&!#].*)?\n(?:[ \t]*\n)*(?:[ \t]+[^\s#]|-[ \t]))"""
        r"""|["']?\w[^\n:#"']{0,100}["']?:(?=\s))""",
        re.MULTILINE,
    ),
    "toml": _TABLE_NAME,
    "ini": _TABLE_NAME,
    "org": re.compile(r"^(?P<mark>\*+)[ \t]+(?P<words>.+)$", re.MULTILINE),
    "asciidoc": re.compile(r"^(?P<mark>={1,6})[ \t]+(?P<words>.+)$", re.MULTILINE),
}
"""What begins a section of a text: `mark` makes its level, and `words` are its title."""
_LATEX_TITLE = re.compile(rf"^[ \t]*\\title{_BRACES}", re.MULTILINE)
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]+\*?|[{}~]")
_CUE = re.compile(
    r"^[ \t]*(?:(\d{1,3}):)?(\d{1,3}):(\d\d)[.,]\d{1,9}[ \t]*-->.*\n((?:(?!.*-->).*\S.*(?:\n|\Z))*)", re.MULTILINE
)
_SPEAKER = re.compile(r"<v(?:\.[\w.]+)?[ \t]+([^<>\n]*)>")
_CUE_MARKUP = re.compile(r"<[^<>\n]*>|\{\\[^{}\n]*\}")


def jointed_document(text: str, kind: str) -> Document:
    """A text by one of _JOINTS."""
    title = _LATEX_TITLE.search(text) if kind == "latex" else None
    headings: list[tuple[re.Match[str], int, str]] = []
    for joint in _JOINTS[kind].finditer(text):
        mark, words = joint["mark"], joint["words"] or ""
        level = _LATEX_LEVELS.index(mark) if kind == "latex" else len(mark)
        words = _LATEX_COMMAND.sub(" ", words) if kind == "latex" else words
        if words or (headings and headings[-1][2]):  # neighbours without a title are one section
            headings.append((joint, level, words))
    sections = cut_at_headings(text, headings, HeadingPath())
    return collect(kind, sections, title=one_line(_LATEX_COMMAND.sub(" ", title[1])) if title else "")


def subtitle_document(text: str) -> Document:
    """Subtitles: what is said, each cue at its time; lines that stay for the next cue are read once."""
    sections, before = list[Section](), list[str]()
    for cue in _CUE.finditer(text):
        hours, minutes, seconds = (int(number or 0) for number in cue.groups()[:3])
        said = _CUE_MARKUP.sub("", _SPEAKER.sub(r"\1: ", cue[4]))
        lines = [line for line in map(one_line, html.unescape(said).split("\n")) if line]
        new = "\n".join(line for line in lines if line not in before)
        sections.append(Section(new, place=f"time {hours * 3600 + minutes * 60 + seconds}"))
        before = lines
    return collect("subtitles", sections) if sections else plain_document(text)


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


def _read_html(text: str) -> _HtmlText:
    """The lines of an HTML document, and the title that it names itself."""
    reader = _HtmlText()
    # Python's parser stops at the declarations that Word leaves in pages; they say nothing to a person.
    reader.feed(re.sub(r"<!\[(?!(?i:CDATA)\[)[^>]*>?", lambda odd: "\n" * odd[0].count("\n"), text))
    reader.close()
    reader.flush()
    return reader


def html_document(text: str) -> Document:
    """HTML as a person sees it, a line for each block and row, below its headings."""
    page = _read_html(text)
    return collect("html", page.sections, title=page.title)


# --- tables, records and notebooks


MAX_FIELD = 131_072
"""Characters of one cell; Python's own limit. A longer one is a quote that is not closed: the table is read as text."""
_NAMED_DELIMITER = re.compile(r'"?sep=([^\w"\n])"?[ ;,\t]*(?:\n|$)', re.IGNORECASE)
"""The first line by which a file tells Excel its separator; it is no row."""
_COLUMN_NAME = re.compile(r"(?:19|20)\d\d|(?![-+(]?[$€£]?\d[\d.,:/ %-]*\)?$).{1,100}", re.DOTALL)
"""A year or words, not long; no other number and no date."""


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


def _row_sections(rows: Iterable[Sequence[str]], title: str = "") -> Iterator[Section]:
    """Each row as `column: value` lines, if the first one that fills most of its width looks like a header.

    Rows are counted as a table shows them, from 1; those above the header, such as a title, are kept too.
    """
    names: list[str] | None = None
    number = header = 0
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        filled = [cell for cell in cells if cell]
        if names is None and len(filled) > max(1, len(cells) // 2):
            is_header = len(set(filled)) == len(filled) and all(map(_COLUMN_NAME.fullmatch, filled))
            names, header = [one_line(cell) for cell in cells] if is_header else [], number
            if is_header:
                continue
        named = zip([*(names or ()), *[""] * len(cells)], cells, strict=False)
        lines = [f"{name}: {cell}" if name else cell for name, cell in named if cell]
        yield Section(("\n" if names else " | ").join(lines), title, place=f"row {number}")
    if names and number == header:
        yield Section(" | ".join(filter(None, names)), title, place=f"row {number}")


def csv_document(text: str, *, preferred: str) -> Document:
    """A table of separated values; as plain text where it is none."""
    named = _NAMED_DELIMITER.match(text)
    text = text[named.end() :] if named else text
    with contextlib.suppress(csv.Error, IgnoredError):
        if delimiter := named[1] if named else _delimiter(text, preferred=preferred):
            return collect("csv", _row_sections(csv.reader(io.StringIO(text), delimiter=delimiter)))
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


# --- PDF


_DAMAGE = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError),
    *(ValueError, struct.error, zlib.error, zipfile.BadZipFile),
)
"""What libraries raise for damaged files besides their own errors: most of what Python has."""
MAX_PAGES = 20_000
MAX_STREAMS = 300_000_000  # bytes of unpacked pages that are looked through for soft hyphens
_MARGIN = 0.12  # of a page's height, above and below: where running heads and page numbers stand
_LARGE = 1.17  # times the size of most of the text: the type of headings
_MANY = 3  # pages with the same line in a margin
_ROWS = 6  # lines that make columns
_PARAGRAPH = 1.3  # times the usual distance of lines: that of paragraphs, if they have one
_GUTTER = 6  # points between columns: more than between words
_COLUMN = 100  # points that a column of text is wide


@dataclass(frozen=True)
class _Line:
    """A line of a page; `height` is the share of the page that is below it, `size` that of its type in points, or 0."""

    text: str
    page: int
    height: float = 0.5
    size: float = 0


def _by_columns(textpage: Any, text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans of lines in the order of reading: a file may write both columns of a page line by line, as one line each.

    A table is left as it is: it has more gaps than one in a row, or columns that are narrow or unlike.
    """
    from pypdfium2 import raw

    boxes = [textpage.get_rect(at) for at in range(min(textpage.count_rects(), 2000))]
    rows = [(a, b) for a, b in itertools.pairwise(boxes) if a[1] < b[3] and b[1] < a[3] and b[0] - a[2] > _GUTTER]
    edge, _ = Counter(round(b[0]) for _, b in rows).most_common(1)[0] if rows else (0, 0)
    halves = [(a[2] - a[0], b[0] - a[2], b[2] - b[0]) for a, b in rows if abs(b[0] - edge) < _GUTTER / 2]
    if len(halves) < max(_ROWS, len(spans) / 2) or len(rows) > 1.5 * len(halves):
        return spans
    left, gap, right = (sorted(widths)[len(widths) // 2] for widths in zip(*halves, strict=True))
    if min(left, right) < max(_COLUMN, 0.67 * max(left, right), gap):
        return spans

    def box(at: int) -> tuple[float, ...]:
        return tuple(textpage.get_charbox(raw.FPDFText_GetCharIndexFromTextIndex(textpage, at)))

    before, after, ordered = list[tuple[int, int]](), list[tuple[int, int]](), list[tuple[int, int]]()
    for start, end in spans:
        cut = next((at for at in range(start, end) if not text[at].isspace() and box(at)[0] > edge - _GUTTER / 2), end)
        last = start + len(text[start:cut].rstrip()) - 1
        if start < cut < end and box(cut)[0] - box(last)[2] < _GUTTER:  # over both columns
            ordered += [*before, *after, (start, end)]
            before, after = [], []
            continue
        before += [(start, last + 1)] if cut > start else []
        after += [(cut, end)] if cut < end else []
    return [*ordered, *before, *after]


def _pdf_text(read: Callable[..., int], *arguments: Any) -> str:
    """The text that a function of the library gives for these arguments, on one line."""
    import ctypes

    buffer = (ctypes.c_ushort * (read(*arguments, None, 0) // 2 + 1))()
    read(*arguments, buffer, ctypes.sizeof(buffer))
    return one_line(bytes(buffer).decode("utf-16-le", "replace").partition("\0")[0])


def _field_line(field: tuple[Any, Any]) -> str:
    """What a field of a form holds, but for passwords, after what readers are shown as its name; or "" if it is empty."""
    from pypdfium2 import raw

    is_text = raw.FPDFAnnot_GetFormFieldType(*field) == raw.FPDF_FORMFIELD_TEXTFIELD
    if is_text and raw.FPDFAnnot_GetFormFieldFlags(*field) & raw.FPDF_FORMFLAG_TEXT_PASSWORD:
        return ""
    options = range(raw.FPDFAnnot_GetOptionCount(*field))
    chosen = [at for at in options if raw.FPDFAnnot_IsOptionSelected(*field, at)]
    values = [_pdf_text(raw.FPDFAnnot_GetOptionLabel, *field, at) for at in chosen]
    value = ", ".join(values) or _pdf_text(raw.FPDFAnnot_GetFormFieldValue, *field)
    readers = (raw.FPDFAnnot_GetFormFieldAlternateName, raw.FPDFAnnot_GetFormFieldName)
    name = _pdf_text(readers[0], *field) or _pdf_text(readers[1], *field)
    return f"{name}: {value}" if value not in ("", "Off") else ""


def _typed_lines(page: Any) -> Iterator[str]:
    """What somebody typed onto a page: notes, and what its forms hold."""
    from pypdfium2 import raw

    for at in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, at)
        kind = raw.FPDFAnnot_GetSubtype(annotation)
        if kind == raw.FPDF_ANNOT_WIDGET and page.formenv:
            yield _field_line((page.formenv, annotation))
        elif kind in (raw.FPDF_ANNOT_FREETEXT, raw.FPDF_ANNOT_TEXT):
            yield _pdf_text(raw.FPDFAnnot_GetStringValue, annotation, b"Contents")
        raw.FPDFPage_CloseAnnot(annotation)


_LEADERS = re.compile(r"(?: ?\.){5,} ?")
"""What leads from a title to its page in a table of contents."""


def _page_lines(page: Any, number: int) -> Iterator[_Line]:
    """The lines of a page, then what was typed onto it. A hyphen at the end of a line is left for `with_whole_words`."""
    from pypdfium2 import raw

    textpage, matrix = page.get_textpage(), raw.FS_MATRIX()
    text = textpage.get_text_range()
    _, foot, _, head = page.get_bbox()
    is_upright = head > foot and not page.get_rotation() % 180
    spans = [line.span() for line in re.finditer(r"\S[^\r\n\ufffe]*\ufffe?", text)]
    for start, end in _by_columns(textpage, text, spans):
        middle = next(at for at in range((start + end - 1) // 2, start - 1, -1) if not text[at].isspace())
        at = raw.FPDFText_GetCharIndexFromTextIndex(textpage, middle)
        raw.FPDFText_GetMatrix(textpage, at, matrix)
        height, size = matrix.f - foot, raw.FPDFText_GetFontSize(textpage, at) * math.hypot(matrix.c, matrix.d)
        known = math.isfinite(height) and math.isfinite(size) and is_upright
        place = (height / (head - foot), round(2 * size) / 2) if known else (0.5, 0)
        # The library marks the hyphens of divided words, and takes their line ends away.
        line = _LEADERS.sub(" … ", text[start:end].rstrip().replace("\ufffe", "-"))
        yield _Line(line, number, *place)
    yield from (_Line(text, number) for text in dict.fromkeys(_typed_lines(page)) if text)


_LEFT_BY_PROGRAMS = re.compile(
    r"(?:untitled|microsoft word|\(|slide \d).*|.*\.(?:dvi|docx?|pdf|pptx?|tex)", re.IGNORECASE
)
"""Titles of PDFs that nobody gave them."""
_PAGE_NUMBER = re.compile(r"(?<!\d)[1-9]\d{0,4}(?!\d)|^[ivxlc]{1,8}$")


def _repeated(line: _Line) -> list[tuple[Any, ...]]:
    """What a line in a page's margin may share with others: its place and words; those beside a number that counts the pages."""
    if _MARGIN < line.height < 1 - _MARGIN or len(line.text) > MAX_TITLE:
        return []
    place = round(line.height * 250)
    numbers = [
        (number, int(number[0]) - line.page if number[0].isdigit() else 0)
        for number in _PAGE_NUMBER.finditer(line.text)
    ]
    counted = [(place, line.text[: number.start()], offset, line.text[number.end() :]) for number, offset in numbers]
    return [(place, line.text), *counted]


def _without_running_lines(lines: Sequence[_Line], large: float) -> list[_Line]:
    """The lines but for page numbers and for running heads after the first, which is left to be found."""
    counts = Counter(itertools.chain.from_iterable(map(_repeated, lines)))
    kept: list[_Line] = []
    seen = set[tuple[Any, ...]]()
    for line in lines:
        words, *counted = [key for key in _repeated(line) if line.size < large] or [()]
        if words not in seen and not any(counts[key] >= _MANY for key in counted):
            kept.append(line)
        if counts[words] >= _MANY:
            seen.add(words)
    return kept


def _outlined(pdf: Any, lines: Sequence[_Line]) -> dict[int, list[tuple[int, str]]]:
    """The headings of the outline, their level and title, by the number of the line at which they begin."""
    letters = [re.sub(r"[\W_]+", "", line.text).casefold() for line in [*lines, _Line("", 0)]]
    headings: dict[int, list[tuple[int, str]]] = {}
    waiting: list[tuple[int, str]] = []  # those without a place, which have that of the next
    begin = 0
    for bookmark in itertools.islice(pdf.get_toc(), MAX_PAGES):
        target, title = bookmark.get_dest(), ""
        with contextlib.suppress(UnicodeDecodeError):  # half a character
            title = one_line(bookmark.get_title())
        waiting.append((bookmark.level, title))
        if not target or target.get_index() is None:
            continue
        page = target.get_index() + 1
        start = bisect.bisect_left(lines, page, key=lambda line: line.page)
        end = bisect.bisect_right(lines, page, lo=start, hi=min(start + 500, len(lines)), key=lambda line: line.page)
        begin = begin if start <= begin < end else start
        words = re.sub(r"[\W_]+", "", title).casefold()
        for at in range(begin, end) if words else ():
            here = letters[at]
            # It may stand after a number, and go on in the next line.
            if len(here) < len(words) + 12 and -1 < (here + letters[at + 1]).find(words) < min(len(here), 12):
                begin = at
                break
        headings.setdefault(begin, []).extend(waiting)
        waiting.clear()
    return headings


def _large_type(lines: Sequence[_Line], large: float) -> dict[int, list[tuple[int, str]]]:
    """The headings by their type, as `_outlined` has them; the lines that go on with one have none."""
    headings: dict[int, list[tuple[int, str]]] = {}
    runs = itertools.groupby(enumerate(lines), key=lambda item: (item[1].page, item[1].size))
    for (_, size), run in runs:
        numbers, parts = zip(*run, strict=True)
        title = one_line(" ".join(line.text for line in parts))
        if size >= large and len(title) < MAX_TITLE // 2 and len(re.findall(r"[^\W\d_]", title)) > 1:
            headings |= {number: [] for number in numbers} | {numbers[0]: [(-round(2 * size), title)]}
    return headings


def _pdf_sections(pdf: Any, lines: list[_Line], title: str) -> Iterator[Section]:
    """The sections of a PDF's pages under the headings of its outline, or else those in large type."""
    sizes: Counter[float] = Counter()
    for line in [line for line in lines if _MARGIN < line.height < 1 - _MARGIN] or lines:
        sizes[line.size] += len(line.text)
    large = _LARGE * max(sizes, key=sizes.__getitem__, default=0) or math.inf
    lines = _without_running_lines(lines, large)
    typed = _large_type(lines, large)
    headings = _outlined(pdf, lines) or typed
    cover = [heading for at, run in typed.items() if lines[at].page == 1 for heading in run]
    title = title or min(cover, default=(0, ""), key=lambda heading: heading[0])[1]
    whole = with_whole_words(Document("pdf", (Section("\n".join(line.text for line in lines)),))).sections[0].text
    path, texts = HeadingPath(), whole.split("\n")
    drops = [above.height - line.height if above.page == line.page else 0 for above, line in itertools.pairwise(lines)]
    down = sorted(drop for drop in drops if drop > 0) or [math.inf]
    starts = [0] if lines else []
    for at, drop in enumerate(drops, 1):
        if lines[at].page > lines[at - 1].page or (at in headings and at - 1 not in headings):
            starts.append(at)
        elif drop > _PARAGRAPH * down[len(down) // 2]:
            texts[at] = f"\n{texts[at]}"
    for start, end in itertools.pairwise([*starts, len(lines)]):
        for heading in itertools.chain.from_iterable(headings.get(at, ()) for at in range(start, end)):
            path.enter(*heading)
        yield Section("\n".join(texts[start:end]), path.title or title, place=f"page {lines[start].page}")


def _read_pages(pdf: Any) -> tuple[list[_Line], list[int], list[int]]:
    """The lines of a PDF, the numbers of the pages that cannot be read, and of those that are pictures."""
    from pypdfium2 import raw

    lines, lost, pictures = list[_Line](), list[int](), list[int]()
    for number in range(1, len(pdf) + 1):
        found = None
        with contextlib.suppress(*_DAMAGE):
            page = pdf[number - 1]
            found = list(_page_lines(page, number))
            if not found and any(page.get_objects([raw.FPDF_PAGEOBJ_IMAGE])):
                pictures.append(number)
            page.close()
        lost += [number] if found is None else []
        lines += found or ()
    return lines, lost, pictures


_KERNING = re.compile(rb"\)\s*-?\d{1,2}(?:\.\d*)?\s*\(")
_WITHIN_WORD = re.compile("([a-z]+)-(?=([a-z]+))")
_CODE_173 = re.compile(rb"([a-z]*)(?:\\255|\xad)([a-z]*)(?=(.?))", re.DOTALL)


def _soft_hyphens(content: bytes) -> set[tuple[str, str]]:
    """The parts of words between which a PDF has code 173, if it has that for soft hyphens: only within words of small letters.

    In most fonts it looks like a hyphen, and the library gives it as one. Some programs write all hyphens so.
    """
    parts, room = set[tuple[str, str]](), MAX_STREAMS
    for before in content.split(b"endstream"):
        data = re.split(rb"stream\r?\n", before, maxsplit=1)[-1]
        with contextlib.suppress(zlib.error):
            data = zlib.decompressobj().decompress(data, max(room, 1))
        room -= len(data)
        if b"\0" in data or not re.search(rb"T[Jj]\s", data):  # pictures, and fonts with other codes
            continue
        for left, right, after in _CODE_173.findall(_KERNING.sub(b"", data)):
            if not left or not (right or after == b")"):
                return set()
            parts.add((left.decode(), right.decode()))
    return parts


def pdf_document(content: bytes) -> Document:
    """A PDF page by page under its headings; pages that cannot be read or are pictures are named as missing."""
    from pypdfium2 import PdfDocument, raw

    title, lost = "", list[int]()
    try:
        with PdfDocument(content) as pdf:
            if len(pdf) > MAX_PAGES:
                raise UnreadableError(f"has more than {MAX_PAGES:,} pages")
            with contextlib.suppress(*_DAMAGE):
                title = one_line(pdf.get_metadata_value("Title"))
            with contextlib.suppress(*_DAMAGE):
                pdf.init_forms()
            lines, lost, pictures = _read_pages(pdf)
            if soft := _soft_hyphens(content):
                whole = functools.partial(_WITHIN_WORD.sub, lambda word: word[1] + "-" * (word.groups() not in soft))
                lines = [replace(line, text=whole(line.text)) for line in lines]
            title = "" if _LEFT_BY_PROGRAMS.fullmatch(title) else title
            document = collect("pdf", _pdf_sections(pdf, lines, title))
    except IgnoredError as error:
        reason = f"is a PDF with {plural(len(lost), 'unreadable page')}" if lost else "has no text: it may be scanned"
        raise UnreadableError(reason) from error
    except _DAMAGE as error:
        causes = {
            raw.FPDF_ERR_PASSWORD: "is protected by a password",
            raw.FPDF_ERR_SECURITY: "is encrypted for some programs",
        }
        raise UnreadableError(causes.get(getattr(error, "err_code", None), "is a damaged PDF")) from error
    gaps = [(lost, "that cannot be read"), (pictures, "without text, which may be scanned")]
    named = [f"{plural(len(at), 'page')} {gap}: {listed(map(str, at), limit=10)}" for at, gap in gaps if at]
    return replace(document, missing=f"is read but for {'; '.join(named)}" if named else "")


# --- office documents


MAX_UNPACKED = 100_000_000  # bytes of XML in one document
MAX_WORKBOOK = 500_000_000  # bytes of one whose XML is read in Rust


def _refuse_large(size: int, most: int) -> None:
    if size > most:
        raise UnreadableError(f"unpacks to more than {most // 1_000_000} MB")


def _elements(xml: bytes) -> Iterator[tuple[str, ET.Element]]:
    """Every element in order, with its name without the namespace."""
    return ((element.tag.rpartition("}")[2], element) for element in ET.fromstring(xml).iter())


def _linked(part: str, href: str) -> str:
    """The part of the same archive that a reference in a part leads to."""
    path = urllib.parse.unquote(href.partition("#")[0])
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(part), path))[1:]


class _Package(zipfile.ZipFile):
    """A zip archive of XML. No more of a part is unpacked than its header says, and expat bounds entities."""

    unpacked = 0

    def unpack(self, name: str) -> bytes:
        """The bytes of a part; all that were unpacked together are bounded."""
        part = self.getinfo(name)
        if part.flag_bits & 1:
            raise UnreadableError("is protected by a password")
        self.unpacked += part.file_size
        _refuse_large(self.unpacked, MAX_UNPACKED)
        if part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # what office programs write
            raise zipfile.BadZipFile
        return self.read(part)

    def relations(self, part: str) -> dict[str, tuple[str, str]]:
        """What a part refers to: by the name that it has for it, the kind, such as "slide", and the other part."""
        name = posixpath.join(posixpath.dirname(part), "_rels", posixpath.basename(part) + ".rels")
        links = _elements(self.unpack(name)) if name in self.namelist() else ()
        return {
            link.get("Id", ""): (link.get("Type", "").rpartition("/")[2], _linked(part, link.get("Target", "")))
            for _, link in links
        }

    def title(self, name: str) -> str:
        """The title that a part names in the terms of Dublin Core, or "" if there is none but a program's own."""
        with contextlib.suppress(KeyError):
            found = re.search(r"<dc:title[^>]*>([^<]*)<", self.unpack(name).decode("utf-8", "replace"))
            title = one_line(html.unescape(found[1])) if found else ""
            return "" if re.match(r"powerpoint|(?:presentation|untitled)\b.{,3}$", title, re.IGNORECASE) else title
        return ""


@contextlib.contextmanager
def _open_package(content: bytes, kind: str) -> Iterator[_Package]:
    """Open a zip archive of XML; what is raised for damage while it is read is told of a file of this kind."""
    from xml.parsers.expat import ExpatError

    try:
        with _Package(io.BytesIO(content)) as package:
            yield package
    except (ExpatError, SyntaxError, *_DAMAGE) as error:
        raise UnreadableError(f"is a damaged {kind} ({type(error).__name__})") from error


def _counted(unit: str, sections: Iterable[Section]) -> Iterator[Section]:
    for number, section in enumerate(sections, 1):
        yield replace(section, line=0, place=f"{unit} {number}")


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
    import mammoth

    file = io.BytesIO()
    with _open_package(content, "Word document") as package:
        with zipfile.ZipFile(file, "w") as readable:
            for name in (name for name in package.namelist() if name.endswith((".xml", ".rels"))):
                xml = package.unpack(name)
                readable.writestr(name, _readable_word(xml) if name.startswith("word/") else xml)
        options = {"include_embedded_style_map": False, "convert_image": lambda _: []}
        page = mammoth.convert_to_html(file, style_map="p[style-name='Title'] => h1:fresh", **options).value
        title = package.title("docProps/core.xml")
    body, *notes = re.split(r'<ol>(?=<li id="(?:foot|end)note-)', re.sub(r'<a href="#[^"]*">↑</a>', "", page))
    texts = [("paragraph", body), *(("note", text) for text in notes)]
    sections = [section for unit, text in texts for section in _counted(unit, html_document(text).sections)]
    return collect("docx", sections, title=title)


def _cell_text(value: object) -> str:
    """What a cell shows, about: a number with the 15 digits that it has, a date as in ISO 8601."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.15g}"
    return str(value)


def _sheet_rows(sheet: CalamineSheet) -> Iterator[list[str]]:
    """The rows of a sheet; what is merged with the cells below it stands in each of their rows that has more."""
    left = (sheet.start or (0, 0))[1]
    merged: dict[int, list[tuple[int, int]]] = {}  # by the first row, the column and the last row
    for (top, column), (bottom, _) in sheet.merged_cell_ranges or ():
        merged.setdefault(top, []).append((column - left, bottom))
    held: dict[int, tuple[int, str]] = {}
    for number, row in enumerate(sheet.iter_rows()):
        cells = [*map(_cell_text, row)]
        for column, (bottom, text) in held.items() if any(cells) else ():
            cells[column] = cells[column] or (text if number <= bottom else "")
        held |= {
            column: (bottom, cells[column]) for column, bottom in merged.get(number, ()) if 0 <= column < len(cells)
        }
        yield cells


def _sheet_sections(book: CalamineWorkbook) -> Iterator[Section]:
    """The rows of the sheets that a person sees, below the sheet's name; one that was never named has none."""
    from python_calamine import SheetTypeEnum, SheetVisibleEnum

    kind = (SheetTypeEnum.WorkSheet, SheetVisibleEnum.Visible)
    names = [sheet.name for sheet in book.sheets_metadata if (sheet.typ, sheet.visible) == kind]
    for name in names:
        is_unnamed = len(names) == 1 and re.fullmatch(r"[^\W\d]{3,}\s?1", name)  # as "Sheet1" and "Tabelle1"
        yield from _row_sections(_sheet_rows(book.get_sheet_by_name(name)), "" if is_unnamed else name)


def sheet_document(content: bytes) -> Document:
    """A workbook sheet by sheet, of Excel in each of its formats or OpenDocument; the end of a very long one is missing."""
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError

    sections, characters, missing = list[Section](), 0, ""
    try:
        if content.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                _refuse_large(sum(part.file_size for part in archive.infolist()), MAX_WORKBOOK)
        with CalamineWorkbook.from_filelike(io.BytesIO(content)) as book:
            for section in filter(lambda section: section.text, _sheet_sections(book)):
                characters += len(section.text)
                if sections and (characters > MAX_CHARACTERS or len(sections) >= MAX_SECTIONS):
                    place = " of ".join(filter(None, (section.place, section.title)))
                    missing = f"is read up to {place}, where it passes the limit of its size"
                    break
                sections.append(section)
    except PasswordError as error:
        raise UnreadableError("is protected by a password") from error
    except BaseException as error:
        # A panic of Rust is no Exception, and its class cannot be imported.
        if not isinstance(error, (CalamineError, *_DAMAGE)) and type(error).__name__ != "PanicException":
            raise
        raise UnreadableError(f"is a damaged spreadsheet ({type(error).__name__})") from error
    return replace(collect("sheet", sections), missing=missing)


_OFFICE_TAGS = {
    name: tag
    for tag, names in {
        "p": "p strCache",
        "br": "br line-break",
        "table": "table tbl",
        "thead": "table-header-rows",
        "tr": "table-row tr",
        "td": "table-cell tc",
    }.items()
    for name in names.split()
}
"""Elements of PowerPoint and OpenDocument, without their namespaces, and the tags of HTML that mean the same."""
_OFFICE_MARKS = {"s": " ", "pt": " ", "tab": " ", "title": " ", "desc": " ", "note": " ["}
_OFFICE_TEXT = re.compile(r"\{[^}]*:opendocument:xmlns:(?:text|svg)|.*\}[tv]$")
"""The elements that have text: OpenDocument's for text and descriptions of pictures, runs of PowerPoint, names in charts."""
_UNREAD_ELEMENTS = ("annotation", "numCache", "script", "tracked-changes", "Fallback")
_UNREAD_ROLES = ("date-time", "dt", "footer", "ftr", "header", "hdr", "page-number", "sldNum")


class _OfficeText(_HtmlText):
    """Gathers the lines of a slide or of an OpenDocument text as those of a page of HTML; it is a target of an XMLParser."""

    def __init__(self) -> None:
        super().__init__()
        self.slides: list[list[Section]] = []  # of an OpenDocument presentation
        self._open: list[tuple[str, str]] = []  # elements and their tags
        self._role = ""  # of the last shape: whether it is a title or what all slides have
        self._inline = 0  # open elements whose paragraphs are no lines: headings and notes

    def start(self, element: str, attributes: dict[str, str]) -> None:
        name = element.rpartition("}")[2]
        values = {key.rpartition("}")[2]: value for key, value in attributes.items()}
        if name in ("frame", "graphicFrame", "sp"):
            self._role = values.get("class", "")
        elif name == "ph":
            self._role = values.get("type", "")
        role = self._role if name in ("text-box", "txBody") else ""
        tag, mark = _OFFICE_TAGS.get(name, "span"), _OFFICE_MARKS.get(name, "")
        if self._inline:
            tag, mark = "span", mark or " " * (tag != "span")
        elif name == "h" or role in ("ctrTitle", "title"):
            tag = f"h{min(int(values.get('outline-level', 1)), 6)}"
        elif name == "p" and self._open[-1:] and self._open[-1][0].endswith("}list-item"):
            tag = "li"
        self._inline += self._inline > 0 or tag[1:].isdigit() or name == "note"
        self._open.append((element, tag))
        self.handle_starttag(tag, [("hidden", None)] if name in _UNREAD_ELEMENTS or role in _UNREAD_ROLES else [])
        self.handle_data(mark)

    def data(self, text: str) -> None:
        if _OFFICE_TEXT.match(self._open[-1][0]):
            self.handle_data(text)

    def end(self, element: str) -> None:
        name, (_, tag) = element.rpartition("}")[2], self._open.pop()
        self._inline -= self._inline > 0
        self.handle_data({"note": "]", "title": " ", "desc": " "}.get(name, ""))
        self.handle_endtag(tag)
        if name == "page":
            self.flush()
            self.slides.append(self.sections)
            self.sections, self._path = [], HeadingPath()


def _office_text(xml: bytes) -> _OfficeText:
    """The lines of a part of PowerPoint or OpenDocument."""
    text = _OfficeText()
    parser = ET.XMLParser(target=text)
    parser.feed(xml)
    parser.close()
    text.flush()
    return text


def _slide_sections(place: str, lines: Sequence[Section]) -> Iterator[Section]:
    """The lines of a slide below its title, wherever on the slide that stands."""
    title = next((line.title for line in lines if line.title), "")
    return (replace(line, title=title, line=0, place=place) for line in lines)


def pptx_document(content: bytes) -> Document:
    """A presentation slide by slide: its text and tables, those of its diagrams and charts, and its notes."""
    sections: list[Section] = []
    with _open_package(content, "presentation") as package:
        deck = "ppt/presentation.xml"
        parts = package.relations(deck)
        order = (element for name, element in _elements(package.unpack(deck)) if name == "sldId")
        slides = dict.fromkeys(parts[name][1] for slide in order for name in slide.attrib.values() if name in parts)
        for number, slide in enumerate(slides, 1):
            further = [
                part
                for kind, part in package.relations(slide).values()
                if kind in ("chart", "diagramData", "notesSlide")
            ]
            lines = [line for part in (slide, *further) for line in _office_text(package.unpack(part)).sections]
            sections += _slide_sections(f"slide {number}", lines)
        return collect("pptx", sections, title=package.title("docProps/core.xml"))


def odf_document(content: bytes) -> Document:
    """An OpenDocument text paragraph by paragraph, or a presentation or drawing slide by slide; a spreadsheet as any other."""
    with _open_package(content, "OpenDocument file") as package:
        if b"encryption-data" in package.unpack("META-INF/manifest.xml"):
            raise UnreadableError("is protected by a password")
        if b"spreadsheet" in package.unpack("mimetype"):
            return sheet_document(content)
        text = _office_text(package.unpack("content.xml"))
        title = package.title("meta.xml")
    slides = (_slide_sections(f"slide {number}", lines) for number, lines in enumerate(text.slides, 1))
    return collect("odf", itertools.chain(_counted("paragraph", text.sections), *slides), title=title)


def _chapter_titles(contents: str, xml: bytes) -> Iterator[tuple[str, str]]:
    """The parts that a table of contents leads to, each with the path of its titles; it is a page, or NCX as in EPUB 2."""
    path, depth, is_contents = HeadingPath(), 0, True
    for event, element in ET.iterparse(io.BytesIO(xml), ("start", "end")):
        name = element.tag.rpartition("}")[2]
        if name == "nav" and event == "start":  # others list pages and landmarks
            is_contents = "toc" in " ".join(element.attrib.values())
        if name in ("li", "navPoint"):
            depth += 1 if event == "start" else -1
        elif event == "end" and depth and is_contents:
            if name in ("a", "span", "navLabel"):
                path.enter(depth, "".join(element.itertext()))
            if href := element.get("href") or element.get("src"):
                yield _linked(contents, href), path.title


def _chapter_sections(number: int, title: str, xml: bytes) -> Iterator[Section]:
    """The lines of a part of a book below its own headings, or its title if that says more."""
    for section in _read_html(decode_text(xml)[0]).sections:
        heading = title if section.title.casefold() in title.casefold() else section.title
        yield replace(section, title=heading, line=0, place=f"section {number}")


def epub_document(content: bytes) -> Document:
    """A book in the order of its parts, below their headings or their titles in its table of contents, which is not read."""
    titles: dict[str, str] = {}
    sections: list[Section] = []
    with _open_package(content, "EPUB book") as package:
        book = dict(_elements(package.unpack("META-INF/container.xml")))["rootfile"].get("full-path", "")
        elements = list(_elements(package.unpack(book)))
        items = {item.get("id", ""): item for name, item in elements if name == "item"}
        order = (items.get(element.get("idref", "")) for name, element in elements if name == "itemref")
        parts = dict.fromkeys(_linked(book, item.get("href", "")) for item in order if item is not None)
        if "META-INF/encryption.xml" in package.namelist():  # fonts may be, for which nobody needs a key
            sealed = _elements(package.unpack("META-INF/encryption.xml"))
            if not parts.keys().isdisjoint(_linked("", element.get("URI", "")) for _, element in sealed):
                raise UnreadableError("is protected by DRM: only programs of its shop can read it")
        for item in items.values():
            if "nav" in item.get("properties", "").split() or "ncx" in item.get("media-type", ""):
                contents = _linked(book, item.get("href", ""))
                parts.pop(contents, None)
                with contextlib.suppress(KeyError, SyntaxError):
                    for part, title in _chapter_titles(contents, package.unpack(contents)):
                        titles.setdefault(part, title)
        for number, part in enumerate(parts, 1):
            with contextlib.suppress(IgnoredError, KeyError):
                sections += _chapter_sections(number, titles.get(part, ""), package.unpack(part))
        return collect("epub", sections, title=package.title(book))


_PACKAGES: Mapping[str, Callable[[bytes], Document]] = {
    r"word/document\d*\.xml": docx_document,
    r"xl/workbook\.(?:xml|bin)": sheet_document,
    r"ppt/presentation\.xml": pptx_document,
    r"META-INF/container\.xml": epub_document,
    r"META-INF/manifest\.xml": odf_document,
}
"""The parts by which a document that is a zip archive is known."""
_OLD_FORMATS = {
    "Workbook": "",
    "Book": "",
    "EncryptedPackage": "is protected by a password",
    "WordDocument": "is a Word document of the old format: save it as DOCX",
    "PowerPoint Document": "is a presentation of the old format: save it as PPTX",
    "__properties_version1.0": "is a message of Outlook: save it as EML",
}
"""The streams by which a file in the container of Office 97 is known, and why it is not read."""


def _office_reader(content: bytes) -> Callable[[bytes], Document] | None:
    """The reader of an office document, or None if it is none; UnreadableError if there is no reader for it."""
    if content.startswith(b"PK\x03\x04"):
        names = ""
        with contextlib.suppress(*_DAMAGE), zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = "\n".join(archive.namelist())
        return next(
            (reader for part, reader in _PACKAGES.items() if re.search(rf"^{part}$", names, re.MULTILINE)), None
        )
    if content.startswith(bytes.fromhex("d0cf11e0a1b11ae1")):
        # The directory keeps 64 bytes for a name; what is embedded in the document comes after it.
        places = {content.find(name.encode("utf-16-le").ljust(64, b"\0")): why for name, why in _OLD_FORMATS.items()}
        places.pop(-1, None)
        if why := places[min(places)] if places else "":
            raise UnreadableError(why)
        return sheet_document if places else None
    return None


# --- mail


MAX_ATTACHED = 200  # files of one mail
MAX_MAIL_LINE = 1000  # characters of a header, such as hundreds of recipients
_MAIL_LINES = ("From", "To", "Cc", "Date")
_MAIL_HEAD = re.compile(rb"\s*(?:From .*\n)?((?:[!-9;-~]+:.*\n(?:[ \t].*\n)*)+)")
_MAILBOX_LINE = re.compile(rb"^From (?=.*\d\d:\d\d).*\n(?=[!-9;-~]+:)", re.MULTILINE)
"""What stands before each mail of a mailbox, see RFC 4155; a line of a mail that looks like it begins with `>`."""


def is_mail(content: bytes) -> bool:
    """Return whether bytes begin as a mail does: mail programs keep many in files without a suffix."""
    head = _MAIL_HEAD.match(content[:_SAMPLE])
    names = set(re.findall(rb"^([\w-]+):", head[1].lower(), re.MULTILINE)) if head else set()
    return names >= {b"from", b"date"} and not names.isdisjoint((b"message-id", b"mime-version", b"received"))


def _decode_as(content: bytes, charset: str) -> str:
    """The text of bytes in the encoding that a mail declares; where they are not in it, in another one, or none."""
    with contextlib.suppress(LookupError, ValueError):
        if charset and not charset.endswith("ascii"):
            text = content.decode(_SUPERSETS.get(charset.lower(), charset))
            return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ")
    with contextlib.suppress(IgnoredError):
        return decode_text(content)[0]
    return ""


def _header_text(value: object) -> str:
    """A header's value on one line, its encoded words decoded; what is broken is left as it is."""
    import email.header

    # Bytes that leave ASCII are made an encoded word, too.
    text = value.encode() if isinstance(value, email.header.Header) else str(value or "")
    with contextlib.suppress(email.errors.HeaderParseError, *_DAMAGE):
        words = email.header.decode_header(text[: MAX_MAIL_LINE * 20])  # its time grows with the square of their number
        text = "".join(
            word if isinstance(word, str) else _decode_as(word, charset or "raw-unicode-escape")
            for word, charset in words
        )
    return shorten(one_line(text), MAX_MAIL_LINE)


def _whole_paragraphs(text: str, *, drops_space: bool) -> str:
    """Text of `format=flowed`, where a line that ends in a space goes on in the next one: RFC 3676."""
    parts: list[str] = []
    depth: int | None = None  # of quoting, of a line that goes on
    for line in text.split("\n"):
        body = line.lstrip(">")
        level, body = len(line) - len(body), body.removeprefix(" ")
        is_signature = body == "-- "
        is_open = body.endswith(" ") and not is_signature
        parts.append("" if level == depth and not is_signature else f"\n{'>' * level}{' ' * bool(level)}")
        parts.append(body[:-1] if is_open and drops_space else body)
        depth = level if is_open else None
    return "".join(parts)[1:]


def _part_text(part: Message) -> str:
    """The text of a part of a mail, or "" if there is none."""
    content = part.get_payload(decode=True)
    text = _decode_as(content, part.get_content_charset("")) if isinstance(content, bytes) else ""
    if str(part.get_param("format")).lower() == "flowed":
        text = _whole_paragraphs(text, drops_space=str(part.get_param("delsp")).lower() == "yes")
    return text.strip("\n") if _WORD.search(text) else ""


def _mail_parts(message: Message) -> Iterator[Message]:
    """The parts of a mail that hold no parts but mails; HTML is left out where the same is there as plain text."""
    if not message.is_multipart() or message.get_content_maintype() == "message":
        yield message
        return
    parts = [part for inner in message.get_payload() for part in _mail_parts(cast("Message", inner))]
    is_alternative = message.get_content_type() == "multipart/alternative"
    has_plain = is_alternative and any(part.get_content_type() == "text/plain" and _part_text(part) for part in parts)
    yield from (part for part in parts if not (has_plain and part.get_content_type() == "text/html"))


def _attachment(part: Message) -> tuple[str, bytes] | None:
    """The name and the bytes of a part that is a file; None for what is shown in the mail, as its pictures are."""
    name, inner = _header_text(part.get_filename("")), part.get_payload()
    if part.get_content_type() == "message/rfc822" and isinstance(inner, list):
        mail = cast("Message", inner[0])
        return (name or _header_text(mail["Subject"]) or "mail").removesuffix(".eml") + ".eml", mail.as_bytes()
    content = part.get_payload(decode=True)
    is_file = part.get_content_disposition() == "attachment" or (name and not part["Content-ID"])
    is_signature = part.get_content_subtype().endswith("signature")
    return (name, content) if is_file and not is_signature and isinstance(content, bytes) else None


def _named_apart(parts: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Attached files under names that can stand in a path, no two the same."""
    taken: set[str] = set()
    for given, content in parts:
        safe = re.sub(r'[\\/:*?"<>|]+', "_", lancelot.visible(given)).strip(" .") or "attachment"
        stem, suffix = Path(safe).stem[:80], Path(safe).suffix[:20]
        names = (f"{stem}{f' ({number})' * (number > 1)}{suffix}" for number in itertools.count(1))
        name = next(name for name in names if name not in taken)
        taken.add(name)
        yield name, content


def mail_document(content: bytes) -> Document:
    """A mail under its subject: from whom, to whom and when, then its plain text, else its HTML; its files are parts."""
    import email.utils

    date, texts = None, list[str]()
    try:
        message = email.message_from_bytes(content)
        parts = [(part, _attachment(part)) for part in _mail_parts(message)]
        shown = [part for part, file in parts if not file]
        files = [file for _, file in parts if file]
        texts.append("\n".join(f"{name}: {text}" for name in _MAIL_LINES if (text := _header_text(message[name]))))
        texts += [_part_text(part) for part in shown if part.get_content_type() == "text/plain"]
        for page in (_part_text(part) for part in shown if part.get_content_type() == "text/html"):
            with contextlib.suppress(IgnoredError):
                texts.append("\n".join(section.text for section in html_document(page).sections))
        subject = _header_text(message["Subject"]) or "(no subject)"
        with contextlib.suppress(*_DAMAGE):
            moment = email.utils.parsedate_tz(str(message["Date"]))  # in UTC where it names no zone
            date = float(email.utils.mktime_tz(moment)) if moment else None
    except _DAMAGE as error:
        raise UnreadableError(f"is a damaged mail ({type(error).__name__})") from error
    document = collect("mail", [Section("\n\n".join(filter(None, texts)), subject, line=1)])
    is_sealed = message.get_content_type() in (
        "application/pkcs7-mime",
        "application/x-pkcs7-mime",
        "multipart/encrypted",
    )
    missing = "is read but for its text, which is encrypted" if is_sealed else ""
    if len(files) > MAX_ATTACHED:
        missing = f"is read but for {plural(len(files) - MAX_ATTACHED, 'attached file')}"
    return replace(document, missing=missing, date=date, parts=tuple(_named_apart(files[:MAX_ATTACHED])))


def mailbox_document(content: bytes) -> Document:
    """A mailbox, whose mails are its parts; it has no text itself."""
    cuts = [(line.start(), line.end()) for line in _MAILBOX_LINE.finditer(content)]
    bounds = zip(cuts, [*(start for start, _ in cuts[1:]), len(content)], strict=True)
    mails = (re.sub(rb"(?m)^>(?=>*From )", b"", content[start:end]) for (_, start), end in bounds)
    return Document("mailbox", (), parts=tuple((f"{number}.eml", mail) for number, mail in enumerate(mails, 1)))


# --- RTF


_RTF_START = re.compile(rb"\s*\{\\rtf")
_RTF_BYTES = re.compile(r"[0-9A-Fa-f\r\n]{200,}")  # of pictures
_RTF_TITLE = re.compile(r"\{\\title\b ?((?:[^{}\\]|\\[^{}]){1,2000})\}")
_RTF_LEVEL = re.compile(r"\\outlinelevel([0-8])(?!\d) ?")
_LEVEL_MARK, _LEVEL_MARKS = 0xE000, re.compile("[\ue000-\ue008]")
"""Characters of private use that stand for the levels of headings, since the library gives nothing but text."""


def rtf_document(content: bytes) -> Document:
    """RTF by its paragraphs below its headings, with footnotes where they are called."""
    from striprtf.striprtf import rtf_to_text

    page = re.search(rb"\\ansicpg(\d{3,5})", content[:_SAMPLE])
    code_page = page[1].decode() if page else "1252"
    text = _RTF_BYTES.sub("", _decode_as(content, f"cp{code_page}"))
    title = _RTF_TITLE.search(text)
    text = _RTF_LEVEL.sub(lambda level: f"{level[0]} {chr(_LEVEL_MARK + int(level[1]))}", text)
    # The library's search for links takes time that grows with a power of their number.
    text = re.sub(r"(?i)(\\field)(?=\{)", r"\1 ", text.replace("\\footnote", ""))
    try:
        body, name = (
            str(rtf_to_text(rtf, errors="replace"))  # type: ignore[no-untyped-call]
            for rtf in (text, rf"{{\rtf1\ansicpg{code_page} {title[1] if title else ''}}}")
        )
    except _DAMAGE as error:
        raise UnreadableError(f"is a damaged RTF document ({type(error).__name__})") from error
    path, sections = HeadingPath(), []
    for number, line in enumerate(body.split("\n"), 1):
        words = _LEVEL_MARKS.sub("", line)
        if mark := _LEVEL_MARKS.search(line):
            path.enter(ord(mark[0]) - _LEVEL_MARK, words)
        sections.append(Section(words, path.title, place=f"paragraph {number}"))
    return collect("rtf", sections, title=one_line(name))


# --- formats


_SUFFIXES: Mapping[Callable[[str], Document], str] = {
    markdown_document: "md markdown mdx mkd rmd qmd",
    rst_document: "rst rest",
    html_document: "html htm xhtml",
    functools.partial(csv_document, preferred=","): "csv",
    functools.partial(csv_document, preferred="\t"): "tsv tab",
    # Programs export both under the name of a workbook.
    lambda text: html_document(text) if "<table" in text.lower() else csv_document(text, preferred="\t"): "xls",
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
    functools.partial(jointed_document, kind="latex"): "tex ltx",
    functools.partial(jointed_document, kind="yaml"): "yaml yml",
    functools.partial(jointed_document, kind="toml"): "toml",
    functools.partial(jointed_document, kind="ini"): "ini cfg conf",
    functools.partial(jointed_document, kind="org"): "org",
    functools.partial(jointed_document, kind="asciidoc"): "adoc asciidoc",
    subtitle_document: "srt vtt",
    plain_document: "log",
}
TEXT_READERS = {f".{suffix}": reader for reader, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
UNREAD = {
    "archive": (
        "unpack it",
        "7z arj cab dmg img iso lz lz4 lzma pyz qcow2 rar tar tbz tbz2 tgz txz vdi vhd vmdk z zip zst",
    ),
    "book": ("save it as EPUB", "azw azw3 chm kfx lit mobi"),
    "data": (
        "save what has words as CSV",
        "arrow ckpt feather gguf h5 npy npz onnx orc parquet pickle pkl pt pth safetensors",
    ),
    "database": ("save its tables as CSV", "accdb db lance mdb odb sqlite sqlite3"),
    "document of Apple": ("save it as PDF", "numbers pages"),
    "document of OneNote": ("save it as PDF", "one onetoc2"),
    "drawing": ("save it as PDF", "ai cdr djvu dwg fla indd psd sketch swf vsd vsdx xcf"),
    "font": ("", "eot otf ttc ttf woff woff2"),
    "mail of Outlook": ("save it as EML or MBOX", "ost pst"),
    "picture": (
        "make a PDF of it by text recognition",
        "arw avif bmp cr2 cr3 dng gif heic heif icns ico jfif jpeg jpg jxl nef orf png tga tif tiff webp",
    ),
    "program": (
        "",
        "a apk appimage bin class deb dll dylib ear exe jar lib msi o obj pyc pyd pyo rpm so war wasm whl xpi",
    ),
    "sound": ("save what is said as text or subtitles", "aac aif aiff amr flac m4a mid mp3 oga ogg opus wav wma"),
    "video": ("save what is said as text or subtitles", "3gp avi flv m4v mkv mov mp4 mpeg mpg ogv webm wmv"),
}
"""The kinds of files that are not even opened: what to do with one of each, and its suffixes."""
ADVICE = {kind: advice for kind, (advice, _) in UNREAD.items()}
_UNREAD_SUFFIXES = {f".{suffix}": kind for kind, (_, suffixes) in UNREAD.items() for suffix in suffixes.split()}
_UNREAD_STARTS = {
    "archive": rb"PK\x03\x04|Rar!|7z\xbc\xaf|.{257}ustar",
    "database": rb"SQLite format 3|.{4}Standard (?:ACE|Jet) DB",
    "picture": rb"\x89PNG|\xff\xd8\xff|GIF8|II\*\0|MM\0\*|RIFF....WEBP",
    "program": rb"\x7fELF|MZ|\xca\xfe\xba\xbe|[\xce\xcf]\xfa\xed\xfe",
    "sound": rb"ID3|OggS|fLaC|RIFF....WAVE",
    "video": rb".{4}ftyp|\x1aE\xdf\xa3|RIFF....AVI ",
}
"""How those begin that have another name, or none."""
DOCUMENT_SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in """
    bz2 doc docm docx dot dotm dotx eml epub gz mbox mht mhtml odg odp ods odt otp ots ott pdf pot potx pps ppsx ppt pptm pptx
    rtf xls xlsb xlsm xlsx xlt xltm xltx xz
    """.split()  # noqa: SIM905 - words are read best as words
)
_GENERATED: Mapping[str, str] = {
    "lock file": r"(?:package-lock|npm-shrinkwrap|packages\.lock)\.json|(?:pnpm-lock|conda-lock)\.ya?ml|go\.sum"
    r"|(?:bun|cargo|composer|flake|gemfile|mix|pdm|pipfile|pixi|podfile|poetry|pubspec|uv|yarn)\.lock",
    "source map": r".+\.(?:[cm]?js|ts|css)\.map",
    "minified": r".+[.-]min\.(?:[cm]?js|css)",
}
"""What programs write for programs, by the names that files of the kind have in small letters."""
_MINIFIED = (2000, 500)  # characters of the script or style sheet, and of its lines on average


def _generated_kind(name: str, text: str) -> str:
    """Return which kind of _GENERATED a file of text is, or "" if it is none."""
    name, most = name.lower(), max(_MINIFIED[0], text.count("\n") * _MINIFIED[1])
    if name.endswith((".js", ".mjs", ".cjs", ".css")) and len(text) > most and len(without_base64(text)) > most:
        return "minified"
    return next((kind for kind, names in _GENERATED.items() if re.fullmatch(names, name)), "")


def refuse_unread(name: str) -> None:
    """Raise IgnoredError, with its kind, for a file whose name tells that it is not to be read."""
    # Office leaves one beside each document that is open.
    if kind := "lock file" if name.startswith("~$") else _UNREAD_SUFFIXES.get(Path(name).suffix.lower()):
        raise IgnoredError(kind)


_PACKED: Mapping[bytes, Callable[[Any], Any]] = {
    rb"\x1f\x8b\x08": gzip.open,
    rb"BZh[1-9][1\x17]": bz2.open,
    rb"\xfd7zXZ\0": lzma.open,
}
"""How one file that is compressed begins, and what opens it."""


def unpacked(name: str, content: bytes) -> tuple[str, bytes]:
    """The name and the bytes of the one file that is compressed in these, or both as they are."""
    opener = next((opener for start, opener in _PACKED.items() if re.match(start, content)), None)
    if opener is None:
        return name, content
    try:
        with opener(io.BytesIO(content)) as file:
            inner = file.read(MAX_FILE_BYTES + 1)
    except (lzma.LZMAError, *_DAMAGE) as error:
        raise UnreadableError(f"is damaged where it is compressed ({type(error).__name__})") from error
    if len(inner) > MAX_FILE_BYTES:
        raise UnreadableError(f"unpacks to more than {MAX_FILE_BYTES // 1_000_000} MB")
    if inner[257:262] == b"ustar" or any(re.match(start, inner) for start in _PACKED):
        raise IgnoredError("archive")
    name = Path(name).stem if Path(name).suffix.lower() in (".gz", ".bz2", ".xz") else name
    refuse_unread(name)
    return name, inner


_NO_MAIL = {*TEXT_READERS, ".diff", ".patch"} - {".txt"}
"""What begins like a mail and is none where it has such a suffix: a change that git wrote, an example in a text."""


def _reader_of(suffix: str, content: bytes) -> Callable[[bytes], Document] | None:
    """The reader of a file that its bytes tell, or None for text and for what is not read."""
    is_named = suffix in (".eml", ".mht", ".mhtml") and _MAIL_HEAD.match(content)
    if suffix not in _NO_MAIL and not is_named and _MAILBOX_LINE.match(content):
        return mailbox_document
    if is_named or (suffix not in _NO_MAIL and is_mail(content)):
        return mail_document
    if content.lstrip()[:5] == b"%PDF-" or (suffix == ".pdf" and b"%PDF-" in content[:1024]):
        return pdf_document
    return rtf_document if _RTF_START.match(content) else _office_reader(content)


def read_document(name: str, content: bytes) -> Document:
    """The sections of a file, whose name tells no more than its kind; UnreadableError says why there are none.

    What a file is is told from its content first, then from its suffix; text of any other kind is plain text.
    """
    name, content = unpacked(name, content)
    suffix = Path(name).suffix.lower()
    if reader := _reader_of(suffix, content):
        return reader(content)
    try:
        text, guess = decode_text(content)
    except IgnoredError as error:
        if suffix in DOCUMENT_SUFFIXES:
            raise UnreadableError(f"is damaged, or no {suffix[1:].upper()} file") from error
        if suffix in TEXT_READERS:
            raise UnreadableError("holds binary data") from error
        kinds = (kind for kind, start in _UNREAD_STARTS.items() if re.match(start, content, re.DOTALL))
        raise IgnoredError(next(kinds, error.cause)) from error
    if kind := _generated_kind(name, text):
        raise IgnoredError(kind)
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
MAX_NUMBER_CHUNKS = 500  # of a table of numbers: they show what it holds, and no words are left to be found
_RECORDS = (
    "csv",
    "json",
    "jsonl",
    "sheet",
)  # whose sections are records: each says all of itself, so that none overlap
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
    gap = "\n" if extractor in ("html", "docx", "markdown", "epub", "odf", "pptx", "rtf", "subtitles") else "\n\n"
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

    # Markdown is cut along its blocks.
    overlap = 0 if extractor in _RECORDS else CHUNK_OVERLAP
    room = CHUNK_CHARACTERS - max(len(section.header) for section in sections)
    splitter = (MarkdownSplitter if extractor == "markdown" else TextSplitter)(room, overlap=overlap)
    for start, end in _spans(whole, splitter):
        (section, unit, first), (_, _, last) = locate(start), locate(end - 1)
        shown = [f"{at // 3600}:{at // 60 % 60:02}:{at % 60:02}" if unit == "time" else str(at) for at in (first, last)]
        place = f"{unit} {shown[0]}" if first == last else f"{unit}s {'-'.join(shown)}"
        piece, header = whole[start:end], section.header
        if header and not one_line(piece[: MAX_HEADER * 4]).startswith(header.rstrip("…")):
            piece = f"{header}\n{piece}"  # a table that goes on
        yield piece, place if unit else ""


def chunk_limit(document: Document) -> int:
    """How many chunks of a document are taken: MAX_CHUNKS, or few where nine of ten values of its records are numbers."""
    if document.extractor not in _RECORDS:
        return MAX_CHUNKS
    sample = itertools.islice(document.sections, 0, None, max(1, len(document.sections) // 1000))
    values = [line.rpartition(": ")[2] for section in sample for line in section.text[:20_000].splitlines()]
    words = sum(bool(re.search(r"[^\W\d_]{2}", value)) for value in values)
    return MAX_CHUNKS if words * 10 > len(values) else MAX_NUMBER_CHUNKS


def cut_document(document: Document, *, name: str) -> Iterator[Chunk]:
    """The chunks of a document in order, the same text once; what has no heading is titled with the file's name."""
    parts = _without_scraps(document.sections) if document.extractor == "code" else document.sections
    seen: set[str] = set()
    runs = itertools.groupby(parts, key=lambda part: (part.title, bool(part.line), part.place.rpartition(" ")[0]))
    for (title, *_), group in runs:
        heading = shorten(one_line(title) or one_line(Path(name).stem) or one_line(name), MAX_TITLE)
        for piece, place in _pieces(list(group), document.extractor):
            if (text := one_line(piece)) not in seen:
                yield Chunk(piece, heading, place, len(seen), document.extractor)
                seen.add(text)


# ======================================================================================================================
# Extraction
# ======================================================================================================================
# A child process reads and cuts one file after the other, with limits on memory and time and without the environment's
# keys: a hostile file costs its own chunks and nothing else. `command_extract` is what runs in it.


EXTRACT_SECONDS = 60
EXTRACT_MEMORY = 2 << 30  # bytes
MAX_PARTS = 20_000
MAX_PART_DEPTH = 5
"""Documents in one file, such as the mails of a mailbox and what is attached to them, and levels of them."""
EXTRACT_VARIABLES = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME"),
    *("PYTHONPATH", "SHIV_ROOT", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "USERPROFILE"),
)
"""All that the child gets of the environment: what starts it. A file that takes it over finds no key."""


@dataclass(frozen=True)
class Extraction:
    """What a file gave: its chunks, the hash of its bytes and what is `missing`; or why it `failed`, or is `ignored`.

    A mail has a `date`, in seconds since 1970. What a file holds are `parts`, of which `name` says where they lie in it;
    as they are read, one after the other, `more` says that another one follows.
    """

    chunks: tuple[Chunk, ...] = ()
    hash: str = ""
    failed: str = ""
    ignored: str = ""
    missing: str = ""
    date: float | None = None
    name: str = ""
    parts: tuple[Extraction, ...] = ()
    more: bool = False

    @property
    def documents(self) -> tuple[Extraction, ...]:
        """What the file itself gave, and what its parts did."""
        return (self, *self.parts)

    @property
    def count(self) -> int:
        """The number of chunks in all of them."""
        return sum(len(document.chunks) for document in self.documents)


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


def _extract(name: str, read: Callable[[], bytes]) -> tuple[Extraction, tuple[tuple[str, bytes], ...]]:
    """Read and cut a document; return what is wrong with it in the result, and the parts that are still to be read."""
    try:
        refuse_unread(name)
        content = read()
        document = read_document(name, content)
        missing, limit = document.missing, chunk_limit(document)
        chunks = tuple(itertools.islice(cut_document(document, name=name), limit + 1))
        if len(chunks) > limit:
            chunks = chunks[:limit]
            missing = f"gives more than {limit:,} chunks: what follows {chunks[-1].place or 'them'} is left out"
        digest = hashlib.sha256(content).hexdigest()
        return Extraction(chunks, digest, missing=missing, date=document.date), document.parts
    except IgnoredError as error:
        return Extraction(ignored=error.cause), ()
    except UnreadableError as error:
        return Extraction(failed=error.cause), ()
    except MemoryError:
        return Extraction(failed=f"takes more than {EXTRACT_MEMORY >> 30} GB of memory to read"), ()


def extract_file(path: str) -> Iterator[Extraction]:
    """What a file gives, then what its parts do, and theirs: all mails of a mailbox come before what is attached to them."""
    waiting = deque[Any]([("", functools.partial(read_regular, path, MAX_FILE_BYTES), None)])
    parts_left, chunks_left = MAX_PARTS, MAX_CHUNKS
    while waiting:
        place, read, date = waiting.popleft()
        extraction, parts = _extract(os.path.basename(place or path), read)  # noqa: PTH119 - which pathlib may not understand
        date = extraction.date if extraction.date is not None else date
        chunks_left -= len(extraction.chunks)
        room = parts_left if chunks_left >= 0 and place.count("/") < MAX_PART_DEPTH - 1 else 0
        parts_left -= len(parts[:room])
        waiting += (
            (f"{place}/{name}".lstrip("/"), functools.partial(bytes, part), date) for name, part in parts[:room]
        )
        missing = extraction.missing
        if chunks_left < 0:
            waiting.clear()
            missing = f"is the last that is read of a file that gives more than {MAX_CHUNKS:,} chunks"
        elif len(parts) > room:
            missing = f"is read but for {plural(len(parts) - room, 'part')} of it"
        yield replace(extraction, name=place, date=date, missing=missing, more=bool(waiting))


def extract_files(reader: Iterable[bytes], writer: BinaryIO) -> None:
    """Answer each line, a path as JSON, by lines, an Extraction as JSON each, until the input ends."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (EXTRACT_MEMORY, EXTRACT_MEMORY))
    alarm = getattr(signal, "alarm", lambda _seconds: None)
    for line in reader:
        alarm(EXTRACT_SECONDS * 2)  # for a parent that is no longer there to end what hangs
        for extraction in extract_file(json.loads(line)):
            writer.write(json.dumps(asdict(extraction)).encode() + b"\n")
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
        """What a file gives; a failure of the child is one of the file, or of those parts that were not read yet."""
        import subprocess

        self.child = self.child or subprocess.Popen(  # noqa: S603 - our own command, and paths go through its input
            self.command,
            env={name: value for name, value in self.environ.items() if name in EXTRACT_VARIABLES},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        child = self.child

        read: list[Extraction] = []

        def exchange() -> bool:
            with contextlib.suppress(OSError):  # a child that is gone leaves nothing to read
                child.stdin.write(json.dumps(os.fspath(path)).encode() + b"\n")
                child.stdin.flush()
            while (answer := child.stdout.readline()).endswith(b"\n"):
                fields = json.loads(answer)
                read.append(Extraction(tuple(Chunk(**chunk) for chunk in fields.pop("chunks", ())), **fields))
                if not read[-1].more:
                    return True
            return False

        try:
            if lancelot.bounded(exchange, seconds=self.seconds, name="the reading of a file"):
                return replace(read[0], parts=tuple(read[1:]))
            code = child.wait(timeout=10)
            reason = f"ended the process that read it ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
            if code == -signal.SIGABRT:  # how Rust ends where it gets no memory
                reason = (
                    f"takes more than {EXTRACT_MEMORY >> 30} GB of memory to read, or breaks the library that reads it"
                )
        except (TimeoutError, subprocess.TimeoutExpired):
            reason = f"takes longer than {self.seconds:g} s to read"
        self.__exit__()
        if not read:
            return Extraction(failed=reason)
        return replace(read[0], parts=tuple(read[1:]), missing=f"is read in part: the rest {reason}")


def command_extract() -> int:
    """`extract`, which no person calls: the child process of an Extractor, until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the work when a person stops it
    reader, writer = lancelot.take_stdio()
    extract_files(reader, writer.buffer)
    return 0
