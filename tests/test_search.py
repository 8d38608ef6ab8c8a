from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import lancedb
import lancedb.index
import pyarrow as pa
import pytest
from conftest import DATABASES, FOLDERS, TESTS
from standins import JSON, serving

import lancelot
from lancelot import (
    LancelotError,
    Row,
    Scope,
    SearchRequest,
    SearchType,
    Store,
    first_value,
    fold,
    rank_terms,
    read_terms,
)

Make = Callable[..., lancelot.Searcher]

EXPECTED = {name: json.loads((DATABASES / name / "expected.json").read_text(encoding="utf-8")) for name in FOLDERS}
QUERIES = [
    pytest.param(name, table["name"], query, id=f"{name}: {query['query']}")
    for name, entry in EXPECTED.items()
    for table in entry["tables"]
    for query in table["queries"]
]
BY_VECTOR = [case for case in QUERIES if case.values[2].get("vector_top3")]
KEY = "sk-a-secret-key"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One embedding server for all tests that only ask it."""
    command = [sys.executable, str(TESTS / "support" / "embedding_server.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path_factory.mktemp("server")) as process:
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        process.kill()


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that answers every request with the body that the test is parametrized with."""

    with serving(lambda _request: (200, JSON, request.param)) as server:
        yield f"{server.host}/v1"


def ask(searcher: lancelot.Searcher, query: str, search_type: SearchType = "text", **named: Any) -> lancelot.Page:
    return searcher.search(SearchRequest(query, **{"limit": 10, "search_type": search_type, **named}))


def is_a_reason(text: str) -> bool:
    """Whether a text is one sentence of what happened, and one at most of what to do about it."""
    return text[0].isupper() and text.endswith(".") and text.count(". ") <= 1 and "\n" not in text


# --- real folders


@pytest.mark.parametrize(("folder", "table", "query"), QUERIES)
def test_rows_with_every_word_are_among_the_first_ten(
    folder: str, table: str, query: dict[str, Any], make_searcher: Make
) -> None:
    page = ask(make_searcher(LANCEDB_PATH=DATABASES / folder), query["query"], table=table)
    shown = {hit.id: (hit.title, hit.source, hit.score) for hit in page.hits}
    for row in query["must_find"]:
        title = row["title"] or (row["source"] or "").rpartition("/")[2]
        assert shown[row["id"]] == (title, row["source"] or "", 1.0)
    assert page.ran == "text"
    assert page.total is not None
    assert page.total >= len(page.hits) >= len(query["must_find"])


@pytest.mark.parametrize(("folder", "table", "query"), QUERIES)
def test_a_score_is_the_share_of_the_words_that_are_found(
    folder: str, table: str, query: dict[str, Any], make_searcher: Make
) -> None:
    searcher = make_searcher(LANCEDB_PATH=DATABASES / folder)
    words = read_terms(query["query"]).counted
    page = ask(searcher, query["query"], table=table, limit=200)
    opened = searcher.store.open(table)
    column = searcher.store.layout(opened).text
    assert column
    layout = searcher.store.layout(opened)
    texts = [
        (
            fold(row[column.name]),
            fold(f"{first_value(named, layout.title)}\n{first_value(named, layout.source).rpartition('/')[2]}"),
        )
        for row in opened.to_arrow().to_pylist()
        if (named := Row(0, row)) and row[column.name]
    ]
    in_name = {word: re.compile(word if len(word) > 3 else rf"\b{word}\b").search for word in words}
    found = sorted(
        (sum(word in text or bool(in_name[word](name)) for word in words) / len(words) for text, name in texts),
        reverse=True,
    )
    assert page.total == sum(map(bool, found))
    assert [hit.score for hit in page.hits] == [share for share in found if share][:200]


@pytest.mark.parametrize(("folder", "table", "query"), BY_VECTOR)
def test_the_nearest_rows_come_first_by_vector_and_by_auto(
    folder: str, table: str, query: dict[str, Any], make_searcher: Make, endpoint: str
) -> None:
    searcher = make_searcher(LANCEDB_PATH=DATABASES / folder, OPENAI_BASE_URL=endpoint)
    for search_type in ("vector", "auto"):
        page = ask(searcher, query["query"], search_type, table=table)  # type: ignore[arg-type]
        assert (page.ran, page.total, page.notes) == ("vector", None, ())
        nearest = query["vector_top3"]
        assert [hit.id for hit in page.hits[:3]] == [row["id"] for row in nearest]
        assert [hit.score for hit in page.hits[:3]] == pytest.approx([1 - row["cosine"] for row in nearest], abs=1e-5)
        assert [hit.score for hit in page.hits] == sorted(hit.score for hit in page.hits)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_table_has_the_rows_and_columns_it_is_known_for(folder: str, make_searcher: Make) -> None:
    status = make_searcher(LANCEDB_PATH=DATABASES / folder).status()
    assert status.unreadable == {}
    for layout, table in zip(
        status.tables, sorted(EXPECTED[folder]["tables"], key=lambda entry: entry["name"]), strict=True
    ):
        assert (layout.table, layout.rows) == (table["name"], table["rows"])
        assert (layout.vector, layout.vectors.get("vector")) == (table["pick"]["vector"], table["pick"]["dimension"])
        assert layout.text
        assert layout.text.name == table["pick"]["text"]


