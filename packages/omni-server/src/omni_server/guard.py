"""Who may ask what: API keys before the API but probes and voices, the admin key before /admin/.

Knows paths and keys. A WebSocket without a key is refused before it opens.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from omni_core.errors import OmniError
from omni_server.errors import deny, error_response
from omni_server.keys import ForbiddenError, UnauthorizedError, presented_key
from omni_server.metrics import Metrics
from omni_server.playground.page import is_page
from omni_server.settings import Settings

PROBES: Final = frozenset({"/live", "/health", "/ready"})
"""Open to everybody: what asks them has no keys."""
VOICES: Final = "/v1/audio/voices"
"""Open, too: names, and Open WebUI asks for them without the key it has."""
ADMIN: Final = "/admin/"


class Guard:
    """ASGI middleware: lets requests with the right key pass, others get 401 or 403.

    Without keys, all pass. The admin key opens every route.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope["path"], presented_key(Headers(scope=scope)))
        except (UnauthorizedError, ForbiddenError) as error:
            self._metrics.refused(error.code or "")
            await _refuse(error, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, path: str, key: str | None) -> None:
        settings = self._settings
        if settings.admin_keys.has(key):
            return
        is_user = settings.api_keys.has(key)
        if path.startswith(ADMIN):
            if settings.admin_keys and is_user:
                raise ForbiddenError("This needs the admin key; yours is an API key.")
            if settings.admin_keys:
                raise _unauthorized(key, "an admin key")
        elif settings.api_keys and not (is_user or self._is_open(path)):
            raise _unauthorized(key, "an API key")

    def _is_open(self, path: str) -> bool:
        if path == "/metrics":
            return self._settings.metrics_are_open
        is_file = self._settings.playground and is_page(path)
        return is_file or path == VOICES or path in PROBES


def _unauthorized(key: str | None, what: str) -> UnauthorizedError:
    if key is None:
        return UnauthorizedError(
            f"You didn't provide {what}; send it as 'Authorization: Bearer KEY'.",
            code="missing_api_key",
        )
    return UnauthorizedError(f"Incorrect key provided; this needs {what}.")


async def _refuse(error: OmniError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await deny(error, scope, receive, send)
        return
    response = error_response(error)
    if isinstance(error, UnauthorizedError):
        wrong = ', error="invalid_token"' if error.code == UnauthorizedError.default_code else ""
        response.headers["WWW-Authenticate"] = f'Bearer realm="omni"{wrong}'
    await response(scope, receive, send)
