"""POST /v1/requests/{id}/cancel: ending a request from another connection.

An id is what a response has in `x-request-id`: the client's own, sent in that header, or one that
nobody can guess. Only the client that sent a request can cancel it.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core.errors import NotFoundError
from omni_server.callers import client_key
from omni_server.context import ServerContext
from omni_server.errors import JsonResponse


def router(context: ServerContext) -> APIRouter:
    """The routes about running requests of one server."""
    routes = APIRouter()

    @routes.post("/v1/requests/{request_id:path}/cancel")
    async def cancel(request: Request, request_id: str, user: str | None = None) -> Response:
        """End every request of this client with this id; 404 if none is queued or running."""
        cancelled = context.pipeline.cancel(request_id, client_key(request, user))
        if not cancelled:
            raise NotFoundError(
                f"No request {request_id!r} of this client is queued or running; it may have "
                "ended. Ask with the API key (or from the address) and the 'user' it came with.",
                code="request_not_found",
            )
        answer = {"id": request_id, "object": "request.cancelled", "cancelled": cancelled}
        return JsonResponse(answer)

    return routes
