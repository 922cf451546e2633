"""One process of the router: from its settings to its last open request.

Knows sockets, signals and shutdown. The port answers from the first moment, whatever workers do.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from aiohttp import web

from omni_router.access import OnAccess, look_away
from omni_router.app import App
from omni_router.errors import ConfigError
from omni_router.journal import Journal
from omni_router.keys import Keys
from omni_router.router import Router
from omni_router.settings import Settings
from omni_router.weight_routes import routes
from omni_router.weights import Weights

READY: Final = "Omni router is ready on "
"""What precedes the URL on the line that says so."""
KILLED_BY_SIGINT: Final = 130
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_BACKLOG: Final = 2048
_LINE_BYTES: Final = 64 * 1024
_IDLE_S: Final = 75.0
"""Until a client's connection without a request is closed: what balances load before us waits for
60 s."""
_LAST_WORDS_S: Final = 2.0
"""For connections to take what is under way, once the drain is over."""


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; port 0 picks a free one, and processes may share it. ConfigError when it
    cannot be had. Its connections send every piece at once (TCP_NODELAY, which they inherit)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, reuse_port=shared
        )
    except OSError as exc:
        raise cannot_listen(host, port, exc) from exc
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def cannot_listen(host: str, port: int, why: OSError) -> ConfigError:
    """What to say of an address that cannot be had."""
    return ConfigError(
        f"cannot listen on {host}:{port}: {why.strerror or why}; choose another --port or "
        "--host, or stop what is using it"
    )


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """Where clients reach a listening socket."""
    host, port = listener.getsockname()[:2]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{'https' if tls else 'http'}://{place}"


def ignore(router: Router) -> None:
    """What SIGHUP does to a router without a file to read again."""


async def serve(
    settings: Settings,
    keys: Keys,
    listener: socket.socket,
    announce: Callable[[str], None],
    on_access: OnAccess = look_away,
    on_hangup: Callable[[Router], None] = ignore,
    more: Sequence[socket.socket] = (),
) -> None:
    """Serve until SIGINT or SIGTERM: drain open requests, then end. A second signal kills.

    SIGHUP calls `on_hangup`. `more` are other sockets that listen.
    """
    raise_file_limit()
    tls = tls_of(settings)
    router = Router(settings, keys)
    # Before the first worker is heard of: who must not serve never does.
    weights = None if settings.journal is None else Weights(router, Journal(Path(settings.journal)))
    await router.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup, router)
    server = http_server(App(router, on_access, routes(router, weights)))
    runner = web.ServerRunner(server, shutdown_timeout=_LAST_WORDS_S)
    await runner.setup()
    try:
        for one in (listener, *more):
            await web.SockSite(runner, one, ssl_context=tls).start()
        announce(f"{READY}{url_of(listener, tls=tls is not None)}")
        await _until_asked(router)
        await router.drain_all()
    finally:
        await runner.cleanup()
        await router.close()


def http_server(app: App) -> web.Server:
    """What answers connections; who leaves has the rest of its request cancelled."""
    return web.Server(
        app.handle,
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        keepalive_timeout=_IDLE_S,
        max_line_size=_LINE_BYTES,
        max_field_size=_LINE_BYTES,
    )


def raise_file_limit() -> None:
    """As many open connections as the system lets this process have: a request takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _until_asked(router: Router) -> None:
    asked = asyncio.Event()

    def stop() -> None:
        if asked.is_set():
            os._exit(KILLED_BY_SIGINT)
        router.is_draining = True
        asked.set()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop)
    await asked.wait()


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """What the port speaks; None for plain HTTP. ConfigError for files that are none."""
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"--tls-cert, --tls-key: {settings.tls_cert} and {settings.tls_key} cannot be used: "
            f"{exc}"
        ) from exc
    return context
