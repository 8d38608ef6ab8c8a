"""`doctor`: every check on a line, a real session with the server among them, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pyarrow as pa
import pytest
from conftest import DATABASES, NO_KEYCHAIN, PROGRAM, Ended, Run, child_environment

import lancelot
import lancelot_setup

FOLDER = str(DATABASES / "anythingllm")
SMALL = str(DATABASES / "no-vector")
NAMES = ["platform", "processor", "disk space", "settings", "folder", "tables", "columns", "indexes", "key"]
NAMES += ["local model", "embeddings", "chat model", "clients", "server"]


def said(out: str) -> dict[str, list[str]]:
    """How the lines of each check stand, by the check's name."""
    found: dict[str, list[str]] = {}
    for status, name in re.findall(r"^(ok|warning|failed) +(.{11}) ", out, re.MULTILINE):
        found.setdefault(name.strip(), []).append(status)
    return found


@pytest.fixture
def without_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the session with a server out, which other tests make."""
    monkeypatch.setattr(lancelot_setup, "check_server", lambda _session: [lancelot.Check("server", "ok", "not tried")])


def test_all_that_is_well_is_ok_and_the_server_was_really_asked(run: Run) -> None:
    ended = run("doctor", "--path", SMALL)
    assert (ended.code, ended.err) == (0, "")
    assert list(said(ended.out)) == NAMES
    assert {status for lines in said(ended.out).values() for status in lines} == {"ok"}
    tools = sum(not tool.needs for tool in lancelot.TOOLS)
    assert re.search(
        rf"^ok +server +initialize, tools/list \({tools} tools\) and lancedb_status: \d+\.\d s\.$",
        ended.out,
        re.MULTILINE,
    )
    assert ended.out.endswith("\n\nall well\n")


@pytest.mark.usefixtures("without_server")
def test_for_programs_it_is_json_that_the_status_shares(run: Run) -> None:
    ended = run("doctor", "--path", SMALL, "--json")
    health = json.loads(ended.out)["health"]
    assert ended.code == 0
    assert list(dict.fromkeys(line["name"] for line in health)) == NAMES
    status = json.loads(run("status", "--path", SMALL, "--json", "--verbose").out)["health"]
    assert [line["name"] for line in status] == [line["name"] for line in health if line["name"] not in NAMES[-5:]]


@pytest.mark.usefixtures("without_server")
def test_the_options_are_what_is_checked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEDB_PATH", "/no/such/folder")
    ended = run("doctor", "--path", FOLDER, "--table", "nowhere")
    assert ended.code == 1
    assert said(ended.out)["folder"] == ["ok"]
    assert '"nowhere"' in ended.out
    assert "failed (tables)" in ended.out


@pytest.mark.usefixtures("without_server")
def test_only_warnings_end_with_0(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ended = run("doctor", "--path", str(tmp_path / "empty"))
    assert ended.code == 0
    assert ended.out.endswith("\n1 warning (tables)\n")


@pytest.mark.usefixtures("without_server")
def test_an_endpoint_is_really_asked(
    run: Run, embedding_server: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", embedding_server("--dimensions", "768"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test")
    ended = run("doctor", "--path", FOLDER)
    assert said(ended.out)["embeddings"] == ["ok", "warning", "warning"]
    assert "have length 384, not 768" in ended.out
    assert "sk-of-a-test" not in ended.out + ended.err


@pytest.fixture
def doctor(run: Run, monkeypatch: pytest.MonkeyPatch, without_server: None) -> Callable[..., Ended]:  # noqa: ARG001
    """Runs `doctor` on a folder with the local model and these variables."""

    def examine(folder: Path | str, **variables: str) -> Ended:
        for name, value in {"LANCELOT_LOCAL_MODEL": "on", **variables}.items():
            monkeypatch.setenv(name, value)
        return run("doctor", "--path", str(folder))

    return examine


@pytest.fixture
def by_local_model(make_table: Callable[..., Path], make_settings: Callable[..., lancelot.Settings]) -> Path:
    """A folder with a table whose vectors the local model made."""
    texts = [f"A text about {subject}." for subject in ("boilers", "invoices", "cats", "salads", "galaxies", "trains")]
    vectors = lancelot.LocalEmbedder(make_settings(LANCELOT_LOCAL_MODEL="on")).embed(texts)
    kind = pa.list_(pa.float32(), lancelot.LOCAL_LENGTH)
    return make_table({"text": texts, "vector": pa.array(vectors, kind)}, name="ours")


def test_the_local_model_is_tried_and_the_tables_that_it_made_are_named(
    doctor: Callable[..., Ended], by_local_model: Path
) -> None:
    ended = doctor(by_local_model)
    assert said(ended.out)["local model"] == ["ok", "ok"]
    assert re.search(r"all-MiniLM-L6-v2 was loaded in \d+ ms and embedded a word in \d+ ms\.", ended.out)
    assert "It made the vectors of ours, and searches by them." in ended.out
    assert "No key and no endpoint: nothing leaves this machine." in ended.out


def test_a_local_model_that_is_asked_for_and_missing_is_a_failed_line(
    doctor: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot, "local_files", list)
    assert said(doctor(SMALL).out)["local model"] == ["ok"]
    ended = doctor(SMALL, EMBEDDING_MODEL="local")
    assert (ended.code, said(ended.out)["local model"]) == (1, ["failed"])
    assert "The local model is no part of this installation." in ended.out


def test_that_a_server_s_model_made_the_vectors_is_proven_with_eight_texts(
    doctor: Callable[..., Ended], embedding_server: Callable[..., str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    ended = doctor(FOLDER, OPENAI_BASE_URL=embedding_server("--log", str(log)), EMBEDDING_MODEL="tiny")
    assert said(ended.out)["embeddings"] == ["ok"] * 3
    for table in ("python-peps", "world-notes"):
        assert f"{table}: tiny made its vectors." in ended.out
    sent = [json.loads(line)["body"]["input"] for line in log.read_text("utf-8").splitlines()]
    assert len(sent) == 1 + 2 * 2
    # A text goes out as it is stored, and without the header that AnythingLLM put before it.
    assert sum(map(len, sent[1:])) <= 2 * 2 * lancelot.SAMPLED_PARTS


def test_vectors_of_the_right_length_by_another_model_are_told(
    doctor: Callable[..., Ended], embedding_server: Callable[..., str], by_local_model: Path
) -> None:
    server = {"OPENAI_BASE_URL": embedding_server(), "EMBEDDING_MODEL": "tiny"}
    ended = doctor(by_local_model, **server)
    assert said(ended.out)["embeddings"] == ["ok", "warning"]
    assert "ours: its vectors are by all-MiniLM-L6-v2, the local model, not by tiny." in ended.out
    ended = doctor(by_local_model, LANCELOT_LOCAL_MODEL="off", **server)
    assert said(ended.out)["embeddings"] == ["ok", "warning"]
    assert "tiny did not make the vectors in ours.vector (mean cosine" in ended.out


def test_a_server_of_another_length_leaves_a_table_to_the_local_model(
    doctor: Callable[..., Ended], embedding_server: Callable[..., str], by_local_model: Path
) -> None:
    ended = doctor(by_local_model, OPENAI_BASE_URL=embedding_server("--dimensions", "768"))
    assert said(ended.out)["embeddings"] == ["ok", "ok"]
    assert "ours: its vectors are by all-MiniLM-L6-v2, the local model, which searches them." in ended.out


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import sys; sys.exit('a wheel is missing')", "a wheel is missing"),
        ("print('not JSON')", "Connection closed|.*Broken.*"),
        ("import time; time.sleep(60)", "no answer in time"),
    ],
)
def test_a_server_that_does_not_answer_is_a_failed_line_in_time(
    program: str, why: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot_setup, "SERVER_SECONDS", 2.0)
    monkeypatch.setattr(lancelot, "own_command", lambda _argv0: [sys.executable, "-c", program])
    started = time.monotonic()
    ended = run("doctor", "--path", SMALL)
    assert time.monotonic() - started < 30
    assert (ended.code, said(ended.out)["server"]) == (1, ["failed"])
    assert re.search(rf"did not answer within [\d.]+ s: {why}\.", ended.out), ended.out


def test_a_program_that_is_not_there_is_a_failed_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lancelot, "own_command", lambda _argv0: ["/no/such/python"])
    ended = run("doctor", "--path", SMALL)
    assert (ended.code, said(ended.out)["server"]) == (1, ["failed"])


def test_where_every_check_breaks_every_line_is_failed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> NoReturn:
        message = "a cog fell out"
        raise RuntimeError(message)

    checks = (*lancelot.CHECKS, *lancelot_setup.LIVE_CHECKS)
    broken = tuple(lancelot.Examination(check.name, break_down) for check in checks)
    monkeypatch.setattr(lancelot, "CHECKS", broken)
    monkeypatch.setattr(lancelot_setup, "LIVE_CHECKS", ())
    monkeypatch.setattr(lancelot_setup, "check_server", break_down)
    monkeypatch.setattr(lancelot.Searcher, "status", break_down)
    ended = run("doctor", "--path", SMALL)
    assert ended.code == 1
    assert said(ended.out) == {check.name: ["failed"] for check in broken} | {"clients": ["ok"], "server": ["failed"]}
    assert ended.err.count("a cog fell out") >= len(broken) + 2


def test_on_a_machine_where_everything_is_wrong_each_check_says_so(
    run: Run,
    folder_copy: Callable[[str], Path],
    config_dir: Path,
    make_settings: Callable[..., lancelot.Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lancelot.file_write(make_settings(), "http://127.0.0.1:1", "sk-of-a-test")
    (config_dir / lancelot.KEY_FILE).chmod(0o666)
    folder = folder_copy("anythingllm")
    shutil.rmtree(folder / "python-peps.lance" / "_versions")
    wrong = {
        "LANCEDB_TABLE": "world-notes",
        "LANCEDB_TEXT_COLUMN": "nowhere",
        "LANCEDB_DEFAULT_LIMIT": "many",
        "OPENAI_BASE_URL": "http://user:hunter2@127.0.0.1:1/v1",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lancelot, "LARGE_TABLE", 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=10))
    monkeypatch.setattr(lancelot, "own_command", lambda _argv0: [sys.executable, "-c", "raise SystemExit('no')"])
    ended = run("doctor", "--path", str(folder))
    assert ended.code == 1
    worst = {
        name: next((s for s in ("failed", "warning") if s in lines), "ok") for name, lines in said(ended.out).items()
    }
    assert worst == {
        "platform": "ok",
        "processor": "ok",
        "settings": "failed",
        "folder": "ok",
        "tables": "failed",
        "columns": "failed",
        "indexes": "warning",
        "disk space": "failed",
        "key": "warning",
        "local model": "ok",
        "embeddings": "failed",
        "chat model": "ok",
        "clients": "ok",
        "server": "failed",
    }
    assert not [secret for secret in ("hunter2", "sk-of-a-test", "user:") if secret in ended.out + ended.err]


def test_as_a_program_of_its_own_it_says_what_is_wrong_and_ends_with_1() -> None:
    ended = subprocess.run(
        [sys.executable, PROGRAM, "doctor", "--path", "/no/such/folder"],
        env=child_environment(**NO_KEYCHAIN),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    assert {name for name, lines in said(ended.stdout).items() if lines != ["ok"]} == {"folder"}
    assert said(ended.stdout)["server"] == ["ok"]


@pytest.mark.usefixtures("without_server")
def test_folders_that_a_model_may_index_are_looked_at(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LANCELOT_INDEX_ROOTS", f"{tmp_path}{os.pathsep}{tmp_path / 'gone'}")
    ended = run("doctor", "--path", SMALL)
    assert said(ended.out)["index roots"] == ["warning"]
    assert f"{tmp_path / 'gone'}, which is no folder" in ended.out


@pytest.mark.usefixtures("without_server")
@pytest.mark.parametrize(
    "address", ["http://user:SECRET@127.0.0.1:9/v1?api_key=SECRET", "http://127.0.0.1:9/v1?key=SECRET"]
)
def test_no_secret_of_an_address_is_printed(address: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    for path in (SMALL, "s3://AKIA:SEC/SECRET@bucket/x", "db://mydb?api_key=SECRET"):
        for command in ("doctor", "status"):
            ended = run(command, "--path", path)
            assert "SECRET" not in ended.out + ended.err
