"""The first hour at a terminal from a fresh home: every screen of it, as a person sees it at 80 columns and 24 lines."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import NO_KEYCHAIN, PROJECT, TESTS, child_environment

import lancelot

terminal = pytest.importorskip("terminal", reason="Windows has no pseudo-terminals of this kind")

SNAPSHOT = TESTS / "snapshots" / "first-hour.txt"
COLUMNS, LINES = 80, 24
TEXTS = {
    "boiler.md": "# Boiler TX-900\n\n## Service\n\nThe service pressure is 2 bar. Bleed the radiators first.\n",
    "insurance.md": "# Household insurance\n\nThe excess is 150 euros for each claim.\n",
    "letter.txt": "Dear Ms Lind,\n\nthe key to the cellar hangs behind the door.\n",
}


class Home:
    """A home folder whose path is as long on every machine, since lines are wrapped by it, and what was seen in it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="home-", dir="/tmp")).resolve()
        self.program = "apps/lancelot.py"
        self.screens: list[str] = []
        for name, text in TEXTS.items():
            self.write(f"Documents/{name}", text)
        self.write(".cursor/mcp.json", "{}\n")
        self.install()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def install(self) -> None:
        (self.folder / self.program).parent.mkdir(exist_ok=True)
        (self.folder / self.program).unlink(missing_ok=True)
        (self.folder / self.program).symlink_to(PROJECT / "lancelot.py")

    def run(self, line: str, *answers: tuple[str, str], code: int = 0) -> None:
        """Runs a command as it is typed at home, answers its questions, and keeps the screen."""
        folders = {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / ".config")}
        path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "LANCELOT_LOCAL_MODEL": ""}
        typed = f"python3 {self.program} {line}"
        session = terminal.Terminal(
            ["/bin/sh", "-c", f'cd "$HOME" && exec {typed}'], child_environment(**NO_KEYCHAIN, **folders, **path)
        )
        try:
            for question, answer in answers:
                session.wait_for(question)
                session.type(f"{answer}\n")
            ended = session.end()
        finally:
            session.stop()
        assert ended == code, session.shown
        self.screens.append(f"$ {typed}\n{self._seen(session.shown)}")

    def _seen(self, shown: str) -> str:
        """What stands on the screen in the end, with what differs from run to run by one name."""
        lines = [overwritten(line) for line in shown.replace("\r\n", "\n").rstrip("\n").split("\n")]
        assert sum(max(1, -(-len(line) // COLUMNS)) for line in lines) < LINES, "\n".join(lines)
        text = "\n".join(lines).replace(str(self.folder), "/home/me")
        for pattern, name in (
            (r"\b[0-9a-f]{8,32}\b", "ID"),
            (r"\b\d+(\.\d+)? (ms|s|GB)\b", r"N \2"),
            (r"\b\d\.\d{3}\b", "N"),
            (r"(?m)^(ok       (?:platform|local model all-MiniLM-L6-v2|disk space) ).*(\n {21}.*)*", r"\1…"),
        ):
            text = re.sub(pattern, name, text)
        return text


def overwritten(line: str) -> str:
    """What is left of a line that was written over from its beginning, as a progress bar does."""
    left = ""
    for part in line.split("\r"):
        left = part + left[len(part) :]
    return left.rstrip()


@pytest.fixture
def home() -> Iterator[Home]:
    home = Home()
    yield home
    shutil.rmtree(home.folder)


@pytest.mark.skipif(sys.platform != "linux", reason="lines are wrapped by the paths of Linux")
@pytest.mark.skipif(not lancelot.has_local_model(), reason="the model is no part of this installation")
def test_the_screens_of_the_first_hour(home: Home) -> None:
    folder, database = "Folder of documents, or of a LanceDB database: ", "Index them into which folder?"
    home.run("init", (folder, "~/Documnets"), ("Did you mean", "~/Documents"), (database, ""), ("blank for 1", ""))
    home.run("init --client cursor")
    for words in ("boiler pressure", "what do I pay myself", "cellar"):
        home.run(f"search {words} --limit 2")
    (home.folder / "Documents").rename(home.folder / "Papers")
    home.run("index --moved ~/Documents ~/Papers")
    (home.folder / "apps").rename(home.folder / "tools")
    home.program = "tools/lancelot.py"
    home.run("doctor", code=1)
    home.run("init --client cursor")
    home.install()  # the new version in the place of the old one
    home.run("version")
    home.run("init --remove", ("[y/N]: ", "y"))
    left = sorted(path.relative_to(home.folder).parts[0] for path in home.folder.rglob("*") if path.is_file())
    assert set(left) == {".cursor", "Papers", "lancedb", "tools"}
    assert (home.folder / ".cursor" / "mcp.json").read_text(encoding="utf-8") == "{}\n"
    seen = "\n\n".join(home.screens) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(seen, encoding="utf-8")
    assert seen == SNAPSHOT.read_text(encoding="utf-8"), "UPDATE_SNAPSHOTS=1 accepts it"
