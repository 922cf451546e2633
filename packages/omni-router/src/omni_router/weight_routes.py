"""Operators' routes of weights: /router/v1/weights and /router/v1/weights/resolve."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from omni_router.admin import Route, body_of, require_one_process
from omni_router.errors import ConflictError
from omni_router.replies import json_response
from omni_router.router import Router
from omni_router.weight_calls import ResolveBody, WeightsBody
from omni_router.weights import Weights

_OK: Final = 200
_NOT_ALL: Final = 409
"""Of an update that is not complete; the body says who has what."""


def routes(router: Router, weights: Weights | None) -> list[Route]:
    """What operators ask and say; without a journal, why nothing can be updated."""

    def there() -> Weights:
        require_one_process(router)
        if weights is None:
            raise ConflictError(
                "Weight updates need a journal: start the router with --journal FILE.",
                code="no_journal",
            )
        return weights

    async def show(request: web.BaseRequest, name: str) -> web.Response:
        """GET weights: the last update, and who is held."""
        return json_response(there().told())

    async def update(request: web.BaseRequest, name: str) -> web.Response:
        """POST weights: once every worker has said what it has."""
        await there().update(await body_of(request, WeightsBody))
        return _answer(there())

    async def resolve(request: web.BaseRequest, name: str) -> web.Response:
        """POST weights/resolve: what becomes of workers that are held."""
        await there().resolve(await body_of(request, ResolveBody))
        return _answer(there())

    return [
        Route("GET", "weights", show),
        Route("POST", "weights", update),
        Route("POST", "weights/resolve", resolve),
    ]


def _answer(weights: Weights) -> web.Response:
    told = weights.told()
    return json_response(told, _OK if told["update"]["outcome"] == "complete" else _NOT_ALL)
