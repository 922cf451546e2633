"""Where processes listen: in the directory of a run, which only its user may enter, and on TCP.

Processes of one host reach each other by sockets in that directory. Those of other hosts are
reached over TCP, where they have said they are. Knows addresses and how sockets are bound and
connected. Knows nothing of what is sent.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any, Final

import zmq

from omni_core.curve import Curve
from omni_core.errors import ConfigError

COORDINATOR: Final = "coordinator"
_KEY_FILE: Final = "curve"
_HOST_FILE: Final = "listen"
_TCP: Final = re.compile(
    r"tcp://(?P<host>[A-Za-z0-9][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\]|\*):(?P<port>\d{1,5}|\*)"
)
_HIGHEST_PORT: Final = 65_535
_ANY: Final = frozenset({"*", "0.0.0.0", "[::]"})
"""Every interface of a host: somewhere to listen, nowhere to connect to."""


def address(run_dir: Path, process: str) -> str:
    """The ZMQ address of a process of this host."""
    return f"ipc://{run_dir / process}.ipc"


def segments(run_dir: Path) -> Path:
    """The directory of the shared-memory segments."""
    return run_dir / "segments"


class AddressBook:
    """Where everybody is, as one process knows it; safe from any thread.

    Without keys there is no TCP. A process with a directory shares its host with the coordinator;
    one without is alone on its host.
    """

    def __init__(
        self, run_dir: Path | None, curve: Curve | None = None, interface: str = "*"
    ) -> None:
        """`interface` is where to listen by default."""
        self._run_dir = run_dir
        self._curve = curve
        self._interface = interface
        self._lock = threading.Lock()
        self._far: dict[str, str] = {}

    @classmethod
    def of_run(cls, run_dir: Path) -> AddressBook:
        """For a process that was started in a run's directory: with its keys, if it has any."""
        curve = Curve.load(run_dir / _KEY_FILE)
        return cls(run_dir, curve, (run_dir / _HOST_FILE).read_text() if curve else "*")

    def open_network(self, curve: Curve, interface: str = "*") -> None:
        """Let processes of this run, those started from here on too, talk over TCP; they listen on
        this interface."""
        assert self._run_dir is not None
        (self._run_dir / _HOST_FILE).write_text(interface)
        self._interface = interface
        curve.save(self._run_dir / _KEY_FILE)
        self._curve = curve

    def learn(self, process: str, where: str) -> None:
        """A process of another host can be reached there; ValueError if that is no address."""
        parse_tcp(where)
        with self._lock:
            self._far[process] = where

    def forget(self, process: str) -> None:
        """It is gone."""
        with self._lock:
            self._far.pop(process, None)

    def is_near(self, process: str) -> bool:
        """Whether the process runs on this host, as far as we know."""
        return self._run_dir is not None and process not in self._far

    def listen(self, inbound: zmq.Socket[Any], process: str, tcp: str | None = None) -> str:
        """Bind a process's socket; its TCP address with the port it got, empty without keys.

        `tcp` is where to listen, by default any port of the book's interface.
        """
        if self._run_dir is not None:
            inbound.bind(address(self._run_dir, process))
        if self._curve is None:
            return ""
        self._curve.guard(inbound)
        where = tcp or f"tcp://{self._interface}:*"
        inbound.ipv6 = _is_ipv6(where)
        try:
            inbound.bind(where)
        except zmq.ZMQError as exc:
            raise ConfigError(f"cannot listen on {where}: {exc}; choose another address") from exc
        return inbound.getsockopt_string(zmq.LAST_ENDPOINT).removesuffix("\0")

    def connect(self, outbound: zmq.Socket[Any], process: str) -> bool:
        """Connect a socket to a process; False if nobody has said yet where it is, ValueError if
        what was said cannot be used."""
        if self.is_near(process):
            assert self._run_dir is not None
            outbound.connect(address(self._run_dir, process))
            return True
        with self._lock:
            where = self._far.get(process)
        if where is None or self._curve is None:
            return False
        self._curve.join(outbound)
        outbound.ipv6 = _is_ipv6(where)
        try:
            outbound.connect(where)
        except zmq.ZMQError as exc:
            raise ValueError(f"{where!r} cannot be connected to: {exc}") from exc
        return True


def parse_tcp(where: str, *, listening: bool = False) -> tuple[str, int]:
    """Host and port of "tcp://HOST:PORT"; ValueError for anything else. Only who is `listening`
    may mean any interface, or any port by 0."""
    match = _TCP.fullmatch(where)
    if match is None or match["port"] == "*" or int(match["port"]) > _HIGHEST_PORT:
        raise ValueError(f"{where!r} is no address; write tcp://HOST:PORT")
    if not listening and (match["host"] in _ANY or int(match["port"]) == 0):
        raise ValueError(f"{where!r} is nowhere to connect to; name a host and its port")
    return match["host"], int(match["port"])


def seen_from(where: str, host: str) -> str:
    """An address whose host is "any interface", for somebody who reaches that machine as `host`."""
    named, port = parse_tcp(where, listening=True)
    return f"tcp://{host if named in _ANY else named}:{port}"


def _is_ipv6(where: str) -> bool:
    return "[" in where
