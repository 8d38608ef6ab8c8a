"""The commands for a person and for programs: what they print, how they end, how the program knows itself."""

import ast
import hashlib
import io
import json
import os
import py_compile
import re
import shlex
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import DATABASES, NO_KEYCHAIN, PROGRAM, PROJECT, Ended, Run, child_environment

import lancelot
import lancelot_index
import lancelot_setup

LIMIT = 60
FOLDER = str(DATABASES / "anythingllm")
SMALL = str(DATABASES / "no-vector")
QUERY = "hästarna stallet smörgåsen"
WORLD = ("--path", FOLDER, "--table", "world-notes")
posix = pytest.mark.skipif(os.name == "nt", reason="pipes and terminals are those of POSIX")


def start(*words: str, environ: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, PROGRAM, *words], env=child_environment(**NO_KEYCHAIN, **(environ or {})), **streams | options
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, (out or b"").decode(), (err or b"").decode()


# --- help and usage


def test_help_names_every_command_and_every_setting_with_its_default(run: Run) -> None:
    ended = run("--help")
    assert (ended.code, ended.err) == (0, "")
    for name in lancelot.COMMANDS:
        assert re.search(rf"^    {name}\s+\w", ended.out, re.MULTILINE), name
    for setting in lancelot.SETTINGS:
        paragraph = ended.out.split(f"\n  {setting.name}\n")[1].split("\n  L")[0]
        assert setting.help.replace("`", "")[:60] in paragraph
        if setting.default is not None:
            assert f"Default: {setting.default}." in paragraph
    assert "With no command it serves MCP" in ended.out


@pytest.mark.parametrize("command", lancelot.COMMANDS)
def test_every_command_explains_its_options(command: str, run: Run) -> None:
    ended = run(command, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"usage: lancelot {command} ")
    for option in re.findall(r"\n  (--[a-z-]+)([^\n]*)\n?([^\n]*)", ended.out):
        assert re.search(r"[a-z]{3}", option[1] + option[2]), option


def test_search_query_and_ask_take_every_parameter_of_their_tools(run: Run) -> None:
    for command in ("search", "query", "ask"):
        tool = f"lancedb_{command}"
        out = run(command, "--help").out
        found = lancelot.find_tool(tool)
        assert found is not None
        for parameter in found.parameters:
            kebab = re.sub(r"([A-Z])", r"-\1", parameter.name).lower()
            assert re.search(rf"(--{kebab}\b|^  {parameter.name}\b)", out, re.MULTILINE), parameter.name


@pytest.mark.parametrize(
    "words",
    [
        ("serch", "x"),
        ("read",),
        ("search", "x", "--limit"),
        ("search", "x", "--nonsense"),
        ("search", "x", "--limt", "3"),
        ("ask", "--top-k", "2"),
        ("status", "extra"),
        ("--nonsense",),
        ("version", "--path", FOLDER),
        (FOLDER,),
    ],
)
def test_wrong_usage_ends_with_2_and_says_how_it_is_used(words: tuple[str, ...], run: Run) -> None:
    ended = run(*words)
    assert ended.code == 2
    assert ended.out == ""
    command = f" {words[0]}" if words[0] in lancelot.COMMANDS else ""
    assert ended.err.startswith(f"usage: lancelot{command} [-h]")
    assert f"lancelot{command}: error: " in ended.err


@pytest.mark.parametrize(
    ("words", "query"),
    [
        (("boiler", "service", "pressure"), "boiler service pressure"),
        (("boiler", "--limit", "3", "service", "-x", "--type=text"), "boiler service -x"),
        (("-Xmx512m",), "-Xmx512m"),
        (("-html5", "-5", "-"), "-html5 -5 -"),
        (("--limit", "3", "--", "--limit", "--path", "x"), "--limit --path x"),
        (("--no-verify skips hooks", "--limit=3"), "--no-verify skips hooks"),
        ((), ""),
        (("--sort", "-year"), ""),
    ],
)
def test_words_that_are_no_options_are_the_query_without_quotes(words: tuple[str, ...], query: str) -> None:
    arguments = lancelot.build_parser().parse_args(["search", "--path", SMALL, *words])
    assert (arguments.query, arguments.path) == (query, SMALL)
    assert arguments.limit == ("3" if "--limit" in words[:2] or "--limit=3" in words else None)


def test_a_slip_in_an_option_is_no_query_and_the_one_that_was_meant_is_named(run: Run) -> None:
    err = run("search", "boiler", "--limt", "3", "--path", SMALL).err
    assert "there is no option --limt; did you mean --limit? To search for it, put -- before the query." in err


def test_an_unknown_command_is_answered_with_the_commands_there_are(run: Run) -> None:
    err = run("serch", "x").err
    assert "serch" in err
    assert all(command in err for command in lancelot.COMMANDS)


# --- the version


