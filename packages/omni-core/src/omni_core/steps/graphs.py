"""A step on a card: one CUDA graph for each exact shape, under a memory budget.

Knows shapes, static buffers, the budget and what is forgotten first. Reaches the card through a
`Card` alone, so that its books are tested without one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import torch

from omni_core.steps.base import Spec, Tensors
from omni_core.steps.check import difference

BUDGET_SHARE: Final = 0.02
"""Of the card's memory, for all graphs of a stage."""
BATCH: Final = "batch"
BATCH_SIZES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""A batch is padded to the next of these; beyond the last, steps are eager."""
HOT_CALLS: Final = 3
"""Eager calls of a shape before it is captured."""

Shapes: TypeAlias = tuple[torch.Size, ...]

log = logging.getLogger("omni.steps")


class Card(Protocol):
    """What graphs need of a device."""

    budget_bytes: int
    """For all graphs of a stage."""

    def used_bytes(self) -> int:
        """Memory of the device that is reserved now."""

    def capture(self, run: Callable[[], Tensors]) -> tuple[Tensors, Callable[[], None]]:
        """Record the work of `run`; its results, and what does the work again into them.

        RuntimeError if `run` does what cannot be recorded.
        """


class CudaCard:
    """A CUDA card, by the recipe of torch's notes on CUDA graphs: warm up on a side stream, then
    capture. All graphs share one memory pool, since they are replayed one after another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        total = torch.cuda.get_device_properties(device).total_memory
        self.budget_bytes = int(BUDGET_SHARE * total)

    def used_bytes(self) -> int:
        """See `Card`."""
        return torch.cuda.memory_reserved(self._device)

    def capture(self, run: Callable[[], Tensors]) -> tuple[Tensors, Callable[[], None]]:
        """See `Card`."""
        side: torch.cuda.Stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other stages' threads may allocate meanwhile, which only "global" would forbid them.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            results = run()
        return results, graph.replay


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: Tensors
    """Static buffers, without the pools."""
    pools: tuple[int, ...]
    """Addresses of the pools it was captured over."""
    results: Tensors
    replay: Callable[[], None]
    used_bytes: int


class Graphs:
    """The graphs of one stage; those not used for longest go when the budget is reached."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._graphs: OrderedDict[tuple[str, Shapes], _Graph] = OrderedDict()
        self.used_bytes = 0

    @classmethod
    def on(cls, device: torch.device) -> Graphs:
        """For a stage on a CUDA card."""
        return cls(CudaCard(device))

    @property
    def count(self) -> int:
        """Graphs held now."""
        return len(self._graphs)

    def get(self, name: str, shapes: Shapes) -> _Graph | None:
        """A step's graph for these shapes, which becomes the one used last."""
        graph = self._graphs.get((name, shapes))
        if graph is not None:
            self._graphs.move_to_end((name, shapes))
        return graph

    def capture(self, spec: Spec, shapes: Shapes, inputs: Tensors, pools: Tensors) -> _Graph | None:
        """Capture a call, whose inputs become the graph's buffers; None if it alone is over the
        budget. RuntimeError from the card."""
        before_bytes = self._card.used_bytes()
        results, replay = self._card.capture(lambda: spec.program(*inputs, *pools))
        used_bytes = max(0, self._card.used_bytes() - before_bytes)
        if used_bytes > self._card.budget_bytes:
            return None
        while self.used_bytes + used_bytes > self._card.budget_bytes:
            self._forget(next(iter(self._graphs)))
        addresses = tuple(pool.data_ptr() for pool in pools)
        graph = _Graph(inputs, addresses, results, replay, used_bytes)
        self._graphs[spec.name, shapes] = graph
        self.used_bytes += used_bytes
        return graph

    def drop(self, name: str, shapes: Shapes) -> None:
        """Forget a graph that is held."""
        self._forget((name, shapes))

    def _forget(self, key: tuple[str, Shapes]) -> None:
        self.used_bytes -= self._graphs.pop(key).used_bytes


