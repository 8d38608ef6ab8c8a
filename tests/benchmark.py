"""Measures the quality and the speed of the searches: for the documentation, not a test.

    python tests/benchmark.py quality FOLDER    nDCG@10 over collections: FOLDER/NAME/{corpus.jsonl,queries.jsonl,qrels.tsv}
    python tests/benchmark.py indexed FOLDER    the same collections as files, one a document, by way of `lancelot index`
    python tests/benchmark.py load [MINUTES]    readers of three servers, a writer and an indexer on one folder: outcomes
    python tests/benchmark.py speed             time of each call beside the bare engine's, over tables that are made once:
        [--rows 10000,200000,1000000] [--data FOLDER] [--json]

A collection's vectors by all-MiniLM-L6-v2 are taken from FOLDER/../vectors/NAME.npz where they are (`D`, in the order of the
corpus); searches by meaning are measured only with them, by the local model. Times are compared within one run, since
machines are shared.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "tests" / "support")]

import wire  # noqa: E402 - found once the project is on the path

import lancelot  # noqa: E402 - found once the project is on the path
import lancelot_index  # noqa: E402 - found once the project is on the path
import lancelot_reading  # noqa: E402 - found once the project is on the path

# The index settings that find most, every option explicit.
INDEX = {
    "base_tokenizer": "icu/split",
    "language": "English",
    "stem": True,
    "ascii_folding": True,
    "max_token_length": 128,
    "remove_stop_words": False,
}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_relevance(path: Path) -> dict[str, set[str]]:
    """The relevant documents by query."""
    relevant: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        if int(grade) > 0:
            relevant.setdefault(query, set()).add(document)
    return relevant


def ndcg(ranked: Sequence[Any], relevant: set[str]) -> float:
    """nDCG@10 with binary relevance (Järvelin and Kekäläinen 2002)."""
    gain = sum(1 / math.log2(place + 2) for place, document in enumerate(ranked[:10]) if document in relevant)
    return gain / sum(1 / math.log2(place + 2) for place in range(min(10, len(relevant))))


def make_searcher(folder: Path) -> lancelot.Searcher:
    return lancelot.Searcher(lancelot.load_settings({"LANCEDB_PATH": str(folder)}, folder / "no settings"))


def write_collection(folder: Path, documents: list[dict[str, Any]], stored: Any, *, indexed: bool) -> None:
    """One table over a text column that holds title, new line and text."""
    import lancedb
    import pyarrow as pa
    from lancedb.index import FTS

    columns: dict[str, Any] = {
        "id": [one["_id"] for one in documents],
        "text": [f"{one.get('title') or ''}\n{one['text']}" for one in documents],
    }
    if stored is not None:
        wide = stored["D"].astype("float32")
        columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(wide.ravel()), wide.shape[1])
    table = lancedb.connect(folder).create_table("documents", pa.table(columns))
    if indexed:
        table.create_index("text", config=FTS(**INDEX))


def measure_collection(path: Path) -> dict[str, float]:
    """nDCG@10 of each search over one collection."""
    import numpy as np

    queries, relevant = read_lines(path / "queries.jsonl"), read_relevance(path / "qrels.tsv")
    npz = path.parent.parent / "vectors" / f"{path.name}.npz"
    stored = np.load(npz) if npz.exists() else None
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for indexed, searches in (
            (False, ("text", "fts")),
            (True, ("fts", "vector", "hybrid") if stored else ("fts",)),
        ):
            folder = Path(scratch, str(indexed))
            write_collection(folder, read_lines(path / "corpus.jsonl"), stored, indexed=indexed)
            searcher = make_searcher(folder)
            for search_type in searches:
                name = f"{search_type}, {'with an index' if indexed else 'no index'}"
                found[name] = sum(
                    ndcg(best_ids(searcher, one["text"], search_type), relevant[one["_id"]]) for one in queries
                ) / len(queries)
    return found


def best_ids(searcher: lancelot.Searcher, query: str, search_type: Any) -> list[Any]:
    # A sign before a word of these queries is a sign, not arithmetic.
    has_arithmetic = search_type in ("vector", "hybrid")
    plain = " ".join(word.lstrip("+-") or word for word in query.split()) if has_arithmetic else query
    return [hit.id for hit in searcher.search(lancelot.SearchRequest(plain, 10, search_type)).hits]


def quality(folder: Path) -> None:
    for path in sorted(one for one in folder.iterdir() if (one / "corpus.jsonl").exists()):
        for name, value in measure_collection(path).items():
            print(f"{path.name:12} {name:24} nDCG@10 {value:.4f}", flush=True)


def write_files(folder: Path, documents: list[dict[str, Any]], *, suffix: str) -> None:
    """A file for each document, under the number that it has in the collection."""
    folder.mkdir()
    for number, one in enumerate(documents):
        title = f"# {one['title']}\n\n" if one.get("title") else ""
        Path(folder, f"{number}{suffix}").write_text(title + str(one["text"]), encoding="utf-8")


def index_files(files: Path, database: Path) -> lancelot_index.IndexRun:
    settings = lancelot.load_settings({}, database / "no settings")
    endpoint = lancelot.EndpointEmbedder(settings, key=lambda _: lancelot.KeyLookup(None))
    embedder = lancelot_index.BulkEmbedder(
        endpoint, lancelot.LocalEmbedder(settings), failure="Only words are measured."
    )
    request = lancelot_index.IndexRequest((files,), database, "documents")
    with lancelot_reading.Extractor([sys.executable, str(PROJECT / "lancelot.py"), "extract"]) as extractor:
        return lancelot_index.IndexRun(request, embedder, extractor).run()


def best_documents(searcher: lancelot.Searcher, query: str, ids: Sequence[str]) -> list[str]:
    """The documents of the best chunks, each once."""
    hits = searcher.search(lancelot.SearchRequest(query, 50, "fts")).hits
    return list(dict.fromkeys(ids[int(Path(hit.source).stem)] for hit in hits))


def indexed(folder: Path) -> None:
    """nDCG@10 of full-text search over collections that were indexed as files; documents rank by their best chunk."""
    for path in sorted(one for one in folder.iterdir() if (one / "corpus.jsonl").exists()):
        documents, queries = read_lines(path / "corpus.jsonl"), read_lines(path / "queries.jsonl")
        relevant, ids = read_relevance(path / "qrels.tsv"), [one["_id"] for one in documents]
        with tempfile.TemporaryDirectory() as scratch:
            write_files(Path(scratch, "files"), documents, suffix=".py" if path.name == "cosqa" else ".md")
            summary = index_files(Path(scratch, "files"), Path(scratch, "db"))
            searcher = make_searcher(Path(scratch, "db"))
            total = sum(ndcg(best_documents(searcher, one["text"], ids), relevant[one["_id"]]) for one in queries)
        print(f"{path.name:12} {summary.chunks:6,} chunks, fts  nDCG@10 {total / len(queries):.4f}", flush=True)


def index_again(folder: Path, end: float, outcomes: Counter[str]) -> None:
    """Change files and index them until the end."""
    files, run = folder / "files", 0
    command = [sys.executable, lancelot.__file__, "index", str(files), "--path", str(folder / "db"), "--table", "notes"]
    while time.monotonic() < end:
        run += 1
        for number in range(run % 7, 200, 7):
            Path(files, f"{number}.md").write_text(f"# Note {number}\n\nstraw of run {run}", encoding="utf-8")
        Path(files, f"{run % 200}.md").unlink(missing_ok=True)
        done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)
        outcomes["indexed" if done.returncode == 0 else f"index: {done.stderr.strip()[-300:]}"] += 1


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"LANCEDB_PATH": str(folder / "db"), "LANCELOT_LOCAL_MODEL": "off", "HOME": str(folder)}


def outcome_of(tool: str, arguments: dict[str, Any], text: str, *, failed: bool) -> str:
    """What became of a call: right, the sentence that is agreed on, or what is wrong."""
    if failed:
        return "being rewritten" if text.startswith("The table is being rewritten") else f"{tool}: {text[:300]}"
    answer = json.loads(text)
    if tool != "lancedb_search":
        is_right = bool(answer.get("lancelot") or answer.get("tables") or answer.get("files"))
    else:
        hits, word = answer["hits"], arguments["query"]
        ids = [hit["id"] for hit in hits]
        is_right = bool(hits) and len(set(ids)) == len(ids) and all(word in hit["snippet"] for hit in hits)
        is_right = is_right and answer["searchType"] == arguments["searchType"] and answer["total"] >= len(hits)
    return "right" if is_right else f"wrong: {tool} {arguments} {text[:300]}"


def read_on(server: wire.Server, end: float, outcomes: Counter[str]) -> None:
    """Ask one server until the end, eight calls at a time."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("lancedb_search", {"query": word, "searchType": kind, "table": table})
        for word, table in (("needle", "documents"), ("straw", "notes"))
        for kind in ("text", "fts")
    ]
    calls += [("lancedb_files", {"table": "notes"}), ("lancedb_version", {}), ("lancedb_status", {})]
    number = 0
    while time.monotonic() < end:
        asked = {str(number + at): random.choice(calls) for at in range(8)}  # noqa: S311 - a load, not a secret
        number += len(asked)
        server.send(*(wire.call(identity, tool, **arguments) for identity, (tool, arguments) in asked.items()))
        for _ in range(len(asked)):
            answer = server.answer(seconds=60)
            result = answer["result"]
            tool, arguments = asked[answer["id"]]
            outcomes[outcome_of(tool, arguments, result["content"][0]["text"], failed=result["isError"])] += 1


