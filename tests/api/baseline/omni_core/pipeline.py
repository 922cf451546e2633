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
__all__ = ['WATCHDOG_TIMEOUT_S', 'AdmissionLimits', 'Edge', 'Health', 'Manifest', 'Network', 'Observer', 'Occupancy', 'Pipeline', 'ReplicaHealth', 'Running', 'StageHealth', 'StagePlace', 'Traced']
log = logging.getLogger('omni.pipeline')

class Pipeline:

    def __init__(self, plan: Plan, resolved: Resolved, info: ModelInfo, on_progress: Callable[[str, str], None] | None=None, limits: AdmissionLimits | None=None, network: Network | None=None, watchdog_timeout_s: float | None=WATCHDOG_TIMEOUT_S, observers: Sequence[tuple[str, ObserverSpec]]=()) -> None:
        ...

    @classmethod
    def load(cls, model_path: str | None=None, *, variant: str | None=None, device: str | None=None, dtype: str | None=None, ar_engine: str | None=None, compile: str | None=None, layout: Layout | None=None, overrides: Mapping[str, str] | None=None, config: ConfigFile | None=None, on_progress: Callable[[str, str], None] | None=None, plugins: Plugins | None=None, limits: AdmissionLimits | None=None, network: Network | None=None, watchdog_timeout_s: float | None=WATCHDOG_TIMEOUT_S) -> Pipeline:
        ...

    async def __aenter__(self) -> Pipeline:
        ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        ...

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        ...

    async def batches(self, request: Request) -> AsyncGenerator[list[Event], None]:
        ...

    def cancel(self, request_id: str, client: str='') -> int:
        ...

    def occupancy(self) -> Occupancy:
        ...

    def health(self) -> Health:
        ...

    async def failed(self) -> OmniError:
        ...

    async def stats(self) -> dict[str, dict[str, float]]:
        ...

    async def relay_stats(self) -> dict[str, dict[str, float]]:
        ...

    def manifest(self) -> Manifest:
        ...

    @property
    def limits(self) -> AdmissionLimits:
        ...

    def set_log_level(self, level: str) -> None:
        ...

    async def update_weights(self, model_path: str, *, revision: str | None=None, running: Running='wait', wait_s: float=60.0) -> None:
        ...

    async def profile(self, stage: str, seconds: float) -> dict[str, dict[str, int]]:
        ...

    async def start_trace(self, directory: str, *, seconds: float=5.0, stages: Collection[str]=()) -> dict[str, Traced]:
        ...

    async def stop_trace(self) -> dict[str, Traced]:
        ...

def model_info(pipeline: PipelineConfig, model_path: str) -> ModelInfo:
    ...

class Observer(Protocol):

    def admitted(self, modalities: Collection[Modality], waited_s: float) -> None:
        ...

    def refused(self, reason: str) -> None:
        ...

    def aborted(self, reason: str) -> None:
        ...

    def released(self, stage: str, after_s: float) -> None:
        ...

    def ready(self, process: str, stages: Sequence[str]) -> None:
        ...

    def lost(self, process: str, stages: Sequence[str], cause: str) -> None:
        ...

@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    max_in_flight: int = 128
    max_queue: int = 1024

@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    in_flight: int = 0
    queued: int = 0
    aborting: int = 0

@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    listen: str
    secret_file: Path
    guests: tuple[str, ...]

    def keys(self, places: Collection[str]) -> Curve:
        ...

class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: PipelineState
    stages: dict[str, StageHealth]

class ReplicaHealth(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    state: StageState
    restarts: int = 0
    last_death: DeathCause | msgspec.UnsetType = msgspec.UNSET

class StageHealth(ReplicaHealth, frozen=True, kw_only=True):
    replicas: dict[str, ReplicaHealth] | msgspec.UnsetType = msgspec.UNSET

    @property
    def processes_ready(self) -> int:
        ...

class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: str
    variant: str
    checkpoint: str
    revision: str | None
    dtype: str
    compile: str
    stages: dict[str, StagePlace]
    torch: str | None
    cuda: str | None
    sglang: str | None
    cards: tuple[str, ...]

class StagePlace(msgspec.Struct, frozen=True, kw_only=True):
    process: str
    devices: tuple[str, ...]
    replicas: int
    tp_size: int
    ar_engine: str | None

class Traced(msgspec.Struct, frozen=True, kw_only=True):
    stages: tuple[str, ...]
    file: str | None = None
    threads: dict[str, int] = {}
    reason: str | None = None
Running: TypeAlias = Literal['wait', 'abort']
WATCHDOG_TIMEOUT_S: Final = 30.0

@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    source: str
    target: str
    transports: tuple[Transport, ...]
