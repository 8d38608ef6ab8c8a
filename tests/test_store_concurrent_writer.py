"""A reader while another process appends, rewrites, drops, makes again, compacts and cleans up the table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from conftest import TESTS
from standins import FixedEmbedder

import lancelot

SECONDS = float(os.environ.get("WRITER_SECONDS", "8"))
ALLOWED = ("The table is being rewritten",)


def test_every_call_answers_rightly_or_with_the_one_sentence(
    tmp_path: Path, make_settings: Callable[..., lancelot.Settings]
) -> None:
    folder = tmp_path / "db"
    folder.mkdir()
    command = [sys.executable, str(TESTS / "support" / "writer.py"), str(folder), str(SECONDS)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    settings = make_settings(LANCEDB_PATH=folder)
    searcher = lancelot.Searcher(settings, embedder=FixedEmbedder(settings))
    outcomes: Counter[str] = Counter()
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        while writer.poll() is None:
            for search_type in ("text", "fts", "vector", "hybrid"):
                outcomes[one_call(searcher, search_type)] += 1
        assert writer.returncode == 0, writer.stderr.read() if writer.stderr else ""
    finally:
        writer.kill()
        writer.communicate(timeout=10)
    assert not {outcome for outcome in outcomes if outcome not in ("right", *ALLOWED)}, outcomes
    assert outcomes["right"] > 0.5 * outcomes.total()
    newest = searcher.search(lancelot.SearchRequest("needle of generation 1000000", 1, "text"))
    assert newest.hits[0].id == "1000000-0"


def one_call(searcher: lancelot.Searcher, search_type: lancelot.SearchType) -> str:
    """The outcome of a call: right, the sentence that is allowed, or what else happened."""
    try:
        page = searcher.search(lancelot.SearchRequest("needle", 10, search_type, table="documents"))
    except lancelot.LancelotError as error:
        return next((allowed for allowed in ALLOWED if allowed in str(error)), str(error))
    sound = (
        page.ran == search_type
        and len(page.hits) == 10
        and all(hit.text.startswith("needle of generation") for hit in page.hits)
    )
    sound = sound and len({hit.id for hit in page.hits}) == len(page.hits)
    return "right" if sound else f"{page.ran}, {len(page.hits)} hits, {page.notes}"
