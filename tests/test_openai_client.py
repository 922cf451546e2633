"""The openai package against a live `omni serve` on a tiny checkpoint.

Every kind of request a stock client makes, streamed and not, and what it must not be able to
break. One server for the module: that each request works after all others is part of the test.
"""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import av
import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI
from PIL import Image
from pydantic import BaseModel, Field

from expected import load_reference
from families import Family
from in_process import answers
from omni_core.types import FloatArray, Request, RequestParams, SamplingParams

START_DEADLINE_S = 180.0
REQUEST_DEADLINE_S = 120.0
MODEL = "tiny-omni"
IMAGE_ENCODER = "image_encoder"
READ = "What is two plus two?"
TOKENS = 24


def wav(seconds: float, rate: int = 16_000) -> bytes:
    """A rising tone."""
    t = np.arange(round(seconds * rate)) / rate
    samples = (np.sin(2 * np.pi * (200 + 300 * t) * t) * 12_000).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.tobytes())
    return file.getvalue()


def png(side: int = 64) -> bytes:
    """A gradient."""
    y, x = np.mgrid[0:side, 0:side].astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(np.stack([x * 3, y * 3, x + y], axis=-1)).save(file, format="PNG")
    return file.getvalue()


def mp4() -> bytes:
    """Two seconds of a brightening picture and a tone."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        pictures = out.add_stream("mpeg4", rate=4)
        pictures.width = pictures.height = 64
        sounds = out.add_stream("aac", rate=16_000, layout="mono")
        for number in range(8):
            pixels = np.full((64, 64, 3), 30 * number, np.uint8)
            out.mux(pictures.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        tone = np.sin(np.arange(32_768) / 5).astype(np.float32)
        for start in range(0, len(tone), 1024):
            frame = av.AudioFrame.from_ndarray(
                tone[None, start : start + 1024], format="fltp", layout="mono"
            )
            frame.sample_rate, frame.pts = 16_000, start
            out.mux(sounds.encode(frame))
        for stream in (pictures, sounds):
            out.mux(stream.encode(None))
    return file.getvalue()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(data)}"}}


def sound(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": b64(data), "format": "wav"}}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


INPUTS = {
    "text": user(text("Tell me about the sea.")),
    "image": user(image(png()), text("What is this?")),
    "audio": user(sound(wav(1.0)), text("What do you hear?")),
    "audio and image": user(sound(wav(0.6)), image(png()), text("Compare them.")),
    "turns": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello to you."},
        {"role": "user", "content": "And now?"},
    ],
}


@dataclass(kw_only=True)
class Server:
    """A running server: its client, plain HTTP, and its log."""

    openai: OpenAI
    http: httpx.Client
    log: Path
    family: Family
    checkpoint: Path

    @property
    def speaker(self) -> str:
        """The stage that speaks."""
        return self.family.speaker

    @property
    def limits(self) -> dict[str, Any]:
        """A reply that is the same each time, of `TOKENS` at most."""
        return {
            "temperature": 0,
            "max_tokens": TOKENS,
            "extra_body": {
                "seed": 1,
                "stage_params": {self.speaker: {"temperature": 0, "max_tokens": 40}},
            },
        }

    def spoken(self, audio_format: str = "wav") -> dict[str, Any]:
        """A reply that is written and spoken."""
        voice = {"voice": self.family.voices[0], "format": audio_format}
        return {"modalities": ["text", "audio"], "audio": voice}

    @property
    def streamed_speech(self) -> dict[str, Any]:
        """The same as a stream."""
        usage = {"include_usage": True}
        return {**self.spoken("pcm16"), "stream": True, "stream_options": usage}

    @property
    def reading(self) -> dict[str, Any]:
        """A text to be read aloud: with Qwen3 the parity case "read_aloud"."""
        return {
            "model": MODEL,
            "input": READ,
            "voice": self.family.voices[1],
            "extra_body": {
                "seed": 1,
                "stage_params": {self.speaker: {"temperature": 0, "max_tokens": 64}},
            },
        }

    @property
    def brief_reading(self) -> dict[str, Any]:
        """The same for about a second."""
        brief = {"temperature": 0, "max_tokens": self.family.brief // 2}
        return {**self.reading, "extra_body": {"seed": 1, "stage_params": {self.speaker: brief}}}

    def stages(self) -> dict[str, dict[str, Any]]:
        """The stages of /health."""
        return dict(self.http.get("/health").json()["stages"])

    def counters(self, stage: str) -> dict[str, float]:
        """The numbers /metrics has of one stage that only grow."""
        label = f'{{stage="{stage}"}} '
        lines = [line for line in self.http.get("/metrics").text.splitlines() if label in line]
        values = dict(line.rsplit(" ", 1) for line in lines)
        return {name: float(value) for name, value in values.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, server_family: Family) -> Iterator[Server]:
    """`omni tiny` and `omni serve`, on a free loopback port, until the module ends."""
    root = tmp_path_factory.mktemp("served")
    checkpoint, log = root / "tiny", root / "server.log"
    omni = [sys.executable, "-m", "omni_server"]
    tiny = [*omni, "tiny", server_family.name, str(checkpoint)]
    subprocess.run(tiny, check=True, timeout=START_DEADLINE_S)
    port = free_port()
    command = [*omni, "serve", "--model-path", str(checkpoint), "--port", str(port)]
    command += ["--device", "cpu", "--dtype", "float32", "--served-model-name", MODEL]
    url = f"http://127.0.0.1:{port}"
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process,
        httpx.Client(base_url=url, timeout=REQUEST_DEADLINE_S) as http,
        OpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=REQUEST_DEADLINE_S
        ) as client,
    ):
        try:
            wait_until_ready(http, process, log)
            yield Server(
                openai=client, http=http, log=log, family=server_family, checkpoint=checkpoint
            )
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def free_port() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_until_ready(http: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Ask /health until it says ready; on failure, the server's log is the message."""
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server ended with {process.returncode}:\n{log.read_text()}")
        try:
            if http.get("/health").status_code == 200:
                return
        except httpx.ConnectError:
            pass
        time.sleep(0.2)  # another process is the one that works
    pytest.fail(f"the server is not ready after {START_DEADLINE_S} s:\n{log.read_text()}")