@pytest.mark.parametrize("limit", [1, 3, 200])
def test_a_limit_cuts_the_hits_but_not_the_total(limit: int, make_searcher: Make) -> None:
    searcher = make_searcher(LANCEDB_PATH=DATABASES / "langchain")
    page, whole = ask(searcher, "python", limit=limit), ask(searcher, "python", limit=200)
    assert page.total == whole.total == len(whole.hits)
    assert page.hits == whole.hits[:limit]


# --- fallbacks


def fallen_back(searcher: lancelot.Searcher, search_type: SearchType = "vector") -> str:
    """The note of a search that could not run by vector; the text search's hits are checked."""
    page = ask(searcher, "beautiful ugly explicit implicit", search_type)
    assert (page.ran, page.hits[0].score) == ("text", 1.0)
    assert len(page.notes) == 1
    assert is_a_reason(page.notes[0])
    assert KEY not in page.notes[0]
    return page.notes[0]


def test_without_a_key_vector_search_says_so_and_auto_says_nothing(make_searcher: Make) -> None:
    searcher = make_searcher(LANCEDB_PATH=DATABASES / "langchain")
    assert fallen_back(searcher) == (
        "Text search ran, since vector search was not possible: No API key is set, so there are no embeddings."
    )
    assert ask(searcher, "beautiful", "auto").notes == ()


@pytest.mark.parametrize("search_type", ["vector", "auto"])
def test_a_dead_endpoint_is_named_with_the_reason(search_type: SearchType, make_searcher: Make) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    searcher = make_searcher(
        LANCEDB_PATH=DATABASES / "langchain",
        OPENAI_BASE_URL=f"http://user:{KEY}@127.0.0.1:{port}/v1",
        OPENAI_API_KEY=KEY,
    )
    assert fallen_back(searcher, search_type) == (
        "Text search ran, since vector search was not possible: The embedding server at "
        f"127.0.0.1:{port} cannot be reached (Connection refused)."
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--require-key", "another"), "refused the API key (HTTP 401)"),
        (("--fail-with", "403"), "does not allow embedding with this API key (HTTP 403)"),
        (("--fail-with", "404"), 'does not know the model "text-embedding-ada-002" or the address (HTTP 404)'),
        (("--fail-with", "429"), "reached its rate limit or the key's quota (HTTP 429)"),
        (("--fail-with", "500"), "failed with HTTP 500"),
        (("--fail-with", "302"), "sends to another address, which is not followed (HTTP 302)"),
        (("--delay", "20"), "did not answer within 0.5 s"),
        (("--wrong-dimensions",), "length 384, but the model text-embedding-ada-002 gives length 400"),
    ],
)
def test_an_endpoint_that_fails_is_named_with_the_reason(
    options: tuple[str, ...], reason: str, make_searcher: Make, embedding_server: Callable[..., str]
) -> None:
    searcher = make_searcher(
        LANCEDB_PATH=DATABASES / "langchain",
        OPENAI_BASE_URL=embedding_server(*options),
        OPENAI_API_KEY=KEY,
        LANCELOT_EMBEDDING_TIMEOUT="0.5" if "--delay" in options else "15",
    )
    for search_type in ("vector", "auto"):
        note = fallen_back(searcher, search_type)  # type: ignore[arg-type]
        assert reason in note
        assert "Told to fail" not in note
        assert "Incorrect" not in note


