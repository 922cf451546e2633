"""Segments change hands once; directories of dead runs are swept, those of living ones never."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from omni_core.errors import ProtocolError
from omni_core.relay import shm
from omni_core.relay.shm import RunDirectory, SharedMemory

DATA = memoryview(bytes(range(256)) * 8)


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


def test_a_segment_changes_hands(tmp_path: Path) -> None:
    memory = SharedMemory(tmp_path)
    name = memory.write(DATA)
    assert mode(tmp_path / name) == 0o600
    mapped = memory.read(name)
    assert list(tmp_path.iterdir()) == []
    assert mapped[:] == DATA
    with pytest.raises(ProtocolError, match="cannot be opened"):
        memory.read(name)


def test_writes_of_the_reader_stay_private(tmp_path: Path) -> None:
    memory = SharedMemory(tmp_path)
    name = memory.write(DATA)
    os.link(tmp_path / name, tmp_path / "9-9")
    first, second = memory.read(name), memory.read("9-9")
    first[:4] = b"xxxx"
    assert second[:] == DATA


def test_names_are_unique(tmp_path: Path) -> None:
    memory = SharedMemory(tmp_path)
    assert len({memory.write(DATA) for _ in range(5)}) == 5


@pytest.mark.parametrize("name", ["", "..", "1-1/..", "/etc/passwd", "1-1\n", "a-1", "1", "-1-1"])
def test_strange_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProtocolError, match="bad segment name"):
        SharedMemory(tmp_path).read(name)


def test_a_link_in_place_of_a_segment_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    (tmp_path / "1-1").symlink_to(secret)
    with pytest.raises(ProtocolError, match="cannot be opened"):
        SharedMemory(tmp_path).read("1-1")
    assert secret.read_text() == "x"


def test_an_empty_segment_is_a_protocol_error(tmp_path: Path) -> None:
    (tmp_path / "1-1").touch()
    with pytest.raises(ProtocolError, match="cannot be mapped"):
        SharedMemory(tmp_path).read("1-1")


def test_a_segment_that_was_not_sent_is_freed(tmp_path: Path) -> None:
    memory = SharedMemory(tmp_path)
    memory.discard(memory.write(DATA))
    memory.discard("1-1")
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_is_private_and_named_after_its_owner(root: Path) -> None:
    run = RunDirectory()
    assert run.path.name.startswith(f"omni-{os.getpid()}-")
    assert mode(run.path) == 0o700
    (run.path / "segments").mkdir()
    SharedMemory(run.path / "segments").write(DATA)
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
