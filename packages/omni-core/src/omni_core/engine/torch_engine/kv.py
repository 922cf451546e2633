"""Paged KV memory: a pool of slots per layer, handed out to sequences in pages.

Knows rows (places in the running batch), pages and slots. Knows nothing of requests or models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_core.engine.base import KVSpec
from omni_core.errors import ConfigError

PAGE_SIZE = 16
"""Tokens in a page."""


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_SIZE)


class PageAllocator:
    """Free list of page numbers, each either free or used exactly once."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._used: set[int] = set()

    @property
    def used(self) -> int:
        """Pages handed out now."""
        return len(self._used)

    @property
    def free(self) -> int:
        """Pages that can be taken now."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Hand out `count` pages; ValueError if fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} pages wanted, {len(self._free)} free")
        pages = [self._free.pop() for _ in range(count)]
        self._used.update(pages)
        return pages

    def give(self, pages: list[int]) -> None:
        """Take pages back; ValueError if one of them is not handed out."""
        if not self._used.issuperset(pages):
            raise ValueError(f"pages {sorted(set(pages) - self._used)} are not in use")
        self._used.difference_update(pages)
        self._free.extend(pages)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one sequence holds: a row of the block tables and its pages, in order."""

    row: int
    pages: list[int]


class KVCache:
    """Keys and values of all running sequences.

    `keys[layer]` and `values[layer]` are (slots, kv_heads, head_dim). Token `p` of a sequence lies
    in slot `page * PAGE_SIZE + p % PAGE_SIZE`, where `page` is entry `p // PAGE_SIZE` of the
    sequence's row of the block tables.
    """

    def __init__(
        self,
        spec: KVSpec,
        *,
        budget_bytes: int,
        rows: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        pages_per_row = pages_for(spec.max_len)
        page_bytes = 2 * spec.layers * PAGE_SIZE * spec.kv_heads * spec.head_dim * dtype.itemsize
        total = min(budget_bytes // page_bytes, rows * pages_per_row)
        if total < 1:
            raise ConfigError(
                f"a KV budget of {budget_bytes} bytes holds no page of {PAGE_SIZE} tokens "
                f"({page_bytes} bytes); raise kv_budget_bytes or the stage's memory_fraction"
            )
        shape = (total * PAGE_SIZE, spec.kv_heads, spec.head_dim)
        self.keys = [torch.empty(shape, device=device, dtype=dtype) for _ in range(spec.layers)]
        self.values = [torch.empty_like(keys) for keys in self.keys]
        self.pages = PageAllocator(total)
        self.device = device
        self._free_rows = list(range(rows - 1, -1, -1))
        self._tables = torch.zeros(rows, pages_per_row, dtype=torch.long, device=device)

    def fits(self, tokens: int) -> bool:
        """Whether `reserve` would succeed now."""
        return bool(self._free_rows) and pages_for(tokens) <= self.pages.free

    def reserve(self, tokens: int) -> Reservation:
        """A row and pages for `tokens` tokens; ValueError if they do not fit now."""
        if not self._free_rows:
            raise ValueError("every row is in use")
        pages = self.pages.take(pages_for(tokens))
        row = self._free_rows.pop()
        self._tables[row, : len(pages)] = torch.tensor(pages, device=self.device)
        return Reservation(row, pages)

    def release(self, reservation: Reservation) -> None:
        """Free what `reserve` gave; once."""
        self.pages.give(reservation.pages)
        self._free_rows.append(reservation.row)

    def slots(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Slots of tokens `positions` of the sequences in `rows`; int64, shapes broadcast."""
        return self._tables[rows, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
