"""A stage process on another host than the coordinator's: it dials in, and is told what it is.

Knows what is different from a process that the coordinator started: its name, its clock, where its
checkpoint lies, and that it leaves when its line breaks or nobody answers. The rest is
`StageProcess`.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from omni_core.addresses import COORDINATOR, AddressBook, parse_tcp, seen_from
from omni_core.curve import read_secret
from omni_core.errors import ConfigError
from omni_core.messages import (
    PROTOCOL_VERSION,
    DataReady,
    Done,
    Emit,
    Fail,
    Hello,
    Released,
    Setup,
    StreamChunk,
    StreamDone,
)
from omni_core.stage.clock import offset_to, shifted
from omni_core.stage.line import LineState
from omni_core.stage.process import Home, StageProcess

_ANSWER_S: Final = 30.0
"""A coordinator that can reach us has said what to build by then."""

log = logging.getLogger("omni.stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a guest knows before it dials in."""

    process: str
    """The place it is to fill."""
    coordinator: str
    """Where the coordinator listens: "tcp://HOST:PORT"."""
    secret_file: Path
    listen: str | None = None
    """Where this process listens; by default any port of the interface that leads there."""
    model_path: str | None = None
    """The checkpoint on this host; by default where it is on the coordinator's."""


class GuestProcess(StageProcess):
    """One stage process of this host."""

    def __init__(self, invitation: Invitation) -> None:
        """ConfigError for an invitation that cannot be used."""
        self._coordinator_host = _host(invitation.coordinator, "connect")
        self._own_host = _interface_to(self._coordinator_host)
        if invitation.listen is not None:
            _host(invitation.listen, "listen", listening=True)
        book = AddressBook(None, read_secret(invitation.secret_file))
        book.learn(COORDINATOR, invitation.coordinator)
        listen = invitation.listen or f"tcp://{self._own_host}:*"
        super().__init__(invitation.process, Home(book=book, tcp=listen))
        self._invitation = invitation
        self._clock_offset_s = 0.0
        self._line = self._egress.watch(COORDINATOR)
        self._seen = LineState.CALLING
        self._impatience = threading.Timer(_ANSWER_S, self._unanswered)
        self._impatience.daemon = True

    def deliver(self, message: DataReady | StreamChunk | StreamDone, process: str) -> None:
        """See `Links.deliver`. Times are told in the coordinator's clock."""
        if isinstance(message, DataReady) and message.ended:
            *before, own = message.ended
            message = replace(message, ended=(*before, shifted(own, -self._clock_offset_s)))
        super().deliver(message, process)

    def report(self, message: Emit | Done | Fail | Released) -> None:
        """See `Links.report`. Times are told in the coordinator's clock."""
        if isinstance(message, Done):
            message = shifted(message, -self._clock_offset_s)
        super().report(message)

    def _hello(self) -> Hello:
        return Hello(
            version=PROTOCOL_VERSION,
            process=self._name,
            pid=os.getpid(),
            address=seen_from(self._ingress.address, self._own_host),
            guest=True,
        )

    def _register(self, news: select.poll) -> None:
        super()._register(news)
        news.register(self._line.descriptor, select.POLLIN)

    def _look_around(self) -> None:
        """Leave when the coordinator does not let us in, or is gone."""
        state = self._line.look()
        if state is self._seen:
            return
        self._seen = state
        where = self._invitation.coordinator
        match state:
            case LineState.REFUSED:
                self._leave(f"{where} did not let us in: is the secret file the same there?")
            case LineState.BROKEN:
                self._leave(f"the connection to {where} broke")
            case LineState.UP:
                log.warning("connected to %s", where)
                self._impatience.start()
            case LineState.CALLING:
                pass

    def _unanswered(self) -> None:
        where = seen_from(self._ingress.address, self._own_host)
        self._leave(
            f"{self._invitation.coordinator} has not answered; it must be able to connect to us "
            f"at {where}: open that to it, or choose another address with --listen"
        )

    def _build(self, setup: Setup) -> None:
        self._impatience.cancel()
        self._name = setup.process
        self._clock_offset_s = offset_to(setup.clock_s)
        model_path = self._invitation.model_path or setup.model_path
        super()._build(replace(setup, model_path=model_path))

    def _seen_from_here(self, address: str) -> str:
        return seen_from(address, self._coordinator_host)

    def _close(self) -> None:
        self._impatience.cancel()
        self._line.close()
        super()._close()


def _host(where: str, option: str, *, listening: bool = False) -> str:
    try:
        return parse_tcp(where, listening=listening)[0]
    except ValueError as exc:
        raise ConfigError(f"{option}: {exc}") from exc


def _interface_to(host: str) -> str:
    """The address of ours from which packets to that host leave; sends none."""
    bare = host.strip("[]")
    try:
        family, kind, _, _, target = socket.getaddrinfo(bare, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            own: str = probe.getsockname()[0]
    except OSError as exc:
        raise ConfigError(f"connect: no way to {host}: {exc}") from exc
    return f"[{own}]" if family == socket.AF_INET6 else own


def serve_as_guest(invitation: Invitation) -> int:
    """Dial in and serve until the coordinator says to leave, or is gone; the exit code."""
    return GuestProcess(invitation).run()
