"""The lending end of a card's shared memory: a pool of slots, tickets, and what is out.

A lender without room says so at once, so a full card never holds up a stage. Knows slots, tickets
and their order. Knows nothing of borrowers, dtypes or the CUDA API.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omni_core.errors import ConfigError, StageError
from omni_core.relay.cuda_device import Card, CardEvent, Export
from omni_core.relay.cuda_ledger import CardReference, Head, Ledger
from omni_core.relay.transport import CARD_POOL_VARIABLE

if TYPE_CHECKING:
    import torch


NOTHING_LENT: Final = {
    "card_bytes_pooled": 0,
    "card_bytes_direct": 0,
    "card_slots_lent": 0,
    "card_direct_lent_bytes": 0,
}
"""`CardLender.stats` of one that never lent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPool:
    """What one process lends at most."""

    slot_bytes: int = 2 << 20
    slots: int = 32
    direct_tickets: int = 64
    direct_bytes: int = 1 << 30


def card_pool(environ: Mapping[str, str]) -> CardPool:
    """As the operator says in OMNI_CARD_POOL_MIB."""
    asked = environ.get(CARD_POOL_VARIABLE)
    if asked is None:
        return CardPool()
    if not asked.isdecimal():
        raise ConfigError(f"{CARD_POOL_VARIABLE} is {asked!r}; it must be a whole number of MiB")
    return CardPool(slots=max(1, (int(asked) << 20) // CardPool().slot_bytes))


@dataclass(slots=True)
class _Loan:
    """What a ticket stands for while it is out."""

    generation: int
    target: str
    slots: int
    """Of the pool, from the ticket's own on; 0 if direct."""
    lent: torch.Tensor | None
    """Kept alive for a direct reader."""


class CardLender:
    """Lends tensors of one card; safe from any thread."""

    def __init__(self, stem: Path, card: Card, pool: CardPool) -> None:
        """`stem` begins the path of the ledger. OutOfMemoryError if there is no room for the pool,
        OSError if there is none for the ledger, StageError if the card can share nothing."""
        self._card = card
        self._limits = pool
        self._lock = threading.Lock()
        self._memory = card.allocate(pool.slot_bytes * pool.slots)
        tickets = pool.slots + pool.direct_tickets
        try:
            self._events = [card.event() for _ in range(tickets)]
            self._ledger = self._publish(stem)
        except (StageError, OSError):
            card.free(self._memory)
            raise
        self._generations = [0] * tickets
        self._busy = [False] * tickets
        self._last_ticket = list(range(pool.slots))
        """Under which each slot was lent last; its next writer waits for that ticket's event."""
        self._loans: dict[int, _Loan] = {}
        self._closed = False
        self._bytes = {"pooled": 0, "direct": 0}

    def _publish(self, stem: Path) -> Ledger:
        exported = self._card.export(self._memory)
        if exported is None:
            raise StageError(f"other processes cannot reach the memory of {self._card.device}")
        head = Head(
            card=self._card.uuid,
            pool=exported.handle,
            slot_bytes=self._limits.slot_bytes,
            slots=self._limits.slots,
            events=tuple(event.handle() for event in self._events),
        )
        return Ledger.create(stem.with_name(f"{stem.name}.card-{self._card.uuid}"), head)

    def place(self, data: torch.Tensor, target: str) -> CardReference | None:
        """None if there is no room."""
        with self._lock:
            if self._closed:
                return None
            self._collect()
            large = data.nbytes > self._limits.slot_bytes
            direct = self._place_direct(data, target) if large else None
            return direct or self._place_pooled(data, target)

    def _place_pooled(self, data: torch.Tensor, target: str) -> CardReference | None:
        slots = max(1, -(-data.nbytes // self._limits.slot_bytes))
        ticket = self._free_run(slots)
        if ticket is None:
            return None
        run = range(ticket, ticket + slots)
        for last in {self._last_ticket[slot] for slot in run}:
            self._events[last].wait()  # until its reader's work is done, in the card's own time
        for slot in run:
            self._last_ticket[slot] = ticket
        event = self._lend(ticket, target, slots, None)
        address = self._memory + ticket * self._limits.slot_bytes
        self._card.write(address, data)
        event.record()
        self._bytes["pooled"] += data.nbytes
        where = Export(b"", ticket * self._limits.slot_bytes)
        crowded = 2 * sum(self._busy[: self._limits.slots]) > self._limits.slots
        return self._reference(ticket, data.nbytes, where, crowded)

    def _place_direct(self, data: torch.Tensor, target: str) -> CardReference | None:
        ticket = self._free_direct(data.nbytes)
        if ticket is None:
            return None
        exported = self._card.export(data.data_ptr())
        if exported is None:
            return None
        self._lend(ticket, target, 0, data).record()
        self._bytes["direct"] += data.nbytes
        crowded = 2 * self._direct_bytes() > self._limits.direct_bytes
        return self._reference(ticket, data.nbytes, exported, crowded)

    def _lend(self, ticket: int, target: str, slots: int, lent: torch.Tensor | None) -> CardEvent:
        self._generations[ticket] += 1
        self._loans[ticket] = _Loan(self._generations[ticket], target, slots, lent)
        self._mark(ticket, slots, True)
        return self._events[ticket]

    def _reference(
        self, ticket: int, size_bytes: int, where: Export, crowded: bool
    ) -> CardReference:
        return CardReference(
            ledger=self._ledger.path.name,
            ticket=ticket,
            generation=self._generations[ticket],
            size_bytes=size_bytes,
            handle=where.handle,
            offset=where.offset,
            crowded=crowded,
        )

    def discard(self, reference: CardReference) -> None:
        with self._lock:
            loan = self._loans.get(reference.ticket)
            if reference.ledger != self._ledger.path.name or loan is None:
                return
            if loan.generation == reference.generation:
                self._take_back(reference.ticket)

    def forget(self, process: str) -> None:
        with self._lock:
            for ticket in [t for t, loan in self._loans.items() if loan.target == process]:
                self._take_back(ticket)

    def stats(self) -> dict[str, int]:
        with self._lock:
            self._collect()
            return {
                "card_bytes_pooled": self._bytes["pooled"],
                "card_bytes_direct": self._bytes["direct"],
                "card_slots_lent": sum(self._busy[: self._limits.slots]),
                "card_direct_lent_bytes": self._direct_bytes(),
            }

    def close(self) -> None:
        """Frees the pool: whoever still reads from it reads a process that is going."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._loans.clear()
            self._ledger.path.unlink(missing_ok=True)
            self._ledger.close()
            self._card.free(self._memory)

    def _collect(self) -> None:
        """Take back what readers have let go."""
        if self._closed:
            return
        for ticket, loan in list(self._loans.items()):
            if self._ledger.released(ticket) == loan.generation:
                self._take_back(ticket)

    def _take_back(self, ticket: int) -> None:
        loan = self._loans.pop(ticket)
        if loan.lent is not None:
            self._events[ticket].wait()  # its memory may be used again on this stream only then
        self._mark(ticket, loan.slots, False)

    def _mark(self, ticket: int, slots: int, busy: bool) -> None:
        for one in range(ticket, ticket + max(slots, 1)):
            self._busy[one] = busy

    def _free_run(self, slots: int) -> int | None:
        """The first of so many free slots in a row."""
        run = 0
        for slot in range(self._limits.slots):
            run = 0 if self._busy[slot] else run + 1
            if run == slots:
                return slot - slots + 1
        return None

    def _free_direct(self, size_bytes: int) -> int | None:
        if self._direct_bytes() + size_bytes > self._limits.direct_bytes:
            return None
        tickets = range(self._limits.slots, len(self._busy))
        return next((ticket for ticket in tickets if not self._busy[ticket]), None)

    def _direct_bytes(self) -> int:
        return sum(loan.lent.nbytes for loan in self._loans.values() if loan.lent is not None)
