"""Opens what others lent to this process, and marks it as released when nobody uses it any more.

A view is of memory that nobody else reads or writes until it is released, so one that is written to
against the contract harms its own process only. Knows references, files and lifetimes. Knows
nothing of tensors or messages.
"""

from __future__ import annotations

import re
import threading
import weakref
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from omni_core.errors import ProtocolError
from omni_core.relay import pool, segment
from omni_core.relay.pool import Bytes, PoolMapping, SlabReference
from omni_core.relay.slots import Run

POOL_NAME: Final = re.compile(r"(?P<process>[^/\0]+)@[0-9]+")


@dataclass(frozen=True, slots=True)
class _Attached:
    mapping: PoolMapping
    opened: array[int]
    """By slot: generation of the loan that was last opened there."""


class Borrower:
    """The borrowing half of a process's shared memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pools: dict[str, _Attached] = {}
        self._lock = threading.Lock()
        self.bytes_viewed = 0
        self.bytes_copied_out = 0

    def open(self, reference: SlabReference) -> Bytes:
        """See `Relay.open`."""
        with self._lock:
            attached = self._attached(reference.pool)
            runs = _checked(reference, attached)
            attached.opened[runs[0].start] = reference.generation
        mapping, head = attached.mapping, runs[0].start
        if reference.segment:
            path = pool.segment_path(self._directory / reference.pool, reference.generation)
            try:
                data = segment.take(path, reference.size_bytes)
            finally:
                mapping.release(head, reference.generation)
        elif reference.copy or len(runs) > 1:
            data = _copied(mapping, runs, reference.size_bytes)
            mapping.release(head, reference.generation)
            self.bytes_copied_out += data.nbytes
            return data
        else:
            data = mapping.view(runs[0], reference.size_bytes)
            released = weakref.finalize(data, mapping.release, head, reference.generation)
            released.atexit = False
        self.bytes_viewed += data.nbytes
        return data

    def stats(self) -> dict[str, float]:
        """Counters."""
        return {"bytes_viewed": self.bytes_viewed, "bytes_copied_out": self.bytes_copied_out}

    def forget(self, process: str) -> None:
        """See `Relay.forget`."""
        with self._lock:
            for name in list(self._pools):
                if name.rpartition("@")[0] == process:
                    del self._pools[name]

    def _attached(self, name: str) -> _Attached:
        attached = self._pools.get(name)
        if attached is None:
            if not POOL_NAME.fullmatch(name):
                raise ProtocolError(f"bad pool name {name!r}")
            mapping = pool.attach(self._directory / name)
            attached = _Attached(mapping, array("Q", bytes(8 * mapping.layout.slots)))
            self._pools[name] = attached
        return attached


def _checked(reference: SlabReference, attached: _Attached) -> tuple[Run, ...]:
    """The reference's runs, if all it says is true and it was not opened before."""
    layout = attached.mapping.layout
    runs = reference.runs
    named = 0
    for start, slots in runs:
        if start < 0 or slots < 1 or start + slots > layout.slots:
            raise ProtocolError(f"slots of {reference} lie outside of its pool")
        named += slots
    taken = 1 if reference.segment else layout.slots_for(reference.size_bytes)
    if taken > layout.slots or named != taken:
        raise ProtocolError(f"{reference} has not the {taken} slots that its size takes")
    head = runs[0].start
    placed, opened = attached.mapping.placed(head), attached.opened[head]
    if placed != reference.generation or opened >= reference.generation:
        raise ProtocolError(f"{reference} is of another time: its slot has generation {placed}")
    return runs


def _copied(mapping: PoolMapping, runs: tuple[Run, ...], size_bytes: int) -> Bytes:
    data = np.empty(size_bytes, np.uint8)
    done = 0
    for run in runs:
        part = data[done : done + run.slots * mapping.layout.slot_bytes]
        np.copyto(part, mapping.view(run, part.nbytes))
        done += part.nbytes
    return data
