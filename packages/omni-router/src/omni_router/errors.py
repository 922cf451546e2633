"""What the router itself refuses a request with, as OpenAI error objects.

Errors of workers pass through as they are. Knows no request.
"""

from __future__ import annotations

import msgspec

JSON = "application/json"


class RouterError(Exception):
    """A request that no worker answers."""

    status = 500
    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """`retry_after_s`: the client may ask again then."""
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Of the response."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}`."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": "rate_limit_error" if self.status == 429 else kind,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )


class BadRequestError(RouterError):
    """The client asked for what cannot be."""

    status = 400
    code = "invalid_request"


class UnauthorizedError(RouterError):
    """The route needs a key, and the request has none or a wrong one."""

    status = 401
    code = "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        """Of the response."""
        return {"WWW-Authenticate": 'Bearer realm="omni"'}


class ForbiddenError(RouterError):
    """The key is good, and not for this route."""

    status = 403
    code = "permission_denied"


class NotFoundError(RouterError):
    """There is no such route, model or worker."""

    status = 404
    code = "not_found"


class MethodNotAllowedError(RouterError):
    """The route is not asked so."""

    status = 405
    code = "method_not_allowed"


class ConflictError(RouterError):
    """The state of the router does not allow it now."""

    status = 409
    code = "conflict"


class TooLargeError(RouterError):
    """The body is over the limit."""

    status = 413
    code = "payload_too_large"


class BadGatewayError(RouterError):
    """The worker broke off, or answered what is no HTTP."""

    status = 502
    code = "worker_failed"


class UnavailableError(RouterError):
    """No worker takes the request now; another try may find one."""

    status = 503
    code = "no_worker"

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, code=code, retry_after_s=retry_after_s)


class ConfigError(Exception):
    """What the operator set cannot be; the message says where and what to do."""


def internal_error(error: Exception) -> RouterError:
    """What a client is told of a bug: its kind, and where to look."""
    return RouterError(
        f"Internal error ({type(error).__name__}); the router's log has the details."
    )
