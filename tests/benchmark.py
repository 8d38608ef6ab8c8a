"""Measures the quality and the speed of the searches: for the documentation, not a test.

    python tests/benchmark.py quality FOLDER    nDCG@10 over collections: FOLDER/NAME/{corpus.jsonl,queries.jsonl,qrels.tsv}
    python tests/benchmark.py indexed FOLDER    the same collections as files, one a document, by way of `lancelot index`
    python tests/benchmark.py load [MINUTES]    readers of three servers, a writer and an indexer on one folder: outcomes
    python tests/benchmark.py speed [ROWS]      time of each search over ROWS made-up rows, as ratios to a plain scan

A collection's vectors by all-MiniLM-L6-v2 are taken from FOLDER/../vectors/NAME.npz where they are (`D`, in the order of the
corpus); searches by meaning are measured only with them, by the local model. Times are compared within one run, since
machines are shared.
"""

from __future__ import annotations

import functools
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
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


def speed(rows: int) -> None:
    import lancedb
    import pyarrow as pa
    from lancedb.index import FTS

    chance = random.Random(1)  # noqa: S311 - the same rows every time
    words = [f"word{n}" for n in range(5000)]
    texts = [" ".join(chance.choices(words, k=130)) for _ in range(rows)]
    with tempfile.TemporaryDirectory() as scratch:
        table = lancedb.connect(scratch).create_table("documents", pa.table({"text": texts}))
        searcher = make_searcher(Path(scratch))
        query = "word17 word423 word4077"
        scan = best_time(lambda: table.count_rows("text LIKE '%word17%'"))
        print(f"{rows:,} rows of about 1 kB; a plain scan for one word takes {scan:.2f} s and is 1.0 here")
        for search_type in ("text", "fts"):
            report(f"{search_type}, no index", scan, searcher, query, search_type)
        table.create_index("text", config=FTS(**INDEX))
        report("fts, with an index", scan, searcher, query, "fts")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def report(name: str, scan: float, searcher: lancelot.Searcher, query: str, search_type: Any) -> None:
    taken = best_time(lambda: searcher.search(lancelot.SearchRequest(query, 20, search_type)))
    print(f"{name:20} {taken:.2f} s  {taken / scan:.1f}")


def best_time(call: Callable[[], Any], *, times: int = 3) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return min(taken)


if __name__ == "__main__":
    if sys.argv[1:2] == ["quality"] and len(sys.argv) == 3:
        quality(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["indexed"] and len(sys.argv) == 3:
        indexed(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["load"]:
        load(float(sys.argv[2]) if len(sys.argv) > 2 else 5)
    elif sys.argv[1:2] == ["speed"]:
        speed(int(sys.argv[2]) if len(sys.argv) > 2 else 200_000)
    else:
        sys.exit(__doc__)
