"""One pipeline at work: directories, processes, sockets and the coordinator, started and stopped.

Knows how the parts belong together. The parts know nothing of each other.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, assert_never

import msgspec

from omni_core.addresses import segments
from omni_core.codec import Codec, Refused
from omni_core.config import to_doc
from omni_core.coordinator.coordinator import Coordinator, StageState
from omni_core.coordinator.launcher import Launcher
from omni_core.coordinator.links import CoordinatorLinks
from omni_core.devices import stage_device
from omni_core.errors import ConfigError, NotReadyError, ProtocolError, StageError
from omni_core.graph import process_of, served
from omni_core.messages import (
    PROTOCOL_VERSION,
    Crash,
    Done,
    Emit,
    Fail,
    Hello,
    Progress,
    Ready,
    Setup,
    Shutdown,
    StatsQuery,
    StatsReply,
    ToCoordinator,
)
from omni_core.relay.shm import RunDirectory, SharedMemory
from omni_core.specs import StageConfig

_STALL_S: Final = 300.0
"""Start-up fails when no stage has reported anything for this long."""
_STATS_TIMEOUT_S: Final = 5.0
_STOP_GRACE_S: Final = 8.0

log = logging.getLogger("omni.runtime")

PipelineState: TypeAlias = Literal["starting", "ready", "degraded", "closing"]


class StageHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One stage's process."""

    pid: int
    state: StageState
    restarts: int = 0


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`ready` only when every stage is."""

    status: PipelineState
    stages: dict[str, StageHealth]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run, fully resolved."""

    model_path: str
    stages: tuple[StageConfig, ...]
    entry: str
    dtype: str
    ar_engine: str
    compile: str = "off"

    @property
    def processes(self) -> dict[str, list[StageConfig]]:
        """Stages by process, in graph order."""
        grouped: dict[str, list[StageConfig]] = {}
        for stage in self.stages:
            grouped.setdefault(process_of(stage), []).append(stage)
        return grouped


