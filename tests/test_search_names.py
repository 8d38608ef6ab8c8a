"""What rows are called is searched with their texts: names of files, titles and headings, whoever wrote the table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TESTS

import lancelot
import lancelot_index
import lancelot_reading

TEXTS = (
    "Keep the gauge between one and two bar.",
    "Bleed the radiators, the lowest first.",
    "  ",
    "Nothing is called so.",
)
FILES = ("/docs/TX-900 manual.pdf", "/docs/TX-900 manual.pdf", "/docs/TX-900 manual.pdf", "/manuals/letter of list.txt")
TITLES = ("TX-900 manual", "TX-900 manual", "TX-900 manual", "letter of list")
SOURCES: dict[str, dict[str, Any]] = {
    "a column": {"chunkSource": FILES},
    "a title": {"title": TITLES},
    "an address": {"url": [f"https://example.org{name.replace(' ', '_')}/" for name in FILES]},
    "a struct": {"metadata": [{"source": name, "page": page} for page, name in enumerate(FILES)]},
    "JSON": {"metadata": [json.dumps({"source": name, "page": page}) for page, name in enumerate(FILES)]},
}


@pytest.mark.parametrize("search_type", ["text", "fts"])
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("names", SOURCES)
def test_a_name_finds_the_rows_of_its_file_that_have_a_text_and_no_others(
    names: str, *, indexed: bool, search_type: Any, make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    import lancedb
    from lancedb.index import FTS

    folder = make_table({"text": TEXTS, **{name: list(values) for name, values in SOURCES[names].items()}})
    if indexed:
        lancedb.connect(folder).open_table("documents").create_index("text", config=FTS())
    searcher = make_searcher(LANCEDB_PATH=folder)

    def rows(query: str) -> list[int]:
        page = searcher.search(lancelot.SearchRequest(query, 10, search_type))
        assert page.total == len(page.hits)
        assert not any("occur in no chunk" in note for note in page.notes)
        return [hit.row for hit in page.hits]

    assert sorted(rows("TX-900 manual")) == sorted(rows("tx900")) == [0, 1]
    assert rows("tx-900 radiators") == [1, 0]
    assert rows("docs") == []
    assert rows("radiators is") == [1]  # `is` is in `list`, but a short word stands alone in a name


def test_pages_by_index_and_names_give_every_row_once(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    import lancedb
    from lancedb.index import FTS

    texts = [f"needle in hay {n:03}" if n % 3 else f"hay {n:03}" for n in range(300)]
    folder = make_table({"text": texts, "source": ["needle.txt" if n % 2 else "other.txt" for n in range(300)]})
    lancedb.connect(folder).open_table("documents").create_index("text", config=FTS())
    searcher = make_searcher(LANCEDB_PATH=folder)
    pages = [searcher.search(lancelot.SearchRequest("needle", 70, "fts", offset=at)) for at in range(0, 300, 70)]
    rows = [hit.row for page in pages for hit in page.hits]
    wanted = {n for n in range(300) if n % 3 or n % 2}
    assert len(rows) == len(wanted) == pages[0].total
    assert set(rows) == wanted


# --- thirty questions over a household's files

QUESTIONS: list[tuple[str, str]] = json.loads((TESTS / "household_questions.json").read_text(encoding="utf-8"))


def index_household(database: Path, model: str) -> lancelot.Searcher:
    settings = lancelot.load_settings({"LANCEDB_PATH": str(database), "LANCELOT_LOCAL_MODEL": model}, database / "none")
    endpoint = lancelot.EndpointEmbedder(settings, key=lambda _: lancelot.KeyLookup(None))
    embedder = lancelot_index.BulkEmbedder(
        endpoint, lancelot.LocalEmbedder(settings), failure="" if model == "on" else "Words are enough."
    )
    request = lancelot_index.IndexRequest((TESTS / "household",), database, "documents")
    with lancelot_reading.Extractor([sys.executable, str(lancelot.__file__), lancelot.EXTRACT_COMMAND]) as extractor:
        lancelot_index.IndexRun(request, embedder, extractor).run()
    return lancelot.Searcher(settings)


@pytest.mark.parametrize(("model", "least"), [("off", 29), ("on", 27)])
def test_the_right_file_comes_first_for_questions_over_a_household(model: str, least: int, tmp_path: Path) -> None:
    if model == "on" and not lancelot.local_files():
        pytest.skip("this Python has no local model")
    searcher = index_household(tmp_path, model)
    wrong: dict[str, list[str]] = {"search": [], "block": []}
    for question, source in QUESTIONS:
        pages = {
            "search": searcher.search(lancelot.SearchRequest(question, 10, searcher.settings.search_type)),
            "block": searcher.search_question(question, limit=20),
        }
        for name, page in pages.items():
            if not (page.hits and page.hits[0].source.endswith(f"/household/{source}")):
                wrong[name].append(question)
    assert all(len(QUESTIONS) - len(some) >= least for some in wrong.values()), wrong
    assert len(QUESTIONS) == 30


def test_a_text_that_two_files_hold_is_one_hit_that_names_both(tmp_path: Path) -> None:
    searcher = index_household(tmp_path, "off")
    for kind in ("text", "fts"):
        page = searcher.search(lancelot.SearchRequest("how we use your data", 5, kind))
        (hit,) = (hit for hit in page.hits if "How we use your data" in hit.text)
        block = lancelot.context_block(page, budget=4000)
        assert {Path(source).name for source in (hit.source, *lancelot.also_in(hit))} == {
            "privacy.txt",
            "attached privacy notice.txt",
        }
        assert block.count("How we use your data") == 1
        assert "also in" in block


# --- contents and navigation


CONTENTS = (
    "Contents\n\n1 Safety ........ 3\n2 Descaling the boiler ........ 12\n3 Frost ........ 15",
    "Safety … 3\nDescaling the boiler … 12\nFrost … 15\nGuarantee … 20",
    "## Table of contents\n* [Safety](#safety)\n* [Descaling the boiler](#descaling)\n  * [Frost](#frost)\n* [More](#more)",
    "Navigation\n- Home\n- Descaling the boiler\n- Frost\n- Imprint",
    "1. Safety\n2. Descaling the boiler\n2.1. Frost\n2.2. Before the winter\n3. Guarantee",
)
PASSAGES = (
    "1. Switch it off.\n2. Descale the boiler.\n3. Rinse twice.\n4. Switch it on again.",
    "Ingredients\n- 200 g flour\n- 3 eggs\n- salt\n- a little milk",
    "| month | gas |\n| --- | --- |\n| January | 120 |\n| February | 110 |\n| March | 90 |",
    "def one():\n    return 1\n\ndef two():\n    return 2\n",
    "See [the guide](guide.md) before descaling.\n\nIt takes an hour.\n\nUse vinegar.\n\nRinse.",
)


def test_contents_and_navigation_are_told_from_passages() -> None:
    assert [lancelot.is_contents(text) for text in (*CONTENTS, *PASSAGES)] == [True] * 5 + [False] * 5


@pytest.mark.parametrize("contents", CONTENTS)
def test_a_passage_comes_before_the_contents_that_name_it(
    contents: str, make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    passage = (
        "Before the winter the boiler is to be descaled, which takes an hour; then rinse it twice with clear water."
    )
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": [contents, passage]}))
    for kind in ("text", "fts"):
        page = searcher.search(lancelot.SearchRequest("descaling the boiler", 5, kind))
        assert [hit.text for hit in page.hits] == [passage, contents]
    block = lancelot.context_block(searcher.search_question("descaling the boiler", limit=20), budget=4000)
    assert 0 < block.index(passage) < block.index(contents)
