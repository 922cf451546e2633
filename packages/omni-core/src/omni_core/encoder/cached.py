"""Encoder stages: a tower behind a cache, batched over requests.

Knows items with keys, and what to do when memory runs out. Knows nothing of what an item is (an
`ItemEncoder` does), of prompts, or of the rest of the model, whose weights are not read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch

from omni_core.checkpoint.weights import Checkpoint, Weights, open_weights
from omni_core.encoder.options import CACHE_ENTRIES, DEFAULT_ENTRIES, whole_number
from omni_core.errors import OmniError, OutOfMemoryError, is_out_of_memory
from omni_core.scheduler.base import Scheduler, Work
from omni_core.scheduler.cache import LRU, SharedResults
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.specs import StageContext
from omni_core.types import FloatArray, Payload

CACHE_BYTES = "cache_bytes"
DEFAULT_CACHE_BYTES = 4 * 1024**3

log = logging.getLogger("omni.encoder")


class Item(Protocol):
    """One image, video or clip of a request."""

    @property
    def key(self) -> bytes: ...
    @property
    def param(self) -> str: ...
    @property
    def content(self) -> FloatArray | None: ...


ItemT = TypeVar("ItemT", bound=Item)
V = TypeVar("V")


class ItemEncoder(Protocol[ItemT, V]):
    """Makes features of items."""

    too_large: str
    """What a caller can do about an item that does not fit the memory."""

    def cost(self, payload: Payload) -> int:
        """What encoding all items of a request takes, in units of the encoder's own."""

    def items(self, payload: Payload) -> list[ItemT]:
        """The items of a request; OmniError for one that can never be encoded."""

    def encode(self, items: Sequence[ItemT]) -> list[V]:
        """Features of each item, on the CPU, whoever shares the batch."""

    def join(self, items: Sequence[ItemT], made: Sequence[V]) -> Payload:
        """The features of one request."""

    def size_bytes(self, made: V) -> int:
        """Memory of one item's features."""


class CachedEncoder(Generic[ItemT, V]):
    """`Prompt`s with media to `Features`; equal items are encoded once. Safe to share by threads.

    A batch the memory does not suffice for is halved until it does; an item that is too much by
    itself fails its request.
    """

    def __init__(self, encoder: ItemEncoder[ItemT, V], *, max_entries: int, max_bytes: int) -> None:
        self.encoder = encoder
        self._shared: SharedResults[V] = SharedResults(
            LRU(max_entries=max_entries, max_bytes=max_bytes, size_bytes=encoder.size_bytes)
        )
        self._lock = threading.Lock()
        self._oom_splits = self._read_again = 0

    def __call__(self, works: Sequence[Work]) -> list[Payload | OmniError]:
        """`Features`, or the error of its request, for each of `works`."""
        requests = [self._items(work.payload) for work in works]
        items = [item for request in requests if isinstance(request, list) for item in request]
        made = iter(
            self._shared.obtain(
                [item.key for item in items],
                lambda places: self._compute([items[place] for place in places]),
            )
        )
        return [
            self._joined(request, [next(made) for _ in request])
            if isinstance(request, list)
            else request
            for request in requests
        ]

    def cost(self, work: Work) -> int:
        """What a request takes, in the encoder's own unit."""
        return self.encoder.cost(work.payload)

    def forget(self) -> None:
        """Encode everything anew from now on."""
        self._shared.forget()

    def stats(self) -> dict[str, float]:
        """Items by where their features came from, and batches that were too large."""
        return {
            **self._shared.stats(),
            "read_again": self._read_again,
            "oom_splits": self._oom_splits,
        }

    def _items(self, payload: Payload) -> list[ItemT] | OmniError:
        try:
            return self.encoder.items(payload)
        except OmniError as error:
            return error

    def _joined(self, items: list[ItemT], made: list[V | OmniError]) -> Payload | OmniError:
        features: list[V] = []
        for part in made:
            if isinstance(part, OmniError):
                return part
            features.append(part)
        return self.encoder.join(items, features)

    def _compute(self, items: list[ItemT]) -> list[V | OmniError]:
        with self._lock:
            self._read_again += sum(item.content is None for item in items)
        return self._encode(items)

    def _encode(self, items: list[ItemT]) -> list[V | OmniError]:
        made = self._attempt(items)
        if made is not None:
            return [*made]
        if len(items) == 1:
            return [self._no_memory(items[0])]
        with self._lock:
            self._oom_splits += 1
        half = len(items) // 2
        return self._encode(items[:half]) + self._encode(items[half:])

    def _attempt(self, items: list[ItemT]) -> list[V] | None:
        """Features of all items; None if the memory does not suffice for so many.

        The exception holds what its frames held, so it must be gone before another attempt.
        """
        try:
            return self.encoder.encode(items)
        except (MemoryError, RuntimeError) as exc:
            if not is_out_of_memory(exc):
                raise
            log.warning("no memory to encode %d items at once: %s", len(items), str(exc))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None

    def _no_memory(self, item: ItemT) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"the server ran out of memory while encoding {item.param}; try again later, or "
            f"{self.encoder.too_large}",
            param=item.param,
        )


def load_tower(ctx: StageContext, tower: torch.nn.Module, prefix: str) -> Weights:
    """Fill a tower on the meta device with the checkpoint's weights, in the stage's dtype."""
    with Checkpoint(ctx.model_path) as checkpoint:
        weights = open_weights(
            checkpoint, (prefix,), device=ctx.device, dtype=ctx.dtype, report=ctx.report
        )
        state = {
            name: weights.tensor(prefix + name, empty.shape)
            for name, empty in tower.state_dict().items()
        }
        weights.finish()
    tower.load_state_dict(state, assign=True)
    tower.requires_grad_(False).eval()
    return weights


def cached(ctx: StageContext, encoder: ItemEncoder[ItemT, V]) -> CachedEncoder[ItemT, V]:
    """The encoder behind a cache of the size that the stage's options say."""
    return CachedEncoder(
        encoder,
        max_entries=whole_number(ctx.stage, CACHE_ENTRIES, DEFAULT_ENTRIES, least=0),
        max_bytes=whole_number(ctx.stage, CACHE_BYTES, DEFAULT_CACHE_BYTES, least=0),
    )


def encoder_scheduler(
    ctx: StageContext, encoder: CachedEncoder[ItemT, V], max_cost: int
) -> Scheduler:
    """Batches of at most `max_cost` in the encoder's own unit."""
    return SimpleScheduler(
        encoder,
        max_batch=ctx.stage.max_batch,
        max_wait_ms=ctx.stage.max_wait_ms,
        max_concurrency=ctx.stage.max_concurrency,
        cost=encoder.cost,
        max_cost=max_cost,
        more_stats=encoder.stats,
    )
