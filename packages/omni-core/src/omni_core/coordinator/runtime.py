"""One pipeline at work: directories, processes, sockets and the coordinator, started and stopped.

Knows how the parts belong together. The parts know nothing of each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, assert_never

from omni_core.addresses import COORDINATOR, AddressBook, parse_tcp, segments
from omni_core.codec import Codec, Refused
from omni_core.coordinator.aborts import Observer
from omni_core.coordinator.active import Active
from omni_core.coordinator.admission import AdmissionLimits
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.fleet import Fleet
from omni_core.coordinator.guests import Guests, Network
from omni_core.coordinator.health import Health, PipelineState, stages_of
from omni_core.coordinator.links import CoordinatorLinks
from omni_core.coordinator.plan import Plan, blueprints
from omni_core.coordinator.profiles import ProfileDesk, Stacks
from omni_core.coordinator.stats import Stats, StatsDesk
from omni_core.coordinator.supervisor import Supervisor
from omni_core.coordinator.traces import Traces
from omni_core.coordinator.updates import Updates
from omni_core.coordinator.watchdog import WATCHDOG_TIMEOUT_S
from omni_core.errors import NotReadyError, OmniError, StageDiedError, StageError
from omni_core.messages import (
    Crash,
    Done,
    Emit,
    Fail,
    Hello,
    LogLevel,
    Pong,
    ProfileReply,
    Progress,
    Ready,
    Released,
    StatsReply,
    ToCoordinator,
    TraceEnded,
    TraceStarted,
    WeightsReply,
)
from omni_core.relay.shm import RunDirectory
from omni_core.relay.slabs import SharedMemory, remove_leftovers
from omni_core.types import AudioDelta, Request

_STOP_GRACE_S: Final = 8.0
_TOLD_AT_ONCE_BYTES: Final = 4 * 1024 * 1024

log = logging.getLogger("omni.runtime")


class Runtime:
    """Everything that lives from `start` to `close`."""

    def __init__(
        self,
        plan: Plan,
        on_progress: Callable[[str, str], None],
        *,
        limits: AdmissionLimits | None = None,
        observer: Observer | None = None,
        network: Network | None = None,
        watchdog_timeout_s: float | None = WATCHDOG_TIMEOUT_S,
    ) -> None:
        """`network` None keeps every process on this host."""
        self._fleet = Fleet(plan.stages)
        remote = network.guests if network else ()
        tasks = blueprints(plan, self._fleet, remote)
        self._open(network)
        send = self._links.send
        self.coordinator = Coordinator(
            plan.stages, plan.entry, self._fleet, send, limits=limits, observer=observer
        )
        self._stats = StatsDesk(self._fleet, send)
        self._profiles = ProfileDesk(self._fleet, send)
        self._supervisor = Supervisor(
            *(tasks, self._fleet, self.coordinator, self._links),
            Guests(self._fleet, self._links, remote),
            on_progress,
            self._forget,
            watchdog_timeout_s,
        )
        self.updates = Updates(
            plan.model_path, self._fleet, self.coordinator, self._supervisor, send
        )
        self.traces = Traces(self._fleet, send)
        self._receiver: asyncio.Task[None] | None = None
        self._closing, self._log_level = False, ""

    def _open(self, network: Network | None) -> None:
        """The directory of the run and what lies in it; nothing is left if that fails."""
        with ExitStack() as undo:
            run = RunDirectory()
            undo.callback(run.remove)
            shm_dir = segments(run.path)
            shm_dir.mkdir(mode=0o700)
            self._codec = Codec(SharedMemory(shm_dir, COORDINATOR))
            book = _address_book(run.path, network, self._fleet.names)
            listen = network.listen if network else None
            self._links = CoordinatorLinks(book, self._codec, self._fail_unsent, listen)
            undo.callback(self._links.close)
            self._release = undo.pop_all()
        self._run, self.run_dir = run, run.path

    async def start(self) -> None:
        """Spawn, build and warm up every stage; an error carries the output of what failed."""
        self._receiver = asyncio.create_task(self._receive())
        self._receiver.add_done_callback(self._receiver_ended)
        await self._supervisor.start(self.run_dir, self._run.janitor)

    async def close(self) -> None:
        """Fail what is in flight, stop the processes, free sockets and shared memory.

        Cancelled, it kills instead of waiting; before the pipeline serves, it waits for nobody. A
        second call does nothing.
        """
        if self._closing:
            return
        self._closing = True
        # Before it serves, a process holds nothing, and may be deep in a factory.
        grace_s = _STOP_GRACE_S if self._supervisor.serving else 0.0
        self.coordinator.close(NotReadyError("the server is shutting down; retry elsewhere"))
        try:
            await self._supervisor.stop(grace_s)
            if self._receiver is not None:
                self._receiver.cancel()
                await asyncio.wait([self._receiver])
        finally:
            self._supervisor.kill()
            if self._receiver is not None:
                self._receiver.cancel()
            self._release.close()

    def submit(self, request: Request) -> Active:
        """See `Coordinator.submit`; whoever has the request is looked after."""
        active = self.coordinator.submit(request)
        self._supervisor.watchdog.wake()
        return active

    async def failed(self) -> OmniError:
        """Wait until the pipeline cannot go on by itself; what it was that ended it."""
        return await self._supervisor.failed()

    def health(self) -> Health:
        """State now."""
        status: PipelineState = "starting"
        if self._closing:
            status = "closing"
        elif self._supervisor.serving:
            all_ready = all(replica.state == "ready" for replica in self._fleet.replicas)
            status = "ready" if all_ready else "degraded"
        stages = stages_of(self._fleet, self.coordinator.stages, self._supervisor.pid)
        return Health(status=status, stages=stages)

    async def stats(self) -> Stats:
        """Counters of the stages that answer in time."""
        return {} if self._closing else (await self._stats.ask()).stages

    async def relay_stats(self) -> Stats:
        """Counters of the tensors that each process sends and receives, this one included."""
        if self._closing:
            return {}
        own = {**self._codec.stats(), "messages_refused": float(self._links.refused)}
        return {COORDINATOR: own, **(await self._stats.ask()).relays}

    def set_log_level(self, level: str) -> None:
        """Have every stage process log what is at least of this level, later ones included."""
        self._log_level = level
        for process in self._fleet.living():
            self._links.send(process, LogLevel(level=level))

    async def profile(self, stage: str, seconds: float) -> dict[str, Stacks]:
        """{process: what its threads do meanwhile}, of the processes of a stage."""
        return await self._profiles.ask(stage, seconds)

    def _forget(self, process: str) -> None:
        """A process has died, and nobody waits for it any more."""
        self._stats.forget(process)
        self.updates.desk.forget(process)
        self.traces.forget(process)
        remove_leftovers(segments(self.run_dir), process)

    async def _receive(self) -> None:
        while True:
            told_bytes = 0
            for message in await self._links.receive():
                if isinstance(message, Refused):
                    self._refuse(message)
                    continue
                self._dispatch(message)
                told_bytes += _sample_bytes(message)
                if told_bytes > _TOLD_AT_ONCE_BYTES:  # let clients read, or they seem not to
                    await asyncio.sleep(0)
                    told_bytes = 0
            await asyncio.sleep(0)  # more may be there at once: those whom the news is for first

    def _fail_unsent(self, process: str, request_ids: list[str]) -> None:
        """What answers where a process should be is not it."""
        for request_id in request_ids:
            self.coordinator.fail_request(
                request_id, StageDiedError(f"stage process {process!r} cannot be reached")
            )

    def _refuse(self, refused: Refused) -> None:
        log.error("%s", refused.error)
        if refused.request_id is not None:
            self.coordinator.fail_request(refused.request_id, refused.error)

    def _dispatch(self, message: ToCoordinator) -> None:
        match message:
            case Emit() | Done() | Fail():
                self.coordinator.handle(message)
            case Released():
                self.coordinator.released(message)
            case Hello() | Progress() | Ready() | Crash():
                self._supervisor.heard(message)
                if isinstance(message, Ready) and self._log_level:
                    self._links.send(message.process, LogLevel(level=self._log_level))
            case Pong():
                self._supervisor.watchdog.answered(message.process)
            case StatsReply():
                self._stats.answer(message)
            case ProfileReply():
                self._profiles.answer(message)
            case WeightsReply():
                self.updates.desk.answer(message)
            case TraceStarted():
                self.traces.desk.answer(message)
            case TraceEnded():
                self.traces.ended(message)
            case _:
                assert_never(message)

    def _receiver_ended(self, receiver: asyncio.Task[None]) -> None:
        if not receiver.cancelled() and (error := receiver.exception()) is not None:
            self._supervisor.give_up(StageError(f"the control plane failed: {error}"))


def _address_book(run_dir: Path, network: Network | None, places: list[str]) -> AddressBook:
    book = AddressBook(run_dir)
    if network is not None:
        keys = network.keys(places)
        book.open_network(keys, parse_tcp(network.listen, listening=True)[0])
    return book


def _sample_bytes(message: ToCoordinator) -> int:
    if isinstance(message, Emit) and isinstance(message.event, AudioDelta):
        return message.event.samples.nbytes
    return 0
