"""Speech to text over HTTP, with a scripted pipeline: forms, formats, segments and refusals."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from omni_core.errors import OverloadedError, RateLimitError, StageDiedError
from omni_core.media import MediaLimits, encode_audio, load_audio, wav_bytes
from omni_core.specs import Transcription, TranscriptionTask
from omni_core.types import (
    Finished,
    FloatArray,
    MediaPart,
    Message,
    Request,
    TextDelta,
    TextPart,
    TokenLogprob,
    Usage,
)
from omni_server.app import api, server_context
from omni_server.form import Form
from omni_server.openai.transcriptions_call import parse_transcription
from omni_server.openai.transcriptions_run import decode_upload
from omni_server.openai.transcriptions_text import Transcript
from omni_server.settings import Settings

RATE = 16_000
PATH = "/v1/audio/transcriptions"
USAGE = Usage(prompt_tokens=20, prompt_audio_tokens=13, text_tokens=3)
FINISHED = Finished(finish_reason="stop", usage=USAGE)
RNG = np.random.default_rng(0)


def voiced(seconds: float) -> FloatArray:
    samples = 0.3 * np.sin(np.arange(round(seconds * RATE)) * 0.1)
    return (samples * RNG.uniform(0.5, 1, len(samples))).astype("f4")


def pause(seconds: float) -> FloatArray:
    return (1e-3 * RNG.standard_normal(round(seconds * RATE))).astype("f4")


def clip(*parts: FloatArray) -> bytes:
    return wav_bytes(np.concatenate(parts or (voiced(1.0),)), RATE)


SHORT = clip()
LONG = clip(*(part for _ in range(16) for part in (voiced(2.3), pause(0.4))))
"""43.2 seconds with a pause every 2.7."""


def ask(part: MediaPart, task: TranscriptionTask) -> tuple[Message, ...]:
    words = f"{task.language} {task.prompt} {task.translate}"
    return (Message(role="user", content=(part, TextPart(text=words))),)


def say(*texts: str) -> Any:
    """A script: the same reply for every segment."""
    return lambda request: [*(TextDelta(text=text) for text in texts), FINISHED]


@pytest.fixture(autouse=True)
def can_transcribe(pipeline: Any) -> None:
    pipeline.info = replace(pipeline.info, transcription=Transcription(messages=ask))


async def post(live: Any, upload: bytes | None = None, **fields: Any) -> httpx.Response:
    files = {"file": ("tëst 录音.wav", SHORT if upload is None else upload, "image/png")}
    return await live.http.post(fields.pop("path", PATH), data=fields, files=files)


async def refused(live: Any, status: int = 400, **fields: Any) -> dict[str, Any]:
    response = await post(live, **fields)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def heard(request: Request) -> FloatArray:
    """The samples a request carries."""
    [part] = [p for p in request.messages[0].content if isinstance(p, MediaPart)]
    assert part.data is not None
    assert part.param == "file"
    return load_audio(part.data, MediaLimits())


def words(request: Request) -> str:
    [part] = [p for p in request.messages[0].content if isinstance(p, TextPart)]
    return part.text


def joined(stream: httpx.Response) -> tuple[list[dict[str, Any]], str]:
    """The events of a stream, and its last line."""
    assert stream.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in stream.text.split("\n\n") if line]
    return [json.loads(line) for line in lines[:-1]], lines[-1]


async def test_json(local: Any) -> None:
    response = await post(local, language="EN", prompt="Omni", seed="7", max_tokens="9")
    assert response.json() == {
        "text": "Héllo there",
        "usage": {
            "type": "tokens",
            "input_tokens": 11,
            "output_tokens": 5,
            "total_tokens": 16,
            "input_token_details": {"audio_tokens": 4, "text_tokens": 7},
        },
    }
    [request] = local.pipeline.requests
    assert words(request) == "en Omni False"
    assert request.params.modalities == ("text",)
    sampling = request.params.sampling
    assert (sampling.temperature, sampling.seed, sampling.max_tokens) == (0.0, 7, 9)
    assert sampling.logprobs is None
    np.testing.assert_array_equal(heard(request), load_audio(SHORT, MediaLimits()))


async def test_translation(local: Any) -> None:
    response = await post(
        local, path="/v1/audio/translations", language="fr", response_format="verbose_json"
    )
    assert response.json()["task"] == "translate"
    assert response.json()["language"] == "english"
    assert words(local.pipeline.requests[0]) == "fr  True"


async def test_text(local: Any) -> None:
    response = await post(local, response_format="text")
    assert response.text == "Héllo there"
    assert response.headers["content-type"] == "text/plain; charset=utf-8"


async def test_subtitles(local: Any) -> None:
    """A cue a segment, at the pauses; nothing in a text can end a cue or begin a tag."""
    local.pipeline.script = say(" a --> <b>\n\n& c ")
    response = await post(local, LONG, response_format="srt")
    assert response.headers["content-type"].startswith("application/x-subrip")
    cues = response.text.split("\n\n")
    assert cues[0] == "1\n00:00:00,000 --> 00:00:10,600\na --> <b> & c"
    number, times, *_ = cues[-1].split("\n")
    assert number == str(len(cues))
    assert times.endswith("00:00:43,200")
    response = await post(local, LONG, response_format="vtt")
    assert response.headers["content-type"].startswith("text/vtt")
    header, *blocks = response.text.split("\n\n")
    assert header == "WEBVTT"
    assert blocks[0] == "00:00:00.000 --> 00:00:10.600\na --&gt; &lt;b&gt; &amp; c"
    assert len(blocks) == len(cues)


async def test_verbose_json(local: Any) -> None:
    local.pipeline.info = replace(local.pipeline.info, logprobs=True)
    likely = TokenLogprob(token_id=5, spelling=b"yes", logprob=-0.5)
    delta = TextDelta(text="yes", token_ids=(5,), logprobs=(likely,))
    local.pipeline.script = lambda request: [delta, FINISHED]
    fields = {"timestamp_granularities[]": "segment", "language": "de", "temperature": "0.25"}
    reply = (await post(local, LONG, response_format="verbose_json", **fields)).json()
    assert (reply["task"], reply["language"], reply["duration"]) == ("transcribe", "german", 43.2)
    assert reply["usage"] == {"type": "duration", "seconds": 43.2}
    segments = reply["segments"]
    assert reply["text"] == " ".join(["yes"] * len(segments))
    assert segments[0] == {
        "id": 0,
        "start": 0.0,
        "end": 10.6,
        "seek": 0,
        "text": "yes",
        "tokens": [5],
        "temperature": 0.25,
        "avg_logprob": -0.5,
        "compression_ratio": pytest.approx(3 / 11),
        "no_speech_prob": 0.0,
    }
    ends = [segment["end"] for segment in segments]
    assert [segment["start"] for segment in segments] == [0.0, *ends[:-1]]
    assert ends[-1] == 43.2
    assert (await post(local, response_format="verbose_json")).json()["language"] == ""


@pytest.mark.parametrize("yes", ["true", "TRUE", "1", "True"])
async def test_streams(local: Any, yes: str) -> None:
    events, last = joined(await post(local, LONG, stream=yes))
    assert last == "[DONE]"
    assert {event["type"] for event in events[:-1]} == {"transcript.text.delta"}
    done = events[-1]
    assert done["type"] == "transcript.text.done"
    assert done["text"] == "".join(event["delta"] for event in events[:-1])
    assert done["text"] == "Héllo there Héllo there"
    assert done["usage"]["input_tokens"] == 22
    assert "logprobs" not in done


@pytest.mark.parametrize("no", ["false", "0", "FALSE", ""])
async def test_does_not_stream(local: Any, no: str) -> None:
    assert (await post(local, stream=no)).json()["text"] == "Héllo there"


async def test_logprobs(local: Any) -> None:
    local.pipeline.info = replace(local.pipeline.info, logprobs=True)
    token = TokenLogprob(token_id=5, spelling=b"a", logprob=-0.5)
    delta = TextDelta(text="a", token_ids=(5,), logprobs=(token,))
    local.pipeline.script = lambda request: [delta, delta, FINISHED]
    expected = {"token": "a", "bytes": [97], "logprob": -0.5}
    fields = {"include[]": "logprobs"}
    assert (await post(local, **fields)).json()["logprobs"] == [expected] * 2
    assert local.pipeline.requests[0].params.sampling.logprobs == 0
    events, _ = joined(await post(local, stream="true", **fields))
    assert [event["logprobs"] for event in events] == [[expected], [expected], [expected] * 2]


async def test_long_audio_in_order_and_not_all_at_once(local: Any) -> None:
    """Segments are cut at pauses and add up to the recording; the first is the slowest here."""
    short_segments = Transcription(messages=ask, min_segment_s=0.5, max_segment_s=3.0)
    local.pipeline.info = replace(local.pipeline.info, transcription=short_segments)
    long = clip(*(part for _ in range(10) for part in (voiced(1.3), pause(0.4))))
    whole, gate = load_audio(long, MediaLimits()), asyncio.Event()
    pieces: dict[int, FloatArray] = {}
    most = 0

    def script(request: Request) -> list[Any]:
        nonlocal most
        most = max(most, local.pipeline.running)
        piece = heard(request)
        likely = np.flatnonzero(whole == piece[9]) - 9
        [start] = [at for at in likely if np.array_equal(whole[at : at + len(piece)], piece)]
        pieces[int(start)] = piece
        if len(pieces) == 4:
            gate.set()
        return [*([gate] if start == 0 else []), TextDelta(text=f" {start}"), FINISHED]

    local.pipeline.script = script
    response = await post(local, long)
    starts = sorted(pieces)
    assert response.json()["text"] == " ".join(map(str, starts))
    assert len(starts) > 4
    assert most == 4
    np.testing.assert_array_equal(np.concatenate([pieces[start] for start in starts]), whole)
    assert all(np.abs(piece[-400:]).max() < 0.01 for piece in pieces.values())


async def test_pauses_the_caller_asks_for(local: Any) -> None:
    """What is shorter than `silence_duration_ms` is no pause; both ways to write an object."""
    for fields in (
        {"chunking_strategy[type]": "server_vad", "chunking_strategy[silence_duration_ms]": "500"},
        {"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": 500}'},
    ):
        local.pipeline.requests.clear()
        assert (await post(local, LONG, **fields)).status_code == 200
        lengths = [len(heard(request)) for request in local.pipeline.requests]
        assert len(lengths) == 2
        assert max(lengths) < 30 * RATE
    assert (await post(local, LONG, chunking_strategy="auto")).status_code == 200


async def test_an_error_in_one_segment_ends_the_others(local: Any) -> None:
    never = asyncio.Event()

    def script(request: Request) -> list[Any]:
        if len(local.pipeline.requests) == 1:
            return [StageDiedError("The stage is gone.")]
        return [never]

    local.pipeline.script = script
    error = await refused(local, 503, upload=LONG)
    assert error["code"] == "stage_died"
    assert local.pipeline.running == 0


@pytest.mark.parametrize("kind", [OverloadedError, RateLimitError])
async def test_a_full_queue_keeps_later_segments_waiting(local: Any, kind: Any) -> None:
    """Only the first is refused: after that, what was heard would be lost."""
    first = load_audio(LONG, MediaLimits())[: 4 * RATE]
    refused_once: list[Request] = []

    def script(request: Request) -> list[Any]:
        if np.array_equal(heard(request)[: 4 * RATE], first):
            return [TextDelta(text="one"), FINISHED]
        if not refused_once:
            refused_once.append(request)
            return [kind("The queue is full.", retry_after_s=0)]
        return [TextDelta(text="two"), FINISHED]

    local.pipeline.script = script
    assert (await post(local, LONG)).json()["text"] == "one two"
    assert len(local.pipeline.requests) == 3
    local.pipeline.script = lambda request: [kind("The queue is full.", retry_after_s=0)]
    error = await refused(local, kind.status, upload=LONG)
    assert error["code"] == kind.default_code


async def test_waiting_for_a_place_ends_at_the_deadline(local: Any) -> None:
    first = load_audio(LONG, MediaLimits())[: 4 * RATE]

    def script(request: Request) -> list[Any]:
        if np.array_equal(heard(request)[: 4 * RATE], first):
            return [FINISHED]
        return [OverloadedError("The queue is full.", retry_after_s=60)]

    local.pipeline.script = script
    error = await refused(local, 504, upload=LONG, timeout="0.5")
    assert error["code"] == "deadline_exceeded"


async def test_a_client_that_leaves_ends_every_segment(live: Any) -> None:
    never = asyncio.Event()
    live.pipeline.script = lambda request: [never]
    asking = asyncio.create_task(live.http.post(PATH, files={"file": ("a.ogg", OGG)}))
    async with asyncio.timeout(10):
        while live.pipeline.running < 2:
            await asyncio.sleep(0.01)
        asking.cancel()
        while live.pipeline.running:
            await asyncio.sleep(0.01)
    assert len(live.pipeline.requests) == 2
    assert (await live.http.get("/health")).status_code == 200


async def test_one_deadline_for_all_segments(local: Any) -> None:
    local.pipeline.script = say("x")
    await post(local, LONG, timeout="30")
    assert [29 < request.timeout_s <= 30 for request in local.pipeline.requests] == [True] * 2
    error = await refused(local, 504, upload=LONG, timeout="1e-9")
    assert error["code"] == "deadline_exceeded"


class Endless:
    """Decodes until it is told to stop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.stopped = threading.Event(), threading.Event()
        self.thread = ""
        monkeypatch.setattr("omni_server.openai.transcriptions_run.load_audio", self._load)

    def _load(self, data: bytes, *_: Any, stop: Any, **__: Any) -> FloatArray:
        self.thread = threading.current_thread().name
        self.began.set()
        while not stop():
            time.sleep(0.001)
        self.stopped.set()
        return np.zeros(1, "f4")


