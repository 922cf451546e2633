"""Listening: a bound socket and a uvicorn server that leaves signals to its owner.

Knows ports and uvicorn. Knows nothing of the application.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from omni_core.errors import ConfigError

BACKLOG = 2048
MOST_FRAME_BYTES = 32 * 1024 * 1024
"""Of a WebSocket: 15 MiB of sound are 20 as base64, and too much more deserves an error event."""
CUT_SHORT = "ASGI callable returned without completing response"
"""What uvicorn says of a stream that an error ends; it is meant."""


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would cut short an orderly shutdown."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. ConfigError when it cannot be had.

    Its connections send every piece at once (TCP_NODELAY, which they inherit): asyncio sees to that
    only where a socket names its protocol, which those of `create_server` do not. Otherwise what
    follows a small piece waits for its receipt, which clients hold back for 40 ms.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as exc:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {exc.strerror or exc}; choose another --port or "
            "--host, or stop what is using it"
        ) from exc
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def http_server(app: ASGIApp, drain_timeout_s: float) -> HttpServer:
    """A server for `app` that gives open requests `drain_timeout_s` to end when it stops."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws_max_size=MOST_FRAME_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=round(drain_timeout_s),
    )
    logging.getLogger("uvicorn.error").addFilter(_not_cut_short)
    return HttpServer(config)


def _not_cut_short(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(CUT_SHORT)
