"""Steps by name, and how often each implementation of them was called.

Knows which implementation a call goes to. Knows nothing of models, and nothing of how a faster
implementation comes about: a `Maker` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from omni_core.specs import StageContext

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
    """Calls by implementation."""

    eager: int = 0
    compiled: int = 0
    replayed: int = 0


class Step:
    """A program and what has been made of it; call it from one thread."""

    def __init__(self, name: str, program: Program, dynamic: Dynamic, pools: int) -> None:
        self.name = name
        self.program = program
        self.dynamic = dynamic
        self.pools = pools
        self.counts = Counts()

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        """As the program's. The results may be overwritten by the next call of the step."""
        self.counts.eager += 1
        return self.program(*tensors)


class StepBank:
    """The steps of one stage."""

    def __init__(self) -> None:
        self._steps: dict[str, Step] = {}

    @classmethod
    def eager(cls) -> StepBank:
        """A bank that makes nothing: its steps only count their calls."""
        return cls()

    def step(
        self,
        name: str,
        program: Program,
        *,
        dynamic: Dynamic,
        pools: int = 0,
        examples: Callable[[], Iterable[Tensors]] = tuple,
    ) -> Step:
        """Register a program under a name that is free; ValueError if it is taken.

        `dynamic` has an entry for each tensor of a call. Where it names a "batch", that is the
        first dimension of every result, and the last row of it may be computed several times. The
        last `pools` tensors of a call are long-lived memory that the program may write: always the
        same tensors, and never copied.
        `examples` gives the tensors of one call for each size to be made ready before the first
        request, where the operator wants to wait for that.
        """
        if name in self._steps:
            raise ValueError(f"step {name!r} is registered already")
        self._steps[name] = Step(name, program, dynamic, pools)
        return self._steps[name]

    def stats(self) -> dict[str, float]:
        """Calls of all steps by implementation, for the metrics of the stage's scheduler."""
        counts = [step.counts for step in self._steps.values()]
        return {
            "step_calls_eager": sum(c.eager for c in counts),
            "step_calls_compiled": sum(c.compiled for c in counts),
            "step_calls_graph": sum(c.replayed for c in counts),
        }


def build_bank(ctx: StageContext) -> StepBank:
    """The bank of a stage, as `ctx.compile` and `ctx.device` ask for."""
    return StepBank()
