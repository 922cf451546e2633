"""Prefix caching of one engine: row keys of sequences, and what the runner keeps beside cached KV.

Knows sequences, keys and the runner's consent. Knows nothing of free pages or the order of service.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from omni_core.engine.base import ARRunner, EngineRequest
from omni_core.engine.torch_engine.memory import KVMemory
from omni_core.engine.torch_engine.paged import PagedSequence
from omni_core.engine.torch_engine.radix import Node
from omni_core.types import IntArray

PageId: TypeAlias = tuple[Node, bytes]
"""A page that is not cached yet: the cached page before it, and its keys."""


class PrefixSharing:
    """Moves pages between running sequences and the prefix cache."""

    def __init__(
        self, memory: KVMemory, runner: ARRunner, *, page_size: int, enabled: bool
    ) -> None:
        self._memory = memory
        self._runner = runner
        self._page_size = page_size
        self._enabled = enabled and runner.prefix_cache
        self.hit_tokens = 0

    def reuse(self, active: PagedSequence) -> None:
        """Take what the prefix cache has of the rows before the newest token's, and of a prompt all
        but the last row, which samples."""
        if not self._shares(active) or active.kv is None:
            return
        seq, kv = active.seq, active.kv
        first = len(kv.shared)
        for node in self._memory.reuse(kv, self._keys(active, first, active.known_rows)):
            start, stop = seq.computed, seq.computed + self._page_size
            self._runner.restore(seq, start, stop, node.kept)
            seq.computed = stop
        if not active.retracted:
            found = self._page_size * (len(kv.shared) - first)
            active.cached_tokens += found
            self.hit_tokens += found

    def publish(self, active: PagedSequence) -> None:
        """Put the full pages computed so far into the prefix cache. The row of a token that the
        host does not know, or that ended the reply, does not count."""
        if not self._shares(active) or active.kv is None:
            return
        request, kv = active.seq.request, active.kv
        known = request.prompt_len + max(len(active.seq.tokens) - 1, 0)
        rows = min(active.seq.computed, known)

        def keep(index: int) -> Any:
            start = index * self._page_size
            return self._runner.keep(active.seq, start, start + self._page_size)

        self._memory.publish(kv, self._keys(active, len(kv.shared), rows), keep)

    def next_page(self, active: PagedSequence) -> PageId | None:
        """What a sequence will publish next; None if it has no full page left to publish. A second
        sequence with the same next page need not compute it."""
        if not self._shares(active) or active.kv is None:
            return None
        key = next(self._keys(active, len(active.kv.shared), active.known_rows), None)
        return None if key is None else (self._memory.next_page(active.kv), key)

    def pages_in_use(self, request: EngineRequest, tokens: list[int]) -> int:
        """Pages that others use now and that a sequence which waits would use too."""
        if not self._enabled or request.row_keys is None:
            return 0
        rows = request.prompt_len + len(tokens) - 1
        return self._memory.in_use(page_keys(request.row_keys, tokens, self._page_size, 0, rows))

    def _shares(self, active: PagedSequence) -> bool:
        return self._enabled and active.seq.request.row_keys is not None

    def _keys(self, active: PagedSequence, first: int, rows: int) -> Iterator[bytes]:
        keys = active.seq.request.row_keys
        if keys is None:
            return iter(())
        return page_keys(keys, active.seq.tokens, self._page_size, first, rows)


def page_keys(
    row_keys: IntArray, tokens: list[int], page_size: int, first: int, rows: int
) -> Iterator[bytes]:
    """Keys of the full pages, from page `first` on, within the first `rows` rows of a prompt and
    the `tokens` sampled after it."""
    if (first + 1) * page_size > rows:
        return
    keys = np.concatenate([row_keys, np.array(tokens, dtype=np.int64)])
    data = keys[first * page_size : rows].tobytes()
    step = page_size * keys.itemsize
    for start in range(0, len(data) - step + 1, step):
        yield data[start : start + step]
