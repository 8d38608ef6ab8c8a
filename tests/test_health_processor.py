"""A processor that LanceDB cannot run on: everything answers, and says why."""

import json
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import wire
from conftest import DATABASES, NO_KEYCHAIN, child_environment
from namespaces import run_there, with_mounts

import lancelot

FOLDER = str(DATABASES / "no-vector")
SAID = "LanceDB cannot run on this processor, which has no AVX2 instructions. Use a machine that has them"
OLD = "processor\t: 0\nflags\t\t: fpu sse sse2 ssse3 sse4_1 sse4_2 popcnt avx f16c\nbugs\t\t: none\n"
QEMU = shutil.which("qemu-x86_64") or ""


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        (OLD, True),
        (OLD.replace(" avx ", " avx avx2 "), False),
        ("processor\t: 0\nFeatures\t: fp asimd evtstrm aes\n", False),
        ("", False),
    ],
)
def test_an_old_x86_processor_is_refused_and_no_other(text: str, tmp_path: Path, *, is_refused: bool) -> None:
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    assert str(lancelot.processor_problem(tmp_path / "cpuinfo") or "").startswith(SAID) == is_refused


def test_a_system_that_does_not_tell_is_not_refused(tmp_path: Path) -> None:
    assert lancelot.processor_problem(tmp_path / "cpuinfo") is None


def test_a_package_that_cannot_be_loaded_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(lancelot.LancelotError, match=r"A part of Lancelot is missing .*lancedb.*\. Install it again\."):
        lancelot.load_lancedb()


@pytest.fixture
def old_processor(tmp_path: Path) -> tuple[str, ...]:
    """What stands before a command that then finds an old processor in /proc/cpuinfo."""
    (tmp_path / "cpuinfo").write_text(OLD, encoding="utf-8")
    before = with_mounts('mount --bind "$1" /proc/cpuinfo', str(tmp_path / "cpuinfo"))
    probe = before and subprocess.run(
        [*before, "cat", "/proc/cpuinfo"], capture_output=True, text=True, check=False, timeout=30
    )
    if not (before and probe and probe.stdout == OLD):
        pytest.skip("this user may not make a machine with another processor")
    return before


def test_the_server_answers_and_each_tool_says_why_it_cannot(old_processor: tuple[str, ...]) -> None:
    server = wire.Server(child_environment(LANCEDB_PATH=FOLDER), command=(*old_processor, *wire.COMMAND))
    assert server.ask(wire.request("list", "tools/list"))["result"]["tools"]
    for tool, arguments in (
        ("lancedb_search", {"query": "python"}),
        ("lancedb_query", {"question": "What is it?"}),
        ("lancedb_read", {"id": "1"}),
        ("lancedb_files", {}),
        ("lancedb_values", {"column": "text"}),
    ):
        result = server.ask(wire.call(tool, tool, **arguments))["result"]
        assert (result["isError"], result["content"][0]["text"].startswith(SAID)) == (True, True)
    status = json.loads(wire.text_of(server.ask(wire.call("status", "lancedb_status"))))
    assert status["problem"].startswith(SAID)
    assert [line["name"] for line in status["health"] if line["status"] != "ok"] == ["processor"]
    assert json.loads(wire.text_of(server.ask(wire.call("version", "lancedb_version"))))["lancelot"]
    assert server.end() == []


@pytest.mark.parametrize(
    "words",
    [("search", "python", "--path", FOLDER), ("index", str(Path(__file__).parent / "support"), "--path", "new")],
)
def test_a_command_that_needs_lancedb_says_so_in_a_sentence(
    old_processor: tuple[str, ...], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_there(old_processor, *words, environ=child_environment(**NO_KEYCHAIN))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"lancelot: {SAID}")
    assert done.stderr.count("\n") == 1


def test_init_stores_nothing_and_the_version_can_be_asked_for(old_processor: tuple[str, ...], config_dir: Path) -> None:
    environ = child_environment(**NO_KEYCHAIN)
    done = run_there(old_processor, "init", "--path", FOLDER, "--yes", environ=environ)
    assert done.returncode == 1
    assert done.stderr == "lancelot: Lancelot cannot search on this machine. Nothing was stored.\n"
    assert "failed   processor   LanceDB cannot run on this processor" in done.stdout
    assert not config_dir.exists()
    told = run_there(old_processor, "version", environ=environ)
    assert told.stdout.startswith(f"lancelot {lancelot.__version__} with")


@pytest.mark.skipif(not QEMU, reason="qemu-x86_64 (qemu-user) is not installed: no processor is emulated")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="Python here is for another processor")
def test_on_an_emulated_processor_lancedb_dies_and_lancelot_speaks(old_processor: tuple[str, ...]) -> None:
    emulated = (*old_processor, QEMU, "-cpu", "IvyBridge")
    loading = subprocess.run(
        [*emulated, sys.executable, "-c", "import lancedb"], capture_output=True, check=False, timeout=60
    )
    assert loading.returncode in (-signal.SIGILL, 128 + signal.SIGILL)
    done = run_there(emulated, "search", "python", "--path", FOLDER, environ=child_environment(**NO_KEYCHAIN))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(f"lancelot: {SAID}")