SERVER_WORDS = "the server's own words"
NO_EMBEDDINGS = [
    f"<html>{SERVER_WORDS}</html>".encode(),
    b"",
    b"{}",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe",
    json.dumps({"error": SERVER_WORDS}).encode(),
    b'{"data": []}',
    b'{"data": {}}',
    b'{"data": [{}]}',
    b'{"data": [{"embedding": null}]}',
    b'{"data": [{"embedding": []}]}',
    b'{"data": [{"embedding": "AACAPw=="}]}',
    b'{"data": [{"embedding": ["a", "b"]}]}',
    b'{"data": [{"embedding": ["1.0", "2.0"]}]}',
    b'{"data": [{"embedding": [true, false]}]}',
    b'{"data": [{"embedding": [[1.0], [2.0]]}]}',
    b'{"data": [{"embedding": {"0": 1.0}}]}',
    b'{"data": [{"embedding": [NaN, 1.0]}]}',
    b'{"data": [{"embedding": [Infinity, 1.0]}]}',
    b'{"data": [{"embedding": [1e999, 1.0]}]}',
    b'{"data": [{"embedding": [0, 0, 0]}]}',
    b'{"data": [{"embedding": [1' + b"0" * 400 + b"]}]}",
    b"[" * 100_000,
]


@pytest.mark.parametrize("answering", NO_EMBEDDINGS, indirect=True, ids=range(len(NO_EMBEDDINGS)))
def test_an_answer_that_is_no_embedding_is_told_without_its_words(answering: str, make_searcher: Make) -> None:
    searcher = make_searcher(LANCEDB_PATH=DATABASES / "langchain", OPENAI_BASE_URL=answering, OPENAI_API_KEY=KEY)
    note = fallen_back(searcher)
    assert "answered with something that is no embedding" in note
    assert SERVER_WORDS not in note


def test_a_table_without_vectors_is_searched_as_text_with_a_note(make_searcher: Make, endpoint: str) -> None:
    searcher = make_searcher(LANCEDB_PATH=DATABASES / "no-vector", OPENAI_BASE_URL=endpoint)
    assert fallen_back(searcher) == (
        "Text search ran, since vector search was not possible: The table library_records cannot be searched by "
        "vector: it has no vector column."
    )
    assert fallen_back(make_searcher(LANCEDB_PATH=DATABASES / "no-vector")) == fallen_back(searcher)  # whatever the key


def test_auto_that_finds_nothing_by_vector_falls_back_and_vector_does_not(
    make_table: Callable[..., Path], make_searcher: Make, endpoint: str
) -> None:
    zeros = pa.array([[0.0] * 384] * 2, pa.list_(pa.float32(), 384))
    folder = make_table({"text": ["a zebra", "a lion"], "vector": zeros})
    searcher = make_searcher(LANCEDB_PATH=folder, OPENAI_BASE_URL=endpoint)
    page = ask(searcher, "zebra", "auto")
    assert (page.ran, [hit.text for hit in page.hits]) == ("text", ["a zebra"])
    assert page.notes == ("Text search ran, since vector search found nothing.",)
    page = ask(searcher, "zebra", "vector")
    assert (page.ran, page.hits) == ("vector", ())
    assert page.notes[0].startswith("2 rows of documents have no vector")


def test_the_vector_column_that_fits_the_embedding_is_taken(
    make_table: Callable[..., Path], make_searcher: Make, endpoint: str
) -> None:
    columns = {
        "text": ["a zebra", "a lion"],
        "small": pa.array([[1.0, 0.0]] * 2, pa.list_(pa.float32(), 2)),
        "large": pa.array([[1.0] * 384] * 2, pa.list_(pa.float32(), 384)),
    }
    searcher = make_searcher(LANCEDB_PATH=make_table(columns), OPENAI_BASE_URL=endpoint)
    assert ask(searcher, "zebra", "vector").ran == "vector"
    page = ask(searcher, "zebra", "vector", vector_column="small")
    assert page.ran == "text"
    assert "documents.small have length 2" in page.notes[0]


def test_words_past_the_most_are_told(make_searcher: Make) -> None:
    query = " ".join(f"python{number}" for number in range(lancelot.MAX_TERMS + 1))
    dropped, missing = ask(make_searcher(LANCEDB_PATH=DATABASES / "langchain"), query).notes
    assert dropped == f"Only the first {lancelot.MAX_TERMS} different words of the query were counted."
    assert missing.startswith("These words occur in no chunk: python0, python1,")


@pytest.mark.parametrize("query", ["", "  ", "\n\t", "\x00"])
def test_a_blank_query_is_a_sentence(query: str, make_searcher: Make) -> None:
    with pytest.raises(LancelotError, match="The query is blank"):
        ask(make_searcher(LANCEDB_PATH=DATABASES / "langchain"), query)


# --- the table


def test_the_only_table_is_taken_where_none_is_named(make_searcher: Make) -> None:
    assert ask(make_searcher(LANCEDB_PATH=DATABASES / "langchain"), "python").table == "vectorstore"


