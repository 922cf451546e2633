"""The loop of autoregressive stages: inbox to engine, engine steps to outbox.

Knows engines and requests. Knows nothing of models: an `ARStage` does.
"""

from __future__ import annotations

from typing import Protocol

from omni_core.engine.base import EngineRequest, StepOutput
from omni_core.scheduler.base import Outbox, Work


class ARStage(Protocol):
    """What is special about one AR stage: how payloads become engine requests and outputs leave."""

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        """Describe the request to the engine; None if there is nothing to generate and the stage
        has already ended the request through `outbox`."""

    def publish(self, request: EngineRequest, output: StepOutput, outbox: Outbox) -> None:
        """Send on what one step produced. When `output.finish_reason` is set, also end the request
        (`stream_done`, then `done` or `complete`)."""

    def forget(self, request_id: str) -> None:
        """The request was aborted or failed: drop what `admit` or `publish` kept for it."""
