"""Keeps the processes of a pipeline alive: starts them, and starts again those that die.

A process says hello, is told what to build, reports progress, and is ready. One that dies, or that
says nothing for too long, costs the requests pinned to it; the others are told, and a successor is
started after a pause. Before it serves, a warm-up request passes it. A process that keeps dying
ends the pipeline, unless another of its kind serves or may soon: `failure` says why.

Knows the order of these steps. Knows nothing of sockets, or of what stages compute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, assert_never

import msgspec

from omni_core.addresses import parse_tcp
from omni_core.coordinator.backoff import DEATHS, LOOP_PAUSE_S, Backoff
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.fleet import DeathCause, Fleet, Replica
from omni_core.coordinator.guests import Guests, setup_of_guest
from omni_core.coordinator.launcher import Child, Launcher
from omni_core.coordinator.warm_up import WarmUp
from omni_core.coordinator.watchdog import WATCHDOG_TIMEOUT_S, Watchdog
from omni_core.errors import NotReadyError, OmniError, ProtocolError, StageDiedError, StageError
from omni_core.janitor import Janitor
from omni_core.messages import (
    PROTOCOL_VERSION,
    Crash,
    Hello,
    PeerDied,
    Progress,
    Ready,
    Setup,
    Shutdown,
    ToStage,
)

_STALL_S: Final = 300.0
"""A process that is not ready and has reported nothing for so long is taken for dead."""
_CRASH_GRACE_S: Final = 1.0
"""For a process that has reported its crash to print it and leave."""
_WARM_UP_PAUSE_S: Final = 1.0

log = logging.getLogger("omni.runtime")


class Peers(Protocol):
    """The lines to the processes."""

    def send(self, process: str, message: ToStage) -> None:
        """Queue a message."""

    def forget(self, process: str) -> None:
        """It has ended: drop what is queued for it."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What fills a place: the environment of its process, and what that builds."""

    env: Mapping[str, str]
    setup: Setup


