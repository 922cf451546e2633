"""What the routes of one server share.

Knows the pipeline's Python API. Holds no request.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

from omni_core.pipeline import Pipeline
from omni_server.door import Door
from omni_server.metrics import Metrics
from omni_server.plugged import Plugged
from omni_server.rate import RateLimiter
from omni_server.realtime.vad import Detection
from omni_server.settings import Settings
from omni_server.transcripts import TranscriptStore
from omni_server.voices.known import Voices

RELEASE = version("omni-server")
DECODING_THREADS = 2
"""Uploads that are decoded at a time; more would leave no processor to what runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """One pipeline behind one server."""

    pipeline: Pipeline
    settings: Settings
    transcripts: TranscriptStore
    voices: Voices
    metrics: Metrics = field(default_factory=Metrics)
    door: Door = field(default_factory=Door)
    decoders: Executor = field(
        default_factory=partial(ThreadPoolExecutor, DECODING_THREADS, "omni-decoder")
    )
    """For uploads of minutes, which must not keep short work waiting in the usual threads."""
    speech: Detection = field(default_factory=Detection.here)
    limiter: RateLimiter | None = None
    """Who counts requests of clients, if anybody does."""
    plugged: Plugged = field(default_factory=Plugged)
    started_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint`: same release, pipeline and variant, same string."""
        return f"omni-{RELEASE}-{self.pipeline.name}-{self.pipeline.variant}"
