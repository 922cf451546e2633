"""The HTTP application: who may ask, what the router answers itself, and what goes to workers.

Everything under /v1/ goes to workers, and so do the files of their page; their admin routes do not.
Every request has an id, a record and, if it fails here, an OpenAI error object.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from omni_router.access import OnAccess, look_away
from omni_router.admin import PREFIX, Admin, Route
from omni_router.errors import (
    MethodNotAllowedError,
    NotFoundError,
    RouterError,
    UnavailableError,
    internal_error,
)
from omni_router.keys import caller, is_loopback, presented_key
from omni_router.own import METRICS, PROBES, ROUTES
from omni_router.proxy.forward import CLIENT_CLOSED, MODELS, VOICES, Forward
from omni_router.proxy.headers import REQUEST_ID
from omni_router.record import Record
from omni_router.replies import refusal
from omni_router.router import Router

log = logging.getLogger("omni.router")

API: Final = "/v1/"
PAGE: Final = "/"
FILES: Final = "/playground/"
OF_OPERATORS: Final = "/router/"
OF_WORKERS: Final = "/admin"
_READS: Final = ("GET", "HEAD")


class App:
    """Answers requests; `aiohttp.web.Server` calls `handle`."""

    def __init__(
        self, router: Router, on_access: OnAccess = look_away, more: Sequence[Route] = ()
    ) -> None:
        """`more` are operators' routes of others."""
        self._router = router
        self._forward = Forward(router)
        self._admin = Admin(router, more)
        self._on_access = on_access
        access = router.settings.metrics_access
        local = is_loopback(router.settings.host)
        self._metrics_are_open = access == "open" or (access == "auto" and local)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request, from its head to its last byte."""
        path = request.raw_path.partition("?")[0]
        record = Record(
            method=request.method,
            path=unquote(path) if "%" in path else path,
            request_id=_request_id(request),
            client=caller(request.headers, request.remote),
        )
        try:
            response = await self._answered(request, record)
            record.status = record.status or response.status
            return response
        finally:
            record.status = record.status or CLIENT_CLOSED
            record.end_s = time.monotonic()
            self._router.metrics.ended(record)
            self._on_access(record)

    async def _answered(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        try:
            response = await self._answer(request, record)
        except RouterError as error:
            response = self._refuse(error, record)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # the edge of the request: a bug costs it alone
            log.exception("request %s failed", record.request_id)
            response = self._refuse(internal_error(error), record)
        if not response.prepared:
            response.headers.setdefault(REQUEST_ID, record.request_id)
        return response

    def _refuse(self, error: RouterError, record: Record) -> web.Response:
        record.status, record.code = error.status, error.code
        return refusal(error)

    async def _answer(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        path = record.path
        if not request.raw_path.startswith("/"):
            raise NotFoundError("This is no proxy for other addresses.", code="unknown_url")
        if "/." in path and not {".", ".."}.isdisjoint(path.split("/")):
            # What is behind may resolve them, to a path that does not pass.
            raise NotFoundError("A path has no . or .. here.", code="unknown_url")
        self._check(request, path)
        if (own := ROUTES.get(path)) is not None:
            if request.method not in _READS:
                raise MethodNotAllowedError(f"{path} takes GET.")
            return own(self._router)
        if path.startswith(PREFIX):
            return await self._admin.answer(request, path)
        if path.startswith((OF_WORKERS, OF_OPERATORS)):
            raise NotFoundError(
                f"Admin routes of workers do not pass the router: ask the worker itself, or see "
                f"{PREFIX}workers.",
                code="unknown_url",
            )
        return await self._pass_on(request, record)

    async def _pass_on(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        """What workers answer."""
        if (named := _cancelled(record)) is not None:
            return await self._forward.cancel(request, record, named)
        if self._router.is_draining:
            raise UnavailableError("The router is shutting down; retry elsewhere.", code="draining")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._forward.websocket(request, record)
        if record.path == MODELS or record.path.startswith(f"{MODELS}/"):
            return await self._forward.models(request, record)
        if record.path.startswith(f"{VOICES}/"):
            return await self._forward.whoever_knows(request, record)
        return await self._forward.http(request, record)

    def _check(self, request: web.BaseRequest, path: str) -> None:
        """UnauthorizedError or ForbiddenError without the key that a path needs."""
        keys = self._router.keys
        is_operators = path.startswith(OF_OPERATORS) and bool(keys.admin)
        is_open = self._is_open(request.method, path) or _is_preflight(request)
        if is_operators or (keys.api and not is_open):
            keys.check(presented_key(request.headers), needs_admin=is_operators)

    def _is_open(self, method: str, path: str) -> bool:
        if path in PROBES or (path == METRICS and self._metrics_are_open):
            return True
        return method in _READS and (path in (PAGE, VOICES) or path.startswith(FILES))


def _is_preflight(request: web.BaseRequest) -> bool:
    """Whether a browser asks if a page may ask: it sends no key then."""
    return request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers


def _request_id(request: web.BaseRequest) -> str:
    """What the client calls it, as it is: the worker says if it cannot be called so."""
    return request.headers.get(REQUEST_ID) or f"req_{uuid.uuid4().hex}"


def _cancelled(record: Record) -> str | None:
    """The id of the request that this one is to cancel."""
    of, to = "/v1/requests/", "/cancel"
    if record.method == "POST" and record.path.startswith(of) and record.path.endswith(to):
        return record.path.removeprefix(of).removesuffix(to)
    return None