class GraphStep:
    """A step whose calls replay a graph of their shape; eager for the others."""

    def __init__(self, spec: Spec, graphs: Graphs) -> None:
        self._spec = spec
        self._graphs = graphs
        self._seen: dict[Shapes, int] = {}
        self._refused: set[Shapes] = set()
        self._dims = [
            next((dim for dim, name in dims.items() if name == BATCH), None)
            for dims in spec.dynamic
        ]

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        """See `Step`."""
        batch = self._batch(tensors)
        padded = None if batch is None else _padded_size(batch)
        shapes = tuple(self._shape(t, d, padded) for t, d in zip(tensors, self._dims, strict=True))
        if shapes in self._refused or (batch is not None and padded is None):
            return self._spec.eager(tensors)
        count = len(tensors) - self._spec.pools
        inputs, pools = tensors[:count], tensors[count:]
        graph = self._graphs.get(self._spec.name, shapes)
        if graph is None:
            return self._warm(shapes, inputs, pools, batch)
        if graph.pools != tuple(pool.data_ptr() for pool in pools):
            return self._spec.eager(tensors)
        self._spec.counts.replayed += 1
        return self._replay(graph, inputs, batch)

    def _warm(self, shapes: Shapes, inputs: Tensors, pools: Tensors, batch: int | None) -> Tensors:
        expected = self._spec.eager((*inputs, *pools))
        self._seen[shapes] = self._seen.get(shapes, 0) + 1
        if self._seen[shapes] < HOT_CALLS:
            return expected
        if problem := self._capture(shapes, inputs, pools, expected, batch):
            self._refused.add(shapes)
            log.warning("step %s stays eager for %s: %s", self._spec.name, shapes, problem)
        return expected

    def _capture(
        self,
        shapes: Shapes,
        inputs: Tensors,
        pools: Tensors,
        expected: Tensors,
        batch: int | None,
    ) -> str | None:
        """What is wrong with the graph of this call; None if it is kept."""
        wide = tuple(
            t.new_empty(shape) for t, shape in zip(inputs, shapes[: len(inputs)], strict=True)
        )
        self._fill(wide, inputs, batch)
        try:
            graph = self._graphs.capture(self._spec, shapes, wide, pools)
        except RuntimeError as error:
            return str(error)
        if graph is None:
            return "its graph alone is over the memory budget"
        if problem := difference(self._replay(graph, inputs, batch), expected):
            self._graphs.drop(self._spec.name, shapes)
            return problem
        return None

    def _replay(self, graph: _Graph, inputs: Tensors, batch: int | None) -> Tensors:
        self._fill(graph.inputs, inputs, batch)
        graph.replay()
        return graph.results if batch is None else tuple(r[:batch] for r in graph.results)

    def _fill(self, buffers: Tensors, inputs: Tensors, batch: int | None) -> None:
        """Copy a call's inputs, the last row of its batch as often as there is room."""
        for buffer, tensor, dim in zip(buffers, inputs, self._dims, strict=False):
            if dim is None or batch is None or buffer.shape[dim] == batch:
                buffer.copy_(tensor)
            else:
                buffer.narrow(dim, 0, batch).copy_(tensor)
                rest = buffer.narrow(dim, batch, buffer.shape[dim] - batch)
                rest.copy_(tensor.narrow(dim, batch - 1, 1).expand_as(rest))

    def _batch(self, tensors: Tensors) -> int | None:
        sizes = (t.shape[d] for t, d in zip(tensors, self._dims, strict=True) if d is not None)
        return next(sizes, None)

    @staticmethod
    def _shape(tensor: torch.Tensor, dim: int | None, padded: int | None) -> torch.Size:
        if dim is None or padded is None:
            return tensor.shape
        return torch.Size([*tensor.shape[:dim], padded, *tensor.shape[dim + 1 :]])


def _padded_size(batch: int) -> int | None:
    return next((size for size in BATCH_SIZES if size >= batch), None)