def test_the_default_table_is_one_of_several_unless_it_is_set(
    make_searcher: Make, folder_copy: Callable[[str], Path]
) -> None:
    folder = folder_copy("anythingllm")
    lancedb.connect(folder).create_table("documents", pa.table({"text": ["python"]}))
    assert {hit.table for hit in ask(make_searcher(LANCEDB_PATH=folder), "python").hits} > {"documents"}
    assert ask(make_searcher(LANCEDB_PATH=folder, LANCEDB_TABLE="documents"), "python").table == "documents"


def test_the_setting_and_the_argument_choose_the_table(make_searcher: Make) -> None:
    searcher = make_searcher(LANCEDB_PATH=DATABASES / "anythingllm", LANCEDB_TABLE="world-notes")
    assert ask(searcher, "python").table == "world-notes"
    assert ask(searcher, "python", table="python-peps").table == "python-peps"


@pytest.mark.parametrize("named", ["argument", "setting"])
def test_an_unknown_table_is_a_sentence_with_the_near_ones_and_all(named: str, make_searcher: Make) -> None:
    in_setting = {"LANCEDB_TABLE": "python-pep"} if named == "setting" else {}
    searcher = make_searcher(LANCEDB_PATH=DATABASES / "anythingllm", **in_setting)
    with pytest.raises(LancelotError) as failure:
        ask(searcher, "python", table="python-pep" if named == "argument" else None)
    whose = ", which LANCEDB_TABLE names" if named == "setting" else ""
    assert str(failure.value) == (
        f'There is no table "python-pep"{whose}. Did you mean python-peps? The tables are python-peps, world-notes.'
    )


def test_an_unreadable_table_beside_the_only_readable_one_is_passed_over(
    make_searcher: Make, folder_copy: Callable[[str], Path]
) -> None:
    folder = folder_copy("langchain")
    (folder / "broken.lance").mkdir()
    assert ask(make_searcher(LANCEDB_PATH=folder), "python").table == "vectorstore"


def test_a_folder_of_unreadable_tables_says_why(make_searcher: Make, tmp_path: Path) -> None:
    for name in ("broken", "other"):
        (tmp_path / "db" / f"{name}.lance").mkdir(parents=True)
    with pytest.raises(LancelotError, match=r"No table of .* can be read\. LanceDB could not open the table broken"):
        ask(make_searcher(LANCEDB_PATH=tmp_path / "db"), "x")


def test_the_text_column_is_chosen_by_the_setting_and_by_the_argument(
    make_table: Callable[..., Path], make_searcher: Make
) -> None:
    folder = make_table({"text": ["zebra"], "summary": ["lion"], "notes": ["tiger"]})
    searcher = make_searcher(LANCEDB_PATH=folder, LANCEDB_TEXT_COLUMN="summary")
    assert ask(searcher, "lion").total == 1
    assert ask(searcher, "zebra").total == 0
    assert ask(searcher, "tiger", text_column="notes").total == 1


# --- the overview and the status


def test_an_overview_opens_with_readme_like_sources_and_gives_each_source_once(
    make_table: Callable[..., Path], make_searcher: Make
) -> None:
    sources = ["b.md", "b.md", "a.md", "docs/README.md", "docs/README.md", "index.md"]
    folder = make_table({"text": [f"chunk {number}" for number in range(6)], "source": sources})
    overview = make_searcher(LANCEDB_PATH=folder).overview(limit=3)
    assert [hit.text for hit in overview.hits] == ["chunk 3", "chunk 5", "chunk 0"]
    assert overview.total == 4