@dataclass
class Streamed:
    """A reply put together from its chunks, with the arrival time of each delta."""

    content: str = ""
    transcript: str = ""
    pcm: bytes = b""
    audio_ids: set[str] = field(default_factory=set)
    finish_reasons: list[str] = field(default_factory=list)
    expires: list[int] = field(default_factory=list)
    usage: Any = None
    text_times_s: list[float] = field(default_factory=list)
    audio_times_s: list[float] = field(default_factory=list)
    audio_sizes: list[int] = field(default_factory=list)


def listen(stream: Any) -> Streamed:
    """Consume a stream; checks that the role comes first and usage last."""
    reply = Streamed()
    for number, chunk in enumerate(stream):
        assert reply.usage is None, "something follows the usage chunk"
        if not chunk.choices:
            reply.usage = chunk.usage
            continue
        [choice] = chunk.choices
        assert (choice.delta.role == "assistant") == (number == 0)
        hear(reply, choice.delta)
        if choice.finish_reason:
            reply.finish_reasons.append(choice.finish_reason)
    return reply


def hear(reply: Streamed, delta: Any) -> None:
    now_s = time.monotonic()
    if delta.content:
        reply.content += delta.content
        reply.text_times_s.append(now_s)
    audio = getattr(delta, "audio", None) or {}
    if "id" in audio:
        reply.audio_ids.add(audio["id"])
    if "expires_at" in audio:
        reply.expires.append(audio["expires_at"])
    if audio.get("transcript"):
        reply.transcript += audio["transcript"]
        reply.text_times_s.append(now_s)
    if audio.get("data"):
        data = base64.b64decode(audio["data"])
        reply.pcm += data
        reply.audio_sizes.append(len(data))
        reply.audio_times_s.append(now_s)


@pytest.mark.parametrize("kind", INPUTS)
def test_text_reply_streamed_equals_whole(server: Server, kind: str) -> None:
    create = server.openai.chat.completions.create
    whole = create(model=MODEL, messages=INPUTS[kind], **server.limits)
    [choice] = whole.choices
    assert choice.message.content
    assert choice.message.audio is None
    assert choice.finish_reason in ("stop", "length")
    assert whole.usage.completion_tokens <= 24
    assert whole.usage.completion_tokens_details.audio_tokens == 0
    assert (whole.usage.prompt_tokens_details.audio_tokens > 0) == ("audio" in kind)
    options = {"include_usage": True}
    stream = create(
        model=MODEL, messages=INPUTS[kind], stream=True, stream_options=options, **server.limits
    )
    reply = listen(stream)
    assert reply.content == choice.message.content
    assert reply.finish_reasons == [choice.finish_reason]
    counts = {"total_tokens", "prompt_tokens", "completion_tokens", "completion_tokens_details"}
    assert reply.usage.model_dump(include=counts) == whole.usage.model_dump(include=counts)
    assert not reply.pcm


