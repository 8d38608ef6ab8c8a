"""Makes a LanceDB table from a folder of files: the command `index`. `lancelot_reading` reads the files for it.

This is the only module that writes to a database. The server never loads it: its tool `lancedb_index` starts the
command as a child.

Sections, in order; each uses the ones above it and none below:

Finding    which files of a folder are indexed
Embedding  many texts to vectors, while the server is busy or fails
Table      the rows, columns and indexes of a table of files
Run        folders into one table: what changed is read, embedded and written
Watching   when a run is due, while files change
Commands   `index` and its options
"""

from __future__ import annotations

import argparse
import array
import codecs
import concurrent.futures
import contextlib
import datetime as dt
import errno
import functools
import hashlib
import itertools
import os
import re
import signal
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lancelot
from lancelot import (
    PROGRAM,
    LancelotError,
    Session,
    compact_json,
    embedded_text,
    listed,
    one_line,
    plural,
    reason_of,
    shorten,
)
from lancelot_reading import (
    ADVICE,
    MAX_FILE_BYTES,
    Extraction,
    Extractor,
    UnreadableError,
    open_without_links,
    read_regular,
)

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

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


def path_of(name: str) -> Path:
    """The path that a source_name stands for."""
    if not os.path.lexists(name):
        raw = re.sub(rb"\\x([0-9a-f]{2})", lambda byte: bytes.fromhex(byte[1].decode()), os.fsencode(name))
        if os.path.lexists(raw):
            return Path(os.fsdecode(raw))
    return Path(name)


def is_part_of(root: Path) -> Callable[[str], bool]:
    """Return a test of whether a source is a file or lies below a folder, by their names."""
    name = source_name(root)
    prefix = name.rstrip(os.sep) + os.sep
    return lambda source: source.startswith(prefix) or source == name


def owner_of(source: str, roots: Container[str]) -> str | None:
    """The innermost of these folders and files that a source is part of, or None."""
    while source not in roots:
        inner, source = source, os.path.dirname(source)  # noqa: PTH120 - of many thousands, and a Path takes ten times as long
        if source == inner:
            return None
    return source


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

    A root that is a file is found whatever its name is. Folders named in `apart` are left to runs of their own. With `within`, a folder above it, the way from there must not be hidden or ignored, and the ignore files on it hold.
    `ignored` counts files and whole folders by the reason; `failed` says by name why one could not be looked at.
    """

    root: Path
    within: Path | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    apart: Container[str] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    files: list[FoundFile] = field(default_factory=list, init=False)
    folders: set[str] = field(default_factory=set, init=False)
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
        if self.root.is_file():
            self._add(self.root, self.root.stat())
            return self
        relative = self._way
        while self._waiting and not self.stop.is_set():
            relative, patterns, included = self._waiting.pop()
            folder = self._top / relative
            self.folders.add(source_name(folder))
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

    def _add(self, path: Path, state: os.stat_result) -> None:
        self.files.append(FoundFile(path, source_name(path), state.st_size, state.st_mtime))

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
                "indexed by itself": is_folder and source_name(path) in self.apart,
            }
            if reason := next((reason for reason, holds in against.items() if holds), None):
                self.ignored[reason] += 1
            elif is_folder:
                self._waiting.append((name, patterns, included))
            else:
                self._add(path, entry.stat(follow_symlinks=False))
        except OSError as error:
            self.failed[source_name(path)] = f"it cannot be looked at ({reason_of(error)})"

    def covers(self, name: str) -> bool:
        """Return whether a folder was walked, or a file found."""
        return name in self.folders or any(file.source == name for file in self.files)

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
Roots = dict[str, dict[str, Any]]
"""Each folder or single file that runs were over, with its patterns (`include`, `exclude`) and when it was last `run` over."""
PATTERN_KINDS = ("include", "exclude")
RUN_NOTED_SECONDS = 3600
"""A run that changes nothing notes its time no more often than this, since that makes a new version of the table."""
Known = dict[str, dict[str, Any]]
"""Of each source in a table its `content_hash`, `modified_at`, `extractor`, SIZE_COLUMN if the table has that, `count_all`
chunks, and when it was indexed (`indexed_at_max`)."""


def count_chunks(known: Known) -> int:
    """Return how many chunks a table holds of these sources."""
    return sum(row["count_all"] for row in known.values())


def part_of(known: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return what is known of a folder or file that need not exist: by its name as given, else by its name without links."""
    # A folder that was moved may have left a link behind: what is meant is the old name.
    for name in (root.absolute(), Path(os.path.realpath(root))):
        is_part = is_part_of(name)
        if part := {source: row for source, row in known.items() if is_part(source)}:
            return part
    return {}


def by_file(known: Known, files: Iterable[FoundFile]) -> Known:
    """Return what is known by file: with the chunks of all that lies in it in `parts`, by source; mails make it `dated`."""
    found, whole = {file.source for file in files}, Known()
    for source, row in known.items():
        outer = (source[:at] for at, letter in enumerate(source) if letter == os.sep and source not in found)
        owner = next((name for name in outer if name in found or name in known), source)
        file = whole.setdefault(owner, row | {"count_all": 0, "parts": {}, "dated": False})
        file["count_all"] += row["count_all"]
        file["parts"][source] = row["count_all"]
        file["dated"] |= row["extractor"] == "mail"
    return whole


def chunk_id(source: str, index: int) -> str:
    """The id of a chunk: the same in every run and on every machine that knows the source by this name."""
    return hashlib.sha256(f"{source}\0{index}".encode()).hexdigest()[:32]


def moment_of(seconds: float) -> dt.datetime:
    """A time since 1970, within what a time stamp holds: file systems and mails can hold other times."""
    return dt.datetime.fromtimestamp(min(max(seconds, 0.0), 253_402_300_799.0), dt.timezone.utc)


