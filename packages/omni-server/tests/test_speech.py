"""POST /v1/audio/speech: what comes, when, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from io import BytesIO

import av
import httpx
import msgspec
import numpy as np
import pytest

from omni_core.errors import ContextLengthError, MediaError, OutOfMemoryError, StageDiedError
from omni_core.media.encode import pcm16
from omni_core.specs import VoiceCloning
from omni_core.types import Finished, MediaPart, SamplingParams, Usage, VoiceSample
from omni_server.access import line_of
from omni_server.audio import Base64Pieces
from omni_server.settings import MIB, Settings

PATH = "/v1/audio/speech"
WITHIN_S = 1.0
USAGE = Usage(prompt_tokens=6, audio_tokens=12)
FINISHED = Finished(finish_reason="stop", audio_finish_reason="stop", usage=USAGE)
CLONING = VoiceCloning(sample_rates=(16_000,))
PIECES = [480, 31, 22_050, 1_470]
FILES = {
    "mp3": ("audio/mpeg", (b"\xff\xf3", b"\xff\xfb"), 22_050),
    "opus": ("audio/ogg", (b"OggS",), 48_000),
    "aac": ("audio/aac", (b"\xff\xf1",), 22_050),
    "flac": ("audio/flac", (b"fLaC",), 22_050),
    "wav": ("audio/wav", (b"RIFF\xff\xff\xff\xffWAVE",), 22_050),
}


@pytest.fixture
def pipeline(pipeline, kit):
    starts = np.cumsum([0, *PIECES[:-1]])
    said = [kit.sound(int(start), size) for start, size in zip(starts, PIECES, strict=True)]
    pipeline.script = lambda request: [*said, FINISHED]
    return pipeline


@pytest.fixture
def said(kit):
    return kit.sound(0, sum(PIECES)).samples


async def speak(server, **body):
    return await server.http.post(PATH, json={"input": "Hello there.", "voice": "ethan", **body})


def decoded(data):
    """All samples and the rate, by FFmpeg."""
    with av.open(BytesIO(data)) as file:
        resampler = av.AudioResampler(format="flt", layout="mono")
        frames = [f for frame in file.decode(audio=0) for f in resampler.resample(frame)]
        rate = file.streams.audio[0].rate
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]), rate


@pytest.mark.parametrize("fmt", FILES)
async def test_every_format_is_a_file_of_its_kind(live, kit, fmt, said):
    response = await speak(live, response_format=fmt)
    media_type, magic, rate = FILES[fmt]
    assert response.status_code == 200
    assert response.headers["content-type"] == media_type
    assert response.headers["transfer-encoding"] == "chunked"
    assert response.headers["x-request-id"].startswith("speech-")
    assert response.content.startswith(magic)
    heard, file_rate = decoded(response.content)
    assert file_rate == rate
    priming = {"mp3": 3_409, "aac": 2_048}.get(fmt, 0) / kit.RATE
    longer_s = len(heard) / file_rate - len(said) / kit.RATE
    assert -1 / file_rate < longer_s <= 0.08 + priming


async def test_pcm_is_24_khz_without_a_header(local, kit, said):
    response = await speak(local, response_format="pcm")
    assert response.headers["content-type"] == "audio/pcm"
    assert len(response.content) == pytest.approx(2 * len(said) * 24_000 / kit.RATE, abs=4)
    assert len(response.content) % 2 == 0


async def test_wav_holds_the_samples_of_the_pipeline_at_its_rate(local, said):
    response = await speak(local, response_format="wav")
    assert response.content[24:28] == (22_050).to_bytes(4, "little")
    assert response.content[4:8] == response.content[40:44] == b"\xff" * 4
    assert response.content.count(b"RIFF") == 1
    assert response.content[44:] == pcm16(said)


async def test_mp3_is_the_default(local):
    default = await speak(local)
    assert default.headers["content-type"] == "audio/mpeg"
    assert default.content == (await speak(local, response_format="mp3")).content
    assert default.content == (await speak(local, stream_format="audio", speed=1)).content


@pytest.mark.parametrize("fmt", [*FILES, "pcm"])
async def test_events_add_up_to_the_file(local, fmt):
    whole = await speak(local, response_format=fmt)
    response = await speak(local, response_format=fmt, stream_format="sse")
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, last, end = response.text.split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    *deltas, done = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert len(deltas) > 1
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    texts = [delta["audio"] for delta in deltas]
    joined = base64.b64decode("".join(texts), validate=True)
    assert joined == b"".join(base64.b64decode(text, validate=True) for text in texts)
    if fmt == "opus":  # each Ogg stream has a number of its own
        assert np.array_equal(decoded(joined)[0], decoded(whole.content)[0])
    else:
        assert joined == whole.content
    usage = {"input_tokens": 6, "output_tokens": 12, "total_tokens": 18}
    assert done == {"type": "speech.audio.done", "usage": usage, "finish_reason": "stop"}


async def test_speech_that_reached_its_limit_is_told_apart(kit):
    cut = msgspec.structs.replace(FINISHED, finish_reason="length", audio_finish_reason="length")
    seen = []
    pipeline = kit.FakePipeline(lambda request: [kit.sound(0, 480), cut])
    live = kit.shortcut(pipeline, Settings(served_model_name=kit.MODEL), seen.append)
    response = await speak(live, stream_format="sse")
    done = json.loads(response.text.split("\n\n")[-3].removeprefix("data: "))
    assert (done["type"], done["finish_reason"]) == ("speech.audio.done", "length")
    await speak(live)
    assert [line_of(record)["audio_finish_reason"] for record in seen] == ["length"] * 2
    assert "omni_audio_cut_total 2.0" in (await live.http.get("/metrics")).text

    audio = {"modalities": ["text", "audio"]}
    cut = msgspec.structs.replace(cut, finish_reason="stop")
    pipeline.script = lambda request: [*kit.default_script(request)[:-1], cut]
    choice = (await live.chat(**audio)).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["audio"]["finish_reason"] == "length"
    streamed = (await live.chat(**audio, audio={"format": "pcm16"}, stream=True)).text
    assert streamed.count('"finish_reason":"length"') == 1
    assert "omni_audio_cut_total 4.0" in (await live.http.get("/metrics")).text


def test_pieces_of_bytes_decode_alone_and_joined():
    pieces = Base64Pieces()
    texts = [pieces.push(data) for data in (b"a", b"", b"bcde", b"fghij")] + [pieces.flush()]
    assert texts == ["", "", "YWJj", "ZGVmZ2hp", "ag=="]


async def test_what_the_pipeline_is_asked(local):
    headers = {"authorization": "Bearer k", "x-request-id": "mine"}
    body = {
        "input": "  Read me.\n", "model": "lab/parrot", "voice": {"id": "CHELSIE"}, "seed": 3,
        "stage_params": {"voice": {"temperature": 0}}, "timeout": 9, "user": "ann",
        "instructions": "", "ref_audio": None,
    }  # fmt: skip
    response = await local.http.post(PATH, json=body, headers=headers)
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "mine"
    [request] = local.pipeline.requests
    assert (request.read_aloud, request.messages) == ("Read me.", ())
    assert request.params.modalities == ("audio",)
    assert request.params.voice == "Chelsie"
    assert request.params.sampling.seed == 3
    assert request.params.stage_params == {"voice": SamplingParams(temperature=0.0)}
    assert (request.request_id, request.timeout_s) == ("mine", 9.0)
    assert request.client.endswith(" ann")


@pytest.mark.parametrize("voice", [None, "ETHAN", {"id": "ethan"}])
async def test_a_voice_is_named_in_any_case_or_left_to_the_checkpoint(local, voice):
    assert (await speak(local, voice=voice)).status_code == 200
    assert local.pipeline.requests[0].params.voice == (voice and "Ethan")


async def test_speed_changes_the_length(local):
    normal = await speak(local, response_format="pcm")
    for speed in (0.5, 2):
        other = await speak(local, response_format="pcm", speed=speed)
        assert len(other.content) * speed == pytest.approx(len(normal.content), rel=0.1)


REFUSED = [
    # body, param, words the message must have
    ({"input": None}, "input", "string"),
    ({"input": 5}, "input", "string"),
    ({"input": ""}, "input", "1"),
    ({"input": " \n\t"}, "input", "blank"),
    ({"input": "x" * 4097}, "input", "4096"),
    ({"voice": "nobody"}, "voice", "Ethan, Chelsie"),
    ({"voice": "alloy"}, "voice", "Ethan, Chelsie"),
    ({"voice": ""}, "voice", "Ethan, Chelsie"),
    ({"voice": {"id": "x"}}, "voice", "Ethan, Chelsie"),
    ({"voice": {}}, "voice.id", "Missing"),
    ({"voice": 7}, "voice", "integer"),
    ({"response_format": "midi"}, "response_format", "mp3, opus"),
    ({"response_format": ""}, "response_format", "mp3, opus"),
    ({"response_format": 1}, "response_format", "string"),
    ({"stream_format": "chunks"}, "stream_format", "audio, sse"),
    ({"speed": 0.24}, "speed", "0.25"),
    ({"speed": 4.1}, "speed", "4"),
    ({"speed": 0}, "speed", "0.25"),
    ({"speed": "fast"}, "speed", "number"),
    ({"instructions": "Whisper."}, "instructions", "not supported"),
    ({"instructions": ["x"]}, "instructions", "array"),
    ({"ref_audio": "http://127.0.0.1/x"}, "ref_audio", "clone"),
    ({"ref_text": "x"}, "ref_text", "clone"),
    ({"speaker_embedding": [0.1]}, "speaker_embedding", "clone"),
    ({"seed": 1.5}, "seed", "integer"),
    ({"stage_params": {"voyce": {}}}, "stage_params.voyce", "'voice'"),
    ({"stage_params": {"voice": {"top_p": 2}}}, "stage_params.voice.top_p", "1"),
    ({"timeout": 0}, "timeout", "0"),
    ({"user": 3}, "user", "string"),
]


@pytest.mark.parametrize(("body", "param", "words"), REFUSED, ids=lambda v: str(v)[:40])
async def test_refused_with_400_naming_the_field(local, body, param, words):
    for more in ({}, {"stream_format": "sse"}):
        response = await speak(local, **{**more, **body})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert words in error["message"]
    assert not local.pipeline.requests
    assert (await speak(local)).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"input": "\\ud800"}', b'{"input": NaN}'])
async def test_bodies_that_are_none(local, body):
    response = await local.http.post(PATH, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_body_for_a_text_is_small(local):
    response = await speak(local, ref_audio="x" * MIB)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "payload_too_large"
    assert "4096 characters" in response.json()["error"]["message"]


@pytest.fixture
def cloning(local):
    local.pipeline.info = replace(local.pipeline.info, clones_voices=CLONING)
    return local


RECORDING = b"RIFF of somebody"
DATA_URL = f"data:audio/wav;base64,{base64.b64encode(RECORDING).decode()}"


async def test_a_recording_goes_to_the_pipeline_as_it_is(cloning):
    spoken = await speak(cloning, voice=None, ref_audio=DATA_URL, ref_text="Hi.")
    assert spoken.status_code == 200, spoken.text
    await speak(cloning, voice=None, ref_audio="https://example.com/a.wav")
    await speak(cloning, ref_audio="", ref_text="")
    told, fetched, none = [request.voice_sample for request in cloning.pipeline.requests]
    assert told == VoiceSample(audio=MediaPart(kind="audio", data=RECORDING), text="Hi.")
    url = "https://example.com/a.wav"
    assert fetched == VoiceSample(audio=MediaPart(kind="audio", url=url), text="")
    assert none is None


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"ref_text": "Hi."}, "ref_text", "send both"),
        ({"voice": "Ethan", "ref_audio": DATA_URL}, "ref_audio", "two voices"),
        ({"ref_audio": "QUJD"}, "ref_audio", "data:"),
        ({"ref_audio": "file:///etc/passwd"}, "ref_audio", "data:"),
        ({"ref_audio": "data:audio/wav;base64,!"}, "ref_audio", "base64"),
        ({"ref_audio": [DATA_URL]}, "ref_audio", "str"),
        ({"speaker_embedding": [0.5]}, "speaker_embedding", "ref_audio"),
    ],
)
async def test_what_is_no_recording_is_refused(cloning, body, param, words):
    refused = await speak(cloning, **{"voice": None, **body})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert not cloning.pipeline.requests


@pytest.mark.parametrize(
    ("param", "named"), [("voice_sample", "ref_audio"), ("voice_sample.text", "ref_text")]
)
async def test_the_pipelines_complaints_of_a_recording_name_its_field(cloning, param, named):
    cloning.pipeline.script = lambda request: [MediaError("is silent", param=param)]
    refused = await speak(cloning, voice=None, ref_audio=DATA_URL)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, named)


async def test_a_body_has_room_for_a_recording_where_voices_are_cloned(cloning):
    room = "data:audio/wav;base64," + "A" * (12 * MIB)
    assert (await speak(cloning, voice=None, ref_audio=room)).status_code == 200
    assert (await speak(cloning, voice=None, ref_audio=room + "A" * 4 * MIB)).status_code == 413


async def test_other_models_are_not_here(local):
    response = await speak(local, model="tts-1")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


async def test_a_pipeline_that_cannot_says_why(local):
    info = local.pipeline.info
    local.pipeline.info = replace(info, reads_aloud=False)
    error = (await speak(local)).json()["error"]
    assert (error["param"], error["code"]) == ("model", "unsupported_model")
    assert "cannot read a text aloud" in error["message"]
    local.pipeline.info = replace(info, refused_modalities={"audio": "it has no beak"})
    local.pipeline.modalities = ("text",)
    response = await speak(local)
    assert response.status_code == 400
    assert "it has no beak" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_errors_before_the_first_audio_keep_their_status(local, stream_format):
    long = ContextLengthError("too long", param="read_aloud")
    for error, status, param in ((long, 400, "input"), (OutOfMemoryError("full"), 503, None)):
        local.pipeline.script = lambda request, error=error: [error]
        response = await speak(local, stream_format=stream_format)
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)
        assert ("retry-after" in response.headers) == error.retryable
        assert response.headers["x-request-id"].startswith("speech-")


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_an_error_in_the_middle_breaks_the_transfer(live, kit, stream_format):
    for error in (StageDiedError("gone"), ZeroDivisionError("secret")):
        live.pipeline.script = lambda request, error=error: [kit.sound(0, 9_600), error]
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message"):
            await speak(live, response_format="pcm", stream_format=stream_format)


async def test_audio_leaves_as_it_is_made(live, kit):
    gate = asyncio.Event()
    first, second = kit.sound(0, 4_800), kit.sound(4_800, 99)
    live.pipeline.script = lambda request: [first, gate, second, FINISHED]
    for fmt in ("mp3", "opus", "aac", "wav", "pcm"):
        gate.clear()
        body = {"input": "Hi", "response_format": fmt}
        async with live.http.stream("POST", PATH, json=body) as response:
            pieces = response.aiter_bytes()
            assert await asyncio.wait_for(anext(pieces), WITHIN_S)
            assert live.pipeline.running == 1
            gate.set()
            assert b"".join([piece async for piece in pieces])


async def test_a_client_that_leaves_aborts_the_request(live, kit):
    live.pipeline.script = lambda request: [kit.sound(0, 4_800), asyncio.Event()]
    async with live.http.stream("POST", PATH, json={"input": "Hi", "response_format": "wav"}) as r:
        await anext(r.aiter_bytes())
    await asyncio.wait_for(live.pipeline.closed.wait(), WITHIN_S)
    assert live.pipeline.running == 0
    async with asyncio.timeout(WITHIN_S):
        while 'omni_requests_total{status="499"} 1.0' not in (await live.http.get("/metrics")).text:
            await asyncio.sleep(0)


async def test_many_at_once_are_not_mixed(live, kit):
    def say(request):
        start = 100_000 * int(request.read_aloud)
        return [kit.sound(start + i * 960, 960) for i in range(5)] + [FINISHED]

    live.pipeline.script = say
    replies = await asyncio.gather(
        *(speak(live, input=str(i), response_format="wav") for i in range(50))
    )
    for number, reply in enumerate(replies):
        assert reply.content[44:] == pcm16(kit.sound(100_000 * number, 4_800).samples)


async def test_the_sdk_reads_and_streams(live, kit, said):
    speech = live.openai.audio.speech
    asked = {"model": kit.MODEL, "voice": "ethan", "input": "Hi", "response_format": "wav"}
    whole = await speech.create(**asked)
    assert whole.content[44:] == pcm16(said)
    async with speech.with_streaming_response.create(**asked) as response:
        assert response.headers["content-type"] == "audio/wav"
        pieces = [piece async for piece in response.iter_bytes()]
    assert b"".join(pieces) == whole.content


async def test_nothing_said_is_an_empty_file(local):
    local.pipeline.script = lambda request: [FINISHED]
    assert (await speak(local, response_format="pcm")).content == b""
    assert len((await speak(local, response_format="wav")).content) == 44
