"""What streamed replies remember between two steps, and where that is kept.

Knows rows of numbers: one row per reply holds the past of every layer, one after the other. Knows
nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from omni_core.errors import StageError


class Past:
    """The memory of a batch on its way through the network, read and rewritten layer by layer.

    Layers call `extend` in a fixed order, which is the order of `shapes`.
    """

    def __init__(
        self, state: torch.Tensor, shapes: Sequence[tuple[int, ...]], begun: torch.Tensor
    ) -> None:
        """`state` (B, S) is only read; `begun` is 0 for a reply's first step and 1 later, (B,)."""
        parts = torch.split(state, [prod(shape) for shape in shapes], dim=1)
        self._parts = iter(zip(parts, shapes, strict=True))
        self._begun = begun[:, None, None]
        self._tails: list[torch.Tensor] = []

    def extend(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """`x` behind as many of its earlier values along `dim` as the layer remembers."""
        part, shape = next(self._parts)
        x = torch.cat([part.view(x.shape[0], *shape), x], dim)
        reach = shape[dim - 1]
        self._tails.append(x.narrow(dim, x.shape[dim] - reach, reach).flatten(1))
        return x

    def silence_before_start(self, x: torch.Tensor, late: int) -> None:
        """Make the first `late` values of `x` (B, C, n) zero in place where a reply only begins."""
        if late:
            x.narrow(2, 0, late).mul_(self._begun)

    def renewed(self) -> torch.Tensor:
        """The state (B, S) after the step."""
        return torch.cat(self._tails, dim=1)


class StatePool:
    """Slots for the state of a fixed number of replies, allocated at once."""

    def __init__(self, slots: int, size: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self._states = torch.zeros(slots, size, device=device, dtype=dtype)
        self._frames = [0] * slots
        self._free = list(range(slots - 1, -1, -1))

    @property
    def free(self) -> int:
        """Slots nobody holds."""
        return len(self._free)

    def acquire(self) -> int:
        """A slot without a past. StageError if all are held."""
        if not self._free:
            raise StageError(
                f"all {len(self._frames)} vocoder slots are held; close a reply first, or raise "
                "max_replies"
            )
        slot = self._free.pop()
        self._states[slot].zero_()
        self._frames[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back. ValueError if nobody holds it."""
        if slot in self._free:
            raise ValueError(f"slot {slot} is free already")
        self._free.append(slot)

    def frames(self, slots: Sequence[int]) -> list[int]:
        """How many frames each of these replies has had."""
        return [self._frames[slot] for slot in slots]

    def read(self, slots: Sequence[int]) -> torch.Tensor:
        """A copy (B, S) of their states."""
        return self._states.index_select(0, self._index(slots))

    def write(self, slots: Sequence[int], states: torch.Tensor, frames: Sequence[int]) -> None:
        """Keep states (B, S) and frame counts."""
        self._states.index_copy_(0, self._index(slots), states)
        for slot, count in zip(slots, frames, strict=True):
            self._frames[slot] = count

    def _index(self, slots: Sequence[int]) -> torch.Tensor:
        return torch.tensor(slots, dtype=torch.long, device=self._states.device)
