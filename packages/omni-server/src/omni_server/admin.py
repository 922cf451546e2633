"""Routes under /admin/: what an operator sees and does. They exist where an admin key is set.

Knows the door, the loggers and the pipeline's account of itself. Keys are `guard`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from omni_core.errors import RequestError
from omni_server import profiler, weights
from omni_server.body import read_body
from omni_server.context import ServerContext
from omni_server.errors import JsonResponse
from omni_server.schema.decode import decode_body
from omni_server.version import run_manifest

_BODY_BYTES = 4096
Level: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class ProfileBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/profile."""

    stage: str
    seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0


class LogLevelBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /admin/log-level."""

    level: Level


def router(context: ServerContext) -> APIRouter:
    """The operator's routes of one server."""
    routes = APIRouter(prefix="/admin")
    _add_door(routes, context)
    _add_insight(routes, context)
    weights.add_routes(routes, context)
    profiler.add_routes(routes, context)
    return routes


def _add_door(routes: APIRouter, context: ServerContext) -> None:
    @routes.get("/info")
    async def info() -> Response:
        """What runs, in which state, and under which limits."""
        return JsonResponse(await asyncio.to_thread(_info, context))

    @routes.post("/pause")
    async def pause() -> Response:
        """Refuse new requests with a retryable 503; those inside run on."""
        context.door.pause()
        return JsonResponse(_door_state(context))

    @routes.post("/continue")
    async def resume() -> Response:
        """Take requests again."""
        context.door.open()
        return JsonResponse(_door_state(context))


def _add_insight(routes: APIRouter, context: ServerContext) -> None:
    @routes.get("/log-level")
    async def log_level() -> Response:
        """What is logged."""
        level = logging.getLogger().getEffectiveLevel()
        return JsonResponse({"level": logging.getLevelName(level)})

    @routes.put("/log-level")
    async def set_log_level(request: Request) -> Response:
        """Log what is at least of this level, here and in every stage process."""
        body = decode_body(await read_body(request, _BODY_BYTES), LogLevelBody)
        context.pipeline.set_log_level(body.level)
        logging.getLogger().setLevel(body.level)
        return JsonResponse({"level": body.level})

    @routes.post("/profile")
    async def profile(request: Request) -> Response:
        """Stacks of the processes of a stage over some seconds, one a line with its count."""
        body = decode_body(await read_body(request, _BODY_BYTES), ProfileBody)
        if body.stage not in context.pipeline.stages:
            stages = ", ".join(context.pipeline.stages)
            raise RequestError(
                f"'stage': there is no stage {body.stage!r}; there are {stages}.", param="stage"
            )
        found = await context.pipeline.profile(body.stage, body.seconds)
        return PlainTextResponse(_folded(found))


def _folded(found: Mapping[str, Mapping[str, int]]) -> str:
    """The format of flame graphs: frames with semicolons, a space, and how often."""
    lines = [
        f"{process};{stack} {count}"
        for process, stacks in found.items()
        for stack, count in sorted(stacks.items())
    ]
    return "".join(f"{line}\n" for line in lines)


def _door_state(context: ServerContext) -> dict[str, Any]:
    now = context.pipeline.occupancy()
    return {
        "state": context.door.state.value,
        "inside": context.door.inside,
        "running": now.in_flight,
        "queued": now.queued,
    }


def _info(context: ServerContext) -> dict[str, Any]:
    settings, pipeline = context.settings, context.pipeline
    return {
        **run_manifest(context),
        "door": _door_state(context),
        "health": pipeline.health(),
        "limits": {
            "max_in_flight": pipeline.limits.max_in_flight,
            "max_queue": pipeline.limits.max_queue,
            "max_body_bytes": settings.max_body_bytes,
            "request_timeout_s": settings.request_timeout_s,
            "requests_per_minute": settings.rate_limit,
            "max_realtime_sessions": settings.max_realtime_sessions,
            "max_voices": settings.max_voices,
            "context_length": pipeline.info.context_length,
            "media": settings.media,
        },
    }