@pytest.mark.parametrize("broken", ["unset", "missing", "file", "empty"])
def test_the_status_tells_what_is_wrong_with_the_folder(broken: str, make_searcher: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    paths = {} if broken == "unset" else {"LANCEDB_PATH": tmp_path / broken}
    status = make_searcher(**paths).status()
    assert bool(status.error) == (broken != "empty")
    assert status.tables == ()


def test_the_status_lists_the_tables_with_the_searches_that_work(make_searcher: Make, endpoint: str) -> None:
    known = {"LANCEDB_PATH": DATABASES / "anythingllm", "OPENAI_BASE_URL": endpoint}
    fitting = make_searcher(**known).status()
    assert fitting.search_types(fitting.tables[0])[0] == "hybrid"
    assert fitting.table_note(fitting.tables[0]) == ""
    status = make_searcher(**known, EMBEDDING_MODEL="text-embedding-3-small").status()
    assert [(layout.table, layout.rows) for layout in status.tables] == [("python-peps", 155), ("world-notes", 177)]
    assert [status.search_types(layout) for layout in status.tables] == [["fts", "text", "auto"]] * 2
    assert "384" in status.table_note(status.tables[0])
    without = make_searcher(LANCEDB_PATH=DATABASES / "no-vector").status()
    assert without.default_table == "library_records"
    assert without.search_types(without.tables[0]) == ["fts", "text", "auto"]
    assert without.table_note(without.tables[0]) == "no vector search: it has no vector column"


# --- how well text search ranks

# Measured .975, .893, .976 and .932; by share and row alone it is .944, .824, .966 and .921.
FLOORS = {"en": 0.971, "de": 0.888, "zh": 0.972, "th": 0.928}


def ndcg_at_10(rows: tuple[int, ...], relevant: int) -> float:
    return 1 / math.log2(rows.index(relevant) + 2) if relevant in rows[:10] else 0.0


@pytest.mark.parametrize("language", FLOORS)
def test_text_search_ranks_the_paragraph_that_answers_a_question_high(
    language: str, make_table: Callable[..., Path]
) -> None:
    lines = (TESTS / "retrieval" / f"xquad-{language}.jsonl").read_text(encoding="utf-8").splitlines()
    paragraphs = [json.loads(line) for line in lines]
    store = Store(str(make_table({"text": [paragraph["text"] for paragraph in paragraphs]})))
    table = store.open("documents")
    layout = store.layout(table)
    gains = [
        ndcg_at_10(rank_terms(Scope(table, layout), read_terms(question), by_share=True)[0].rows, row)
        for row, paragraph in enumerate(paragraphs)
        for question in paragraph["questions"]
    ]
    assert len(gains) == 197
    assert sum(gains) / len(gains) >= FLOORS[language]


def test_a_mistyped_address_of_a_server_never_turns_into_openai_s(
    make_searcher: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = make_searcher(
        LANCEDB_PATH=DATABASES / "langchain", OPENAI_BASE_URL="localhost:11434/v1", OPENAI_API_KEY="sk-local"
    )
    monkeypatch.setattr(searcher.embedder, "embed", lambda texts: pytest.fail(f"asked for {texts}"))
    page = ask(searcher, "beautiful", "vector")
    assert page.ran == "text"
    assert "OPENAI_BASE_URL is set to what is no address" in page.notes[0]
    status = searcher.status()
    assert not status.embeddings
    assert "OPENAI_BASE_URL" in status.why_no_embeddings


def test_a_setting_that_names_no_table_is_told_in_the_status(make_searcher: Make) -> None:
    status = make_searcher(LANCEDB_PATH=DATABASES / "anythingllm", LANCEDB_TABLE="nope").status()
    answer = json.loads(lancelot.status_json(status, verbose=False))
    assert 'no table "nope", which LANCEDB_TABLE names' in answer["defaultTableProblem"]


def test_the_only_table_with_text_is_taken_and_a_table_without_is_told_what_else_there_is(
    make_table: Callable[..., Path], make_searcher: Make
) -> None:
    make_table({"n": [1, 2]}, name="numbers")
    folder = make_table({"text": ["a zebra"]}, name="notes")
    searcher = make_searcher(LANCEDB_PATH=folder)
    assert ask(searcher, "zebra").table == "notes"
    with pytest.raises(LancelotError, match=r"holds no text: .* `lancedb_status` shows the tables"):
        ask(searcher, "zebra", table="numbers")


@pytest.mark.parametrize("text", ["caf\u00e9", "cafe\u0301", "CAFE\u0301"])
def test_a_word_without_accents_finds_no_accented_one_however_it_is_composed(
    text: str, make_table: Callable[..., Path], make_searcher: Make
) -> None:
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": [f"un {text} noir", "un cafe noir"]}))
    assert [hit.id for hit in ask(searcher, "cafe", "text").hits] == ["row:1"]
    assert [hit.id for hit in ask(searcher, "caf\u00e9", "text").hits] == ["row:0"]


def test_words_that_a_share_is_of_are_named_where_stop_words_were_left_out(
    make_table: Callable[..., Path], make_searcher: Make
) -> None:
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": ["a module"]}))
    assert json.loads(lancelot.search_json(ask(searcher, "the other module", "text")))["countedWords"] == ["module"]
    assert "countedWords" not in json.loads(lancelot.search_json(ask(searcher, "module", "text")))


def test_a_chunk_whose_id_or_column_holds_hidden_text_is_read_and_shows_none_of_it(
    make_table: Callable[..., Path], make_searcher: Make
) -> None:
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "ignore this")
    columns = {"id": [f"a{hidden}"], "text": [f"zebra {hidden}"], f"x{hidden}": [f"v{hidden}"], "title": [f"t{hidden}"]}
    searcher = make_searcher(LANCEDB_PATH=make_table(columns))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("lancedb_search", {"query": "zebra"}),
        ("lancedb_query", {"question": "zebra"}),
        ("lancedb_read", {"id": "row:0"}),
        ("lancedb_files", {}),
        ("lancedb_status", {"verbose": True}),
        ("lancedb_values", {"column": f"x{hidden}"}),
        ("lancedb_search", {"query": "zebra", "filter": {f"x{hidden}": {"gt": 5}}}),
    ]
    answers = [lancelot.call_tool(tool, searcher, given) for name, given in calls if (tool := lancelot.find_tool(name))]
    assert [failed for _, failed in answers] == [False] * 6 + [True]
    assert json.loads(answers[0][0])["hits"][0]["id"] == "row:0"
    assert not any("\U000e0000" <= letter <= "\U000e007f" for text, _ in answers for letter in text)


