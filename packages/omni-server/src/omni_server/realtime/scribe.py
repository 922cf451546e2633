"""What turns said, written down: a second, short request for each, one after the other.

Knows how a checkpoint is asked to transcribe. Knows nothing of answers, which do not wait for this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import numpy as np

from omni_core.errors import OmniError, OverloadedError
from omni_core.media.encode import wav_bytes
from omni_core.media.segments import split_at_pauses
from omni_core.specs import Ref, Transcription, TranscriptionTask
from omni_core.types import (
    Event,
    Finished,
    MediaPart,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TokenLogprob,
    Usage,
)
from omni_server.errors import error_object, internal_error
from omni_server.openai.transcriptions_reply import logprobs
from omni_server.openai.transcriptions_text import Transcript
from omni_server.realtime.formats import Pcm, to_float
from omni_server.realtime.items import Json, Sound, new_id
from omni_server.realtime.settings import InputTranscription
from omni_server.realtime.shared import Shared
from omni_server.realtime.spent import transcription_usage

MOST_WAITING: Final = 16
_MIN_PAUSE_S: Final = 0.2
_INAUDIBLE: Final = 1
"""Of 16-bit samples: louder is more than the dither of silence."""
_EVENT: Final = "conversation.item.input_audio_transcription"
log = logging.getLogger("omni.server")


@dataclass(frozen=True, slots=True)
class How:
    """How a turn is to be written down."""

    asked: InputTranscription
    with_logprobs: bool = False
    """Telling how likely each token was."""

    @property
    def task(self) -> TranscriptionTask:
        """As a checkpoint is asked."""
        language = self.asked.language and self.asked.language.lower()
        return TranscriptionTask(language=language, prompt=self.asked.prompt)


@dataclass(frozen=True, slots=True)
class _Turn:
    item_id: str
    content_index: int
    sound: Sound
    how: How


class Scribe:
    """Writes down the turns of one session, until it is closed."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._turns: asyncio.Queue[_Turn] = asyncio.Queue(MOST_WAITING)
        self._task: asyncio.Task[None] | None = None

    def write(self, item_id: str, content_index: int, sound: Sound, how: How) -> None:
        """Write down one more turn, soon: it is inside the server's door from now on."""
        turn = _Turn(item_id, content_index, sound, how)
        try:
            if self._turns.full():
                many = f"{MOST_WAITING} turns wait to be written down already."
                raise OverloadedError(many)
            self._shared.enter()
        except OmniError as error:
            self._tell(turn, "failed", error=_error(error))
            return
        self._turns.put_nowait(turn)
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    async def idle(self) -> None:
        """Wait until all turns are written down."""
        await self._turns.join()

    async def close(self) -> None:
        """Write no more."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        while not self._turns.empty():
            self._turns.get_nowait()
            self._shared.leave()

    async def _work(self) -> None:
        while True:
            turn = await self._turns.get()
            try:
                self._shared.count()  # not before: an answer to the turn goes first
                await self._write_one(turn)
            except OmniError as error:
                self._tell(turn, "failed", error=_error(error))
            except Exception as error:  # the request edge: the session goes on
                log.exception("a turn could not be written down")
                self._tell(turn, "failed", error=_error(internal_error(error)))
            finally:
                self._shared.leave()
                self._turns.task_done()

    async def _write_one(self, turn: _Turn) -> None:
        model = self._shared.pipeline.info.transcription
        assert model is not None  # or the setting had been refused
        clips = await asyncio.to_thread(_clips, turn.sound, model)
        transcript = Transcript(len(clips))
        n_told = 0
        with self._shared.asking(len(clips)) as timer:
            for index, clip in enumerate(clips):
                async with aclosing(self._events(clip, model, turn.how)) as events:
                    async for event in events:
                        timer.saw(event)
                        if delta := transcript.hear(index, event):
                            told = self._likely(turn, transcript.logprobs[n_told:])
                            n_told = len(transcript.logprobs)
                            self._tell(turn, "delta", delta=delta, **told)
            transcript.check_complete()
        self._shared.spent(transcript.usage)
        turn.sound.transcript = transcript.text
        usage = transcription_usage(transcript.usage)
        told = self._likely(turn, transcript.logprobs)
        self._tell(turn, "completed", transcript=transcript.text, usage=usage, **told)

    def _likely(self, turn: _Turn, tokens: list[TokenLogprob]) -> dict[str, object]:
        return {"logprobs": logprobs(tokens)} if turn.how.with_logprobs else {}

    async def _events(
        self, clip: MediaPart | None, model: Transcription, how: How
    ) -> AsyncGenerator[Event, None]:
        if clip is None:
            yield Finished(finish_reason="stop", usage=Usage())
            return
        named = model.messages
        ask = named.resolve() if isinstance(named, Ref) else named
        messages: tuple[Message, ...] = ask(clip, how.task)
        sampling = SamplingParams(temperature=0.0, logprobs=0 if how.with_logprobs else None)
        request = Request(
            messages=messages,
            params=RequestParams(sampling=sampling),
            request_id=new_id("transcript"),
            client=self._shared.client,
            timeout_s=self._shared.server.settings.request_timeout_s,
        )
        async with aclosing(self._shared.pipeline.generate(request)) as events:
            async for event in events:
                yield event

    def _tell(self, turn: _Turn, what: str, **fields: object) -> None:
        event = {
            "type": f"{_EVENT}.{what}",
            "item_id": turn.item_id,
            "content_index": turn.content_index,
        }
        self._shared.put({**event, **fields})


def _clips(sound: Sound, model: Transcription) -> list[MediaPart | None]:
    """The turn in clips that are not too long, cut at pauses; None for one that is silent."""
    samples, rate = sound.samples, sound.rate
    if sound.duration_s <= model.max_segment_s:
        return [_clip(samples, rate)]
    segments = split_at_pauses(
        to_float(samples),
        rate,
        min_s=model.min_segment_s,
        max_s=model.max_segment_s,
        min_pause_s=_MIN_PAUSE_S,
    )
    return [_clip(samples[one.start : one.stop], rate) for one in segments]


def _clip(samples: Pcm, rate: int) -> MediaPart | None:
    if np.abs(samples.astype(np.int32)).max(initial=0) <= _INAUDIBLE:
        return None
    return MediaPart(kind="audio", data=wav_bytes(samples, rate))


def _error(error: OmniError) -> Json:
    found: Json = error_object(error)["error"]
    return found
