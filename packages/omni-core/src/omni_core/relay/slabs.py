"""Shared memory between the processes of a host: each lends from its own pool, and borrows.

The pools lie in a directory of the run. Knows how the two halves belong together; `lender` and
`borrower` do the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from omni_core.relay.borrower import Borrower
from omni_core.relay.lender import Lender, PoolLimits
from omni_core.relay.pool import Bytes, SlabReference


class SharedMemory:
    """A `Relay` of flat uint8 numpy arrays for one process."""

    def __init__(
        self,
        directory: Path,
        process: str,
        limits: PoolLimits | None = None,
        before_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`process` is the name that others `forget` it by. `before_wait` sends what is held back:
        nobody can release what he has not got."""
        limits = limits or PoolLimits()
        self._lender = Lender(directory / f"{process}@{os.getpid()}", limits, before_wait)
        self._borrower = Borrower(directory)

    def place(self, data: Bytes, target: str) -> SlabReference:
        """See `Relay.place`."""
        return self._lender.place(data, target)

    def open(self, reference: SlabReference) -> Bytes:
        """See `Relay.open`."""
        return self._borrower.open(reference)

    def discard(self, reference: SlabReference) -> None:
        """See `Relay.discard`."""
        self._lender.discard(reference)

    def forget(self, process: str) -> None:
        """See `Relay.forget`."""
        self._lender.forget(process)
        self._borrower.forget(process)

    def stats(self) -> dict[str, float]:
        """See `Relay.stats`."""
        return self._lender.stats() | self._borrower.stats()

    def close(self) -> None:
        """See `Relay.close`."""
        self._lender.close()


def remove_leftovers(directory: Path, process: str) -> None:
    """Delete what a process that has died left in the directory; names are used once."""
    for path in directory.iterdir():
        if path.name.rpartition("@")[0] == process:
            path.unlink(missing_ok=True)
