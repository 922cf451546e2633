"""Workers that take weights, on real sockets, and a router before them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from omni_router.journal import Journal
from omni_router.keys import Keys
from omni_router.router import Router
from omni_router.settings import Settings, WorkerSpec
from omni_router.weights import Weights
from omni_router.worker import WorkerState

ADMIN_KEY = "sk-operator"
PATIENCE_S = 10.0
Answer = Literal["load", "refuse", "break off", "wait", "load and fail", "nonsense"]


@dataclass(slots=True)
class FakeWorker:
    """Says what it loads, or refuses to."""

    name: str
    answer: Answer = "load"
    started_at: int = 1
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Of all weights it was sent."""
    serves: str = "/base"
    """The path of the weights it has."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application()
        app.router.add_get("/ready", self._nothing)
        app.router.add_get("/metrics", self._nothing)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/admin/weights", self._load)
        return app

    async def _nothing(self, request: web.Request) -> web.Response:
        return await _json({})

    async def _models(self, request: web.Request) -> web.Response:
        return await _json({"data": [{"id": "m", "created": self.started_at}]})

    def start_again(self) -> None:
        """As its command line says."""
        self.started_at, self.serves = self.started_at + 1, "/base"

    async def _load(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {ADMIN_KEY}"
        self.bodies.append(await request.json())
        self.asked.set()
        path = self.bodies[-1]["path"]
        if path == self.serves:
            return await _error(400, "already_served")
        match self.answer:
            case "load" | "wait":
                if self.answer == "wait":
                    await self.let_go.wait()
                self.serves = path
                return await _json({"checkpoint": path, "revision": None, "seconds": 0.1})
            case "refuse":
                return await _error(400, "checkpoint_not_found")
            case "break off":
                assert request.transport is not None
                request.transport.close()
                return await _json({})
            case "load and fail":
                self.serves = path
                return await _error(500, "internal_error")
            case "nonsense":
                return web.Response(text="<html>", content_type="text/html")


async def _error(status: int, code: str) -> web.Response:
    return await _json({"error": {"message": f"it is {code}", "code": code}}, status)


async def _json(content: Any, status: int = 200) -> web.Response:
    return web.json_response(content, status=status)


@asynccontextmanager
async def listening(*workers: FakeWorker) -> AsyncIterator[None]:
    """All of them answer."""
    runners = [web.AppRunner(worker.app(), shutdown_timeout=0.1) for worker in workers]
    try:
        for worker, runner in zip(workers, runners, strict=True):
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            worker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield
    finally:
        for worker, runner in zip(workers, runners, strict=True):
            worker.let_go.set()
            await runner.cleanup()


def settings_for(*workers: FakeWorker, journal: Path) -> Settings:
    """Of a router that looks often."""
    return Settings(
        workers=tuple(WorkerSpec(url=worker.url, name=worker.name) for worker in workers),
        journal=str(journal),
        probe_interval_s=0.02,
        slow_start_s=0.0,
    )


@asynccontextmanager
async def routing(*workers: FakeWorker, journal: Path) -> AsyncIterator[tuple[Router, Weights]]:
    """A router before these workers, each of which it has heard of."""
    router = Router(settings_for(*workers, journal=journal), Keys(worker_admin=ADMIN_KEY))
    journal_of = Journal(journal)
    weights = Weights(router, journal_of)
    await router.start()
    try:
        known = (WorkerState.READY, WorkerState.HELD)
        await until(lambda: all(worker.state in known for worker in router.fleet))
        yield router, weights
    finally:
        await router.close()
        journal_of.close()


def states(router: Router) -> dict[str, WorkerState]:
    """{worker: its state}."""
    return {worker.name: worker.state for worker in router.fleet}


async def until(holds: Any) -> None:
    """Look until it does; TimeoutError if it never does."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)


def serving(router: Router, *workers: FakeWorker) -> set[str]:
    """Paths of the weights of those that serve."""
    ready = {worker.name for worker in router.fleet if worker.state is WorkerState.READY}
    return {worker.serves for worker in workers if worker.name in ready}


async def all_ready(router: Router) -> None:
    """Every worker serves."""
    await until(lambda: set(states(router).values()) == {WorkerState.READY})