def chunk_schema() -> pa.Schema:
    """The columns of a table of chunks without its vectors, and the mark by which it is known again."""
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    names = ("id", "text", "title", "chunkSource", "file_name", "file_type", "chunk_index", "place", "extractor")
    kinds: dict[str, Any] = dict.fromkeys((*names, "content_hash"), pa.string())
    kinds |= {"chunk_index": pa.int32(), "modified_at": moment, "indexed_at": moment, SIZE_COLUMN: pa.int64()}
    notes: dict[str, Any] = {"chunkSource": {lancelot.ROOTS_METADATA: b"{}"}}
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
        wanted = ("chunkSource", "content_hash", "modified_at", "extractor", SIZE_COLUMN)
        columns = [name for name in wanted if name in self._table.schema.names]
        grouped = self.rows(*columns, "indexed_at").group_by(columns)
        return {
            row["chunkSource"]: row for row in grouped.aggregate([([], "count_all"), ("indexed_at", "max")]).to_pylist()
        }

    def noted_roots(self) -> Roots:
        """The folders and files that are noted as runs were over them."""
        noted = (self._table.schema.field("chunkSource").metadata or {}).get(lancelot.ROOTS_METADATA, b"")
        roots = lancelot.parse_json_object(noted.decode(errors="replace")) or {}
        kinds = dict.fromkeys(PATTERN_KINDS, list) | {"run": str}
        return {
            name: {key: value for key, value in root.items() if isinstance(value, kinds.get(key, ()))}
            for name, root in roots.items()
            if isinstance(root, dict)
        }

    def note_roots(self, roots: Roots) -> None:
        """Note the folders and files of runs in the place of those that were noted."""
        self._set_metadata("chunkSource", lancelot.ROOTS_METADATA, compact_json(roots))

    def roots(self, known: Known) -> Roots:
        """The folders and files that it was made of: those noted and, for what an earlier version indexed, topmost folders.

        Of files outside those noted, a folder counts that holds one of them itself: so nothing is indexed that never was.
        """
        roots = self.noted_roots()
        for folder in sorted({os.path.dirname(source) for source in known if owner_of(source, roots) is None}):  # noqa: PTH120
            if owner_of(folder, roots) is None:
                roots[folder] = {}
        return roots

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
    def replace(
        self, files: Sequence[tuple[FoundFile, Extraction]], old: Sequence[str] = (), *, keep_vectors: bool = True
    ) -> None:
        """Put files in the place of these old sources and their own, in one commit; texts that stay can keep their vectors.

        Without old sources, the table must have nothing of the files.
        """
        import pyarrow as pa

        now, vectors = dt.datetime.now(dt.timezone.utc), {}
        theirs = any_of("chunkSource", {*old, *(file.source for file, _ in files)})
        if self.length and keep_vectors and old:
            kept = self.rows("text", *lancelot.EMBEDDED_NAMES, VECTOR_COLUMN, where=theirs).to_pylist()
            vectors = {embedded_text(row["text"], row): row[VECTOR_COLUMN] for row in kept if row[VECTOR_COLUMN]}
        rows: list[dict[str, Any]] = [
            {
                **vars(chunk),  # its text, title, place and extractor
                "id": chunk_id(source_name(path), chunk.index),
                "chunkSource": source_name(path),
                "file_name": source_name(path.name),
                "file_type": source_name(path.suffix).lower(),
                "chunk_index": chunk.index,
                "content_hash": extraction.hash,
                "modified_at": moment_of(file.modified if document.date is None else document.date),
                "indexed_at": now,
                SIZE_COLUMN: file.size,
            }
            for file, extraction in files
            for document in extraction.documents
            for path in [file.path / document.name]
            for chunk in document.chunks
        ]
        for row in rows:
            row[VECTOR_COLUMN] = vectors.get(embedded_text(row["text"], row))
        if self.length and not all(row[VECTOR_COLUMN] for row in rows):
            self._set_metadata(VECTOR_COLUMN, lancelot.COMPLETE_METADATA, "no")
        made = pa.Table.from_pylist(rows, schema=self._table.schema)
        if old:
            self._put(made, instead_of=theirs)
        else:  # a merge takes time that grows with the table
            self._table.add(made, on_bad_vectors="null")

    def _put(self, rows: pa.Table, *, instead_of: str) -> None:
        """Put rows in the place of those that meet a condition, in one commit."""
        merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge = merge.when_not_matched_by_source_delete(instead_of)
        merge.execute(rows, on_bad_vectors="null")

    @_writing
    def rename(self, sources: Mapping[str, str]) -> None:
        """Give sources other names, in one commit, with all that the table has of them."""
        import pyarrow as pa

        theirs = any_of("chunkSource", sources)
        rows = self.rows(*self._table.schema.names, where=theirs)
        places = [
            (sources[row["chunkSource"]], row["chunk_index"])
            for row in rows.select(["chunkSource", "chunk_index"]).to_pylist()
        ]
        columns: dict[str, list[Any]] = {
            "chunkSource": [source for source, _ in places],
            "id": list(itertools.starmap(chunk_id, places)),
        }
        if any(os.path.basename(old) != os.path.basename(new) for old, new in sources.items()):  # noqa: PTH119 - of any name
            # Titles may come from the name of a file: the next run reads it.
            columns |= {"content_hash": [""] * len(rows), "modified_at": [None] * len(rows)}
        for name, column in columns.items():
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), pa.array(column, rows.schema.field(at).type))
        self._put(rows, instead_of=theirs)

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
MAX_KINDS_SHOWN = 20
MAX_CHANGES_SHOWN = 20


@dataclass(frozen=True)
class IndexRequest:
    """What a person wants indexed, into which table of which folder, and how.

    `folders` are folders or single files; none stand for all that the table was made of.
    """

    folders: Sequence[Path]
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


class FolderError(LancelotError):
    """What is wrong with one folder: a run over several goes on with the others."""


def shown_name(path: Path) -> str:
    """A path for a sentence."""
    return one_line(source_name(path))


