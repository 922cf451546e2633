"""The steps of one stage, and what their calls went to.

Knows which kind of step suits a device and what the operator asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import torch

from omni_core.specs import StageContext
from omni_core.steps.aoti import Libraries, cache_directory
from omni_core.steps.base import Dynamic, EagerStep, Program, Spec, Step, Tensors
from omni_core.steps.compiled import CHECKED_CALLS, CompiledStep
from omni_core.steps.graphs import HOT_CALLS, Graphs, GraphStep
from omni_core.steps.maker import LibraryMaker
from omni_core.steps.waiting import reported

COMPILED_BATCHES: Final = (1, 2)
GRAPHED_BATCHES: Final = (1, 2, 4, 8, 16, 32)


class StepBank:
    """Registers steps; makes faster ones of them as it was told to."""

    def __init__(
        self,
        *,
        maker: LibraryMaker | None = None,
        graphs: Graphs | None = None,
        waits: bool = False,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`maker` compiles, `graphs` captures; with neither, steps stay as they are. `waits` makes
        what has examples at once, and tells `report`."""
        self._maker = maker
        self._graphs = graphs
        self.waits = waits
        """Whether what has examples is ready before the first request."""
        self._report = report
        self._specs: dict[str, Spec] = {}
        self._compiled: list[CompiledStep] = []

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
        same for calls of the same shapes, and never copied. `examples` gives the tensors of one
        call for each size to be made ready before the first request, where the operator wants to
        wait for that.
        """
        if name in self._specs:
            raise ValueError(f"step {name!r} is registered already")
        spec = Spec(name=name, program=program, dynamic=dynamic, pools=pools)
        self._specs[name] = spec
        if self._graphs is not None:
            return self._ready(spec, GraphStep(spec, self._graphs), HOT_CALLS, examples)
        if self._maker is not None:
            return self._compile(spec, self._maker, examples)
        return EagerStep(spec)

    @property
    def batches(self) -> tuple[int, ...]:
        """Sizes of a batch that `examples` should have: a library serves all alike, but for one
        row; a graph serves one size."""
        return COMPILED_BATCHES if self._graphs is None else GRAPHED_BATCHES

    def stats(self) -> dict[str, float]:
        """Calls of all steps by implementation, for the metrics of the stage's scheduler."""
        counts = [spec.counts for spec in list(self._specs.values())]  # others add to it meanwhile
        return {
            "step_calls_eager": sum(c.eager for c in counts),
            "step_calls_compiled": sum(c.compiled for c in counts),
            "step_calls_graph": sum(c.replayed for c in counts),
            "steps_swapped": sum(step.swapped for step in self._compiled),
            "steps_compiled_here": self._maker.compiled if self._maker else 0,
            "step_graphs": self._graphs.count if self._graphs else 0,
            "step_graph_bytes": self._graphs.used_bytes if self._graphs else 0,
        }

    def _compile(
        self, spec: Spec, maker: LibraryMaker, examples: Callable[[], Iterable[Tensors]]
    ) -> Step:
        step = CompiledStep(spec, maker)
        self._compiled.append(step)
        first = next(iter(examples()), None) if self.waits else None
        if first is not None:
            with reported(self._report, f"compiling step {spec.name}"):
                step.make_now(first)
        return self._ready(spec, step, CHECKED_CALLS, examples)

    def _ready(
        self, spec: Spec, step: Step, calls: int, examples: Callable[[], Iterable[Tensors]]
    ) -> Step:
        """The step, called for each example as often as it takes to be trusted."""
        if self.waits:
            with torch.inference_mode():
                for tensors in examples():
                    for _ in range(calls):
                        step(*tensors)
            spec.counts.clear()  # no request was served by these
        return step


def build_bank(ctx: StageContext) -> StepBank:
    """The bank of a stage, as `ctx.compile` and `ctx.device` ask for."""
    if ctx.compile == "off":
        return StepBank()
    waits = ctx.compile == "wait"
    if ctx.device == "cpu":
        maker = LibraryMaker(Libraries(cache_directory()))
        return StepBank(maker=maker, waits=waits, report=ctx.report)
    return StepBank(graphs=Graphs.on(torch.device(ctx.device)), waits=waits, report=ctx.report)
