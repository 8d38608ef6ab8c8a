# ruff: noqa: RUF001 - letters and punctuation of every script are meant
from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import re
import sys
import threading
import unicodedata
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lancelot
from lancelot import bounded, fold, fold_pattern, json_safe, one_line, read_terms, shorten

modest = settings(max_examples=80, deadline=None, derandomize=True)

DOT_ABOVE = "\u0307"
# Letters beside each other that one letter may stand for, letters of two cases, marks, and regular expression operators.
TRICKY = "sßSẞſftiﬁﬀﬃﬆﬅıİIKåÅéÉçñệỆΣσςάΐᾳւեև的設กำ가1_%+#$-\\'\"^.*?()[]{}|&~`"
letters = st.sampled_from(TRICKY)
marks = st.sampled_from("\u0301\u0323\u0302\u0308\u0327")
words = st.one_of(
    st.text(letters, min_size=1, max_size=8),
    st.text(st.characters(exclude_categories=("Cs", "Mn", "Mc", "Me")), min_size=1, max_size=6),
)
any_text = st.one_of(st.text(st.one_of(letters, marks), max_size=30), st.text(max_size=30))


def variants(text: str) -> set[str]:
    """The text in every case and composition that folds to the same word."""
    cased = {text, text.upper(), text.lower(), text.title(), text.swapcase(), text.casefold()}
    every = cased | {unicodedata.normalize(form, variant) for variant in cased for form in ("NFC", "NFD")}
    return {variant for variant in every if fold(variant) == fold(text)}


def finds(word: str, text: str) -> bool:
    return re.search(fold_pattern(fold(word)), text) is not None


def bare(text: str) -> str:
    """Base letters alone, so that two texts are compared without their marks."""
    return "".join(char for char in unicodedata.normalize("NFD", text) if not unicodedata.combining(char))


# --- text


def test_one_line_makes_white_space_and_control_characters_one_space() -> None:
    assert one_line("  a\r\n\tb\x00\x1b\x85c\u2028d\u00a0e ") == "a b c d e"


@modest
@given(st.text(st.characters()))
def test_one_line_is_one_line_that_utf8_can_hold(text: str) -> None:
    line = one_line(text)
    assert line.splitlines() in ([line], [])
    assert line.encode().decode() == line
    assert one_line(line) == line


TAGS = "".join(chr(0xE0000 + ord(letter)) for letter in "ignore all of this")
ENGLAND = "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbeng") + "\U000e007f"
WANTED_JOINERS = ["می‌خواهم", "👩‍👩‍👧", "❤️‍🔥", "क्‍ष", ENGLAND, "葛\U000e0100", "☺️"]


def test_what_is_hidden_in_a_text_is_no_part_of_an_answer() -> None:
    assert lancelot.clean_text(f"a{TAGS}b") == lancelot.one_line(f"a{TAGS}b") == "ab"
    assert lancelot.clean_text("a\ufe01\ufe02\U000e0101\U000e01efb") == "a\ufe01b"
    assert lancelot.clean_text(f"{ENGLAND}{TAGS}") == ENGLAND
    assert lancelot.json_safe({f"k{TAGS}": [f"v{TAGS}"]}) == {"k": ["v"]}
    for text in (*WANTED_JOINERS, "\u202eabc\u200b\x1b", "plain"):
        assert lancelot.clean_text(text) == text


@pytest.mark.parametrize("text", WANTED_JOINERS)
def test_joiners_flags_and_variants_stay_at_a_terminal(text: str) -> None:
    assert lancelot.clean_lines(f"{text}\t.\n{text}") == f"{text}\t.\n{text}"


@given(st.text(st.characters()), st.sampled_from("\u200c\u200d\x1b\x9b\u202e\u2066\u200b\ufeff\U000e0041\r"))
def test_a_terminal_is_shown_no_control_and_nothing_hidden(text: str, control: str) -> None:
    shown = lancelot.clean_lines(f"a{control}b{text}{control}")
    assert shown.startswith("ab")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2060-\u2069\ufeff]", shown)


def test_a_lone_surrogate_becomes_a_replacement_character_and_a_pair_its_letter() -> None:
    assert one_line("a\ud83db") == "a\ufffdb"
    assert one_line("\ud83d\ude00") == "😀"


@modest
@given(any_text, st.integers(1, 40))
def test_a_shortened_text_fits_and_a_cut_is_marked(text: str, limit: int) -> None:
    short = shorten(text, limit)
    assert len(short) <= limit
    if len(text) <= limit:
        assert short == text
    else:
        assert short.endswith("…")
        assert text.startswith(short[:-1])


def test_listed_names_say_how_many_more_there_are() -> None:
    assert lancelot.listed("abcde", limit=3) == "a, b, c and 2 more"
    assert lancelot.listed(["a\nb"]) == "a b"
    assert lancelot.listed([]) == "none"