def resolve_root(folder: Path, request: IndexRequest, known: Known) -> Path:
    """Return a folder or file without links on its way, or a known file that was deleted; FolderError if there is none."""
    name = shown_name(folder)
    moved = f"If it was moved, `{PROGRAM} index --moved {name} NEW` points the table to its new place"
    try:
        root = folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        with contextlib.suppress(OSError):
            if source_name(folder) in known and any(folder.parent.iterdir()):  # else its disk may be missing
                return folder
        cause, remedy = f"{name} cannot be opened ({reason_of(error)})", "Name a folder or file that exists."
        with contextlib.suppress(ValueError):
            if part := part_of(known, folder):
                cause += f"; the table {request.table} keeps {plural(len(part), 'file')} of it"
                remedy = f"{moved}; if it was deleted, `{PROGRAM} index --forget {name}` takes them out."
        raise FolderError(f"{cause}.", remedy) from error
    if not request.folders and root != folder:
        raise FolderError(f"{name} is a link to {shown_name(root)} now.", f"{moved}.")
    if request.within and root.is_file():
        raise FolderError(f"{name} is no folder.", "Name the folder that it lies in.")
    if request.within and not root.is_relative_to(request.within):
        cause = f"The folder {name} is not inside {one_line(str(request.within))}: a link leads out."
        raise FolderError(cause, "Name a folder inside by a path without links.")
    return root


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


def open_known(request: IndexRequest) -> tuple[ChunkTable, Known]:
    """Open the table for a change to what it holds of a folder or file; LancelotError if that is nothing."""
    table, (root, *_) = ChunkTable.open(request.database, request.table), request.folders
    if table and (part := part_of(table.noted_roots() | table.known(), root)):
        return table, {source: row for source, row in part.items() if "count_all" in row}
    cause = f"The table {request.table} of {request.database} holds nothing of {shown_name(root)}."
    raise LancelotError(cause, f"`{PROGRAM} index --list` lists what it was made of.")


def forget_folder(request: IndexRequest) -> Known:
    """Take a folder or file out of the table; return what that was, or in a dry run would be."""
    table, known = open_known(request)
    if not request.dry_run:
        with write_lock(request.database):
            noted = table.noted_roots()
            table.note_roots({name: noted[name] for name in noted.keys() - part_of(noted, request.folders[0])})
            if known:
                table.remove(known)
            table.note_vectors()
    return known


def move_folder(request: IndexRequest, place: Path) -> Known:
    """Point what the table holds of a folder or file to its new place; return what that was, or in a dry run would be."""
    table, known = open_known(request)
    root, new = request.folders[0], source_name(resolve_root(place, request, {}))
    if not any(map(is_part_of(root), known)):
        root = Path(os.path.realpath(root))

    def renamed(name: str) -> str:
        return new + name[len(source_name(root).rstrip(os.sep)) :] if is_part_of(root)(name) else name

    if not request.dry_run:
        with write_lock(request.database):
            table.note_roots({renamed(name): entry for name, entry in table.noted_roots().items()})
            there, batch, chunks = table.known(), dict[str, str](), 0
            if known_twice := [source for source in known if renamed(source) in there]:
                table.remove(known_twice)
            for source in known.keys() - known_twice:
                batch[source] = renamed(source)
                chunks += known[source]["count_all"]
                if chunks >= BATCH_CHUNKS:
                    table.rename(batch)
                    batch, chunks = {}, 0
            if batch:
                table.rename(batch)
            table.make_indexes(None)
    return known


def hash_file(path: Path) -> str:
    """The SHA-256 of a file's content in hexadecimal, or "" if it cannot be read: the extractor says why."""
    with contextlib.suppress(UnreadableError):
        return hashlib.sha256(read_regular(path, MAX_FILE_BYTES)).hexdigest()
    return ""


Report = Callable[[str, int, int, str], None]


