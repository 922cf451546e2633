"""CUDA graphs' books, on a card that is a fake: buckets, padding, budget, what is forgotten."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from omni_core.steps import StepBank
from omni_core.steps.base import Spec, Tensors
from omni_core.steps.graphs import HOT_CALLS, Graphs, GraphStep

ROW_BYTES = 10


@dataclass(slots=True)
class FakeCard:
    """Replays by running the work again and copying into the first results."""

    budget_bytes: int = 1000
    reserved_bytes: int = 0
    captures: int = 0
    wrong: bool = False
    refuses: bool = False
    rows: list[int] = field(default_factory=list)

    def used_bytes(self) -> int:
        return self.reserved_bytes

    def capture(self, run: Callable[[], Tensors]) -> tuple[Tensors, Callable[[], None]]:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        results = run()
        self.captures += 1
        self.rows.append(len(results[0]))
        self.reserved_bytes += ROW_BYTES * len(results[0])

        def replay() -> None:
            for kept, new in zip(results, run(), strict=True):
                kept.copy_(new + 1 if self.wrong else new)

        return results, replay


@dataclass(frozen=True, slots=True)
class AddUp:
    weight: torch.Tensor

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        x, slots, pool = tensors
        pool.index_copy_(0, slots, x)
        return (x * self.weight, pool.index_select(0, slots).sum(dim=-1))


def graphed(card: FakeCard) -> tuple[GraphStep, Spec, Graphs]:
    graphs = Graphs(card)
    dynamic = ({0: "batch"}, {0: "batch"}, {})
    spec = Spec(name="add", program=AddUp(torch.tensor(3.0)), dynamic=dynamic, pools=1)
    return GraphStep(spec, graphs), spec, graphs


POOL = torch.zeros(300, 2)


def call(batch: int, pool: torch.Tensor = POOL) -> Tensors:
    return torch.randn(batch, 2), torch.arange(batch), pool


def warm(step: GraphStep, batch: int) -> None:
    for _ in range(HOT_CALLS):
        step(*call(batch))


def test_a_shape_is_captured_once_it_is_hot_and_replayed_afterwards() -> None:
    card = FakeCard()
    step, spec, graphs = graphed(card)
    warm(step, 4)
    assert (spec.counts.eager, spec.counts.replayed, card.captures) == (HOT_CALLS, 0, 1)
    x, slots, pool = call(4)
    product, total = step(x, slots, pool)
    assert torch.equal(product, x * 3)
    assert torch.equal(total, x.sum(dim=-1))
    assert torch.equal(pool[:4], x)
    assert (spec.counts.replayed, graphs.count) == (1, 1)


def test_a_batch_is_padded_with_its_last_row() -> None:
    card = FakeCard()
    step, spec, _ = graphed(card)
    warm(step, 3)
    assert card.rows == [4]
    x, slots, pool = call(3)
    before = pool[3:].clone()
    product, total = step(x, slots, pool)
    assert product.shape == (3, 2)
    assert torch.equal(total, x.sum(dim=-1))
    assert torch.equal(pool[3:], before)
    step(*call(4))
    assert (spec.counts.replayed, card.captures) == (2, 1)


def test_batches_beyond_the_last_size_stay_eager() -> None:
    card = FakeCard()
    step, spec, _ = graphed(card)
    for _ in range(HOT_CALLS + 1):
        step(*call(257))
    assert (spec.counts.eager, card.captures) == (HOT_CALLS + 1, 0)


def test_the_graph_used_longest_ago_makes_room() -> None:
    card = FakeCard(budget_bytes=ROW_BYTES * 7)
    step, spec, graphs = graphed(card)
    for batch in (1, 2, 4):
        warm(step, batch)
    assert (graphs.count, graphs.used_bytes) == (3, 70)
    step(*call(1))
    warm(step, 2)
    warm(step, 8)
    assert graphs.count == 3, "8 rows are over the budget by themselves"
    replayed = spec.counts.replayed
    step(*call(4))
    assert spec.counts.replayed == replayed + 1


def test_room_is_made_in_order_of_last_use() -> None:
    card = FakeCard(budget_bytes=ROW_BYTES * 6)
    step, spec, graphs = graphed(card)
    for batch in (4, 2):
        warm(step, batch)
    step(*call(4))
    warm(step, 1)
    assert (graphs.count, graphs.used_bytes) == (2, 50)
    replayed = spec.counts.replayed
    step(*call(4))
    step(*call(1))
    assert spec.counts.replayed == replayed + 2
    eager = spec.counts.eager
    step(*call(2))
    assert spec.counts.eager == eager + 1


@pytest.mark.parametrize("fault", ["wrong", "refuses"])
def test_a_graph_that_fails_or_differs_leaves_its_shape_eager(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    card = FakeCard(wrong=fault == "wrong", refuses=fault == "refuses")
    step, spec, graphs = graphed(card)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            warm(step, 2)
    assert (spec.counts.eager, spec.counts.replayed) == (3 * HOT_CALLS, 0)
    assert (graphs.count, graphs.used_bytes) == (0, 0)
    assert len(caplog.records) == 1


def test_other_pools_are_never_mistaken_for_those_captured() -> None:
    step, spec, _ = graphed(FakeCard())
    warm(step, 2)
    other = torch.zeros(300, 2)
    x, slots, _ = call(2)
    step(x, slots, other)
    assert torch.equal(other[:2], x)
    assert spec.counts.replayed == 0


def test_a_bank_that_waits_captures_its_examples_before_the_first_call() -> None:
    card = FakeCard()
    graphs = Graphs(card)
    bank = StepBank(graphs=graphs, waits=True)
    step = bank.step(
        "add",
        AddUp(torch.tensor(3.0)),
        dynamic=({0: "batch"}, {0: "batch"}, {}),
        pools=1,
        examples=lambda: map(call, (1, 2, 4)),
    )
    assert card.rows == [1, 2, 4]
    with torch.inference_mode():
        step(*call(2))
    stats = bank.stats()
    assert (stats["step_calls_graph"], stats["step_graphs"]) == (1, 3)
    assert stats["step_graph_bytes"] == 70