def test_a_count_agrees_with_its_noun() -> None:
    assert [lancelot.plural(count, "row") for count in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]


def test_an_error_is_its_cause_and_its_remedy() -> None:
    assert str(lancelot.LancelotError("It broke.", "Mend it.")) == "It broke. Mend it."
    assert str(lancelot.LancelotError("It broke.")) == "It broke."


# --- bounded calls


def test_a_bounded_call_returns_what_the_call_returns() -> None:
    assert bounded(lambda: None, seconds=10, name="x") is None


def test_a_bounded_call_raises_what_the_call_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, seconds=10, name="x")


def test_a_bounded_call_gives_up_in_time_and_names_what_took_so_long() -> None:
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError, match=r"the keychain took longer than 0\.05 s"):
            bounded(lambda: release.wait(30), seconds=0.05, name="the keychain")
    finally:
        release.set()


# --- values that JSON can hold


def test_values_of_every_kind_become_readable_json() -> None:
    noon = dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc)
    given_values = {
        "nan": math.nan,
        "infinities": [math.inf, -math.inf],
        "decimal": decimal.Decimal("1E+3"),
        "no number": decimal.Decimal("NaN"),
        "moment": noon,
        "day": noon.date(),
        "time": noon.time(),
        "span": dt.timedelta(days=1, microseconds=500),
        "big": 2**64 - 1,
        "flag": True,
        "nothing": None,
        "bytes": b"left out",
        "_node_content": "left out",
        "pairs": [("a", 1)],
        "half a pair": "\ud83d",
        "uuid": uuid.UUID(int=1),
        5: "a key that is no string",
    }
    assert json_safe(given_values) == {
        "nan": None,
        "infinities": [None, None],
        "decimal": "1000",
        "no number": "NaN",
        "moment": "2024-02-29T12:00:00+00:00",
        "day": "2024-02-29",
        "time": "12:00:00",
        "span": "PT86400.0005S",
        "big": 18446744073709551615,
        "flag": True,
        "nothing": None,
        "pairs": [["a", 1]],
        "half a pair": "\ufffd",
        "uuid": "00000000-0000-0000-0000-000000000001",
        "5": "a key that is no string",
    }


def test_long_strings_lists_and_deep_nesting_are_cut_with_a_mark() -> None:
    deep: Any = "bottom"
    for _ in range(20):
        deep = [deep]
    safe = json_safe({"text": "x" * 500, "list": list(range(60)), "deep": deep}, text_limit=10)
    assert safe["text"] == "x" * 9 + "…"
    assert safe["list"] == [*range(50), "… 10 more"]
    assert json.dumps(safe["deep"], ensure_ascii=False) == "[" * 7 + '"…"' + "]" * 7


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.decimals(),
    st.datetimes(timezones=st.none() | st.just(dt.timezone.utc)),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.binary(max_size=5),
    st.text(st.characters(), max_size=20),
    st.uuids(),
)
keys = st.one_of(st.text(st.characters(), max_size=5), st.integers(), st.floats(), st.none(), st.binary(max_size=3))
rows = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=60), st.tuples(inner), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=40,
)


@modest
@given(rows, st.integers(1, 50))
def test_any_value_of_a_row_becomes_json_that_utf8_can_hold(value: Any, text_limit: int) -> None:
    safe = json_safe(value, text_limit=text_limit)
    written = json.dumps(safe, allow_nan=False, ensure_ascii=False).encode()
    assert json.loads(written) == safe
    assert lancelot.compact_json(safe).encode()


def test_only_a_json_object_is_read_as_one() -> None:
    assert lancelot.parse_json_object(' {"a": 1}') == {"a": 1}
    assert lancelot.parse_json_object({"a": 1}) == {"a": 1}
    for value in ("[1]", '{"a":', "{" * 100_000, '{"a":' * 100_000, "text", 5, None, b"{}"):
        assert lancelot.parse_json_object(value) is None


def test_a_text_that_is_no_readable_json_has_the_default_as_its_value() -> None:
    assert [lancelot.parse_json(text) for text in ("[1]", '"a"', b"null")] == [[1], "a", None]
    for value in ("", "text", "[" * 100_000, None, 5, b"\xff"):
        assert lancelot.parse_json(value) is None
        assert lancelot.parse_json(value, value) == value


# --- folding