def load(minutes: float) -> None:
    """Print what became of every call of readers while a writer and an indexer change the folder."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder, seconds = Path(scratch), 60 * minutes
        (folder / "files").mkdir()
        (folder / "db").mkdir()
        index_again(folder, time.monotonic() + 0.01, outcomes)
        command = [sys.executable, str(PROJECT / "tests" / "support" / "writer.py"), str(folder / "db"), str(seconds)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout
        writer.stdout.readline()
        servers = [wire.Server(environment(folder)) for _ in range(3)]
        end = time.monotonic() + seconds
        work: list[Callable[[], None]] = [functools.partial(read_on, server, end, outcomes) for server in servers]
        work.append(functools.partial(index_again, folder, end, outcomes))
        with ThreadPoolExecutor() as threads:
            for future in [threads.submit(call) for call in work]:
                future.result()
        for server in servers:
            server.stop()
            print(f"a server had {len(server.raw):,} answers; its log has {server.log.count('Traceback')} tracebacks")
        print(f"the writer ended with {writer.wait(60)} after {writer.stdout.read().strip()} generations")
    for outcome, count in outcomes.most_common():
        print(f"{count:9,} {outcome}")


WORDS = 50_000
WORDS_IN_ROW = 150
ROWS_IN_SOURCE = 20
LENGTH = 384
WRITTEN_AT_ONCE = 50_000


def made_words() -> list[str]:
    """Made-up words, the more frequent ones first."""
    chance = random.Random(1)  # noqa: S311 - the same words every time
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = dict.fromkeys("".join(chance.choices(syllables, k=chance.choice((2, 3, 3, 4)))) for _ in range(2 * WORDS))
    return list(words)[:WORDS]


def made_rows(rows: int) -> Iterator[Any]:
    """Rows of about 1 kB, a record batch at a time: words as often as Zipf has it, and vectors round a few centres."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    chance, words = np.random.default_rng(1), made_words()
    forms = pa.array([*words, *(word.capitalize() for word in words), *(f"{word}." for word in words)])
    shares = np.cumsum(1 / np.arange(1, WORDS + 1))
    centres = chance.standard_normal((100, LENGTH), np.float32)
    for start in range(0, rows, WRITTEN_AT_ONCE):
        count = min(WRITTEN_AT_ONCE, rows - start)
        ranks = np.searchsorted(shares, chance.random(count * WORDS_IN_ROW) * shares[-1])
        form = chance.choice(3, len(ranks), p=(0.8, 0.1, 0.1))
        ends = pa.array(np.arange(count + 1, dtype=np.int32) * WORDS_IN_ROW)
        vectors = centres[chance.integers(100, size=count)] + chance.standard_normal((count, LENGTH), np.float32)
        columns = {
            "id": pa.array([f"row-{number}" for number in range(start, start + count)]),
            "source": pa.array([f"notes/file-{number // ROWS_IN_SOURCE}.md" for number in range(start, start + count)]),
            "text": pc.binary_join(pa.ListArray.from_arrays(ends, forms.take(pa.array(form * WORDS + ranks))), " "),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), LENGTH),
        }
        yield pa.RecordBatch.from_pydict(columns)


