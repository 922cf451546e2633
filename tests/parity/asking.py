"""Asks a running pipeline what the parity cases ask, alone or in company, and holds replies to the
stored ones.

Knows the pipeline's Python API. Knows nothing of transformers, nor of how a pipeline is set up.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cases import Case, Reading
from expected import WAV_TOLERANCE, load_reference
from omni_core.pipeline import Pipeline
from omni_core.types import (
    AudioDelta,
    CodecDelta,
    Event,
    Finished,
    MediaOptions,
    MediaPart,
    Message,
    Part,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    TextPart,
)

MEDIA_KINDS = {"image_url": "image", "audio_url": "audio", "video_url": "video"}


@dataclass
class Reply:
    """A request's events."""

    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def finished(self) -> Finished:
        """The last event, which every complete reply has."""
        last = self.events[-1]
        assert isinstance(last, Finished)
        return last

    @property
    def text_ids(self) -> list[int]:
        return [token for event in self.of(TextDelta) for token in event.token_ids]

    @property
    def codes(self) -> np.ndarray[Any, Any]:
        """(groups, frames)."""
        deltas = [event.codes for event in self.of(CodecDelta)]
        return np.concatenate(deltas, axis=1) if deltas else np.zeros((0, 0), np.int64)

    @property
    def wav(self) -> np.ndarray[Any, Any]:
        chunks = [event.samples for event in self.of(AudioDelta)]
        return np.concatenate(chunks) if chunks else np.zeros(0, np.float32)


def request_for(case: Case, **changes: Any) -> Request:
    """The case as a request; `changes` are fields of it."""
    talker = SamplingParams(temperature=0.0, max_tokens=case.talker_max_tokens)
    params = RequestParams(
        modalities=("text", "audio"),
        voice=case.voice,
        sampling=SamplingParams(temperature=0.0, max_tokens=case.text_max_tokens),
        stage_params={"talker_ar": talker},
        media=MediaOptions(
            use_audio_in_video=case.use_audio_in_video,
            video_fps=case.video_fps,
            min_pixels=case.min_pixels,
            max_pixels=case.max_pixels,
        ),
        return_codec=True,
    )
    turns = tuple(_message(turn) for turn in case.messages)
    fields = {"messages": turns, "params": params, **changes}
    return Request(**fields)


def reading_for(reading: Reading) -> Request:
    """The text as a request."""
    talker = SamplingParams(temperature=0.0, max_tokens=reading.talker_max_tokens)
    params = RequestParams(
        modalities=("audio",),
        voice=reading.voice,
        stage_params={"talker_ar": talker},
        return_codec=True,
    )
    return Request(read_aloud=reading.text, params=params)


def with_params(request: Request, **changes: Any) -> Request:
    """The request with other fields of its params."""
    fields = {name: getattr(request.params, name) for name in request.params.__struct_fields__}
    return Request(messages=request.messages, params=RequestParams(**{**fields, **changes}))


async def run(pipeline: Pipeline, request: Request) -> Reply:
    """The complete reply."""
    reply = Reply()
    async for event in pipeline.generate(request):
        reply.events.append(event)
    return reply


async def run_alone(pipeline: Pipeline, requests: Sequence[Request]) -> list[Reply]:
    """The replies, each asked for when the one before is complete."""
    return [await run(pipeline, request) for request in requests]


@dataclass
class Company:
    """Requests that arrive one after another while others run, at most `at_once` of them.

    After each arrival the next waits for an event of those in flight: how they overlap is up to
    the pipeline's steps, and no two arrive in one step.
    """

    pipeline: Pipeline
    at_once: int
    running: int = 0
    most: int = 0
    """In flight at the same time, so far."""
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, requests: Sequence[Request]) -> list[Reply]:
        """The replies, in the order of the requests."""
        replies = [Reply() for _ in requests]
        async with asyncio.TaskGroup() as group:
            for request, reply in zip(requests, replies, strict=True):
                while self.running == self.at_once:
                    await self._next_event()
                self.running += 1
                self.most = max(self.most, self.running)
                group.create_task(self._collect(request, reply))
                await self._next_event()
        return replies

    async def _collect(self, request: Request, reply: Reply) -> None:
        async for event in self.pipeline.generate(request):
            reply.events.append(event)
            self._moved.set()
        self.running -= 1
        self._moved.set()

    async def _next_event(self) -> None:
        self._moved.clear()
        await self._moved.wait()


def check(case: Case, reply: Reply) -> None:
    """Text ids and codes equal to the stored ones, the waveform within its tolerance."""
    check_text(case, reply)
    check_speech(case, reply)


def check_speech(case: Case | Reading, reply: Reply) -> None:
    """Codes equal to the stored ones, the waveform within its tolerance."""
    expected = load_reference(case.name)
    if expected.codes.shape[1] == 0:
        assert (reply.codes.size, reply.wav.size) == (0, 0)
        return
    np.testing.assert_array_equal(reply.codes, expected.codes, case.name)
    assert reply.wav.shape == expected.wav.shape
    assert np.abs(reply.wav - expected.wav).max() <= WAV_TOLERANCE, case.name
    assert reply.finished.usage.audio_tokens == expected.codes.shape[1]


def check_text(case: Case, reply: Reply) -> None:
    """Text ids equal to the stored ones, whether or not the reply is spoken."""
    ids = load_reference(case.name).text_ids.tolist()
    ended = ids[:-1] if reply.finished.finish_reason == "stop" else ids
    assert reply.text_ids == ended, case.name
    assert reply.finished.usage.text_tokens == len(ids)


async def counters(pipeline: Pipeline) -> dict[str, float]:
    """Every number of `Pipeline.stats()` as "stage.name"."""
    stats = await pipeline.stats()
    return {f"{s}.{name}": value for s, values in stats.items() for name, value in values.items()}


def _message(turn: Mapping[str, Any]) -> Message:
    content = turn["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return Message(role=turn["role"], content=tuple(_part(part) for part in parts))


def _part(content: Mapping[str, Any]) -> Part:
    match content["type"]:
        case "text":
            return TextPart(text=content["text"])
        case "input_audio":
            return MediaPart(kind="audio", data=base64.b64decode(content["input_audio"]["data"]))
        case kind:
            return MediaPart(kind=MEDIA_KINDS[kind], url=content[kind]["url"])
