"""SimpleScheduler: batches, company, concurrency, aborts and failures."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from omni_core.errors import MediaError, OmniError, StageError
from omni_core.scheduler.base import Abort, Work
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.testing.fakes import Call, running
from omni_core.types import Payload, RequestParams

PATIENCE_S = 10.0


def work(name: str, **payload: object) -> Work:
    return Work(name, RequestParams(), payload)


class Gate:
    """A compute that records its batches and waits inside until it is opened."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self._entered = threading.Semaphore(0)
        self._open = threading.Event()

    def __call__(self, works: list[Work]) -> Sequence[Payload | OmniError]:
        self.batches.append([w.request_id for w in works])
        self._entered.release()
        assert self._open.wait(PATIENCE_S)
        return [{"id": w.request_id} for w in works]

    def until_entered(self) -> None:
        assert self._entered.acquire(timeout=PATIENCE_S)

    def open(self) -> None:
        self._open.set()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def test_a_result_is_sent_and_the_request_is_done() -> None:
    scheduler = SimpleScheduler(lambda works: [{"n": w.payload["n"] + 1} for w in works])
    with running(scheduler, [work("a", n=1), work("b", n=2)]) as (_, outbox):
        outbox.wait_for("done", "b")
    assert outbox.of("a") == [Call("send", "a", {"n": 2}), Call("done", "a")]
    assert outbox.of("b") == [Call("send", "b", {"n": 3}), Call("done", "b")]
    assert scheduler.stats() == {"requests": 2, "batches": 2, "waiting": 0, "running": 0}


def test_what_waits_goes_together_up_to_max_batch() -> None:
    gate = Gate()
    scheduler = SimpleScheduler(gate, max_batch=3)
    with running(scheduler, [work("first")]) as (inbox, outbox):
        gate.until_entered()
        for name in "abcde":
            inbox.put(work(name))
        until(lambda: scheduler.stats()["waiting"] == 5)
        gate.open()
        outbox.wait_for("done", "e")
    assert gate.batches == [["first"], ["a", "b", "c"], ["d", "e"]]


def test_a_batch_ends_before_it_costs_too_much() -> None:
    gate = Gate()
    scheduler = SimpleScheduler(
        gate, max_batch=3, cost=lambda work: work.payload["cost"], max_cost=10
    )
    with running(scheduler, [work("first", cost=1)]) as (inbox, outbox):
        gate.until_entered()
        costs = {"a": 4, "b": 6, "c": 1, "huge": 99, "d": 1, "e": 1, "f": 1, "g": 1}
        for name, cost in costs.items():
            inbox.put(work(name, cost=cost))
        until(lambda: scheduler.stats()["waiting"] == len(costs))
        gate.open()
        outbox.wait_for("done", "g")
    assert gate.batches == [["first"], ["a", "b"], ["c"], ["huge"], ["d", "e", "f"], ["g"]]


def test_company_is_not_waited_for_once_a_batch_costs_enough() -> None:
    gate = Gate()
    gate.open()
    scheduler = SimpleScheduler(
        gate, max_batch=9, max_wait_ms=PATIENCE_S * 1000, cost=lambda work: 6.0, max_cost=10
    )
    started = time.monotonic()
    with running(scheduler, [work("a"), work("b")]) as (_, outbox):
        outbox.wait_for("done", "a")
    assert gate.batches[0] == ["a"]
    assert time.monotonic() - started < PATIENCE_S / 2


def test_a_request_whose_cost_cannot_be_told_fails_alone() -> None:
    scheduler = SimpleScheduler(
        lambda works: [{} for _ in works], cost=lambda work: work.payload["cost"]
    )
    with running(scheduler, [work("bad"), work("good", cost=1)]) as (_, outbox):
        outbox.wait_for("done", "good")
    [failed] = outbox.of("bad")
    assert (failed.method, failed.value.message) == ("fail", "KeyError: 'cost'")


def test_numbers_of_the_computation_stand_beside_its_own() -> None:
    scheduler = SimpleScheduler(lambda works: [{}], more_stats=lambda: {"cache_hits": 3})
    assert scheduler.stats()["cache_hits"] == 3
    assert scheduler.stats()["running"] == 0


def test_a_lone_request_waits_for_company_and_leaves_when_the_batch_is_full() -> None:
    gate = Gate()
    gate.open()
    scheduler = SimpleScheduler(gate, max_batch=2, max_wait_ms=PATIENCE_S * 1000)
    started = time.monotonic()
    with running(scheduler, [work("a")]) as (inbox, outbox):
        inbox.put(work("b"))
        outbox.wait_for("done", "b")
    assert gate.batches == [["a", "b"]]
    assert time.monotonic() - started < PATIENCE_S / 2


def test_a_lone_request_leaves_alone_after_max_wait() -> None:
    gate = Gate()
    gate.open()
    started = time.monotonic()
    with running(SimpleScheduler(gate, max_batch=2, max_wait_ms=30), [work("a")]) as (_, outbox):
        outbox.wait_for("done", "a")
    assert gate.batches == [["a"]]
    assert time.monotonic() - started >= 0.03


def test_batches_run_at_once_up_to_max_concurrency() -> None:
    gate = Gate()
    scheduler = SimpleScheduler(gate, max_concurrency=2)
    with running(scheduler, [work("a"), work("b"), work("c")]) as (_, outbox):
        gate.until_entered()
        gate.until_entered()
        until(lambda: scheduler.stats()["requests"] == 3)
        assert sorted(name for batch in gate.batches for name in batch) == ["a", "b"]
        assert (scheduler.stats()["running"], scheduler.stats()["waiting"]) == (2, 1)
        gate.open()
        outbox.wait_for("done", "c")
    assert scheduler.stats()["running"] == 0


