"""Segments of a recording through the pipeline: several at once, heard in their order.

Knows samples, requests and events. What the events say is put together elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import soundfile

from omni_core.errors import DeadlineError, RequestError
from omni_core.media.audio import load_audio
from omni_core.media.limits import MediaLimits
from omni_core.media.segments import Segment, split_at_pauses
from omni_core.pipeline import Pipeline
from omni_core.specs import Ref
from omni_core.types import Event, Finished, FloatArray, MediaPart, Message, Request, Usage
from omni_server.openai.transcriptions_call import FILE, TranscriptionCall

MAX_AT_ONCE = 4
"""Segments of one recording in the stages at a time."""
_INAUDIBLE = 1.5 / 32_768
"""Louder than the dither of a 16-bit file that holds silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A decoded upload and how it is cut."""

    samples: FloatArray
    sample_rate: int
    segments: list[Segment]

    @property
    def duration_s(self) -> float:
        """Of the whole, in seconds."""
        return len(self.samples) / self.sample_rate

    def heard(self, segment: Segment) -> FloatArray:
        """The samples of one segment."""
        return self.samples[segment.start : segment.stop]


async def decode_upload(call: TranscriptionCall, limits: MediaLimits) -> Recording:
    """Decode and cut the upload, off the event loop; a RequestError names `file`."""
    return await asyncio.to_thread(_decode, call, limits)


def _decode(call: TranscriptionCall, limits: MediaLimits) -> Recording:
    rate = call.model.sample_rate
    try:
        samples = load_audio(bytes(call.upload), limits, sample_rate=rate)
    except RequestError as error:
        error.param = FILE
        raise
    shortest_s, longest_s = call.segment_s
    segments = split_at_pauses(
        samples, rate, min_s=shortest_s, max_s=longest_s, min_pause_s=call.min_pause_s
    )
    return Recording(samples=samples, sample_rate=rate, segments=segments)


async def hear(
    call: TranscriptionCall, recording: Recording, pipeline: Pipeline
) -> AsyncGenerator[tuple[int, Event], None]:
    """(segment, event) of all segments, one segment after the other; each ends with `Finished`.

    Raises what ends a segment's request when it is that segment's turn. Closing the generator
    early (or cancelling its task) aborts every request that runs.
    """
    deadline_s = None if call.timeout_s is None else time.monotonic() + call.timeout_s
    waiting = iter(recording.segments)
    running: deque[_Hearing] = deque()
    try:
        for index in range(len(recording.segments)):
            while len(running) < MAX_AT_ONCE and (segment := next(waiting, None)) is not None:
                samples = recording.heard(segment)
                running.append(_Hearing(call, samples, pipeline, deadline_s))
            while (event := await running[0].next_event()) is not None:
                yield index, event
            running.popleft()
    finally:
        for hearing in running:
            hearing.task.cancel()
        await asyncio.gather(*(hearing.task for hearing in running), return_exceptions=True)


class _Hearing:
    """One segment's request, and its events until somebody listens."""

    def __init__(
        self,
        call: TranscriptionCall,
        samples: FloatArray,
        pipeline: Pipeline,
        deadline_s: float | None,
    ) -> None:
        self._call, self._samples = call, samples
        self._pipeline, self._deadline_s = pipeline, deadline_s
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.task = asyncio.create_task(self._run())

    async def next_event(self) -> Event | None:
        """None after the last; raises what ended the request."""
        event = await self._events.get()
        if event is None:
            await self.task
        return event

    async def _run(self) -> None:
        try:
            if np.abs(self._samples).max() <= _INAUDIBLE:
                self._events.put_nowait(Finished(finish_reason="stop", usage=Usage()))
                return
            clip = await asyncio.to_thread(
                float_wav, self._samples, self._call.model.sample_rate, self._call.model.min_clip_s
            )
            async with aclosing(self._pipeline.generate(self._request(clip))) as events:
                async for event in events:
                    self._events.put_nowait(event)
        finally:
            self._events.put_nowait(None)

    def _request(self, clip: bytes) -> Request:
        call = self._call
        part = MediaPart(kind="audio", data=clip, param=FILE)
        named = call.model.messages
        ask = named.resolve() if isinstance(named, Ref) else named
        messages: tuple[Message, ...] = ask(part, call.task)
        return Request(
            messages=messages,
            params=call.params,
            request_id=call.request_id,
            client=call.client,
            timeout_s=self._left_s(),
        )

    def _left_s(self) -> float | None:
        if self._deadline_s is None:
            return None
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineError("The request took longer than it may; ask for more 'timeout'.")
        return left_s


def float_wav(samples: FloatArray, sample_rate: int, min_s: float) -> bytes:
    """A WAV file that holds exactly these samples, and silence up to `min_s` after them."""
    missing = max(0, round(min_s * sample_rate) - len(samples))
    padded = np.pad(samples, (0, missing)) if missing else samples
    file = BytesIO()
    soundfile.write(file, padded, sample_rate, format="WAV", subtype="FLOAT")
    return file.getvalue()
