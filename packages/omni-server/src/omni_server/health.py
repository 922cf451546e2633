"""GET /health, /live and /metrics: what an orchestrator asks.

/health is 200 only while every stage is ready, in one replica at least; /live as long as the event
loop turns.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from omni_core.errors import NotReadyError
from omni_core.pipeline import Health
from omni_server.context import ServerContext
from omni_server.errors import JsonResponse


def router(context: ServerContext) -> APIRouter:
    """The operator's routes of one server."""
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> Response:
        """Whether requests are served, and each stage's process."""
        state = context.pipeline.health()
        return JsonResponse(state, status_code=200 if is_ready(state) else 503)

    @routes.get("/live")
    async def live() -> Response:
        """Whether this process answers."""
        return JsonResponse({"status": "live"})

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Prometheus exposition; without stage numbers while there are no stages to ask."""
        try:
            stages, relays = await asyncio.gather(
                context.pipeline.stats(), context.pipeline.relay_stats()
            )
        except NotReadyError:
            stages, relays = {}, {}
        pipeline = context.pipeline
        text = context.metrics.render(
            stages, relays, pipeline.occupancy(), pipeline.health(), pipeline.edges
        )
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return routes


def is_ready(state: Health) -> bool:
    """Whether all kinds of requests are served; the loss of a replica does not prevent that."""
    started = state.status in ("ready", "degraded")
    return started and all(stage.state == "ready" for stage in state.stages.values())