def test_an_aborted_request_that_waits_is_never_computed() -> None:
    gate = Gate()
    scheduler = SimpleScheduler(gate)
    with running(scheduler, [work("a"), work("b"), work("c"), Abort("b")]) as (_, outbox):
        gate.until_entered()
        until(lambda: scheduler.stats()["waiting"] == 1)
        gate.open()
        outbox.wait_for("done", "c")
    assert gate.batches == [["a"], ["c"]]
    assert outbox.of("b") == [Call("released", "b")]


def test_an_aborted_request_that_runs_is_let_go_of_when_it_is_computed() -> None:
    gate = Gate()
    scheduler = SimpleScheduler(gate)
    with running(scheduler, [work("a")]) as (inbox, outbox):
        gate.until_entered()
        for item in (Abort("a"), Abort("a"), work("b"), Abort("nobody")):
            inbox.put(item)
        outbox.wait_for("released", "nobody")
        assert outbox.of("a") == []
        assert scheduler.stats()["running"] == 1
        gate.open()
        outbox.wait_for("done", "b")
        assert scheduler.stats()["running"] == 0
    assert outbox.of("a") == [Call("released", "a")]


def test_work_that_asks_learns_that_it_was_aborted_while_it_runs() -> None:
    gate = Gate()
    told: list[bool] = []

    def compute(works: list[Work]) -> Sequence[Payload | OmniError]:
        told.append(works[0].stop())
        gate([])
        until(works[0].stop)
        told.append(True)
        return [MediaError("stopped midway")]

    gate.open()
    scheduler = SimpleScheduler(compute)
    with running(scheduler, [work("a")]) as (inbox, outbox):
        gate.until_entered()
        inbox.put(Abort("a"))
        outbox.wait_for("released", "a")
    assert outbox.of("a") == [Call("released", "a")]
    assert told == [False, True]


def test_a_result_that_is_an_error_fails_its_request_only() -> None:
    bad = MediaError("torn")
    scheduler = SimpleScheduler(
        lambda works: [bad if w.request_id == "bad" else {} for w in works], max_batch=2
    )
    with running(scheduler, [work("bad"), work("good")]) as (_, outbox):
        outbox.wait_for("done", "good")
    assert outbox.of("bad") == [Call("fail", "bad", bad)]


@pytest.mark.parametrize("error", [ValueError("boom"), MediaError("torn")])
def test_one_that_raises_in_a_batch_fails_alone(error: Exception) -> None:
    tried: list[list[str]] = []

    def compute(works: list[Work]) -> list[Payload]:
        tried.append([w.request_id for w in works])
        if any("bad" in w.payload for w in works):
            raise error
        return [{} for _ in works]

    scheduler = SimpleScheduler(compute, max_batch=3, max_wait_ms=PATIENCE_S * 1000)
    items = [work("a"), work("b", bad=True), work("c")]
    with running(scheduler, items) as (_, outbox):
        outbox.wait_for("done", "c")
    assert tried == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert outbox.of("a")[-1] == Call("done", "a")
    [failed] = outbox.of("b")
    if isinstance(error, OmniError):
        assert failed.value is error
    else:
        assert isinstance(failed.value, StageError)
        assert failed.value.message == "ValueError: boom"
        assert failed.value.__cause__ is error


def test_a_compute_that_returns_too_few_fails_its_request_and_goes_on() -> None:
    scheduler = SimpleScheduler(lambda works: [{}] * (works[0].request_id == "good"))
    with running(scheduler, [work("bad"), work("good")]) as (_, outbox):
        outbox.wait_for("done", "good")
    assert outbox.of("bad")[0].value.message == "0 results for a batch of 1"


def test_an_abort_while_waiting_for_company_leaves_the_worker_waiting() -> None:
    gate = Gate()
    gate.open()
    scheduler = SimpleScheduler(gate, max_batch=2, max_wait_ms=PATIENCE_S * 1000)
    with running(scheduler, [work("a")]) as (inbox, outbox):
        until(lambda: scheduler.stats()["waiting"] == 1)
        inbox.put(Abort("a"))
        until(lambda: scheduler.stats()["waiting"] == 0)
        inbox.put(work("b"))
        inbox.put(work("c"))
        outbox.wait_for("done", "c")
    assert gate.batches == [["b", "c"]]


def test_close_leaves_at_once_what_waits_for_company() -> None:
    gate = Gate()
    started = time.monotonic()
    scheduler = SimpleScheduler(gate, max_batch=2, max_wait_ms=PATIENCE_S * 1000)
    with running(scheduler, [work("a")]):
        until(lambda: scheduler.stats()["waiting"] == 1)
    assert gate.batches == []
    assert time.monotonic() - started < PATIENCE_S / 2


def test_an_idle_stage_keeps_nothing_of_what_it_computed() -> None:
    array = np.zeros(3)
    kept = weakref.ref(array)
    scheduler = SimpleScheduler(lambda works: [{} for _ in works])
    with running(scheduler) as (inbox, outbox):
        inbox.put(work("a", array=array))
        del array
        outbox.wait_for("done", "a")
        until(lambda: kept() is None)
