"""One tensor in a file of its own: the lender writes it, its one reader maps and unlinks it.

For what is too large for a pool. Knows bytes and files.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from omni_core.errors import ProtocolError
from omni_core.relay.pool import Bytes


def write(path: Path, data: Bytes) -> None:
    """Copy `data` into a fresh file; OSError, and no file, if there is no room for it."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, data.nbytes)
        with mmap.mmap(descriptor, data.nbytes) as mapped:
            np.copyto(np.frombuffer(mapped, np.uint8), data)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def take(path: Path, size_bytes: int) -> Bytes:
    """Map the file without copying and unlink it; the memory lives as long as its users."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as exc:
        raise ProtocolError(f"segment {path.name} cannot be opened: {exc}") from exc
    try:
        path.unlink()
        if os.fstat(descriptor).st_size != size_bytes:
            raise ProtocolError(f"segment {path.name} has another size than was said")
        return np.frombuffer(mmap.mmap(descriptor, size_bytes), np.uint8)
    except OSError as exc:
        raise ProtocolError(f"segment {path.name} cannot be mapped: {exc}") from exc
    finally:
        os.close(descriptor)