@dataclass
class IndexRun:
    """One run over folders and files, which can be stopped between two commits, and what it did.

    `report` gets what is being done ("files", "indexes", "vectors"), how many are done, of how many, and more in words.
    `roots` are the folders and files, `new`, `updated` and `removed` sources, `kinds` count by suffix the roots' `files` and
    `chunks` in the table and what `failed`, `model` is the one of its vectors; `left_out` names the kind of each file that
    there is no reader for, and `partial` says that not all could be looked at.
    """

    request: IndexRequest
    embedder: BulkEmbedder
    extractor: Extractor
    report: Report = lambda *_: None
    stop: threading.Event = field(default_factory=threading.Event)
    roots: list[Path] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unchanged: int = 0
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    without_vector: int = 0
    model: str | None = None
    ignored: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    partial: bool = False
    _listings: list[FileFinder] = field(default_factory=list)
    _files: list[FoundFile] = field(default_factory=list)
    _covered: set[str] = field(default_factory=set)
    _known: Known = field(default_factory=dict)
    _touched: list[tuple[str, dt.datetime, int]] = field(default_factory=list)

    @property
    def chunks(self) -> int:
        """The chunks of the folders and files in the table."""
        return sum(kind["chunks"] for kind in self.kinds.values())

    @property
    def name(self) -> str:
        """The folders and files for a sentence."""
        return listed(map(source_name, self.roots), limit=5)

    def run(self, *, confirm: Callable[[str], bool] = lambda _message: False) -> IndexRun:
        """Bring the table up to date with the folders; a dry run only finds out what that would be.

        `confirm` gets a sentence where more than half of the table would go, and says whether that is meant.
        """
        started, request = time.monotonic(), self.request
        # What is refused is refused before anything is made in the folder.
        self._list_files(ChunkTable.open(request.database, request.table))
        if not self.stop.is_set():
            with contextlib.nullcontext() if request.dry_run else write_lock(request.database):
                table = ChunkTable.open(request.database, request.table, create=not request.dry_run)
                self._check_removal(table.known() if table else {}, confirm)
                self.embedder.choose(table.model if table else None, force=request.force)
                if table and not request.dry_run:
                    self._update_table(table)
                else:
                    self._index_files(None)
            self.notes += self.embedder.notes
        self.seconds = time.monotonic() - started
        return self

    def _list_files(self, table: ChunkTable | None) -> None:
        """List the files of each folder that is named, and of those inside that are kept by themselves.

        These are folders that the one around them leaves out, or that have patterns of their own.
        """
        request, problems, named = self.request, list[FolderError](), dict[str, Path]()
        noted = table.noted_roots() if table else {}
        known = table.known() if table and not (request.folders and all(map(os.path.exists, request.folders))) else {}
        for folder in request.folders or map(path_of, table.roots(known) if table else ()):
            try:
                root = resolve_root(folder, request, known)
                named[source_name(root)] = root
            except FolderError as error:  # noqa: PERF203 - of a few
                problems.append(error)
        self.roots = list(named.values())
        parts = {name for root in self.roots for name in part_of(noted, root)}
        for name in sorted(named.keys() | parts):  # what lies around another comes first
            root = named.get(name) or path_of(name)
            around = [listing for listing in self._listings if is_part_of(listing.root)(name)]
            if any(listing.covers(name) for listing in around) or (around and not os.path.lexists(root)):
                self._covered.add(name)
                continue
            try:
                self._listings.append(self._list_root(root, noted, is_named=name in named))
            except FolderError as error:
                problems.append(error)
        self._tell(problems)
        self._files = sorted(
            {file.source: file for listing in self._listings for file in listing.files}.values(),
            key=lambda file: file.source,
        )
        for listing in self._listings:
            self.ignored += listing.ignored
            self.failed |= listing.failed
            self.notes += listing.notes
        if self.failed:
            self.partial = True
            self.notes.append("Not all of the folder could be looked at: what the table holds of the rest stays.")

    def _tell(self, problems: Sequence[FolderError]) -> None:
        """Note what is wrong with folders, or raise it if no other folder is left."""
        if not self._listings:
            cause = f"The table {self.request.table} knows no folder yet."
            raise problems[0] if problems else LancelotError(cause, "Name the folders or files to index.")
        self.partial = self.partial or bool(problems)
        self.notes += map(str, problems)

    def _list_root(self, root: Path, noted: Roots, *, is_named: bool) -> FileFinder:
        """The files of a folder, by the patterns that are asked for, else by those of its last run.

        FolderError if the folder cannot be listed, or if patterns leave no file, which is hardly meant.
        """
        request, name = self.request, source_name(root)
        patterns = {kind: getattr(request, kind) if is_named else () for kind in PATTERN_KINDS}
        if not any(patterns.values()) and not (is_named and request.no_patterns):
            patterns = {kind: list(map(str, noted.get(name, {}).get(kind, ()))) for kind in PATTERN_KINDS}
            if shown := [f"--{kind} '{one_line(value)}'" for kind, some in patterns.items() for value in some]:
                of = f" over {shown_name(root)}" if len(self.roots) > 1 else ""
                self.notes.append(
                    f"The patterns of the last run{of} hold: {listed(shown)}. --no-patterns forgets them."
                )
        apart = {other for other in part_of(noted, root) if other != name and any(map(noted[other].get, PATTERN_KINDS))}
        within = request.within if is_named else None
        listing = FileFinder(root, within=within, apart=apart, stop=self.stop, **patterns)
        if not os.path.lexists(root):  # a file that was deleted
            return listing
        if reason := listing.find().failed.get(name):
            cause = f"{shown_name(root)} was not indexed, since {reason}."
            raise FolderError(cause, "See to its rights and its disk; what the table holds of it stays.")
        if listing.include and not listing.files and not self.stop.is_set():
            cause = f"No file of {shown_name(root)} matches {listed(listing.include)}."
            raise FolderError(cause, "Give --include a pattern as in .gitignore, such as '*.md', or --no-patterns.")
        return listing

    def _gone(self, known: Known, kept: set[str]) -> Known:
        """Return what the table holds of files that are gone, or nothing if the run was stopped before it saw all."""
        every = {} if self.stop.is_set() else known
        missing = {source: row for source, row in every.items() if source not in kept}
        return {source: row for source, row in missing.items() if not any(at.may_hold(source) for at in self._listings)}

    def _check_removal(self, every: Known, confirm: Callable[[str], bool]) -> None:
        """Refuse to take out all of a folder or more than half of the table, unless that is meant."""
        request, gone, problems = self.request, Known(), list[FolderError]()
        every = by_file(every, self._files)
        kept = {file.source for file in self._files if file.size}
        for listing in self._listings[:]:
            part = part_of(every, listing.root)
            missing = self._gone(part, kept)
            if listing.files or source_name(listing.root) in every:
                gone |= missing
            elif missing and not request.force_empty:  # a disk that is not there looks like that
                cause = f"There is no file to index in {shown_name(listing.root)}, and the table {request.table} holds "
                cause += f"{plural(len(part), 'file')} of it, which stay there."
                problems.append(FolderError(cause, "See whether its disk is mounted; --force-empty takes them out."))
                self._listings.remove(listing)
                continue
            self._known |= part
        self._tell(problems)

        def is_most(sources: Known) -> bool:
            return len(sources) * 2 > len(every) or count_chunks(sources) * 2 > count_chunks(every)

        if is_most(gone):  # files that were renamed are not lost
            new = {hash_file(file.path) for file in self._files if file.source not in every}
            gone = {source: row for source, row in gone.items() if row["content_hash"] not in new}
        if is_most(gone):
            message = (
                f"This run would take {len(gone):,} of {plural(len(every), 'file')} out of the table {request.table}, "
                f"since they are gone from {self.name}, or left out by a pattern."
            )
            if request.dry_run:
                self.notes.append(f"{message} It asks first, or needs --yes.")
            elif not confirm(message):
                raise LancelotError(message, f"Nothing was changed; run `{PROGRAM} index` with --yes if that is meant.")

    def _note_roots(self, table: ChunkTable) -> None:
        """Note the folders of this run, with their patterns and its time, in the place of those that they cover."""
        now = dt.datetime.now(dt.timezone.utc)
        due, noted = (now - dt.timedelta(seconds=RUN_NOTED_SECONDS)).isoformat(), table.noted_roots()
        for listing in self._listings:
            name, patterns = source_name(listing.root), {kind: getattr(listing, kind) for kind in PATTERN_KINDS}
            last = str(noted.get(name, {}).get("run", ""))
            run = last if last > due else now.isoformat(timespec="seconds")
            noted[name] = {"run": run} | {kind: some for kind, some in patterns.items() if some}
            if not os.path.lexists(listing.root):
                self._covered.add(name)
        table.note_roots({name: root for name, root in noted.items() if name not in self._covered})

    def _update_table(self, table: ChunkTable) -> None:
        """Write what changed, then the vectors that are missing; by force those of another model are made anew."""
        embedder, model = self.embedder, self.embedder.server.model
        self._note_roots(table)
        if embedder.works and (self.request.force or not table.length):
            length = embedder.length_of(model)
            if length and (model, length) != (table.model, table.length):
                table.add_column(vector_field(model, length))
        self._index_files(table)
        if not self.stop.is_set():
            if self._touched:
                table.update(("id", "modified_at", SIZE_COLUMN), self._touched)
            self.report("indexes", 0, 1, "")
            table.make_indexes(self.request.language)
            if table.length:
                self._fill_in_vectors(table)
        self.model = table.model
        tests = [is_part_of(root) for root in self.roots]
        self.without_vector = sum(any(test(source) for test in tests) for source in table.note_vectors())

    def _index_files(self, table: ChunkTable | None) -> None:
        """Bring in every file that is new or changed, and take out those that are gone; without a table only count."""
        kept: set[str] = set()
        chunks = {source: row["count_all"] for source, row in self._known.items()}

        def write(batch: Sequence[tuple[FoundFile, Extraction]]) -> None:
            if table and batch:
                old = [source for file, _ in batch for source in self._known.get(file.source, {}).get("parts", ())]
                table.replace(batch, old, keep_vectors=not (self.request.force and self.embedder.works))
            for file, extraction in batch:
                (self.updated if file.source in self._known else self.new).append(file.source)
                chunks[file.source] = extraction.count

        with concurrent.futures.ThreadPoolExecutor(1) as writer:
            written = writer.submit(write, ())
            for batch in self._batches(self._files, kept):  # which is read while the one before is written
                written.result()
                written = writer.submit(write, batch)
            written.result()
        if (gone := self._gone(self._known, kept)) and table:
            table.remove(source for row in gone.values() for source in row["parts"])
        self.removed = sorted(gone)
        kinds: dict[str, Counter[str]] = {}
        rows = [(source, {"files": 1, "chunks": count}) for source, count in chunks.items() if source not in gone]
        for source, counts in [*rows, *((source, {"failed": 1}) for source in self.failed)]:
            kinds.setdefault(Path(source).suffix.lower() or "without a suffix", Counter()).update(counts)
        self.kinds = dict(sorted(kinds.items(), key=lambda kind: (-kind[1]["files"], kind[0])))

    def _batches(self, files: Sequence[FoundFile], kept: set[str]) -> Iterator[list[tuple[FoundFile, Extraction]]]:
        """Read what is new or changed, as much at a time as one commit takes in; add to `kept` what is not to be removed."""
        batch: list[tuple[FoundFile, Extraction]] = []
        started, size, read, chunks = time.monotonic(), sum(file.size for file in files) / 1e6, 0.0, 0
        for position, file in enumerate(files):
            if self.stop.is_set():
                break
            pace = chunks / max(time.monotonic() - started, 1)
            done = f"{read:,.1f} of {size:,.1f} MB, {pace:,.0f} chunks/s, at {one_line(file.path.name)}"
            self.report("files", position, len(files), done)
            extraction = Extraction() if self._is_unchanged(file) else self.extractor.extract(file.path)
            read, chunks = read + file.size / 1e6, chunks + extraction.count
            for document in extraction.documents:
                source = source_name(file.path / document.name)
                if document.ignored:
                    self.ignored[document.ignored] += 1
                    self.left_out[source] = document.ignored
                if problem := document.failed or document.missing:
                    self.failed[source] = problem
            if extraction.ignored:
                continue
            kept.add(file.source)
            if extraction.hash:
                batch.append((file, extraction))
            if sum(one.count for _, one in batch) >= BATCH_CHUNKS or len(batch) >= BATCH_FILES:
                yield batch
                batch = []
        if batch:
            yield batch

    def _is_unchanged(self, file: FoundFile) -> bool:
        """Return whether the table holds the file as it is; where only its size or time differs, its content is compared."""
        known = self._known.get(file.source)
        if known is None or self.request.force:
            return False
        state = (moment_of(file.modified), file.size)
        if (known["modified_at"], known.get(SIZE_COLUMN)) != state:
            if known["content_hash"] != hash_file(file.path):
                return False
            if not known["dated"]:
                ids = (chunk_id(file.source, index) for index in range(known["count_all"]))
                self._touched += [(identity, *state) for identity in ids]
        self.unchanged += 1
        return True

    def _fill_in_vectors(self, table: ChunkTable) -> None:
        """Embed the chunks that have no vector, also those of earlier runs: without a key, or while a server failed."""
        missing = table.rows("id", where=f"{VECTOR_COLUMN} IS NULL")["id"].to_pylist()
        done = 0

        def report(more: int) -> None:
            self.report("vectors", done + more, len(missing), "")

        for done in range(0, len(missing), BATCH_CHUNKS):
            if not self.embedder.works or self.stop.is_set():
                return
            report(0)
            where = any_of("id", missing[done : done + BATCH_CHUNKS])
            rows = table.rows("id", "text", *lancelot.EMBEDDED_NAMES, where=where).to_pylist()
            named = {row["id"]: embedded_text(row["text"], row) for row in rows}
            texts = list(dict.fromkeys(named.values()))
            made = self.embedder.embed(texts, model=table.model or self.embedder.server.model, report=report)
            if lengths := {len(vector) for vector in made if vector} - {table.length}:
                change = f"vectors of length {max(lengths)} now, and those of the table have {table.length}"
                self.embedder.failure = f"{table.model} gives {change}; --force makes all of them anew."
            vectors = {text: one for text, one in zip(texts, made, strict=True) if one and len(one) == table.length}
            filled = [(identity, vectors[text]) for identity, text in named.items() if text in vectors]
            if filled:
                table.update(("id", VECTOR_COLUMN), filled)
        if missing and not self.stop.is_set():
            table.make_indexes(self.request.language)