def test_the_version_is_one_line_that_tells_whether_the_local_model_is_there(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("version") == Ended(0, f"lancelot {lancelot.__version__} with all-MiniLM-L6-v2\n", "")
    monkeypatch.setattr(lancelot, "local_files", list)
    assert run("version") == Ended(0, f"lancelot {lancelot.__version__} without a local model\n", "")


def test_the_version_for_programs_is_what_the_tool_answers(run: Run, make_searcher: Callable[..., Any]) -> None:
    ended = run("version", "--json")
    assert json.loads(ended.out) == json.loads(lancelot.run_version(make_searcher()))


# --- search, query, status


def answer_of(tool: str, arguments: dict[str, Any], folder: str, make_searcher: Callable[..., Any]) -> str:
    found = lancelot.find_tool(tool)
    assert found is not None
    text, failed = lancelot.call_tool(found, make_searcher(LANCEDB_PATH=folder), arguments)
    assert not failed
    return text


def test_search_for_a_person_shows_titles_sources_and_snippets(run: Run) -> None:
    ended = run("search", QUERY, *WORLD, "--limit", "2")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("text search of world-notes: ")
    assert lines[2] == "1. Hästar på Gotland.md"
    assert lines[3].startswith("   obsidian://Travel vault/Hästar på Gotland.md  1.000  id fd1cdf69")
    assert "ästar" in lines[4]


def test_search_for_programs_is_what_the_tool_answers(run: Run, make_searcher: Callable[..., Any]) -> None:
    ended = run("search", QUERY, *WORLD, "--limit", "3", "--type", "text", "--json")
    arguments = {"query": QUERY, "table": "world-notes", "limit": 3, "searchType": "text"}
    assert ended.out == answer_of("lancedb_search", arguments, FOLDER, make_searcher) + "\n"
    assert len(json.loads(ended.out)["hits"]) <= 3


def test_query_for_a_person_is_the_block_that_a_model_gets(run: Run, make_searcher: Callable[..., Any]) -> None:
    ended = run("query", QUERY, *WORLD, "--budget", "1500")
    arguments = {"question": QUERY, "table": "world-notes", "contextBudget": 1500}
    block = answer_of("lancedb_query", arguments, FOLDER, make_searcher)
    assert (ended.code, ended.out) == (0, block.rstrip("\n") + "\n")
    assert json.loads(run("query", QUERY, *WORLD, "--context-budget", "1500", "--json").out) == {"context": block}


HOSTILE = "\ufdd1\x1b]0;title\x07\x1b[2J\x9b31m\u202eesrever\u2066\u200b\ufeff\U000e0041"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")


@pytest.mark.parametrize(
    "words",
    [
        ("search", "lighthouse"),
        ("search", f"light{HOSTILE}house", "--type", "text"),
        ("query", "lighthouse"),
        ("read", "one"),
        ("files",),
        ("values", f"x{HOSTILE}"),
        ("status",),
        ("status", "--verbose"),
        ("doctor",),
        ("search", "lighthouse", "--table", HOSTILE),
        ("search", "lighthouse", "--limit", HOSTILE),
        ("read", HOSTILE),
        (HOSTILE,),
        ("index", HOSTILE),
    ],
    ids=lambda words: words[0] if words[0].isascii() else "a word",
)
@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "JSON"])
def test_nothing_that_a_terminal_obeys_reaches_it(
    words: tuple[str, ...],
    as_json: bool,  # noqa: FBT001 - both forms
    run: Run,
    make_table: Callable[..., Path],
) -> None:
    joined = (
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f469\u200d\U0001f467"  # a Persian word and a family
    )
    text = f"lighthouse {HOSTILE} {joined}"
    columns = {"id": ["one"], "text": [text], "title": [HOSTILE], "source": [HOSTILE], f"x{HOSTILE}": [HOSTILE]}
    where = ("--path", str(make_table(columns))) if words[0] != HOSTILE else ()
    json_form = ("--json",) if as_json and words[0] not in ("doctor", "index", HOSTILE) else ()
    ended = run(*words, *where, *json_form)
    assert not OBEYED.search(ended.out + ended.err)
    assert ended.out + ended.err
    if json_form and ended.out and words[0] in ("query", "read"):
        assert "\x1b]0;title\x07" in ended.out.encode().decode("unicode_escape")
    elif words[0] in ("query", "read") and not ended.code:
        assert joined in ended.out


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[(0|1|2|3\d|1;31)m", "", text)


def test_what_a_row_holds_has_no_colour_but_that_of_the_words_looked_for(
    run: Run, make_table: Callable[..., Path]
) -> None:
    columns = {"id": ["one"], "text": [f"a lighthouse {HOSTILE}"], "title": [HOSTILE], "source": [HOSTILE]}
    folder = str(make_table(columns))
    for words in (("search", "lighthouse"), ("read", "one"), ("files",), ("values", "title"), ("query", "lighthouse")):
        plain = run(*words, "--path", folder)
        shown = run(*words, "--path", folder, "--color", "always").out
        assert without_colours(shown) == plain.out
        assert not OBEYED.search(plain.out)
        assert re.findall(r"\x1b\[1;31m(.*?)\x1b", shown) == ["lighthouse"] * (words[0] == "search")


@posix
@pytest.mark.parametrize(
    ("environ", "words", "coloured"),
    [
        ({"TERM": "xterm"}, (), True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, (), False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, ("--color", "always"), True),
        ({"TERM": "xterm"}, ("--color=never",), False),
        ({"TERM": "dumb"}, (), False),
    ],
)
def test_a_search_fits_a_terminal_and_marks_the_words_in_its_colours(
    environ: dict[str, str],
    words: tuple[str, ...],
    coloured: bool,  # noqa: FBT001 - what is expected
) -> None:
    terminal = pytest.importorskip("terminal")
    environ = child_environment(COLUMNS="50", **NO_KEYCHAIN, **environ)
    command = [sys.executable, PROGRAM, "search", *QUERY.split(), *WORLD, "--limit", "2", *words]
    session = terminal.Terminal(command, environ)
    assert session.end() == 0
    session.stop()
    shown = without_colours(session.shown.replace("\r", ""))
    assert (shown != session.shown.replace("\r", "")) == coloured
    assert not OBEYED.search(shown)
    lines = shown.splitlines()
    assert max(map(lancelot.columns_of, lines)) <= 50
    (hit,) = (at for at, line in enumerate(lines) if line == "1. Hästar på Gotland.md")
    assert lines[hit + 1].startswith("   obsidian://Travel vault/")
    assert all(line.startswith("   ") for line in lines[hit + 1 :] if line)
    assert not coloured or "\x1b[1;31mhästarna\x1b[0m," in session.shown


@posix
def test_ask_names_its_model_and_shows_the_answer_as_it_comes_with_the_sources_it_cites(
    chat_server: Callable[..., str],
) -> None:
    terminal = pytest.importorskip("terminal")
    reply = (
        "The horses live on the heath [1]. The passage after it [9] does not say more, and that is all there is [1]."
    )
    address = chat_server("--reply", reply, "--pause", "0.05")
    environ = child_environment(
        COLUMNS="40", LANCELOT_CHAT_MODEL="talker", LANCELOT_CHAT_BASE_URL=address, TERM="xterm", **NO_KEYCHAIN
    )
    session = terminal.Terminal([sys.executable, PROGRAM, "ask", *QUERY.split(), *WORLD, "--top-k", "2"], environ)
    session.wait_for("heath [1].")
    assert "asking talker at 127.0.0.1:" in session.shown
    assert "all there is" not in session.shown
    assert session.end() == 0
    session.stop()
    shown = without_colours(session.shown.replace("\r", ""))
    assert max(map(lancelot.columns_of, shown.splitlines())) <= 40
    assert " ".join(shown.split("…\n")[1].split("\n\n")[0].split()) == reply.replace(" [9]", "")
    assert re.findall(r"^\d\. ", shown, re.MULTILINE) == ["1. "]


@pytest.mark.parametrize(
    ("reply", "cut", "sure"),
    [
        ("It is so [1]. And more", 17, "It is so [1]."),
        ("It is so [1]. And [2", 20, "It is so [1]. And"),
        ("The documents do not say", 24, ""),
        ("It is so [1]. NOT_IN_DOCUMENTS so", 33, ""),
        ("It is so [7]. And", 17, ""),
        ("a " * 200, 400, ("a " * 200).strip()),
    ],
)
def test_what_is_shown_of_an_answer_that_goes_on_stands_in_it(reply: str, cut: int, sure: str) -> None:
    assert lancelot.sure_part(reply[:cut], 2) == sure


def test_the_names_of_files_do_not_reach_a_terminal_as_they_are(run: Run, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / f"a{HOSTILE}.pdf").write_bytes(b"%PDF-1.4 broken")
    ended = run("index", str(tmp_path / "docs"), "--path", str(tmp_path / "db"))
    assert "]0;title" in ended.out + ended.err
    assert not OBEYED.search(ended.out + ended.err)


def test_a_log_and_a_defect_are_cleaned_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        lancelot.logger.error("lost %s", HOSTILE)
        raise RuntimeError(HOSTILE)

    monkeypatch.setitem(lancelot.COMMANDS, "files", (fail, ""))
    ended = run("files")
    assert ended.code == 3
    assert ended.err.count("]0;title") == 2
    assert not OBEYED.search(ended.err)


def test_query_gives_an_overview(run: Run) -> None:
    ended = run("query", "", *WORLD, "--warm-start", "--json")
    assert ended.code == 0
    assert len(re.findall(r"^## \d+\. ", json.loads(ended.out)["context"], re.MULTILINE)) > 2


def test_read_and_files_for_a_person_and_for_programs(run: Run, make_searcher: Callable[..., Any]) -> None:
    found = json.loads(run("search", QUERY, *WORLD, "--limit", "1", "--json").out)["hits"][0]
    assert f"  id {found['id'][:8]}\n" in run("search", QUERY, *WORLD, "--limit", "1").out
    assert run("read", found["id"][:8], *WORLD).out == run("read", found["id"], *WORLD).out
    told = run("read", found["id"], *WORLD, "--before", "1", "--json")
    given = {"id": found["id"], "before": 1, "table": "world-notes"}
    assert told.out == answer_of("lancedb_read", given, FOLDER, make_searcher) + "\n"
    shown = run("read", found["id"], *WORLD).out
    assert shown.startswith(f"{found['title']}  [{found['source']}]  chunk ")
    assert json.loads(told.out)["text"].strip() in shown
    listed = json.loads(run("files", *WORLD, "--type", "md", "--limit", "2", "--json").out)
    assert (listed["shown"], {one["fileType"] for one in listed["files"]}) == (2, {".md"})
    people = run("files", *WORLD, "--limit", "2").out
    assert people.startswith("world-notes: ")
    assert people.endswith("more from --offset 2\n")
    assert run("read", "nosuch", *WORLD).code == 1
    counted = run("values", "title", *WORLD, "--limit", "2", "--json")
    assert (
        counted.out
        == answer_of("lancedb_values", {"column": "title", "table": "world-notes", "limit": 2}, FOLDER, make_searcher)
        + "\n"
    )
    assert run("values", "title", *WORLD).out.startswith("world-notes.title (string): ")


def test_a_page_for_a_person_says_how_to_go_on_and_a_filter_is_taken_as_json(run: Run) -> None:
    assert (
        "more from --offset 1\n"
        in run("search", "python", "--path", FOLDER, "--table", "python-peps", "--limit", "1").out
    )
    shown = run("search", "the", "--path", SMALL, "--type", "fts", "--filter", '{"year": {"gte": 2010}}', "--json")
    assert {hit["metadata"]["year"] >= 2010 for hit in json.loads(shown.out)["hits"]} == {True}
    wrong = run("search", "the", "--path", SMALL, "--filter", "{year")
    assert (wrong.code, wrong.out) == (1, "")
    assert "The filter is not JSON" in wrong.err


@pytest.mark.parametrize(
    "words", [("--sort", "-year"), ("--sort=-year",), ("", "--sort", '{"year": "desc"}'), ("--sort", "-year", "")]
)
def test_chunks_are_listed_in_the_order_of_a_column(words: tuple[str, ...], run: Run) -> None:
    ended = run("search", *words, "--path", SMALL, "--limit", "40", "--json")
    years = [hit["metadata"]["year"] for hit in json.loads(ended.out)["hits"]]
    assert years == sorted(years, reverse=True)
    assert (years[0], len(set(years))) == (2026, 5)


def test_an_order_that_is_missing_is_wrong_usage(run: Run) -> None:
    assert [run("search", "--sort", *rest).code for rest in ((), ("--path", SMALL))] == [2, 2]
    assert run("search", "--path", SMALL).code == 1


def test_status_for_a_person_and_for_programs(run: Run, make_searcher: Callable[..., Any]) -> None:
    ended = run("status", "--path", FOLDER)
    assert (ended.code, ended.err) == (0, "")
    assert f"folder:      {FOLDER}\n" in ended.out
    assert "table:       python-peps, 155 rows; searches: fts, text, auto\n" in ended.out
    for words, verbose in ((), False), (("--verbose",), True):
        answer = answer_of("lancedb_status", {"verbose": verbose}, FOLDER, make_searcher)
        told = run("status", "--path", FOLDER, "--json", *words)
        tables = json.loads(told.out)["tables"]
        assert tables == json.loads(answer)["tables"]
        assert [("columns" in table) for table in tables] == [verbose] * 2


@pytest.mark.parametrize("blank", ["", " ", '""', "\t"])
@pytest.mark.parametrize(
    "words",
    [
        *[(command, "x", "--path", "BLANK") for command in ("search", "query", "ask", "read", "index")],
        *[(command, "--path", "BLANK") for command in ("files", "status", "doctor", "init")],
        *[("index", "BLANK"), ("index", "--forget", "BLANK"), ("index", "x", "--table", "BLANK")],
        ("doctor", "--table", "BLANK"),
    ],
)
def test_a_blank_in_the_place_of_a_path_or_a_name_is_wrong_usage(
    words: tuple[str, ...], blank: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blank == '""' and "--table" in words:
        blank = "  "
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANCEDB_PATH", str(tmp_path / "db"))
    before = sorted(tmp_path.rglob("*"))
    ended = run(*(word.replace("BLANK", blank) for word in words))
    assert (ended.code, ended.out) == (2, "")
    assert re.search(r'"\S*" is not (a folder, or an address such as s3://bucket/folder|a name)\n$', ended.err)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_blank_in_quotes_is_no_folder_of_a_setting_either(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANCEDB_PATH", '" "')
    ended = run("index", str(DATABASES))
    assert ended.code == 1
    assert "but allowed is a folder, or an address such as s3://bucket/folder; no value is used." in ended.err
    assert "No folder is set for the table." in ended.err


def test_an_option_whose_value_is_not_allowed_is_wrong_usage_and_no_defect(run: Run) -> None:
    ended = run("search", "x", "--path", "file://host/x")
    assert ended.code == 2
    assert ended.err.endswith('"file://host/x" is not a folder, or an address such as file:///home/me/lancedb\n')


def test_index_ends_with_1_where_it_keeps_what_it_cannot_see_and_forgets_what_it_is_told_to(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANCEDB_PATH", str(tmp_path / "db"))
    monkeypatch.setattr(sys, "argv", [PROGRAM])
    Path("files").mkdir()
    Path("files/a.md").write_text("Words.\n", encoding="utf-8")
    assert run("index", "files").code == 0
    Path("files/a.md").unlink()
    assert run("index", "files").code == 1
    Path("files").rmdir()
    gone = run("index", "files")
    assert (gone.code, "`lancelot index --forget" in gone.err) == (1, True)
    folder, database = tmp_path / "files", tmp_path / "db"
    place = f"1 file (1 chunk) of {folder} out of the table documents of {database}\n"
    assert run("index", "--forget", "files", "--dry-run").out == f"Would take {place}"
    assert run("index", "--forget", "files").out == f"Took {place}"
    assert run("index", "--forget", "files").code == 1
    Path("files").mkdir()
    Path("files/a.md").write_text("Words.\n", encoding="utf-8")
    run("index", "files")
    assert json.loads(run("index", "--forget", "files", "--json").out) == {
        "removedFiles": 1,
        "removedChunks": 1,
        "dryRun": False,
        "folder": str(folder),
        "table": "documents",
        "database": str(database),
    }


@pytest.mark.parametrize(
    "words", [("x", "--forget", "x"), ("--list", "x"), ("--moved", "x"), ("--list", "--forget", "x")]
)
def test_index_takes_folders_or_something_to_do_with_what_it_knows(words: tuple[str, ...], run: Run) -> None:
    assert run("index", *words).code == 2


def test_index_lists_its_folders_and_points_one_to_its_new_place(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANCEDB_PATH", str(tmp_path / "db"))
    alone = run("index")
    assert (alone.code, "knows no folder yet. Name the folders or files to index." in alone.err) == (1, True)
    assert json.loads(run("index", "--list", "--json").out)["folders"] == []
    for name in ("old", "more"):
        Path(name).mkdir()
        Path(name, "a.md").write_text("Words.\n", encoding="utf-8")
    done = run("index", "old", "more/a.md")
    assert done.out.splitlines()[-1].endswith(" search WORDS")
    assert " search " not in run("index").out
    assert done.out.startswith(f"Indexed {tmp_path / 'old'}, {tmp_path / 'more' / 'a.md'} into the table documents of ")
    Path("old").rename("new")
    heading, file, folder = run("index", "--list").out.splitlines()
    assert heading.split() == ["files", "chunks", "last", "run", "folder"]
    assert re.fullmatch(rf" +1 +1  \d{{4}}-\d\d-\d\d \d\d:\d\d  {tmp_path}/more/a.md", file)
    assert folder.endswith(f"{tmp_path}/old  (not there now)")
    missing = run("index")
    assert (missing.code, "--moved" in missing.out, "2 files" in missing.out) == (1, True, False)
    place = (
        f"1 file (1 chunk) of {tmp_path / 'old'} to {tmp_path / 'new'} in the table documents of {tmp_path / 'db'}\n"
    )
    assert run("index", "--moved", "old", "new", "--dry-run").out == f"Would point {place}"
    assert run("index", "--moved", "old", "new").out == f"Pointed {place}"
    (_, listed) = json.loads(run("index", "--list", "--json").out)["folders"]
    assert listed.pop("lastRun").endswith("+00:00")
    assert listed == {"folder": str(tmp_path / "new"), "files": 1, "chunks": 1}
    assert run("index").code == 0


def test_status_of_a_folder_that_cannot_be_read_ends_with_1_and_is_still_json(run: Run, tmp_path: Path) -> None:
    ended = run("status", "--path", str(tmp_path / "missing"), "--json")
    assert ended.code == 1
    assert json.loads(ended.out)["connected"] is False
    assert run("status").code == 1


def test_the_options_come_before_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEDB_PATH", SMALL)
    monkeypatch.setenv("LANCEDB_TABLE", "library_records")
    assert f"folder:      {FOLDER}" in run("status", "--path", FOLDER).out
    assert "search of world-notes" in run("search", QUERY, *WORLD).out


def test_what_is_wrong_with_the_settings_is_told_beside_the_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEDB_DEFAULT_LIMIT", "many")
    ended = run("search", "python", "--path", SMALL, "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["searchType"] == "text"
    assert ended.err.startswith('lancelot: LANCEDB_DEFAULT_LIMIT (environment) is "many"')


# --- how a command ends


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("search", "x"), "No database folder is set"),
        (("search", "x", "--path", "/no such folder"), "cannot be opened"),
        (("search", " ", "--path", SMALL), "query"),
        (("search", "x", "--path", SMALL, "--limit", "0"), "limit is "),
        (("search", "x", "--path", SMALL, "--limit", "x"), "a whole number from 1 to 200"),
        (("search", "x", "--path", SMALL, "--type", "semantic"), "one of vector, text, fts, hybrid, auto"),
        (("search", "x", "--path", SMALL, "--table", "missing"), "library_records"),
        (("query", "x", "--path", SMALL, "--budget", "1"), "contextBudget is "),
        (("query", "", "--path", SMALL), "blank"),
    ],
)
def test_an_anticipated_failure_ends_with_1_and_a_sentence(words: tuple[str, ...], said: str, run: Run) -> None:
    ended = run(*words)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("lancelot: ")
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_defect_ends_with_3_and_the_log_says_where(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(_session: lancelot.Session) -> NoReturn:
        message = "a cog fell out"
        raise RuntimeError(message)

    monkeypatch.setitem(lancelot.COMMANDS, "status", (break_down, ""))  # type: ignore[misc]
    ended = run("status")
    assert (ended.code, ended.out) == (3, "")
    assert "break_down" in ended.err
    assert ended.err.endswith("the lines above say where.\n")
    assert "a bug in Lancelot" in ended.err


def test_an_interrupt_ends_with_130_and_says_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_session: lancelot.Session) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setitem(lancelot.COMMANDS, "status", (interrupt, ""))  # type: ignore[misc]
    assert run("status") == Ended(130, "", "")


@posix
@pytest.mark.parametrize(
    "words", [("--help",), ("version",), ("search", "python", "--path", SMALL), ("status", "--json")]
)
def test_a_reader_that_left_is_no_cause_for_complaint(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start(*words, stdout=writer)
    os.close(writer)
    code, _, err = finish(process)
    assert (code, err) == (1, "")


@posix
@pytest.mark.parametrize(("words", "code"), [("version", 0), ("status --json", 1), ("--help", 0), ("", 1)])
def test_a_closed_standard_output_is_no_defect(words: str, code: int) -> None:
    command = ["sh", "-c", f"{shlex.quote(sys.executable)} {shlex.quote(PROGRAM)} {words} >&-"]
    ended = subprocess.run(
        command, env=child_environment(**NO_KEYCHAIN), stderr=subprocess.PIPE, check=False, timeout=LIMIT
    )
    assert ended.returncode == code
    assert b"Traceback" not in ended.stderr


@posix
def test_the_first_line_of_a_pipe_is_all_that_is_printed() -> None:
    command = ["sh", "-c", f"{shlex.quote(sys.executable)} {shlex.quote(PROGRAM)} --help | head -1"]
    ended = subprocess.run(
        command,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert ended.stdout.startswith("usage: lancelot")
    assert ended.stderr == ""


# --- encodings


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8", "utf-16"])
def test_json_for_programs_is_whole_in_every_encoding(
    encoding: str, run: Run, monkeypatch: pytest.MonkeyPatch, make_searcher: Callable[..., Any]
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    assert run("search", QUERY, *WORLD, "--limit", "1", "--json").code == 0
    stream.seek(0)
    answer = answer_of("lancedb_search", {"query": QUERY, "table": "world-notes", "limit": 1}, FOLDER, make_searcher)
    assert json.loads(stream.read()) == json.loads(answer)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_lines_for_a_person_replace_what_the_encoding_cannot_hold(
    encoding: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    for words in (("search", QUERY, *WORLD), ("search", "設計図", *WORLD), ("query", QUERY, *WORLD), ("--help",)):
        assert run(*words).code == 0
    stream.seek(0)
    shown = stream.read()
    assert ("H?star p?" if encoding == "ascii" else "Hästar på") in shown


def test_an_ascii_terminal_does_not_stop_the_program() -> None:
    code, out, err = finish(start("status", "--path", FOLDER, environ={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}))
    assert (code, err) == (0, "")
    assert "world-notes" in out


# --- what help and version cost


def test_help_and_version_load_nothing_heavy() -> None:
    heavy = (
        "lancedb",
        "pyarrow",
        "mcp",
        "openai",
        "keyring",
        "cryptography",
        "anyio",
        "platformdirs",
        "numpy",
        "pypdfium2",
        "semantic_text_splitter",
        "chardet",
        "mammoth",
        "tomlkit",
    )
    program = f"""
import contextlib, io, sys
sys.path.insert(0, {str(PROJECT)!r})
import lancelot
with contextlib.redirect_stdout(io.StringIO()):
    lancelot.main(["version"])
    with contextlib.suppress(SystemExit):
        lancelot.main(["--help"])
print([name for name in {heavy!r} if name in sys.modules])
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
    )
    assert ast.literal_eval(ended.stdout) == []


@pytest.mark.parametrize("start", [(PROGRAM,), ("-m", "lancelot")], ids=["script", "module"])
def test_what_is_started_is_the_module_that_the_others_import(start: tuple[str, ...], tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-v", *start, "index", str(tmp_path / "missing"), "--path", str(tmp_path / "db")],
        cwd=PROJECT,
        env=child_environment(**NO_KEYCHAIN),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    loaded = set(re.findall(r"^import '(lancelot\w*)'", ended.stderr, re.MULTILINE))
    assert loaded == {"lancelot_index", "lancelot_reading"}
    # Of two copies, the edge of the program would not know the other's error.
    assert (ended.returncode, "cannot be opened" in ended.stderr, "defect" in ended.stderr) == (1, True, False)


# --- at a terminal


@posix
def test_started_at_a_terminal_it_says_on_standard_error_what_it_is_and_serves() -> None:
    terminal = pytest.importorskip("terminal")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    session = terminal.Terminal([sys.executable, PROGRAM], child_environment(**NO_KEYCHAIN), **streams)
    try:
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
        session.type(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}) + "\n\x04")
        out, err = session.process.communicate(timeout=LIMIT)
    finally:
        session.stop()
    assert err.decode().startswith(f"This is Lancelot {lancelot.__version__}, an MCP server")
    assert all(word in err.decode() for word in ("`init`", "`demo`", "`--help`", "Ctrl-C"))
    (line,) = out.decode().splitlines()
    assert json.loads(line)["result"]["serverInfo"]["name"] == "lancelot"
    assert session.process.returncode == 0


def test_a_log_is_told_every_few_seconds_what_index_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "files").mkdir()
    for number in range(3):
        (tmp_path / "files" / f"{number}.txt").write_text(f"text {number}", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [PROGRAM])  # which starts the process that reads
    monkeypatch.setattr(lancelot_index, "PIPE_SECONDS", 0)
    assert lancelot.main(["index", str(tmp_path / "files"), "--path", str(tmp_path / "db"), "--no-embeddings"]) == 0
    told = [line.rsplit(", ", 2) for line in capsys.readouterr().err.splitlines() if line.startswith("files: ")]
    assert [(done, place) for done, _, place in told] == [
        (f"files: {number} of 3, 0.0 of 0.0 MB", f"at {number}.txt") for number in range(3)
    ]


@posix
@pytest.mark.parametrize(
    ("keys", "code", "rows"), [("n\n", 1, 3), ("\n", 1, 3), ("\x03", -signal.SIGINT, 3), ("y\n", 0, 1)]
)
def test_index_asks_at_a_terminal_before_it_takes_most_of_a_table_out(
    keys: str, code: int, rows: int, tmp_path: Path
) -> None:
    import lancedb

    terminal = pytest.importorskip("terminal")
    (tmp_path / "files").mkdir()
    for name in ("a.md", "b.txt", "c.txt"):
        (tmp_path / "files" / name).write_text(name, encoding="utf-8")
    command = [sys.executable, PROGRAM, "index", str(tmp_path / "files"), "--path", str(tmp_path / "db")]
    environ = child_environment(**NO_KEYCHAIN)
    assert subprocess.run(command, env=environ, check=False, capture_output=True, timeout=LIMIT).returncode == 0
    words = [*command, "--include", "*.md"]
    ended = subprocess.run(
        words, env=environ, check=False, capture_output=True, timeout=LIMIT, stdin=subprocess.DEVNULL
    )
    assert ended.returncode == 1
    assert b"2 of 3 files" in ended.stderr
    assert b"--yes" in ended.stderr
    session = terminal.Terminal(words, environ)
    try:
        session.wait_for("Is that meant? [y/N]: ")
        session.type(keys)
        assert session.end() == code
    finally:
        session.stop()
    assert lancedb.connect(tmp_path / "db").open_table("documents").count_rows() == rows
    ended = subprocess.run([*words, "--yes"], env=environ, check=False, capture_output=True, timeout=LIMIT)
    assert ended.returncode == 0
    assert lancedb.connect(tmp_path / "db").open_table("documents").count_rows() == 1


@posix
def test_ctrl_c_at_a_terminal_ends_the_server_at_once() -> None:
    terminal = pytest.importorskip("terminal")
    session = terminal.Terminal([sys.executable, PROGRAM], child_environment(**NO_KEYCHAIN))
    try:
        session.wait_for("Ctrl-C ends it.")
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
        session.type(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}) + "\n")
        session.wait_for('"serverInfo"')
        session.type("\x03")
        code = session.end()
    finally:
        session.stop()
    assert code != 0
    assert "Traceback" not in session.shown


# --- the demo


def demo_parts(out: str) -> list[str]:
    """What the demo shows: the index run, each search, and what a model gets."""
    return re.split(r"\n\n(?=\$ |A model )", out.replace("\r", ""))


def test_the_demo_shows_what_a_person_and_a_client_get_and_leaves_no_file(tmp_path: Path, config_dir: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    # Settings of another folder must not lead it astray.
    mine = {"LANCEDB_TABLE": "mine", "LANCEDB_TEXT_COLUMN": "body", "LANCEDB_PATH": "/no", "LANCEDB_DEFAULT_LIMIT": "1"}
    lancelot.store_settings(config_dir, mine | {"LANCELOT_SEARCH_TYPE": "vector"})
    before = sorted(tmp_path.rglob("*"))
    code, out, err = finish(start("demo", environ={"TMPDIR": str(temporary), "TEMP": str(temporary)}))
    assert (code, err) == (0, "")
    index, search, model = demo_parts(out)
    assert "1 file (1 new, " in index
    assert search.splitlines()[0].endswith(" search keychain --limit 2")
    assert "the system's keychain" in " ".join(search.split())
    assert "LANCELOT_LOCAL_MODEL is off, so the local model does not embed. With it there would be" in search
    assert "\n# Context from documents" in model
    assert out.endswith(f"{lancelot.shell_line([sys.executable, PROGRAM])} init\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_demo_finds_by_meaning_what_shares_no_word_with_its_question(tmp_path: Path, machine: Path) -> None:
    # A Python that can reach no other machine, in every process that it starts.
    guard = "import socket\ndef refuse(*_):\n    raise OSError('guarded')\nsocket.socket.connect = socket.getaddrinfo = refuse\n"
    (tmp_path / "sitecustomize.py").write_text(guard, encoding="utf-8")
    environ = {"LANCELOT_LOCAL_MODEL": "on", "PYTHONPATH": str(tmp_path)}
    code, out, err = finish(start("demo", environ=environ))
    assert (code, err) == (0, "")
    _, _, found, _ = demo_parts(out)
    assert lancelot_setup.DEMO_MEANING in found.splitlines()[0]
    first = found[found.index("\n1. ") : found.index("\n2. ")]
    assert re.match(r"\n1\. Lancelot . Settings", first)
    # Nor a word of the same stem.
    words = {word.lower()[:5] for word in re.findall(r"\w+", first)}
    assert not words & {word[:5] for word in lancelot_setup.DEMO_MEANING.split()}
    assert not [path for path in machine.rglob("*") if path.is_file()]


@posix
def test_the_demo_fits_a_terminal() -> None:
    terminal = pytest.importorskip("terminal")
    session = terminal.Terminal([sys.executable, PROGRAM, "demo"], child_environment(COLUMNS="80", **NO_KEYCHAIN))
    assert session.end() == 0
    session.stop()
    assert len(demo_parts(session.shown)) == 3
    command = lancelot.shell_line([sys.executable, PROGRAM])
    lines = [
        line for line in session.shown.replace("\r", "").splitlines() if command not in line and PROGRAM not in line
    ]
    assert max(map(len, lines)) <= 80
    assert "{" not in session.shown


def test_status_fits_a_terminal_and_gives_programs_whole_lines(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "missing"
    whole = run("status", "--path", str(folder)).out
    assert f"problem:     The database folder {folder} cannot be opened (No such file or directory). Set" in whole
    monkeypatch.setattr(lancelot, "is_at_terminal", lambda *_: True)
    for columns in ("80", "20", "5"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = run("status", "--path", str(folder), "--color", "never").out
        assert shown.split() == whole.split()
        label, *rest = shown[shown.index("problem:") : shown.index("embeddings:")].splitlines()
        assert label.startswith("problem:")
        assert rest
        assert all(re.match(" {13}[^ ]", line) for line in rest)
        assert columns != "80" or all(len(line) <= 80 for line in shown.splitlines() if str(folder) not in line)
    assert json.loads(run("status", "--path", str(folder), "--json").out)["folder"] == str(folder)


def test_what_the_demo_indexes_is_sent_to_no_server_that_is_set(
    run: Run, tmp_path: Path, embedding_server: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("a zebra", encoding="utf-8")
    monkeypatch.setenv("OPENAI_BASE_URL", embedding_server())
    monkeypatch.setenv("EMBEDDING_MODEL", "hash-embedder-384")
    words = ("index", str(tmp_path / "docs"), "--path", str(tmp_path / "db"), "--json")
    assert json.loads(run(*words, "--no-embeddings").out)["chunksWithoutVector"] == 1
    assert json.loads(run(*words, "--force").out)["chunksWithoutVector"] == 0


# --- verify


def test_what_is_no_archive_has_nothing_to_verify(run: Run) -> None:
    for command in ("verify", "cache"):
        ended = run(command)
        assert ended.code == 1
        assert "This is not the archive" in ended.err


def test_what_an_archive_has_besides_its_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.pyz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("same", "changed", "added", "record.json"):
            archive.writestr(name, name)
    record = {"same": hashlib.sha256(b"same").hexdigest(), "changed": "0" * 64, "gone": "0" * 64}
    with zipfile.ZipFile(path) as archive:
        assert list(lancelot_setup.archive_problems(archive, record)) == [
            "in the archive, added is not recorded",
            "in the archive, gone is missing",
            "in the archive, changed differs",
        ]


def make_archive(path: Path, contents: Mapping[str, bytes]) -> zipfile.ZipFile:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return zipfile.ZipFile(path)


def sums(contents: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def test_bytecode_that_python_wrote_itself_is_no_problem_where_the_archive_ships_none(tmp_path: Path) -> None:
    contents = {"site-packages/module.py": b"pass\n"}
    (site := tmp_path / "site").mkdir()
    (site / "module.py").write_bytes(b"pass\n")
    compiled = Path(py_compile.compile(str(site / "module.py")))
    (site / "module.pyc").write_bytes(compiled.read_bytes())
    with make_archive(tmp_path / "a.pyz", contents) as archive:
        assert list(lancelot_setup.unpacked_problems(site, archive, sums(contents))) == [
            f"{site / 'module.pyc'} was added"
        ]
    contents["site-packages/__pycache__/other.pyc"] = b""
    with make_archive(tmp_path / "b.pyz", contents) as archive:
        problems = set(lancelot_setup.unpacked_problems(site, archive, sums(contents)))
    assert f"{compiled} was added" in problems


@posix
def test_no_file_of_a_copy_holds_up_its_verification(tmp_path: Path) -> None:
    contents = {f"site-packages/{name}": b"pass\n" for name in ("huge.py", "pipe.py", "folder.py", "same.py")}
    (site := tmp_path / "site").mkdir()
    with (site / "huge.py").open("wb") as file:
        file.truncate(1 << 38)
    os.mkfifo(site / "pipe.py")
    os.mkfifo(site / "pipe")
    (site / "folder.py").mkdir()
    (site / "same.py").write_bytes(b"pass\n")
    with make_archive(tmp_path / "a.pyz", contents) as archive:
        assert set(lancelot_setup.unpacked_problems(site, archive, sums(contents))) == {
            *(f"{site / name} differs" for name in ("huge.py", "pipe.py", "folder.py")),
            f"{site / 'pipe'} was added",
        }


# --- the program's own command


def test_a_script_or_an_archive_is_started_with_this_python_and_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lancelot.py").write_text("pass")
    for name in ("lancelot.pyz", "lancelot", "any name"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("__main__.py", "pass")
    monkeypatch.chdir(tmp_path)
    for name in ("lancelot.py", "lancelot.pyz", "lancelot", "any name"):
        expected = [sys.executable, str(tmp_path / name)]
        assert lancelot.own_command(name) == expected
        assert lancelot.own_command(str(tmp_path / name)) == expected


@posix
def test_a_link_to_the_archive_is_kept_as_the_link(tmp_path: Path) -> None:
    (tmp_path / "lancelot-0.1.py").write_text("pass")
    (tmp_path / "lancelot.py").symlink_to("lancelot-0.1.py")
    assert lancelot.own_command(str(tmp_path / "lancelot.py")) == [sys.executable, str(tmp_path / "lancelot.py")]


def test_an_installed_console_script_is_started_as_itself(tmp_path: Path) -> None:
    script = tmp_path / "lancelot"
    script.write_text("#!/usr/bin/env python3\n")
    assert lancelot.own_command(str(script)) == [str(script)]


@pytest.mark.parametrize("argv0", ["-c", "-m", "", "no/such/file", "."])
def test_anything_else_is_started_as_the_module(argv0: str) -> None:
    assert lancelot.own_command(argv0) == [sys.executable, "-m", "lancelot"]


def test_the_module_starts_as_the_script_that_it_is() -> None:
    program = "import lancelot, sys; print(lancelot.own_command(sys.argv[0]))"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
    )
    assert ast.literal_eval(ended.stdout) == [sys.executable, "-m", "lancelot"]


# --- entries for clients


def test_the_entry_for_clients_is_json_with_command_and_arguments() -> None:
    command = ["C:\\Program Files\\Python\\python.exe", "C:\\Users\\Åsa\\lancelot.pyz"]
    entry = json.loads(lancelot_setup.client_entry(command, {}))
    assert entry == {"mcpServers": {"lancelot": {"command": command[0], "args": command[1:]}}}


@posix
def test_the_line_for_claude_code_keeps_paths_with_spaces_whole() -> None:
    command = ["/opt/my python/bin/python", "/home/å'sa/lancelot.pyz"]
    start_words = ["claude", "mcp", "add", "--transport", "stdio", "lancelot", "--"]
    assert shlex.split(lancelot_setup.claude_command(command, {})) == [*start_words, *command]