async def test_decoding_stops_at_the_deadline(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads of its own, so that other short work is not kept waiting by it."""
    endless = Endless(monkeypatch)
    error = await refused(local, 504, timeout="0.05")
    assert (error["param"], error["code"]) == ("file", "deadline_exceeded")
    assert endless.stopped.wait(5)
    assert endless.thread.startswith("omni-decoder")


async def test_decoding_stops_when_the_client_leaves(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Endless(monkeypatch)
    form = Form(fields=[], files={"file": bytearray(SHORT)})
    call = parse_transcription(
        form, translate=False, pipeline=pipeline, served_model_name="lab/parrot", request_id="a",
        client_named=str, longest_s=None,
    )  # fmt: skip
    context = server_context(pipeline, Settings(served_model_name="lab/parrot"))
    decoding = asyncio.create_task(decode_upload(call, MediaLimits(), context.decoders))
    assert await asyncio.to_thread(endless.began.wait, 5)
    assert not call.upload, "the upload is let go of as soon as it is copied"
    decoding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await decoding
    assert await asyncio.to_thread(endless.stopped.wait, 5)


async def test_decoders_end_with_the_application(pipeline: Any) -> None:
    context = server_context(pipeline, Settings(served_model_name="lab/parrot"))
    app = api(context)
    async with app.router.lifespan_context(app):
        context.decoders.submit(int).result()
    with pytest.raises(RuntimeError, match="after shutdown"):
        context.decoders.submit(int)


async def test_silence_is_not_asked_about(local: Any) -> None:
    reply = (await post(local, clip(np.zeros(RATE, "f4")), response_format="verbose_json")).json()
    assert (reply["text"], reply["segments"][0]["no_speech_prob"]) == ("", 1.0)
    assert (await post(local, clip(np.zeros(RATE, "f4")), response_format="srt")).text == ""
    assert not local.pipeline.requests


@pytest.mark.parametrize("n", [1, 2, 320, 1_601])
async def test_short_clips_are_heard(local: Any, n: int) -> None:
    loud = np.full(n, 0.5, "f4")
    reply = (await post(local, clip(loud), response_format="verbose_json")).json()
    assert reply["duration"] == n / RATE
    np.testing.assert_array_equal(heard(local.pipeline.requests[0]), loud)


@pytest.mark.parametrize(
    "upload",
    [
        b"",
        clip(np.zeros(0, "f4")),
        RNG.bytes(4096),
        b"\xff\xfb" + RNG.bytes(4096),
        b"Just a text.\n" * 20,
        b"\x89PNG\r\n\x1a\n" + RNG.bytes(200),
        SHORT[:30],
    ],
    ids=["0 bytes", "0 samples", "random", "mp3 by name", "text", "png", "cut"],
)
async def test_a_bad_upload_costs_one_400(local: Any, upload: bytes) -> None:
    error = await refused(local, upload=upload)
    assert error["param"] == "file"
    events_error = await refused(local, upload=upload, stream="true")
    assert events_error == error
    assert not local.pipeline.requests
    assert (await post(local)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_format": "diarized_json"}, "response_format", "unsupported_value"),
        ({"response_format": "xml"}, "response_format", "invalid_value"),
        ({"response_format": "srt", "stream": "true"}, "response_format", "unsupported_value"),
        ({"language": "english"}, "language", "invalid_value"),
        ({"language": "zh-CN"}, "language", "invalid_value"),
        ({"language": "xx"}, "language", "invalid_value"),
        ({"temperature": "1.5"}, "temperature", "invalid_value"),
        ({"temperature": "nan"}, "temperature", "invalid_value"),
        ({"temperature": "warm"}, "temperature", "invalid_value"),
        ({"stream": "maybe"}, "stream", "invalid_value"),
        ({"seed": "1.5"}, "seed", "invalid_value"),
        ({"seed": str(2**64)}, "seed", "invalid_value"),
        ({"max_tokens": "0"}, "max_tokens", "invalid_value"),
        ({"timeout": "-1"}, "timeout", "invalid_value"),
        ({"include[]": "moods"}, "include", "invalid_value"),
        ({"include[]": "logprobs"}, "include", "unsupported_value"),
        ({"include": "logprobs", "response_format": "text"}, "include", "invalid_value"),
        (
            {"timestamp_granularities[]": ["segment", "word"], "response_format": "verbose_json"},
            "timestamp_granularities",
            "unsupported_value",
        ),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities", "invalid_value"),
        ({"timestamp_granularities": "page"}, "timestamp_granularities", "invalid_value"),
        ({"chunking_strategy": "often"}, "chunking_strategy", "invalid_value"),
        ({"chunking_strategy": "{"}, "chunking_strategy", "invalid_json"),
        ({"chunking_strategy[type]": "vad"}, "chunking_strategy.type", "invalid_value"),
        (
            {"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "0.5"},
            "chunking_strategy.threshold",
            "unsupported_parameter",
        ),
        (
            {"chunking_strategy": '{"type":"server_vad","silence_duration_ms":-1}'},
            "chunking_strategy.silence_duration_ms",
            "invalid_value",
        ),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names", "unsupported_parameter"),
        ({"languages[]": ["en", "de"]}, "languages", "unsupported_parameter"),
        ({"keywords[]": "Omni"}, "keywords", "unsupported_parameter"),
        ({"language": ["en", "de"]}, "language", "invalid_value"),
        ({"prompt[]": "x"}, None, None),
        ({"unheard_of": "x"}, None, None),
    ],
)
async def test_fields(local: Any, fields: dict[str, Any], param: str, code: str) -> None:
    if param is None:
        assert (await post(local, **fields)).status_code == 200
        return
    error = await refused(local, **fields)
    assert (error["param"], error["code"]) == (param, code)
    assert error["type"] == "invalid_request_error"
    assert not local.pipeline.requests


async def test_unknown_model(local: Any) -> None:
    error = await refused(local, 404, model="whisper-1")
    assert (error["param"], error["code"]) == ("model", "model_not_found")


async def test_a_model_that_cannot_transcribe(local: Any) -> None:
    local.pipeline.info = replace(local.pipeline.info, transcription=None)
    error = await refused(local)
    assert (error["param"], error["code"]) == ("model", "unsupported_model")


OGG = encode_audio(load_audio(LONG, MediaLimits()), RATE, "opus")
BOUNDARY = "frontier"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def part(name: str, content: bytes, more: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


async def test_a_form_that_comes_in_pieces(live: Any) -> None:
    """Chunked, cut anywhere, the fields after the file, which has no filename."""
    body = part("file", SHORT) + part("language", b"fr") + part("prompt", "Où ça".encode()) + END

    async def pieces() -> Any:
        for start in range(0, len(body), 997):
            yield body[start : start + 997]

    response = await live.http.post(PATH, content=pieces(), headers=FORM)
    assert response.json()["text"] == "Héllo there"
    assert words(live.pipeline.requests[0]) == "fr Où ça False"
    np.testing.assert_array_equal(
        heard(live.pipeline.requests[0]), load_audio(SHORT, MediaLimits())
    )


@pytest.mark.parametrize(
    ("body", "headers", "status", "param", "code"),
    [
        (b"{}", {"content-type": "application/json"}, 400, None, "invalid_content_type"),
        (END, {"content-type": "multipart/form-data"}, 400, None, "invalid_content_type"),
        (END, {}, 400, None, "invalid_content_type"),
        (b"", FORM, 400, None, "invalid_form"),
        (b"nonsense", FORM, 400, None, "invalid_form"),
        (part("file", SHORT), FORM, 400, None, "invalid_form"),
        (END, FORM, 400, "file", "missing_required_parameter"),
        (part("language", b"en") + END, FORM, 400, "file", "missing_required_parameter"),
        (part("", b"en") + END, FORM, 400, None, "invalid_form"),
        (part("file", SHORT) * 2 + END, FORM, 400, "file", "invalid_value"),
        (part("prompt", b"\xff") + END, FORM, 400, "prompt", "invalid_value"),
        (part("prompt", b"x" * 65_537) + END, FORM, 413, "prompt", "payload_too_large"),
        (part("x", b"x") * 65 + END, FORM, 400, None, "invalid_value"),
        (part("x", b"x", "; y=" + "z" * 9_000) + END, FORM, 400, None, None),
        (part("file", b"x" * 2**20) + END, FORM, 413, None, "payload_too_large"),
    ],
)
async def test_forms_that_are_none(
    live: Any, body: bytes, headers: dict[str, str], status: int, param: str, code: str
) -> None:
    async def chunks() -> Any:
        yield body

    response = await live.http.post(PATH, content=chunks(), headers=headers)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert code is None or error["code"] == code


async def test_a_file_over_the_limit_of_media(pipeline: Any, kit: Any) -> None:
    settings = Settings(served_model_name=kit.MODEL, media=MediaLimits(max_bytes=100))
    async with kit.serving(pipeline, settings) as live:
        error = await refused(live, 413)
        assert (error["param"], error["code"]) == ("file", "payload_too_large")


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        ([[" One."], ["Two ", " "], ["", "\n"], ["three"]], "One. Two three"),
        ([["你好。"], [" 世界"]], "你好。世界"),
        ([["안녕."], ["네"]], "안녕. 네"),
        ([["a ", "b"], ["c\n", "\nd "]], "a b c\n\nd"),
        ([["สวัสดี"], ["ครับ"]], "สวัสดีครับ"),
        ([["你好"], ["Omni"]], "你好 Omni"),
        ([[]], ""),
    ],
)
def test_texts_of_segments_join(said: list[list[str]], whole: str) -> None:
    transcript = Transcript(len(said))
    deltas = []
    for index, texts in enumerate(said):
        deltas += [transcript.hear(index, TextDelta(text=text)) for text in texts]
        transcript.hear(index, TextDelta(text="thought", channel="reasoning"))
        transcript.hear(index, FINISHED)
    assert "".join(deltas) == transcript.text == whole
    transcript.check_complete()
    assert transcript.usage.prompt_tokens == 20 * len(said)


async def test_openai_package(live: Any) -> None:
    create = live.openai.audio.transcriptions.create
    upload = ("söund.ogg", OGG)
    assert (await create(model="lab/parrot", file=upload)).text == "Héllo there Héllo there"
    assert await create(model="lab/parrot", file=upload, response_format="text") == (
        "Héllo there Héllo there"
    )
    verbose = await create(
        model="lab/parrot",
        file=upload,
        response_format="verbose_json",
        timestamp_granularities=["segment"],
        chunking_strategy={"type": "server_vad", "silence_duration_ms": 200},
    )
    assert verbose.duration == pytest.approx(43.2, abs=0.01)
    assert verbose.segments[-1].end == verbose.duration
    for subtitles in ("srt", "vtt"):
        assert "-->" in await create(model="lab/parrot", file=upload, response_format=subtitles)
    events = [e async for e in await create(model="lab/parrot", file=upload, stream=True)]
    assert events[-1].text == "".join(event.delta for event in events[:-1])
    assert events[-1].usage.total_tokens == 32
    translated = await live.openai.audio.translations.create(model="lab/parrot", file=upload)
    assert translated.text == "Héllo there Héllo there"
    with pytest.raises(openai.BadRequestError) as refusal:
        await create(model="lab/parrot", file=("a.wav", b"nothing"))
    assert refusal.value.param == "file"
