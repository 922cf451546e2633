"""From settings to the last open request: the socket, signals, drain and shutdown."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import ssl
from contextlib import closing
from typing import Final

import uvloop
from aiohttp import web

from omni_router.access import access_log
from omni_router.app import App, Doors
from omni_router.errors import ConfigError
from omni_router.gateway import Gateway
from omni_router.keys import ADMIN_KEY, API_KEYS, KeyRing, read_keys
from omni_router.settings import Settings

log = logging.getLogger("omni.router")

READY: Final = "Omni router is ready on "
"""What precedes the URL on the line that says that it listens."""
_BACKLOG: Final = 2048
_LAST_WORDS_S: Final = 5.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def serve(settings: Settings) -> None:
    """Until a signal; ConfigError for what cannot be served."""
    uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    doors = doors_of(settings)
    secure = tls(settings)
    [worker_key, *_] = [*read_keys(settings.worker_key_file), None]
    with access_log(settings.access_log) as on_access, closing(bind(settings)) as listening:
        gateway = Gateway(settings, worker_key=worker_key)
        server = web.Server(
            App(gateway, doors, on_access).handle,
            access_log=None,
            auto_decompress=False,
            handler_cancellation=True,
            max_line_size=2**16,
            max_field_size=2**16,
        )
        stopped = stop_signal()
        async with gateway.running():
            loop = asyncio.get_running_loop()
            listener = await loop.create_server(
                server, sock=listening, backlog=_BACKLOG, ssl=secure
            )
            print(f"{READY}{address(listening, secure is not None)}", flush=True)
            await stopped.wait()
            log.info("draining, at most %g s", settings.drain_timeout_s)
            await gateway.drain()
            listener.close()
            await server.shutdown(_LAST_WORDS_S)


def doors_of(settings: Settings) -> Doors:
    """The keys, and a warning if everybody who reaches this host may use the router."""
    keys = KeyRing.of(read_keys(settings.api_key_file, API_KEYS))
    local = is_loopback(settings.host)
    if not keys and not local:
        log.warning(
            "no API key is set: whoever reaches %s port %d may use this router; set "
            "--api-key-file, or listen on 127.0.0.1",
            *(settings.host, settings.port),
        )
    access = settings.metrics_access
    return Doors(
        api_keys=keys,
        admin_keys=KeyRing.of(read_keys(settings.admin_key_file, ADMIN_KEY)),
        metrics_are_open=access == "open" or (access == "auto" and local),
    )


def tls(settings: Settings) -> ssl.SSLContext | None:
    """What the certificate and its key make; ConfigError for what they are not."""
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"tls_cert: {settings.tls_cert} and its key: {exc}") from exc
    return context


def bind(settings: Settings) -> socket.socket:
    """The socket that will listen; ConfigError if it cannot. Several processes share a port."""
    try:
        info = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = info[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.processes > 1:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(where)
    except OSError as exc:
        raise ConfigError(
            f"{settings.host} port {settings.port} cannot be listened on: {exc.strerror}; choose "
            "another --port, 0 for any"
        ) from exc
    listening.setblocking(False)
    return listening


def address(listening: socket.socket, is_secure: bool) -> str:
    """The URL of a socket."""
    host, port, *_ = listening.getsockname()
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if is_secure else ''}://{shown}:{port}"


def stop_signal() -> asyncio.Event:
    """Set by the first signal that asks for the end; the second one kills."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop() -> None:
        stopped.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    return stopped


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
