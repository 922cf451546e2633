"""The borrowing end of a card's shared memory: mappings, views, and their return.

Nothing of a reference is used before it is checked against the lender's ledger. Knows references
and the order of a card's work. Knows nothing of lenders' books, dtypes or the CUDA API.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from omni_core.errors import OutOfMemoryError, ProtocolError
from omni_core.relay.cuda_device import Card, CardEvent
from omni_core.relay.cuda_ledger import CardReference, Ledger

if TYPE_CHECKING:
    import torch

_LEDGER_NAME: Final = re.compile(r"[^/\0]+@[0-9]+\.card-[A-Za-z0-9-]+")


class CardBorrower:
    """Opens what other processes have lent to this one; safe from any thread."""

    def __init__(self, directory: Path, cards: Collection[Card]) -> None:
        self._directory = directory
        self._cards = {card.uuid: card for card in cards}
        self._lock = threading.Lock()
        self._sources: dict[str, _Source] = {}
        self._returns = _Returns()
        self._copied = 0

    def open(self, reference: CardReference) -> torch.Tensor:
        with self._lock:
            source = self._source(reference.ledger)
            source.check(reference)
            view = self._view(source, reference)
            if not reference.crowded:
                return view
            try:
                copy = source.card.take(view)
            except OutOfMemoryError:  # then the lender has to do without it for longer
                return view
            self._copied += reference.size_bytes
            return copy

    def _view(self, source: _Source, reference: CardReference) -> torch.Tensor:
        event = source.event(reference.ticket)
        event.wait()
        if reference.handle:
            self._returns.start()
            address = source.map(reference.handle)
            released = partial(self._returns.put, source, reference)
        else:
            address = source.pool
            released = partial(source.release, reference)
        return source.card.view(address + reference.offset, reference.size_bytes, released)

    def _source(self, name: str) -> _Source:
        if name not in self._sources:
            if not _LEDGER_NAME.fullmatch(name):
                raise ProtocolError(f"bad name of a ledger: {name!r}")
            ledger = Ledger.open(self._directory / name)
            card = self._cards.get(ledger.head.card)
            if card is None:
                raise ProtocolError(f"{name} is of a card that this process does not use")
            self._sources[name] = _Source(ledger, card)
        return self._sources[name]

    def forget(self, process: str) -> None:
        with self._lock:
            for name in list(self._sources):
                if name.rpartition("@")[0] == process:
                    del self._sources[name]  # its last view unmaps it

    def stats(self) -> dict[str, float]:
        return {"card_bytes_copied_out": self._copied, "card_lenders": len(self._sources)}

    def close(self) -> None:
        with self._lock:
            self._sources.clear()
        self._returns.close()


class _Source:
    """One lender, as a borrower sees it; it lives as long as any of its views."""

    def __init__(self, ledger: Ledger, card: Card) -> None:
        self.ledger = ledger
        self.card = card
        self.pool = card.open(ledger.head.pool)
        self._events: dict[int, CardEvent] = {}
        self._opened: dict[int, int] = {}
        self._lock = threading.Lock()
        self._mapped: dict[bytes, tuple[int, int]] = {}
        """{handle: (address, views that use it)}"""
        weakref.finalize(self, _unmap, card, self.pool, self._events).atexit = False

    def check(self, reference: CardReference) -> None:
        """ProtocolError for what the lender cannot have written, or what was opened before."""
        head = self.ledger.head
        ticket, generation = reference.ticket, reference.generation
        if ticket >= len(head.events) or (ticket < head.slots) == bool(reference.handle):
            raise ProtocolError(f"no ticket {ticket} in {self.ledger.path.name}")
        if not reference.handle:
            end = head.slots * head.slot_bytes
            if (
                reference.offset != ticket * head.slot_bytes
                or reference.offset + reference.size_bytes > end
            ):
                raise ProtocolError(f"bytes beyond the pool of {self.ledger.path.name}")
        last = max(self.ledger.released(ticket), self._opened.get(ticket, 0))
        if generation <= last:
            raise ProtocolError(f"loan {generation} of ticket {ticket} is over or taken")
        self._opened[ticket] = generation

    def event(self, ticket: int) -> CardEvent:
        if ticket not in self._events:
            self._events[ticket] = self.card.open_event(self.ledger.head.events[ticket])
        return self._events[ticket]

    def map(self, handle: bytes) -> int:
        """The address of an allocation, mapped for one view more."""
        with self._lock:
            address, views = self._mapped.get(handle) or (self.card.open(handle), 0)
            self._mapped[handle] = (address, views + 1)
            return address

    def unmap(self, handle: bytes) -> None:
        """One view less."""
        with self._lock:
            address, views = self._mapped.pop(handle)
            if views > 1:
                self._mapped[handle] = (address, views - 1)
            else:
                self.card.close(address)

    def release(self, reference: CardReference) -> None:
        """Nobody has the view any more: the lender may write there after what is queued now."""
        self._events[reference.ticket].record()
        self.ledger.release(reference.ticket, reference.generation)


class _Returns:
    """Gives direct loans back: only when the card has done the last work with them may the mapping
    go, and only then may the lender free the memory. A thread waits for that, since views end
    anywhere, also inside of a garbage collection."""

    def __init__(self) -> None:
        self._ended: SimpleQueue[tuple[_Source, CardReference, CardEvent] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Be ready for the first."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="card-returns", daemon=True)
            self._thread.start()

    def put(self, source: _Source, reference: CardReference) -> None:
        """A direct view has ended."""
        event = source.event(reference.ticket)
        event.record()
        self._ended.put((source, reference, event))

    def close(self) -> None:
        """Finish what has ended so far."""
        self._ended.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._give_back():
            pass

    def _give_back(self) -> bool:
        """Wait for the next and finish it, and keep nothing of it; False at the end."""
        ended = self._ended.get()
        if ended is None:
            return False
        source, reference, event = ended
        event.synchronize()
        source.unmap(reference.handle)
        source.ledger.release(reference.ticket, reference.generation)
        return True


def _unmap(card: Card, address: int, events: Mapping[int, CardEvent]) -> None:
    for event in events.values():
        event.synchronize()
    card.close(address)
