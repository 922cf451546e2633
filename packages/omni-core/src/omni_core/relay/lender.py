"""Lends slots of this process's pool to others, and waits for room when there is none.

At most half of the pool is ever lent for as long as the borrower likes. What takes more than that
half is marked to be copied out by the borrower's loop, which reads its messages whatever its stages
do. So room comes back without any stage going on, and no circle of stages can wait for itself.
Before, the lender waits a moment for room in the half, which costs less than the copy. Tensors over
half the pool get a file of their own, and count until the borrower has opened it.
Knows loans and deadlines. Knows nothing of tensors or messages.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from omni_core.errors import ConfigError, NotReadyError, RelayFullError, StageDiedError, StageError
from omni_core.relay import pool, segment
from omni_core.relay.pool import Bytes, Layout, SlabReference
from omni_core.relay.slots import Loan, Run, SlotTable

MIB: Final = 1024 * 1024
DEFAULT_POOL_BYTES: Final = 512 * MIB
POOL_VARIABLE: Final = "OMNI_SHM_POOL_MIB"
_SEGMENTS_PER_POOL: Final = 4
_POOLS_PER_FILE_SYSTEM: Final = 4
_LOOKED_AT: Final = 2
"""Loans looked at in passing by each new one, so that released slots are soon used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """How much a process may lend, and how patiently."""

    pool_bytes: int = DEFAULT_POOL_BYTES
    slot_bytes: int = 64 * 1024
    warm_bytes: int = 64 * MIB
    """The memory of slots behind these goes back to the system once all are free."""
    ease_s: float = 0.002
    """How long to wait for room in the half that is not copied out: about what it takes to copy a
    MiB into memory that is new."""
    patience_s: float = 5.0
    """Then a request whose tensor finds no room fails."""

    @property
    def segments_bytes(self) -> int:
        """What tensors over half the pool may take together until they are opened."""
        return _SEGMENTS_PER_POOL * self.pool_bytes

    @property
    def layout(self) -> Layout:
        """Of a pool within these limits; it has two slots at least."""
        return Layout(max(2, self.pool_bytes // self.slot_bytes), self.slot_bytes)


def pool_limits(directory: Path, environ: Mapping[str, str]) -> PoolLimits:
    """As the operator says in OMNI_SHM_POOL_MIB, else what the directory's file system allows."""
    asked = environ.get(POOL_VARIABLE)
    if asked is None:
        whole = os.statvfs(directory)
        share = whole.f_blocks * whole.f_frsize // _POOLS_PER_FILE_SYSTEM
        return PoolLimits(pool_bytes=min(DEFAULT_POOL_BYTES, share))
    if not asked.isdecimal() or int(asked) < 1:
        raise ConfigError(f"{POOL_VARIABLE} is {asked!r}; it must be a whole number of MiB")
    return PoolLimits(pool_bytes=int(asked) * MIB)


class _Room(NamedTuple):
    """Where one tensor goes."""

    loan: Loan
    copy: bool
    segment: bool


class Lender:
    """The lending half of a process's shared memory."""

    def __init__(
        self, path: Path, limits: PoolLimits, before_wait: Callable[[], None] = lambda: None
    ) -> None:
        """`before_wait` sends what is held back: nobody can release what he has not got."""
        self._path = path
        self._name = path.name
        self._limits = limits
        self._before_wait = before_wait
        self._layout = limits.layout
        self._table = SlotTable(self._layout.slots)
        self._warm_slots = limits.warm_bytes // limits.slot_bytes
        self._touched_slots = self._warm_slots  # those behind have no memory
        self._lent: deque[Loan] = deque()
        self._segments: dict[int, int] = {}  # {generation: bytes in a file of its own}
        self._deaths: Counter[str] = Counter()
        self._mapping = pool.create(path, self._layout)
        self._closed = False
        self._lock = threading.Lock()  # of all above; held for moments
        self._queue = threading.Lock()  # held while waiting for room, so that nobody overtakes
        self._bytes_lent = 0
        self._waits = 0
        self._waits_timed_out = 0

    def place(self, data: Bytes, target: str) -> SlabReference:
        """See `Relay.place`."""
        deaths = self._deaths[target]
        room = self._take(data.nbytes, target)
        loan = room.loan
        try:
            self._write(room, data)
        except OSError as exc:
            with self._lock:
                self._free(loan)
            raise _no_memory(data.nbytes, exc) from exc
        self._hand_over(loan, data.nbytes, deaths)
        return SlabReference(
            pool=self._name,
            generation=loan.generation,
            runs=loan.runs,
            size_bytes=data.nbytes,
            copy=room.copy,
            segment=room.segment,
        )

    def discard(self, reference: SlabReference) -> None:
        """See `Relay.discard`."""
        self._mapping.release(reference.runs[0][0], reference.generation)

    def forget(self, process: str) -> None:
        """See `Relay.forget`."""
        with self._lock:
            self._deaths[process] += 1
            for loan in self._lent:
                if loan.target == process:
                    self._mapping.release(loan.head, loan.generation)
            self._collect(len(self._lent))

    def stats(self) -> dict[str, float]:
        """Gauges of now, after taking back what is released, and counters."""
        with self._lock:
            self._collect(len(self._lent))
            return {
                "slots_total": self._layout.slots,
                "slots_used": self._table.used,
                "segment_bytes": sum(self._segments.values()),
                "bytes_lent": self._bytes_lent,
                "waits": self._waits,
                "waits_timed_out": self._waits_timed_out,
            }

    def close(self) -> None:
        """See `Relay.close`."""
        with self._lock:
            self._closed = True
            self._mapping.ring()
            pool.remove(self._path)
            for generation in self._segments:
                pool.segment_path(self._path, generation).unlink(missing_ok=True)

    # -- room

    def _take(self, size_bytes: int, target: str) -> _Room:
        slots = self._layout.slots_for(size_bytes)
        segment = 2 * slots > self._layout.slots
        if segment and size_bytes > self._limits.segments_bytes:
            raise StageError(
                f"a tensor of {size_bytes} bytes cannot go to another process: at most "
                f"{self._limits.segments_bytes} may wait to be read; raise {POOL_VARIABLE}"
            )
        deadline_s = time.monotonic() + self._limits.patience_s
        if not self._queue.acquire(blocking=False):
            self._before_wait()
            if not self._queue.acquire(timeout=self._limits.patience_s):
                raise self._full(size_bytes)
        try:
            if not segment and self._limits.ease_s and self._is_crowded(slots):
                self._ease(slots)
            room = self._try(size_bytes, target, segment)
            return room or self._wait(size_bytes, target, segment, deadline_s)
        finally:
            self._queue.release()

    def _is_crowded(self, slots: int) -> bool:
        """Whether so many more would be over the half."""
        return 2 * (self._table.used + slots) > self._layout.slots

    def _ease(self, slots: int) -> None:
        """Wait for a borrower that is about to release something; none need be."""
        self._before_wait()
        deadline_s = time.monotonic() + self._limits.ease_s
        with self._mapping.waiting():
            while (left_s := deadline_s - time.monotonic()) > 0:
                with self._lock:
                    self._collect(len(self._lent))
                if not self._is_crowded(slots):
                    return
                self._mapping.wait(left_s)

    def _wait(self, size_bytes: int, target: str, segment: bool, deadline_s: float) -> _Room:
        self._waits += 1
        self._before_wait()
        with self._mapping.waiting():
            while (room := self._try(size_bytes, target, segment)) is None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise self._full(size_bytes)
                self._mapping.wait(left_s)
            return room

    def _full(self, size_bytes: int) -> RelayFullError:
        with self._lock:
            self._waits_timed_out += 1
        return RelayFullError(
            f"no room came in {self._limits.patience_s:g} s to hand {size_bytes} bytes to another "
            f"process; retry in a moment, or raise {POOL_VARIABLE}"
        )

    def _try(self, size_bytes: int, target: str, segment: bool) -> _Room | None:
        with self._lock:
            if self._closed:
                raise NotReadyError("the process is closing; retry elsewhere")
            self._collect(_LOOKED_AT)
            loan = self._lend(size_bytes, target, segment)
            if loan is None:
                self._collect(len(self._lent))
                loan = self._lend(size_bytes, target, segment)
            if loan is None:
                return None
            self._touched_slots = max(self._touched_slots, loan.runs[-1].end)
            return _Room(loan, 2 * self._table.used > self._layout.slots, segment)

    def _lend(self, size_bytes: int, target: str, segment: bool) -> Loan | None:
        if not segment:
            return self._table.lend(self._layout.slots_for(size_bytes), target)
        if sum(self._segments.values()) + size_bytes > self._limits.segments_bytes:
            return None
        loan = self._table.lend(1, target)
        if loan is not None:
            self._segments[loan.generation] = size_bytes
        return loan

    def _collect(self, at_most: int) -> None:
        """Look at so many loans, those least lately looked at, and free the released."""
        for _ in range(min(at_most, len(self._lent))):
            loan = self._lent.popleft()
            if self._mapping.released(loan.head) == loan.generation:
                self._free(loan)
            else:
                self._lent.append(loan)

    def _free(self, loan: Loan) -> None:
        self._table.take_back(loan)
        if self._segments.pop(loan.generation, None) is not None:
            pool.segment_path(self._path, loan.generation).unlink(missing_ok=True)
        if not self._table.used and self._touched_slots > self._warm_slots:
            # Not for each loan: in a burst, the same memory would go and come all the time.
            cold = Run(self._warm_slots, self._touched_slots - self._warm_slots)
            self._mapping.punch(cold)
            self._touched_slots = self._warm_slots

    # -- bytes

    def _write(self, room: _Room, data: Bytes) -> None:
        """OSError if the file system has no room."""
        if room.segment:
            segment.write(pool.segment_path(self._path, room.loan.generation), data)
            return
        done = 0
        for run in room.loan.runs:
            self._mapping.back(run)
            part = data[done : done + run.slots * self._layout.slot_bytes]
            np.copyto(self._mapping.view(run, part.nbytes), part)
            done += part.nbytes

    def _hand_over(self, loan: Loan, size_bytes: int, deaths: int) -> None:
        """From here on the loan is the target's, if that is still who was meant."""
        with self._lock:
            self._bytes_lent += size_bytes
            self._lent.append(loan)
            self._mapping.set_placed(loan.head, loan.generation)
            if self._deaths[loan.target] == deaths:
                return
        self._mapping.release(loan.head, loan.generation)
        raise StageDiedError(f"process {loan.target!r} ended while it was handed a tensor")


def _no_memory(size_bytes: int, error: OSError) -> RelayFullError:
    return RelayFullError(
        f"shared memory has no room for {size_bytes} bytes ({error.strerror}); retry in a moment, "
        "or give it more (docker run --shm-size)"
    )
