"""The checks: what each says of a folder, its tables, the settings, the key, the disk and an endpoint; none raises."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import lancedb
import pyarrow as pa
import pytest
import wire
from conftest import DATABASES, NO_KEYCHAIN, child_environment
from lancedb.index import FTS

import lancelot
import lancelot_setup
from lancelot import Check, Examination

FOLDER = str(DATABASES / "anythingllm")
MakeSearcher = Callable[..., lancelot.Searcher]
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no modes of this kind")


def lines_of(searcher: lancelot.Searcher, name: str) -> list[tuple[str, str]]:
    """How a check stands and what it says, line by line."""
    found = [one for one in (*lancelot.CHECKS, *lancelot_setup.LIVE_CHECKS) if one.name == name]
    return [(line.status, line.message) for line in lancelot.examine(searcher.status(), found)]


def unwell(searcher: lancelot.Searcher) -> list[Check]:
    """The lines of the status that are not ok; every one of them has a remedy."""
    bad = [line for line in lancelot.examined_status(searcher).checks if line.status != "ok"]
    assert all(line.remedy for line in bad)
    return bad


def test_a_folder_that_is_well_has_a_line_for_everything_and_all_are_ok(make_searcher: MakeSearcher) -> None:
    checks = lancelot.examined_status(make_searcher(LANCEDB_PATH=FOLDER)).checks
    assert list(dict.fromkeys(line.name for line in checks)) == [
        "platform",
        "processor",
        "disk space",
        "settings",
        "folder",
        "tables",
        "columns",
        "indexes",
        "key",
    ]
    assert {line.status for line in checks} == {"ok"}


# --- settings, folder, tables, columns, indexes


def test_each_setting_that_is_wrong_has_its_own_line(make_searcher: MakeSearcher, config_dir: Path) -> None:
    lancelot.store_settings(config_dir, {"LANCEDB_DEFAULT_LIMIT": "lots"})
    bad = unwell(make_searcher(LANCEDB_PATH="db", LANCELOT_LOG_LEVEL="loud"))
    settings = [(line.status, line.message.split()[0], line.remedy) for line in bad if line.name == "settings"]
    assert settings == [
        ("failed", "LANCEDB_DEFAULT_LIMIT", "Correct LANCEDB_DEFAULT_LIMIT, or unset it."),
        ("failed", "LANCELOT_LOG_LEVEL", "Correct LANCELOT_LOG_LEVEL, or unset it."),
        ("warning", "LANCEDB_PATH", "Set LANCEDB_PATH to an absolute path."),
    ]


def test_a_settings_file_that_cannot_be_used_is_a_warning(make_searcher: MakeSearcher, config_dir: Path) -> None:
    config_dir.mkdir(parents=True)
    file = config_dir / lancelot.SETTINGS_FILE
    file.write_text('{"OPENAI_API_KEY": "sk-secret"}')
    (secret,) = unwell(make_searcher(LANCEDB_PATH=FOLDER))
    assert (secret.status, secret.remedy) == ("warning", "Set OPENAI_API_KEY in the environment alone.")
    assert "sk-secret" not in secret.message
    file.write_text("[")
    (broken,) = unwell(make_searcher(LANCEDB_PATH=FOLDER))
    assert (broken.status, broken.name) == ("warning", "settings")
    assert str(file) in broken.message


def test_the_right_folder_is_the_remedy_for_one_above_or_below_it(
    make_searcher: MakeSearcher, make_table: Callable[..., Path]
) -> None:
    folder = make_table({"text": ["a"]})
    for wrong in (folder.parent, folder / "documents.lance"):
        (line,) = unwell(make_searcher(LANCEDB_PATH=wrong))
        assert (line.name, line.status, line.remedy) == ("folder", "failed", f"Set LANCEDB_PATH to {folder}.")


@pytest.mark.parametrize("path", ["", "/no/such/folder"])
def test_a_folder_that_is_not_there_is_one_failed_line(path: str, make_searcher: MakeSearcher) -> None:
    (line,) = unwell(make_searcher(LANCEDB_PATH=path))
    assert (line.name, line.status) == ("folder", "failed")


def test_a_folder_that_this_user_may_not_read_is_failed(
    make_searcher: MakeSearcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert lines_of(make_searcher(LANCEDB_PATH=FOLDER), "folder") == [
        ("failed", f"{FOLDER} may not be read by this user.")
    ]


def test_a_folder_without_tables_is_a_warning(make_searcher: MakeSearcher, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert [line.message for line in unwell(make_searcher(LANCEDB_PATH=tmp_path / "empty"))] == [
        "The folder holds no tables."
    ]


def test_each_table_that_cannot_be_read_is_named(make_searcher: MakeSearcher, make_table: Callable[..., Path]) -> None:
    folder = make_table({"text": ["a"]})
    (folder / "broken.lance" / "_versions").mkdir(parents=True)
    good, bad = lines_of(make_searcher(LANCEDB_PATH=folder), "tables")
    assert good == ("ok", "1 table can be read; a call that names none gets documents.")
    assert bad[0] == "failed"
    assert bad[1].startswith("broken: ")
    (folder / "broken.lance").rename(folder / "ann's.lance")
    remedies = [line.remedy for line in unwell(make_searcher(LANCEDB_PATH=folder)) if line.name == "tables"]
    assert remedies == ["Rename the folder ann's.lance, as to ann-s.lance."]
    (folder / "ann's.lance").rename(folder / "broken.lance")
    remedies = [line.remedy for line in unwell(make_searcher(LANCEDB_PATH=folder)) if line.name == "tables"]
    assert remedies == ["Restore the table, or write it again."]


def test_a_table_is_well_only_where_a_row_of_it_can_be_read(
    make_searcher: MakeSearcher, make_table: Callable[..., Path]
) -> None:
    make_table({"text": ["a"]})
    folder = make_table({"text": ["a zebra"]}, name="broken")
    (data,) = (folder / "broken.lance" / "data").iterdir()
    data.write_bytes(data.read_bytes()[:-40])
    good, bad = lines_of(make_searcher(LANCEDB_PATH=folder), "tables")
    assert good[0] == "ok"
    assert good[1].startswith("1 table can be read")
    assert (bad[0], bad[1][:38]) == ("failed", "broken: LanceDB could not read the row")
    data.unlink()
    _, bad = lines_of(make_searcher(LANCEDB_PATH=folder), "tables")
    assert (bad[0], bad[1].endswith("files of the table are missing.")) == ("failed", True)


def test_a_default_table_that_is_missing_is_failed(make_searcher: MakeSearcher) -> None:
    (line,) = unwell(make_searcher(LANCEDB_PATH=FOLDER, LANCEDB_TABLE="nowhere"))
    assert (line.name, line.status) == ("tables", "failed")
    assert '"nowhere", which LANCEDB_TABLE names' in line.message


def test_columns_are_told_table_by_table(make_searcher: MakeSearcher, make_table: Callable[..., Path]) -> None:
    vectors = pa.array([[1.0, 0.0]], pa.list_(pa.float32(), 2))
    make_table({"text": ["a"], "vector": vectors})
    make_table({"text": ["a"]}, name="words")
    folder = make_table({"path": ["/a.py"], "vector": vectors}, name="bare")
    assert lines_of(make_searcher(LANCEDB_PATH=folder), "columns") == [
        ("warning", "bare: vectors only: no column holds text, so it cannot be searched."),
        ("ok", "documents: text in text, vectors in vector (2)."),
        ("ok", "words: text in text, it has no vector column."),
    ]


def test_columns_that_settings_name_and_the_table_has_not_are_failed(make_searcher: MakeSearcher) -> None:
    searcher = make_searcher(
        LANCEDB_PATH=FOLDER, LANCEDB_TABLE="world-notes", LANCEDB_TEXT_COLUMN="body", LANCEDB_VECTOR_COLUMN="title"
    )
    text, vector = unwell(searcher)
    assert (text.name, text.status, text.message) == ("columns", "failed", 'world-notes: There is no column "body".')
    assert "LANCEDB_TEXT_COLUMN" in text.remedy
    assert vector.message == "world-notes: title is no column of vectors."
    assert vector.remedy.endswith("Columns of vectors are vector.")


def test_vectors_of_another_model_are_a_warning(make_searcher: MakeSearcher) -> None:
    searcher = make_searcher(
        LANCEDB_PATH=FOLDER, OPENAI_BASE_URL="http://127.0.0.1:9/v1", EMBEDDING_MODEL="nomic-embed-text"
    )
    assert [(line.name, line.status) for line in unwell(searcher)] == [("columns", "warning")] * 2


def test_rows_that_an_index_does_not_cover_are_a_warning(
    make_searcher: MakeSearcher, make_table: Callable[..., Path]
) -> None:
    folder = make_table({"text": ["a", "b", "c"]})
    table = lancedb.connect(folder).open_table("documents")
    table.create_index("text", config=FTS())
    assert lines_of(make_searcher(LANCEDB_PATH=folder), "indexes") == [
        ("ok", "1 of 1 table have a full-text index, and no index misses a row.")
    ]
    table.add(pa.table({"text": ["d", "e"]}))
    (line,) = unwell(make_searcher(LANCEDB_PATH=folder))
    assert (line.name, line.status) == ("indexes", "warning")
    assert line.message == "documents: up to 2 rows of 5 are not covered by the indexes text_idx."
    assert "optimize()" in line.remedy


def test_a_large_table_without_a_full_text_index_is_a_warning(
    make_searcher: MakeSearcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot, "LARGE_TABLE", 160)
    (line,) = unwell(make_searcher(LANCEDB_PATH=FOLDER))
    assert line.message == "world-notes has 177 rows and no full-text index: searches by words read them all."


# --- key and disk


@posix
def test_files_of_the_key_that_others_may_read_are_a_warning(
    make_settings: Callable[..., lancelot.Settings], config_dir: Path
) -> None:
    settings = make_settings(LANCEDB_PATH=DATABASES / "no-vector")
    lancelot.file_write(settings, "api.openai.com", "sk-of-a-test")
    place = "The key for api.openai.com is from the encrypted file."
    assert lines_of(lancelot.Searcher(settings), "key")[0] == ("ok", place)
    assert unwell(lancelot.Searcher(settings)) == []
    path = config_dir / lancelot.KEY_FILE
    path.chmod(0o644)
    (line,) = unwell(lancelot.Searcher(settings))
    assert line == Check("key", "warning", f"Others may use {path} (mode 0644).", f"Run: chmod 600 {path}")


def test_a_key_file_that_is_gone_is_a_warning(
    make_settings: Callable[..., lancelot.Settings], config_dir: Path
) -> None:
    settings = make_settings(LANCEDB_PATH=DATABASES / "no-vector")
    lancelot.file_write(settings, "api.openai.com", "sk-of-a-test")
    (config_dir / lancelot.KEY_FILE).unlink()
    (line,) = unwell(lancelot.Searcher(settings))
    assert (line.name, line.status) == ("key", "warning")
    assert "cannot be read" in line.message


@pytest.mark.parametrize(
    ("kind", "status"),
    [("denied", "warning"), ("no-answer", "warning"), ("damaged", "warning"), ("failed", "ok")],
)
def test_the_keychain_is_tried_where_the_key_came_from_the_environment(
    kind: lancelot.ErrorKind, status: str, make_searcher: MakeSearcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = make_searcher(LANCEDB_PATH=FOLDER, OPENAI_API_KEY="sk-of-a-test")

    error = lancelot.LancelotError("It is so.", kind=kind)

    def refuse(_host: str) -> NoReturn:
        raise error

    monkeypatch.setattr(lancelot, "keychain_read", refuse)
    ((found, told),) = lines_of(searcher, "keychain")
    assert (found, told.startswith("It is so.")) == (status, True)
    monkeypatch.setattr(lancelot, "keychain_read", lambda _host: None)
    assert lines_of(searcher, "keychain") == [("ok", "The system keychain answers.")]


@pytest.mark.parametrize(
    ("free", "status"), [(5 * 10**9, "ok"), (9 * 10**8, "warning"), (9 * 10**7, "failed"), (0, "failed")]
)
def test_little_free_space_is_a_warning_and_almost_none_is_failed(
    free: int, status: str, make_searcher: MakeSearcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=free))
    found = lines_of(make_searcher(LANCEDB_PATH=FOLDER), "disk space")
    assert {line for line, _ in found} == {status}
    assert {told.partition(" on the disk of ")[0] for _, told in found} == {f"{free / 10**9:.1f} GB free"}


def test_the_disk_with_the_least_space_is_named_with_what_is_kept_there(
    make_searcher: MakeSearcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {FOLDER: 3 * 10**9, str(Path(lancelot.__file__).parent): 2 * 10**9}
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free.get(str(folder), 10**10)))
    searcher = make_searcher(LANCEDB_PATH=FOLDER)
    assert lines_of(searcher, "disk space") == [("ok", "2.0 GB free on the disk of the program.")]


@posix
def test_a_read_only_disk_needs_no_free_space(make_searcher: MakeSearcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=0))
    monkeypatch.setattr(os, "statvfs", lambda _folder: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert {status for status, _ in lines_of(make_searcher(LANCEDB_PATH=FOLDER), "disk space")} == {"ok"}


# --- checks that break, hang or say too much


def break_down(_status: lancelot.Status) -> NoReturn:
    message = "a cog fell out"
    raise RuntimeError(message)


def test_a_check_that_breaks_or_hangs_is_a_failed_line(
    make_searcher: MakeSearcher, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    def hang(_status: lancelot.Status) -> list[Check]:
        released.wait(30)
        return []

    started = time.monotonic()
    broken = (Examination("cogs", break_down), Examination("wheels", hang, seconds=0.05))
    cogs, wheels = lancelot.examine(make_searcher().status(), broken)
    released.set()
    assert time.monotonic() - started < 20
    assert (cogs.status, cogs.message) == ("failed", "The check of cogs failed by a bug of Lancelot.")
    assert "a cog fell out" in caplog.text
    assert (wheels.name, wheels.status, wheels.message) == (
        "wheels",
        "failed",
        "The check of wheels took longer than 0.05 s.",
    )


def test_of_very_many_lines_the_worst_are_told_without_passwords_and_cut(make_searcher: MakeSearcher) -> None:
    lines = [Check("many", "ok", f"line {number}") for number in range(100)]
    lines[50] = Check("many", "failed", "at https://user:secret@host/ " + "x" * 9000, "do\nthis")
    first, *rest = lancelot.examine(make_searcher().status(), [Examination("many", lambda _: lines)])
    assert (first.status, first.remedy) == ("failed", "do this")
    assert first.message.startswith("at https://host/ xxx")
    assert len(first.message) == 400
    assert (len(rest), rest[-1]) == (20, Check("many", "ok", "80 more lines are left out."))


@pytest.mark.parametrize("broken", ["layout", "table_names"])
def test_a_status_is_given_whatever_breaks_within(
    broken: str, make_searcher: MakeSearcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall_apart(*_: Any) -> NoReturn:
        raise RuntimeError(broken)

    monkeypatch.setattr(lancelot.Store, broken, fall_apart)
    monkeypatch.setattr(lancelot, "check_folder", fall_apart)
    monkeypatch.setattr("shutil.disk_usage", fall_apart)
    answer = json.loads(
        lancelot.status_json(lancelot.examined_status(make_searcher(LANCEDB_PATH=FOLDER)), verbose=True)
    )
    assert "by a bug of Lancelot" in answer["problem"]
    assert {line["name"] for line in answer["health"] if line["status"] == "failed"} == {"folder", "disk space"}
    assert "stats" not in answer


def test_a_folder_that_does_not_answer_is_a_status_in_time(
    make_searcher: MakeSearcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(lancelot, "STATUS_SECONDS", 0.05)
    monkeypatch.setattr(lancelot.Store, "table_names", lambda _store: released.wait(30) and [])
    status = lancelot.examined_status(make_searcher(LANCEDB_PATH=FOLDER))
    released.set()
    assert str(status.error).startswith("The folder was not read within 0.05 s. See ")
    assert [(line.name, line.status) for line in status.checks if line.status != "ok"] == [("tables", "failed")]


# --- statistics


def stats_of(searcher: lancelot.Searcher) -> dict[str, Any] | None:
    answer = json.loads(lancelot.status_json(lancelot.examined_status(searcher), verbose=True))
    found: dict[str, Any] | None = answer.get("stats")
    return found


def test_statistics_are_those_of_the_default_table(
    make_searcher: MakeSearcher, make_table: Callable[..., Path]
) -> None:
    sources = ["a.py", "a.py", "b.md", "c.py", "", "d"]
    folder = make_table({"text": list("abcdef"), "source": sources})
    assert stats_of(make_searcher(LANCEDB_PATH=folder)) == {
        "table": "documents",
        "folder": str(folder),
        "totalFiles": 4,
        "totalChunks": 6,
        "fileTypes": {".py": 3, "none": 2, ".md": 1},
    }


def test_there_are_no_statistics_without_a_default_table(make_searcher: MakeSearcher) -> None:
    assert stats_of(make_searcher(LANCEDB_PATH=FOLDER)) is None
    assert stats_of(make_searcher(LANCEDB_PATH=FOLDER, LANCEDB_TABLE="nowhere")) is None
    assert stats_of(make_searcher()) is None


def test_the_sources_of_a_very_large_table_are_not_counted(
    make_searcher: MakeSearcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot, "MAX_COUNTED_ROWS", 100)
    monkeypatch.setattr(lancelot, "list_sources", None)
    stats = stats_of(make_searcher(LANCEDB_PATH=FOLDER, LANCEDB_TABLE="world-notes")) or {}
    assert {"totalFiles", "fileTypes"}.isdisjoint(stats)
    assert stats["totalChunks"] == 177
    assert "not counted over more than 100 rows" in stats["note"]


@pytest.mark.parametrize("error", [RuntimeError("x"), lancelot.LancelotError("It is gone."), TimeoutError()])
def test_counting_that_fails_leaves_the_number_of_chunks(
    error: Exception, make_searcher: MakeSearcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_searcher: lancelot.Searcher, _table: str) -> NoReturn:
        raise error

    monkeypatch.setattr(lancelot.Searcher, "stats", fail)
    stats = stats_of(make_searcher(LANCEDB_PATH=FOLDER, LANCEDB_TABLE="world-notes")) or {}
    assert (stats["totalChunks"], bool(stats["note"])) == (177, True)


def test_of_many_file_types_the_commonest_are_shown(
    make_searcher: MakeSearcher, make_table: Callable[..., Path]
) -> None:
    sources = [f"{number}.t{number}" for number in range(60)] + ["x.t59"] * 2
    stats = stats_of(make_searcher(LANCEDB_PATH=make_table({"text": ["a"] * 62, "source": sources}))) or {}
    assert (len(stats["fileTypes"]), next(iter(stats["fileTypes"].items()))) == (50, (".t59", 3))
    assert stats["note"] == "Only the 50 commonest of 60 file types are shown."


def test_the_status_over_the_wire_holds_statistics_and_health() -> None:
    variables = {"LANCEDB_PATH": FOLDER, "LANCEDB_TABLE": "world-notes", "LANCEDB_DEFAULT_LIMIT": "many"}
    server = wire.Server(child_environment(**NO_KEYCHAIN, **variables))
    try:
        answer = json.loads(wire.text_of(server.ask(wire.call(1, "lancedb_status"))))
        server.end()
    finally:
        server.stop()
    assert answer["stats"]["totalChunks"] == 177
    assert all({"name", "status", "message"} <= set(line) for line in answer["health"])
    assert [line["remedy"] for line in answer["health"] if line["status"] == "failed"] == [
        "Correct LANCEDB_DEFAULT_LIMIT, or unset it."
    ]


# --- embeddings: one real call


@pytest.fixture
def check(make_settings: Callable[..., lancelot.Settings]) -> Callable[..., list[Check]]:
    """The lines on embeddings over a folder with these settings, a key given or not."""

    def run(folder: str = FOLDER, *, key: str | None = None, **variables: str) -> list[Check]:
        settings = make_settings(LANCEDB_PATH=folder, **variables)
        embedder = lancelot.EndpointEmbedder(settings, key=lambda _: lancelot.KeyLookup(key))
        return list(lancelot_setup.check_embeddings(lancelot.Searcher(settings, embedder=embedder).status()))

    return run


RunCheck = Callable[..., Sequence[Check]]


def test_without_key_and_endpoint_it_is_well_and_nothing_leaves_the_machine(check: RunCheck) -> None:
    told = "No key and no endpoint: searches are by words, and nothing leaves this machine."
    assert check() == [Check("embeddings", "ok", told)]


def test_an_address_that_is_none_is_not_taken_for_no_endpoint(check: RunCheck) -> None:
    (line,) = check(OPENAI_BASE_URL="nonsense", key="sk-of-a-test")
    assert (line.status, line.remedy) == ("failed", "Correct OPENAI_BASE_URL, or unset it.")


def test_an_endpoint_that_fits_is_a_good_line_for_each_table(
    check: RunCheck, embedding_server: Callable[..., str]
) -> None:
    url = embedding_server("--require-key", "sk-right")
    lines = check(OPENAI_BASE_URL=url, EMBEDDING_MODEL="tiny", key="sk-right")
    assert [(line.status, line.message) for line in lines] == [
        ("ok", f"{lancelot.host_of(url)} embeds with tiny: length 384."),
        ("ok", "python-peps: the length of its vectors fits tiny."),
        ("ok", "world-notes: the length of its vectors fits tiny."),
    ]


def test_every_table_of_another_length_has_its_line_with_fitting_models(
    check: RunCheck, embedding_server: Callable[..., str]
) -> None:
    good, *bad = check(OPENAI_BASE_URL=embedding_server("--dimensions", "768"))
    assert good.status == "ok"
    assert "length 768" in good.message
    assert [(line.status, line.message.split(":")[0]) for line in bad] == [
        ("warning", "The vectors of python-peps have length 384, not 768"),
        ("warning", "The vectors of world-notes have length 384, not 768"),
    ]
    assert all("all-MiniLM-L6-v2" in line.message for line in bad)


def test_a_table_without_vectors_needs_no_line(check: RunCheck, embedding_server: Callable[..., str]) -> None:
    assert [line.status for line in check(str(DATABASES / "no-vector"), OPENAI_BASE_URL=embedding_server())] == ["ok"]


def test_a_table_with_one_vector_column_that_fits_is_well(
    check: RunCheck, embedding_server: Callable[..., str], make_table: Callable[..., Any]
) -> None:
    columns = {
        "text": ["a"],
        "small": pa.array([[1.0] * 384], pa.list_(pa.float32(), 384)),
        "large": pa.array([[1.0] * 768], pa.list_(pa.float32(), 768)),
    }
    folder = str(make_table(columns))
    assert [line.status for line in check(folder, OPENAI_BASE_URL=embedding_server())] == ["ok", "ok"]
    _, bad = check(folder, OPENAI_BASE_URL=embedding_server("--dimensions", "8"))
    assert "have length 384, 768, not 8" in bad.message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--require-key", "sk-right"), "refused the API key (HTTP 401)"),
        (("--fail-with", "403"), "HTTP 403"),
        (("--fail-with", "404"), "Check EMBEDDING_MODEL and OPENAI_BASE_URL"),
        (("--fail-with", "429"), "quota"),
        (("--fail-with", "503"), "failed with HTTP 503"),
        (("--delay", "5"), "did not answer within 0.3 s"),
    ],
)
def test_an_endpoint_that_fails_is_one_bad_line_without_the_key(
    options: tuple[str, ...], said: str, check: RunCheck, embedding_server: Callable[..., str]
) -> None:
    url = embedding_server(*options)
    limit = "0.3" if "--delay" in options else "15"
    (line,) = check(OPENAI_BASE_URL=url, LANCELOT_EMBEDDING_TIMEOUT=limit, key="sk-wrong-one")
    assert (line.status, line.refused) == ("failed", "401" in said)
    assert line.message.startswith(f"The embedding server at {lancelot.host_of(url)} ")
    assert said in f"{line.message} {line.remedy}"
    assert "sk-wrong-one" not in line.message + line.remedy


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "http://\uff11\uff12\uff17.0.0.1",
        "http://[v1.x]",
        "http://a..b",
        "http://user:pw@127.0.0.1:1",
    ],
)
def test_an_endpoint_that_is_not_there_is_one_bad_line(url: str, check: RunCheck) -> None:
    (line,) = check(OPENAI_BASE_URL=url)
    assert line.status == "failed"
    assert "cannot be" in line.message
    assert "pw" not in line.message


def test_a_check_that_is_not_ok_has_a_remedy_in_json_and_one_that_is_has_none() -> None:
    well = Check("a", "ok", "b")
    assert lancelot.check_object(well) == {"name": "a", "status": "ok", "message": "b"}
    assert lancelot.check_object(replace(well, remedy="c"))["remedy"] == "c"


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("damaged", "Restore the table, or write it again."),
        ("missing", "Restore the table, or write it again."),
        ("changed", "Its own."),
        ("denied", "Its own."),
        ("failed", "Its own."),
    ],
)
def test_only_a_table_that_may_be_lost_is_to_be_restored(
    kind: lancelot.ErrorKind, remedy: str, make_settings: Callable[..., lancelot.Settings]
) -> None:
    unreadable = {"notes": lancelot.LancelotError("It is so.", "Its own.", kind=kind)}
    status = replace(lancelot.unread_status(make_settings(LANCEDB_PATH=FOLDER)), unreadable=unreadable)
    (line,) = (line for line in lancelot.check_tables(status) if line.status == "failed")
    assert (line.message, line.remedy) == ("notes: It is so.", remedy)