@pytest.mark.parametrize(
    ("written", "folded"),
    [
        ("ÅÄÖ", "åäö"),
        ("A\u030aA\u0308O\u0308", "åäö"),
        ("STRAẞE", "strasse"),
        ("Straße", "strasse"),
        ("İstanbul", "istanbul"),
        ("ISPARTA", "isparta"),
        ("ısparta", "isparta"),
        ("ΟΔΟΣ", "οδοσ"),
        ("οδος", "οδοσ"),
        ("ﬁnd ﬂow oﬃce", "find flow office"),
        ("TIẾNG VIỆT", "tiếng việt"),
        ("Vie\u0323\u0302t", "việt"),
        ("Vie\u0302\u0323t", "việt"),
        ("\u212bngstrom \u212aelvin", "ångstrom kelvin"),
    ],
)
def test_case_and_composition_are_folded_away(written: str, folded: str) -> None:
    assert fold(written) == folded


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("åäö", "Räksmörgås ÅÄÖ"),
        ("åäö", "A\u030aA\u0308O\u0308"),
        ("a\u030a", "på"),
        ("strasse", "Goethestraße"),
        ("STRAẞE", "strasse"),
        ("straße", "GOETHESTRASSE"),
        ("straße", "STRAẞE"),
        ("sß", "sß"),
        ("messstab", "Meßstab"),
        ("istanbul", "İSTANBUL"),
        ("istanbul", "I\u0307stanbul"),
        ("İstanbul", "istanbul"),
        ("ısparta", "ISPARTA"),
        ("isparta", "ısparta"),
        ("việt", "TIẾNG VIỆT"),
        ("việt", "Vie\u0323\u0302t"),
        ("việt", "Vie\u0302\u0323t"),
        ("việt", "Vi\u1eb9\u0302t"),
        ("việt", "Vi\u00ea\u0323t"),
        ("vie\u0302\u0323t", "Việt"),
        ("office", "oﬃce"),
        ("office", "oﬀice"),
        ("oﬃce", "of\ufb01ce"),
        ("fﬃ", "ﬀﬁ"),
        ("first", "ﬁrﬆ"),
        ("οδος", "ΟΔΟΣ"),
        ("ΟΔΟΣ", "οδος"),
        ("λόγος", "λ\u1f79γος"),
        ("ᾳ", "ΑΙ"),
        ("ångström", "\u212bngström"),
        ("café", "CAFE\u0301"),
        ("豈", "\uf900"),
        ("100%", "SAVE 100% NOW"),
        ("snake_case", "a Snake_Case name"),
        (r"C:\dir", r"in c:\DIR\file"),
        ("O'Reilly", "o'reilly's"),
        ("c++", "C++20"),
        ('"quoted"', '"Quoted"'),
        ("a\\", "A\\"),
    ],
)
def test_a_word_is_found_in_any_case_and_composition(word: str, text: str) -> None:
    assert finds(word, text)
    assert fold(word) in fold(text)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("100%", "100 percent"),
        ("snake_case", "snakeXcase"),
        ("a.c", "abc"),
        ("c++", "ccc"),
        (r"C:\dir", "C:dir"),
        (r"\d", "7"),
        ("[a-z]", "b"),
        ("a|b", "a"),
        ("x*", "y"),
        ("^a", "a"),
        ("a$", "a"),
        ("O'Reilly", "OReilly"),
        ("ö", "o"),
        ("ss", "s"),
        ("straße", "strase"),
        ("(?i)", "i"),
    ],
)
def test_no_character_of_a_word_is_an_operator(word: str, text: str) -> None:
    assert not finds(word, text)


def test_every_letter_is_found_in_each_of_its_cases_and_compositions() -> None:
    missed = []
    for code in (
        *range(0x80, 0xA000),
        *range(0xA640, 0xAC00),
        *range(0xF900, 0x11000),
        *range(0x1D100, 0x1D200),
        *range(0x2F800, 0x2FA20),
    ):
        spellings = variants(chr(code)) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs") else set()
        if len(spellings) > 1:
            missed += [(chr(code), found) for found in spellings if not finds(chr(code), f"x{found}x")]
    assert missed == []


@modest
@given(words, st.text(letters, max_size=5), st.text(letters, max_size=5))
def test_any_word_is_found_in_any_spelling_of_it(word: str, before: str, after: str) -> None:
    for variant in variants(word):
        assert finds(word, before + variant + after), variant


@modest
@given(words, any_text)
def test_what_is_found_is_the_word_and_nothing_that_differs_in_a_letter(word: str, text: str) -> None:
    for match in re.finditer(fold_pattern(fold(word)), text):
        # Where a dot above stands after an i it is part of the letter, once or twice.
        assert fold(match[0]).replace(DOT_ABOVE, "") == fold(word).replace(DOT_ABOVE, "")


@modest
@given(words, any_text)
def test_a_found_word_is_in_the_folded_text_but_for_marks_that_follow_it(word: str, text: str) -> None:
    if finds(word, text):
        assert bare(fold(word)) in bare(fold(text))
    if finds(word, text) and not any(map(unicodedata.combining, text)):
        assert fold(word) in fold(text)


