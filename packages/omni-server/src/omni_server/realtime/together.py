"""Short work of many, off the event loop: what comes while a thread is busy goes to it together.

Waking a thread costs as much as the work of one session; under load it is woken once for many.
Knows threads and futures. Knows nothing of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
_Outcome: TypeAlias = tuple[Any, Exception | None]


class Runner(Protocol):
    """Runs work somewhere else."""

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises."""


class Together:
    """A thread that is given all that waits, each time it is free. Used on one event loop."""

    def __init__(self, name: str) -> None:
        self._executor: Executor = ThreadPoolExecutor(1, name)
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._is_busy = False

    async def run(self, work: Callable[[], T]) -> T:
        """See `Runner`; in the order in which it is asked for."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, future))
        if not self._is_busy:
            self._begin()
        return await future

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        self._is_busy = True
        batch, self._waiting = self._waiting, []
        works = [work for work, _ in batch]
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._executor, _run_all, works)
        running.add_done_callback(lambda done: self._end(batch, done))

    def _end(
        self,
        batch: list[tuple[Callable[[], Any], asyncio.Future[Any]]],
        done: asyncio.Future[list[_Outcome]],
    ) -> None:
        outcomes = [] if done.cancelled() else done.result()
        for (_, future), (result, error) in zip(batch, outcomes, strict=False):
            if future.done():  # whoever asked has left
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        self._is_busy = False
        if self._waiting:
            self._begin()


def _run_all(works: list[Callable[[], Any]]) -> list[_Outcome]:
    return [_outcome(work) for work in works]


def _outcome(work: Callable[[], Any]) -> _Outcome:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001  # given to whoever asked for the work
        return None, error