def index_object(run: IndexRun) -> dict[str, Any]:
    """What a run did, for a program or a model, with MAX_FAILED_SHOWN of the files that failed at most.

    A dry run names each file that would change.
    """
    failed = [
        {"path": one_line(source), "reason": shorten(one_line(reason), 200)}
        for source, reason in itertools.islice(sorted(run.failed.items()), MAX_FAILED_SHOWN)
    ]
    folders = list(map(source_name, run.roots))
    answer = {
        "totalFiles": len(run.new) + len(run.updated) + run.unchanged,
        "newFiles": len(run.new),
        "updatedFiles": len(run.updated),
        "skippedFiles": run.unchanged,
        "removedFiles": len(run.removed),
        "ignoredFiles": run.ignored.total(),
        "failedFiles": len(run.failed),
        "totalChunks": run.chunks,
        "chunksWithoutVector": run.without_vector,
        "durationSeconds": round(run.seconds, 2),
        **({"folder": folders[0]} if len(folders) == 1 else {"folders": folders}),
        "table": run.request.table,
        "database": source_name(run.request.database),
        "dryRun": run.request.dry_run,
        "stopped": run.stop.is_set(),
    }
    kinds = dict(itertools.islice(run.kinds.items(), MAX_KINDS_SHOWN))
    others = {"kinds": kinds, "embeddingModel": run.model, "ignored": run.ignored, "failed": failed, "notes": run.notes}
    changes = {"new": run.new, "updated": run.updated, "removed": run.removed} if run.request.dry_run else {}
    return answer | changes | {name: value for name, value in others.items() if value}


