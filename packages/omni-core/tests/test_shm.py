"""Directories of dead runs are swept, those of living ones never."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from omni_core.relay import shm
from omni_core.relay.shm import RunDirectory


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shm, "_root", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_directory_is_private_and_named_after_its_owner(root: Path) -> None:
    run = RunDirectory()
    assert run.path.name.startswith(f"omni-{os.getpid()}-")
    assert mode(run.path) == 0o700
    (run.path / "segments").mkdir()
    (run.path / "segments" / "a@1").touch()
    run.remove()
    assert list(root.iterdir()) == []


def test_the_sweep_takes_dead_runs_only(root: Path, dead_pid: int) -> None:
    dead = root / f"omni-{dead_pid}-aa"
    mine, stranger, tool = root / f"omni-{os.getpid()}-bb", root / "other-1-cc", root / "omni-x-dd"
    for path in (dead, mine, stranger, tool):
        path.mkdir()
        (path / "1-1").touch()
    run = RunDirectory()
    assert set(root.iterdir()) == {mine, stranger, tool, run.path}
    run.remove()


def test_the_sweep_spares_a_run_whose_owner_has_a_pid_of_another_namespace(
    root: Path, dead_pid: int
) -> None:
    path = root / f"omni-{dead_pid}-aa"
    path.mkdir()
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # a living owner; its pid means nothing here
    RunDirectory().remove()
    assert path.exists()
    os.close(lock)
    RunDirectory().remove()
    assert not path.exists()


def test_the_sweep_follows_no_link(
    root: Path, dead_pid: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").touch()
    (root / f"omni-{dead_pid}-aa").symlink_to(elsewhere)
    RunDirectory().remove()
    assert (elsewhere / "kept").exists()


def test_a_living_run_is_locked_until_it_is_removed(root: Path) -> None:
    run = RunDirectory()
    other = os.open(run.path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    run.remove()
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
