"""The HTTP application: the router's own routes, and everything else for workers.

Own routes answer at once; what goes to workers needs a key where keys are set. Every request has an
id, a record and, if it fails, an OpenAI error object.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from omni_router import errors
from omni_router.access import OnAccess, look_away
from omni_router.errors import NotFoundError, RouterError, UnavailableError
from omni_router.keys import caller, presented_key
from omni_router.own import OwnRoutes
from omni_router.proxy.forward import CLIENT_CLOSED, Forward
from omni_router.proxy.headers import REQUEST_ID
from omni_router.record import Record
from omni_router.router import Router

log = logging.getLogger("omni.router")

_MOST_ID: Final = 128
_READS: Final = ("GET", "HEAD")
_PAGES: Final = ("/", "/v1/audio/voices")
_FILES: Final = "/playground/"
OPEN: Final = frozenset({"/live", "/health", "/ready"})
"""What asks them has no keys."""


class App:
    """Answers requests. Everything is in `handle`."""

    def __init__(self, router: Router, on_access: OnAccess = look_away) -> None:
        self._router = router
        self._forward = Forward(router)
        self._own = OwnRoutes(router)
        self._on_access = on_access

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Any request."""
        path = request.raw_path.partition("?")[0]
        record = Record(
            method=request.method,
            path=unquote(path) if "%" in path else path,
            request_id=_request_id(request),
            client=caller(request.headers, request.remote),
        )
        try:
            response = await self._answer(request, record)
            record.status = record.status or response.status
            return response
        except RouterError as error:
            return _refusal(error, record)
        except ConnectionError:  # of the client's
            record.status = CLIENT_CLOSED
            raise
        except Exception as error:  # the edge: whoever asks is told, the log has the rest
            log.exception("request %s failed", record.request_id)
            return _refusal(errors.internal_error(error), record)
        finally:
            record.status = record.status or CLIENT_CLOSED
            record.end_s = time.monotonic()
            self._on_access(record)

    async def _answer(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        if not request.raw_path.startswith("/"):
            raise NotFoundError("The router is no proxy for other addresses.", code="unknown_url")
        self._check(request, record)
        if (own := self._own.find(record.path)) is not None:
            return await own(request, record)
        if self._router.is_draining:
            raise UnavailableError("The router is shutting down; retry.", code="draining")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._forward.websocket(request, record)
        response = await self._forward.http(request, record)
        if not response.prepared:
            response.headers.setdefault(REQUEST_ID, record.request_id)
        return response

    def _check(self, request: web.BaseRequest, record: Record) -> None:
        """UnauthorizedError without the key that a path needs."""
        keys, path = self._router.keys, record.path
        if path.startswith("/router/"):
            keys.check(presented_key(request.headers), needs_admin=True)
            return
        is_page = request.method in _READS and (path in _PAGES or path.startswith(_FILES))
        if not keys.api or path in OPEN or is_page:
            return
        if path == "/metrics" and self._own.metrics_are_open:
            return
        keys.check(presented_key(request.headers), needs_admin=False)


def _request_id(request: web.BaseRequest) -> str:
    """What the client calls it, as it is: the worker says if it cannot be called so."""
    return request.headers.get(REQUEST_ID) or f"req_{uuid.uuid4().hex}"


def _refusal(error: RouterError, record: Record) -> web.Response:
    record.status, record.code = error.status, error.code
    headers = {REQUEST_ID: record.request_id, **error.headers}
    return web.Response(
        body=error.body(), status=error.status, headers=headers, content_type=errors.JSON
    )
