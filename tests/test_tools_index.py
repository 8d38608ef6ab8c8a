"""A model may have folders indexed that the person allowed, in a process of its own, and no others."""

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import lancedb
import pytest
import wire
from conftest import WITHOUT_MODEL, child_environment

import lancelot
import lancelot_index

TOOL = "lancedb_index"


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    root = tmp_path / "allowed"
    (root / "notes").mkdir(parents=True)
    (root / "notes" / "tea.md").write_text("# Tea\n\nGreen tea.\n", encoding="utf-8")
    (tmp_path / "allowed-not").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.txt").write_text("secret", encoding="utf-8")
    return root


def many(root: Path, *, files: int = 1500) -> None:
    """Files enough for a run of some seconds."""
    for number in range(files):
        (root / f"{number}.md").write_text(f"# {number}\n\n" + f"Words on {number}. " * 60, encoding="utf-8")


@pytest.fixture
def settings(
    allowed: Path, tmp_path: Path, make_settings: Callable[..., lancelot.Settings], monkeypatch: pytest.MonkeyPatch
) -> lancelot.Settings:
    for name, value in WITHOUT_MODEL.items():  # for the indexer too, which is a process of its own
        monkeypatch.setenv(name, value)
    return make_settings(LANCEDB_PATH=tmp_path / "db", LANCELOT_INDEX_ROOTS=allowed)


