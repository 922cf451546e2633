"""What is left to do when a process is killed is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omni_core.janitor import Janitor

WITHIN_S = 10.0
PARENT = """
import os, signal, subprocess, sys, time
from pathlib import Path
from omni_core.janitor import Janitor
signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored, if whoever runs the tests ignores it
directory = Path(sys.argv[1])
janitor = Janitor(directory)
directory.mkdir()
(directory / "file").touch()
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
kept, gone = (subprocess.Popen(sleep, start_new_session=True) for _ in range(2))
janitor.watch(kept.pid)
janitor.watch(gone.pid)
janitor.unwatch(gone.pid)
print(kept.pid, gone.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_parent_leaves_neither_files_nor_processes(tmp_path: Path, number: int) -> None:
    directory = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(directory)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        kept, gone = (int(pid) for pid in parent.stdout.readline().split())
        try:
            parent.send_signal(number)
            parent.wait(WITHIN_S)
            deadline = time.monotonic() + WITHIN_S
            while is_running(kept) or directory.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert is_running(gone), "it was no longer to be watched"
        finally:
            os.kill(gone, signal.SIGKILL)
            parent.kill()


def test_a_dismissed_janitor_cleans_up_and_is_no_zombie(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    janitor = Janitor(directory)
    directory.mkdir()
    janitor.dismiss()
    assert not directory.exists()
    assert not Path(f"/proc/{janitor._child.pid}").exists()
    janitor.dismiss()


def test_a_janitor_that_was_killed_is_missed_by_nobody(tmp_path: Path) -> None:
    janitor = Janitor(tmp_path / "run")
    janitor._child.kill()
    janitor._child.wait()
    janitor.watch(os.getpid())
    janitor.unwatch(os.getpid())
    janitor.dismiss()


def test_a_janitor_that_was_dismissed_is_told_nothing(tmp_path: Path) -> None:
    janitor = Janitor(tmp_path / "run")
    janitor.dismiss()
    janitor.unwatch(1)
