"""The roll stage: plays a piano roll as sine tones, continuing each tone where it was left."""

from __future__ import annotations

import numpy as np

from omni_core.scheduler.base import Scheduler
from omni_core.scheduler.cadence import Cadence
from omni_core.scheduler.streaming import StreamingScheduler
from omni_core.specs import StageContext
from omni_core.types import FloatArray, IntArray, Payload, RequestParams
from omni_pianola.instrument import Instrument, read

CONCERT_PITCH_HZ = 440.0
CONCERT_NOTE = 69
LOUDEST = 127
HEADROOM = 4
"""Notes that may sound together at full velocity without clipping."""
FRAMES_PER_PUSH = 8


class Reply:
    """How many samples of a reply have been played."""

    def __init__(self) -> None:
        self.played = 0


class Player:
    """A `StreamingVocoder`; `codes` are strips of the roll, int64 (notes, frames)."""

    max_replies: int | None = None

    def __init__(self, instrument: Instrument) -> None:
        self.sample_rate = instrument.sample_rate
        self._samples_per_frame = instrument.samples_per_frame

    def open(self, params: RequestParams, payload: Payload) -> Reply:
        """See `StreamingVocoder.open`."""
        return Reply()

    def push(self, states: list[Reply], codes: list[IntArray]) -> list[FloatArray]:
        """See `StreamingVocoder.push`."""
        return [self._play(reply, strip) for reply, strip in zip(states, codes, strict=True)]

    def flush(self, state: Reply) -> FloatArray:
        """A tone ends with its frame; nothing is owed."""
        return np.zeros(0, dtype=np.float32)

    def close(self, state: Reply) -> None:
        """Nothing to free."""

    def _play(self, reply: Reply, strip: IntArray) -> FloatArray:
        sounding = np.flatnonzero(strip.any(axis=1))
        loudness = np.repeat(strip[sounding] / LOUDEST / HEADROOM, self._samples_per_frame, axis=1)
        count = strip.shape[1] * self._samples_per_frame
        times_s = np.arange(reply.played, reply.played + count) / self.sample_rate
        pitches_hz = CONCERT_PITCH_HZ * 2.0 ** ((sounding - CONCERT_NOTE) / 12)
        waves = np.sin(2 * np.pi * pitches_hz[:, None] * times_s)
        reply.played += count
        return (loudness * waves).sum(axis=0).astype(np.float32)


def build(ctx: StageContext) -> Scheduler:
    """Factory of the stage."""
    cadence = Cadence(steady_frames=FRAMES_PER_PUSH)
    return StreamingScheduler(Player(read(ctx.model_path)), cadence=cadence)
