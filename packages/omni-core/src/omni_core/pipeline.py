"""The Python API: load a pipeline, generate, read health and counters.

The server is a client of this module and of nothing below it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import Literal

import msgspec

from omni_core.specs import ModelInfo
from omni_core.types import Event, Modality, Request

PipelineState = Literal["starting", "ready", "degraded", "closing"]
StageState = Literal["starting", "ready", "dead"]


class StageHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One stage's process."""

    pid: int
    state: StageState
    restarts: int = 0


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`ready` only when every stage is."""

    status: PipelineState
    stages: dict[str, StageHealth]


class Pipeline:
    """A running pipeline; use as an async context manager."""

    info: ModelInfo
    name: str
    variant: str
    modalities: tuple[Modality, ...]
    """What the variant can emit."""
    stages: tuple[str, ...]

    @classmethod
    def load(
        cls,
        model_path: str,
        *,
        variant: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        ar_engine: str = "auto",
        layout: Literal["auto", "per-stage"] = "auto",
        overrides: Mapping[str, str] | None = None,
        on_progress: Callable[[str, str], None] | None = None,
    ) -> Pipeline:
        """Find the pipeline for a checkpoint and check its configuration; starts nothing yet.

        `overrides` maps "stage.field" to its value as written on a command line. `on_progress` is
        called with (stage, what it is doing) during start-up.
        """
        raise NotImplementedError

    async def __aenter__(self) -> Pipeline:
        raise NotImplementedError

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Run one request; ends with `Finished` or raises an `OmniError`.

        Closing the generator early (or cancelling its task) aborts the request in every stage.
        """
        raise NotImplementedError

    def health(self) -> Health:
        """State now, without waiting."""
        raise NotImplementedError

    async def stats(self) -> dict[str, dict[str, float]]:
        """{stage: {gauge or counter: value}}, asked of the stages now."""
        raise NotImplementedError
