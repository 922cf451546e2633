"""Causal attention of one flat batch over the paged KV cache.

Knows segments, pages and slots. Knows nothing of layers' weights or of why a batch looks as it
does. `PagedAttention` copies contexts out of the pool, which any device can do; `varlen` reads the
pages where they lie, on a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Protocol

import torch
import torch.nn.functional as F

from omni_core.engine.base import Attend, AttentionBatch, AttentionParts, Segment
from omni_core.engine.common.transfer import upload
from omni_core.engine.torch_engine.kv import DecodeTables, KVCache
from omni_core.engine.torch_engine.varlen import VarlenAttention, reads_pages, varlen_parts


class StepAttention(AttentionBatch, Protocol):
    """`AttentionBatch` that goes on from step to step while the same sequences decode."""

    def advance(self) -> None:
        """Go to the next token of each sequence."""


def attention(cache: KVCache, segments: Sequence[Segment], rows: Sequence[int]) -> StepAttention:
    """Attention of one step over segments in these rows, the segments of decode rows first."""
    if reads_pages(cache):
        return VarlenAttention(cache, segments, rows)
    return PagedAttention(cache, segments, rows)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeAttention:
    """`Attend` of D rows, one of each sequence, padded to the pages of the longest, L tokens."""

    newest: torch.Tensor
    """Int64 (D,): the slot of each row itself."""
    lines: torch.Tensor
    """Int64 (D * kv_heads * L,): slot * kv_heads + head, in the order row, head, token. So one copy
    gives each head its context in one piece, as a batched product wants it."""
    mask: torch.Tensor
    """Float (D * kv_heads, 1, L): 0 inside a context, -inf beyond."""
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """See `AttentionBatch`. The softmax is float32, as in transformers' eager attention."""
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(0, self.newest, k)
        values.index_copy_(0, self.newest, v)
        rows, heads, head_dim = q.shape
        context = (self.mask.shape[0], self.mask.shape[2], head_dim)
        kept_keys = keys.view(-1, head_dim).index_select(0, self.lines).view(context)
        kept_values = values.view(-1, head_dim).index_select(0, self.lines).view(context)
        queries = q.reshape(context[0], -1, head_dim)
        scores = torch.baddbmm(self.mask, queries, kept_keys.mT, alpha=head_dim**-0.5)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.bmm(weights, kept_values).view(rows, heads, head_dim)


def example(cache: KVCache, batch: int) -> AttentionParts:
    """Of so many decode rows, each at the beginning of a page, which it writes to."""
    pages = torch.arange(batch, device=cache.device) % cache.pages.total
    tables = DecodeTables(
        rows=[],
        positions=torch.zeros_like(pages),
        pages=pages[:, None].expand(-1, cache.tables.shape[1]).contiguous(),
    )
    if reads_pages(cache):
        return varlen_parts(cache, tables)
    return copied_parts(DecodePaging(cache.page_size), cache, tables, cache.numbers(1))


def copied_parts(
    paging: DecodePaging, cache: KVCache, tables: DecodeTables, numbers: torch.Tensor
) -> AttentionParts:
    """Of decode rows whose contexts end before the last of the `numbers`."""
    return AttentionParts(
        build=paging,
        tensors=(tables.positions, tables.pages, numbers),
        dynamic=DECODE_SIZES,
        pools=cache.pools,
    )


DECODE_SIZES = ({0: "batch"}, {0: "batch"}, {0: "context"})
"""What differs between steps in the tensors of `DecodePaging`."""


