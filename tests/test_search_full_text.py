"""Full-text and hybrid search, query arithmetic: what runs, what falls back and what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TESTS
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from standins import FixedEmbedder

import lancelot

TEXTS = [
    "The Who are a band from London",
    "Who is who in Latin: de bello gallico",
    "A well-known trick with -Xmx512m and --help, sent by jo@example.org",
    "C++ and C:\\dir with 100% of snake_case",
    "東京都の設計図を図書館で確認した",
    "running dogs ran in the garden",
    "the garden of zen",
    "zen of the garden",
    "café résumé",
    "a - b is not a + b",
]


def index(folder: Path, column: str = "text", **options: Any) -> None:
    import lancedb
    from lancedb.index import FTS

    defaults = {"base_tokenizer": "icu/split", "stem": True, "remove_stop_words": False, "ascii_folding": True}
    lancedb.connect(folder).open_table("documents").create_index(column, config=FTS(**{**defaults, **options}))


def found(searcher: lancelot.Searcher, query: str, search_type: Any = "fts") -> lancelot.Page:
    return searcher.search(lancelot.SearchRequest(query, 20, search_type))


def texts(page: lancelot.Page) -> list[str]:
    return [hit.text for hit in page.hits]


@pytest.fixture(params=["with an index", "without one"])
def searcher(
    request: pytest.FixtureRequest, make_table: Callable[..., Path], make_searcher: Callable[..., lancelot.Searcher]
) -> lancelot.Searcher:
    folder = make_table({"text": TEXTS})
    if request.param == "with an index":
        index(folder, with_position=True)
    return make_searcher(LANCEDB_PATH=folder)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("zen", 6),
        ("The Who", 0),
        ("de bello", 1),
        ("-Xmx512m", 2),
        ("well-known", 2),
        ("--help", 2),
        ("jo@example.org", 2),
        ("snake_case", 3),
        ("設計図", 4),
        ("図書館", 4),
        ("café", 8),
    ],
)
def test_words_of_every_kind_are_found_with_and_without_an_index(
    searcher: lancelot.Searcher, query: str, first: int
) -> None:
    page = found(searcher, query)
    assert page.ran == "fts"
    assert texts(page)[0] == TEXTS[first]
    assert page.reading is None
    assert page.total == len(page.hits)


@pytest.mark.parametrize("search_type", ["fts", "text", "auto"])
@pytest.mark.parametrize("query", ["-Xmx512m", "C++", "--help", "well-known", "a - b", "jo@example.org"])
def test_signs_are_never_operators_in_searches_by_words(
    searcher: lancelot.Searcher, query: str, search_type: str
) -> None:
    page = found(searcher, query, search_type)
    assert page.reading is None
    assert page.hits


def test_an_index_stems_and_folds_accents(make_table: Callable[..., Path], make_searcher: Callable[..., Any]) -> None:
    folder = make_table({"text": TEXTS})
    index(folder)
    searcher = make_searcher(LANCEDB_PATH=folder)
    assert texts(found(searcher, "run dog"))[0] == TEXTS[5]
    assert texts(found(searcher, "cafe resume")) == [TEXTS[8]]


def test_a_quoted_phrase_must_stand_together_where_the_index_keeps_positions(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    folder = make_table({"text": TEXTS})
    index(folder, with_position=True)
    page = found(make_searcher(LANCEDB_PATH=folder), '"garden of zen" london')
    assert (texts(page), page.notes) == ([TEXTS[6]], ())


def test_a_phrase_that_no_text_holds_finds_nothing_where_the_index_keeps_positions(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    folder = make_table({"text": TEXTS})
    index(folder, with_position=True)
    page = found(make_searcher(LANCEDB_PATH=folder), '"zen garden of"')
    assert (page.hits, page.total, page.notes) == ((), 0, ())
    assert "holds the phrase zen garden of" in json.loads(lancelot.search_json(page))["hint"]


@pytest.mark.parametrize("kind", ["text", "fts"])
@pytest.mark.parametrize("indexed", [True, False])
def test_chunks_that_hold_a_quoted_phrase_come_first_where_no_index_keeps_positions(
    kind: Any, make_table: Callable[..., Path], make_searcher: Callable[..., Any], *, indexed: bool
) -> None:
    rows = [
        "zen of the garden of london, a big band of cats",
        "the Garden\n  of Zen and much else " * 9,
        "garden, of zen",
    ]
    folder = make_table({"text": [*rows, "no such thing"]})
    if indexed:
        index(folder, with_position=False)
    page = found(make_searcher(LANCEDB_PATH=folder), 'big london cats "garden of zen" band', kind)
    assert texts(page) == [rows[1], rows[0], rows[2]]
    assert (list(page.hits) == sorted(page.hits, key=lambda hit: -hit.score), page.total) == (True, 3)
    assert ["keeps no positions" in note for note in page.notes] == [True] * (indexed and kind == "fts")
    absent = found(make_searcher(LANCEDB_PATH=folder), '"zen garden"', kind)
    assert (absent.total, "occur in no chunk: zen garden." in " ".join(absent.notes)) == (3, True)


@pytest.mark.parametrize("positions", [True, False])
def test_what_a_question_quotes_comes_first_and_need_not_occur(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any], *, positions: bool
) -> None:
    folder = make_table({"text": TEXTS})
    index(folder, with_position=positions)
    searcher = make_searcher(LANCEDB_PATH=folder)
    page = searcher.search_question('Which dogs ran in the garden, and who has a "garden of zen"?', limit=20)
    assert texts(page)[:2] == [TEXTS[6], TEXTS[5]]
    assert len(set(texts(page))) == len(page.hits)
    absent = searcher.search_question('Where is the "garden of cats"?', limit=20)
    assert {TEXTS[5], TEXTS[6], TEXTS[7]} <= set(texts(absent))
    assert any("no chunk" in note.lower() for note in absent.notes)


@pytest.mark.parametrize(
    "case",
    [
        ({"base_tokenizer": "simple"}, "設計図", 4, "finds no words in text without spaces"),
        ({"base_tokenizer": "whitespace"}, "図書館 確認", 4, "finds no words in text without spaces"),
        ({"base_tokenizer": "raw", "stem": False}, "garden zen", 6, "holds whole texts"),
        ({"base_tokenizer": "simple", "remove_stop_words": True}, "the who", 0, "found nothing"),
        ({"base_tokenizer": "ngram", "stem": False}, "ze", 6, "found nothing"),
    ],
)
def test_an_index_that_cannot_match_gives_way_to_a_scan_and_says_so(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any], case: tuple[dict[str, Any], str, int, str]
) -> None:
    options, query, hit, said = case
    folder = make_table({"text": TEXTS})
    index(folder, **options)
    page = found(make_searcher(LANCEDB_PATH=folder), query)
    assert TEXTS[hit] in texts(page)
    assert page.ran == "fts"
    assert len(page.notes) == 1
    assert said in page.notes[0]


def test_an_index_over_no_rows_gives_way_to_a_scan_and_says_so(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    import lancedb
    import pyarrow as pa

    folder = make_table(pa.table({"text": pa.array([], pa.string())}))
    index(folder)
    lancedb.connect(folder).open_table("documents").add([{"text": text} for text in TEXTS])
    page = found(make_searcher(LANCEDB_PATH=folder), "zen")
    assert set(texts(page)) == {TEXTS[6], TEXTS[7]}
    assert "covers no rows" in page.notes[0]


def test_rows_added_after_the_index_was_made_are_found(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    import lancedb

    folder = make_table({"text": TEXTS})
    index(folder)
    lancedb.connect(folder).open_table("documents").add([{"text": "a zen latecomer"}])
    page = found(make_searcher(LANCEDB_PATH=folder), "latecomer")
    assert (texts(page), page.notes) == (["a zen latecomer"], ())


def test_all_indexed_columns_are_searched_and_the_text_weighs_most(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    folder = make_table({"title": ["needle", "hay", "hay", None], "text": ["hay", "needle", "hay", "   "]})
    index(folder)
    index(folder, "title")
    page = found(make_searcher(LANCEDB_PATH=folder), "needle")
    assert texts(page) == ["needle", "hay"]


def test_a_text_column_without_index_is_scanned_though_another_column_has_one(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    folder = make_table({"title": ["hay", "hay"], "text": ["hay", "needle"]})
    index(folder, "title")
    assert texts(found(make_searcher(LANCEDB_PATH=folder), "needle")) == ["needle"]


def test_an_index_of_another_column_that_cannot_match_leaves_the_texts_own_in_use(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    folder = make_table({"tag": ["ran", "hay"] * 5, "text": TEXTS})
    index(folder)
    index(folder, "tag", base_tokenizer="raw", stem=False)
    searcher = make_searcher(LANCEDB_PATH=folder)
    page = found(searcher, "run dog")  # "ran" is found by the stem of the text alone
    assert (texts(page)[0], page.notes) == (TEXTS[5], ())
    page = found(searcher, "設計図")
    assert (texts(page), page.notes) == ([TEXTS[4]], ())


def test_an_index_on_a_column_with_a_space_and_on_a_nested_one_is_used(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    import pyarrow as pa

    nested = pa.array([{"title": "running"}, {"title": None}, None])
    folder = make_table({"My Text": ["dogs ran", "zen dog", "zen"], "metadata": nested})
    index(folder, "My Text")
    index(folder, "metadata.title")
    page = make_searcher(LANCEDB_PATH=folder, LANCEDB_TEXT_COLUMN="My Text").search(
        lancelot.SearchRequest("runs dogs", 10, "fts")
    )
    assert (texts(page), page.notes) == (["dogs ran", "zen dog"], ())


def test_a_phrase_that_an_index_cannot_hold_is_looked_for_in_the_texts(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    folder = make_table({"text": TEXTS})
    index(folder, base_tokenizer="simple", with_position=True)
    notes = found(make_searcher(LANCEDB_PATH=folder), '"設計図" zen').notes
    assert ["without spaces" in note for note in notes] == [True]


@pytest.mark.parametrize("search_type", ["text", "fts", "hybrid"])
def test_a_query_of_five_thousand_words_is_answered(searcher: lancelot.Searcher, search_type: str) -> None:
    page = found(searcher, "zen " + " ".join(f"word{n}" for n in range(5000)), search_type)
    assert set(texts(page)[:2]) == {TEXTS[6], TEXTS[7]}
    assert any("first 128 different words" in note for note in page.notes)
    assert any("first 10,000 of the query's 43,893 characters" in note for note in page.notes)


def test_the_first_words_of_a_long_query_are_searched_by_an_index(
    make_table: Callable[..., Path], make_searcher: Callable[..., Any]
) -> None:
    folder = make_table({"text": TEXTS})
    index(folder)
    many = " ".join(f"word{n}" for n in range(lancelot.MAX_TERMS))
    searcher = make_searcher(LANCEDB_PATH=folder)
    assert texts(found(searcher, f"zen {many}"))[0] in (TEXTS[6], TEXTS[7])
    last = found(searcher, f"{many} zen")
    assert (last.hits, "first 128 different words" in last.notes[0]) == ((), True)


@pytest.mark.parametrize("quotes", ['"{}', '{}"', '"{}" "'])
def test_a_quote_that_is_not_closed_is_read_at_once(quotes: str) -> None:
    # Quadratic reading would take a minute.
    assert len(lancelot.quoted_phrases(quotes.format("a" * 200_000))) == quotes.count('"') // 2


@pytest.mark.parametrize("word", ["s" * 9000, "k" * 9000, "i" * 9000, "é" * 9000, "ß" * 3000, "設" * 5000])
@pytest.mark.parametrize("search_type", ["text", "fts"])
def test_a_word_of_any_length_is_searched(searcher: lancelot.Searcher, word: str, search_type: str) -> None:
    assert found(searcher, f"{word} zen", search_type).hits[0].text in (TEXTS[6], TEXTS[7])


QUERY_BITS = ['"', "'", "\\", "(", ")", "+", "-", "*", "?", "^", "~", ":", "AND ", "OR ", "NOT ", "{", "]", "/", "zen"]
QUERY_BITS += ["garden ", "of ", " ", "\n", "\x00", "設計", "ก", "é", "ß", "%", "_", "`", "\ud800", "😀", "\u200d", "İ"]


@hypothesis_settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.lists(st.sampled_from(QUERY_BITS) | st.text(st.characters(), max_size=4), max_size=8).map("".join))
def test_a_query_of_any_text_gives_a_page_or_a_sentence(searcher: lancelot.Searcher, query: str) -> None:
    try:
        page = found(searcher, query)
    except lancelot.LancelotError as error:
        assert str(error).endswith(".")  # noqa: PT017 - both outcomes are right
    else:
        assert page.ran == "fts"
        assert json.loads(lancelot.search_json(page))["total"] == page.total == len(page.hits)


# --- hybrid and arithmetic


@pytest.fixture
def meaning(make_table: Callable[..., Path], make_settings: Callable[..., lancelot.Settings]) -> lancelot.Searcher:
    import pyarrow as pa

    vectors = pa.array([[1.0, 0.0, 0.0], [0.9, 0.44, 0.0], [0.7, 0.0, 0.7]], pa.list_(pa.float32(), 3))
    folder = make_table({"text": ["price list", "draft price", "recent price"], "vector": vectors})
    settings = make_settings(LANCEDB_PATH=folder)
    embedder = FixedEmbedder(settings)
    embedder.usual = (0.1, 0.1, 0.1)
    embedder.meanings = {"price": (1, 0, 0), "draft": (0, 1, 0), "recent": (0, 0, 1), "price recent": (1, 0, 1)}
    return lancelot.Searcher(settings, embedder=embedder)


@pytest.mark.parametrize("search_type", ["vector", "hybrid"])
def test_added_and_subtracted_terms_move_the_results(meaning: lancelot.Searcher, search_type: str) -> None:
    assert texts(found(meaning, "price", search_type))[0] == "price list"
    page = found(meaning, "price +recent -draft", search_type)
    assert texts(page)[0] == "recent price"
    answer = json.loads(lancelot.search_json(page))
    assert answer["reading"] == {"text": "price", "added": ["recent"], "subtracted": ["draft"]}
    assert answer["searchType"] == search_type


def test_a_query_that_only_subtracts_is_a_sentence(meaning: lancelot.Searcher) -> None:
    with pytest.raises(lancelot.LancelotError, match="only subtracts"):
        found(meaning, "-draft", "vector")


def test_a_query_of_many_signs_is_a_sentence(meaning: lancelot.Searcher) -> None:
    with pytest.raises(lancelot.LancelotError, match="adds or subtracts 33 terms, and at most 32 are compared"):
        found(meaning, "price" + " +recent" * 33, "hybrid")


@pytest.mark.parametrize(
    ("query", "text", "added", "subtracted"),
    [
        ("pricing strategy -draft +recent", "pricing strategy", ("recent",), ("draft",)),
        ('pricing -"first draft" +"very recent"', "pricing", ("very recent",), ("first draft",)),
        ("+a b", "b", ("a",), ()),
        ("x +C++", "x", ("C++",), ()),
    ],
)
def test_operators_are_parsed(query: str, text: str, added: tuple[str, ...], subtracted: tuple[str, ...]) -> None:
    assert lancelot.parse_arithmetic(query) == lancelot.Reading(text, added, subtracted)


@pytest.mark.parametrize(
    "query", ["C++", "--help", "well-known", "a - b", "jo@example.org", "1+1=2", "- x", "+", "x -- y"]
)
def test_signs_within_words_are_no_operators(query: str) -> None:
    assert lancelot.parse_arithmetic(query) is None


def test_hybrid_joins_both_rankings_and_reports_a_fused_score(meaning: lancelot.Searcher) -> None:
    page = found(meaning, "recent", "hybrid")
    assert texts(page)[0] == "recent price"
    assert page.hits[0].score == pytest.approx(2 / 11)
    assert (page.total, page.capped) == (None, False)
    assert "fused" in json.loads(lancelot.search_json(page))["scoreMeaning"]


def test_hybrid_without_embeddings_is_full_text_with_a_note(searcher: lancelot.Searcher) -> None:
    page = found(searcher, "zen", "hybrid")
    assert page.ran == "fts"
    assert "it has no vector column" in page.notes[0]


def test_fusion_is_reciprocal_rank_with_ties_by_row() -> None:
    left = lancelot.Ranking((5, 3, 1), (0.1, 0.2, 0.3), None)
    right = lancelot.Ranking((3, 9), (4.0, 3.0), 2)
    fused = lancelot.fuse(left, right)
    assert fused.rows == (3, 5, 9, 1)
    assert fused.scores[0] == pytest.approx(1 / 12 + 1 / 11)


def test_arithmetic_on_real_embeddings_moves_towards_and_away(
    make_settings: Callable[..., lancelot.Settings], tmp_path: Path
) -> None:
    """Query vectors of all-MiniLM-L6-v2 over scientific claims: each case adds or subtracts one claim's meaning."""
    import lancedb
    import pyarrow as pa

    data = json.loads((TESTS / "retrieval" / "scifact-minilm.json").read_text(encoding="utf-8"))
    vectors = pa.array(data["corpus_vectors"], pa.list_(pa.float32(), len(data["corpus_vectors"][0])))
    lancedb.connect(tmp_path / "db").create_table(
        "documents", pa.table({"id": data["corpus_ids"], "text": data["corpus_texts"], "vector": vectors})
    )
    settings = make_settings(LANCEDB_PATH=tmp_path / "db")
    embedder = FixedEmbedder(settings)
    embedder.usual = (0.1, 0.1, 0.1)
    embedder.meanings = {name: tuple(vector) for name, vector in data["query_vectors"].items()}
    searcher = lancelot.Searcher(settings, embedder=embedder)

    def place(query: str, document: str) -> int:
        page = searcher.search(lancelot.SearchRequest(query, 200, "vector"))
        return [hit.id for hit in page.hits].index(document)

    assert len(data["cases"]) == 3
    for case in data["cases"]:
        first, second = case["first"], case["second"]
        away, towards = f'"{first["query"]}" -"{second["query"]}"', f'"{first["query"]}" +"{second["query"]}"'
        plain = place(first["query"], second["document"])
        assert place(towards.replace('"', "", 2), second["document"]) < plain
        assert place(away.replace('"', "", 2), second["document"]) > plain
        assert place(away.replace('"', "", 2), first["document"]) <= 2