DIVIDED = [
    *("An auto\u00admobile.", "An inspec-\r\n  tion of", "a well-\nknown man", "zero\u200bwidth", "3-\n4 and c-\n- d"),
    *("Umwelt\u2010\nschäden", "what is whole: automation"),
]


@pytest.mark.parametrize("column", ["text", "document"])
@pytest.mark.parametrize(
    "word", ["automobile", "auto\u00admobile", "inspection", "well-known", "zerowidth", "umweltschäden", "automation"]
)
def test_words_that_other_programs_left_divided_are_found_and_shown_whole(
    word: str, column: str, make_table: Callable[..., Path], make_searcher: Make
) -> None:
    rows = {"text": DIVIDED} if column == "text" else {"metadata": [json.dumps({"text": text}) for text in DIVIDED]}
    searcher = make_searcher(LANCEDB_PATH=str(make_table(rows)))
    for kind in ("text", "fts"):
        page = ask(searcher, word, cast("SearchType", kind))
        assert (page.total, len(page.hits)) == (1, 1)
        assert "none of the hits" not in lancelot.search_lines(page)
        assert lancelot.INVISIBLE[0] not in page.hits[0].text
    conditions = {"text" if column == "text" else "metadata.text": {"contains": word}}
    assert ask(searcher, "", conditions=conditions).total == 1


def test_a_word_that_an_index_knows_in_pieces_only_is_found_in_the_texts(
    make_table: Callable[..., Path], make_searcher: Make
) -> None:
    folder = make_table({"text": DIVIDED})
    lancedb.connect(str(folder)).open_table("documents").create_index("text", config=lancedb.index.FTS())
    page = ask(make_searcher(LANCEDB_PATH=str(folder)), "automobile", "fts")
    assert page.total == 1
    assert lancelot.snippet(page.hits[0].text, page.terms) == "An automobile."


def test_a_snippet_shows_words_whole() -> None:
    assert (
        lancelot.snippet("the inspec-\ntion of auto\u00admobiles", read_terms("x")) == "the inspection of automobiles"
    )


# --- rows without a vector


@pytest.fixture
def gaps(tmp_path: Path, make_settings: Callable[..., lancelot.Settings], endpoint: str) -> Path:
    """A table with three rows that no search for meaning finds, and one without a text too, which does not count."""
    texts = ["harbour at dawn", "bread recipe", "lighthouse keeper", "clock maker", "iron bridge", None]
    vectors = lancelot.EndpointEmbedder(make_settings(OPENAI_BASE_URL=endpoint)).embed(texts[:2])
    return write_vectors(tmp_path / "db", texts, [*vectors, None, [0.0] * 384, [math.inf] * 384, None])


def write_vectors(folder: Path, texts: Sequence[str | None], vectors: Sequence[Sequence[float] | None]) -> Path:
    columns = {"id": range(len(texts)), "text": texts, "meaning": pa.array(vectors, pa.list_(pa.float32(), 384))}
    lancedb.connect(folder).create_table("documents", pa.table(columns), on_bad_vectors="null")
    return folder


@pytest.mark.parametrize(("query", "found"), [("lighthouse keeper", 2), ("clock maker", 3), ("iron bridge", 4)])
def test_auto_finds_rows_without_a_vector_by_their_words(
    query: str, found: int, gaps: Path, make_searcher: Make, endpoint: str
) -> None:
    searcher = make_searcher(LANCEDB_PATH=gaps, OPENAI_BASE_URL=endpoint)
    page = ask(searcher, query, "auto")
    assert page.ran == "hybrid"
    assert found in [hit.id for hit in page.hits[:2]]
    told = "Hybrid search ran, since 3 rows of documents have no vector, and only words find them."
    assert page.notes == (told,)
    pages = [ask(searcher, query, "auto", limit=1, offset=place) for place in range(page.ranked)]
    assert [hit.id for one in pages for hit in one.hits] == [hit.id for hit in page.hits]
    block = lancelot.run_query(searcher, **searcher_arguments("lancedb_query", searcher, question=query))
    assert f"```text\n{query}\n```" in block
    assert "hybrid search" in block
    assert "3 rows of documents have no vector, so that only words find them." in block
    set_by_a_person = make_searcher(LANCEDB_PATH=gaps, OPENAI_BASE_URL=endpoint, LANCELOT_SEARCH_TYPE="text")
    block = lancelot.run_query(set_by_a_person, **searcher_arguments("lancedb_query", searcher, question=query))
    assert "text search" in block


