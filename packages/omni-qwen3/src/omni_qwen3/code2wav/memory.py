"""What a streamed reply remembers between two pushes.

Knows tensors with the batch in front, by the layer that owns them. Knows nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(slots=True)
class Memory:
    """The past of a batch of replies, or of one."""

    frames: list[int] = field(default_factory=lambda: [0])
    """How many frames each reply has had."""
    past: dict[nn.Module, torch.Tensor] = field(default_factory=dict)
    """{layer: what it must know of its earlier inputs, (B, ...)}; empty before the first push.

    Shapes are the same for all replies from the first push on.
    """

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was pushed yet."""
        return not self.past

    @classmethod
    def join(cls, parts: Sequence[Memory]) -> Memory:
        """The memories as one batch; all fresh or none."""
        if len(parts) == 1:
            return parts[0]
        frames = [count for part in parts for count in part.frames]
        past = {layer: torch.cat([part.past[layer] for part in parts]) for layer in parts[0].past}
        return cls(frames, past)

    def split_into(self, parts: Sequence[Memory]) -> None:
        """Give each reply of a batch its own memory back."""
        if len(parts) == 1:
            return
        for row, part in enumerate(parts):
            part.frames = [self.frames[row]]
            part.past = {layer: past[row : row + 1].clone() for layer, past in self.past.items()}
