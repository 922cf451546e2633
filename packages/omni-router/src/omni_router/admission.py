"""Places: how many requests are with workers at once, and who waits for one, and how long.

A waiter of higher priority goes first, of equals the older. Knows workers and needs. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from omni_router.errors import RouterError, UnavailableError
from omni_router.worker import Worker

_RETRY_S: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one router process."""

    max_in_flight: int
    """Requests with all workers together."""
    max_queue: int
    queue_timeout_s: float


@dataclass(slots=True, eq=False)
class _Waiter:
    choose: Callable[[], Worker | None]
    order: tuple[int, int]
    place: asyncio.Future[Worker]


class Admission:
    """The places of one router. Used on the event loop alone."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._numbers = count()
        self._waiting: list[_Waiter] = []
        self.in_flight = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def queued(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    async def enter(self, choose: Callable[[], Worker | None], priority: int = 0) -> Worker:
        """The worker that `choose` finds, once there is a place at it; `leave` gives it back.

        RouterError of `choose`, or UnavailableError if the queue is full or took too long.
        """
        # Whoever waits cannot be served now, or would be: what is free is for this one.
        if (worker := self._take(choose)) is not None:
            return worker
        if len(self._waiting) >= self._bounds.max_queue:
            raise UnavailableError(
                f"All places are taken and {len(self._waiting)} requests wait; retry in a moment.",
                code="overloaded",
                retry_after_s=_RETRY_S,
            )
        waiter = _Waiter(
            choose,
            (-priority, next(self._numbers)),
            asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(waiter)
        self._waiting.sort(key=lambda one: one.order)
        return await self._wait(waiter)

    def leave(self, worker: Worker) -> None:
        """A request has ended."""
        worker.in_flight -= 1
        self.in_flight -= 1
        if not self.in_flight:
            self._empty.set()
        self.serve()

    async def empty(self) -> None:
        """Wait until no request is with a worker."""
        await self._empty.wait()

    def serve(self) -> None:
        """Give places to those that wait; call it when workers come, go or get free."""
        for waiter in list(self._waiting):
            if self.in_flight >= self._bounds.max_in_flight:
                return
            if waiter.place.done():
                continue
            try:
                worker = self._take(waiter.choose)
            except RouterError as error:
                waiter.place.set_exception(error)
            else:
                if worker is not None:
                    waiter.place.set_result(worker)

    async def _wait(self, waiter: _Waiter) -> Worker:
        try:
            async with asyncio.timeout(self._bounds.queue_timeout_s):
                return await asyncio.shield(waiter.place)
        except TimeoutError:
            if (worker := _given(waiter.place)) is not None:
                return worker
            raise UnavailableError(
                f"No place became free within {self._bounds.queue_timeout_s:g} s; retry later.",
                code="queue_timeout",
                retry_after_s=_RETRY_S,
            ) from None
        except asyncio.CancelledError:
            if (worker := _given(waiter.place)) is not None:
                self.leave(worker)
            raise
        finally:
            self._waiting.remove(waiter)

    def _take(self, choose: Callable[[], Worker | None]) -> Worker | None:
        if self.in_flight >= self._bounds.max_in_flight:
            return None
        worker = choose()
        if worker is not None:
            worker.in_flight += 1
            worker.requests += 1
            self.in_flight += 1
            self._empty.clear()
        return worker


def _given(place: asyncio.Future[Worker]) -> Worker | None:
    """What came into a place as its waiter gave up."""
    if not place.done() or place.cancelled() or place.exception():
        return None
    return place.result()
