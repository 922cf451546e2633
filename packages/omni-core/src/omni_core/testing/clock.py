"""Time that passes when told, for whatever takes a clock or something to call later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class VirtualTimer:
    """A call that is due at a moment of a `VirtualClock`."""

    due_s: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        """Do not call."""
        self.cancelled = True


@dataclass(slots=True)
class VirtualClock:
    """A clock that stands still: `clock()` is its time in seconds, `call_later` is that of an event
    loop (`omni_core.coordinator.timers.CallLater`)."""

    now_s: float = 0.0
    timers: list[VirtualTimer] = field(default_factory=list)

    def __call__(self) -> float:
        """Now."""
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> VirtualTimer:
        """Call when so many seconds have passed."""
        timer = VirtualTimer(self.now_s + delay_s, call)
        self.timers.append(timer)
        return timer

    def pass_time(self, seconds: float) -> None:
        """Let time pass; what falls due on the way is called at its moment, in order."""
        until_s = self.now_s + seconds
        while due := [t for t in self.timers if not t.cancelled and t.due_s <= until_s]:
            first = min(due, key=lambda timer: timer.due_s)
            self.timers.remove(first)
            self.now_s = max(self.now_s, first.due_s)
            first.call()
        self.now_s = until_s
