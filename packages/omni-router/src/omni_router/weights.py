"""New weights for all workers, one after the other, so that the others go on serving.

Fails closed: once some worker serves new weights, and no update is under way, nobody serves others,
and a worker of which nobody knows what it has serves nothing until an operator says what to do. The
journal knows before a worker does; after a crash it is what counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from omni_router.errors import ConflictError, RouterError
from omni_router.journal import Book, Entry, Journal, Update
from omni_router.router import Router
from omni_router.weight_calls import ResolveBody, WeightsBody, send
from omni_router.worker import Worker, WorkerState

log = logging.getLogger("omni.router")
Result = TypeVar("Result")

_SERVING: Final = (WorkerState.READY, WorkerState.SUSPECT)
_RESOLVE: Final = "see GET /router/v1/weights, then POST /router/v1/weights/resolve"


class Weights:
    """The updates of one router. Used on the event loop alone."""

    def __init__(self, router: Router, journal: Journal) -> None:
        self._router = router
        self._journal = journal
        self._busy = asyncio.Lock()
        self._sending = False
        """Workers are asked one after the other: those behind serve what they have."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last: Update | None = journal.book.open or journal.book.served
        self._drained: set[str] = set()
        """Workers that an operator drains, and that are held meanwhile."""
        router.on_change.append(self.watch)

    async def update(self, body: WeightsBody) -> Update:
        """Load the weights into every worker; the update, however it ends.

        ConflictError while another one is not over, or is not resolved.
        """
        # A client that leaves ends nothing that was begun.
        return await asyncio.shield(self._task(self._alone(lambda: self._update(body))))

    async def resolve(self, body: ResolveBody) -> Update:
        """Do what the operator says about an update that is not complete; the update."""
        return await asyncio.shield(self._task(self._alone(lambda: self._resolve(body))))

    def told(self) -> dict[str, Any]:
        """What operators are shown."""
        held = {w.name: w.why for w in self._router.fleet if w.state is WorkerState.HELD}
        served, last = self._journal.book.served, self._last
        return {
            "update": None
            if last is None
            else {**msgspec.to_builtins(last), "outcome": last.outcome},
            "served": None if served is None else served.path,
            "held": held,
        }

    def watch(self, worker: Worker) -> None:
        """A worker has changed: one that would serve must have the weights of all, or is held."""
        if worker.state not in _SERVING:
            return
        why = self._objection(worker)
        if why is None:
            return
        self._hold(worker, why)
        if not self._busy.locked():
            self._task(self._bring_up())

    async def _alone(self, work: Callable[[], Coroutine[Any, Any, Update]]) -> Update:
        if self._busy.locked():
            raise ConflictError("A weight update is under way.", code="update_running")
        async with self._busy:
            update = await work()
        await self._bring_up()  # those that came meanwhile
        return update

    async def _update(self, body: WeightsBody) -> Update:
        if (before := self._journal.book.open) is not None:
            raise ConflictError(
                f"The update {before.id} is not resolved: {_RESOLVE}.", code="update_unresolved"
            )
        workers = list(self._router.fleet)
        if not workers:
            raise ConflictError("There is no worker.", code="no_worker")
        update = Update(
            id=f"upd_{uuid.uuid4().hex[:12]}",
            path=body.path,
            revision=body.revision,
            wait_s=body.wait_s,
            begun_at=time.time(),
            workers={worker.name: Entry() for worker in workers},
        )
        await self._write(update)
        await self._send_to_all(update, workers)
        return update

    async def _resolve(self, body: ResolveBody) -> Update:
        update = self._journal.book.open or self._journal.book.served
        if update is None:
            raise ConflictError("There was no weight update.", code="no_update")
        fleet = {worker.name: worker for worker in self._router.fleet}
        for gone in set(update.workers) - set(fleet):
            del update.workers[gone]  # it serves nobody
        named = (
            list(fleet.values()) if body.worker is None else [self._router.fleet.get(body.worker)]
        )
        if body.action == "retry":
            await self._send_to_all(update, [w for w in named if not self._has(update, w)])
            return update
        for worker in named:
            if not self._has(update, worker):
                log.warning("worker %s serves with the weights it has: accepted", worker.name)
                update.workers[worker.name] = Entry(step="accepted", started_at=worker.started_at)
        await self._close_or_write(update)
        self._settle_all()
        return update

    async def _send_to_all(self, update: Update, workers: list[Worker]) -> None:
        """One after the other. While nobody has the new weights, the first that keeps its own ends
        it: a path that is wrong costs nothing."""
        self._sending = True
        try:
            for worker in workers:
                await self._send(update, worker)
                if not update.is_served and update.workers[worker.name].step == "kept":
                    for entry in update.workers.values():
                        entry.step = "kept" if entry.step == "pending" else entry.step
                    break
        finally:
            self._sending = False
        await self._close_or_write(update)
        self._settle_all()
        log.info("weight update %s: %s", update.id, update.outcome)

    async def _send(self, update: Update, worker: Worker) -> None:
        """One worker's part; the journal knows before, and after."""
        entry = update.workers.setdefault(worker.name, Entry())
        before = entry.step
        self._hold(worker, f"it loads the weights of {update.path}")
        entry.step = "sent"
        await self._write(update)
        said = await send(self._router, worker, update)
        entry.told = said.told
        match said.result:
            case "loaded":
                entry.step, entry.started_at = "loaded", said.started_at
            case "kept" if before != "sent":
                entry.step = "kept"
            case "unsent":
                entry.step = before
            case _:  # of one of which nothing was known, a refusal says nothing of what it has
                log.error("nobody knows which weights %s has: %s", worker.name, said.told)
        await self._write(update)

    def _objection(self, worker: Worker) -> str | None:
        """Why a worker must not serve; None if it may."""
        now, served = self._journal.book.open, self._journal.book.served
        if now is not None:
            entry = now.workers.get(worker.name)
            if entry is not None and entry.step == "sent":
                return f"nobody knows whether it has the weights of {now.path}: {_RESOLVE}"
            if now.is_served and not self._has(now, worker):
                if self._sending:
                    return None  # its turn will come
                told = f" ({entry.told})" if entry is not None and entry.told else ""
                return f"others have the weights of {now.path}{told}: {_RESOLVE}"
            if now.is_served:
                return None
        if served is not None and not self._has(served, worker):
            return f"it is new, or has started again, and has not had the weights of {served.path}"
        return None

    def _has(self, update: Update, worker: Worker) -> bool:
        entry = update.workers.get(worker.name)
        if entry is None or entry.step not in ("loaded", "accepted"):
            return False
        return entry.started_at == worker.started_at

    async def _bring_up(self) -> None:
        """Workers that came, or came again, get what the others have; of those that were asked
        before, an operator decides."""
        async with self._busy:
            for worker in list(self._router.fleet):
                book = self._journal.book
                update = book.open if book.open is not None and book.open.is_served else book.served
                if update is None or worker.state is not WorkerState.HELD:
                    continue
                entry = update.workers.get(worker.name, Entry())
                is_new = entry.step in ("pending", "loaded", "accepted")
                if is_new and not self._has(update, worker):
                    update.workers[worker.name] = Entry()
                    await self._send_to_all(update, [worker])

    async def _close_or_write(self, update: Update) -> None:
        """An update that is complete is what is served; one that all refused is over."""
        match update.outcome:
            case "complete":
                self._last = update
                await self._keep(Book(served=update))
            case "kept":
                self._last = update
                await self._keep(Book(served=self._journal.book.served))
            case _:
                await self._write(update)

    async def _write(self, update: Update) -> None:
        self._last = update
        await self._keep(Book(served=self._journal.book.served, open=update))

    async def _keep(self, book: Book) -> None:
        try:
            await asyncio.to_thread(self._journal.write, book)
        except OSError as exc:
            raise RouterError(
                f"The journal cannot be written ({exc.strerror}); nothing is sent to a worker "
                "without it. Mend that, then resolve the update.",
                code="journal_failed",
            ) from exc

    def _settle_all(self) -> None:
        for worker in list(self._router.fleet):
            self._settle(worker)

    def _settle(self, worker: Worker) -> None:
        """Let it serve again, or say why not."""
        why = self._objection(worker)
        if why is not None:
            self._hold(worker, why)
        elif worker.state is WorkerState.HELD:
            was_drained = worker.name in self._drained
            self._drained.discard(worker.name)
            state = WorkerState.DRAINING if was_drained else WorkerState.STARTING
            self._router.change(worker, state, "its weights are known")
            self._router.look(worker)

    def _hold(self, worker: Worker, why: str) -> None:
        if worker.state is WorkerState.DRAINING:
            self._drained.add(worker.name)
        self._router.change(worker, WorkerState.HELD, why)

    def _task(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """What ends with the router alone."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
