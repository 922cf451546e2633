"""Shared memory by hand-over: the writer makes a segment, its one reader maps and unlinks it.

A segment is a file in a directory of this run under /dev/shm (or the temporary directory where
there is none). The name of the directory carries the pid of its owner, who also keeps it locked, so
that a later start can sweep what a killed run left. Knows bytes and files. Knows nothing of tensors
or messages.
"""

from __future__ import annotations

import contextlib
import fcntl
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
        except OSError as exc:
            raise ProtocolError(f"segment {name} cannot be opened: {exc}") from exc
        try:
            path.unlink()
            return mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=_PRIVATE_WRITABLE)
        except (OSError, ValueError) as exc:
            raise ProtocolError(f"segment {name} cannot be mapped: {exc}") from exc
        finally:
            os.close(descriptor)

    def discard(self, name: str) -> None:
        """Free a segment whose name was never sent."""
        (self._directory / name).unlink(missing_ok=True)


_PRIVATE_WRITABLE: Final = mmap.PROT_READ | mmap.PROT_WRITE


class RunDirectory:
    """The 0700 directory of one run. Creating one first sweeps those of dead runs."""

    def __init__(self) -> None:
        root = _root()
        _sweep(root)
        self.path = root / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self.path.mkdir(mode=0o700)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Free everything still there; may be called once."""
        remove_tree(self.path)
        os.close(self._lock)


def remove_tree(path: Path) -> None:
    """Delete a directory that others may be deleting or filling at the same time."""
    shutil.rmtree(path, ignore_errors=True)


def _root() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def _sweep(root: Path) -> None:
    for path in root.glob(f"{_PREFIX}*-*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not _alive(int(owner)) and _abandoned(path):
            remove_tree(path)


def _abandoned(path: Path) -> bool:
    """Whether this is our user's and nobody holds its lock.

    A pid alone proves nothing where containers with pids of their own share /dev/shm.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        finally:
            os.close(descriptor)
    return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
