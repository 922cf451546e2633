"""Child processes that are started again when they die, and that end when this one does.

The parent has one thread and no event loop, so that it may fork at any time; all it waits for are
signals. Knows processes and signals. Knows nothing of what the children do.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

log = logging.getLogger("omni.router")

KILLED_BY_SIGINT: Final = 130
_STOPS: Final = frozenset({signal.SIGINT, signal.SIGTERM})
_HEARD: Final = _STOPS | {signal.SIGHUP, signal.SIGCHLD}
_PR_SET_PDEATHSIG: Final = 1
_LOOK_S: Final = 1.0
"""Between looks at the children if no signal comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often a child may die."""

    steady_s: float
    """A life as long as this ends a row of deaths."""
    deaths: int = 5
    """So many in a row are a crash loop."""
    first_s: float = 0.1
    """Before the first new start; twice as long before each one after it."""
    loop_pause_s: float = 60.0
    """Before a new start in a crash loop."""
    hung_s: float = 60.0
    """Without a sign of life, after a first one, until it is killed."""


@dataclass(slots=True, kw_only=True, eq=False)
class Child:
    """One process, through all its lives."""

    name: str
    run: Callable[[], None]
    """What the process does; called in it."""
    patience: Patience
    last_words: Callable[[], str] = str
    """What to tell of a crash loop besides."""
    is_live: Callable[[], bool] = lambda: True
    """Asks for a sign of life; takes a second or two at most."""
    pid: int | None = None
    due_s: float = 0.0
    """CLOCK_MONOTONIC of the next start, while it has no pid."""
    started_s: float = 0.0
    live_s: float | None = None
    """CLOCK_MONOTONIC of its last sign of life; None before the first of this life."""
    lives: int = 0
    deaths: int = 0
    """In a row."""

    @property
    def is_looping(self) -> bool:
        """It has died, and it keeps doing so."""
        return self.pid is None and self.deaths >= self.patience.deaths

    def start(self) -> None:
        """Begin a life."""
        self.lives += 1
        self.started_s, self.live_s = time.monotonic(), None
        self.pid = _fork(self.run)

    def silent_s(self) -> float:
        """Ask for a sign of life; since when there was none, 0 before the first."""
        if self.is_live():
            self.live_s = time.monotonic()
        return 0.0 if self.live_s is None else time.monotonic() - self.live_s

    def died(self, now_s: float) -> float:
        """Count a death; seconds until the next start."""
        patience = self.patience
        self.pid = None
        self.deaths = 1 if now_s - self.started_s >= patience.steady_s else self.deaths + 1
        pause_s = patience.first_s * 2.0 ** (self.deaths - 1)
        if self.is_looping:
            pause_s = patience.loop_pause_s
        self.due_s = now_s + pause_s
        return pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Children of one kind."""

    children: tuple[Child, ...]
    grace_s: float
    """Between SIGTERM and SIGKILL."""
    is_needed: bool
    """There is no use in the rest once each of these keeps dying."""


class Supervisor:
    """Runs groups of children. SIGTERM or SIGINT stops them, the groups one after the other; a
    second one kills what is left."""

    def __init__(self, groups: tuple[Group, ...], on_hangup: Callable[[], None]) -> None:
        self._groups = groups
        self._on_hangup = on_hangup

    @property
    def _children(self) -> Iterator[Child]:
        return (child for group in self._groups for child in group.children)

    def run(self) -> int:
        """Until a signal stops it; the exit status, which is 1 for a group that keeps dying.

        Signals stay blocked here, so that none is lost between two looks.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        try:
            while not self._is_hopeless():
                self._start_due()
                number = self._next_signal(self._pause_s())
                if number in _STOPS:
                    return 0 if self._stop() else KILLED_BY_SIGINT
                if number == signal.SIGHUP:
                    self._on_hangup()
                self._kill_hung()
                self._collect()
            self._stop()
            return 1
        finally:
            self._kill()

    def tell(self, group: Group, number: signal.Signals) -> None:
        """Send a signal to each child of a group that lives."""
        for child in group.children:
            if child.pid is not None:
                os.kill(child.pid, number)

    def _is_hopeless(self) -> bool:
        return any(
            group.is_needed and all(child.is_looping for child in group.children)
            for group in self._groups
        )

    def _start_due(self) -> None:
        for child in self._children:
            if child.pid is None and child.due_s <= time.monotonic():
                child.start()

    def _pause_s(self) -> float:
        due = [child.due_s for child in self._children if child.pid is None]
        return max(0.0, min([_LOOK_S, *(due_s - time.monotonic() for due_s in due)]))

    @staticmethod
    def _next_signal(timeout_s: float) -> int | None:
        heard = signal.sigtimedwait(_HEARD, timeout_s)
        return heard.si_signo if heard else None

    def _kill_hung(self) -> None:
        for child in self._children:
            if child.pid is None or (silent_s := child.silent_s()) < child.patience.hung_s:
                continue
            log.error("%s has not answered for %.0f s: it is killed", child.name, silent_s)
            _kill_group(child.pid)

    def _collect(self) -> None:
        """Bury children that have died by themselves, and say when they are back."""
        for child, how in self._buried():
            pause_s = child.died(time.monotonic())
            if not child.is_looping:
                log.warning("%s has ended: %s; it starts again in %.1f s", child.name, how, pause_s)
                continue
            words = child.last_words()
            log.error("%s keeps dying: %s; next try in %.0f s%s", child.name, how, pause_s, words)
        _bury_orphans({child.pid for child in self._children})

    def _buried(self) -> Iterator[tuple[Child, str]]:
        """Children that have ended since the last look, with how; what they have left is killed."""
        for child in self._children:
            if child.pid is None:
                continue
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, child.pid, options) is None:
                continue
            _kill_group(child.pid)  # before it is buried, and its number may be another's
            _, status = os.waitpid(child.pid, 0)
            yield child, _told(os.waitstatus_to_exitcode(status))

    def _stop(self) -> bool:
        """End each group in turn; False if a second signal has cut that short."""
        for group in self._groups:
            self.tell(group, signal.SIGTERM)
            until_s = time.monotonic() + group.grace_s
            while any(child.pid is not None for child in group.children):
                rest_s = until_s - time.monotonic()
                if rest_s <= 0:
                    log.warning("not all have ended after %g s; they are killed", group.grace_s)
                    break
                if self._next_signal(min(rest_s, _LOOK_S)) in _STOPS:
                    return False
                for child, _ in self._buried():
                    child.pid = None
            _kill(group)
        return True

    def _kill(self) -> None:
        for group in self._groups:
            _kill(group)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the process `parent`, which started it, has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _fork(run: Callable[[], None]) -> int:
    """The pid of a process that calls `run`, in a session of its own: Ctrl-C is for us alone."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.setsid()
        die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        run()
        status = 0
    except Exception:  # the edge: it is this process that fails
        log.exception("the process fails")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _bury_orphans(ours: set[int | None]) -> None:
    """Those that dead children have left to us, as they do where we are process 1."""
    with suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in ours:  # it has ended just now: its own turn comes
                return
            os.waitpid(found.si_pid, 0)


def _kill(group: Group) -> None:
    for child in group.children:
        if child.pid is not None:
            _kill_group(child.pid)
            os.waitpid(child.pid, 0)
            child.pid = None


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):  # it may have no group of its own yet
        os.kill(pid, signal.SIGKILL)


def _told(status: int) -> str:
    if status < 0:
        return f"killed by signal {-status} ({signal.strsignal(-status)})"
    return f"exit status {status}"
