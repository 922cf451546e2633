"""The router beside the server: every route of the one has a place in the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from aiohttp import web

from omni_router.admin import PREFIX
from omni_router.app import OF_WORKERS
from omni_router.needs import CAPABILITY_OF, REALTIME
from omni_router.own import ROUTES
from omni_server.openai.models import ENDPOINTS
from omni_server.openapi import OPERATIONS

OWN = {"/live", "/health", "/ready", "/metrics", "/version"}
MODEL = {"id": "m", "created": 1}
PARAMETERS = {"{voice_id}": "v", "{model_id}": "m", "{request_id}": "r"}


def filled(path: str) -> str:
    """A path with something in the place of its parameters."""
    for parameter, value in PARAMETERS.items():
        path = path.replace(parameter, value)
    assert "{" not in path, "a parameter that this test does not know"
    return path


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    """A worker that says what it was asked."""
    if request.path == "/v1/models":
        return web.json_response({"data": [MODEL]})
    return web.json_response({"saw": f"{request.method} {request.path}"})


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    """The address of one."""
    loop, addresses = asyncio.new_event_loop(), []
    started = threading.Event()

    async def listen() -> None:
        server = await loop.create_server(web.Server(answer), "127.0.0.1", 0)
        addresses.append(server.sockets[0].getsockname()[1])
        started.set()

    def run() -> None:
        loop.run_until_complete(listen())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    yield f"http://127.0.0.1:{addresses[0]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@pytest.fixture(scope="module")
def routed(
    worker: str, live_router: Callable[..., AbstractContextManager[str]]
) -> Iterator[httpx.Client]:
    with live_router(worker) as url, httpx.Client(base_url=url) as http:
        yield http


@pytest.mark.parametrize(
    ("method", "path"), sorted(OPERATIONS), ids=lambda part: str(part).replace("/", ".")
)
def test_every_route_of_the_server(routed: httpx.Client, method: str, path: str) -> None:
    """Goes to a worker, but for probes and what operators ask of one worker."""
    body: dict[str, Any] = {"json": {}} if method in ("post", "put") else {}
    reply = routed.request(method.upper(), filled(path), **body)
    if path in OWN:
        assert path in ROUTES
        assert "x-omni-worker" not in reply.headers
    elif path.startswith(OF_WORKERS):
        assert reply.status_code == 404
        assert PREFIX in reply.json()["error"]["message"]
    elif path.startswith("/v1/models"):
        assert reply.json() in (MODEL, {"object": "list", "data": [MODEL]})
    else:
        assert reply.status_code == 200
        assert reply.json() == {"saw": f"{method.upper()} {filled(path)}"}


def test_the_router_answers_no_other_path_itself() -> None:
    assert set(ROUTES) == OWN
    assert {path for _, path in OPERATIONS} >= OWN


def test_what_routes_need_is_what_the_server_says_they_do() -> None:
    needed = {path: need for path, need in ENDPOINTS.items() if need is not None}
    assert {**needed, REALTIME: "realtime"} == dict(CAPABILITY_OF)
