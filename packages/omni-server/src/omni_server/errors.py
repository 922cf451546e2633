"""Errors as OpenAI error objects: one table, and the handlers that put every route under it.

`OmniError.status` is the HTTP status; `type` follows the status; `code` and `param` are the
error's own:

status  type                    raised as
400     invalid_request_error   RequestError, MediaError, ContextLengthError
401     invalid_request_error   UnauthorizedError; with WWW-Authenticate
403     invalid_request_error   ForbiddenError
404     invalid_request_error   NotFoundError, unknown URL
405     invalid_request_error   wrong method
409     invalid_request_error   ConflictError
413     invalid_request_error   PayloadTooLargeError
429     rate_limit_error        RateLimitError; with Retry-After
499     invalid_request_error   RequestCancelledError, SlowClientError
500     server_error            StageError, PluginError, ConfigError, ProtocolError, a bug
503     server_error            StageDiedError, NotReadyError, OutOfMemoryError, OverloadedError and
                                other retryable errors; with Retry-After
504     server_error            DeadlineError
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omni_core.errors import OmniError, RequestError

_RATE_LIMITED = 429
_POLICY_VIOLATION = 1008
_DENIAL = "websocket.http.response"


class JsonResponse(Response):
    """A body msgspec can encode; used for every JSON answer of the server."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode; floats that are not finite become null, as JSON has no word for them."""
        return msgspec.json.encode(content)


def error_type(status: int) -> str:
    """OpenAI's `type` for an HTTP status."""
    if status == _RATE_LIMITED:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def error_object(error: OmniError) -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}` of an error."""
    return {
        "error": {
            "message": error.message,
            "type": error_type(error.status),
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(error: OmniError) -> JsonResponse:
    """The HTTP answer for an error; asks the client back when a retry can help."""
    headers = {"Retry-After": str(error.retry_after_s)} if error.retryable else None
    return JsonResponse(error_object(error), status_code=error.status, headers=headers)


async def deny(error: OmniError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or a WebSocket that has not opened, with the error; a server that cannot
    answer the latter over HTTP closes it."""
    if scope["type"] == "websocket" and _DENIAL not in scope.get("extensions", {}):
        await receive()  # the connect
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        return
    await error_response(error)(scope, receive, send)


def internal_error(error: Exception) -> OmniError:
    """What a client is told of a bug: its kind, and where to look."""
    return OmniError(
        f"Internal error ({type(error).__name__}); the server's log has the details.",
        code="internal_error",
    )


def install(app: FastAPI) -> None:
    """Put every route of the app under this table."""
    app.add_exception_handler(OmniError, _on_omni_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_bug)


async def _on_omni_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OmniError)
    return error_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = OmniError(str(error.detail))
    if error.status_code == 404:
        answer = OmniError(f"Unknown URL: {request.method} {request.url.path}.", code="unknown_url")
    if error.status_code == 405:
        message = f"{request.method} is not allowed on {request.url.path}."
        answer = OmniError(message, code="method_not_allowed")
    answer.status = error.status_code
    response = error_response(answer)
    response.headers.update(error.headers or {})
    return response


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = ".".join(str(step) for step in first["loc"][1:])
    return error_response(
        RequestError(f"Invalid value for '{param}': {first['msg']}.", param=param or None)
    )


async def _on_bug(request: Request, error: Exception) -> Response:
    return error_response(internal_error(error))