@pytest.mark.parametrize("kind", INPUTS)
def test_spoken_reply_streamed_equals_whole(server: Server, kind: str) -> None:
    create = server.openai.chat.completions.create
    whole = create(model=MODEL, messages=INPUTS[kind], **server.spoken(), **server.limits)
    [choice] = whole.choices
    assert choice.message.content is None
    audio = choice.message.audio
    assert audio.transcript
    assert audio.expires_at > whole.created
    with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
        assert file.getframerate() == server.family.rate
        frames = file.readframes(file.getnframes())
    assert len(frames) > server.family.rate // 10
    asked = {**server.streamed_speech, **server.limits}
    reply = listen(create(model=MODEL, messages=INPUTS[kind], **asked))
    assert reply.transcript == audio.transcript
    assert reply.content == ""
    assert len(reply.audio_ids) == 1
    assert len(reply.expires) == 1
    assert reply.finish_reasons == [choice.finish_reason]
    assert len(reply.pcm) == len(frames)
    difference = np.frombuffer(reply.pcm, "<i2").astype(int) - np.frombuffer(frames, "<i2")
    assert np.abs(difference).max() <= 2e-4 * 32_768
    details = whole.usage.completion_tokens_details
    assert reply.usage.completion_tokens_details == details
    assert 0 < details.text_tokens <= TOKENS
    heard_s = len(frames) / 2 / server.family.rate
    assert details.audio_tokens == pytest.approx(heard_s / server.family.frame_s, abs=1)
    assert whole.usage.completion_tokens == details.text_tokens + details.audio_tokens


def test_streaming_is_real(server: Server) -> None:
    """Audio starts before the text ends, and no chunk holds more than a quarter of the reply."""
    limits = {
        "temperature": 0,
        "max_tokens": 300,
        "extra_body": {
            "ignore_eos": True,
            "seed": 1,
            "stage_params": {server.speaker: {"temperature": 0, "max_tokens": 80}},
        },
    }
    create = server.openai.chat.completions.create
    reply = listen(create(model=MODEL, messages=INPUTS["text"], **server.streamed_speech, **limits))
    assert reply.audio_times_s[0] < reply.text_times_s[-1]
    assert reply.text_times_s[0] < reply.audio_times_s[0]
    assert max(reply.audio_sizes) <= len(reply.pcm) / 4


def test_transcriptions(server: Server) -> None:
    """Every format says what the chat says to the same clip and instruction; so does a stream."""
    clip = wav(1.5)
    asked = user(sound(clip), text(server.family.transcribe))
    chat = server.openai.chat.completions.create(model=MODEL, messages=asked, **server.limits)
    expected = chat.choices[0].message.content.strip()
    create = server.openai.audio.transcriptions.create
    known: dict[str, Any] = {"model": MODEL, "file": ("ünï.m4a", clip), "language": "en"}
    known |= {"extra_body": {"max_tokens": 24}}
    reply = create(**known)
    assert reply.text == expected
    assert reply.usage.input_tokens == chat.usage.prompt_tokens
    assert reply.usage.input_token_details.audio_tokens > 0
    assert create(response_format="text", **known) == expected
    verbose = create(response_format="verbose_json", **known)
    assert (verbose.text, verbose.duration, verbose.language) == (expected, 1.5, "english")
    assert verbose.segments[0].avg_logprob < 0
    assert create(response_format="srt", **known).startswith("1\n00:00:00,000 --> 00:00:01,500\n")
    assert create(response_format="vtt", **known).startswith("WEBVTT\n")
    *deltas, done = create(stream=True, include=["logprobs"], **known)
    assert len(deltas) > 1
    assert "".join(event.delta for event in deltas) == done.text == expected
    assert done.usage.total_tokens == reply.usage.total_tokens
    assert len(done.logprobs) > len(deltas) / 2
    translated = server.openai.audio.translations.create(
        model=MODEL, file=("a.wav", clip), extra_body={"max_tokens": 8}
    )
    assert isinstance(translated.text, str)


