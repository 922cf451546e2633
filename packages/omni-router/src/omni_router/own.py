"""The routes that the router answers itself: probes, its version, metrics.

/live is 200 as long as the event loop turns; /health while some worker takes requests; /ready while
that is so and new requests are let in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from omni_router import __version__
from omni_router.replies import json_response
from omni_router.router import Router
from omni_router.worker import WorkerState

PROBES: Final = frozenset({"/live", "/health", "/ready"})
"""Open to everybody: what asks them has no keys."""
METRICS: Final = "/metrics"
_OK: Final = 200
_UNAVAILABLE: Final = 503
Own: TypeAlias = Callable[[Router], web.Response]


def live(router: Router) -> web.Response:
    """Whether this process answers."""
    return json_response({"status": "live"})


def version(router: Router) -> web.Response:
    """What answers here; GET /version of a worker says more of that."""
    return json_response({"router": __version__})


def health(router: Router) -> web.Response:
    """How each worker is."""
    status = status_of(router)
    workers = {
        worker.name: {"state": worker.state, "why": worker.why, "epoch": worker.epoch}
        for worker in router.fleet
    }
    is_serving = bool(router.fleet.ready())
    return json_response(
        {"status": status, "workers": workers}, _OK if is_serving else _UNAVAILABLE
    )


def ready(router: Router) -> web.Response:
    """Whether to send requests here, and what prevents it."""
    is_ready = bool(router.fleet.ready()) and not router.is_draining
    content = {
        "status": "draining" if router.is_draining else status_of(router),
        "waiting_for": [w.name for w in router.fleet if w.state is not WorkerState.READY],
    }
    response = json_response(content, _OK if is_ready else _UNAVAILABLE)
    if not is_ready:
        response.headers["Retry-After"] = "1"
    return response


def metrics(router: Router) -> web.Response:
    """Prometheus exposition."""
    return web.Response(body=router.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def status_of(router: Router) -> str:
    """Of the fleet: "ready" if all are, "degraded" if some are, "unavailable"."""
    count = len(router.fleet.ready())
    if not count:
        return "unavailable"
    return "ready" if count == len(router.fleet) else "degraded"


ROUTES: Final[Mapping[str, Own]] = {
    "/live": live,
    "/health": health,
    "/ready": ready,
    "/version": version,
    METRICS: metrics,
}
