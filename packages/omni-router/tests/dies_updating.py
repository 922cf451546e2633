"""`python dies_updating.py JOURNAL WHERE COUNT NAME=URL ...`: updates weights, and kills itself at
the COUNT-th write of the journal: before it, in the middle or after it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from weighted import ADMIN_KEY

from omni_router.journal import Book, Journal
from omni_router.keys import Keys
from omni_router.router import Router
from omni_router.settings import Settings, WorkerSpec
from omni_router.weight_calls import WeightsBody
from omni_router.weights import Weights
from omni_router.worker import WorkerState


class DyingJournal(Journal):
    """A `Journal` that ends its process."""

    where, count = "never", 0

    def write(self, book: Book) -> None:
        """See `Journal`."""
        self.count -= 1
        self._die("before")
        super().write(book)
        self._die("after")

    def _move(self, unfinished: Path) -> None:
        self._die("middle")
        super()._move(unfinished)

    def _die(self, where: str) -> None:
        if self.count == 0 and self.where == where:
            os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    path, where, count, *named = sys.argv[1:]
    specs = [WorkerSpec(name=name, url=url) for name, _, url in (n.partition("=") for n in named)]
    journal = DyingJournal(Path(path))
    journal.where, journal.count = where, int(count)
    router = Router(
        Settings(workers=tuple(specs), probe_interval_s=0.02), Keys(worker_admin=ADMIN_KEY)
    )
    weights = Weights(router, journal)
    await router.start()
    while any(worker.state is not WorkerState.READY for worker in router.fleet):
        await asyncio.sleep(0.005)
    await weights.update(WeightsBody(path="/new"))


if __name__ == "__main__":
    asyncio.run(main())
