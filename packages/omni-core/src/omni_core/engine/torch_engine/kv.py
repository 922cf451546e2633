"""Paged KV memory: a pool of slots per layer, cut into pages, and the page table of every row.

Knows rows (places in the running batch), pages and slots. Knows nothing of requests or models, nor
of who holds a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from omni_core.engine.base import KVSpec
from omni_core.engine.common.transfer import upload
from omni_core.errors import ConfigError

PAGE_SIZE = 16
"""Tokens in a page, unless a cache is made with another size."""
STEPS_AT_ONCE = 32
"""Decode steps whose positions are made together: on a CPU, an operation that finds the caches full
of a forward's data costs 25 us."""


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

    def give(self, pages: Sequence[int]) -> None:
        """Take pages back; ValueError if one of them is not handed out or comes twice."""
        returned = set(pages)
        if len(returned) < len(pages) or not self._used.issuperset(returned):
            raise ValueError(f"pages {sorted(pages)} are not in use, once each")
        self._used.difference_update(returned)
        self._free.extend(pages)


@dataclass(slots=True, eq=False)
class DecodeTables:
    """Where one row of each of some sequences lies, step after step."""

    rows: list[int]
    positions: torch.Tensor
    """Int64 (D,)."""
    pages: torch.Tensor
    """Int64 (D, pages_per_row): their page tables, kept up to date in place."""
    _coming: list[torch.Tensor] = field(default_factory=list)
    """Positions of later steps, the next one's last."""

    def advance(self) -> None:
        """Go to the next token of each sequence."""
        if not self._coming:
            steps = torch.arange(STEPS_AT_ONCE, 0, -1, device=self.positions.device)
            self._coming += (self.positions + steps[:, None]).unbind()
        self.positions = self._coming.pop()

    def map(self, places: Mapping[tuple[int, int], int]) -> None:
        """Pages {(row, index): page} of any sequences are others now."""
        place_of = {row: place for place, row in enumerate(self.rows)}
        _write(self.pages, {(place_of[r], i): p for (r, i), p in places.items() if r in place_of})


class KVCache:
    """Keys and values of all running sequences.

    `keys[layer]` and `values[layer]` are (slots, kv_heads, head_dim). Token `p` of the sequence in
    `row` lies in slot `page * page_size + p % page_size`, where `page` is
    `tables[row, p // page_size]`. `tables` is int64 (rows, pages_per_row) on the device; entries
    beyond a sequence's pages are stale, but always the number of some page.
    """

    def __init__(
        self,
        spec: KVSpec,
        *,
        budget_bytes: int,
        rows: int,
        device: torch.device,
        dtype: torch.dtype,
        page_size: int = PAGE_SIZE,
    ) -> None:
        self.page_size = page_size
        self.device = device
        pages_per_row = self.pages_for(spec.max_len)
        page_bytes = 2 * spec.layers * page_size * spec.kv_heads * spec.head_dim * dtype.itemsize
        total = min(budget_bytes // page_bytes, rows * pages_per_row)
        if total < 1:
            raise ConfigError(
                f"a KV budget of {budget_bytes} bytes holds no page of {page_size} tokens "
                f"({page_bytes} bytes); raise kv_budget_bytes or the stage's memory_fraction"
            )
        shape = (total * page_size, spec.kv_heads, spec.head_dim)
        self.keys = [torch.empty(shape, device=device, dtype=dtype) for _ in range(spec.layers)]
        self.values = [torch.empty_like(keys) for keys in self.keys]
        self.pools = (*self.keys, *self.values)
        self.pages = PageAllocator(total)
        self.tables = torch.zeros(rows, pages_per_row, dtype=torch.long, device=device)
        self._decode_tables = DecodeTables([], upload([], device), self.tables[:0])
        self._numbers = torch.arange(pages_per_row * page_size, device=device)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def numbers(self, tokens: int) -> torch.Tensor:
        """0, 1, ... for so many tokens and the rest of the last one's page, int64."""
        return self._numbers[: self.pages_for(tokens) * self.page_size]

    def map(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """Write (row, index, page) entries of the page tables; of equal places the last counts."""
        places = {(row, index): page for row, index, page in entries}
        _write(self.tables, places)
        self._decode_tables.map(places)

    def decode_tables(self, rows: list[int], positions: list[int]) -> DecodeTables:
        """Of tokens at `positions` of the sequences in `rows`; those given before change no more
        when pages do."""
        where = upload([positions, rows], self.device)
        pages = self.tables.index_select(0, where[1])
        self._decode_tables = DecodeTables(rows, where[0], pages)
        return self._decode_tables

    def slots(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Slots of tokens `positions` of the sequences in `rows`; int64, shapes broadcast."""
        pages = self.tables[rows, positions // self.page_size]
        return pages * self.page_size + positions % self.page_size


def _write(table: torch.Tensor, places: Mapping[tuple[int, int], int]) -> None:
    """Entries {(row, column): value} of an int64 table."""
    if not places:
        return
    rows, columns = zip(*places, strict=True)
    where = upload([rows, columns, tuple(places.values())], table.device)
    table[where[0], where[1]] = where[2]