def test_only_what_is_asked_for_runs(server: Server) -> None:
    idle = (*server.family.speech_stages, IMAGE_ENCODER)
    before = {stage: server.counters(stage) for stage in idle}
    assert all(before.values())
    server.openai.chat.completions.create(model=MODEL, messages=INPUTS["text"], **server.limits)
    after = {stage: server.counters(stage) for stage in before}
    assert after == before


def test_an_earlier_spoken_reply_is_named_by_its_id(server: Server) -> None:
    create = server.openai.chat.completions.create
    asked = {**server.spoken(), **server.limits}
    first = create(model=MODEL, messages=INPUTS["text"], **asked).choices[0].message
    question = INPUTS["text"][0]
    follow = {"role": "user", "content": "Go on."}
    named = create(
        model=MODEL,
        messages=[question, {"role": "assistant", "audio": {"id": first.audio.id}}, follow],
        **server.limits,
    )
    spelled = create(
        model=MODEL,
        messages=[question, {"role": "assistant", "content": first.audio.transcript}, follow],
        **server.limits,
    )
    assert named.choices[0].message.content == spelled.choices[0].message.content
    assert named.usage.prompt_tokens == spelled.usage.prompt_tokens


def posted(server: Server, **body: Any) -> tuple[str, dict[str, Any]]:
    """The reply's text and usage, for fields the openai package does not know."""
    body = {"model": MODEL, "max_tokens": 8, "temperature": 0, **body}
    reply = server.http.post("/v1/chat/completions", json=body).json()
    return reply["choices"][0]["message"]["content"], reply["usage"]


def test_the_sound_of_a_video_is_heard_when_asked_for(server: Server) -> None:
    clip = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{b64(mp4())}"}}
    messages = user(clip, text("What happens?"))
    _, silent = posted(server, messages=messages)
    if not server.family.audio_in_video:
        body = {"model": MODEL, "messages": messages, "use_audio_in_video": True}
        refusal = server.http.post("/v1/chat/completions", json=body)
        assert refusal.status_code == 400
        assert refusal.json()["error"]["param"] == "use_audio_in_video"
        return
    _, heard = posted(server, messages=messages, use_audio_in_video=True)
    assert silent["prompt_tokens_details"]["audio_tokens"] == 0
    assert heard["prompt_tokens_details"]["audio_tokens"] > 0
    pictures = silent["prompt_tokens_details"]["image_tokens"]
    assert heard["prompt_tokens_details"]["image_tokens"] == pictures > 0
    _, fewer = posted(server, messages=messages, video_max_frames=2)
    assert 0 < fewer["prompt_tokens_details"]["image_tokens"] < pictures


def test_top_level_media_equal_parts_in_front_of_the_text(server: Server) -> None:
    urls = [f"data:image/png;base64,{b64(png())}", f"data:audio/wav;base64,{b64(wav(0.5))}"]
    urls.append(f"data:video/mp4;base64,{b64(mp4())}")
    parts = [
        {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
        for kind, url in zip(("image", "audio", "video"), urls, strict=True)
    ]
    lists = {f"{kind}s": [url] for kind, url in zip(("image", "audio", "video"), urls, strict=True)}
    said, usage = posted(server, messages=user(*parts, text("Compare.")))
    again, same = posted(server, messages=user(text("Compare.")), **lists)
    cached = same["prompt_tokens_details"].pop("cached_tokens")
    assert cached > usage["prompt_tokens_details"].pop("cached_tokens")
    assert (again, same) == (said, usage)


def test_a_seed_gives_the_same_reply_alone_and_in_company(server: Server) -> None:
    def speak(seed: int) -> tuple[str, int]:
        reply = server.openai.chat.completions.create(
            model=MODEL, messages=INPUTS["text"], **server.spoken(), temperature=1.0, seed=seed,
            max_tokens=12, extra_body={"stage_params": {server.speaker: {"max_tokens": 20}}},
        )  # fmt: skip
        details = reply.usage.completion_tokens_details
        return reply.choices[0].message.audio.transcript, details.audio_tokens

    alone = [speak(seed) for seed in range(4)]
    assert len({transcript for transcript, _ in alone}) > 1
    with ThreadPoolExecutor(8) as clients:
        company = [clients.submit(speak, seed) for seed in range(100, 104)]
        together = list(clients.map(speak, range(4)))
        assert all(other.result() for other in company)
    assert together == alone


@pytest.mark.parametrize(
    ("name", "magic"), [("flac", b"fLaC"), ("opus", b"OggS"), ("aac", b"\xff\xf1")]
)
def test_speech_in_other_formats(server: Server, name: str, magic: bytes) -> None:
    asked = {"modalities": ["audio"], "audio": {"voice": server.family.voices[0], "format": name}}
    reply = server.openai.chat.completions.create(
        model=MODEL, messages=INPUTS["text"], **asked, **server.limits
    )
    assert base64.b64decode(reply.choices[0].message.audio.data).startswith(magic)


def decoded(data: bytes) -> tuple[np.ndarray, int]:
    """All samples and the rate of a file, by FFmpeg."""
    with av.open(io.BytesIO(data)) as file:
        resampler = av.AudioResampler(format="flt", layout="mono")
        frames = [f for frame in file.decode(audio=0) for f in resampler.resample(frame)]
        rate = file.streams.audio[0].rate
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]), rate