# --- the words of a query


@pytest.mark.parametrize(
    ("query", "counted"),
    [
        ("Hello, World!", ("hello", "world")),
        ("What is the Zen of Python?", ("zen", "python")),
        ("the who", ("the", "who")),
        ("to be or not to be", ("to", "be", "or", "not")),
        ("zen Zen ZEN", ("zen",)),
        ("C++ and C#, @user $HOME /etc/hosts", ("c++", "c#", "@user", "$home", "/etc/hosts")),
        (r"100% snake_case C:\dir O'Reilly -Xmx512m", ("100%", "snake_case", r"c:\dir", "o'reilly", "-xmx512m")),
        ("“quoted” «so» (and) [so] x.", ("quoted", "x")),
        ("???", ("???",)),
        ("... !", ("...", "!")),
        ("a\x00b", ("b",)),
        ("設計図", ("設計", "計図")),
        ("設", ("設",)),
        ("ภาษาไทย", ("ภาษ", "าษา", "ษาไ", "าไท", "ไทย")),
        ("กา", ("กา",)),
        ("Python入門guide", ("python", "入門", "guide")),
        ("東京、大阪。", ("東京", "大阪")),
        ("データ base", ("デー", "ータ", "base")),
        ("한국어 검색", ("한국어", "검색")),
        ("", ()),
        (" \n\t", ()),
        ("\x00", ()),
    ],
)
def test_a_query_is_read_as_these_words(query: str, counted: tuple[str, ...]) -> None:
    assert read_terms(query).counted == counted


def test_a_run_without_spaces_is_kept_whole_beside_its_pieces() -> None:
    assert read_terms("設計図 x 設計 ภาษา").runs == ("設計図", "ภาษา")


def test_words_past_the_most_are_counted_as_dropped() -> None:
    terms = read_terms(" ".join(f"w{number}" for number in range(lancelot.MAX_TERMS + 7)))
    assert (len(terms.counted), terms.dropped) == (lancelot.MAX_TERMS, 7)
    assert terms.counted[0] == "w0"


def test_words_are_counted_as_long_as_they_are_short_together() -> None:
    terms = read_terms(" ".join(f"{number:0>300}" for number in range(10)))
    assert (len(terms.counted), terms.dropped) == (6, 4)
    runs = read_terms(" x ".join(chr(0x4E00 + number) * 900 for number in range(10))).runs
    assert sum(map(len, runs)) <= lancelot.MAX_TERM_CHARACTERS


@modest
@given(st.text(st.characters(), max_size=60))
def test_any_query_gives_words_that_can_be_looked_for(query: str) -> None:
    terms = read_terms(query)
    assert bool(terms.counted) == bool(query.replace("\x00", " ").split())
    assert len(set(terms.counted)) == len(terms.counted) <= lancelot.MAX_TERMS
    for term in (*terms.counted, *terms.runs):
        assert re.search(fold_pattern(term), lancelot.clean_surrogates(query).replace("\x00", " ")), term


def test_stop_words_are_already_folded() -> None:
    assert all(fold(word) == word for word in lancelot.STOP_WORDS)


def test_the_modules_import_only_the_standard_library() -> None:
    import subprocess

    code = (
        "import sys, lancelot, lancelot_index, lancelot_reading, lancelot_setup\n"
        "print(*sorted(set(sys.modules) & {'mcp', 'lancedb', 'pyarrow', 'openai', 'keyring'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == []


LIBRARY = """
import sys
from pathlib import Path
sys.modules["mcp"] = None
import lancelot, lancelot_index, lancelot_reading
folder = Path(sys.argv[1])
unset = lancelot.load_settings({"LANCELOT_LOCAL_MODEL": "off"}, folder)
embedder = lancelot_index.BulkEmbedder(lancelot.EndpointEmbedder(unset), lancelot.LocalEmbedder(unset))
request = lancelot_index.IndexRequest([folder / "docs"], folder / "db", "documents")
command = [sys.executable, lancelot.__file__, "extract"]
with lancelot_reading.Extractor(command) as extractor:
    lancelot_index.IndexRun(request, embedder, extractor).run(confirm=lambda _: True)
settings = lancelot.load_settings({"LANCEDB_PATH": str(folder / "db")}, folder)
page = lancelot.Searcher(settings).search(lancelot.SearchRequest("zebra", limit=3, search_type="text"))
print([hit.text for hit in page.hits])
"""


def test_as_a_library_they_index_and_search_where_there_is_no_mcp(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("a zebra", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-c", LIBRARY, str(tmp_path)],
        cwd=Path(lancelot.__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout.strip() == "['a zebra']", result.stderr
