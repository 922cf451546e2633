"""A pipeline without stages, in the process of whoever asks: deltas out of nothing, one at a time.

What is around it is then all there is to measure. It has the stages' names and the abilities of a
pipeline that hears and speaks, so that the same requests go to either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import numpy as np

from omni_core.coordinator.aborts import Silent
from omni_core.pipeline import Health, Pipeline
from omni_core.specs import ModelInfo, Transcription, TranscriptionTask
from omni_core.types import (
    AudioDelta,
    Event,
    Finished,
    MediaPart,
    Message,
    Request,
    SamplingParams,
    TextDelta,
    TextPart,
    Usage,
)

RATE: Final = 24_000
FRAME_SAMPLES: Final = 1920
SPEAKER: Final = "talker_ar"
"""The stage whose `max_tokens` says how many pieces of audio there are."""


def messages_of(clip: MediaPart, task: TranscriptionTask) -> tuple[Message, ...]:
    """What is asked about a recording."""
    return (Message(role="user", content=(clip, TextPart(text="Write it down."))),)


INFO: Final = ModelInfo(
    context_length=32_768,
    sample_rate=RATE,
    input_modalities=("text", "audio"),
    reads_aloud=True,
    transcription=Transcription(messages=messages_of),
)


class Scripted(Pipeline):
    """As many deltas of text and of audio as a request allows, in turn."""

    def __init__(self) -> None:
        self.info = INFO
        self.name, self.variant = "scripted", "speech"
        self.modalities = ("text", "audio")
        self.stages = ("thinker", SPEAKER)
        self.edges = ()
        self.observer = Silent()
        samples = np.sin(np.arange(FRAME_SAMPLES) * 0.05)
        self._sound = AudioDelta(samples=samples.astype(np.float32), sample_rate=RATE)

    async def batches(self, request: Request) -> AsyncGenerator[list[Event], None]:
        """See `Pipeline.batches`: every delta comes alone."""
        texts = audios = 0
        if "text" in request.params.modalities:
            texts = request.params.sampling.max_tokens or 1
        if "audio" in request.params.modalities:
            audios = request.params.stage_params.get(SPEAKER, SamplingParams()).max_tokens or 1
        for number in range(max(texts, audios)):
            if number < texts:
                await asyncio.sleep(0)  # as one that has told all it knows
                yield [TextDelta(text="word ", token_ids=(number,))]
            if number < audios:
                await asyncio.sleep(0)
                yield [self._sound]
        usage = Usage(prompt_tokens=9, text_tokens=texts, audio_tokens=audios)
        yield [Finished(finish_reason="stop", usage=usage)]

    def health(self) -> Health:
        """Always ready."""
        return Health(status="ready", stages={})
