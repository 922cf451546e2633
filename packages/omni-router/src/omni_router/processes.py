"""Several processes of one router on one port, and the workers that it launches: their parent.

The processes share nothing but the port, between whose sockets the kernel spreads connections
(SO_REUSEPORT): each knows workers for itself and has its share of the bounds. The parent takes
signals, starts again what dies, and sees no request.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import uvloop

from omni_router.access import access_log
from omni_router.keys import Keys
from omni_router.pool import PATIENCE as WORKER_PATIENCE
from omni_router.pool import launches, with_keys_for_workers
from omni_router.reload import Reload, reread_or_none
from omni_router.serve import bind, cannot_listen, serve, tls_of
from omni_router.settings import Settings
from omni_router.supervise import Child, Group, Patience, Supervisor

log = logging.getLogger("omni.router")

PATIENCE: Final = Patience(steady_s=60.0)
_WORKER_GRACE_S: Final = 45.0
"""`omni serve` drains for 30 s, unless it is told otherwise, and stops its stages."""
_ROUTER_GRACE_S: Final = 10.0
"""Beyond its drain."""


class Parent:
    """Of router processes and launched workers."""

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        reread: Callable[[], Settings],
        announce: Callable[[str], None],
        command: Sequence[str] = (),
        patience: Patience = WORKER_PATIENCE,
    ) -> None:
        """`reread` gives the settings as the --config file has them then. `command` stands for
        `omni serve`, and `patience` is with its processes. ConfigError for what cannot be launched,
        or listened on."""
        self._keys = with_keys_for_workers(keys, os.environ) if settings.launch else keys
        self._reread = reread
        self._announce = announce
        self._patience = patience
        self._launched = launches(settings, self._keys, os.environ, command)
        for launch in self._launched:
            log.info("%s runs at %s, logs to %s", launch.spec.name, launch.spec.url, launch.log)
        tls_of(settings)  # what is wrong is said once, and before anything starts
        self._place = reserve(settings.host, settings.port)
        self._settings = self._completed(settings)

    def run(self) -> int:
        """Until SIGTERM or SIGINT; the exit status."""
        settings = self._settings
        routers = tuple(self._router(number) for number in range(settings.processes))
        workers = tuple(launch.child(self._patience) for launch in self._launched)
        own = len(settings.workers) == len(workers)
        groups = (
            Group(
                children=routers,
                grace_s=settings.drain_timeout_s + _ROUTER_GRACE_S,
                is_needed=True,
            ),
            Group(
                children=workers, grace_s=_WORKER_GRACE_S, is_needed=own and bool(settings.launch)
            ),
        )
        supervisor = Supervisor(groups, lambda: self._reload(supervisor, groups[0]))
        with self._place:
            return supervisor.run()

    def _router(self, number: int) -> Child:
        def run() -> None:
            is_first = number == 0 and child.lives == 1
            self._route(number, self._announce if is_first else _keep_quiet)

        name = "router" if self._settings.processes == 1 else f"router process {number}"
        child = Child(name=name, run=run, patience=PATIENCE)
        return child

    def _completed(self, settings: Settings) -> Settings:
        """With the workers that we launch, and the port that we have."""
        launched = tuple(launch.spec for launch in self._launched)
        port = self._place.getsockname()[1]
        return replace(settings, workers=(*settings.workers, *launched), port=port)

    def _route(self, number: int, announce: Callable[[str], None]) -> None:
        """Be one process of the router."""
        settings = self._settings
        reload = Reload(settings, lambda: self._completed(self._reread()))
        with ExitStack() as stack:
            listener = stack.enter_context(bind(settings.host, settings.port, shared=True))
            own = []
            if settings.process_port is not None:
                own = [stack.enter_context(bind(settings.host, settings.process_port + number))]
            on_access = stack.enter_context(access_log(settings.access_log))
            uvloop.run(serve(settings, self._keys, listener, announce, on_access, reload, own))

    def _reload(self, supervisor: Supervisor, routers: Group) -> None:
        """SIGHUP: every process reads the file, if it can be read; later ones start with it."""
        if (new := reread_or_none(self._reread)) is not None:
            self._settings = replace(self._settings, workers=self._completed(new).workers)
            supervisor.tell(routers, signal.SIGHUP)


def _keep_quiet(line: str) -> None:
    """One process has said it for all."""


def reserve(host: str, port: int) -> socket.socket:
    """The port, for sockets that share it, and for as long as this one is open: it never listens.

    ConfigError if anything else listens there, even if it would share.
    """
    with bind(host, port) as alone:
        family, address = alone.family, alone.getsockname()
    place = socket.socket(family)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        place.bind(address)
    except OSError as exc:
        place.close()
        raise cannot_listen(host, port, exc) from exc
    return place
