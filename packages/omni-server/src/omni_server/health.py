"""GET /live, /health, /ready and /metrics: what an orchestrator asks.

/live is 200 as long as the event loop turns; /health while every stage is ready, in one replica at
least; /ready while that is so and new requests are let in.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from omni_core.errors import NotReadyError
from omni_core.pipeline import Health
from omni_server.context import ServerContext
from omni_server.door import DoorState
from omni_server.errors import JsonResponse

_SERVING: Final = ("ready", "degraded")
_RETRY_S: Final = 1


def router(context: ServerContext) -> APIRouter:
    """The operator's routes of one server."""
    routes, pipeline = APIRouter(), context.pipeline

    @routes.get("/health")
    async def health() -> Response:
        """Whether requests are served, and each stage's process."""
        state = context.pipeline.health()
        return JsonResponse(state, status_code=200 if is_ready(state) else 503)

    @routes.get("/ready")
    async def ready() -> Response:
        """Whether to send requests here, and what prevents it."""
        readiness = readiness_of(context.pipeline.health(), context.door.state)
        if readiness.is_ready:
            return JsonResponse(readiness)
        headers = {"Retry-After": str(_RETRY_S)}
        return JsonResponse(readiness, status_code=503, headers=headers)

    @routes.get("/live")
    async def live() -> Response:
        """Whether this process answers."""
        return JsonResponse({"status": "live"})

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Prometheus exposition; without stage numbers while there are no stages to ask."""
        try:
            stages, relays = await asyncio.gather(pipeline.stats(), pipeline.relay_stats())
        except NotReadyError:
            stages, relays = {}, {}
        now = (pipeline.occupancy(), pipeline.health(), pipeline.edges)
        text = context.metrics.render(stages, relays, *now, context.plugged.meanings)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return routes


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /ready."""

    status: str
    """The pipeline's, or why the door is shut: "paused", "draining"."""
    waiting_for: list[str]
    """The stages without a process that serves."""

    @property
    def is_ready(self) -> bool:
        """Whether new requests are let in and served."""
        return self.status in _SERVING and not self.waiting_for


def readiness_of(state: Health, door: DoorState) -> Readiness:
    """What stands between a new request and its answer."""
    missing = [name for name, stage in state.stages.items() if stage.state != "ready"]
    status = state.status if door is DoorState.OPEN else door.value
    return Readiness(status=status, waiting_for=missing)


def is_ready(state: Health) -> bool:
    """Whether all kinds of requests are served; the loss of a replica does not prevent that."""
    started = state.status in _SERVING
    return started and all(stage.state == "ready" for stage in state.stages.values())
