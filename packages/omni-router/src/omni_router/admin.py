"""Routes under /router/v1/: what an operator sees of the fleet and does to it.

They exist where an admin key is set. Knows the gateway. Keys are `app`'s.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from aiohttp import web

from omni_router.errors import JSON, BadRequestError, ConflictError, NotFoundError, TooLargeError
from omni_router.gateway import Gateway
from omni_router.settings import WorkerSpec
from omni_router.worker import Worker, WorkerState

PREFIX: Final = "/router/v1/"
_BODY_BYTES: Final = 16 * 1024
Handler: TypeAlias = Callable[[web.BaseRequest, str], Awaitable[web.Response]]
"""(request, name in its path)."""


class RemoveBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a removal."""

    wait_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0


class Admin:
    """The routes of one router."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        name = r"(?P<name>[^/]+)"
        self._routes: tuple[tuple[str, re.Pattern[str], Handler], ...] = (
            ("GET", re.compile("workers"), self._list),
            ("POST", re.compile("workers"), self._add),
            ("GET", re.compile(f"workers/{name}"), self._show),
            ("DELETE", re.compile(f"workers/{name}"), self._remove),
            ("POST", re.compile(f"workers/{name}/drain"), self._drain),
            ("POST", re.compile(f"workers/{name}/resume"), self._resume),
        )

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """NotFoundError for what is no route."""
        path = request.path.removeprefix(PREFIX)
        for method, pattern, handler in self._routes:
            if request.method == method and (found := pattern.fullmatch(path)):
                return await handler(request, found.groupdict().get("name", ""))
        raise NotFoundError(
            f"Unknown URL: {request.method} {request.path}; docs/router.md lists the routes.",
            code="unknown_url",
        )

    async def _list(self, request: web.BaseRequest, name: str) -> web.Response:
        """GET workers."""
        return answer({"workers": [described(worker) for worker in self._gateway.fleet]})

    async def _show(self, request: web.BaseRequest, name: str) -> web.Response:
        """GET workers/NAME."""
        return answer(described(self._gateway.fleet.get(name)))

    async def _add(self, request: web.BaseRequest, name: str) -> web.Response:
        """POST workers: one more, or one that has come again."""
        self._require_one_process()
        worker = self._gateway.add(await _body(request, WorkerSpec))
        return answer(described(worker), status=201)

    async def _remove(self, request: web.BaseRequest, name: str) -> web.Response:
        """DELETE workers/NAME: once its requests have ended, or are cut after `wait_s`."""
        self._require_one_process()
        body = await _body(request, RemoveBody)
        worker = await self._gateway.remove(name, wait_s=body.wait_s)
        return answer({"removed": worker.name})

    async def _drain(self, request: web.BaseRequest, name: str) -> web.Response:
        """POST workers/NAME/drain: it gets nothing new."""
        self._require_one_process()
        worker = self._gateway.fleet.get(name)
        if worker.state is WorkerState.HELD:
            raise ConflictError(f"The worker {name!r} is held: {worker.why}.")
        worker.become(WorkerState.DRAINING, "an operator drains it")
        return answer(described(worker))

    async def _resume(self, request: web.BaseRequest, name: str) -> web.Response:
        """POST workers/NAME/resume: it takes part again once it says that it is ready."""
        self._require_one_process()
        worker = self._gateway.fleet.get(name)
        if worker.state is not WorkerState.DRAINING:
            raise ConflictError(f"The worker {name!r} is {worker.state}, not draining.")
        worker.become(WorkerState.STARTING, "an operator lets it in again")
        self._gateway.watch_of(worker).look()
        return answer(described(worker))

    def _require_one_process(self) -> None:
        if self._gateway.settings.processes > 1:
            raise ConflictError(
                "This router is several processes, and this would reach one of them; change the "
                "workers in the --config file and send SIGHUP.",
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


def answer(content: Any, status: int = 200) -> web.Response:
    """A JSON answer of the router's own."""
    return web.Response(body=msgspec.json.encode(content), status=status, content_type=JSON)


async def _body(request: web.BaseRequest, kind: type[Any]) -> Any:
    data = await request.content.read(_BODY_BYTES + 1)
    if len(data) > _BODY_BYTES:
        raise TooLargeError(f"The body has more than {_BODY_BYTES} bytes.")
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise BadRequestError(str(error)) from error
