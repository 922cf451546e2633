"""The router's HTTP: who may ask, what it answers itself, and what goes to workers.

Everything under /v1/ and the files of a worker's page go to workers; their admin routes do not.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from omni_router import __version__, listing
from omni_router.access import OnAccess, Record
from omni_router.admin import PREFIX, Admin, answer
from omni_router.errors import (
    JSON,
    ForbiddenError,
    NotFoundError,
    RouterError,
    UnauthorizedError,
    UnavailableError,
)
from omni_router.gateway import Gateway
from omni_router.keys import KeyRing, presented_key
from omni_router.proxy.headers import REQUEST_ID
from omni_router.worker import WorkerState

log = logging.getLogger("omni.router")

API: Final = "/v1/"
MODELS: Final = "/v1/models"
VOICES: Final = "/v1/audio/voices"
REQUESTS: Final = "/v1/requests/"
CANCEL: Final = "/cancel"
WORKERS_OWN: Final = "/admin/"
PROBES: Final = ("/live", "/health", "/ready")
_MAX_REQUEST_ID: Final = 128
_CLIENT_GONE: Final = 499
_READS: Final = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Which keys open what."""

    api_keys: KeyRing = field(default_factory=KeyRing)
    """Without any, everybody is a client; workers may want keys of their own all the same."""
    admin_keys: KeyRing = field(default_factory=KeyRing)
    """Without any, there are no routes under /router/."""
    metrics_are_open: bool = True

    def check(self, method: str, path: str, key: str | None) -> None:
        """UnauthorizedError or ForbiddenError unless the key opens the path."""
        if path.startswith(PREFIX):
            if not self.admin_keys:
                raise NotFoundError(
                    "There are no admin routes: start the router with --admin-key-file.",
                    code="unknown_url",
                )
        elif not self.api_keys or self._is_open(method, path):
            return
        if self.admin_keys.has(key):
            return
        is_user = self.api_keys.has(key)
        if is_user and not path.startswith(PREFIX):
            return
        if is_user:
            raise ForbiddenError("This needs the admin key; yours is an API key.")
        raise _unauthorized(key)

    def _is_open(self, method: str, path: str) -> bool:
        if path in PROBES or (path == "/metrics" and self.metrics_are_open):
            return True
        is_file = not path.startswith((API, "/metrics", "/version"))
        return method in _READS and (is_file or path == VOICES)


def _unauthorized(key: str | None) -> UnauthorizedError:
    if key is None:
        return UnauthorizedError(
            "You didn't provide a key; send it as 'Authorization: Bearer KEY'.",
            code="missing_api_key",
        )
    return UnauthorizedError("Incorrect key provided.")


class App:
    """Answers requests; `aiohttp.web.Server` calls `handle`."""

    def __init__(self, gateway: Gateway, doors: Doors, on_access: OnAccess) -> None:
        self._gateway = gateway
        self._doors = doors
        self._on_access = on_access
        self._admin = Admin(gateway)
        self._own: dict[str, Callable[[], web.Response]] = {
            "/live": lambda: answer({"status": "live"}),
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/version": lambda: answer({"router": __version__}),
            MODELS: lambda: answer(
                {"object": "list", "data": listing.models(gateway.fleet.ready())}
            ),
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request, from its head to its last byte."""
        named = request.headers.get(REQUEST_ID, "")
        record = Record(
            method=request.method,
            path=request.path,
            client=request.remote or "unknown",
            request_id=named if _is_nameable(named) else f"req_{uuid.uuid4().hex}",
        )
        try:
            response = await self._answered(request, record)
            record.status = record.status or response.status
            return response
        except (asyncio.CancelledError, aiohttp.ClientConnectionResetError):
            record.status = _CLIENT_GONE
            raise
        finally:
            self._gateway.metrics.ended(record)
            self._on_access(record)

    async def _answered(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        try:
            response = await self._answer(request, record)
        except RouterError as error:
            record.error = record.error or error.code
            response = web.Response(
                body=error.body(), status=error.status, headers=error.headers, content_type=JSON
            )
        except Exception:  # request edge: a bug costs its own request
            log.exception("request %s failed", record.request_id)
            bug = RouterError("Internal error of the router; its log has the details.")
            response = web.Response(body=bug.body(), status=bug.status, content_type=JSON)
        if not response.prepared:
            response.headers.setdefault(REQUEST_ID, record.request_id)
        return response

    async def _answer(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        path = request.path
        self._doors.check(request.method, path, presented_key(request.headers))
        if path in self._own and request.method in _READS:
            return self._own[path]()
        if path.startswith(PREFIX):
            return await self._admin.handle(request)
        if path.startswith(f"{MODELS}/") and request.method in _READS:
            ready = self._gateway.fleet.ready()
            return answer(listing.model(ready, unquote(path.removeprefix(f"{MODELS}/"))))
        if path.startswith(WORKERS_OWN):
            raise NotFoundError(
                "Admin routes of workers do not pass the router: ask the worker itself, or see "
                f"{PREFIX}.",
                code="unknown_url",
            )
        return await self._pass_on(request, record)

    async def _pass_on(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        """What workers answer."""
        if request.path.startswith(REQUESTS) and request.path.endswith(CANCEL):
            return await self._cancel(request, record)
        if self._gateway.is_draining:
            raise UnavailableError("The router is shutting down; retry elsewhere.", code="draining")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._gateway.tunnel(request, record)
        return await self._gateway.forward(request, record)

    async def _cancel(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        """Whoever has the request ends it; nobody waits for a place to say so."""
        named = request.path.removeprefix(REQUESTS).removesuffix(CANCEL)
        return await self._gateway.ask_each(request, record, self._gateway.those_with(named))

    def _health(self) -> web.Response:
        workers = list(self._gateway.fleet)
        ready = sum(worker.state is WorkerState.READY for worker in workers)
        whole = "ready" if ready == len(workers) and ready else "degraded"
        content = {
            "status": whole if ready else "unavailable",
            "workers": {
                worker.name: {"state": worker.state, "why": worker.why, "epoch": worker.epoch}
                for worker in workers
            },
        }
        return answer(content, status=200 if ready else 503)

    def _ready(self) -> web.Response:
        ready, total = len(self._gateway.fleet.ready()), len(self._gateway.fleet)
        is_open = ready > 0 and not self._gateway.is_draining
        status = "draining" if self._gateway.is_draining else "ready" if ready else "no_worker"
        content: dict[str, Any] = {"status": status, "ready": ready, "workers": total}
        response = answer(content, status=200 if is_open else 503)
        if not is_open:
            response.headers["Retry-After"] = "1"
        return response

    def _metrics(self) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=self._gateway.metrics.render(), headers=headers)


def _is_nameable(named: str) -> bool:
    return 0 < len(named) <= _MAX_REQUEST_ID and named.isascii() and named.isprintable()
