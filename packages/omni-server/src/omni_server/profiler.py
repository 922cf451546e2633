"""POST /admin/profiler/start and /stop: torch's profiler in the stage processes.

Knows where the operator lets files be written. What is recorded, the pipeline knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core.errors import RequestError
from omni_core.pipeline import Traced
from omni_server.body import read_body
from omni_server.context import ServerContext
from omni_server.errors import JsonResponse
from omni_server.schema.decode import decode_body

_BODY_BYTES: Final = 8192


class ProfilerBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/profiler/start."""

    stages: Annotated[list[str], msgspec.Meta(max_length=64)] | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0


def add_routes(routes: APIRouter, context: ServerContext) -> None:
    """The routes of one server."""

    @routes.post("/profiler/start")
    async def start(request: Request) -> Response:
        """Record what torch does in the processes of some stages, for a bounded time."""
        body = decode_body(await read_body(request, _BODY_BYTES), ProfilerBody)
        directory = context.settings.profile_dir
        if directory is None:
            raise RequestError(
                "There is nowhere to write to: start the server with --profile-dir.",
                code="unsupported_profiler",
            )
        known = context.pipeline.stages
        for name in body.stages or ():
            if name not in known:
                raise RequestError(
                    f"'stages': there is no stage {name!r}; there are {', '.join(known)}.",
                    param="stages",
                )
        starting = context.pipeline.start_trace(
            str(directory.resolve()), seconds=body.seconds, stages=tuple(body.stages or known)
        )
        found = await asyncio.shield(asyncio.create_task(starting))
        return JsonResponse({"seconds": body.seconds, "processes": _told(found)})

    @routes.post("/profiler/stop")
    async def stop() -> Response:
        """End the recording; the files of the last one, which are written by then."""
        found = await asyncio.shield(asyncio.create_task(context.pipeline.stop_trace()))
        return JsonResponse({"processes": _told(found)})


def _told(found: Mapping[str, Traced]) -> dict[str, Any]:
    return {process: msgspec.to_builtins(traced) for process, traced in found.items()}
