"""What the routes of one server share.

Knows the pipeline's Python API. Holds no request.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib.metadata import version

from omni_core.pipeline import Pipeline
from omni_server.door import Door
from omni_server.metrics import Metrics
from omni_server.settings import Settings
from omni_server.transcripts import TranscriptStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """One pipeline behind one server."""

    pipeline: Pipeline
    settings: Settings
    transcripts: TranscriptStore
    metrics: Metrics = field(default_factory=Metrics)
    door: Door = field(default_factory=Door)
    started_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint`: same release, pipeline and variant, same string."""
        return f"omni-{version('omni-server')}-{self.pipeline.name}-{self.pipeline.variant}"
