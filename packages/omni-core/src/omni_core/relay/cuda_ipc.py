"""Tensors of a card to other processes without leaving the card.

Two ways behind one reference. Pooled: the bytes are copied into slots of memory that was exported
once, so short-lived tensors cost a copy within the card and no mapping. Direct: a tensor too large
for that, whose reader uses the same card, is lent where it lies and kept until the reader lets go.
Every loan has a ticket with a generation and an event: the lender records it when the bytes are
written, the borrower when its last work with them is queued, and neither waits on the host.

Where there is no room, RelayFullError says so at once and the tensor travels through the host
instead; no cycle of stages can wait for a card. Knows which process uses which card; `cuda_lender`
and `cuda_borrower` do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from omni_core.relay.cuda_borrower import CardBorrower
from omni_core.relay.cuda_device import Card
from omni_core.relay.cuda_ledger import CardReference
from omni_core.relay.cuda_lender import CardLender, CardPool

if TYPE_CHECKING:
    import torch


class CudaIpcRelay:
    """Implements `Relay` for flat uint8 tensors of one card; safe from any thread.

    Unlike other relays it does not copy what goes direct: as within a process, what was sent must
    not be written to any more.
    """

    def __init__(
        self,
        directory: Path,
        process: str,
        card: Card,
        find_card: Callable[[str], Card],
        devices: Mapping[str, str],
        pool: CardPool | None = None,
    ) -> None:
        """`process` is this one; `devices` names the torch device of each it may send to."""
        self._card = card
        self._devices = devices
        self._lender = CardLender(directory, process, card, pool or CardPool())
        self._borrower = CardBorrower(directory, card, find_card)

    def reaches(self, target: str, device_type: str) -> bool:
        """Whether tensors of such a device can stay on a card on their way to the process."""
        kind = self._card.device.partition(":")[0]
        return device_type == kind == self._devices.get(target, "").partition(":")[0]

    def place(self, data: torch.Tensor, target: str) -> CardReference:
        """See `Relay.place`; RelayFullError at once if there is no room."""
        return self._lender.place(data, target, self._devices[target] == self._card.device)

    def open(self, reference: CardReference) -> torch.Tensor:
        """See `Relay.open`. From another card, or from a crowded lender, it is a copy."""
        return self._borrower.open(reference)

    def discard(self, reference: CardReference) -> None:
        """See `Relay.discard`."""
        self._lender.discard(reference)

    def forget(self, process: str) -> None:
        """See `Relay.forget`."""
        self._lender.forget(process)
        self._borrower.forget(process)

    def stats(self) -> dict[str, float]:
        """See `Relay.stats`."""
        return {**self._lender.stats(), **self._borrower.stats()}

    def close(self) -> None:
        """See `Relay.close`."""
        self._lender.close()
        self._borrower.close()
