"""What HTTP costs over the Python API: the same pipeline asked in this process and by a client.

Server and pipeline are in this process, the client in another one. The numbers are CPU time of this
process, all its threads, so the client's share is not in them: what a request over HTTP takes less
what the same request through `Pipeline` takes, where the caller encodes and decodes audio with the
same functions as the server, codecs in a thread like it. A reply of one delta gives the cost of a
request, what a longer one takes beyond it, the cost of a chunk: a delta of the pipeline, which
comes and is sent alone.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import numpy as np

from checkpoint import build_endless
from inside import listening
from omni_core.media.audio import load_audio
from omni_core.media.clip import float_wav
from omni_core.media.encode import wav_bytes
from omni_core.media.encode_stream import StreamEncoder, stream_encoder
from omni_core.media.limits import MediaLimits
from omni_core.media.segments import split_at_pauses
from omni_core.pipeline import Pipeline
from omni_core.specs import Ref, Transcription, TranscriptionTask
from omni_core.types import (
    AudioDelta,
    MediaPart,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    TextPart,
)
from omni_server.app import create_app
from omni_server.settings import Settings
from raw_client import Shot
from results import Case, Report
from scripted import SPEAKER, Scripted

RAW_CLIENT: Final = Path(__file__).with_name("raw_client.py")
MODEL: Final = "measured"
GOAL_REQUEST_MS: Final = 1.5
GOAL_CHUNK_MS: Final = 0.15
QUESTION: Final = "What did the fox say?"
BOUNDARY: Final = "between-the-parts"
PAUSE_S: Final = 0.001
"""Before a request in this process, which waits then, as it does for one over HTTP: what has waited
runs slower at first."""
CLIP_S: Final = 2.0
CLIP_RATE: Final = 16_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the bench."""
    parser.add_argument("--rounds", type=int, default=7, help="medians are of so many (default 7)")
    parser.add_argument("--requests", type=int, default=40, help="short replies a round (40)")
    parser.add_argument("--deltas", type=int, default=100, help="of a long reply (default 100)")
    parser.add_argument("--no-tiny", action="store_true", help="the pipeline without stages alone")


def measure(options: argparse.Namespace) -> Report:
    """Every kind of request, in this process and over HTTP in turn, round by round."""
    cases = asyncio.run(_measure("no stages", Scripted(), options))
    if not options.no_tiny:
        with tempfile.TemporaryDirectory() as workshop:
            cases += asyncio.run(_measure_tiny(Path(workshop), options))
    return Report(cases=tuple(cases))


