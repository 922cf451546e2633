"""Answers that the router gives itself, as aiohttp sends them."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from omni_router.errors import JSON, RouterError


def json_response(content: Any, status: int = 200) -> web.Response:
    """What msgspec can encode."""
    return web.Response(body=msgspec.json.encode(content), status=status, content_type=JSON)


def refusal(error: RouterError) -> web.Response:
    """An OpenAI error object."""
    return web.Response(
        body=error.body(), status=error.status, headers=error.headers, content_type=JSON
    )
