"""Tensors of a card to other processes that use the same card, without leaving it.

Two ways behind one reference. Pooled: the bytes are copied into slots of memory that was exported
once, so short-lived tensors cost a copy within the card and no mapping. Direct: a tensor too large
for that is lent where it lies and kept until the reader lets go. Every loan has a ticket with a
generation and an event: the lender records it when the bytes are written, the borrower when its
last work with them is queued, and neither waits on the host.

Where there is no room, RelayFullError says so at once and the tensor travels through the host
instead; no cycle of stages can wait for a card. Knows the cards of this process; `cuda_lender` and
`cuda_borrower` do the work.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from omni_core.errors import OutOfMemoryError, RelayFullError, StageError
from omni_core.relay.cuda_borrower import CardBorrower
from omni_core.relay.cuda_device import Card
from omni_core.relay.cuda_ledger import CardReference
from omni_core.relay.cuda_lender import NOTHING_LENT, CardLender, CardPool

if TYPE_CHECKING:
    import torch

log = logging.getLogger("omni.relay")


class CudaIpcRelay:
    """Implements `Relay` for flat uint8 tensors of this process's cards; safe from any thread.

    Unlike other relays it does not copy what goes direct: as within a process, what was sent must
    not be written to any more. A pool takes its memory with the first loan.
    """

    def __init__(
        self, directory: Path, process: str, cards: Collection[Card], pool: CardPool | None = None
    ) -> None:
        """`process` is this one; each of its cards gets such a pool."""
        self._stem = directory / f"{process}@{os.getpid()}"
        self._cards = {card.device: card for card in cards}
        self._pool = pool or CardPool()
        self._lock = threading.Lock()
        self._lenders: dict[str, CardLender] = {}
        self._borrower = CardBorrower(directory, cards)
        self._closed = False

    def place(self, data: torch.Tensor, target: str) -> CardReference:
        """See `Relay.place`; RelayFullError at once if there is no room."""
        with self._lock:
            lender = self._lender(str(data.device))
        if lender is not None and (reference := lender.place(data, target)) is not None:
            return reference
        raise RelayFullError(f"no room on card {data.device} to lend {data.nbytes} bytes")

    def open(self, reference: CardReference) -> torch.Tensor:
        """See `Relay.open`. From a crowded lender it is a copy."""
        return self._borrower.open(reference)

    def discard(self, reference: CardReference) -> None:
        """See `Relay.discard`."""
        for lender in self._all_lenders():
            lender.discard(reference)

    def forget(self, process: str) -> None:
        """See `Relay.forget`."""
        for lender in self._all_lenders():
            lender.forget(process)
        self._borrower.forget(process)

    def stats(self) -> dict[str, float]:
        """See `Relay.stats`."""
        lent = Counter(NOTHING_LENT)
        for lender in self._all_lenders():
            lent.update(lender.stats())
        return {**lent, **self._borrower.stats()}

    def close(self) -> None:
        """See `Relay.close`."""
        with self._lock:
            self._closed = True
        for lender in self._all_lenders():
            lender.close()
        self._borrower.close()

    def _lender(self, device: str) -> CardLender | None:
        """None if there is no memory for a pool or its ledger now, or no lending any more."""
        if device not in self._lenders and device in self._cards and not self._closed:
            try:
                self._lenders[device] = CardLender(self._stem, self._cards[device], self._pool)
            except (OutOfMemoryError, OSError):
                return None
            except StageError as exc:
                log.warning("tensors of %s will go through the host: %s", device, exc)
                del self._cards[device]
        return self._lenders.get(device)

    def _all_lenders(self) -> list[CardLender]:
        with self._lock:
            return list(self._lenders.values())
