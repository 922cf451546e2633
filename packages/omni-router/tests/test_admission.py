"""Places, and the queue before them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omni_router.admission import Admission, Bounds
from omni_router.errors import NotFoundError, UnavailableError
from omni_router.worker import Worker


def admission(**more: Any) -> Admission:
    bounds: dict[str, Any] = {"max_in_flight": 10, "max_queue": 4, "queue_timeout_s": 5.0}
    return Admission(Bounds(**bounds | more))


def of(worker: Worker) -> Any:
    return lambda: None if worker.is_full else worker


async def waiting(places: Admission, worker: Worker, priority: int = 0) -> asyncio.Task[Worker]:
    task = asyncio.create_task(places.enter(of(worker), priority))
    await asyncio.sleep(0)
    return task


async def test_places_are_counted() -> None:
    places, worker = admission(), Worker("a", "http://a", 2)
    assert await places.enter(of(worker)) is worker
    assert (worker.in_flight, places.in_flight, worker.requests) == (1, 1, 1)
    places.leave(worker)
    assert (worker.in_flight, places.in_flight, worker.requests) == (0, 0, 1)
    await places.empty()


async def test_who_waits_gets_the_next_place_in_order() -> None:
    places, worker = admission(), Worker("a", "http://a", 1)
    await places.enter(of(worker))
    first, second = await waiting(places, worker), await waiting(places, worker)
    assert places.queued == 2
    places.leave(worker)
    assert await first is worker
    assert not second.done()
    places.leave(worker)
    assert await second is worker
    assert places.queued == 0


async def test_priority_goes_first() -> None:
    places, worker = admission(), Worker("a", "http://a", 1)
    await places.enter(of(worker))
    low, high = await waiting(places, worker), await waiting(places, worker, 5)
    places.leave(worker)
    assert await high is worker
    assert not low.done()
    low.cancel()


async def test_the_bound_of_all_holds_whatever_workers_could_take() -> None:
    places, worker = admission(max_in_flight=1), Worker("a", "http://a", 9)
    await places.enter(of(worker))
    task = await waiting(places, worker)
    assert not task.done()
    places.leave(worker)
    assert await task is worker


async def test_a_full_queue_refuses_at_once() -> None:
    places, worker = admission(max_queue=1), Worker("a", "http://a", 1)
    await places.enter(of(worker))
    task = await waiting(places, worker)
    with pytest.raises(UnavailableError, match="1 requests wait") as caught:
        await places.enter(of(worker))
    assert caught.value.code == "overloaded"
    assert caught.value.headers == {"Retry-After": "1"}
    task.cancel()


async def test_the_wait_has_an_end() -> None:
    places, worker = admission(queue_timeout_s=0.01), Worker("a", "http://a", 1)
    await places.enter(of(worker))
    with pytest.raises(UnavailableError) as caught:
        await places.enter(of(worker))
    assert caught.value.code == "queue_timeout"
    assert places.queued == 0


async def test_who_leaves_the_queue_takes_no_place() -> None:
    places, worker = admission(), Worker("a", "http://a", 1)
    await places.enter(of(worker))
    gone, next_one = await waiting(places, worker), await waiting(places, worker)
    gone.cancel()
    await asyncio.sleep(0)
    places.leave(worker)
    assert await next_one is worker
    assert worker.in_flight == 1


async def test_a_place_that_comes_as_its_waiter_leaves_is_given_on() -> None:
    places, worker = admission(), Worker("a", "http://a", 1)
    await places.enter(of(worker))
    gone, next_one = await waiting(places, worker), await waiting(places, worker)
    places.leave(worker)  # the place is gone's now, which has not run yet
    gone.cancel()
    assert await asyncio.wait_for(next_one, 1) is worker
    assert (worker.in_flight, places.in_flight) == (1, 1)


async def test_who_waits_for_a_busy_model_does_not_hold_up_others() -> None:
    places, busy, free = admission(), Worker("a", "http://a", 1), Worker("b", "http://b", 1)
    await places.enter(of(busy))
    stuck = await waiting(places, busy)
    assert await asyncio.wait_for(places.enter(of(free)), 1) is free
    stuck.cancel()


async def test_who_waits_is_told_when_nobody_can_answer_any_more() -> None:
    places, worker = admission(), Worker("a", "http://a", 1)
    await places.enter(of(worker))
    is_gone = False

    def choose() -> Worker | None:
        if is_gone:
            raise NotFoundError("gone")
        return None

    task = asyncio.create_task(places.enter(choose))
    await asyncio.sleep(0)
    is_gone = True
    places.serve()
    with pytest.raises(NotFoundError):
        await task
    assert places.queued == 0
