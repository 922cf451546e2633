"""Routers and scripted workers on real sockets, in the loop of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from omni_router.access import OnAccess, look_away
from omni_router.app import App
from omni_router.keys import Keys
from omni_router.record import Record
from omni_router.router import Router
from omni_router.serve import http_server
from omni_router.settings import Settings, WorkerSpec, worker_named
from omni_router.worker import WorkerState

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
QUICK = Settings(
    probe_interval_s=0.05,
    probe_timeout_s=0.3,
    down_after=2,
    up_after=2,
    slow_start_s=0,
    connect_timeout_s=0.5,
    queue_timeout_s=2,
    drain_timeout_s=5,
)


def model_object(name: str, **more: Any) -> dict[str, Any]:
    """One entry of /v1/models."""
    able = {"input_modalities": ["text"], "output_modalities": ["text"], "voices": []}
    return {"id": name, "object": "model", "created": 1, "capabilities": {}, **able, **more}


@dataclass
class Seen:
    """A request as a worker saw it."""

    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes


@dataclass
class ScriptedWorker:
    """Answers probes as a worker does, and everything else as the test says."""

    models: list[dict[str, Any]]
    handler: Handler | None = None
    ready: int = 200
    metrics: str = ""
    seen: list[Seen] = field(default_factory=list)
    probes: list[dict[str, str]] = field(default_factory=list)
    left: int = 0
    """Requests whose client went away."""
    name: str = ""
    url: str = ""
    server: asyncio.Server | None = None
    http: web.Server | None = None

    async def start(self, port: int = 0) -> None:
        """Listen."""
        self.http = web.Server(self.handle, handler_cancellation=True, auto_decompress=False)
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self.http, "127.0.0.1", port)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.name = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """Break all off, as a process does that is killed."""
        if self.server is None or self.http is None:
            return
        self.server.close()
        for connection in self.http.connections:
            if connection.transport is not None:
                connection.transport.abort()
        self.server = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        if request.path == "/ready":
            self.probes.append(dict(request.headers))
            return web.Response(status=self.ready, body=b"{}")
        if request.path == "/metrics":
            return web.Response(text=self.metrics)
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": self.models})
        try:
            if self.handler is not None:
                return await self.handler(request)
            return await self.echo(request)
        except asyncio.CancelledError:
            self.left += 1
            raise

    async def note(self, request: web.BaseRequest) -> Seen:
        """Read a request whole."""
        body = await request.content.read()
        seen = Seen(request.method, request.raw_path, request.headers.copy(), body)
        self.seen.append(seen)
        return seen

    async def echo(self, request: web.BaseRequest) -> web.StreamResponse:
        """What was asked, and who answers."""
        seen = await self.note(request)
        return web.json_response(
            {
                "worker": self.name,
                "method": seen.method,
                "target": seen.target,
                "headers": {name.lower(): value for name, value in seen.headers.items()},
                "body": seen.body.decode("latin-1"),
            }
        )


@dataclass
class Routed:
    """A router that listens, and a client of it."""

    router: Router
    url: str
    client: aiohttp.ClientSession
    records: list[Record]

    async def chat(self, body: dict[str, Any] | None = None, **more: Any) -> Any:
        """(status, JSON) of a chat request."""
        sent = json.dumps({"model": "m"} | (body or {}))
        headers = {"Content-Type": "application/json"} | more.pop("headers", {})
        async with self.client.post(
            f"{self.url}/v1/chat/completions", data=sent, headers=headers, **more
        ) as reply:
            return reply.status, await reply.json()

    async def until(self, name: str, *states: WorkerState) -> None:
        """A worker is in one of these states."""
        await eventually(lambda: self.router.fleet.get(name).state in states)


async def eventually(holds: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for something that other tasks bring about."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.005)


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Awaitable[None]]:
    return eventually


@pytest.fixture(name="model_object")
def model_object_fixture() -> Callable[..., dict[str, Any]]:
    return model_object


@pytest.fixture
async def scripted() -> AsyncIterator[Callable[..., Awaitable[ScriptedWorker]]]:
    """Starts workers: `await scripted(handler=..., models=[...])`."""
    started: list[ScriptedWorker] = []

    async def start(handler: Handler | None = None, **more: Any) -> ScriptedWorker:
        worker = ScriptedWorker(
            models=more.pop("models", [model_object("m")]), handler=handler, **more
        )
        await worker.start()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        await worker.stop()


@pytest.fixture
async def routed() -> AsyncIterator[Callable[..., Awaitable[Routed]]]:
    """Starts routers: `await routed(worker, other, policy=...)`, whose workers are ready."""
    running: list[tuple[Routed, asyncio.Server]] = []

    async def start(
        *workers: ScriptedWorker | str,
        keys: Keys | None = None,
        wait: bool = True,
        on_access: OnAccess = look_away,
        **settings: Any,
    ) -> Routed:
        specs = [WorkerSpec(url=one if isinstance(one, str) else one.url) for one in workers]
        named = tuple(map(worker_named, specs))
        router = Router(replace(QUICK, workers=named, **settings), keys or Keys())
        await router.start()
        records: list[Record] = []

        def note(record: Record) -> None:
            records.append(record)
            on_access(record)

        loop = asyncio.get_running_loop()
        server = await loop.create_server(http_server(App(router, note)), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = aiohttp.ClientSession(auto_decompress=False)
        one = Routed(router, f"http://127.0.0.1:{port}", client, records)
        running.append((one, server))
        if wait:
            await eventually(lambda: len(router.fleet.ready()) == len(workers))
        return one

    yield start
    for one, server in running:
        await one.client.close()
        server.close()
        await one.router.close()
