"""Notices a process that holds requests and does not answer any more.

While requests are in the stages, each process that has some is sent a `Ping` a few times within the
limit. Its main loop answers beside its stages, however busy these are; one that is stopped, or in
native code that keeps the interpreter to itself, does not. Knows rounds and names. Ends no process,
and does nothing while there is no request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from omni_core.coordinator.fleet import Fleet, Replica
from omni_core.coordinator.timers import CallLater, Timer, on_loop
from omni_core.messages import Ping

WATCHDOG_TIMEOUT_S: Final = 30.0
_ROUNDS: Final = 6
"""Within the limit. A process that hangs is found one or two of them after it."""


class Watchdog:
    """Asks the processes of a fleet whether they are there."""

    def __init__(
        self,
        fleet: Fleet,
        send: Callable[[str, Ping], None],
        on_hang: Callable[[Replica], None],
        timeout_s: float | None,
        *,
        call_later: CallLater = on_loop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_hang` is called with who has not answered for `timeout_s`; None asks nobody."""
        self._fleet = fleet
        self._send = send
        self._on_hang = on_hang
        self._round_s = None if timeout_s is None else timeout_s / _ROUNDS
        self._call_later = call_later
        self._clock = clock
        self._unanswered: dict[str, int] = {}
        """{process: rounds since it was asked}."""
        self._timer: Timer | None = None
        self._due_s = 0.0

    def wake(self) -> None:
        """There is a request: look after whoever has it, until there is none."""
        if self._timer is None and self._round_s is not None:
            self._due_s = self._clock() + self._round_s
            self._timer = self._call_later(self._round_s, self._round)

    def answered(self, process: str) -> None:
        """A `Pong` has come."""
        self._unanswered.pop(process, None)

    def stop(self) -> None:
        """Ask nobody any more."""
        self._round_s = None
        if self._timer is not None:
            self._timer.cancel()

    def _round(self) -> None:
        self._timer = None
        if self._round_s is None:
            return
        if self._clock() > self._due_s + self._round_s:
            self._unanswered.clear()  # we stood still ourselves: answers may lie there unread
        asked = [r for r in self._fleet.replicas if r.state == "ready" and self._concerns(r)]
        before, self._unanswered = self._unanswered, {}
        for replica in asked:
            rounds = before.get(replica.process, 0)
            if rounds == 0:
                self._send(replica.process, Ping())
            self._unanswered[replica.process] = rounds + 1
        if asked:
            self.wake()
        for replica in asked:
            if self._unanswered[replica.process] > _ROUNDS:
                self._on_hang(replica)

    def _concerns(self, replica: Replica) -> bool:
        return replica.load > 0 or replica.process in self._unanswered
