"""The router's working parts and their life: workers, those who watch them, places, connections.

Knows no route. Used on the event loop alone.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

import aiohttp

from omni_router.admission import Admission, Bounds
from omni_router.errors import ConfigError, ConflictError, NotFoundError
from omni_router.fleet import Fleet
from omni_router.health import Hysteresis, Watch
from omni_router.keys import Keys
from omni_router.metrics import Metrics
from omni_router.settings import Settings, WorkerSpec
from omni_router.worker import Worker, WorkerState

log = logging.getLogger("omni.router")

_IDLE_S: Final = 3.0
"""Connections are not used again after it: workers close those that are idle for 5 s, and a request
that is sent just then is lost."""
_BUFFER_BYTES: Final = 256 * 1024
"""Of an answer, that is read before the client takes it."""
_LOOK_S: Final = 0.05
"""Between looks whether a worker has nothing to do any more."""
_LINE_BYTES: Final = 64 * 1024
GOING_AWAY: Final = "the router is shutting down"
AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that a client library would add."""


class Router:
    """One process of the router."""

    def __init__(self, settings: Settings, keys: Keys, random: Random | None = None) -> None:
        self.settings = settings
        self.keys = keys
        self.is_draining = False
        """New requests are refused: the process is about to end."""
        self.on_change: list[Callable[[Worker], None]] = []
        """Told of workers whose state has changed."""
        self._random = random or Random()
        self._watches: dict[Worker, Watch] = {}
        self._tasks: dict[Worker, asyncio.Task[None]] = {}
        self.fleet = Fleet(
            policy=settings.policy,
            affinity=settings.affinity,
            imbalance=settings.imbalance,
            slow_start_s=settings.slow_start_s,
            random=self._random,
        )
        share = settings.processes
        self.admission = Admission(
            Bounds(
                max_in_flight=max(1, settings.max_in_flight // share),
                max_queue=settings.max_queue // share,
                queue_timeout_s=settings.queue_timeout_s,
            )
        )
        self.metrics = Metrics(self.fleet, self.admission)
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connections to workers; there once `start` has been called."""
        assert self._session is not None
        return self._session

    async def start(self) -> None:
        """Begin to watch the workers of the settings. Waits for none of them."""
        self._session = _client(self.settings)
        for spec in self.settings.workers:
            self.add(spec)

    async def drain_all(self) -> None:
        """Refuse new requests, and wait for those that are here; what outlasts the limit is cut."""
        self.is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await self.admission.empty()
        for worker in self.fleet:
            worker.cut_all(GOING_AWAY)

    async def close(self) -> None:
        """Stop watching workers, and break all off."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.session.close()

    def add(self, spec: WorkerSpec) -> Worker:
        """A worker more, or one again that was there: what was known of it is forgotten.

        ConflictError if another URL has its name; `spec` has a name.
        """
        worker = next((one for one in self.fleet if one.name == spec.name), None)
        if worker is None:
            worker = Worker(spec.name, spec.url, self._share(spec), spec.weight)
            self.fleet.add(worker)
            self._watch(worker)
            return worker
        if worker.url != spec.url:
            raise ConflictError(
                f"The worker {spec.name!r} is at {worker.url}; remove it first, or give the new "
                "one another name.",
                code="worker_exists",
            )
        if worker.state is WorkerState.HELD:
            raise ConflictError(f"The worker {spec.name!r} is held: {worker.why}.", code="held")
        worker.max_in_flight, worker.weight = self._share(spec), spec.weight
        self.change(worker, WorkerState.STARTING, "registered again")
        self._watches[worker].look()
        return worker

    def adjust(self, spec: WorkerSpec) -> Worker:
        """A worker more, or another weight and bound of one that is there and goes on as it is;
        ConflictError if another URL has its name."""
        worker = next((one for one in self.fleet if one.name == spec.name), None)
        if worker is None or worker.url != spec.url:
            return self.add(spec)
        worker.max_in_flight, worker.weight = self._share(spec), spec.weight
        self.admission.serve()
        return worker

    def drain(self, name: str) -> Worker:
        """Send a worker nothing new; NotFoundError if there is none of this name."""
        worker = self.fleet.get(name)
        if worker.state is WorkerState.HELD:
            raise ConflictError(f"The worker {name!r} is held: {worker.why}.", code="held")
        self.change(worker, WorkerState.DRAINING, "an operator drains it")
        return worker

    def resume(self, name: str) -> Worker:
        """Undo `drain`: it takes part again once it says that it is ready; ConflictError if it was
        not drained."""
        worker = self.fleet.get(name)
        if worker.state is not WorkerState.DRAINING:
            raise ConflictError(f"The worker {name!r} is {worker.state}, not draining.")
        self.change(worker, WorkerState.STARTING, "an operator lets it in again")
        self._watches[worker].look()
        return worker

    async def remove(self, name: str, *, wait_s: float) -> int:
        """Forget a worker once its requests have ended, or are cut after `wait_s`; how many were.

        NotFoundError if there is none of this name.
        """
        worker = self.fleet.get(name)
        self.change(worker, WorkerState.DRAINING, "it is being removed")
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while worker.in_flight:
                    await asyncio.sleep(_LOOK_S)
        self.fleet.remove(name)  # NotFoundError if another has removed it meanwhile
        del self._watches[worker]
        self._tasks.pop(worker).cancel()
        self.metrics.forget(name)
        cut = worker.cut_all("it was removed")
        self.admission.serve()  # who waits for it must be told
        return cut

    def change(self, worker: Worker, state: WorkerState, why: str) -> None:
        """Put a worker into a state, whoever decides that."""
        if worker.become(state, why):
            self._tell(worker)

    def fault(self, worker: Worker, why: str, *, is_certain: bool) -> None:
        """A request met a fault between here and a worker; `is_certain` if it cannot be reached."""
        self.metrics.fault(worker.name)
        if (watch := self._watches.get(worker)) is not None:
            watch.fault(why, is_certain=is_certain)

    def look(self, worker: Worker) -> None:
        """Ask a worker at once how it is."""
        if (watch := self._watches.get(worker)) is None:
            raise NotFoundError(f"There is no worker {worker.name!r}.", code="unknown_worker")
        watch.look()

    def _share(self, spec: WorkerSpec) -> int:
        whole = spec.max_in_flight or self.settings.max_in_flight_per_worker
        return max(1, whole // self.settings.processes)

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
                cut_after_s=settings.cut_after_s,
            ),
            self._tell,
            headers={"Authorization": f"Bearer {self.keys.worker}"} if self.keys.worker else {},
            random=self._random,
        )
        self._watches[worker] = watch
        self._tasks[worker] = asyncio.create_task(watch.run(), name=f"watch {worker.name}")

    def _tell(self, worker: Worker) -> None:
        for listener in self.on_change:
            listener(worker)
        self.admission.serve()


def _client(settings: Settings) -> aiohttp.ClientSession:
    trusted: ssl.SSLContext | bool = True
    if settings.worker_ca is not None:
        trusted = ssl.create_default_context()
        try:
            trusted.load_verify_locations(settings.worker_ca)
        except (OSError, ssl.SSLError) as exc:
            raise ConfigError(f"--worker-ca: {settings.worker_ca} cannot be used: {exc}") from exc
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, ssl=trusted),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=AUTOMATIC,
        auto_decompress=False,
        read_bufsize=_BUFFER_BYTES,
        max_line_size=_LINE_BYTES,
        max_field_size=_LINE_BYTES,
    )
