"""The directory of a run, under /dev/shm or, where there is none, the temporary directory.

Its name carries the pid of its owner, who also keeps it locked, so that a later start can sweep
what a killed run left. Knows directories. Knows nothing of what lies in them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final

from omni_core.janitor import Janitor

_PREFIX: Final = "omni-"


class RunDirectory:
    """The 0700 directory of one run. Creating one first sweeps those of dead runs, and starts the
    janitor that deletes it should this process be killed."""

    def __init__(self) -> None:
        root = _root()
        _sweep(root)
        self.path = root / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self.janitor = Janitor(self.path)
        self.path.mkdir(mode=0o700)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Free everything still there; may be called once."""
        remove_tree(self.path)
        self.janitor.dismiss()
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
