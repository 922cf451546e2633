"""The voice stage: pieces of text in, sound out, each piece sent before the next is made.

Knows pieces, order and listeners. `Beak` knows hibari.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import soxr

from omni_core.errors import ConfigError
from omni_core.scheduler.base import Outbox, Scheduler, Work
from omni_core.scheduler.per_request import PerRequestScheduler
from omni_core.specs import StageContext
from omni_core.types import AudioDelta, FloatArray, Usage
from omni_parrot.checkpoint import SPOKEN_HZ, Parrot, read

STAGE: Final = "voice"
FRAME: Final = 300
"""Samples of one of hibari's frames, which are this model's tokens of audio."""
Speak: TypeAlias = Callable[[str, str, int], FloatArray]
"""(text, voice, seed) -> float32 (n,) at `SPOKEN_HZ`, the same for the same arguments."""


def build(ctx: StageContext) -> Scheduler:
    """Factory of the stage."""
    ctx.report("loading voices")
    parrot = read(ctx.model_path)
    return Speaker(Beak(parrot).speak, parrot.default_voice)


class Beak:
    """The voices of a checkpoint."""

    def __init__(self, parrot: Parrot) -> None:
        from hibari import Hibari
        from hibari.voices import VOICES

        self._voices = parrot.voices
        self._models: dict[str, Any] = {}
        for name in {voice.hibari for voice in parrot.voices.values()}:
            if name not in VOICES:
                known = ", ".join(VOICES)
                raise ConfigError(f"hibari has no voice {name!r}, which config.json names; {known}")
            try:
                self._models[name] = Hibari(voice=name)
            except RuntimeError as exc:  # it was to be downloaded
                raise ConfigError(f"voice {name!r}: {exc}") from exc

    def speak(self, text: str, voice: str, seed: int) -> FloatArray:
        """See `Speak`. A lower voice speaks faster and is played slower."""
        asked = self._voices[voice]
        sound = self._models[asked.hibari](text, speed=1 / asked.pitch, seed=seed)
        if asked.pitch != 1.0:
            sound = soxr.resample(sound, SPOKEN_HZ * asked.pitch, SPOKEN_HZ)
        return np.asarray(np.clip(sound, -1.0, 1.0), np.float32)


@dataclass(slots=True)
class _Speech:
    """A reply that is being spoken."""

    voice: str
    seed: int
    pieces: deque[str] = field(default_factory=deque)
    ended: bool = False
    """All pieces are here."""
    samples: int = 0
    spoken: int = 0
    """Pieces."""
    heard_until_s: float = 0.0
    """When a listener who plays without pause has heard all there is."""


class Speaker(PerRequestScheduler[_Speech]):
    """Speaks one piece at a time: for whom nothing was said yet, else for whom sound runs out
    first."""

    def __init__(
        self, speak: Speak, default_voice: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._speak = speak
        self._default_voice = default_voice
        self._clock = clock
        self._pieces = 0

    def stats(self) -> dict[str, float]:
        """Replies entered and held, and pieces spoken."""
        return {**super().stats(), "pieces": self._pieces}

    def open(self, work: Work, outbox: Outbox) -> _Speech:
        """See `PerRequestScheduler`."""
        sampling = work.params.sampling_for(STAGE).over(work.params.sampling)
        return _Speech(work.params.voice or self._default_voice, sampling.seed or 0)

    def push(self, request_id: str, kept: _Speech, data: str, outbox: Outbox) -> None:
        """See `PerRequestScheduler`."""
        kept.pieces.append(data)

    def end(self, request_id: str, kept: _Speech, outbox: Outbox) -> None:
        """See `PerRequestScheduler`."""
        kept.ended = True

    def due(self) -> str | None:
        """See `PerRequestScheduler`."""
        ready = [(s.heard_until_s, rid) for rid, s in self.kept.items() if s.pieces or s.ended]
        return min(ready)[1] if ready else None

    def advance(self, request_id: str, kept: _Speech, outbox: Outbox) -> None:
        """See `PerRequestScheduler`."""
        if not kept.pieces:
            self.let_go(request_id)
            outbox.complete(request_id, usage=Usage(audio_tokens=-(-kept.samples // FRAME)))
            return
        seed = int(np.random.default_rng([kept.seed % 2**32, kept.spoken]).integers(2**31))
        sound = self._speak(kept.pieces.popleft(), kept.voice, seed)
        kept.spoken += 1
        kept.samples += len(sound)
        kept.heard_until_s = max(kept.heard_until_s, self._clock()) + len(sound) / SPOKEN_HZ
        self._pieces += 1
        if len(sound):
            outbox.emit(request_id, AudioDelta(samples=sound, sample_rate=SPOKEN_HZ))
