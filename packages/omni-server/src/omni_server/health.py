"""GET /health, /live and /metrics: what an orchestrator asks.

/health is 200 only while the pipeline and every stage are ready; /live as long as the event loop
turns.
"""

from __future__ import annotations

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
            stages = await context.pipeline.stats()
        except NotReadyError:
            stages = {}
        return Response(context.metrics.render(stages), media_type=CONTENT_TYPE_LATEST)

    return routes


def is_ready(state: Health) -> bool:
    """Whether every stage and the pipeline itself are ready."""
    return state.status == "ready" and all(s.state == "ready" for s in state.stages.values())