@dataclass(frozen=True, slots=True)
class DecodePaging:
    """Makes `DecodeAttention` from tensors alone: `AttentionParts.build`."""

    page_size: int

    def __call__(self, *tensors: torch.Tensor) -> DecodeAttention:
        """`starts` (D,): positions of the rows; `pages` (D, pages_per_row): their page tables;
        `tokens` (L,): 0, 1, ... beyond the longest context; then keys and values of all layers."""
        starts, pages, tokens, *pools = tensors
        keys, values = tuple(pools[: len(pools) // 2]), tuple(pools[len(pools) // 2 :])
        slots = pages.index_select(1, tokens // self.page_size) * self.page_size
        slots = slots + tokens % self.page_size
        beyond = tokens > starts[:, None]
        # Padding repeats the sequence's own first slot: memory never written could hold NaN, and
        # NaN times a weight of 0 is NaN.
        inside = torch.where(beyond, slots[:, :1], slots)
        kv_heads = keys[0].shape[1]
        head = torch.arange(kv_heads, device=slots.device)[:, None]
        mask = torch.where(beyond, -torch.inf, 0.0).to(keys[0].dtype)
        return DecodeAttention(
            newest=slots.gather(1, starts[:, None])[:, 0],
            lines=(inside[:, None] * kv_heads + head).flatten(),
            mask=mask.repeat_interleave(kv_heads, dim=0)[:, None],
            keys=keys,
            values=values,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """Rows of the batch that attend in one call: first chunks of prompts, all of one length, or one
    segment with something before it."""

    rows: slice
    count: int
    """Rows of each sequence."""
    slots: torch.Tensor
    """Of one segment: (start + count,) slots of all its sequence's tokens so far. Of first chunks:
    (rows,) those of the rows themselves."""
    mask: torch.Tensor | None
    """Bool (count, start + count); None for first chunks, which are plainly causal."""

    @classmethod
    def later(cls, cache: KVCache, segment: Segment, row: int, first: int) -> _Span:
        """A segment that continues its sequence, and lies in the batch from row `first`."""
        context = torch.arange(segment.start + segment.count, device=cache.device)
        slots = cache.slots(upload(row, cache.device), context)
        mask = context <= context[segment.start :, None]
        return cls(slice(first, first + segment.count), segment.count, slots, mask)

    @classmethod
    def fresh(cls, cache: KVCache, rows: Sequence[int], count: int, first: int) -> _Span:
        """First chunks of `count` rows each, which lie in the batch from row `first` on."""
        context = torch.arange(count, device=cache.device)
        slots = cache.slots(upload(list(rows), cache.device)[:, None], context).flatten()
        return cls(slice(first, first + len(slots)), count, slots, None)

    @property
    def own(self) -> torch.Tensor:
        """Slots of the rows themselves."""
        return self.slots[len(self.slots) - (self.rows.stop - self.rows.start) :]

    def attend(
        self, keys: torch.Tensor, values: torch.Tensor, qkv: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Attend rows of a batch whose keys and values are in a layer's cache; (rows, heads, ...).
        What fresh rows attend to is at hand, and need not be read back."""
        q, k, v = (x[self.rows].view(-1, self.count, *x.shape[1:]).transpose(1, 2) for x in qkv)
        if self.mask is not None:
            k = keys.index_select(0, self.slots).transpose(0, 1)[None]
            v = values.index_select(0, self.slots).transpose(0, 1)[None]
        attended = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=self.mask,
            is_causal=self.mask is None,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return attended.transpose(1, 2).flatten(0, 1)


def _spans(
    cache: KVCache, segments: Sequence[Segment], rows: Sequence[int], first: int
) -> list[_Span]:
    """Segments of several rows, which lie in the batch from row `first` on. Neighbours that begin
    and are equally long attend together: their calls cost more than their numbers."""
    spans: list[_Span] = []
    placed = zip(segments, rows, strict=True)
    for (start, count), run in groupby(placed, key=lambda pair: (pair[0].start, pair[0].count)):
        if start == 0:
            spans.append(_Span.fresh(cache, [row for _, row in run], count, first))
            first = spans[-1].rows.stop
            continue
        for segment, row in run:
            spans.append(_Span.later(cache, segment, row, first))
            first += count
    return spans


class PagedAttention:
    """`StepAttention` over copies of the contexts.

    The leading one-row segments attend together; the others as `_spans` says.
    """

    def __init__(self, cache: KVCache, segments: Sequence[Segment], rows: Sequence[int]) -> None:
        self._cache = cache
        self._decodes = sum(1 for _ in takewhile(lambda s: s.count == 1, segments))
        starts = [segment.start for segment in segments[: self._decodes]]
        self._longest = max(starts, default=-1) + 1
        self._tables = cache.decode_tables(list(rows[: self._decodes]), starts)
        self._paging = DecodePaging(cache.page_size)
        self._numbers, self._room = cache.numbers(0), 0
        self._parts = self._decode_parts() if self._decodes else None
        self._decode: Attend | None = None
        first = slice(self._decodes, None)
        self._spans = _spans(cache, segments[first], rows[first], self._decodes)
        if self._spans:
            self._own = torch.cat([span.own for span in self._spans])

    @property
    def parts(self) -> AttentionParts | None:
        """See `AttentionBatch`."""
        return None if self._spans else self._parts

    def advance(self) -> None:
        """See `StepAttention`."""
        self._tables.advance()
        self._longest += 1
        self._decode, self._parts = None, self._decode_parts()

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """See `AttentionBatch`."""
        if self._decode is None and self._parts is not None:
            self._decode = self._parts.attend()  # only here: a compiled step does without
        if self._decode is not None and not self._spans:
            return self._decode(layer, q, k, v)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.index_copy_(0, self._own, k[self._decodes :])
        values.index_copy_(0, self._own, v[self._decodes :])
        out = [span.attend(keys, values, (q, k, v)) for span in self._spans]
        if self._decode is not None:
            first = slice(self._decodes)
            out.insert(0, self._decode(layer, q[first], k[first], v[first]))
        return out[0] if len(out) == 1 else torch.cat(out)

    def _decode_parts(self) -> AttentionParts:
        if self._longest > self._room:
            # Whole pages: memory of a new size at every step would leave more and more gaps.
            self._numbers = self._cache.numbers(self._longest)
            self._room = self._numbers.shape[0]  # kept: asking the tensor costs more than the rest
        return copied_parts(self._paging, self._cache, self._tables, self._numbers)