class Supervisor:
    """Owns the processes of one pipeline from `start` to `stop`."""

    def __init__(
        self,
        blueprints: Mapping[str, Blueprint],
        fleet: Fleet,
        coordinator: Coordinator,
        peers: Peers,
        guests: Guests,
        on_progress: Callable[[str, str], None],
        on_death: Callable[[str], None],
        watchdog_timeout_s: float | None = WATCHDOG_TIMEOUT_S,
    ) -> None:
        """`blueprints` by the names of the fleet's replicas. `on_death` is called with the name of
        a process once no request is left in it, and again at its exit if that comes later.
        `watchdog_timeout_s` is that of `Watchdog`."""
        self._blueprints = dict(blueprints)
        self._fleet = fleet
        self._coordinator = coordinator
        self._peers = peers
        self._guests = guests
        self._on_progress = on_progress
        self._on_death = on_death
        self._launcher: Launcher | None = None
        self._backoffs = {replica.name: Backoff() for replica in fleet.replicas}
        self._stalls: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._warm_up = WarmUp(fleet, coordinator, self._serves, self._unfit)
        self._news = asyncio.Event()
        self._failed = asyncio.Event()
        self._stopping = False
        self.watchdog = Watchdog(fleet, peers.send, self._hangs, watchdog_timeout_s)
        """To be woken when there is a request; to be told of answers."""
        self.failure: OmniError | None = None
        self.serving = False
        """Whether a request has passed every terminal; from then on, deaths are mended."""

    async def start(self, run_dir: Path, janitor: Janitor) -> None:
        """Spawn, build and warm up everything; an error carries the output of what failed."""
        self._launcher = Launcher(run_dir, janitor, self._exited)
        for replica in self._fleet.replicas:
            await self._spawn(replica)
        while not self.serving:
            while any(replica.state in ("starting", "dead") for replica in self._fleet.replicas):
                await self._until_news()
            self._on_progress("pipeline", "warm-up request")
            try:
                await self._warm_up.run()
            except StageDiedError:
                if any(replica.state == "dead" for replica in self._fleet.replicas):
                    raise await self.failed() from None  # which has its last words
                continue  # it was a guest, whose place is open again
            self.serving = True

    async def failed(self) -> OmniError:
        """Wait until the pipeline cannot go on; what it is that ended it."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    def give_up(self, error: OmniError) -> None:
        """End every request, those to come included."""
        if self.failure is None:
            self.failure = error
            self._coordinator.close(error)
            self._failed.set()
            self._news.set()

    def pid(self, process: str) -> int:
        """The pid of a process; 0 while there is none."""
        return 0 if self._launcher is None else self._launcher.pid(process)

    def heard(self, message: Hello | Progress | Ready | Crash) -> None:
        """News of a process; those of one that is dead or unknown change nothing."""
        if isinstance(message, Hello) and message.guest:
            self._called(message)
            return
        replica = self._fleet.find(message.process)
        if replica is None or replica.state == "dead":
            log.warning("%s from %r, which is no process of ours", message, message.process)
            return
        self._expect_news(replica)
        match message:
            case Hello():
                self._greet(replica, message)
            case Progress():
                self._on_progress(self._fleet.label(replica, message.stage), message.text)
            case Ready():
                self._built(replica, message.stage)
            case Crash():
                self._crashed(replica, message)
            case _:
                assert_never(message)

    def build_from(self, model_path: str) -> None:
        """Successors are built from this checkpoint from now on."""
        for name, blueprint in self._blueprints.items():
            setup = msgspec.structs.replace(blueprint.setup, model_path=model_path)
            self._blueprints[name] = Blueprint(blueprint.env, setup)

    def restart(self, process: str, reason: str) -> None:
        """End a process whose weights are in doubt; a successor takes its place."""
        if replica := self._fleet.find(process):
            self._end_process(replica, "weights", reason)

    async def stop(self, grace_s: float) -> None:
        """Ask every process to leave; insist after `grace_s`."""
        self._rest()
        if self._launcher is not None:
            for process in self._guests.present():
                self._peers.send(process, Shutdown())
            await self._launcher.stop(grace_s)

    def kill(self) -> None:
        """Make every process leave at once."""
        self._rest()
        if self._launcher is not None:
            self._launcher.kill_all()

    # -- the life of a process

    async def _spawn(self, replica: Replica) -> None:
        if replica in self._guests:
            self._await_guest(replica)
            return
        assert self._launcher is not None
        await self._launcher.start(replica.process, self._blueprints[replica.name].env)
        self._expect_news(replica)

    def _greet(self, replica: Replica, hello: Hello) -> None:
        if hello.version == PROTOCOL_VERSION:
            self._peers.send(replica.process, self._blueprints[replica.name].setup)
            if hello.address:
                self._guests.introduce(replica.process, hello.address)
            return
        mixed = (
            f"stage process {hello.process!r} speaks version {hello.version}, the coordinator "
            f"{PROTOCOL_VERSION}; install one version of omni-core"
        )
        self.give_up(ProtocolError(mixed))

    def _built(self, replica: Replica, stage: str) -> None:
        self._on_progress(self._fleet.label(replica, stage), "ready")
        if self._fleet.built(replica.process, stage):
            self._no_news_expected(replica)
            self._news.set()
            if self.serving:
                self._run(self._warm_up_successors())

    def _crashed(self, replica: Replica, crash: Crash) -> None:
        detail = f"{crash.stage}: {crash.error.message}"
        if not self.serving:
            self.give_up(StageError(f"stage {detail}"))
        assert self._launcher is not None
        asyncio.get_running_loop().call_later(_CRASH_GRACE_S, self._launcher.kill, replica.process)
        self._lost(replica, "crash", detail)

    def _exited(self, child: Child) -> None:
        replica = self._fleet.find(child.name)
        if self._stopping or replica is None:
            return
        log.error("stage process %r ended with code %s", child.name, child.code)
        if replica.state == "dead":  # killed as such; it may have left something since
            self._on_death(child.name)
        self._lost(replica, "exit", f"exit code {child.code}")
        self._run(self._follow(replica, child))

    def _end_process(self, replica: Replica, cause: DeathCause, reason: str) -> None:
        """Take it for dead, and see to it that it is."""
        log.error("stage process %r is ended: %s", replica.process, reason)
        if replica in self._guests:
            self._guests.dismiss(replica.process, reason)
        elif self._launcher is not None:
            self._launcher.kill(replica.process)
        self._lost(replica, cause, reason)

    def _lost(self, replica: Replica, cause: DeathCause, detail: str) -> None:
        """Nothing is expected of the process any more."""
        if replica.state == "dead":
            return
        replica.state, replica.last_death = "dead", cause
        process = replica.process
        self._no_news_expected(replica)
        self._peers.forget(process)
        self._coordinator.process_died(process, detail)
        for other in self._guests.present():
            self._peers.send(other, PeerDied(process=process))
        self._on_death(process)
        self._guests.forget(process)
        if replica in self._guests and not self._stopping:
            self._fleet.succeed(replica)
            self._await_guest(replica)

    async def _follow(self, replica: Replica, child: Child) -> None:
        """Start the successor of a process that has ended."""
        output = await child.last_words()
        ended = f"stage process {child.name!r} ended"
        if not self.serving:
            self.give_up(StageError(f"{ended} during start-up with code {child.code}:\n{output}"))
            return
        pause_s = self._backoffs[replica.name].died(time.monotonic())
        if pause_s is None and self._fleet.is_replaceable(replica):
            log.error("%s again; the others of its kind go on without it:\n%s", ended, output)
            replica.last_death = "crash_loop"
            pause_s = LOOP_PAUSE_S
        if pause_s is None:
            hopeless = (
                f"{ended} with code {child.code}, after {DEATHS - 1} others like it; mend what "
                f"its last words say, then start again:\n{output}"
            )
            self.give_up(StageDiedError(hopeless))
            return
        await asyncio.sleep(pause_s)
        if self.failure is not None:
            return
        self._fleet.succeed(replica)
        log.warning("starting stage process %r", replica.process)
        try:
            await self._spawn(replica)
        except OSError as exc:
            self.give_up(StageDiedError(f"stage process {replica.process!r} cannot start: {exc}"))

    # -- those of other hosts

    def _await_guest(self, replica: Replica) -> None:
        """Nobody can say how long: whoever starts it may not be there yet."""
        for stage in replica.stages:
            label = self._fleet.label(replica, stage.name)
            self._on_progress(label, "waiting for another host to dial in")

    def _called(self, hello: Hello) -> None:
        try:
            parse_tcp(hello.address)
            place = self._guests.place_for(hello)
            if isinstance(place, str):
                self._guests.turn_away(hello, place)
            else:
                self._let_in(place, hello)
        except ValueError as exc:
            log.error("a guest that cannot be answered: %s", exc)

    def _let_in(self, place: Replica, hello: Hello) -> None:
        log.info("stage process %r runs at %s", place.process, hello.address)
        try:
            self._guests.welcome(place, hello, self._line_broke)
        except ValueError:
            self._lost(place, "connection", "its address cannot be used")
            raise
        self._peers.send(place.process, setup_of_guest(self._blueprints[place.name].setup, place))
        self._expect_news(place)

    def _line_broke(self, process: str, reason: str) -> None:
        """Nobody is told to leave at its address: it has ended, or leaves by itself."""
        if (replica := self._fleet.find(process)) and not self._stopping:
            log.error("stage process %r is lost: %s", process, reason)
            self._lost(replica, "connection", reason)

    # -- stalls

    def _expect_news(self, replica: Replica) -> None:
        self._no_news_expected(replica)
        if replica.state == "starting":
            loop = asyncio.get_running_loop()
            self._stalls[replica.process] = loop.call_later(_STALL_S, self._stalled, replica)

    def _no_news_expected(self, replica: Replica) -> None:
        if timer := self._stalls.pop(replica.process, None):
            timer.cancel()

    def _stalled(self, replica: Replica) -> None:
        missing = ", ".join(sorted(replica.missing))
        error = f"start-up stalled: no news of {missing} for {_STALL_S:.0f} s"
        if not self.serving and replica not in self._guests:
            self.give_up(StageError(error))
        self._end_process(replica, "start_up_stall", error)

    def _hangs(self, replica: Replica) -> None:
        self._end_process(replica, "hang", "it stands still and does not answer")

    async def _until_news(self) -> None:
        await self._news.wait()
        self._news.clear()
        if self.failure is not None:
            raise self.failure

    # -- warm-up

    def _serves(self, replica: Replica) -> None:
        self._backoffs[replica.name].ready()
        log.info("stage process %r serves", replica.process)
        self._coordinator.process_serves(replica)

    def _unfit(self, replica: Replica, reason: str) -> None:
        if self.serving:
            self._end_process(replica, "warm_up", reason)

    async def _warm_up_successors(self) -> None:
        told = ""
        while self.failure is None:
            self.watchdog.wake()  # the request passes processes that have served for long, too
            try:
                await self._warm_up.run()
                return
            except NotReadyError as error:  # as while new weights are loaded
                if told != (told := error.message):
                    log.info("the warm-up request waits: %s", told)
            except OmniError as error:
                log.error("the warm-up request failed: %s", error)
                if not error.retryable:
                    return
            await asyncio.sleep(_WARM_UP_PAUSE_S)

    # -- what goes on in the background

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _rest(self) -> None:
        """Start nothing any more."""
        self._stopping = True
        self.serving = False
        self.watchdog.stop()
        for timer in self._stalls.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
