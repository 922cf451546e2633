"""A server in this process, on a free port of the loopback interface.

For benches that want to know what the server itself takes: its CPU time, its memory, or when a
request reaches the pipeline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from omni_server.http import bind, http_server


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[int]:
    """While the app is served; its port."""
    listener = bind("127.0.0.1", 0)
    server = http_server(app, drain_timeout_s=1)
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await answering
