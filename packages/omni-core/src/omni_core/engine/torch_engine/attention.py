"""Causal attention of one flat batch over the paged KV cache.

Knows segments and slots. Knows nothing of layers' weights or of why a batch looks as it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
import torch.nn.functional as F

from omni_core.engine.base import Segment
from omni_core.engine.torch_engine.kv import KVCache


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """A segment of several rows: where it lies in the batch and what it attends to."""

    rows: slice
    slots: torch.Tensor
    """(start + count,) slots of all its sequence's tokens so far."""
    mask: torch.Tensor | None
    """Bool (count, start + count); None for a prompt's first chunk, which is plainly causal."""


class PagedAttention:
    """`AttentionBatch` for one step; the decode segments must come first.

    The leading one-row segments attend together, padded to the longest context; every other segment
    attends by itself.
    """

    def __init__(self, cache: KVCache, segments: Sequence[Segment], rows: Sequence[int]) -> None:
        self._cache = cache
        device = cache.device
        owners = [row for row, s in zip(rows, segments, strict=True) for _ in range(s.count)]
        positions = [p for s in segments for p in range(s.start, s.start + s.count)]
        self._slots = cache.slots(
            torch.tensor(owners, device=device), torch.tensor(positions, device=device)
        )
        self._decodes = sum(1 for _ in takewhile(lambda s: s.count == 1, segments))
        self._pad_decodes(owners[: self._decodes], positions[: self._decodes])
        self._spans: list[_Span] = []
        first = self._decodes
        for segment, row in zip(segments[first:], rows[first:], strict=True):
            self._spans.append(self._span(segment, row, first))
            first += segment.count

    def _pad_decodes(self, rows: list[int], positions: list[int]) -> None:
        """Slots (D, longest) and mask (D, 1, 1, longest) of the decode segments' contexts.

        Padding repeats a sequence's own first slot: memory never written could hold NaN, and
        NaN times a weight of 0 is NaN.
        """
        if not rows:
            return
        device = self._cache.device
        span = torch.arange(max(positions) + 1, device=device)
        inside = span <= torch.tensor(positions, device=device)[:, None]
        slots = self._cache.slots(torch.tensor(rows, device=device)[:, None], span)
        self._decode_slots = torch.where(inside, slots, slots[:, :1])
        self._decode_mask = None if min(positions) == max(positions) else inside[:, None, None]

    def _span(self, segment: Segment, row: int, first: int) -> _Span:
        device = self._cache.device
        context = torch.arange(segment.start + segment.count, device=device)
        mask = context <= context[segment.start :, None] if segment.start else None
        slots = self._cache.slots(torch.tensor(row, device=device), context)
        return _Span(slice(first, first + segment.count), slots, mask)

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """See `AttentionBatch`."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[self._slots] = k
        values[self._slots] = v
        gqa = q.shape[1] != k.shape[1]
        out = torch.empty_like(q)
        if self._decodes:
            attended = F.scaled_dot_product_attention(
                q[: self._decodes, :, None],
                keys[self._decode_slots].transpose(1, 2),
                values[self._decode_slots].transpose(1, 2),
                attn_mask=self._decode_mask,
                enable_gqa=gqa,
            )
            out[: self._decodes] = attended[:, :, 0]
        for span in self._spans:
            attended = F.scaled_dot_product_attention(
                q[span.rows].transpose(0, 1)[None],
                keys[span.slots].transpose(0, 1)[None],
                values[span.slots].transpose(0, 1)[None],
                attn_mask=span.mask,
                is_causal=span.mask is None,
                enable_gqa=gqa,
            )
            out[span.rows] = attended[0].transpose(0, 1)
        return out
