"""From sound as it comes to turns: the input buffer, and who speaks in it.

Knows places and times. No sample is in two turns, and none of a turn is lost: what comes after one
is there for the next. Knows no conversation.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from omni_core.media.encode_stream import Resampler
from omni_core.types import FloatArray
from omni_server.realtime.formats import AudioFormat, Pcm, PcmDecoder, to_float
from omni_server.realtime.input_buffer import InputBuffer
from omni_server.realtime.settings import TurnDetection
from omni_server.realtime.together import Runner
from omni_server.realtime.turns import (
    Boundary,
    SpeechStarted,
    SpeechStopped,
    TurnDetector,
)
from omni_server.realtime.vad import RATE, WINDOW, SpeechModel, SpeechStream

_LAG: Final = 8
"""Samples that the resampler keeps back at most."""
_SLICE_S: Final = 0.5
"""Of a long piece that is looked at before the next; what it shows must not wait for all of it."""


@dataclass(frozen=True, slots=True)
class TurnBegan:
    """Somebody speaks, from this moment of the session's sound on."""

    start_ms: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """Somebody has spoken until this moment; the samples are the whole turn."""

    end_ms: int
    samples: Pcm


Heard: TypeAlias = TurnBegan | TurnEnded


class Listener:
    """The input of one session. One task at a time pushes."""

    def __init__(
        self,
        audio_format: AudioFormat,
        model: SpeechModel | None,
        threads: Runner,
        most_s: float,
    ) -> None:
        """`model` tells speech, in `threads`; a turn lasts `most_s` at most."""
        self.format = audio_format
        self._decoder = PcmDecoder(audio_format)
        self._buffer = InputBuffer()
        self._model, self._threads, self._most_s = model, threads, most_s
        self._follower: _Follower | None = None
        self._before_ms = 0
        """Of sound in an earlier format."""

    @property
    def speaks(self) -> bool:
        """Whether somebody does."""
        return self._follower is not None and self._follower.detector.speaks

    @property
    def waiting_s(self) -> float:
        """Of sound in the buffer."""
        return (self._buffer.end - self._buffer.start) / self.format.rate

    @property
    def room_s(self) -> float:
        """How much more sound may come; of what is looked through for turns, nothing stays long."""
        return math.inf if self._follower is not None else self._most_s - self.waiting_s

    @property
    def now_ms(self) -> int:
        """How much has come."""
        return self._ms(self._buffer.end)

    def change_format(self, audio_format: AudioFormat) -> None:
        """Take sound of another kind; what was in the buffer goes."""
        self._before_ms = self.now_ms
        settings = None if self._follower is None else self._follower.detector.settings
        self.format, self._decoder = audio_format, PcmDecoder(audio_format)
        self._buffer, self._follower = InputBuffer(), None
        self.detect(settings)

    def detect(self, settings: TurnDetection | None) -> None:
        """Find turns like this from now on, or not at all; a turn that has begun goes on."""
        if settings is None or self._model is None:
            self._follower = None
        elif self._follower is None:
            stream, end = self._model.stream(), self._buffer.end
            self._follower = _Follower(stream, self.format.rate, settings, end, self._most_s)
        else:
            self._follower.detector.settings = settings

    async def push(self, data: bytes) -> AsyncGenerator[Heard, None]:
        """Take bytes of the format; what they show is yielded as soon as it is known."""
        step = round(_SLICE_S * self.format.bytes_per_s)
        for start in range(0, len(data), step):
            piece = self._decoder.push(data[start : start + step])
            self._buffer.push(piece)
            if self._follower is None:
                continue
            for boundary in await self._follow(self._follower, piece):
                yield self._heard(boundary, self._follower)
            self._forget(self._follower)

    def commit(self) -> Pcm:
        """All that is in the buffer, which is empty then."""
        if self._follower is not None:
            self._follower.detector.stop()
        return self._buffer.take(self._buffer.start, self._buffer.end)

    def clear(self) -> None:
        """Forget what is in the buffer."""
        self._decoder.clear()
        self.commit()

    async def _follow(self, follower: _Follower, piece: Pcm) -> list[Boundary]:
        if not follower.has_window(len(piece)):
            follower.wait(piece)
            return []
        return await self._threads.run(partial(follower.push, piece))

    def _heard(self, boundary: Boundary, follower: _Follower) -> Heard:
        place = follower.place_of(boundary.window)
        match boundary:
            case SpeechStarted():
                begin = max(place - self._padding(follower), self._buffer.start)
                self._buffer.drop_before(begin)
                return TurnBegan(self._ms(begin))
            case SpeechStopped():
                return TurnEnded(self._ms(place), self._buffer.take(self._buffer.start, place))

    def _forget(self, follower: _Follower) -> None:
        """What can be in no turn any more."""
        if not follower.detector.speaks:
            began = follower.place_of(follower.detector.maybe_began)
            self._buffer.drop_before(began - self._padding(follower))

    def _padding(self, follower: _Follower) -> int:
        return follower.detector.padding_ms * self.format.rate // 1000

    def _ms(self, place: int) -> int:
        return self._before_ms + place * 1000 // self.format.rate


class _Follower:
    """Windows of the sound since some place, and what the detector makes of them."""

    def __init__(
        self, stream: SpeechStream, rate: int, settings: TurnDetection, start: int, most_s: float
    ) -> None:
        self.detector = TurnDetector(settings, int(most_s * 1000))
        self._stream, self._start = stream, start
        self._window = WINDOW * rate // RATE
        """Samples of a window, at the rate of the sound."""
        # Cubic: a better filter would look ahead, and a turn be noticed later by as much.
        self._resampler = None if rate == RATE else Resampler(rate, RATE, quality="QQ")
        self._waiting: list[Pcm] = []
        self._taken = 0
        self._rest: FloatArray = np.zeros(0, np.float32)

    def place_of(self, window: int) -> int:
        """Where a window begins."""
        return self._start + window * self._window

    def has_window(self, n_samples: int) -> bool:
        """Whether so many samples more make another window."""
        return (self._taken + n_samples - _LAG) // self._window > self.detector.windows

    def wait(self, piece: Pcm) -> None:
        """Take samples that make no window yet."""
        self._waiting.append(piece)
        self._taken += len(piece)

    def push(self, piece: Pcm) -> list[Boundary]:
        """Take samples; what they show, in order."""
        self.wait(piece)
        samples = to_float(np.concatenate(self._waiting))
        self._waiting = []
        if self._resampler is not None:
            samples = self._resampler.push(samples)
        sound = np.concatenate([self._rest, samples])
        whole = len(sound) - len(sound) % WINDOW
        self._rest = sound[whole:]
        likely = map(self._stream.probability, sound[:whole].reshape(-1, WINDOW))
        return [shown for shown in map(self.detector.push, likely) if shown is not None]
