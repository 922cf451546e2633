"""New weights for all workers, one after the other, so that the others go on serving.

Fails closed: a worker of which nobody knows what it has is held, and serves nothing until an
operator says what to do. The journal knows before a worker does; after a crash it is what counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Coroutine
from typing import Annotated, Any, Final, Literal, TypeVar

import aiohttp
import msgspec
from aiohttp import web

from omni_router.admin import Route, body_of, require_one_process
from omni_router.errors import ConflictError
from omni_router.journal import Entry, Journal, Update
from omni_router.replies import json_response
from omni_router.router import Router
from omni_router.worker import Worker, WorkerState

log = logging.getLogger("omni.router")
Result = TypeVar("Result")

ROUTE: Final = "/admin/weights"
"""Of a worker."""
_OK: Final = 200
_NOT_ALL: Final = 409
"""Of an update that is not complete; the body says who has what."""
_MORE_S: Final = 600.0
"""Than a worker waits for its requests, until its answer no longer comes: weights are large."""
_RESOLVE: Final = "see GET /router/v1/weights, then POST /router/v1/weights/resolve"


class WeightsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /router/v1/weights."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    """As each worker knows it."""
    revision: Annotated[str, msgspec.Meta(pattern="^[!-~]{1,128}$")] | None = None
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0
    """For a worker's requests to end."""


class ResolveBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /router/v1/weights/resolve."""

    action: Literal["retry", "accept"]
    """Send the new weights again to all that do not have them; or let workers serve with what they
    have, which the operator has looked at."""
    worker: str | None = None
    """One of them; all if none is named."""


class Weights:
    """The updates of one router. Used on the event loop alone."""

    def __init__(self, router: Router, journal: Journal) -> None:
        self._router = router
        self._journal = journal
        self._busy = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        router.on_change.append(self.watch)

    async def update(self, body: WeightsBody) -> Update:
        """Load the weights into every worker; the update, however it ends.

        ConflictError while another one is not over, or is not resolved.
        """
        if self._busy.locked():
            raise ConflictError("Another weight update is under way.", code="update_running")
        before = self._journal.update
        if before is not None and before.outcome in ("running", "partial"):
            raise ConflictError(
                f"The update {before.id} is not resolved: {_RESOLVE}.", code="update_unresolved"
            )
        # A client that leaves ends nothing that was begun.
        return await asyncio.shield(self._task(self._update(body)))

    async def _update(self, body: WeightsBody) -> Update:
        async with self._busy:
            update = Update(
                id=f"upd_{uuid.uuid4().hex[:12]}",
                path=body.path,
                revision=body.revision,
                wait_s=body.wait_s,
                begun_at=time.time(),
                workers={worker.name: Entry() for worker in self._router.fleet},
            )
            await self._write(update)
            await self._send_to_all(update, list(self._router.fleet))
            return update

    async def resolve(self, body: ResolveBody) -> Update:
        """Do what the operator says about workers that are held; the update."""
        if self._busy.locked():
            raise ConflictError("A weight update is under way.", code="update_running")
        update = self._journal.update
        if update is None:
            raise ConflictError("There was no weight update.", code="no_update")
        fleet = self._router.fleet
        workers = list(fleet) if body.worker is None else [fleet.get(body.worker)]
        return await asyncio.shield(self._task(self._resolve(update, body, workers)))

    async def _resolve(self, update: Update, body: ResolveBody, workers: list[Worker]) -> Update:
        async with self._busy:
            match body.action:
                case "retry":
                    await self._send_to_all(update, [w for w in workers if self._lacks(w)])
                case "accept":
                    await self._accept(update, workers)
        return update

    def told(self) -> dict[str, Any]:
        """What operators are shown."""
        update = self._journal.update
        if update is None:
            return {"update": None}
        shown = msgspec.to_builtins(update)
        held = [w.name for w in self._router.fleet if w.state is WorkerState.HELD]
        return {"update": {**shown, "outcome": update.outcome}, "held": held}

    def watch(self, worker: Worker) -> None:
        """A worker has changed: one that is ready must have the weights of all, or is held."""
        if worker.state not in (WorkerState.READY, WorkerState.SUSPECT):
            return
        why = self._objection(worker)
        if why is None:
            return
        self._hold(worker, why)
        update = self._journal.update
        assert update is not None
        if update.outcome == "complete" and not self._busy.locked():
            self._task(self._bring_up(update, worker))

    def _objection(self, worker: Worker) -> str | None:
        """Why a worker must not serve; None if it may."""
        update = self._journal.update
        if update is None or update.outcome == "kept":
            return None
        entry = update.workers.get(worker.name)
        if entry is None:
            return f"it has not had the weights of update {update.id}"
        match entry.step:
            case "sent":
                return f"nobody knows whether it has the weights of update {update.id}: {_RESOLVE}"
            case "loaded" if entry.started_at != worker.started_at:
                return f"it has started again since update {update.id}, with other weights"
            case "kept" if update.outcome == "partial":
                return f"it kept its weights in update {update.id} ({entry.told}): {_RESOLVE}"
            case _:
                return None

    def _lacks(self, worker: Worker) -> bool:
        update = self._journal.update
        assert update is not None
        entry = update.workers.get(worker.name)
        return entry is None or entry.step != "loaded" or entry.started_at != worker.started_at

    async def _send_to_all(self, update: Update, workers: list[Worker]) -> None:
        """One after the other; the first that keeps its weights ends it while nobody else has new
        ones, so that a path that is wrong costs nothing."""
        for worker in workers:
            await self._send(update, worker)
            none_yet = not any(entry.step == "loaded" for entry in update.workers.values())
            if none_yet and update.workers[worker.name].step == "kept":
                for entry in update.workers.values():
                    entry.step = "kept" if entry.step == "pending" else entry.step
                await self._write(update)
                break
        for worker in workers:
            self._settle(worker)
        log.info("weight update %s: %s", update.id, update.outcome)

    async def _send(self, update: Update, worker: Worker) -> None:
        entry = update.workers.setdefault(worker.name, Entry())
        self._hold(worker, f"it loads the weights of update {update.id}")
        entry.step, entry.told = "sent", ""
        await self._write(update)
        try:
            status, said = await self._post(update, worker)
        except (aiohttp.ClientError, TimeoutError) as error:
            entry.told = f"{type(error).__name__}: {error}"
            log.error("worker %s: nobody knows which weights it has: %s", worker.name, entry.told)
            await self._write(update)
            return
        if status == _OK:
            entry.step, entry.started_at = "loaded", worker.started_at
        else:
            entry.step, entry.told = "kept", f"{status}: {said[:500]}"
        await self._write(update)

    async def _post(self, update: Update, worker: Worker) -> tuple[int, str]:
        body = {"path": update.path, "wait_s": update.wait_s}
        if update.revision is not None:
            body["revision"] = update.revision
        key = self._router.keys.worker_admin
        async with self._router.session.post(
            worker.url + ROUTE,
            json=body,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=aiohttp.ClientTimeout(total=update.wait_s + _MORE_S),
            allow_redirects=False,
        ) as reply:
            return reply.status, (await reply.content.read(4096)).decode("utf-8", "replace")

    def _settle(self, worker: Worker) -> None:
        """Let it serve again, or say why not."""
        if worker.state is not WorkerState.HELD or worker not in set(self._router.fleet):
            return
        why = self._objection(worker)
        if why is None:
            self._router.change(worker, WorkerState.STARTING, "its weights are known")
            self._router.look(worker)
        else:
            self._hold(worker, why)

    async def _accept(self, update: Update, workers: list[Worker]) -> None:
        for worker in workers:
            if worker.state is WorkerState.HELD:
                log.warning("worker %s serves with the weights it has: accepted", worker.name)
                update.workers[worker.name] = Entry(
                    step="loaded", started_at=worker.started_at, told="accepted by an operator"
                )
        await self._write(update)
        for worker in workers:
            self._settle(worker)

    async def _bring_up(self, update: Update, worker: Worker) -> None:
        """A worker that came, or came again, gets what the others have."""
        async with self._busy:
            if self._journal.update is update and self._objection(worker) is not None:
                await self._send(update, worker)
                self._settle(worker)

    def _hold(self, worker: Worker, why: str) -> None:
        self._router.change(worker, WorkerState.HELD, why)

    async def _write(self, update: Update) -> None:
        await asyncio.to_thread(self._journal.write, update)

    def _task(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """What ends with the router alone."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def routes(router: Router, weights: Weights | None) -> list[Route]:
    """What operators ask and say; without a journal, why nothing can be updated."""

    def there() -> Weights:
        require_one_process(router)
        if weights is None:
            raise ConflictError(
                "Weight updates need a journal: start the router with --journal FILE.",
                code="no_journal",
            )
        return weights

    async def show(request: web.BaseRequest, name: str) -> web.Response:
        """GET weights: the last update, and who is held."""
        return json_response(there().told())

    async def update(request: web.BaseRequest, name: str) -> web.Response:
        """POST weights: once every worker has said what it has."""
        await there().update(await body_of(request, WeightsBody))
        return _answer(there())

    async def resolve(request: web.BaseRequest, name: str) -> web.Response:
        """POST weights/resolve: what becomes of workers that are held."""
        await there().resolve(await body_of(request, ResolveBody))
        return _answer(there())

    return [
        Route("GET", "weights", show),
        Route("POST", "weights", update),
        Route("POST", "weights/resolve", resolve),
    ]


def _answer(weights: Weights) -> web.Response:
    told = weights.told()
    return json_response(told, _OK if told["update"]["outcome"] == "complete" else _NOT_ALL)