def made_folder(data: Path, rows: int, *, indexed: bool) -> Path:
    """The folder of a table of so many rows, which is made if it is not there yet."""
    import lancedb
    from lancedb.index import FTS, IvfPq

    folder = data / f"{rows}{'-indexed' if indexed else ''}"
    if not folder.exists():
        unfinished = Path(f"{folder}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        if indexed:  # a file of a table is never changed
            shutil.copytree(made_folder(data, rows, indexed=False), unfinished, copy_function=os.link)
            table = lancedb.connect(unfinished).open_table("documents")
            table.create_index("text", config=FTS(**INDEX))
            table.create_index("vector", config=IvfPq(distance_type="cosine"))
        else:
            batches = made_rows(rows)
            first = next(batches)
            lancedb.connect(unfinished).create_table(
                "documents", itertools.chain([first], batches), schema=first.schema
            )
        unfinished.rename(folder)
    return folder


def bare(folder: Path, address: str) -> None:
    """Do what each line of the input asks of the engine alone, and print the seconds that it took and the memory in use."""
    import lancedb

    table = lancedb.connect(folder).open_table("documents")

    def embed(query: str) -> Any:
        body = json.dumps({"input": query, "model": "any"}).encode()
        request = urllib.request.Request(f"{address}/embeddings", body, {"Content-Type": "application/json"})  # noqa: S310 - ours
        with urllib.request.urlopen(request) as answer:  # noqa: S310 - the same
            return json.load(answer)["data"][0]["embedding"]

    def fts(query: str) -> Any:
        return table.search(query, query_type="fts", fts_columns="text").limit(20).to_list()

    def fts_at_once(query: str) -> None:
        with ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
            list(threads.map(fts, [f"{query} {word}" for word in made_words()[:CALLS_AT_ONCE]]))

    works: dict[str, Callable[[str], Any]] = {
        "like": lambda query: table.count_rows(" OR ".join(f"text LIKE '%{word}%'" for word in query.split())),
        "fts": fts,
        "vector": lambda query: table.search(embed(query)).distance_type("cosine").limit(20).to_list(),
        "source": lambda _: table.search().select(["source"]).limit(None).to_arrow(),
        "fts at once": fts_at_once,
        "": lambda _: None,
    }
    for line in sys.stdin:
        work, query = json.loads(line)
        began = time.perf_counter()
        works[work](query)
        print(json.dumps([time.perf_counter() - began, memory_of("self")]), flush=True)


def memory_of(process: int | str) -> float:
    """The memory that a process holds, in MB."""
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(text.partition("VmRSS:")[2].split()[0]) / 1000


CALLS_AT_ONCE = 64


class Race:
    """A server and the bare engine on one folder, which do the same work by turns."""

    def __init__(self, folder: Path, address: str, *, times: int) -> None:
        self.times, self._queries = times, itertools.count()
        self.environ = environment(folder) | {"LANCEDB_PATH": str(folder), "EMBEDDING_BASE_URL": address}
        self.server = wire.Server(self.environ)
        self._bare = subprocess.Popen(
            [sys.executable, __file__, "bare", str(folder), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def query(self, ranks: Sequence[int]) -> str:
        """Words of about these ranks, others each time, since answers may be kept."""
        at, words = next(self._queries), made_words()
        return " ".join(words[rank + at] for rank in ranks)

    def bare(self, work: str, query: str = "") -> tuple[float, float]:
        assert self._bare.stdin
        assert self._bare.stdout
        print(json.dumps([work, query]), file=self._bare.stdin, flush=True)
        seconds, memory = json.loads(self._bare.stdout.readline())
        return seconds, memory

    def ours(self, tool: str, server: wire.Server | None = None, **arguments: Any) -> float:
        began = time.perf_counter()
        wire.text_of((server or self.server).ask(wire.call("one", tool, **arguments), seconds=300))
        return time.perf_counter() - began

    def search(self, kind: str, work: str, ranks: Sequence[int] = (300, 1500, 6000)) -> tuple[float, float]:
        """The median seconds of a search, and of the bare engine's work for it."""
        taken = []
        for _ in range(self.times + 1):
            query = self.query(ranks)
            taken.append(
                (self.ours("lancedb_search", query=query, searchType=kind, limit=20), self.bare(work, query)[0])
            )
        ours, others = zip(*taken[1:], strict=True)
        return statistics.median(ours), statistics.median(others)

    def hybrid(self) -> tuple[float, float]:
        """Beside our own two halves one after the other."""
        taken = []
        for _ in range(self.times):
            query = self.query((300, 1500, 6000))
            kinds = [self.ours("lancedb_search", query=query, searchType=kind, limit=20) for kind in ("fts", "vector")]
            query = self.query((300, 1500, 6000))
            taken.append((self.ours("lancedb_search", query=query, searchType="hybrid", limit=20), sum(kinds)))
        ours, others = zip(*taken, strict=True)
        return statistics.median(ours), statistics.median(others)

    def first(self, tool: str, work: str) -> tuple[float, float]:
        """The first call of a server that is up; the others are started for it."""
        taken = []
        for _ in range(min(3, self.times)):
            server = wire.Server(self.environ)
            self.ours("lancedb_search", server, query=made_words()[0], searchType="text", limit=1)
            taken.append((self.ours(tool, server), self.bare(work)[0] if work else 0.0))
            server.stop()
        ours, others = zip(*taken, strict=True)
        return statistics.median(ours), statistics.median(others)

    def again(self, tool: str) -> tuple[float, float]:
        self.ours(tool)
        return statistics.median(self.ours(tool) for _ in range(self.times)), 0.0

    def at_once(self) -> tuple[float, float, float]:
        """So many searches at once, the same in threads of the engine, and the version that is asked for after them."""
        taken = []
        for _ in range(min(3, self.times)):
            query, words = self.query((300, 1500, 6000)), made_words()[:CALLS_AT_ONCE]
            calls = [
                wire.call(word, "lancedb_search", query=f"{query} {word}", searchType="fts", limit=20) for word in words
            ]
            began = time.perf_counter()
            self.server.send(*calls, wire.call("version", "lancedb_version"))
            for _ in range(len(calls) + 1):
                answer = self.server.answer(seconds=300)
                wire.text_of(answer)
                version = time.perf_counter() - began if answer["id"] == "version" else locals().get("version", 0.0)
            taken.append((time.perf_counter() - began, self.bare("fts at once", query)[0], version))
        ours, others, versions = zip(*taken, strict=True)
        return statistics.median(ours), statistics.median(others), statistics.median(versions)

    def memory(self) -> tuple[float, float]:
        return memory_of(self.server.process.pid), self.bare("")[1]

    def stop(self) -> None:
        self.server.stop()
        self._bare.communicate()


def measured_rows(folder: Path, address: str, *, indexed: bool, times: int) -> Iterator[tuple[str, float, float]]:
    """What was measured on a folder: its name, ours, and the engine's, or 0 where there is none; seconds, and MB of memory."""
    race = Race(folder, address, times=times)
    try:
        if indexed:
            yield "fts, three words", *race.search("fts", "fts")
            yield "vector", *race.search("vector", "vector")
            ours, others, version = race.at_once()
            yield f"{CALLS_AT_ONCE} fts calls at once", ours, others
            yield "lancedb_version among them", version, 0.0
        else:
            yield "text, three words", *race.search("text", "like")
            yield "text, one rare word", *race.search("text", "like", (40_000,))
            yield "vector", *race.search("vector", "vector")
            yield "hybrid (beside our fts + vector)", *race.hybrid()
            yield "lancedb_files", *race.first("lancedb_files", "source")
            yield "lancedb_files again", *race.again("lancedb_files")
            yield "first lancedb_status", *race.first("lancedb_status", "")
        yield "memory after these (MB)", *race.memory()
    finally:
        race.stop()


def speed(sizes: Sequence[int], data: Path, *, as_json: bool) -> None:
    """Print how long each search takes beside the engine's own work, in one run, and the ratio of the two."""
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(PROJECT / "tests" / "support" / "embedding_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as embeddings:
        assert embeddings.stdout
        address = f"http://127.0.0.1:{int(embeddings.stdout.readline())}/v1"
        results = []
        for rows, indexed in itertools.product(sizes, (False, True)):
            folder = made_folder(data, rows, indexed=indexed)
            for name, ours, engine in measured_rows(folder, address, indexed=indexed, times=3 if rows > 500_000 else 5):
                results.append({"rows": rows, "indexed": indexed, "work": name, "ours": ours, "engine": engine})
                ratio = f"{engine:9.3f} {ours / engine:6.2f}" if engine else ""
                shown = f"{rows:9,} {'indexed' if indexed else '':7} {name:33} {ours:9.3f} {ratio}"
                print(shown, file=sys.stderr if as_json else sys.stdout, flush=True)
        embeddings.kill()
    if as_json:
        import lancedb

        machine = {"processors": lancelot.processors(), "machine": platform.platform(), "lancedb": lancedb.__version__}
        print(
            json.dumps({**machine, "lancelot": lancelot.__version__, "date": time.strftime("%F"), "results": results})
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["quality"] and len(sys.argv) == 3:
        quality(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["indexed"] and len(sys.argv) == 3:
        indexed(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["load"]:
        load(float(sys.argv[2]) if len(sys.argv) > 2 else 5)
    elif sys.argv[1:2] == ["speed"]:
        options = argparse.ArgumentParser()
        options.add_argument("--rows", default="10000,200000")
        options.add_argument("--data", type=Path, default=Path(tempfile.gettempdir(), "lancelot-benchmark"))
        options.add_argument("--json", action="store_true")
        given = options.parse_args(sys.argv[2:])
        speed([int(rows) for rows in given.rows.split(",")], given.data, as_json=given.json)
    elif sys.argv[1:2] == ["bare"] and len(sys.argv) == 4:
        bare(Path(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(__doc__)
