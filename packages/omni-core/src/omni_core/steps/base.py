"""What a step is, whatever runs it.

Knows programs, the tensors of a call and call counts. Knows no implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch

Tensors: TypeAlias = tuple[torch.Tensor, ...]
Dynamic: TypeAlias = tuple[Mapping[int, str], ...]
"""For each tensor of a call {dimension: name} of those whose size varies between calls; equal names
have equal sizes."""


class Program(Protocol):
    """What a step computes; see the package's docstring for what it may be made of."""

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        """Results for these inputs, then pools. Pools may be written; a second call with the same
        inputs must leave the same in them."""


@dataclass(slots=True)
class Counts:
    """Calls by the implementation whose results were used."""

    eager: int = 0
    compiled: int = 0
    replayed: int = 0

    def clear(self) -> None:
        """Begin anew."""
        self.eager = self.compiled = self.replayed = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A step as it was registered."""

    name: str
    program: Program
    dynamic: Dynamic
    pools: int
    """How many of the last tensors of a call are written in place, and never copied."""
    counts: Counts = field(default_factory=Counts)

    def eager(self, tensors: Tensors) -> Tensors:
        """Call the program itself."""
        self.counts.eager += 1
        return self.program(*tensors)


class Step(Protocol):
    """A registered step; call it from one thread."""

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        """As the program's. The results may be overwritten by the next call of the step."""


class EagerStep:
    """A step that stays as it is."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        """See `Step`."""
        return self._spec.eager(tensors)
