"""The loop of stages that turn a stream of codec frames into a stream of audio.

Knows order, cadence and audio events. Knows nothing of codecs: a `StreamingVocoder` does.
"""

from __future__ import annotations

from typing import Any, Protocol

from omni_core.types import FloatArray, IntArray, Payload, RequestParams


class StreamingVocoder(Protocol):
    """Stateful incremental decoder: any chunking of a reply gives the samples of the whole."""

    sample_rate: int

    def open(self, params: RequestParams, payload: Payload) -> Any:
        """Fresh state for one reply."""

    def push(self, states: list[Any], codes: list[IntArray]) -> list[FloatArray]:
        """Advance each state by its int64 (groups, frames) codes; returns the samples that are now
        final, float32 (n,) each, possibly empty."""

    def flush(self, state: Any) -> FloatArray:
        """Samples still owed once the codes have ended; empty for most codecs."""

    def close(self, state: Any) -> None:
        """Free the state; called once, after `flush` or on abort."""
