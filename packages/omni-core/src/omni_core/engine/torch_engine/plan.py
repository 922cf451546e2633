"""What one step computes: the rows, whose they are, and who samples.

Knows sequences and segments. Knows nothing of why these were chosen.
"""

from __future__ import annotations

import msgspec

from omni_core.engine.base import Segment, Sequence
from omni_core.engine.torch_engine.attention import StepAttention
from omni_core.engine.torch_engine.paged import PagedSequence


class StepPlan(msgspec.Struct, kw_only=True, eq=False):
    """The rows of one step; of many steps in turn while the same sequences decode."""

    segments: list[Segment]
    decodes: list[PagedSequence]
    """Whose single rows come first."""
    prompts: list[PagedSequence]
    """Whose chunks follow."""
    sampled: list[PagedSequence]
    """Who samples, in the order of the segments."""
    seqs: list[Sequence]
    """Those of `sampled`."""
    constrained: bool
    """Some of them must know their newest token to draw the next."""
    attention: StepAttention | None = None
    """Of the newest step; None before the first."""

    @classmethod
    def of(cls, decodes: list[PagedSequence], chunks: dict[PagedSequence, int]) -> StepPlan:
        """A row of each that decodes, then so many rows of each prompt."""
        segments = [active.segment(count) for active, count in chunks.items()]
        sampling = [a for a, s in zip(chunks, segments, strict=True) if s.samples]
        sampled = decodes + sampling
        return cls(
            segments=[active.decode_segment() for active in decodes] + segments,
            decodes=decodes,
            prompts=list(chunks),
            sampled=sampled,
            seqs=[active.seq for active in sampled],
            constrained=any(a.seq.request.constraint is not None for a in sampled),
        )


NOTHING = StepPlan(segments=[], decodes=[], prompts=[], sampled=[], seqs=[], constrained=False)
