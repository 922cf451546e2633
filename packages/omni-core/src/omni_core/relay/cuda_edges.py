"""Which tensors stay on their card on the way to another process; counts what keeps the others.

Knows which stages use which cards. Knows nothing of dtypes, messages, or how a card is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from omni_core.errors import RelayFullError
from omni_core.graph import place_of
from omni_core.relay.base import Relay
from omni_core.relay.cuda_device import Card, open_cuda_card
from omni_core.relay.cuda_ipc import CudaIpcRelay
from omni_core.relay.cuda_ledger import CardReference
from omni_core.relay.cuda_lender import card_pool

if TYPE_CHECKING:
    import torch


class CardEdges:
    """The edges of one process along which tensors may stay on a card; safe from any thread."""

    def __init__(
        self,
        relay: Relay[torch.Tensor, CardReference],
        process: str,
        cards: Mapping[str, Mapping[str, str]],
    ) -> None:
        """`cards` is that of `Setup`."""
        self._relay = relay
        self._own = own_cards(process, cards)
        self._cards = cards
        self._elsewhere = 0
        self._full = 0

    def place(self, data: torch.Tensor, process: str, stage: str) -> CardReference | None:
        """Lend flat bytes to a process for a stage; None if they must go through the host."""
        device = str(data.device)
        if device not in self._own:
            return None
        if self._cards.get(place_of(process), {}).get(stage) != device:
            self._elsewhere += 1
            return None
        try:
            return self._relay.place(data, process)
        except RelayFullError:
            self._full += 1
            return None

    def open(self, reference: CardReference) -> torch.Tensor:
        """See `Relay.open`."""
        return self._relay.open(reference)

    def discard(self, reference: CardReference) -> None:
        """See `Relay.discard`."""
        self._relay.discard(reference)

    def forget(self, process: str) -> None:
        """See `Relay.forget`."""
        self._relay.forget(process)

    def stats(self) -> dict[str, float]:
        """Those of the relay, and tensors of our cards that went through the host, by the reason:
        no room, or a reader that does not use the card."""
        counted = {"card_full": self._full, "card_elsewhere": self._elsewhere}
        return {**self._relay.stats(), **counted}

    def close(self) -> None:
        """See `Relay.close`."""
        self._relay.close()


def open_edges(
    directory: Path,
    process: str,
    cards: Mapping[str, Mapping[str, str]],
    environ: Mapping[str, str],
    open_card: Callable[[str], Card] | None = None,
) -> CardEdges:
    """The edges of a process whose stages are built; `directory` is that of its shared memory."""
    opened = [(open_card or open_cuda_card)(device) for device in own_cards(process, cards)]
    relay = CudaIpcRelay(directory, process, opened, card_pool(environ))
    return CardEdges(relay, process, cards)


def own_cards(process: str, cards: Mapping[str, Mapping[str, str]]) -> frozenset[str]:
    """The devices of a process, of those in `Setup.cards`."""
    return frozenset(cards.get(place_of(process), {}).values())
