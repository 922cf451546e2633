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
Answer = Literal["load", "refuse", "break off", "wait"]


@dataclass(slots=True)
class FakeWorker:
    """Says what it loads, or refuses to."""

    name: str
    answer: Answer = "load"
    started_at: int = 1
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Of all weights it was sent."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application()
        app.router.add_get("/ready", lambda request: _json({"status": "ready"}))
        app.router.add_get("/metrics", lambda request: _json({}))
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/admin/weights", self._load)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return await _json({"data": [{"id": "m", "created": self.started_at}]})

    async def _load(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {ADMIN_KEY}"
        self.bodies.append(await request.json())
        self.asked.set()
        match self.answer:
            case "load":
                return await _json({"checkpoint": self.bodies[-1]["path"]})
            case "refuse":
                return await _json({"error": {"message": "no such directory"}}, status=400)
            case "break off":
                assert request.transport is not None
                request.transport.close()
                return await _json({})
            case "wait":
                await self.let_go.wait()
                return await _json({})


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
    weights = Weights(router, Journal(journal))
    await router.start()
    try:
        known = (WorkerState.READY, WorkerState.HELD)
        await until(lambda: all(worker.state in known for worker in router.fleet))
        yield router, weights
    finally:
        await router.close()


def states(router: Router) -> dict[str, WorkerState]:
    """{worker: its state}."""
    return {worker.name: worker.state for worker in router.fleet}


async def until(holds: Any) -> None:
    """Look until it does; TimeoutError if it never does."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)


async def all_ready(router: Router) -> None:
    """Every worker serves."""
    await until(lambda: set(states(router).values()) == {WorkerState.READY})