@dataclass(frozen=True, kw_only=True)
class Read:
    """What `Server.reading` must be."""

    samples: FloatArray
    input_tokens: int
    output_tokens: int


@pytest.fixture(scope="module")
def read(server: Server) -> Read:
    """As transformers read it, or the pipeline without a server."""
    if server.family.name == "qwen3":
        stored = load_reference("read_aloud")
        tokens = len(stored.text_ids) - 1, stored.codes.shape[1]
        return Read(samples=stored.wav, input_tokens=tokens[0], output_tokens=tokens[1])
    speaker = SamplingParams(temperature=0, max_tokens=64)
    params = RequestParams(
        modalities=("audio",),
        voice=server.family.voices[1],
        sampling=SamplingParams(seed=1),
        stage_params={server.speaker: speaker},
    )
    [told] = answers(str(server.checkpoint), [Request(read_aloud=READ, params=params)])
    used = told.finished.usage
    return Read(
        samples=told.samples, input_tokens=used.prompt_tokens, output_tokens=used.audio_tokens
    )


def test_a_text_is_read_and_not_answered(server: Server, read: Read) -> None:
    before = server.counters("thinker")
    speech = server.openai.audio.speech.create(**server.reading, response_format="wav")
    heard, rate = decoded(speech.content)
    assert rate == server.family.rate
    assert len(heard) == len(read.samples) > rate // 4
    assert np.abs(heard - read.samples).max() <= 2e-4 + 1 / 65_536
    after = server.counters("thinker")
    for name in ("omni_stage_steps", "omni_stage_tokens"):
        label = f'{name}{{stage="thinker"}}'
        assert after[label] == before[label]


@pytest.mark.parametrize(
    ("name", "magic", "rate", "priming"),
    [
        ("mp3", b"\xff", None, 3_409),
        ("opus", b"OggS", 48_000, 0),
        ("aac", b"\xff\xf1", None, 2_048),
        ("flac", b"fLaC", None, 0),
        ("wav", b"RIFF", None, 0),
    ],
)
def test_speech_in_every_format(
    server: Server, read: Read, name: str, magic: bytes, rate: int | None, priming: int
) -> None:
    """At the model's rate where the format has no other."""
    speech = server.openai.audio.speech.with_streaming_response
    with speech.create(**server.reading, response_format=name) as response:
        pieces = list(response.iter_bytes())
    assert len(pieces) > 1
    assert pieces[0].startswith(magic)
    heard, file_rate = decoded(b"".join(pieces))
    assert file_rate == (rate or server.family.rate)
    longer_s = len(heard) / file_rate - len(read.samples) / server.family.rate
    assert 0 <= longer_s <= 0.08 + priming / server.family.rate