def call_once(settings: lancelot.Settings, **arguments: Any) -> tuple[str, bool, list[tuple[float, float | None]]]:
    """One call by a client in memory: the text, whether it is an error, the progress that was told."""
    from mcp import Client

    told: list[tuple[float, float | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert re.match(r"(?:files|indexes|vectors): [\d,]+ of [\d,]+", message or "")
        told.append((progress, total))

    async def run() -> tuple[str, bool]:
        async with Client(lancelot.build_server(settings, command=wire.COMMAND)) as client:
            result = await client.call_tool(TOOL, arguments, progress_callback=note)
            return "".join(block.text for block in result.content if block.type == "text"), bool(result.is_error)

    text, failed = anyio.run(run)
    return text, failed, told


def listed_tools(settings: lancelot.Settings) -> dict[str, Any]:
    return {tool.name: tool for tool in lancelot.tools_for(settings)}


def test_it_is_offered_only_where_folders_are_allowed(
    settings: lancelot.Settings, make_settings: Callable[..., lancelot.Settings]
) -> None:
    assert TOOL in listed_tools(settings)
    assert TOOL not in listed_tools(make_settings())
    assert TOOL not in listed_tools(make_settings(LANCELOT_INDEX_ROOTS="relative/folder"))


def test_it_says_of_itself_that_it_writes(settings: lancelot.Settings) -> None:
    hints = {tool.name: lancelot.describe_tool(tool, settings).annotations for tool in lancelot.TOOLS}
    assert [name for name, hint in hints.items() if hint and not hint.read_only_hint] == [TOOL]
    assert hints[TOOL]
    assert hints[TOOL].destructive_hint


def test_without_allowed_folders_a_call_is_refused(make_settings: Callable[..., lancelot.Settings]) -> None:
    text, failed, _ = call_once(make_settings(), folder="/")
    assert failed
    assert text == (
        "No folder may be indexed by a tool. Set LANCELOT_INDEX_ROOTS to the folders that may, or run `index`."
    )


@pytest.mark.parametrize(
    "folder",
    ["{root}/../secret", "{root}/link", "{root}/link/..", "{tmp}/allowed-not", "{tmp}", "/", "notes", "~", "\x00"],
)
def test_a_folder_outside_the_allowed_ones_is_refused_whatever_way_it_is_named(
    folder: str, allowed: Path, settings: lancelot.Settings, tmp_path: Path
) -> None:
    (allowed / "link").symlink_to(tmp_path / "secret")
    text, failed, _ = call_once(settings, folder=folder.format(root=allowed, tmp=tmp_path))
    assert failed
    assert "is not inside a folder that may be indexed" in text
    assert str(allowed) in text
    assert not (tmp_path / "db").exists()


def test_a_folder_inside_is_indexed_and_the_summary_returned(
    allowed: Path, settings: lancelot.Settings, tmp_path: Path
) -> None:
    many(allowed / "notes", files=250)
    text, failed, told = call_once(settings, folder=str(allowed / "notes"))
    answer = json.loads(text)
    assert not failed
    assert (answer["newFiles"], answer["totalFiles"], answer["failedFiles"]) == (251, 251, 0)
    assert lancedb.connect(tmp_path / "db").open_table("documents").count_rows() == answer["totalChunks"]
    assert told == sorted(told)
    assert told
    assert {total for _, total in told} == {253.0}
    again = json.loads(call_once(settings, folder=str(allowed / "notes"))[0])
    assert (again["newFiles"], again["skippedFiles"]) == (0, 251)
    forced = json.loads(call_once(settings, folder=str(allowed / "notes"), force=True)[0])
    assert forced["updatedFiles"] == 251


def test_a_call_keeps_the_patterns_of_a_person_and_takes_no_more_than_half_of_the_table_out(
    allowed: Path, settings: lancelot.Settings, tmp_path: Path
) -> None:
    for name in "abc":
        (allowed / f"{name}.txt").write_text(f"Text {name}.", encoding="utf-8")
    command = [*wire.COMMAND, "index", str(allowed), "--path", str(tmp_path / "db"), "--include", "*.txt"]
    subprocess.run(command, env=child_environment(), check=True, capture_output=True, timeout=60)
    answer = json.loads(call_once(settings, folder=str(allowed))[0])
    assert (answer["newFiles"], answer["skippedFiles"]) == (0, 3)
    assert "--include '*.txt'" in answer["notes"][0]
    (allowed / "a.txt").unlink()
    (allowed / "b.txt").unlink()
    text, failed, _ = call_once(settings, folder=str(allowed))
    assert failed
    assert "would take 2 of 3 files out of the table documents" in text
    assert lancedb.connect(tmp_path / "db").open_table("documents").count_rows() == 3


def test_a_blank_folder_is_refused_and_blanks_are_part_of_a_name(allowed: Path, settings: lancelot.Settings) -> None:
    assert call_once(settings, folder=" ")[0].startswith('"" is not inside a folder that may be indexed.')
    (allowed / "notes ").mkdir()
    text, failed, _ = call_once(settings, folder=f"{allowed}/notes ")
    assert not failed
    assert json.loads(text)["folder"] == f"{allowed}/notes "


def test_a_link_inside_is_followed_to_a_folder_inside(allowed: Path, settings: lancelot.Settings) -> None:
    (allowed / "same").symlink_to(allowed / "notes")
    text, failed, _ = call_once(settings, folder=str(allowed / "same"))
    assert not failed
    assert json.loads(text)["folder"] == str(allowed / "notes")


@pytest.mark.parametrize(
    ("named", "reason"),
    [(".ssh", "hidden"), ("private/deep", "ignored by pattern"), ("node_modules", "ignored by pattern")],
)
def test_a_hidden_or_ignored_folder_inside_is_refused_also_when_it_is_named(
    named: str, reason: str, allowed: Path, settings: lancelot.Settings, tmp_path: Path
) -> None:
    (allowed / named).mkdir(parents=True)
    (allowed / named / "id_rsa").write_text("secret", encoding="utf-8")
    (allowed / ".gitignore").write_text("/private/\n", encoding="utf-8")
    text, failed, _ = call_once(settings, folder=str(allowed / named))
    assert failed
    assert text.startswith(f"The folder {allowed / named} is left out ({reason}).")
    assert not (tmp_path / "db").exists()


def test_a_hidden_folder_that_the_person_allowed_by_its_name_is_indexed(
    allowed: Path, tmp_path: Path, make_settings: Callable[..., lancelot.Settings]
) -> None:
    hidden = allowed / ".notes"
    hidden.mkdir()
    (hidden / "tea.md").write_text("Green tea.", encoding="utf-8")
    roots = f"{allowed}:{hidden}:{tmp_path}"
    settings = make_settings(LANCEDB_PATH=tmp_path / "db", LANCELOT_INDEX_ROOTS=roots)
    text, failed, _ = call_once(settings, folder=str(hidden))
    assert not failed
    assert json.loads(text)["newFiles"] == 1


def test_a_folder_that_became_a_link_since_the_call_was_checked_is_refused_by_the_run(
    allowed: Path, settings: lancelot.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_index = lancelot.run_index

    async def run_late(command: Any, report: Any) -> str:
        (allowed / "notes").rename(tmp_path / "moved")
        (allowed / "notes").symlink_to(tmp_path / "secret")
        return await run_index(command, report)

    monkeypatch.setattr(lancelot, "run_index", run_late)
    text, failed, _ = call_once(settings, folder=str(allowed / "notes"))
    assert failed
    assert text.startswith(f"The folder {allowed / 'notes'} is not inside {allowed}: a link leads out.")
    assert not (tmp_path / "db").exists()


def test_a_second_run_at_the_same_time_is_told_to_wait(
    allowed: Path, settings: lancelot.Settings, tmp_path: Path
) -> None:
    with lancelot_index.write_lock(tmp_path / "db"):
        text, failed, _ = call_once(settings, folder=str(allowed))
    assert failed
    assert text.startswith("Another run of `lancelot index` is writing to ")


def test_the_reason_why_a_table_is_not_written_reaches_the_model(
    allowed: Path, settings: lancelot.Settings, tmp_path: Path
) -> None:
    lancedb.connect(tmp_path / "db").create_table("documents", [{"id": "1", "text": "theirs"}])
    text, failed, _ = call_once(settings, folder=str(allowed))
    assert failed
    assert text.startswith("The table documents was not made by `lancelot index`")


def test_an_emptied_folder_is_told_to_the_model_and_takes_nothing_out(
    allowed: Path, settings: lancelot.Settings, tmp_path: Path
) -> None:
    call_once(settings, folder=str(allowed / "notes"))
    for path in (allowed / "notes").iterdir():
        path.unlink()
    text, failed, _ = call_once(settings, folder=str(allowed / "notes"), force=True)
    assert failed
    assert "which stay there. See whether its disk is mounted" in text
    assert lancedb.connect(tmp_path / "db").open_table("documents").count_rows() > 0
    (allowed / "notes").rmdir()
    text, failed, _ = call_once(settings, folder=str(allowed / "notes"))
    assert failed
    assert "`lancelot index --forget " in text


# Over the wire: a run ends with its call, and with the server


def wholes(tmp_path: Path) -> set[str]:
    """The sources in the table, each of which must be there with all of its chunks."""
    rows = lancedb.connect(tmp_path / "db").open_table("documents").to_arrow().to_pylist()
    return {row["chunkSource"] for row in rows}


def runs_of(tmp_path: Path) -> list[str]:
    """The command lines of the runs that are alive."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if "\0index\0" in line and str(tmp_path) in line:
            found.append(line)
    return found


def until_ended(tmp_path: Path) -> None:
    """Waits until no run is alive."""
    deadline = time.monotonic() + 30
    while runs_of(tmp_path):
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


@pytest.fixture
def server_with_a_run(allowed: Path, tmp_path: Path) -> Iterator[wire.Server]:
    """A server that has begun to index many files."""
    many(allowed)
    environ = child_environment(LANCEDB_PATH=str(tmp_path / "db"), LANCELOT_INDEX_ROOTS=str(allowed))
    server = wire.Server(environ)
    server.send(wire.call(1, TOOL, folder=str(allowed)))
    deadline = time.monotonic() + 30
    while not (tmp_path / "db" / "documents.lance" / "data").is_dir():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
    yield server
    server.stop()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no /proc to look for processes in")
def test_a_call_that_is_cancelled_ends_its_run_and_leaves_whole_files(
    server_with_a_run: wire.Server, tmp_path: Path
) -> None:
    assert runs_of(tmp_path)
    server_with_a_run.send(wire.notification("notifications/cancelled", requestId=1))
    until_ended(tmp_path)
    assert 0 < len(wholes(tmp_path)) < 1501
    answer = server_with_a_run.ask(wire.call(2, "lancedb_search", query="words", limit=1))
    assert json.loads(wire.text_of(answer))["hits"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no /proc to look for processes in")
@pytest.mark.parametrize("how", ["end of input", "SIGKILL"])
def test_a_run_ends_with_its_server(how: str, server_with_a_run: wire.Server, tmp_path: Path) -> None:
    assert runs_of(tmp_path)
    if how == "SIGKILL":
        server_with_a_run.process.kill()
    else:
        server_with_a_run.close_input()
    until_ended(tmp_path)
    assert wholes(tmp_path)