def change_lines(run: IndexRun, *, limit: int | None = None) -> list[str]:
    """A line for each file that a run brought in, replaced or took out, up to `limit` of each kind."""
    lines: list[str] = []
    for kind, sources in (("new", run.new), ("updated", run.updated), ("removed", run.removed)):
        lines += [f"{kind}: {one_line(source)}" for source in sources[:limit]]
        if len(sources) > len(sources[:limit]):
            lines.append(f"{kind}: {len(sources) - len(sources[:limit]):,} more, which --verbose names")
    return lines


def left_out(run: IndexRun) -> dict[str, str]:
    """Of each file that a run left out for what it is, its kind and what to do to have it read, if anything."""
    return {
        source: f"{kind}: {advice}" if (advice := ADVICE.get(kind)) else kind
        for source, kind in sorted(run.left_out.items())
    }


def kind_line(name: str, counts: Mapping[str, int]) -> str:
    """How many files, chunks and failures there are of a kind."""
    failed = f", {counts['failed']:,} not read" if counts["failed"] else ""
    return f"{counts['files']:,} {name} ({plural(counts['chunks'], 'chunk')}{failed})"


def index_lines(run: IndexRun, *, verbose: bool = False) -> str:
    """What a run did, for a person: one line, then why files were left out, and each that could not be read."""
    request = run.request
    did = "Would index" if request.dry_run else "Stopped indexing" if run.stop.is_set() else "Indexed"
    counts = (
        f"{len(run.new):,} new, {len(run.updated):,} updated, {run.unchanged:,} unchanged, {len(run.removed):,} removed"
    )
    files = f"{plural(len(run.new) + len(run.updated) + run.unchanged, 'file')} ({counts})"
    model = f", vectors by {run.model}" if run.model else ""
    chunks = f"{plural(run.chunks, 'chunk')} in {run.seconds:.1f} s{model}"
    lines = [f"{did} {run.name} into the table {request.table} of {request.database}: {files}, {chunks}"]
    if verbose or request.dry_run:
        lines += change_lines(run, limit=None if verbose else MAX_CHANGES_SHOWN)
    if len(run.kinds) > 1:
        kinds = (kind_line(name, counts) for name, counts in run.kinds.items())
        lines.append(f"kinds: {listed(kinds, limit=MAX_KINDS_SHOWN)}")
    if 0 < run.without_vector < run.chunks:
        lines.append(f"without a vector: {plural(run.without_vector, 'chunk')}")
    if run.ignored:
        reasons = listed(f"{count:,} {reason}" for reason, count in sorted(run.ignored.items()))
        lines.append(f"left out: {reasons}{'; --verbose names the files' if run.left_out and not verbose else ''}")
    if verbose:
        lines += [f"left out: {one_line(source)}: {why}" for source, why in left_out(run).items()]
    lines += [f"note: {note}" for note in run.notes]
    lines += [f"not read: {one_line(source)}: {reason}" for source, reason in sorted(run.failed.items())]
    return "\n".join(lines)


def list_roots(request: IndexRequest) -> list[dict[str, Any]]:
    """The folders and files that a table was made of, each with its files and chunks and when it was last indexed."""
    if not (table := ChunkTable.open(request.database, request.table)):
        return []
    roots = table.roots(known := by_file(table.known(), ()))
    parts: dict[str, Known] = {name: {} for name in roots}
    for source, row in known.items():
        parts[owner_of(source, parts) or source][source] = row
    return [
        {
            "folder": name,
            "files": len(part),
            "chunks": count_chunks(part),
            "lastRun": max(
                str(roots[name].get("run", "")),
                *(row["indexed_at_max"].isoformat(timespec="seconds") for row in part.values()),
                "",
            ),
            **{kind: some for kind in PATTERN_KINDS if (some := roots[name].get(kind))},
            **({} if path_of(name).exists() else {"missing": True}),
        }
        for name, part in sorted(parts.items())
    ]


def roots_lines(roots: Sequence[Mapping[str, Any]]) -> str:
    """The folders and files of a table for a person."""
    lines = [f"{'files':>7} {'chunks':>8}  {'last run':16}  folder"]
    for root in roots:
        last = str(root["lastRun"])
        with contextlib.suppress(ValueError):
            last = f"{dt.datetime.fromisoformat(last).astimezone():%Y-%m-%d %H:%M}"
        patterns = [f"--{kind} '{value}'" for kind in PATTERN_KINDS for value in root.get(kind, ())]
        rest = one_line(" ".join([*patterns, *["(not there now)"] * root.get("missing", False)]))
        lines.append(
            f"{root['files']:7,} {root['chunks']:8,}  {last[:16]:16}  {one_line(root['folder'])}  {rest}".rstrip()
        )
    return "\n".join(lines)


# ======================================================================================================================
# Watching
# ======================================================================================================================
# What happened to a file says no more than over which folders a run is to be: the run finds out the rest, as any other does.
# It waits until files have come to rest. The lock is held during a run alone.


REST_SECONDS = 1.0
BUSY_SECONDS = 30.0
AGAIN_SECONDS = 60.0
"""A run waits until nothing changed for the first of these, but no longer than for the second. After the third a run that
failed is made again, and it is seen which folders there are."""


