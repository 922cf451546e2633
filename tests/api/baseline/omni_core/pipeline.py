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