@pytest.mark.parametrize("question", ["what is -leaking", 'what is "leaking"'])
def test_a_question_is_searched_in_full_text_if_there_are_no_embeddings(
    question: str, tmp_path: Path, make_searcher: Make
) -> None:
    rows = [{"text": "The boiler leaks."}, {"text": "A leaflet."}]
    table = lancedb.connect(tmp_path).create_table("documents", rows)
    table.create_index("text", config=lancedb.index.FTS(base_tokenizer="icu/split", with_position=True))
    searcher = make_searcher(LANCEDB_PATH=tmp_path)
    page = searcher.search_question(question, limit=5)
    assert (page.ran, [hit.text for hit in page.hits], page.notes) == ("fts", ["The boiler leaks."], ())


def searcher_arguments(name: str, searcher: lancelot.Searcher, **given: Any) -> dict[str, Any]:
    tool = lancelot.find_tool(name)
    assert tool
    return tool.parse_arguments(given, searcher.settings)


def test_rows_without_any_of_several_vectors_are_counted(
    make_table: Callable[..., Path], make_searcher: Make, endpoint: str
) -> None:
    several = pa.array([[[1.0] * 384, [0.5] * 384], [], None], pa.list_(pa.list_(pa.float32(), 384)))
    folder = make_table({"text": ["one", "two bridges", "three"], "vector": several})
    page = ask(make_searcher(LANCEDB_PATH=folder, OPENAI_BASE_URL=endpoint), "bridges", "auto")
    assert (page.ran, page.notes[0].count("2 rows of documents")) == ("hybrid", 1)


def test_vector_and_hybrid_search_say_which_rows_have_no_vector(gaps: Path, make_searcher: Make, endpoint: str) -> None:
    searcher = make_searcher(LANCEDB_PATH=gaps, OPENAI_BASE_URL=endpoint)
    rows = "3 rows of documents have no vector"
    page = ask(searcher, "lighthouse keeper", "vector")
    told = f"{rows}, so that vector search does not find them; hybrid does, by words."
    assert (page.ran, page.notes) == ("vector", (told,))
    page = ask(searcher, "lighthouse keeper", "hybrid")
    assert (page.ran, page.notes) == ("hybrid", (f"{rows}, so that only words find them.",))
    assert 2 in [hit.id for hit in page.hits]
    assert ask(searcher, "lighthouse keeper", "text").notes == ()


def test_the_status_and_its_health_say_how_many_rows_have_no_vector(
    gaps: Path, make_searcher: Make, endpoint: str
) -> None:
    status = lancelot.examined_status(make_searcher(LANCEDB_PATH=gaps, OPENAI_BASE_URL=endpoint))
    (table,) = json.loads(lancelot.status_json(status, verbose=False))["tables"]
    assert table["note"] == "3 rows of documents have no vector"
    assert table["searchTypes"][0] == "hybrid"
    assert "3 rows of documents have no vector" in lancelot.status_lines(status)
    lines = [(check.message, check.remedy) for check in status.checks if check.name == "columns" and check.remedy]
    remedy = "Let the program that writes it embed them again."
    assert lines == [("3 rows of documents have no vector, so only words find them.", remedy)]
    assert lancelot.examined_status(make_searcher(LANCEDB_PATH=gaps)).vectorless == {}


