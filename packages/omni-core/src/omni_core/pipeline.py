"""The Python API: load a pipeline, generate, read health and counters.

The server is a client of this module and of nothing below it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from omni_core import devices
from omni_core.config import (
    Asked,
    ConfigFile,
    Layout,
    Resolved,
    checkpoint_path,
    resolve,
)
from omni_core.coordinator.aborts import Observer, Silent
from omni_core.coordinator.admission import AdmissionLimits, Occupancy
from omni_core.coordinator.guests import Network
from omni_core.coordinator.health import Health, ReplicaHealth, StageHealth
from omni_core.coordinator.manifest import Manifest, StagePlace, manifest
from omni_core.coordinator.observers import together
from omni_core.coordinator.plan import Plan
from omni_core.coordinator.runtime import Runtime
from omni_core.coordinator.traces import Traced
from omni_core.coordinator.updates import Running
from omni_core.coordinator.watchdog import WATCHDOG_TIMEOUT_S
from omni_core.errors import ConfigError, NotReadyError, OmniError, RequestError
from omni_core.extensions import ObserverSpec
from omni_core.hub import checkpoint_directory
from omni_core.plugins import OBSERVERS, Plugins
from omni_core.relay.transport import Edge, edges
from omni_core.specs import ModelInfo, PipelineConfig, Ref
from omni_core.types import (
    Event,
    Finished,
    Modality,
    Request,
)

__all__ = [
    "WATCHDOG_TIMEOUT_S",
    "AdmissionLimits",
    "Edge",
    "Health",
    "Manifest",
    "Network",
    "Observer",
    "Occupancy",
    "Pipeline",
    "ReplicaHealth",
    "Running",
    "StageHealth",
    "StagePlace",
    "Traced",
]

log = logging.getLogger("omni.pipeline")


class Pipeline:
    """A running pipeline; use as an async context manager.

    ```python
    async with Pipeline.load("checkpoints/model") as pipeline:
        async for event in pipeline.generate(request):
            ...
    ```
    """

    def __init__(
        self,
        plan: Plan,
        resolved: Resolved,
        info: ModelInfo,
        on_progress: Callable[[str, str], None] | None = None,
        limits: AdmissionLimits | None = None,
        network: Network | None = None,
        watchdog_timeout_s: float | None = WATCHDOG_TIMEOUT_S,
        observers: Sequence[tuple[str, ObserverSpec]] = (),
    ) -> None:
        """Use `load`; this takes what `load` resolved."""
        self.observer: Observer = Silent()
        """Told as it happens what `stats` does not tell; to be set before the pipeline is
        entered."""
        self.name = resolved.pipeline.name
        self.variant = resolved.settings["variant"].value
        self.info = info
        self.stages: tuple[str, ...] = tuple(stage.name for stage in plan.stages)
        self.modalities: tuple[Modality, ...] = tuple(
            stage.terminal for stage in plan.stages if stage.terminal is not None
        )
        [entry] = (stage for stage in plan.stages if stage.name == plan.entry)
        self.entry_options: Mapping[str, Any] = entry.options
        """What is set of the stage that requests enter, such as limits on media."""
        far = network.guests if network else ()
        self.edges: tuple[Edge, ...] = edges(plan.stages, plan.entry, far)
        self.model_path = plan.model_path
        """The checkpoint it is started from."""
        self._plan = plan
        self._check_update = resolved.pipeline.check_update
        self._on_progress = on_progress or (lambda stage, text: None)
        self._limits = limits
        self._network = network
        self._watchdog_timeout_s = watchdog_timeout_s
        self._observers = observers
        self._runtime: Runtime | None = None

    @classmethod
    def load(
        cls,
        model_path: str | None = None,
        *,
        variant: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        ar_engine: str | None = None,
        compile: str | None = None,
        layout: Layout | None = None,
        overrides: Mapping[str, str] | None = None,
        config: ConfigFile | None = None,
        on_progress: Callable[[str, str], None] | None = None,
        plugins: Plugins | None = None,
        limits: AdmissionLimits | None = None,
        network: Network | None = None,
        watchdog_timeout_s: float | None = WATCHDOG_TIMEOUT_S,
    ) -> Pipeline:
        """Find the pipeline for a checkpoint and check its configuration; a ConfigError lists every
        problem. Starts nothing yet. `plugins` are those discovered if not given.

        `config` is a configuration file; what is given beside it counts more. `overrides` maps
        "stage.field" to its value as written on a command line. `on_progress` is called with
        (stage, what it is doing) during start-up. `limits` say how many requests may be there at
        once, `network` which processes other hosts run. One that has requests and does not answer
        for `watchdog_timeout_s` is replaced.
        """
        flags = {"variant": variant, "device": device, "dtype": dtype}
        flags |= {"ar_engine": ar_engine, "compile": compile, "layout": layout}
        file = config or ConfigFile()
        directory = checkpoint_directory(checkpoint_path(model_path, file))
        plugins = plugins or Plugins().discover()
        pipeline = plugins.pipeline_at(directory)
        info = model_info(pipeline, directory)
        asked = Asked(flags=flags, overrides=overrides or {}, file=file)
        resolved = resolve(pipeline, asked, cards=devices.cuda_device_count(), info=info)
        plan = _plan(directory, resolved)
        told = plugins.owned(OBSERVERS)
        return cls(plan, resolved, info, on_progress, limits, network, watchdog_timeout_s, told)

    async def __aenter__(self) -> Pipeline:
        if self._runtime is not None:
            raise NotReadyError("a pipeline is entered once; load it again for another run")
        self._runtime = Runtime(
            self._plan,
            self._on_progress,
            limits=self._limits,
            observer=together(self.observer, self._observers),
            network=self._network,
            watchdog_timeout_s=self._watchdog_timeout_s,
        )
        try:
            await self._runtime.start()
        except BaseException:
            await self._runtime.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._runtime is not None:
            await self._runtime.close()

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Run one request; ends with `Finished` or raises an `OmniError`.

        Closing the generator early (or cancelling its task) aborts the request in every stage.
        """
        async with aclosing(self.batches(request)) as batches:
            async for events in batches:
                for event in events:
                    yield event

    async def batches(self, request: Request) -> AsyncGenerator[list[Event], None]:
        """As `generate`; events that are there together come together, and are never waited for."""
        runtime = self._running()
        self._check_ability(request)
        active = runtime.submit(request)
        try:
            ended = False
            while not ended:
                events, error = await active.take()
                if events:
                    yield events
                if error is not None:
                    raise error
                ended = isinstance(events[-1], Finished)
        finally:
            runtime.coordinator.release(active)

    def _check_ability(self, request: Request) -> None:
        """RequestError for what the model cannot do."""
        info = self.info
        cannot = (
            ("read_aloud", info.reads_aloud, "answers messages; it cannot read a text aloud"),
            ("prompt", info.completes_prompts, "answers messages; it cannot complete a raw prompt"),
            ("voice_sample", info.clones_voices, "cannot clone voices; name one of its own"),
        )
        for name, able, why in cannot:
            if getattr(request, name) is not None and not able:
                raise RequestError(
                    f"pipeline {self.name!r} {why}", param=name, code="unsupported_parameter"
                )

    def cancel(self, request_id: str, client: str = "") -> int:
        """End every request that this client has sent under this id and that has not ended, with a
        RequestCancelledError; how many there were."""
        return self._running().coordinator.cancel(request_id, client)

    def occupancy(self) -> Occupancy:
        """How many requests run, wait and are being let go of now."""
        return Occupancy() if self._runtime is None else self._runtime.coordinator.occupancy()

    def health(self) -> Health:
        """State now, without waiting."""
        if self._runtime is None:
            return Health(status="starting", stages={})
        return self._runtime.health()

    async def failed(self) -> OmniError:
        """Wait until the pipeline cannot go on, because a process keeps dying; the error is why.

        Whoever runs it should close it then, and end.
        """
        return await self._running().failed()

    async def stats(self) -> dict[str, dict[str, float]]:
        """{stage: {gauge or counter: value}}, asked of the living stages now."""
        return await self._running().stats()

    async def relay_stats(self) -> dict[str, dict[str, float]]:
        """{process: {gauge or counter: value}} of the tensors that go between processes: bytes by
        the way they went, and the shared memory in use. Asked of the living processes now."""
        return await self._running().relay_stats()

    def manifest(self) -> Manifest:
        """What runs here, and where. Asks the driver of the cards, so not on an event loop."""
        return manifest(self._plan, self.name, self.variant)

    @property
    def limits(self) -> AdmissionLimits:
        """How many requests may be there at once."""
        return self._limits or AdmissionLimits()

    def set_log_level(self, level: str) -> None:
        """Have every stage process log what is at least of this level: "DEBUG", "INFO",
        "WARNING", "ERROR"."""
        self._running().set_log_level(level)

    async def update_weights(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        running: Running = "wait",
        wait_s: float = 60.0,
    ) -> None:
        """Serve the weights of another checkpoint of the same model, without a new start.

        New requests wait meanwhile. Those that run are waited for up to `wait_s`, or ended with a
        retryable error. `revision` is what the manifest then says. Errors are those of
        `Updates.run`; if there is one, the old weights are served.
        """
        runtime = self._running()
        path = str(Path(model_path).resolve())
        if path == self._plan.model_path:
            raise RequestError(
                f"{Path(path).name!r} is served already; write new weights to a directory of their "
                "own",
                param="path",
                code="already_served",
            )
        await asyncio.to_thread(self._compare, path)
        served = replace(self._plan, model_path=path, revision=revision)
        await runtime.updates.run(
            path, running=running, wait_s=wait_s, on_served=partial(self._serves, served)
        )

    def _serves(self, plan: Plan) -> None:
        self._plan = plan

    def _compare(self, model_path: str) -> None:
        """RequestError unless this checkpoint is of the same model, as far as small files say."""
        check = self._check_update
        if check is None:
            raise RequestError(
                f"pipeline {self.name!r} cannot load new weights while it runs; start the server "
                "with the new checkpoint",
                code="unsupported_update",
            )
        try:
            (check.resolve() if isinstance(check, Ref) else check)(
                self._plan.model_path, model_path
            )
        except ConfigError as error:
            raise RequestError(error.message, param="path", code="invalid_checkpoint") from error

    async def profile(self, stage: str, seconds: float) -> dict[str, dict[str, int]]:
        """{process: {"thread;outermost;...;innermost": how often it was seen}}: the Python stacks
        of the processes in which a stage runs, looked at for so long."""
        return await self._running().profile(stage, seconds)

    async def start_trace(
        self, directory: str, *, seconds: float = 5.0, stages: Collection[str] = ()
    ) -> dict[str, Traced]:
        """Record what torch does in the processes of these stages, or of all; see `Traces.start`.
        It ends by itself after so many seconds."""
        return await self._running().traces.start(directory, seconds, stages or self.stages)

    async def stop_trace(self) -> dict[str, Traced]:
        """End the recording; {process: its file, which is written now}, see `Traces.stop`."""
        return await self._running().traces.stop()

    def _running(self) -> Runtime:
        if self._runtime is None:
            raise NotReadyError("enter the pipeline first: `async with Pipeline.load(...)`")
        return self._runtime


def _plan(model_path: str, resolved: Resolved) -> Plan:
    return Plan(
        model_path=str(Path(model_path).resolve()),
        stages=resolved.stages,
        entry=resolved.pipeline.entry,
        dtype=resolved.settings["dtype"].value,
        compile=_compile_mode(resolved),
    )


def _compile_mode(resolved: Resolved) -> str:
    """As asked for; off, with a warning, where there is nothing to compile with."""
    mode: str = resolved.settings["compile"].value
    if mode != "off" and resolved.settings["device"].value == "cpu" and not devices.cpp_compiler():
        log.warning(
            "no C++ compiler, so hot steps stay eager and speech is several times slower; "
            "install g++ (or set CXX), or silence this with --compile off"
        )
        return "off"
    return mode


def model_info(pipeline: PipelineConfig, model_path: str) -> ModelInfo:
    """What the pipeline says of a checkpoint."""
    named = pipeline.describe
    describe = named.resolve() if isinstance(named, Ref) else named
    info: ModelInfo = describe(model_path)
    return info
