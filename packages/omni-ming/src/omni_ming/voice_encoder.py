"""The voice_encoder stage: recordings of voices to what the Talker is given of them, cached.

Runs on the CPU, beside the Thinker; only requests that bring a recording come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from omni_core.encoder.options import CACHE_ENTRIES, DEFAULT_ENTRIES, whole_number
from omni_core.errors import OmniError
from omni_core.scheduler.base import Scheduler, Work
from omni_core.scheduler.cache import LRU, SharedResults
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.specs import StageContext
from omni_core.types import Payload
from omni_ming.payloads import ClonedVoice, VoiceRecording
from omni_ming.reference import Reference, ReferenceEncoder

_SEED_BYTES = 8


def build(ctx: StageContext) -> Scheduler:
    """The stage's scheduler."""
    ctx.report("loading the encoders of voices")
    entries = whole_number(ctx.stage, CACHE_ENTRIES, DEFAULT_ENTRIES, least=0)
    encoder = VoiceEncoder(ctx.model_path, entries=entries)
    ctx.loads(encoder)
    return SimpleScheduler(
        encoder, max_concurrency=ctx.stage.max_concurrency, more_stats=encoder.stats
    )


class VoiceEncoder:
    """Equal recordings are encoded once, and have equal latents. Safe to share by threads; also
    the stage's `WeightLoader`."""

    def __init__(self, model_path: str, *, entries: int) -> None:
        self._encode = ReferenceEncoder(model_path)
        self._shared: SharedResults[Reference] = SharedResults(
            LRU(max_entries=entries, size_bytes=lambda reference: reference.latents.nbytes)
        )

    def __call__(self, works: Sequence[Work]) -> list[Payload | OmniError]:
        """A `ClonedVoice` for each of `works`."""
        recordings = [cast(VoiceRecording, work.payload["voice"]) for work in works]
        made = self._shared.obtain(
            [recording["key"] for recording in recordings],
            lambda places: [self._reference(recordings[place]) for place in places],
        )
        return [
            reference if isinstance(reference, OmniError) else _cloned(recording, reference)
            for recording, reference in zip(recordings, made, strict=True)
        ]

    def stats(self) -> dict[str, float]:
        """Recordings by where their voices came from."""
        return self._shared.stats()

    def check(self, model_path: str) -> None:
        """See `WeightLoader`."""
        ReferenceEncoder(model_path)

    def load(self, model_path: str) -> None:
        """See `WeightLoader`."""
        self._encode = ReferenceEncoder(model_path)
        self._shared.forget()

    def _reference(self, recording: VoiceRecording) -> Reference:
        seed = int.from_bytes(recording["key"][:_SEED_BYTES], "little", signed=True)
        return self._encode(recording["sound"], recording["heard"], seed=seed)


def _cloned(recording: VoiceRecording, reference: Reference) -> Payload:
    cloned = ClonedVoice(text=recording["text"], latents=reference.latents)
    if reference.speaker is not None:
        cloned["speaker"] = reference.speaker
    return cast(Payload, cloned)