def test_speech_as_events(server: Server, read: Read) -> None:
    body = {**server.reading, **server.reading["extra_body"]}
    body |= {"stream_format": "sse", "response_format": "wav"}
    del body["extra_body"]
    text = server.http.post("/v1/audio/speech", json=body).text
    *frames, last, _ = text.split("\n\n")
    events = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert last == "data: [DONE]"
    heard, _ = decoded(b"".join(base64.b64decode(event["audio"]) for event in events[:-1]))
    assert np.abs(heard - read.samples).max() <= 2e-4 + 1 / 65_536
    assert len(events) > 3
    counts = read.input_tokens, read.output_tokens
    assert min(counts) > 0
    names = "input_tokens", "output_tokens", "total_tokens"
    usage = dict(zip(names, (*counts, sum(counts)), strict=True))
    assert events[-1] == {"type": "speech.audio.done", "usage": usage, "finish_reason": "stop"}


def test_sentences_read_at_once_are_those_read_alone(server: Server) -> None:
    """Voice clients split a text into sentences and ask for all of them."""

    def read(text: str) -> FloatArray:
        asked = {**server.brief_reading, "input": text, "response_format": "wav"}
        if text in server.family.unspoken:
            with pytest.raises(openai.BadRequestError, match="nothing to say"):
                server.openai.audio.speech.create(**asked)
            return np.zeros(0, "f4")
        return decoded(server.openai.audio.speech.create(**asked).content)[0]

    texts = ["Hello.", "The fox jumps.", "\U0001f600", "...", "I have 3 cats."]
    alone = [read(text) for text in texts]
    with ThreadPoolExecutor(len(texts)) as clients:
        together = list(clients.map(read, texts))
    for one, other in zip(alone, together, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max(initial=0) <= 2e-4 + 1 / 32_768


def test_speech_that_nobody_hears_any_more_frees_every_stage(server: Server) -> None:
    endless = {"stage_params": {server.speaker: {"ignore_eos": True, "max_tokens": 2000}}}
    asked = {**server.reading, "extra_body": endless, "response_format": "wav"}
    for _ in range(2):
        with server.openai.audio.speech.with_streaming_response.create(**asked) as response:
            next(response.iter_bytes())
    left_at_s = time.monotonic()
    while busy := busy_stages(server):
        assert time.monotonic() - left_at_s < 1.0, f"still held: {busy}"
    server.openai.audio.speech.create(**server.brief_reading)


def test_voices_are_listed_as_chat_clients_read_them(server: Server) -> None:
    listed = server.http.get("/v1/audio/voices").json()
    assert {voice["id"] for voice in listed["voices"]} >= set(server.family.voices)
    asked = {**server.brief_reading, "voice": listed["default_voice"]}
    assert server.openai.audio.speech.create(**asked).content


def test_a_client_that_leaves_frees_every_stage(server: Server) -> None:
    forever = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    stream = server.openai.chat.completions.create(
        model=MODEL, messages=INPUTS["text"], **server.streamed_speech, **forever
    )
    next(iter(stream))
    stream.close()
    left_at_s = time.monotonic()
    while busy := busy_stages(server):
        assert time.monotonic() - left_at_s < 1.0, f"still held: {busy}"
    server.openai.chat.completions.create(model=MODEL, messages=INPUTS["text"], **server.limits)


def busy_stages(server: Server) -> list[str]:
    """Lines of /metrics that say a stage still holds or awaits a request."""
    lines = server.http.get("/metrics").text.splitlines()
    held = ("omni_stage_running{", "omni_stage_waiting{", "omni_stage_held{")
    return [line for line in lines if line.startswith(held) and not line.endswith(" 0.0")]


SPOKEN = {"modalities": ["text", "audio"]}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "messages"),
    "unknown role": ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    "bad base64": (
        {"messages": user({"type": "image_url", "image_url": {"url": "data:image/png;base64,@"}})},
        "messages[0].content[0].image_url",
    ),
    "truncated PNG": ({"messages": user(image(png()[:60]))}, "messages[0].content[0]"),
    "PNG without its end": (
        {"messages": user(text("See?"), image(png()[:-12]))},
        "messages[0].content[1]",
    ),
    "truncated PNG at top level": (
        {"images": [f"data:image/png;base64,{b64(data)}" for data in (png(), png()[:60])]},
        "images[1]",
    ),
    "file URL": (
        {"messages": user({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}})},
        "messages[0].content[0].image_url",
    ),
    "loopback URL": (
        {"messages": user({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}})},
        "messages[0].content[0]",
    ),
    "unknown voice": ({**SPOKEN, "audio": {"voice": "nobody", "format": "wav"}}, "audio.voice"),
    "unknown format": ({**SPOKEN, "audio": {"format": "midi"}}, "audio.format"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens"),
    "temperature -1": ({"temperature": -1}, "temperature"),
    "empty audio": ({"messages": user(sound(b""))}, "messages[0].content[0].input_audio"),
    "zero-length audio": ({"messages": user(sound(wav(0.0)))}, "messages[0].content[0]"),
    "not audio": ({"messages": user(sound(b"this is no sound"))}, "messages[0].content[0]"),
    "over the context": ({"messages": user(text("word " * 100_000))}, "messages"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_refused_and_the_next_request_works(
    server: Server, case: str, stream: bool
) -> None:
    changes, param = BAD[case]
    body = {"model": MODEL, "messages": INPUTS["text"], "stream": stream, **changes}
    response = server.http.post("/v1/chat/completions", json=body)
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    good = {"model": MODEL, "messages": INPUTS["text"], "max_tokens": 2}
    assert server.http.post("/v1/chat/completions", json=good).status_code == 200


def test_bad_input_through_the_sdk(server: Server) -> None:
    create = server.openai.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        create(model=MODEL, messages=INPUTS["text"], temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="gpt-4o", messages=INPUTS["text"])
    assert missing.value.code == "model_not_found"
    response = server.http.post("/v1/chat/completions", content=b"not json")
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_health_and_models(server: Server) -> None:
    stages = server.stages()
    assert {*server.family.speech_stages, IMAGE_ENCODER} <= set(stages)
    assert {stage["state"] for stage in stages.values()} == {"ready"}
    assert os.getpid() not in {stage["pid"] for stage in stages.values()}
    assert [model.id for model in server.openai.models.list()] == [MODEL]
    model = server.openai.models.retrieve(MODEL)
    assert set(server.family.voices) <= set(model.model_dump()["voices"])


class Trip(BaseModel):
    """What a reply is asked to be."""

    city: Literal["Paris", "Rome"]
    days: Annotated[int, Field(ge=0, le=9)]
    by_train: bool


def plan_trip() -> dict[str, Any]:
    return openai.pydantic_function_tool(Trip, name="plan_trip")  # type: ignore[return-value]


def test_a_reply_is_parsed_as_the_type_it_was_asked_to_be(server: Server) -> None:
    completion = server.openai.chat.completions.parse(
        model=MODEL, messages=INPUTS["text"], response_format=Trip, max_tokens=200, temperature=0
    )
    [choice] = completion.choices
    assert isinstance(choice.message.parsed, Trip)
    assert choice.finish_reason == "stop"


def test_any_json_object(server: Server) -> None:
    for seed in range(3):
        [choice] = server.openai.chat.completions.create(
            model=MODEL, messages=INPUTS["image"], response_format={"type": "json_object"},
            max_tokens=40, temperature=1, seed=seed,
        ).choices  # fmt: skip
        assert choice.message.content is not None
        assert choice.message.content.lstrip().startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


def test_a_model_without_tools_says_so(server: Server) -> None:
    if server.family.tools:
        pytest.skip("this model takes tools")
    with pytest.raises(openai.BadRequestError) as refused:
        server.openai.chat.completions.create(
            model=MODEL, messages=INPUTS["text"], tools=[plan_trip()]
        )
    assert refused.value.param == "tools"


def needs_tools(server: Server) -> None:
    if not server.family.tools:
        pytest.skip("this model takes no tools")


def test_a_call_that_must_be_streamed_and_answered(server: Server) -> None:
    needs_tools(server)
    ask: dict[str, Any] = {
        "model": MODEL, "temperature": 0, "max_tokens": 200, "tools": [plan_trip()],
        "parallel_tool_calls": False,
    }  # fmt: skip
    must = {**ask, "tool_choice": "required", "messages": INPUTS["text"]}
    with server.openai.chat.completions.stream(**must) as stream:
        events = list(stream)
        [choice] = stream.get_final_completion().choices
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    [call] = choice.message.tool_calls or []
    assert call.function.name == "plan_trip"
    assert isinstance(call.function.parsed_arguments, Trip)
    pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len(pieces) > 3
    [whole] = server.openai.chat.completions.create(**must).choices
    assert whole.message.tool_calls is not None
    assert whole.message.tool_calls[0].function.arguments == call.function.arguments
    turns = [
        *INPUTS["text"],
        {"role": "assistant", "content": None, "tool_calls": [{
            "id": call.id, "type": "function",
            "function": {"name": "plan_trip", "arguments": call.function.arguments}}]},
        {"role": "tool", "tool_call_id": call.id, "content": "Booked."},
    ]  # fmt: skip
    [after] = server.openai.chat.completions.create(**{**ask, "messages": turns}).choices
    assert after.finish_reason in ("stop", "length", "tool_calls")


def test_calls_are_not_spoken(server: Server) -> None:
    needs_tools(server)
    spoken = server.openai.chat.completions.create(
        model=MODEL, messages=INPUTS["text"], tools=[plan_trip()], tool_choice="required",
        parallel_tool_calls=False, **server.spoken(), **{**server.limits, "max_tokens": 200},
    )  # fmt: skip
    [choice] = spoken.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.audio is None
    assert spoken.usage is not None
    assert spoken.usage.completion_tokens_details is not None
    assert spoken.usage.completion_tokens_details.audio_tokens == 0


def test_choices_equal_requests_with_their_seeds(server: Server) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": INPUTS["text"], "temperature": 1}
    create = server.openai.chat.completions.create
    several = create(**ask, max_tokens=12, n=2, seed=3)
    alone = [create(**ask, max_tokens=12, seed=seed) for seed in (3, 4)]
    said = [choice.message.content for choice in several.choices]
    assert said == [reply.choices[0].message.content for reply in alone]
    assert several.usage is not None
    prompts = {reply.usage.prompt_tokens for reply in alone if reply.usage}
    assert prompts == {several.usage.prompt_tokens}


def test_a_raw_prompt_written_as_the_template_does_is_completed_as_the_chat(server: Server) -> None:
    words = "Tell me about the sea."
    chat = server.openai.chat.completions.create(
        model=MODEL, messages=user(text(words)), logprobs=True, top_logprobs=2, **server.limits
    )
    [answer] = chat.choices
    written = server.family.prompt.format(words)
    complete = server.openai.completions.create
    whole = complete(model=MODEL, prompt=written, max_tokens=24, temperature=0, logprobs=2)
    [choice] = whole.choices
    assert choice.text == answer.message.content
    assert choice.finish_reason == answer.finish_reason
    assert whole.usage == chat.usage
    theirs = [token.logprob for token in answer.logprobs.content]
    assert choice.logprobs.token_logprobs == pytest.approx(theirs, abs=1e-4)
    assert choice.logprobs.text_offset[0] == 0
    two = {"model": MODEL, "prompt": [written, "The sea"], "max_tokens": 9, "temperature": 0}
    streamed: dict[int, str] = {}
    for chunk in complete(**two, stream=True):
        for part in chunk.choices:
            streamed[part.index] = streamed.get(part.index, "") + part.text
    assert streamed == {choice.index: choice.text for choice in complete(**two).choices}
    [same] = complete(**{**two, "prompt": "The sea"}).choices
    assert streamed[1] == same.text
    for prompt in (server.family.media_token, [2**31 - 1]):
        with pytest.raises(openai.BadRequestError) as refused:
            complete(model=MODEL, prompt=prompt)
        assert refused.value.param == "prompt"


def test_schemas_that_cannot_be_kept_to_are_named(server: Server) -> None:
    for schema in ({"not": {}}, {"type": "array", "items": {"$ref": "http://localhost/x"}}):
        wrong = {"name": "x", "schema": schema}
        with pytest.raises(openai.BadRequestError) as refused:
            server.openai.chat.completions.create(
                model=MODEL, messages=INPUTS["text"],
                response_format={"type": "json_schema", "json_schema": wrong},
            )  # fmt: skip
        assert refused.value.param == "response_format.json_schema.schema"


def test_characters_are_never_cut(server: Server) -> None:
    faces = {"type": "object", "properties": {"a": {"const": "🙂é日"}}, "required": ["a"]}
    stream = server.openai.chat.completions.create(
        model=MODEL, messages=INPUTS["text"], stream=True, max_tokens=60, temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {
            **faces, "additionalProperties": False}}},
    )  # fmt: skip
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "\ufffd" not in "".join(pieces)
    assert json.loads("".join(pieces)) == {"a": "🙂é日"}
