"""Shared memory by hand-over: the writer makes a segment, its one reader maps and unlinks it.

A segment is a file in a directory of this run under /dev/shm (or the temporary directory where
there is none). The name of the directory carries the pid of its owner, so that a later start can
sweep what a killed run left. Knows bytes and files. Knows nothing of tensors or messages.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final

from omni_core.errors import ProtocolError

_PREFIX: Final = "omni-"
_SEGMENT_NAME: Final = re.compile(r"[0-9]+-[0-9]+")


class SharedMemory:
    """Writes and reads the segments of one run; safe from any thread of a process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()

    def write(self, data: memoryview) -> str:
        """Copy `data` into a fresh segment and return its name; its reader owns it from here."""
        name = f"{os.getpid()}-{next(self._numbers)}"
        path = self._directory / name
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, data.nbytes)
            with mmap.mmap(descriptor, data.nbytes) as mapped:
                mapped[:] = data
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        return name

    def read(self, name: str) -> mmap.mmap:
        """Map a segment without copying and unlink it; the mapping lives as long as its users.

        Writes to the mapping stay private to this process.
        """
        if not _SEGMENT_NAME.fullmatch(name):
            raise ProtocolError(f"bad segment name {name!r}")
        path = self._directory / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError as exc:
            raise ProtocolError(f"segment {name} is gone") from exc
        try:
            path.unlink()
            return mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=_PRIVATE_WRITABLE)
        finally:
            os.close(descriptor)


_PRIVATE_WRITABLE: Final = mmap.PROT_READ | mmap.PROT_WRITE


def create_run_directory() -> Path:
    """A 0700 directory for the segments of this run; first sweeps those of dead runs."""
    root = _root()
    _sweep(root)
    path = root / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir(mode=0o700)
    return path


def remove_run_directory(path: Path) -> None:
    """Free every segment still there."""
    shutil.rmtree(path, ignore_errors=True)


def _root() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def _sweep(root: Path) -> None:
    for path in root.glob(f"{_PREFIX}*-*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and path.stat().st_uid == os.getuid() and not _alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
