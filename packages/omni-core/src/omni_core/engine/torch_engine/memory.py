"""Which sequence holds which pages: pages of its own, and pages it shares with the prefix cache.

Knows rows, pages and opaque page keys. Knows nothing of requests, runners or the order of service.

Every page is free, or in the prefix cache, or one running sequence's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from omni_core.engine.torch_engine.kv import KVCache
from omni_core.engine.torch_engine.radix import Node, RadixTree


@dataclass(slots=True, eq=False)
class SequencePages:
    """What one running sequence holds."""

    row: int
    pages: list[int] = field(default_factory=list)
    """In order; the first `len(shared)` belong to the prefix cache."""
    shared: list[Node] = field(default_factory=list)


class KVMemory:
    """Hands out rows and pages of a cache; evicts cached prefixes when pages run out."""

    def __init__(self, cache: KVCache, rows: int) -> None:
        self._cache = cache
        self._tree = RadixTree()
        self._free_rows = list(range(rows - 1, -1, -1))
        self._unmapped: list[tuple[int, int, int]] = []

    @property
    def has_row(self) -> bool:
        """Whether `open` would succeed."""
        return bool(self._free_rows)

    @property
    def available(self) -> int:
        """Pages that running sequences can still take."""
        return self._cache.pages.free + self._tree.unused

    @property
    def cached(self) -> int:
        """Pages held by the prefix cache alone."""
        return self._tree.unused

    @property
    def used(self) -> int:
        """Pages held by running sequences, shared ones once."""
        return self._cache.pages.used - self._tree.unused

    def open(self) -> SequencePages:
        """A row without pages; ValueError if every row is in use."""
        if not self._free_rows:
            raise ValueError("every row is in use")
        return SequencePages(self._free_rows.pop())

    def close(self, held: SequencePages) -> None:
        """Give everything back, once; shared pages stay in the prefix cache."""
        self._cache.pages.give(held.pages[len(held.shared) :])
        self._tree.leave(held.shared)
        held.pages, held.shared = [], []
        self._free_rows.append(held.row)

    def extend(self, held: SequencePages, rows: int) -> bool:
        """Take pages until `rows` rows fit; False, and nothing taken, if there are too few."""
        if rows <= self.room(held):
            return True
        count = self._cache.pages_for(rows) - len(held.pages)
        if count > self.available:
            return False
        missing = count - self._cache.pages.free
        if missing > 0:
            self._cache.pages.give(self._tree.evict(missing))
        self._append(held, self._cache.pages.take(count))
        return True

    def room(self, held: SequencePages) -> int:
        """Rows that fit without another page."""
        return len(held.pages) * self._cache.page_size

    def next_page(self, held: SequencePages) -> Node:
        """The node after which the next page of the sequence would be cached."""
        return held.shared[-1] if held.shared else self._tree.root

    def in_use(self, keys: Iterable[bytes]) -> int:
        """Pages along the `keys` of a sequence's first pages that running sequences use."""
        found = self._tree.match(self._tree.root, keys)
        return sum(node.users > 0 for node in found)

    def reuse(self, held: SequencePages, keys: Iterable[bytes]) -> list[Node]:
        """Take cached pages instead of computing them; `keys` are of the sequence's pages from the
        first on that it does not share. Nothing for a sequence that has pages of its own."""
        if len(held.pages) > len(held.shared):
            return []
        found = self._tree.match(self.next_page(held), keys)
        self._tree.use(found)
        held.shared += found
        self._append(held, [node.page for node in found])
        return found

    def publish(
        self, held: SequencePages, keys: Iterable[bytes], keep: Callable[[int], Any]
    ) -> None:
        """Put the sequence's next own pages, whose rows are all computed, into the prefix cache
        under `keys`; `keep(index)` gives what stays with a page. Where the cache has the same rows
        already, the sequence changes over to the cached page and its own is free."""
        for key in keys:
            index, parent = len(held.shared), self.next_page(held)
            node = parent.children.get(key)
            if node is None:
                node = self._tree.insert(parent, key, held.pages[index], keep(index))
            else:
                self._tree.use([node])
                self._cache.pages.give([held.pages[index]])
                held.pages[index] = node.page
                self._unmapped.append((held.row, index, node.page))
            held.shared.append(node)

    def forget(self) -> None:
        """Give up every cached page that no sequence uses."""
        self._cache.pages.give(self._tree.evict(self._tree.unused))

    def map(self) -> None:
        """Bring the page tables on the device up to date; before each forward."""
        if self._unmapped:
            self._cache.map(self._unmapped)
            self._unmapped.clear()

    def _append(self, held: SequencePages, pages: list[int]) -> None:
        first = len(held.pages)
        held.pages += pages
        self._unmapped += [(held.row, first + i, page) for i, page in enumerate(pages)]
