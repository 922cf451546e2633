"""POST /admin/weights: the weights of another checkpoint, while the server runs.

Knows which directories an operator may name. What loads the weights is the pipeline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core.errors import RequestError
from omni_core.pipeline import Running
from omni_server.body import read_body
from omni_server.context import ServerContext
from omni_server.errors import JsonResponse
from omni_server.schema.decode import decode_body

_BODY_BYTES: Final = 8192


class WeightsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/weights."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    running: Running = "wait"
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0
    revision: Annotated[str, msgspec.Meta(pattern="^[!-~]{1,128}$")] | None = None


def add_routes(routes: APIRouter, context: ServerContext) -> None:
    """The route of one server."""

    @routes.post("/weights")
    async def load_weights(request: Request) -> Response:
        """Serve the weights of another checkpoint of the same model."""
        body = decode_body(await read_body(request, _BODY_BYTES), WeightsBody)
        began_s = time.monotonic()
        await _load(context, body)
        manifest = await asyncio.to_thread(context.pipeline.manifest)
        return JsonResponse(
            {
                "checkpoint": manifest.checkpoint,
                "revision": manifest.revision,
                "seconds": round(time.monotonic() - began_s, 3),
            }
        )


async def _load(context: ServerContext, body: WeightsBody) -> None:
    outcome = "failed"
    try:
        roots = [Path(context.pipeline.model_path), *context.settings.weights_dirs]
        path = await asyncio.to_thread(allowed_directory, body.path, roots)
        await context.pipeline.update_weights(
            str(path), revision=body.revision, running=body.running, wait_s=body.wait_s
        )
        outcome = "loaded"
    except RequestError:
        outcome = "refused"
        raise
    finally:
        context.metrics.weights_updated(outcome)


def allowed_directory(path: str, roots: Sequence[Path]) -> Path:
    """The directory that an operator means, links followed: one of `roots`, or below one.

    A path that is not absolute is looked for in each of them. RequestError for any other, and the
    same one whether it exists or not.
    """
    for root in roots:
        try:
            home = root.resolve(strict=True)
            found = (home / path).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # not there, a circle of links, a NUL
            continue
        if found.is_relative_to(home) and found.is_dir():
            return found
    raise RequestError(
        "'path': there is no such directory in that the server was started with, nor in one that "
        "--weights-dir allows.",
        param="path",
        code="checkpoint_not_found",
    )