def test_rows_without_a_vector_are_counted_once_for_a_version_of_a_table(
    gaps: Path, make_searcher: Make, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    count = lancelot.count_without_vector
    monkeypatch.setattr(
        lancelot, "count_without_vector", lambda *told, **how: counts.append(count(*told, **how)) or counts[-1]
    )
    searcher = make_searcher(LANCEDB_PATH=gaps, OPENAI_BASE_URL=endpoint)
    for offset in (0, 1):
        assert ask(searcher, "bridge", "auto", offset=offset).ran == "hybrid"
    assert counts == [3]
    database = lancedb.connect(gaps)
    whole = database.open_table("documents").to_arrow().slice(0, 2)
    database.open_table("documents").delete("id > 3")
    assert ask(searcher, "bridge", "auto").ran == "hybrid"
    database.create_table("documents", whole, mode="overwrite")
    page = ask(searcher, "bridge", "auto")
    assert (page.ran, page.notes) == ("vector", ())
    assert counts == [3, 2, 0]


def test_a_table_made_again_with_its_vectors_is_counted_again(
    tmp_path: Path, make_searcher: Make, endpoint: str
) -> None:
    texts = ["one bridge", "two bridges"]
    folder = write_vectors(tmp_path / "db", texts, [[1.0] * 384, None])
    searcher = make_searcher(LANCEDB_PATH=folder, OPENAI_BASE_URL=endpoint)
    assert ask(searcher, "bridge", "auto").ran == "hybrid"
    lancedb.connect(folder).drop_table("documents")
    write_vectors(folder, texts, [[1.0] * 384, [0.5] * 384])
    assert lancedb.connect(folder).open_table("documents").version == 1
    assert ask(searcher, "bridge", "auto").ran == "vector"


def test_of_a_large_table_the_first_rows_are_looked_at(
    gaps: Path, make_searcher: Make, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot, "NUMBERS_COUNTED", 3 * 384)
    (note,) = ask(make_searcher(LANCEDB_PATH=gaps, OPENAI_BASE_URL=endpoint), "bridge", "hybrid").notes
    assert note == "At least 1 row of documents has no vector, so that only words find them."


# --- words that no chunk holds


@pytest.fixture
def zebras(make_table: Callable[..., Path]) -> Path:
    texts = ["zebra " * number for number in range(9, 0, -1)] + ["a lion of the savannah", "café société"]
    return make_table({"text": texts, "place": list(range(11))})


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("search_type", ["text", "fts"])
def test_words_that_no_chunk_holds_are_the_same_on_every_page(
    search_type: SearchType,
    indexed: bool,  # noqa: FBT001 - a value of the table
    zebras: Path,
    make_searcher: Make,
) -> None:
    if indexed:
        lancedb.connect(zebras).open_table("documents").create_index(
            "text", config=lancedb.index.FTS(ascii_folding=True)
        )
    searcher = make_searcher(LANCEDB_PATH=zebras)
    query = f"zebra savannah okapi CAFÉ the {'->' if indexed and search_type == 'fts' else '北京'}"
    told = ("These words occur in no chunk: okapi.",)
    for limit, offset in ((1, 0), (3, 6), (200, 0), (2, 9), (5, 50)):
        assert ask(searcher, query, search_type, limit=limit, offset=offset).notes[-1:] == told
    told = ("These words occur in no chunk that meets the filter: savannah.",)
    assert ask(searcher, "zebra savannah", search_type, conditions={"place": {"lt": 9}}).notes == told
    assert ask(searcher, "zebra savannah", search_type).notes == ()
    assert ask(searcher, "zebra zebra", search_type).notes == ()
    assert ask(searcher, "okapi giraffe", search_type).hits == ()
    assert not any("occur in no chunk" in note for note in ask(searcher, "okapi giraffe", search_type).notes)


@pytest.mark.parametrize("word", ["encryption", "numbers", "running", "cafe", "CAFÉ", "lodz", "Ore"])
def test_a_word_that_an_index_finds_by_another_of_its_forms_is_not_said_to_be_missing(
    word: str, make_table: Callable[..., Path], make_searcher: Make
) -> None:
    folder = make_table({"text": ["encrypted number of a run in the café, Łódź, øre", "zebra"]})
    config = lancedb.index.FTS(stem=True, ascii_folding=True, language="English")
    lancedb.connect(folder).open_table("documents").create_index("text", config=config)
    assert ask(make_searcher(LANCEDB_PATH=folder), f"zebra {word}", "fts").notes == ()


def test_hybrid_search_names_no_word_as_missing(gaps: Path, make_searcher: Make, endpoint: str) -> None:
    page = ask(make_searcher(LANCEDB_PATH=gaps, OPENAI_BASE_URL=endpoint), "bridge okapi", "hybrid")
    assert not any("occur in no chunk" in note for note in page.notes)


def test_a_question_in_chinese_is_searched_by_share_of_its_pairs_and_others_by_bm25(
    make_table: Callable[..., Path], make_searcher: Make
) -> None:
    searcher = make_searcher(LANCEDB_PATH=make_table({"text": ["锅炉的压力太低", "the boiler lost its pressure"]}))
    assert searcher.search_question("锅炉的压力", limit=5).ran == "text"
    assert searcher.search_question("boiler pressure", limit=5).ran == "fts"
