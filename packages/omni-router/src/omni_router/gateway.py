"""The router at work: the fleet with its watches, the places, and the way of requests to workers.

Knows requests and workers. The routes that the router answers itself are `app`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from omni_router.access import Record
from omni_router.admission import Admission, Bounds
from omni_router.errors import ConflictError, UnavailableError
from omni_router.fleet import Fleet
from omni_router.health import Hysteresis, Watch
from omni_router.metrics import Metrics
from omni_router.needs import Needs, of_path
from omni_router.proxy.bodies import Whole, read_body
from omni_router.proxy.exchange import Asked, Exchange, NotBegunError, WorkerLostError
from omni_router.proxy.headers import to_worker
from omni_router.proxy.websocket import Tunnel
from omni_router.settings import MIB, Settings, WorkerSpec
from omni_router.worker import Worker, WorkerState

_BACKOFF_S: Final = 0.05
"""Before the second try; twice as long before each further one."""
_KEEP_ALIVE_S: Final = 4.0
"""Idle connections are kept for less than workers keep them, which is 5 s: a request never meets a
connection that is being closed."""
_BUFFER_BYTES: Final = 256 * 1024
_ABOUT_BYTES: Final = 64 * 1024
"""Of the body of a request about another request."""
_NOT_FOUND: Final = 404
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Gateway:
    """One router process. Used on the event loop alone; `running` opens and closes it."""

    def __init__(
        self, settings: Settings, *, worker_key: str | None = None, random: Random | None = None
    ) -> None:
        """`worker_key` is presented with what the router itself asks of workers."""
        self.settings = settings
        self._random = random or Random()
        self.fleet = Fleet(
            policy=settings.policy,
            affinity=settings.affinity,
            imbalance=settings.imbalance,
            slow_start_s=settings.slow_start_s,
            random=self._random,
        )
        self.admission = Admission(
            Bounds(
                max_in_flight=settings.max_in_flight,
                max_queue=settings.max_queue,
                queue_timeout_s=settings.queue_timeout_s,
            )
        )
        self.metrics = Metrics(self.fleet, self.admission)
        self.is_draining = False
        self.own_headers = {} if worker_key is None else {"Authorization": f"Bearer {worker_key}"}
        self._watches: dict[str, tuple[Watch, asyncio.Task[None]]] = {}
        self._sent: dict[str, list[Worker]] = {}
        """{request id: workers that have a request of it}."""
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connections to workers."""
        assert self._session is not None, "the gateway does not run"
        return self._session

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connections are open and workers are watched."""
        connect_s = self.settings.connect_timeout_s
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
            read_bufsize=_BUFFER_BYTES,
            max_line_size=2**16,
            max_field_size=2**16,
        ) as self._session:
            for spec in self.settings.workers:
                self.add(spec)
            try:
                yield
            finally:
                for name in list(self._watches):
                    await self._forget(name)

    def add(self, spec: WorkerSpec) -> Worker:
        """A worker more, or one that has come again under its name; ConflictError if another one of
        this name is ready."""
        known = next((worker for worker in self.fleet if worker.name == spec.label), None)
        if known is not None:
            return self._add_again(known, spec)
        worker = Worker(
            name=spec.label,
            url=spec.address,
            max_in_flight=spec.max_in_flight or self.settings.worker_max_in_flight,
            weight=spec.weight,
        )
        self.fleet.add(worker)
        self._watch(worker)
        return worker

    def watch_of(self, worker: Worker) -> Watch:
        """Who asks it how it is."""
        return self._watches[worker.name][0]

    async def remove(self, name: str, *, wait_s: float) -> Worker:
        """Take a worker away, once its requests have ended or after `wait_s`, which cuts them."""
        worker = self.fleet.get(name)
        worker.become(WorkerState.DRAINING, "it is being removed")
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while worker.in_flight:
                    await asyncio.sleep(_BACKOFF_S)
        self.fleet.remove(name)
        await self._forget(name)
        worker.cut_all()
        self.admission.serve()
        return worker

    async def drain(self) -> None:
        """Take no new request, and wait for those that are here, within the limit."""
        self.is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                while self.admission.in_flight or self.admission.queued:
                    await asyncio.sleep(_BACKOFF_S)

    async def forward(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        """A worker's answer, from whoever can give it; RouterError if nobody can."""
        await _go_on(request)
        known = of_path(request.path, request.headers, request.query)
        body = await read_body(
            request,
            known,
            max_bytes=self.settings.max_body_mib * MIB,
            models_differ=self._models_differ(),
        )
        headers = self._headers(request, record)
        asked = Asked(request.method, request.raw_path, headers, body)

        async def attempt(worker: Worker) -> web.StreamResponse:
            exchange = Exchange(self.session, worker, asked, request)
            response = await exchange.run()
            if exchange.lost:
                self._blame(worker, exchange.lost, record)
            return response

        return await self._tried(attempt, body.needs, record)

    async def tunnel(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        """A WebSocket with a worker, until it is closed."""
        needs = of_path(request.path, request.headers, request.query)
        headers = self._headers(request, record)

        async def attempt(worker: Worker) -> web.StreamResponse:
            tunnel = Tunnel(
                worker,
                max_message_bytes=self.settings.max_message_mib * MIB,
                open_timeout_s=self.settings.connect_timeout_s + self.settings.probe_timeout_s,
            )
            response = await tunnel.run(request, request.raw_path, headers)
            if tunnel.lost:
                self._blame(worker, tunnel.lost, record)
            return response

        return await self._tried(attempt, needs, record)

    async def ask_each(
        self, request: web.BaseRequest, record: Record, workers: list[Worker]
    ) -> web.StreamResponse:
        """The first answer of several workers that is no 404; UnavailableError if none is there."""
        body = Whole(await request.content.read(_ABOUT_BYTES), Needs())
        asked = Asked(request.method, request.raw_path, self._headers(request, record), body)
        last: web.StreamResponse | None = None
        for worker in workers:
            try:
                last = await Exchange(self.session, worker, asked, request).run()
            except (NotBegunError, WorkerLostError) as error:
                self._blame(worker, str(error), record)
                continue
            record.worker = worker.name
            if last.status != _NOT_FOUND:
                break
        if last is None:
            raise UnavailableError("No worker could be reached; retry in a moment.")
        return last

    def those_with(self, request_id: str) -> list[Worker]:
        """Workers that may have a request of this id: those it was sent to, or else all."""
        return self._sent.get(request_id) or self.fleet.ready()

    async def _tried(
        self,
        attempt: Callable[[Worker], Awaitable[web.StreamResponse]],
        needs: Needs,
        record: Record,
    ) -> web.StreamResponse:
        """The first answer of a worker that has begun the request."""
        tried: list[Worker] = []
        refused: NotBegunError | None = None
        while record.tries <= self.settings.retries:
            if tried:
                await asyncio.sleep(_BACKOFF_S * 2 ** (len(tried) - 1))
            try:
                worker = await self._enter(needs, tried, record)
            except UnavailableError:
                if refused is None:
                    raise
                break
            try:
                return await attempt(worker)
            except NotBegunError as error:
                refused = error
                tried.append(worker)
                if error.is_fault:
                    self._blame(worker, str(error), record)
            except WorkerLostError as error:
                self._blame(worker, error.message, record)
                raise
            finally:
                self._leave(worker, record)
        if refused is not None and refused.answer is not None:
            return refused.answer
        raise UnavailableError(f"No worker could be reached ({refused}); retry in a moment.")

    async def _enter(self, needs: Needs, tried: list[Worker], record: Record) -> Worker:
        began_s = time.perf_counter()
        choose = partial(self.fleet.choose, needs, tried)
        try:
            worker = await self.admission.enter(choose, needs.priority)
        finally:
            record.waited_s += time.perf_counter() - began_s
        record.worker = worker.name
        record.tries += 1
        self._sent.setdefault(record.request_id, []).append(worker)
        return worker

    def _leave(self, worker: Worker, record: Record) -> None:
        sent = self._sent[record.request_id]
        sent.remove(worker)
        if not sent:
            del self._sent[record.request_id]
        self.admission.leave(worker)

    def _blame(self, worker: Worker, why: str, record: Record) -> None:
        """A fault of the gateway's: nothing that a worker answers is one."""
        record.error = why
        self.metrics.fault(worker.name)
        if worker.name in self._watches:
            self.watch_of(worker).fault(why)

    def _models_differ(self) -> bool:
        """Whether a request's model decides where it goes."""
        served = {frozenset(a.model for a in worker.abilities) for worker in self.fleet.ready()}
        return len(served) != 1

    def _headers(self, request: web.BaseRequest, record: Record) -> CIMultiDict[str]:
        return to_worker(
            request.headers,
            client=record.client,
            host=request.host,
            scheme=request.scheme,
            request_id=record.request_id,
        )

    def _add_again(self, known: Worker, spec: WorkerSpec) -> Worker:
        if known.state is WorkerState.READY and known.url != spec.address:
            raise ConflictError(
                f"The worker {known.name!r} at {known.url} is ready; remove it first, or give the "
                "other one another name."
            )
        known.url, known.weight = spec.address, spec.weight
        known.max_in_flight = spec.max_in_flight or self.settings.worker_max_in_flight
        if known.state is not WorkerState.HELD:
            known.become(WorkerState.STARTING, "it has registered again")
        self.watch_of(known).look()
        return known

    def _watch(self, worker: Worker) -> None:
        settings = self.settings
        watch = Watch(
            worker,
            self.session,
            Hysteresis(
                interval_s=settings.probe_interval_s,
                timeout_s=settings.probe_timeout_s,
                down_after=settings.down_after,
                up_after=settings.up_after,
            ),
            lambda _: self.admission.serve(),
            headers=self.own_headers,
            random=self._random,
        )
        task = asyncio.get_running_loop().create_task(watch.run(), name=f"watch {worker.name}")
        self._watches[worker.name] = (watch, task)

    async def _forget(self, name: str) -> None:
        _, task = self._watches.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _go_on(request: web.BaseRequest) -> None:
    """Tell a client that waits for it before its body (RFC 9110, section 10.1.1)."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        transport = request.transport
        if transport is not None:
            transport.write(_CONTINUE)