async def _measure_tiny(workshop: Path, options: argparse.Namespace) -> list[Case]:
    checkpoint = build_endless(workshop / "endless")
    async with Pipeline.load(checkpoint, device="cpu", compile="off") as pipeline:
        fewer = argparse.Namespace(**{**vars(options), "requests": max(1, options.requests // 8)})
        return await _measure("tiny model", pipeline, fewer)


async def _measure(name: str, pipeline: Pipeline, options: argparse.Namespace) -> list[Case]:
    found: dict[str, Found] = defaultdict(Found)
    long_ones = max(1, options.requests // 5)
    async with Doors(pipeline).opened() as doors:
        for number in range(options.rounds + 1):  # the first one warms up
            if number == 1:
                found.clear()
            for kind in KINDS:
                short = await doors.spent(kind, 1, options.requests)
                long = await doors.spent(kind, options.deltas, long_ones) if kind.chunks else None
                found[kind.name].add(short, long)
    return [case for kind in KINDS for case in found[kind.name].cases(name, kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of request, for either side."""

    name: str
    path: str
    content_type: str = "application/json"
    chunks: bool = True
    """The reply is streamed."""
    body: Callable[[int], bytes]
    """Of a request for a reply of so many deltas of each modality."""
    ask: Callable[[Pipeline, int], Awaitable[int]]
    """The same through the Python API; how many deltas came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """On requests of one kind and length, each."""

    here_ms: float
    """CPU time through the Python API."""
    http_ms: float
    added_ms: float
    """Time on the clock that HTTP adds, its client and the sockets included."""
    deltas: int


@dataclass(slots=True)
class Found:
    """What was measured of one kind, a number for each round."""

    request_ms: list[float] = field(default_factory=list)
    chunk_ms: list[float] = field(default_factory=list)
    added_ms: list[float] = field(default_factory=list)

    def add(self, short: Spent, long: Spent | None) -> None:
        """One round."""
        request_ms = short.http_ms - short.here_ms
        if long is not None:
            chunk_ms = (long.http_ms - long.here_ms - request_ms) / (long.deltas - short.deltas)
            self.chunk_ms.append(chunk_ms)
            request_ms -= chunk_ms * short.deltas
        self.request_ms.append(request_ms)
        self.added_ms.append(short.added_ms)

    def cases(self, pipeline: str, kind: Kind) -> list[Case]:
        """The rows of the table."""
        what = f"{pipeline}, {kind.name}"
        cases = [_case(f"{what}: a request", self.request_ms, GOAL_REQUEST_MS)]
        if self.chunk_ms:
            cases.append(_case(f"{what}: a chunk", self.chunk_ms, GOAL_CHUNK_MS))
        return [*cases, _case(f"{what}: on the clock", self.added_ms, None)]


def _case(what: str, rounds: list[float], goal: float | None) -> Case:
    return Case(
        case=what,
        unit="ms",
        ours=median(rounds),
        low=min(rounds),
        high=max(rounds),
        goal=goal,
        better="less",
    )


@dataclass(slots=True)
class Doors:
    """A pipeline that can be asked both ways."""

    pipeline: Pipeline
    _client: asyncio.subprocess.Process = field(init=False)
    _port: int = field(init=False)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Doors]:
        """With a server on a free port of the loopback interface, and its client."""
        app = create_app(self.pipeline, Settings(served_model_name=MODEL))
        async with listening(app) as self._port:
            pipe = asyncio.subprocess.PIPE
            self._client = await asyncio.create_subprocess_exec(
                sys.executable, str(RAW_CLIENT), str(self._port), stdin=pipe, stdout=pipe
            )
            try:
                yield self
            finally:
                self._client.kill()
                await self._client.wait()

    async def spent(self, kind: Kind, deltas: int, times: int) -> Spent:
        """The same requests both ways."""
        seconds, counted = [], 0
        cpu_s = time.process_time()
        for _ in range(times):
            await asyncio.sleep(PAUSE_S)
            began = time.perf_counter()
            counted = await kind.ask(self.pipeline, deltas)
            seconds.append(time.perf_counter() - began)
        here_s = time.process_time() - cpu_s
        cpu_s = time.process_time()
        over_http = await self._shoot(kind, kind.body(deltas), times)
        http_s = time.process_time() - cpu_s
        return Spent(
            here_ms=here_s / times * 1e3,
            http_ms=http_s / times * 1e3,
            added_ms=(median(over_http) - median(seconds)) * 1e3,
            deltas=counted,
        )

    async def _shoot(self, kind: Kind, body: bytes, times: int) -> list[float]:
        head = (
            f"POST {kind.path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: {kind.content_type}\r\n"
        )
        shot = Shot(head=head, body=base64.b64encode(body).decode(), times=times)
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(shot.line())
        line = await self._client.stdout.readline()
        if not line:
            raise SystemExit(f"the client of {kind.name!r} has ended")
        seconds: list[float] = json.loads(line)
        return seconds


def _sampling(deltas: int) -> dict[str, Any]:
    return {"temperature": 0, "max_tokens": deltas}


def _speaking(deltas: int) -> dict[str, Any]:
    """One token more: the one that ends speech is none of its frames."""
    return {SPEAKER: _sampling(deltas + 1)}


def _params(
    deltas: int, *modalities: Literal["text", "audio"], talks: bool = False
) -> RequestParams:
    sampling = SamplingParams(temperature=0.0, max_tokens=deltas)
    return RequestParams(
        modalities=modalities,
        sampling=sampling if "text" in modalities else SamplingParams(),
        stage_params={SPEAKER: SamplingParams(temperature=0.0, max_tokens=deltas + 1)}
        if talks
        else {},
    )


def _chat_body(deltas: int, *, stream: bool, talks: bool) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": stream,
        **_sampling(deltas),
    }
    if talks:
        body |= {"modalities": ["text", "audio"], "stage_params": _speaking(deltas)}
    return json.dumps(body).encode()


def _speech_body(deltas: int, audio_format: str) -> bytes:
    return json.dumps(
        {
            "model": MODEL,
            "input": QUESTION,
            "response_format": audio_format,
            "stage_params": _speaking(deltas),
        }
    ).encode()


def _form(deltas: int) -> bytes:
    fields = {"model": MODEL, "max_tokens": str(deltas)}
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="clip.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    return b"".join(parts) + head.encode() + CLIP + f"\r\n--{BOUNDARY}--\r\n".encode()


def _clip() -> bytes:
    noise = np.random.default_rng(0).standard_normal(round(CLIP_S * CLIP_RATE)) * 0.1
    return wav_bytes(noise.astype(np.float32), CLIP_RATE)


CLIP: Final = _clip()


async def _chat(pipeline: Pipeline, deltas: int, *, talks: bool) -> int:
    message = Message(role="user", content=(TextPart(text=QUESTION),))
    params = _params(deltas, *(("text", "audio") if talks else ("text",)), talks=talks)
    return await _deltas(pipeline, Request(messages=(message,), params=params))


async def _speech(pipeline: Pipeline, deltas: int, audio_format: str) -> int:
    request = Request(read_aloud=QUESTION, params=_params(deltas, "audio", talks=True))
    file = _File(audio_format)
    async with aclosing(pipeline.batches(request)) as batches:
        async for events in batches:
            for event in events:
                if isinstance(event, AudioDelta):
                    await file.do(partial(file.push, event))
    await file.do(file.flush)
    return file.deltas


@dataclass(slots=True)
class _File:
    """What a caller of the Python API makes of speech."""

    audio_format: str
    deltas: int = 0
    encoder: StreamEncoder | None = None

    async def do(self, step: Callable[[], object]) -> None:
        """Where the server does it: samples here, codecs in a thread."""
        await asyncio.to_thread(step) if self.audio_format != "pcm" else step()

    def push(self, delta: AudioDelta) -> bytes:
        """More of it."""
        self.deltas += 1
        if self.encoder is None:
            self.encoder = stream_encoder(self.audio_format, delta.sample_rate)
        return self.encoder.push(delta.samples)

    def flush(self) -> bytes:
        """The end."""
        assert self.encoder is not None
        return self.encoder.flush()


async def _transcription(pipeline: Pipeline, deltas: int) -> int:
    model = pipeline.info.transcription
    assert model is not None
    clip = await asyncio.to_thread(_heard, model)
    task = TranscriptionTask(language=None, prompt="", translate=False)
    named = model.messages
    messages_of = named.resolve() if isinstance(named, Ref) else named
    messages = messages_of(MediaPart(kind="audio", data=clip), task)
    return await _deltas(pipeline, Request(messages=messages, params=_params(deltas, "text")))


def _heard(model: Transcription) -> bytes:
    """The recording as the model gets it."""
    samples = load_audio(CLIP, MediaLimits(), sample_rate=model.sample_rate)
    low_s, high_s = model.min_segment_s, model.max_segment_s
    [segment] = split_at_pauses(samples, model.sample_rate, min_s=low_s, max_s=high_s)
    heard = samples[segment.start : segment.stop]
    return float_wav(heard, model.sample_rate)


async def _deltas(pipeline: Pipeline, request: Request) -> int:
    count = 0
    async with aclosing(pipeline.batches(request)) as batches:
        async for events in batches:
            count += sum(isinstance(event, TextDelta | AudioDelta) for event in events)
    return count


KINDS: Final = (
    Kind(
        name="chat, whole",
        path="/v1/chat/completions",
        chunks=False,
        body=lambda deltas: _chat_body(deltas, stream=False, talks=False),
        ask=lambda pipeline, deltas: _chat(pipeline, deltas, talks=False),
    ),
    Kind(
        name="chat, streamed",
        path="/v1/chat/completions",
        body=lambda deltas: _chat_body(deltas, stream=True, talks=False),
        ask=lambda pipeline, deltas: _chat(pipeline, deltas, talks=False),
    ),
    Kind(
        name="chat with audio, streamed",
        path="/v1/chat/completions",
        body=lambda deltas: _chat_body(deltas, stream=True, talks=True),
        ask=lambda pipeline, deltas: _chat(pipeline, deltas, talks=True),
    ),
    *(
        Kind(
            name=f"speech, {audio_format}",
            path="/v1/audio/speech",
            body=lambda deltas, name=audio_format: _speech_body(deltas, name),
            ask=lambda pipeline, deltas, name=audio_format: _speech(pipeline, deltas, name),
        )
        for audio_format in ("pcm", "mp3")
    ),
    Kind(
        name="transcription",
        path="/v1/audio/transcriptions",
        content_type=f"multipart/form-data; boundary={BOUNDARY}",
        chunks=False,
        body=_form,
        ask=_transcription,
    ),
)
