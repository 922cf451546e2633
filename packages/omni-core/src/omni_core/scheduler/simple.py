"""The loop of stateless stages: take a batch, call a function, send the results on.

Knows batching, costs and concurrency. Knows nothing of what the function computes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias, assert_never

import msgspec

from omni_core.errors import OmniError, StageError, as_omni_error
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Close, Inbox, InboxItem, Outbox, Work
from omni_core.types import Payload

Compute: TypeAlias = Callable[[list[Work]], Sequence[Payload | OmniError]]


class SimpleScheduler:
    """Runs `compute` on batches of up to `max_batch` requests, `max_concurrency` batches at once.

    A batch also ends before its summed `cost` exceeds `max_cost`; one request always goes. Order is
    kept. A lone request waits at most `max_wait_ms` for company. An OmniError in the result fails
    that request; an exception fails the batch, whose members are then tried one by one.
    """

    def __init__(
        self,
        compute: Compute,
        *,
        max_batch: int = 1,
        max_wait_ms: float = 0.0,
        max_concurrency: int = 1,
        cost: Callable[[Work], float] = lambda work: 0.0,
        max_cost: float = math.inf,
        more_stats: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`more_stats` gives the numbers of what `compute` belongs to, which `stats` adds."""
        self._compute = compute
        self._max_batch = max_batch
        self._cost = cost
        self._max_cost = max_cost
        self._more_stats = more_stats
        self._max_wait_s = max_wait_ms / 1000
        self._max_concurrency = max_concurrency
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Work, float]] = deque()
        """Each with its cost."""
        self._running: set[str] = set()
        self._aborted: set[str] = set()
        """Those of `_running` whose result nobody wants."""
        self._closing = False
        self._requests = 0
        self._batches = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Feed the workers until `Close`."""
        workers = [
            threading.Thread(target=self._work, args=(outbox,), daemon=True)
            for _ in range(self._max_concurrency)
        ]
        for worker in workers:
            worker.start()
        while not self._closing:
            self._receive(inbox.get(), outbox)
        for worker in workers:
            worker.join()

    def stats(self) -> dict[str, float]:
        """Requests entered, batches run, what is held now, and `more_stats`."""
        return {
            "requests": self._requests,
            "batches": self._batches,
            "waiting": len(self._waiting),
            "running": len(self._running),
            **self._more_stats(),
        }

    def _receive(self, item: InboxItem | None, outbox: Outbox) -> None:
        with self._changed:
            match item:
                case Work():
                    self._enter(item, outbox)
                    self._changed.notify()  # one worker: to wake them all costs more than the work
                case Abort():
                    self._forget(item.request_id, outbox)
                case Close():
                    self._closing = True
                    self._changed.notify_all()
                case Chunk() | ChunksDone() | None:
                    pass  # a stateless stage has no streams
                case _:
                    assert_never(item)

    def _enter(self, work: Work, outbox: Outbox) -> None:
        self._requests += 1
        try:
            self._waiting.append((work, self._cost(work)))
        except Exception as exc:  # noqa: BLE001 - request edge: one bad request fails alone
            outbox.fail(work.request_id, as_omni_error(exc))

    def _forget(self, request_id: str, outbox: Outbox) -> None:
        """What is being computed is let go of once that has come to its end, which `Work.stop` may
        bring about."""
        if request_id in self._running:
            self._aborted.add(request_id)
            return
        self._waiting = deque(w for w in self._waiting if w[0].request_id != request_id)
        outbox.released(request_id)

    def _work(self, outbox: Outbox) -> None:
        while self._serve(self._take_batch(), outbox):
            pass  # and keep nothing of a batch, perhaps another process's memory, meanwhile

    def _serve(self, batch: list[Work], outbox: Outbox) -> bool:
        if not batch:
            return False
        for work, result in zip(batch, self._results(batch), strict=True):
            self._publish(work, result, outbox)
        return True

    def _take_batch(self) -> list[Work]:
        """The next batch; empty once the stage closes."""
        with self._changed:
            while not self._closing:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                self._wait_for_company()
                if self._waiting and not self._closing:  # not aborted or taken meanwhile
                    batch = [
                        self._begun(self._waiting.popleft()[0]) for _ in range(self._batch_size())
                    ]
                    self._running.update(work.request_id for work in batch)
                    self._batches += 1
                    if self._waiting:
                        self._changed.notify()  # whoever was woken for these may have joined us
                    return batch
        return []

    def _begun(self, work: Work) -> Work:
        stop = partial(self._aborted.__contains__, work.request_id)
        return msgspec.structs.replace(work, stop=stop)

    def _batch_size(self) -> int:
        """How many of those that wait go together."""
        total = 0.0
        for size, (_, cost) in enumerate(islice(self._waiting, self._max_batch)):
            total += cost
            if size and total > self._max_cost:
                return size
        return min(self._max_batch, len(self._waiting))

    def _has_room(self) -> bool:
        """Whether all that wait go together, and one more might."""
        return self._batch_size() == len(self._waiting) < self._max_batch

    def _wait_for_company(self) -> None:
        deadline = time.monotonic() + self._max_wait_s
        while self._waiting and self._has_room() and not self._closing:
            if not self._changed.wait(timeout=max(0.0, deadline - time.monotonic())):
                return

    def _results(self, batch: list[Work]) -> Sequence[Payload | OmniError]:
        try:
            results = self._compute(batch)
            if len(results) != len(batch):
                raise StageError(f"{len(results)} results for a batch of {len(batch)}")
        except Exception as exc:  # noqa: BLE001 - request edge: one bad request fails alone
            if len(batch) > 1:
                return [result for work in batch for result in self._results([work])]
            return [as_omni_error(exc)]
        return results

    def _publish(self, work: Work, result: Payload | OmniError, outbox: Outbox) -> None:
        with self._changed:
            self._running.discard(work.request_id)
            aborted = work.request_id in self._aborted
            self._aborted.discard(work.request_id)
        if aborted:
            outbox.released(work.request_id)
            return
        if isinstance(result, OmniError):
            outbox.fail(work.request_id, result)
            return
        outbox.pass_on(work.request_id, result)
