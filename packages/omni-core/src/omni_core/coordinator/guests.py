"""Processes of other hosts: who is awaited, who is there, and who has to know of whom.

A guest is started by hand on its own host, dials in, and gets the place it names. When its
connection ends it is dead, and its place is open again. Knows addresses and lines. Starts nothing,
and knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from omni_core.addresses import parse_tcp
from omni_core.coordinator.fleet import Fleet, Replica
from omni_core.curve import Curve, read_secret
from omni_core.errors import ConfigError
from omni_core.messages import (
    PROTOCOL_VERSION,
    Hello,
    PeerAt,
    Setup,
    ToStage,
    TurnedAway,
)

_FAREWELL_S: Final = 5.0
"""A stranger has so long to hear why it is turned away."""

log = logging.getLogger("omni.runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How a pipeline reaches other hosts."""

    listen: str
    """Where guests dial in: "tcp://HOST:PORT"."""
    secret_file: Path
    guests: tuple[str, ...]
    """Processes that are started elsewhere."""

    def keys(self, places: Collection[str]) -> Curve:
        """Those that all hosts have; ConfigError with everything that is wrong."""
        found = [
            f"remote: {name!r} is no process; there are {', '.join(places)}"
            for name in self.guests
            if name not in places
        ]
        try:
            parse_tcp(self.listen, listening=True)
        except ValueError as exc:
            found.append(f"listen: {exc}")
        if found:
            raise ConfigError(found)
        return read_secret(self.secret_file)


class FarLines(Protocol):
    """Lines that may lead to other hosts."""

    def send(self, process: str, message: ToStage) -> None:
        """Queue a message."""

    def reach(
        self, process: str, address: str, on_broken: Callable[[str, str], None] | None = None
    ) -> None:
        """Connect to another host; `on_broken` is called once, with the process and what happened,
        when that does not succeed or ends."""

    def forget(self, process: str) -> None:
        """It has ended, or leaves: drop what is queued for it."""


class Guests:
    """The places that are filled from elsewhere, and the addresses of all."""

    def __init__(self, fleet: Fleet, lines: FarLines, names: Iterable[str] = ()) -> None:
        """`names` of the fleet's replicas."""
        self._fleet = fleet
        self._lines = lines
        self._names = frozenset(names)
        self._addresses: dict[str, str] = {}
        self._present: set[str] = set()
        self._strangers = itertools.count()

    def __contains__(self, replica: Replica) -> bool:
        return replica.name in self._names

    def present(self) -> list[str]:
        """The processes that can be talked to; in an open place there is nobody yet."""
        living = [replica for replica in self._fleet.replicas if replica.state != "dead"]
        return [r.process for r in living if r not in self or r.process in self._present]

    def place_for(self, hello: Hello) -> Replica | str:
        """The open place that a guest asks for, or why it gets none."""
        if hello.version != PROTOCOL_VERSION:
            return (
                f"this is version {hello.version} of the protocol and the coordinator's is "
                f"{PROTOCOL_VERSION}; install one version of omni-core"
            )
        for replica in self._fleet.replicas:
            if replica.name == hello.process and replica in self:
                taken = replica.process in self._present
                return f"there is a process {hello.process!r} already" if taken else replica
        names = ", ".join(sorted(self._names)) or "none"
        return f"no process {hello.process!r} is awaited from another host; awaited are: {names}"

    def turn_away(self, hello: Hello, reason: str) -> None:
        """Say so to a guest, which leaves then."""
        log.warning("turned away %r at %s: %s", hello.process, hello.address, reason)
        self._send_away(hello.address, reason)

    def dismiss(self, process: str, reason: str) -> None:
        """Say so to a guest that was let in, or to whoever listens there in the next seconds; the
        caller forgets it."""
        self._send_away(self._addresses[process], reason)

    def _send_away(self, address: str, reason: str) -> None:
        stranger = f"stranger-{next(self._strangers)}"
        asyncio.get_running_loop().call_later(_FAREWELL_S, self._lines.forget, stranger)
        self._lines.reach(stranger, address)
        self._lines.send(stranger, TurnedAway(reason=reason))

    def welcome(
        self, replica: Replica, hello: Hello, on_broken: Callable[[str, str], None]
    ) -> None:
        """Connect to a guest and make everybody acquainted with it."""
        self._present.add(replica.process)
        self._lines.reach(replica.process, hello.address, on_broken)
        self.introduce(replica.process, hello.address)

    def introduce(self, process: str, address: str) -> None:
        """A process listens there: make it and those of other hosts than its own acquainted."""
        self._addresses[process] = address
        for other, its_address in self._addresses.items():
            if other != process and (process in self._present or other in self._present):
                self._lines.send(other, PeerAt(process=process, address=address))
                self._lines.send(process, PeerAt(process=other, address=its_address))

    def forget(self, process: str) -> None:
        """It has ended."""
        self._addresses.pop(process, None)
        self._present.discard(process)


def setup_of_guest(setup: Setup, replica: Replica) -> Setup:
    """What a guest is told: its name, and our clock, beside what to build."""
    return replace(setup, process=replica.process, clock_s=time.monotonic())
