"""A program at a real pseudo-terminal: what it shows, what is typed, how it ends. Every wait is bounded."""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SECONDS = 30.0
# The terminal must be the one that /dev/tty means, since passwords are asked there.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A child process whose standard input, and output unless told otherwise, is a terminal."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], **streams: Any) -> None:
        self._master, slave = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            env={"TERM": "dumb", **environ},
            cwd="/",
            start_new_session=True,
            **{"stdin": slave, "stdout": slave, "stderr": slave, **streams},
        )
        os.close(slave)
        self.shown = ""

    def _read(self, deadline: float) -> bool:
        """Takes in what is shown next; whether there may be more."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more was shown after: {self.shown}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux's way to say that nobody holds the other end
            return False
        self.shown += data.decode("utf-8", "replace")
        return bool(data)

    def wait_for(self, text: str) -> None:
        """Returns when the text was shown."""
        deadline = time.monotonic() + SECONDS
        while text not in self.shown:
            assert self._read(deadline), f"it ended without {text!r}: {self.shown}"

    def type(self, keys: str) -> None:
        """Types when the program sleeps, as it does while it reads: a Ctrl-C just before that waits for another key."""
        state, deadline = Path(f"/proc/{self.process.pid}/stat"), time.monotonic() + SECONDS
        while state.exists() and ") S " not in state.read_text("utf-8") and time.monotonic() < deadline:
            time.sleep(0.01)
        os.write(self._master, keys.encode())

    def end(self) -> int:
        """The exit code, after everything was shown."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(timeout=SECONDS)

    def stop(self) -> None:
        """Ends the process if it still runs."""
        self.process.kill()
        self.process.wait(timeout=SECONDS)
        for stream in filter(None, (self.process.stdout, self.process.stderr)):
            stream.close()
        with contextlib.suppress(OSError):
            os.close(self._master)
