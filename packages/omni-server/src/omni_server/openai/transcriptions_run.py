"""Segments of a recording through the pipeline: several at once, heard in their order.

Knows samples, requests and events. What the events say is put together elsewhere.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import numpy as np

from omni_core.errors import DeadlineError, OverloadedError, RateLimitError, RequestError
from omni_core.media.audio import load_audio
from omni_core.media.clip import float_wav
from omni_core.media.limits import MediaLimits
from omni_core.media.patience import Stop
from omni_core.media.segments import Segment, split_at_pauses
from omni_core.pipeline import Pipeline
from omni_core.specs import Ref
from omni_core.types import Event, Finished, FloatArray, MediaPart, Message, Request, Usage
from omni_server.audio import QUICK_SAMPLES
from omni_server.offload import off_loop
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


async def decode_upload(
    call: TranscriptionCall, limits: MediaLimits, decoders: Executor
) -> Recording:
    """Decode and cut the upload in a thread of `decoders`, which empties it; a RequestError names
    `file`. Decoding stops when the caller leaves, or at the deadline with a DeadlineError."""
    over = threading.Event()
    try:
        async with asyncio.timeout(call.left_s()):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(decoders, _decode, call, limits, over.is_set)
    except TimeoutError as exc:
        raise DeadlineError(
            "Decoding the upload took longer than the request may; ask for more 'timeout', or "
            "send a shorter file.",
            param=FILE,
        ) from exc
    finally:
        over.set()


def _decode(call: TranscriptionCall, limits: MediaLimits, stop: Stop) -> Recording:
    rate = call.model.sample_rate
    upload = bytes(call.upload)
    call.upload.clear()
    try:
        samples = load_audio(upload, limits, sample_rate=rate, stop=stop)
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

    Raises what ends any segment's request as soon as it does. Closing the generator early (or
    cancelling its task) aborts every request that runs.
    """
    asking = _Asking(call, recording, pipeline)
    segments = recording.segments
    arrivals = _Arrivals(len(segments))
    tasks: list[asyncio.Task[None]] = []
    try:
        for index in range(len(segments)):
            for number in range(len(tasks), min(index + MAX_AT_ONCE, len(segments))):
                task = asyncio.create_task(asking.about(number, arrivals))
                task.add_done_callback(partial(arrivals.ended, number))
                tasks.append(task)
            while (event := await arrivals.next_of(index)) is not None:
                yield index, event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Arrivals:
    """Events of all segments as they come, each held until its segment's turn."""

    def __init__(self, n_segments: int) -> None:
        self._arrived: asyncio.Queue[tuple[int, Event | BaseException | None]] = asyncio.Queue()
        self._held: list[deque[Event | None]] = [deque() for _ in range(n_segments)]

    def put(self, index: int, event: Event) -> None:
        self._arrived.put_nowait((index, event))

    def ended(self, index: int, task: asyncio.Task[None]) -> None:
        self._arrived.put_nowait((index, None if task.cancelled() else task.exception()))

    async def next_of(self, index: int) -> Event | None:
        """None after the segment's last; raises what ended any segment's task."""
        while not self._held[index]:
            number, event = await self._arrived.get()
            if isinstance(event, BaseException):
                raise event
            self._held[number].append(event)
        return self._held[index].popleft()


class _Asking:
    """The requests of one recording."""

    def __init__(self, call: TranscriptionCall, recording: Recording, pipeline: Pipeline) -> None:
        self._call, self._recording, self._pipeline = call, recording, pipeline

    async def about(self, index: int, arrivals: _Arrivals) -> None:
        """Ask about one segment; its events go to `arrivals`."""
        samples = self._recording.heard(self._recording.segments[index])
        if np.abs(samples).max() <= _INAUDIBLE:
            arrivals.put(index, Finished(finish_reason="stop", usage=Usage()))
            return
        model = self._call.model
        clip = await off_loop(
            partial(float_wav, samples, model.sample_rate), if_=len(samples) > QUICK_SAMPLES
        )
        while True:
            try:
                async with aclosing(self._pipeline.generate(self._request(clip))) as events:
                    async for event in events:
                        arrivals.put(index, event)
                return
            except (RateLimitError, OverloadedError) as error:
                if index == 0:
                    raise
                await self._wait(error.retry_after_s)

    async def _wait(self, seconds: float) -> None:
        """Until a full queue may have a place: what was heard so far would be lost otherwise."""
        left_s = self._call.left_s()
        await asyncio.sleep(seconds if left_s is None else min(seconds, left_s))

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
            timeout_s=call.left_s(),
        )
