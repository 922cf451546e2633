"""What every route that asks the pipeline does around its own work: one id, one timer, one end.

Knows HTTP statuses and who counts them. Knows nothing of what is asked or answered.
"""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable

from fastapi import Request
from starlette.responses import Response

from omni_core.errors import NotReadyError, OmniError
from omni_core.pipeline import Pipeline
from omni_server.callers import own_request_id
from omni_server.context import ServerContext
from omni_server.errors import error_response
from omni_server.metrics import RequestTimer, Together
from omni_server.stream import (
    CLIENT_CLOSED_REQUEST,
    INTERNAL_SERVER_ERROR,
    ClientGoneError,
    StreamedResponse,
)

REQUEST_ID = "x-request-id"
Headers = dict[str, str]
"""Of the response; `REQUEST_ID` is what the pipeline calls the request."""
Serve = Callable[[RequestTimer, Headers], Awaitable[Response]]


async def answered(
    request: Request,
    context: ServerContext,
    fallback_id: str,
    serve: Serve,
    together: Together = operator.add,
) -> Response:
    """What `serve` answers, or the error it raises as a response.

    Owns the request's timer until there is a stream to own it: whatever ends the request, it is
    counted once. `fallback_id` is its id if the client sent none; `together` is `RequestTimer`'s.
    """
    timer = RequestTimer(context.metrics, together)
    status, gone_s = INTERNAL_SERVER_ERROR, None
    streaming = False
    headers = {REQUEST_ID: fallback_id}
    try:
        headers[REQUEST_ID] = own_request_id(request) or fallback_id
        response = await serve(timer, headers)
        status, streaming = response.status_code, isinstance(response, StreamedResponse)
        return response
    except ClientGoneError as gone:
        status, gone_s = CLIENT_CLOSED_REQUEST, gone.noticed_s
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except OmniError as error:
        status = error.status
        refusal = error_response(error)
        refusal.headers.update(headers)
        return refusal
    finally:
        if not streaming:
            timer.end(status, gone_s)


def require_serving(pipeline: Pipeline) -> None:
    """NotReadyError before the pipeline has started and once it stops; degraded may still serve."""
    status = pipeline.health().status
    if status in ("starting", "closing"):
        raise NotReadyError(f"The server is {status}; try again shortly.")
