"""A request that is for a worker: read as far as routing needs, given a place, asked, and asked
elsewhere if the worker has not begun it.

Retries are few, with a growing pause, and only before the first byte.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from random import Random
from typing import Final, TypeAlias

from aiohttp import web
from multidict import CIMultiDict

from omni_router import listing
from omni_router.errors import RouterError, UnavailableError
from omni_router.needs import REALTIME, Needs, of_path
from omni_router.proxy.bodies import read_body, read_whole
from omni_router.proxy.exchange import Asked, Exchange, NotBegunError, WorkerLostError
from omni_router.proxy.headers import REQUEST_ID, to_worker
from omni_router.proxy.websocket import Tunnel
from omni_router.record import Record
from omni_router.replies import json_response
from omni_router.router import Router
from omni_router.settings import MIB
from omni_router.worker import Worker

MODELS: Final = "/v1/models"
VOICES: Final = "/v1/audio/voices"
CLIENT_CLOSED: Final = 499
BROKEN_OFF: Final = 502
_OK: Final = 200
_NOT_FOUND: Final = 404
_ABOUT_BYTES: Final = 64 * 1024
"""Of the body of a request about something that one worker has."""
_PAUSE_S: Final = 0.05
"""Before the second try; each that follows waits twice as long."""
Try: TypeAlias = Callable[[Worker], Awaitable[web.StreamResponse]]


class Forward:
    """Sends requests to workers, and answers back."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._random = Random()
        self.running: dict[str, set[Worker]] = {}
        """{request id: who has it}"""

    async def http(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        """The answer of a worker; RouterError if none gives one."""
        settings, fleet = self._router.settings, self._router.fleet
        body = await read_body(
            request,
            of_path(record.path, request.headers, {}),
            max_bytes=settings.max_body_mib * MIB,
            field=_field(record.path, fleet.models_differ),
        )
        asked = Asked(request.method, request.raw_path, _headers(request), body)

        async def once(worker: Worker) -> web.StreamResponse:
            def heard(headers: Mapping[str, str]) -> None:
                record.head_s = time.monotonic()
                record.request_id = headers.get(REQUEST_ID, record.request_id)
                self.running.setdefault(record.request_id, set()).add(worker)

            exchange = Exchange(self._router.session, worker, asked, request, heard)
            try:
                return await exchange.run()
            finally:
                if exchange.lost:
                    self._lost(worker, exchange.lost, record)

        try:
            return await self._tries(once, body.needs, record)
        finally:
            body.close()

    async def websocket(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        """A session with a worker, from its handshake to its close."""
        query = request.query if record.path == REALTIME else {}
        headers = _headers(request)
        settings = self._router.settings

        async def once(worker: Worker) -> web.StreamResponse:
            tunnel = Tunnel(
                worker,
                max_message_bytes=settings.max_message_mib * MIB,
                open_timeout_s=settings.connect_timeout_s,
            )
            try:
                return await tunnel.run(request, request.raw_path, headers)
            finally:
                if tunnel.lost:
                    self._lost(worker, tunnel.lost, record)

        return await self._tries(once, of_path(record.path, request.headers, query), record)

    async def models(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        """The models of all, or the one that the path names, if a worker says that the client may
        see them."""
        response = await self.http(request, record)
        if response.status not in (_OK, _NOT_FOUND) or request.method != "GET":
            return response
        ready, named = self._router.fleet.ready(), record.path.removeprefix(MODELS).strip("/")
        if named:
            return json_response(listing.model(ready, named))
        return json_response({"object": "list", "data": listing.models(ready)})

    async def cancel(
        self, request: web.BaseRequest, record: Record, request_id: str
    ) -> web.StreamResponse:
        """Whoever has a request ends it; nobody waits for a place to say so."""
        return await self.whoever_knows(request, record, self.running.get(request_id, ()))

    async def whoever_knows(
        self, request: web.BaseRequest, record: Record, workers: Collection[Worker] = ()
    ) -> web.StreamResponse:
        """The first answer of `workers`, or else of all, that is no 404."""
        body = await read_whole(request, _ABOUT_BYTES)
        asked = Asked(request.method, request.raw_path, _headers(request), body)
        last: web.StreamResponse | None = None
        for worker in list(workers) or self._router.fleet.asked():
            try:
                last = await Exchange(self._router.session, worker, asked, request).run()
            except NotBegunError as error:
                self._router.fault(worker, str(error), is_certain=error.is_fault)
                last = error.answer or last
                continue
            record.worker = worker.name
            if last.status != _NOT_FOUND:
                break
        if last is None:
            raise UnavailableError("No worker could be reached; retry in a moment.")
        return last

    async def _tries(self, once: Try, needs: Needs, record: Record) -> web.StreamResponse:
        """Ask a worker, and another where one has not begun."""
        tried: list[Worker] = []
        while True:
            try:
                return await self._placed(once, needs, record, tried)
            except WorkerLostError as error:
                self._router.fault(tried[-1], error.message, is_certain=False)
                raise
            except NotBegunError as error:
                if error.is_fault:
                    self._router.fault(tried[-1], str(error), is_certain=True)
                may_retry = error.is_elsewhere or len(tried) <= self._router.settings.retries
                if not may_retry or not self._has_other(needs, tried):
                    return _last(error, tried)
                if error.is_elsewhere:
                    continue
            spread = self._random.uniform(0.5, 1.0)
            await asyncio.sleep(_PAUSE_S * 2 ** (len(tried) - 1) * spread)

    async def _placed(
        self, once: Try, needs: Needs, record: Record, tried: list[Worker]
    ) -> web.StreamResponse:
        router = self._router
        before_s = time.monotonic()
        try:
            worker = await router.admission.enter(
                lambda: router.fleet.choose(needs, tried), needs.priority
            )
        finally:
            record.asked_s = time.monotonic()
            record.queue_s += record.asked_s - before_s
        tried.append(worker)
        record.worker, record.tries = worker.name, len(tried)
        named = record.request_id
        self.running.setdefault(named, set()).add(worker)
        try:
            return await once(worker)
        finally:
            router.admission.leave(worker)
            for request_id in {named, record.request_id}:
                self._forget(request_id, worker)

    def _forget(self, request_id: str, worker: Worker) -> None:
        running = self.running.get(request_id, set())
        running.discard(worker)
        if not running:  # where several requests have one id, the others are looked for
            self.running.pop(request_id, None)

    def _has_other(self, needs: Needs, tried: list[Worker]) -> bool:
        try:
            self._router.fleet.choose(needs, tried)
        except RouterError:
            return False
        return True

    def _lost(self, worker: Worker, why: str, record: Record) -> None:
        record.status, record.code = BROKEN_OFF, "worker_failed"
        self._router.fault(worker, why, is_certain=False)


def _headers(request: web.BaseRequest) -> CIMultiDict[str]:
    return to_worker(
        request.headers,
        client=request.remote or "unknown",
        host=request.host,
        scheme=request.scheme,
    )


def _last(error: NotBegunError, tried: list[Worker]) -> web.StreamResponse:
    """What becomes of a request that nobody began."""
    if error.answer is not None:
        return error.answer
    names = ", ".join(worker.name for worker in tried)
    raise UnavailableError(f"No worker could be reached (asked: {names}); last: {error}.")


def _field(path: str, models_differ: bool) -> str | None:
    """Of a form, that decides which worker it is for."""
    if path == VOICES:
        return "name"
    return "model" if models_differ else None
