"""A child that outlives us, to clean up when nobody else can: after SIGKILL, or `os._exit`.

It waits on a pipe that closes when its parent is gone, whatever ended that; then it kills the
process groups it was told of and deletes the directory it was started for. It imports next to
nothing, sleeps all its life, and ignores the signals that a terminal or a service manager sends to
everyone. Knows processes and one directory. Knows nothing of what they are for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

_LEAVE_S: Final = 5.0
_TRIES: Final = 50
_BETWEEN_TRIES_S: Final = 0.1


class Janitor:
    """The parent's side."""

    def __init__(self, directory: Path) -> None:
        """Start it; `directory` need not exist yet."""
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(directory)],
            stdin=subprocess.PIPE,
            bufsize=0,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Kill this process group as well, should the parent die before `unwatch`."""
        self._tell(f"+{group}")

    def unwatch(self, group: int) -> None:
        """The leader of the group has ended; its number may come to mean another."""
        self._tell(f"-{group}")

    def dismiss(self) -> None:
        """Clean up now: it does its work and leaves. May be called twice."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _tell(self, line: str) -> None:
        assert self._child.stdin is not None
        if self._child.stdin.closed:  # dismissed: it has done its work
            return
        with contextlib.suppress(BrokenPipeError):  # it was killed; the next start sweeps instead
            self._child.stdin.write(line.encode() + b"\n")


def main(directory: str) -> None:
    """The child's side; reads "+PID" and "-PID" until its parent is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line))
        else:
            groups.discard(-int(line))
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(_TRIES):  # who is being killed may still make a file
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(_BETWEEN_TRIES_S)


if __name__ == "__main__":
    main(sys.argv[1])