def state_of(root: Path) -> tuple[int, ...]:
    """What differs after a single file was changed, or another folder has taken the place of one; () if there is none."""
    try:
        state = root.stat(follow_symlinks=False)
    except OSError:
        return ()
    return (state.st_dev, state.st_ino, *((state.st_size, state.st_mtime_ns) if stat.S_ISREG(state.st_mode) else ()))


def may_concern(root: Path) -> Callable[[str], bool]:
    """Return a test of whether a change of a path may matter to a folder: nothing hidden does but ignore files, no table."""
    is_part, at = is_part_of(root), len(source_name(root))
    left_out = re.compile(r".*[/\\](?:\.|[^/\\]*\.lance(?:[/\\]|\Z))", re.DOTALL)
    return lambda path: is_part(path) and (path.endswith(IGNORE_FILES) or not left_out.match(path, at))


def changed_paths(folders: Sequence[Path], stop: threading.Event) -> Generator[list[str]]:
    """What changed in folders, as often as something does, and nothing where nothing did for REST_SECONDS."""
    rest = int(REST_SECONDS * 1000)
    try:
        import watchfiles

        options: dict[str, Any] = {"debounce": rest, "step": rest // 10, "rust_timeout": rest, "yield_on_timeout": True}
        options |= {
            "watch_filter": None,
            "ignore_permission_denied": True,
            "stop_event": stop,
            "raise_interrupt": False,
        }
        for changes in watchfiles.watch(*folders, **options):
            yield [path for _, path in changes]
    except FileNotFoundError:  # one that went away just now
        return
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        told = f"The system tells of no changes here ({reason_of(error)}): folders are looked through every minute."
        lancelot.say(told, to=sys.stderr)
        while not stop.wait(AGAIN_SECONDS):
            yield list(map(source_name, folders))
            stop.wait(REST_SECONDS)
            yield []


def watch(
    find_roots: Callable[[], Sequence[Path]], update: Callable[[Sequence[Path]], bool], stop: threading.Event
) -> None:
    """Call `update` with the folders and files in which something changed, until `stop` is set; first with all of them.

    `find_roots` finds them. `update` returns whether it did what it could: otherwise it is called with them again.
    """
    roots = find_roots()
    due, began, last, again = set(roots), 0.0, 0.0, 0.0
    while not stop.is_set():
        states, tests = {root: state_of(root) for root in roots}, {root: may_concern(root) for root in roots}
        with contextlib.closing(changed_paths([root for root in roots if root.is_dir()], stop)) as ticks:
            for paths in ticks:
                now, replaced = time.monotonic(), {root for root in roots if state_of(root) != states[root]}
                states |= {root: state_of(root) for root in replaced}
                if changed := replaced | {root for root in roots if any(map(tests[root], paths))}:
                    due |= changed
                    began, last, again = began or now, now, 0.0
                is_new = any(root.is_dir() for root in replaced)
                if now < again or (now - last < REST_SECONDS and now - began < BUSY_SECONDS and not is_new):
                    continue
                before, roots = set(roots), find_roots()
                due = (due | set(roots) - before) & set(roots)
                if due and update(sorted(due)):
                    due = set()
                began, again = 0.0, time.monotonic() + AGAIN_SECONDS
                if is_new or before != set(roots):
                    break


# ======================================================================================================================
# Commands
# ======================================================================================================================
# COMMANDS and OPTIONS are what the command line of `lancelot` looks up here. A run reports to a person with a bar, to
# another program in lines of JSON, and stops between two commits when it is asked to.


PIPE_SECONDS = 10
"""How often a log is told what is being done."""
LONG_SECONDS = 10
"""Embedding that takes longer is announced."""


def _stop_event(*, at_end_of_input: bool = False) -> threading.Event:
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
    named = options.moved[:1] if options.moved else [options.forget] if options.forget else options.folders
    folders, database = [Path(name).absolute() for name in named], Path(settings.path).absolute()
    return IndexRequest(folders, database, settings.table, **{name: getattr(options, name) for name in names})


def _confirm_removal(message: str) -> bool:
    """Ask a person at a terminal, where Ctrl-C ends the run at once: nothing was written yet."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        return False
    # The system's own end: a handler in Python waits for the line if the signal comes just before the read begins.
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return lancelot.agrees(f"{message} Is that meant?")
    finally:
        signal.signal(signal.SIGINT, handler)


def _index(
    session: Session,
    stop: threading.Event,
    report: Report,
    request: IndexRequest | None = None,
) -> IndexRun:
    """Make a run of the options, which asks a person where that is needed, or of another request, which asks nothing."""
    options, endpoint = session.arguments, lancelot.EndpointEmbedder(session.settings)
    confirm = _confirm_removal if request is None else lambda _message: False
    failure = "--no-embeddings was given." if options.no_embeddings else ""
    embedder = BulkEmbedder(endpoint, lancelot.LocalEmbedder(session.settings), stop, failure)
    with Extractor([*session.command, lancelot.EXTRACT_COMMAND], environ=session.environ) as extractor:
        run = IndexRun(request or _index_request(session), embedder, extractor, report, stop)
        return run.run(confirm=(lambda _message: True) if options.yes else confirm)


def _index_for_program(session: Session) -> int:
    """Print lines of JSON: progress four times a second, at the end what was done, or the reason why nothing was."""
    due = 0.0

    def report(doing: str, done: int, total: int, more: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + 0.25
            lancelot.say_json(compact_json({"doing": doing, "done": done, "total": total, "more": more}))
            sys.stdout.flush()

    try:
        lancelot.say_json(compact_json(index_object(_index(session, _stop_event(at_end_of_input=True), report))))
    except LancelotError as error:
        lancelot.say_json(compact_json({"error": str(error)}))
        return 1
    return 0


def _next_step(session: Session, run: IndexRun) -> list[str]:
    """A line with the command that a person may want next, as it is typed, if there is one."""
    options, words = session.arguments, sys.argv[1:]
    if run.stop.is_set():
        return [f"next: the same command goes on with the rest: {lancelot.typed_line(*words)}"]
    if options.dry_run:
        return [f"next: {lancelot.typed_line(*(word for word in words if word != '--dry-run'))}"]
    given = [word for name in ("path", "table") if (value := getattr(options, name)) for word in (f"--{name}", value)]
    return [f"next: {lancelot.typed_line('search', 'WORDS', *given)}"] if run.new and not options.no_next else []


def _index_for_person(session: Session, stop: threading.Event) -> IndexRun:
    import tqdm

    at_terminal, pace, is_told = sys.stderr is not None and sys.stderr.isatty(), lancelot.Pace(), False
    due = time.monotonic() + PIPE_SECONDS
    with tqdm.tqdm(file=sys.stderr, leave=False, disable=not at_terminal) as bar:

        def report(doing: str, done: int, total: int, more: str) -> None:
            nonlocal is_told, due
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
                bar.set_postfix_str(more, refresh=False)
                bar.update(done - bar.n)
            elif time.monotonic() >= due:
                due = time.monotonic() + PIPE_SECONDS
                lancelot.say(lancelot.progress_line(doing, done, total, more, left), to=sys.stderr)

        run = _index(session, stop, report)
    lines = [index_lines(run, verbose=session.arguments.verbose), *_next_step(session, run)]
    names = [{"path": one_line(source), "reason": why} for source, why in left_out(run).items()]
    answer = index_object(run) | ({"leftOut": names} if names else {})
    lancelot.print_answer(session, as_json=lambda: compact_json(answer), as_lines=lambda: "\n".join(lines))
    return run


def _problems(run: IndexRun) -> list[str]:
    return [*run.notes, *(f"not read: {one_line(source)}: {reason}" for source, reason in run.failed.items())]


def _watch(session: Session) -> int:
    """Bring the table up to date, and keep it so until Ctrl-C or SIGTERM; a line for each file and each new problem."""
    stop = _stop_event()
    request, told = replace(_index_request(session), force=False), set[str]()
    folders = [Path(os.path.realpath(folder)) for folder in request.folders]

    def find_roots() -> Sequence[Path]:
        table = None if folders else ChunkTable.open(request.database, request.table)
        return list(map(path_of, table.roots(by_file(table.known(), ())))) if table else folders

    def update(roots: Sequence[Path]) -> bool:
        lines: list[str] = []
        try:
            run = _index(session, stop, lambda *_: None, replace(request, folders=roots))
            lines = change_lines(run, limit=None if session.arguments.verbose else MAX_CHANGES_SHOWN)
            problems, is_done = _problems(run), True
        except LancelotError as error:
            problems, is_done = [str(error), *told], False
        for line in [*lines, *(problem for problem in problems if problem not in told)]:
            lancelot.say(f"{dt.datetime.now().astimezone():%H:%M:%S} {line}")
        told.clear()
        told.update(problems)
        if sys.stdout is not None:
            sys.stdout.flush()
        return is_done

    told.update(_problems(_index_for_person(session, stop)))
    if not stop.is_set():
        lancelot.say("Watching for changes; Ctrl-C ends it.", to=sys.stderr)
        watch(find_roots, update, stop)
    return 0


def _list(session: Session) -> int:
    request = _index_request(session)
    roots, database = list_roots(request), source_name(request.database)
    answer = {"folders": roots, "table": request.table, "database": database}
    lines = functools.partial(roots_lines, roots)
    lancelot.print_answer(session, as_json=lambda: compact_json(answer), as_lines=lines)
    return 0


def _forget_or_move(session: Session) -> int:
    options, request = session.arguments, _index_request(session)
    new = Path(options.moved[1]).absolute() if options.moved else None
    known = by_file(move_folder(request, new) if new else forget_folder(request), ())
    (root,), database, kind = request.folders, source_name(request.database), "moved" if new else "removed"
    counts = {f"{kind}Files": len(known), f"{kind}Chunks": count_chunks(known), "dryRun": request.dry_run}
    places = {"folder": source_name(root), "table": request.table, "database": database}
    places |= {"newFolder": source_name(new)} if new else {}
    did = f"{'Would ' * request.dry_run}{'point' if new else 'take'}"
    did = did if request.dry_run else "Pointed" if new else "Took"
    taken = f"{plural(len(known), 'file')} ({plural(count_chunks(known), 'chunk')}) of {shown_name(root)}"
    line = f"{did} {taken} {f'to {shown_name(new)} in' if new else 'out of'} the table {request.table} of {database}"
    lancelot.print_answer(session, as_json=lambda: compact_json(counts | places), as_lines=lambda: line)
    return 0


def command_index(session: Session) -> int:
    """`index`: bring a table up to date with folders of files; exit code 1 where not all of them could be looked at."""
    options = session.arguments
    if options.report:
        return _index_for_program(session)
    for problem in session.settings.problems:
        lancelot.say(f"{PROGRAM}: {problem}", to=sys.stderr)
    if options.list:
        return _list(session)
    if options.forget or options.moved:
        return _forget_or_move(session)
    if options.watch:
        return _watch(session)
    run = _index_for_person(session, _stop_event())
    return 130 if run.stop.is_set() else int(run.partial)


def _add_index(parser: argparse.ArgumentParser) -> None:
    path, what = lancelot.type_of_option(lancelot.parse_path), parser.add_mutually_exclusive_group()
    shown = "the folders of files to index, or single files; without one all that the table was made of"
    what.add_argument("folders", nargs="*", default=[], metavar="FOLDER", type=path, help=shown)
    what.add_argument("--list", action="store_true", help="show the folders and files that the table was made of")
    shown = "take what the table holds of this folder or file out of it, such as of one that was deleted"
    what.add_argument("--forget", metavar="OLD", type=path, help=shown)
    shown = "point what the table holds of a folder or file to its new place, without reading it again"
    what.add_argument("--moved", nargs=2, metavar=("OLD", "NEW"), type=path, help=shown)
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
        ("--dry-run", flag, "only say what would be done, and to which files"),
        ("--watch", flag, "go on, and bring the table up to date whenever files change, until Ctrl-C"),
        ("--verbose", flag, "name every file that changed, and those left out for what they are, with what to do"),
        ("--report", flag, argparse.SUPPRESS),
        ("--no-next", flag, argparse.SUPPRESS),
        ("--within", {"type": Path}, argparse.SUPPRESS),
    )
    for option, keywords, shown in options:
        parser.add_argument(option, help=shown, **keywords)


COMMANDS: Mapping[str, Callable[[Session], int]] = {"index": command_index}

OPTIONS: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {"index": _add_index}
