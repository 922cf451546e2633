"""The routes that the router answers itself: probes, its version, metrics.

/live is 200 as long as the event loop turns; /health while some worker takes requests; /ready while
that is so and new requests are let in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import msgspec
from aiohttp import web

from omni_router import __version__
from omni_router.errors import JSON, MethodNotAllowedError, NotFoundError
from omni_router.record import Record
from omni_router.router import Router
from omni_router.worker import Worker, WorkerState

Handler: TypeAlias = Callable[[web.BaseRequest, Record], Awaitable[web.StreamResponse]]
_READS: Final = ("GET", "HEAD")
_UNAVAILABLE: Final = 503


class OwnRoutes:
    """Of one router."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.metrics_are_open = True
        self._routes: dict[str, Handler] = {
            "/live": self._live,
            "/health": self._health,
            "/ready": self._ready,
            "/version": self._version,
        }

    def find(self, path: str) -> Handler | None:
        """Who answers a path here; None if workers do."""
        return self._routes.get(path)

    async def _live(self, request: web.BaseRequest, record: Record) -> web.Response:
        """Whether this process answers."""
        return answer({"status": "live"})

    async def _version(self, request: web.BaseRequest, record: Record) -> web.Response:
        return answer({"version": __version__})

    async def _health(self, request: web.BaseRequest, record: Record) -> web.Response:
        """How each worker is."""
        status = self._status()
        workers = {
            worker.name: {"state": worker.state, "why": worker.why} for worker in self._router.fleet
        }
        return answer({"status": status, "workers": workers}, 503 if status == "down" else 200)

    async def _ready(self, request: web.BaseRequest, record: Record) -> web.Response:
        """Whether to send requests here, and what prevents it."""
        status = "draining" if self._router.is_draining else self._status()
        missing = [w.name for w in self._router.fleet if w.state is not WorkerState.READY]
        is_ready = status in ("ready", "degraded")
        return answer({"status": status, "waiting_for": missing}, 200 if is_ready else 503)

    def _status(self) -> str:
        ready = self._router.fleet.ready()
        if not ready:
            return "down"
        return "ready" if len(ready) == len(self._router.fleet) else "degraded"


def answer(content: Any, status: int = 200) -> web.Response:
    """A response of JSON."""
    headers = {"Retry-After": "1"} if status == _UNAVAILABLE else None
    return web.Response(
        body=msgspec.json.encode(content), status=status, content_type=JSON, headers=headers
    )
