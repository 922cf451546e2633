"""Routes under /router/v1/: what an operator sees of the fleet and does to it.

They exist where an admin key is set. Knows the router's parts. Keys are `app`'s.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from omni_router.errors import (
    BadRequestError,
    ConfigError,
    ConflictError,
    MethodNotAllowedError,
    NotFoundError,
    TooLargeError,
)
from omni_router.replies import json_response
from omni_router.router import Router
from omni_router.settings import WorkerSpec, worker_named
from omni_router.worker import Worker, WorkerState

PREFIX: Final = "/router/v1/"
NAME: Final = r"(?P<name>[^/]+)"
_BODY_BYTES: Final = 16 * 1024
_CREATED: Final = 201
Handler: TypeAlias = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]
"""(request, name in its path, "" if there is none)."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Route:
    """One route of operators."""

    method: str
    path: str
    """Behind PREFIX; NAME is a name of a worker."""
    handler: Handler


class RemoveBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a removal."""

    wait_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0


class Admin:
    """The routes of one router."""

    def __init__(self, router: Router, more: Sequence[Route] = ()) -> None:
        """`more` are routes of others under the same prefix."""
        self._router = router
        self._routes = [
            Route("GET", "workers", self._list),
            Route("POST", "workers", self._add),
            Route("GET", f"workers/{NAME}", self._show),
            Route("DELETE", f"workers/{NAME}", self._remove),
            Route("POST", f"workers/{NAME}/drain", self._drain),
            Route("POST", f"workers/{NAME}/resume", self._resume),
            *more,
        ]

    async def answer(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """NotFoundError for what is no route, MethodNotAllowedError for one that is asked
        otherwise."""
        if not self._router.keys.admin:
            raise NotFoundError(
                "There are no admin routes: start the router with --admin-key-file.",
                code="unknown_url",
            )
        allowed = []
        for route in self._routes:
            if found := re.fullmatch(route.path, path.removeprefix(PREFIX)):
                if route.method == request.method:
                    return await route.handler(request, found.groupdict().get("name", ""))
                allowed.append(route.method)
        if allowed:
            raise MethodNotAllowedError(f"{path} takes {', '.join(allowed)}.")
        raise NotFoundError(
            f"Unknown URL: {request.method} {path}; docs/router.md lists the routes.",
            code="unknown_url",
        )

    async def _list(self, request: web.BaseRequest, name: str) -> web.Response:
        """GET workers."""
        return json_response({"workers": [described(worker) for worker in self._router.fleet]})

    async def _show(self, request: web.BaseRequest, name: str) -> web.Response:
        """GET workers/NAME."""
        return json_response(described(self._router.fleet.get(name)))

    async def _add(self, request: web.BaseRequest, name: str) -> web.Response:
        """POST workers: one more, or one that has come again."""
        require_one_process(self._router)
        asked = await body_of(request, WorkerSpec)
        try:
            worker = self._router.add(worker_named(asked))
        except ConfigError as error:
            raise BadRequestError(str(error)) from error
        return json_response(described(worker), _CREATED)

    async def _remove(self, request: web.BaseRequest, name: str) -> web.Response:
        """DELETE workers/NAME: once its requests have ended, or are cut after `wait_s`."""
        require_one_process(self._router)
        body = await body_of(request, RemoveBody)
        cut = await self._router.remove(name, wait_s=body.wait_s)
        return json_response({"removed": name, "cut": cut})

    async def _drain(self, request: web.BaseRequest, name: str) -> web.Response:
        """POST workers/NAME/drain: it gets nothing new."""
        require_one_process(self._router)
        return json_response(described(self._router.drain(name)))

    async def _resume(self, request: web.BaseRequest, name: str) -> web.Response:
        """POST workers/NAME/resume: it takes part again once it says that it is ready."""
        require_one_process(self._router)
        return json_response(described(self._router.resume(name)))


def require_one_process(router: Router) -> None:
    """ConflictError where a change would reach one process of several."""
    if router.settings.processes > 1:
        raise ConflictError(
            "This router is several processes, and this would reach one of them. For workers, "
            "change the --config file and send SIGHUP; give new weights to each worker itself "
            "(POST /admin/weights), or run one process.",
            code="several_processes",
        )


def described(worker: Worker) -> dict[str, Any]:
    """A worker, for operators."""
    is_ready = worker.state is WorkerState.READY
    return {
        "name": worker.name,
        "url": worker.url,
        "state": worker.state,
        "why": worker.why,
        "models": [ability.model for ability in worker.abilities],
        "in_flight": worker.in_flight,
        "max_in_flight": worker.max_in_flight,
        "reported": worker.reported,
        "weight": worker.weight,
        "epoch": worker.epoch,
        "requests": worker.requests,
        "ready_for_s": round(time.monotonic() - worker.ready_since_s, 1) if is_ready else None,
    }


async def body_of(request: web.BaseRequest, kind: type[T]) -> T:
    """The body of an operator's request; BadRequestError for what is no `kind`."""
    data = bytearray()
    async for piece in request.content.iter_any():
        data += piece
        if len(data) > _BODY_BYTES:
            raise TooLargeError(f"The body has more than {_BODY_BYTES} bytes.")
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise BadRequestError(f"{error}.") from error