class Runtime:
    """Everything that lives from `start` to `close`."""

    def __init__(self, plan: Plan, on_progress: Callable[[str, str], None]) -> None:
        self._plan = plan
        self._on_progress = on_progress
        with ExitStack() as undo:
            run = RunDirectory()
            undo.callback(run.remove)
            shm_dir = segments(run.path)
            shm_dir.mkdir(mode=0o700)
            self._links = CoordinatorLinks(run.path, Codec(SharedMemory(shm_dir)))
            undo.callback(self._links.close)
            self._release = undo.pop_all()
        self.run_dir = run.path
        self._launcher = Launcher(run.path, self._process_ended)
        self.coordinator = Coordinator(plan.stages, plan.entry, self._links.send)
        self._news = asyncio.Event()
        self._setups: dict[str, Setup] = {}
        self._startup_error: StageError | ProtocolError | ConfigError | None = None
        self._queries: dict[int, asyncio.Queue[StatsReply]] = {}
        self._query_ids = itertools.count()
        self._receiver: asyncio.Task[None] | None = None
        self._closing = False
        self.serving = False
        """Set by the owner once a request has passed every terminal."""

    async def start(self) -> None:
        """Spawn and build every stage; an error carries the output of the process that failed."""
        self._setups = self._describe_processes()
        self._receiver = asyncio.create_task(self._receive())
        self._receiver.add_done_callback(self._receiver_ended)
        threads = _threads_per_process(len(self._plan.processes))
        for name, stages in self._plan.processes.items():
            env = {**threads, **{k: v for stage in stages for k, v in stage.env.items()}}
            await self._launcher.start(name, env)
        await self._until_ready()

    async def close(self) -> None:
        """Fail what is in flight, stop the processes, free sockets and shared memory.

        Cancelled, it kills instead of waiting; before the pipeline serves, it waits for nobody. A
        second call does nothing.
        """
        if self._closing:
            return
        self._closing = True
        # Before it serves, a process holds nothing, and may be deep in a factory.
        grace_s = _STOP_GRACE_S if self.serving else 0.0
        self.serving = False
        self.coordinator.close(NotReadyError("the server is shutting down; retry elsewhere"))
        try:
            if self._receiver is not None:
                for process in self._plan.processes:
                    self._links.send(process, Shutdown())
                await self._launcher.stop(grace_s)
                self._receiver.cancel()
                await asyncio.wait([self._receiver])
        finally:
            self._launcher.kill()
            if self._receiver is not None:
                self._receiver.cancel()
            self._release.close()

    def health(self) -> Health:
        """State now."""
        states = self.coordinator.states
        status: PipelineState = "ready" if self.serving else "starting"
        if self._closing:
            status = "closing"
        elif "dead" in states.values():
            status = "degraded"
        pids = {
            stage.name: self._launcher.pid(process)
            for process, stages in self._plan.processes.items()
            for stage in stages
        }
        stages = {name: StageHealth(pid=pids[name], state=states[name]) for name in states}
        return Health(status=status, stages=stages)

    async def stats(self) -> dict[str, dict[str, float]]:
        """Counters of the stages that answer in time."""
        if self._closing:
            return {}
        query_id = next(self._query_ids)
        replies: asyncio.Queue[StatsReply] = asyncio.Queue()
        self._queries[query_id] = replies
        states = self.coordinator.states
        asked = [
            process
            for process, stages in self._plan.processes.items()
            if all(states[stage.name] == "ready" for stage in stages)
        ]
        for process in asked:
            self._links.send(process, StatsQuery(query_id=query_id))
        found: dict[str, dict[str, float]] = {}
        try:
            async with asyncio.timeout(_STATS_TIMEOUT_S):
                for _ in asked:
                    found.update((await replies.get()).stats)
        except TimeoutError:
            pass  # a busy or dying process is simply absent
        finally:
            del self._queries[query_id]
        return found

    async def _until_ready(self) -> None:
        while self._startup_error is None:
            slow = [n for n, state in self.coordinator.states.items() if state == "starting"]
            if not slow:
                return
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), _STALL_S)
            except TimeoutError as exc:
                raise StageError(
                    f"start-up stalled: no news of {', '.join(slow)} for {_STALL_S:.0f} s"
                ) from exc
        raise self._startup_error

    async def _receive(self) -> None:
        while True:
            for message in await self._links.receive():
                if isinstance(message, Refused):
                    self._refuse(message)
                else:
                    self._dispatch(message)
            await asyncio.sleep(0)  # more may be there at once: those whom the news is for first

    def _refuse(self, refused: Refused) -> None:
        log.error("%s", refused.error)
        if refused.request_id is not None:
            self.coordinator.fail_request(refused.request_id, refused.error)

    def _dispatch(self, message: ToCoordinator) -> None:
        match message:
            case Emit() | Done() | Fail():
                self.coordinator.handle(message)
            case Hello():
                self._greet(message)
            case Progress():
                self._on_progress(message.stage, message.text)
            case Ready():
                self.coordinator.process_ready(message.stage)
                self._on_progress(message.stage, "ready")
            case StatsReply():
                if replies := self._queries.get(message.query_id):
                    replies.put_nowait(message)
            case Crash():
                detail = f"{message.stage}: {message.error.message}"
                self.coordinator.process_died(message.process, detail)
                if not self.serving:
                    self._startup_error = StageError(f"stage {detail}")
            case _:
                assert_never(message)
        self._news.set()

    def _greet(self, hello: Hello) -> None:
        if hello.process not in self._setups:
            log.error("an unknown process %r (pid %d) says hello", hello.process, hello.pid)
            return
        if hello.version != PROTOCOL_VERSION:
            self._startup_error = ProtocolError(
                f"stage process {hello.process!r} speaks version {hello.version}, the coordinator "
                f"{PROTOCOL_VERSION}; install one version of omni-core"
            )
            return
        self._links.send(hello.process, self._setups[hello.process])

    def _describe_processes(self) -> dict[str, Setup]:
        """What each process will build; resolves every reference before any process starts."""
        home = {stage.name: process_of(stage) for stage in self._plan.stages}
        modalities = served(self._plan.stages)
        return {
            process: Setup(
                version=PROTOCOL_VERSION,
                model_path=self._plan.model_path,
                ar_engine=self._plan.ar_engine,
                compile=self._plan.compile,
                stages=tuple(
                    to_doc(
                        stage,
                        device=stage_device(stage),
                        dtype=self._plan.dtype,
                        serves={target: modalities[target] for target in stage.next},
                    )
                    for stage in stages
                ),
                home=home,
            )
            for process, stages in self._plan.processes.items()
        }

    def _receiver_ended(self, receiver: asyncio.Task[None]) -> None:
        if receiver.cancelled() or (error := receiver.exception()) is None:
            return
        for process in self._plan.processes:
            self.coordinator.process_died(process, f"the control plane failed: {error}")
        self._startup_error = StageError(f"the control plane failed: {error}")
        self._news.set()

    def _process_ended(self, process: str, code: int, output: str) -> None:
        if self._closing:
            return
        log.error("stage process %r ended with code %d", process, code)
        if self.serving:
            self.coordinator.process_died(process, f"exit code {code}")
        else:
            self.coordinator.process_died(process, f"exit code {code}:\n{output}")
            self._startup_error = StageError(
                f"stage process {process!r} ended during start-up with code {code}:\n{output}"
            )
        self._news.set()


def _threads_per_process(processes: int) -> dict[str, str]:
    """Share the cores among the processes, unless the operator has set a number."""
    cores = len(os.sched_getaffinity(0))
    share = str(max(1, cores // processes))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: os.environ.get(name, share) for name in names}
