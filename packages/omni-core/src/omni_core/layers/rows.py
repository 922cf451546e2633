"""Prompts as rows with ids and positions on three axes, and flat batches of them.

Knows rows and segments. Knows nothing of layers, nor of what else a row may have: a `Patch` says
which rows, a runner says when it writes, adds or reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from omni_core.engine.base import Segment
from omni_core.tensors import tensor_over
from omni_core.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Patch:
    """Values of some rows of a flat batch: to write into it, to add to it, or to fill from it."""

    rows: torch.Tensor
    """Int64 (R,) rows of the batch."""
    values: torch.Tensor
    """(..., R, H), a view of what the prompt holds."""


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Values (..., M, H) for the rows `index` (M,), ascending, of one prompt."""

    index: IntArray
    values: torch.Tensor

    def part(self, start: int, stop: int) -> PromptRows | None:
        """Those of the rows that are in `start`..`stop`, a view; None for none."""
        low, high = np.searchsorted(self.index, [start, stop])
        if low == high:
            return None
        return PromptRows(self.index[low:high], self.values[..., low:high, :])

    def patch(self, segment: Segment, offset: int) -> Patch | None:
        """The part inside a segment that begins at row `offset` of a batch; None if empty."""
        part = self.part(segment.start, segment.start + segment.count)
        if part is None:
            return None
        rows = torch.from_numpy(part.index + (offset - segment.start))
        return Patch(rows.to(self.values.device), part.values)


class PromptLine:
    """The ids and positions of a prompt and of the reply that follows it: a `Sequence.state`."""

    def __init__(self, ids: IntArray, positions: FloatArray | IntArray, rope_delta: float) -> None:
        """Ids (S,) and M-RoPE positions (3, S); generated token i is at S + i + `rope_delta`."""
        self.ids = ids
        self._positions = positions.astype(np.float32)
        self.rope_delta = float(np.float32(rope_delta))

    def reply_position(self, row: int) -> float:
        """Of a row after the prompt, on every axis."""
        return row + self.rope_delta

    def rows(self, segment: Segment) -> tuple[IntArray, FloatArray]:
        """Token ids (count,) and M-RoPE positions (3, count) of a segment, in prompt or reply."""
        length, start = len(self.ids), segment.start
        stop = start + segment.count
        ids, positions = self.ids[start:stop], self._positions[:, start:stop]
        if stop > length:
            first = max(start, length)
            tokens = segment.seq.tokens[first - length : stop - length]
            line = np.arange(first, stop, dtype=np.float32) + np.float32(self.rope_delta)
            ids = np.concatenate([ids, np.array(tokens, dtype=np.int64)])
            positions = np.concatenate([positions, np.broadcast_to(line, (3, len(line)))], axis=1)
        return ids, positions


@dataclass(slots=True)
class FlatRows:
    """Rows of several sequences, one after the other."""

    ids: torch.Tensor
    """Int64 (N,)."""
    positions: torch.Tensor
    """Float32 (3, N)."""
    sampled_rows: torch.Tensor
    """Int64 (M,): the last row of each segment that samples."""


def flat_rows(segments: list[Segment], tokens: torch.Tensor, device: torch.device) -> FlatRows:
    """Gather the rows of sequences whose `state` is a `PromptLine`; the first segments are decode
    rows of the newest `tokens`, as many as these."""
    decodes = len(tokens)
    parts = [segment.seq.state.rows(segment) for segment in segments[decodes:]]
    ends = np.cumsum([segment.count for segment in segments])
    sampled = [int(e) - 1 for e, segment in zip(ends, segments, strict=True) if segment.samples]
    line = np.array(decode_positions(segments[:decodes]), dtype=np.float32)
    positions = [np.broadcast_to(line, (3, decodes)), *(p for _, p in parts)]
    ids = [tensor_over(ids).to(device) for ids, _ in parts]
    return FlatRows(
        ids=torch.cat([tokens, *ids]),
        positions=torch.from_numpy(np.concatenate(positions, axis=1)).to(device),
        sampled_rows=torch.tensor(sampled, dtype=torch.long, device=device),
    )


def prompt_offsets(segments: list[Segment], *, decodes: int) -> Iterator[tuple[int, Segment]]:
    """(first row in the flat batch, segment) of those that are no decode rows."""
    offset = decodes
    for segment in segments[decodes:]:
        yield offset, segment
        offset += segment.count


def decode_positions(segments: list[Segment]) -> list[float]:
    """Positions of decode rows, on every axis."""
    return [s.seq.state.reply_position(s.start) for s in segments]
