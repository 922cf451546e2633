"""The loop of stateless stages: take a batch, call a function, send the results on.

Knows batching and concurrency. Knows nothing of what the function computes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias, assert_never

from omni_core.errors import OmniError, StageError, as_omni_error
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Close, Inbox, Outbox, Work
from omni_core.types import Payload

Compute: TypeAlias = Callable[[list[Work]], Sequence[Payload | OmniError]]


class SimpleScheduler:
    """Runs `compute` on batches of up to `max_batch` requests, `max_concurrency` batches at once.

    A lone request waits at most `max_wait_ms` for company. An OmniError in the result fails that
    request; an exception fails the batch, whose members are then tried one by one.
    """

    def __init__(
        self,
        compute: Compute,
        *,
        max_batch: int = 1,
        max_wait_ms: float = 0.0,
        max_concurrency: int = 1,
    ) -> None:
        self._compute = compute
        self._max_batch = max_batch
        self._max_wait_s = max_wait_ms / 1000
        self._max_concurrency = max_concurrency
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._running: set[str] = set()
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
            item = inbox.get()
            with self._changed:
                match item:
                    case Work():
                        self._requests += 1
                        self._waiting.append(item)
                    case Abort():
                        self._forget(item.request_id)
                    case Close():
                        self._closing = True
                    case Chunk() | ChunksDone() | None:
                        pass  # a stateless stage has no streams
                    case _:
                        assert_never(item)
                self._changed.notify_all()
        for worker in workers:
            worker.join()

    def stats(self) -> dict[str, float]:
        """Requests entered, batches run, and what is held now."""
        return {
            "requests": self._requests,
            "batches": self._batches,
            "waiting": len(self._waiting),
            "running": len(self._running),
        }

    def _forget(self, request_id: str) -> None:
        self._waiting = deque(w for w in self._waiting if w.request_id != request_id)
        self._running.discard(request_id)

    def _work(self, outbox: Outbox) -> None:
        while batch := self._take_batch():
            for work, result in zip(batch, self._results(batch), strict=True):
                self._publish(work, result, outbox)

    def _take_batch(self) -> list[Work]:
        """The next batch; empty once the stage closes."""
        with self._changed:
            while not self._closing:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                self._wait_for_company()
                if self._waiting and not self._closing:  # not aborted or taken meanwhile
                    size = min(self._max_batch, len(self._waiting))
                    batch = [self._waiting.popleft() for _ in range(size)]
                    self._running.update(work.request_id for work in batch)
                    self._batches += 1
                    return batch
        return []

    def _wait_for_company(self) -> None:
        deadline = time.monotonic() + self._max_wait_s
        while 0 < len(self._waiting) < self._max_batch and not self._closing:
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
            if work.request_id not in self._running:
                return  # aborted meanwhile
            self._running.discard(work.request_id)
        if isinstance(result, OmniError):
            outbox.fail(work.request_id, result)
            return
        outbox.send(work.request_id, result)
        outbox.done(work.request_id)
