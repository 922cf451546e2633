"""Bad and odd input against a live `omni serve`: each row is served, or refused with status and
field.

One server for the module, on a real tiny checkpoint: that it answers normally and holds nothing
after the whole table is part of the test.
"""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import threading
import time
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from PIL import Image

from families import Family

Live = Callable[..., Any]
RATE = 16_000
PART = "messages[0].content[0]"
SPEECH_S = 20.0
"""Far more than any text takes, and less than a hang."""
BRIEF: dict[str, Any] = {"max_completion_tokens": 2, "temperature": 0}


# --- media ----------------------------------------------------------------------------------------


def wav(samples: int, rate: int = RATE, width: int = 2, loudness: float = 9_000) -> bytes:
    """A mono tone of 8 or 16 bits; `loudness` is of the latter."""
    tone = np.sin(np.arange(samples) * 0.1)
    data = (tone * 100 + 128).astype("u1") if width == 1 else (tone * loudness).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(width)
        out.setframerate(rate)
        out.writeframes(data.tobytes())
    return file.getvalue()


def sound(container: str, codec: str, rate: int, layout: str = "mono") -> bytes:
    """One second of a tone."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate, layout=layout)
        tone = np.sin(np.arange(rate) * 0.1).astype("f4")
        samples = np.tile(tone, (2 if layout == "stereo" else 1, 1))
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
        frame.sample_rate, frame.pts = rate, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def picture(
    fmt: str, mode: str = "RGB", size: tuple[int, int] = (64, 64), frames: int = 1
) -> bytes:
    """A gradient, or an animation of several."""
    image = Image.linear_gradient("L").resize(size).convert(mode)
    more = {"save_all": True, "append_images": [image.rotate(90)] * (frames - 1)}
    file = io.BytesIO()
    image.save(file, format=fmt, **(more if frames > 1 else {}))
    return file.getvalue()


def huge_png() -> bytes:
    """20,000 x 20,000 pixels of one colour in 50 kB."""
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000), 1).save(file, format="PNG")
    return file.getvalue()


def video(frames: int = 8, *, rotated: bool = False) -> bytes:
    """A silent MP4 of a brightening picture; without frames there is a track and nothing in it."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=4)
        stream.width, stream.height = 96, 64
        for number in range(frames):
            pixels = np.full((64, 96, 3), 15 * number, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        if frames:
            out.mux(stream.encode(None))
        else:
            stream.codec_context.open()
            out.start_encoding()
    data = bytearray(file.getvalue())
    if rotated:
        upright = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
        sideways = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 64 << 16, 0, 1 << 30)
        at = data.index(upright, data.index(b"tkhd"))
        data[at : at + len(sideways)] = sideways
    return bytes(data)


def link(kind: str, url: str) -> dict[str, Any]:
    """A content part to be fetched."""
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def part(kind: str, data: bytes) -> dict[str, Any]:
    """A content part that lies about its type, as clients do."""
    return link(kind, f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}")


# --- servers --------------------------------------------------------------------------------------


class Server:
    """A live server and what its replies say."""

    def __init__(self, http: httpx.Client, family: Family) -> None:
        self.http = http
        self.family = family

    def post(self, **body: Any) -> httpx.Response:
        """POST a chat body around "Hi", two tokens long."""
        limits = {} if "max_tokens" in body else BRIEF
        body = {"messages": [{"role": "user", "content": "Hi"}], **limits, **body}
        return self.http.post("/v1/chat/completions", content=json.dumps(body))

    def show(self, *parts: dict[str, Any], **body: Any) -> httpx.Response:
        """POST content parts and a question."""
        content = [*parts, {"type": "text", "text": "What is it?"}]
        return self.post(messages=[{"role": "user", "content": content}], **body)

    def usage(self, *parts: dict[str, Any], **body: Any) -> dict[str, int]:
        """Prompt tokens of a request that must be served: all, and by kind, cached or not."""
        reply = self.show(*parts, **body)
        assert reply.status_code == 200, reply.text
        usage = reply.json()["usage"]
        details: dict[str, int] = usage["prompt_tokens_details"]
        del details["cached_tokens"]
        return {"all": usage["prompt_tokens"], **details}


def refused(reply: httpx.Response, param: str | None, *words: str, status: int = 400) -> None:
    """The reply is an error object of `status` that names `param` and says `words`."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    for word in words:
        assert word in error["message"]


@pytest.fixture(scope="module")
def checkpoint(server_family: Family, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp(server_family.name))
    server_family.build(directory)
    return directory


@pytest.fixture(scope="module")
def server(live_server: Live, checkpoint: str, server_family: Family) -> Iterator[Server]:
    """The default server; when the table is through, it answers as before and holds nothing."""
    with live_server(checkpoint) as http:
        server = Server(http, server_family)
        before = server.post().json()["choices"]
        yield server
        assert server.post().json()["choices"] == before
        lines = http.get("/metrics").text.splitlines()
        held = [line for line in lines if "running{" in line or "waiting{" in line]
        assert held
        assert all(float(line.rsplit(" ", 1)[1]) == 0 for line in held), held
        assert http.get("/health").json()["status"] == "ready"


@pytest.fixture(scope="module")
def text_server(live_server: Live, checkpoint: str, server_family: Family) -> Iterator[Server]:
    """A server of the text variant that may fetch from this machine, for redirects to elsewhere,
    has memory for pictures of some 150,000 pixels, and takes 2 seconds of sound."""
    private = ("--preprocessing.allow_private_addresses", "true")
    tight = ("--image_encoder.activation_budget_bytes", "6000000")
    brief = ("--preprocessing.max_audio_seconds", "2")
    with live_server(checkpoint, "--variant", "text", *private, *tight, *brief) as http:
        yield Server(http, server_family)


@dataclass(frozen=True)
class Site:
    """A web site on loopback, and the paths it was asked for."""

    url: str
    asked: list[str]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """It has /picture, and /to?URL, which redirects there."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path.startswith("/to?"):
                self.send_response(302)
                self.send_header("Location", self.path[len("/to?") :])
                self.end_headers()
                return
            body = picture("PNG")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield Site(f"http://127.0.0.1:{httpd.server_port}", asked)
        httpd.shutdown()


# --- the table ------------------------------------------------------------------------------------

SOUNDS = {
    "8-bit 8 kHz WAV": lambda: wav(8_000, 8_000, width=1),
    "stereo 48 kHz MP3": lambda: sound("mp3", "libmp3lame", 48_000, "stereo"),
    "Opus in Ogg": lambda: sound("ogg", "libopus", 48_000),
    "WebM": lambda: sound("webm", "libopus", 48_000),
    "M4A": lambda: sound("ipod", "aac", 44_100),
}
PICTURES = {
    "animated GIF": lambda: picture("GIF", "P", frames=3),
    "animated WebP": lambda: picture("WEBP", frames=3),
    "CMYK JPEG": lambda: picture("JPEG", "CMYK"),
    "RGBA PNG": lambda: picture("PNG", "RGBA"),
}


@pytest.mark.parametrize("name", SOUNDS)
def test_a_second_of_any_sound_is_a_second(server: Server, name: str) -> None:
    usage = server.usage(part("audio", SOUNDS[name]()))
    a_second = server.family.sound_tokens
    assert a_second <= usage["audio_tokens"] <= a_second + 2  # encoders may add a frame of silence
    assert usage["all"] > usage["audio_tokens"]
    assert usage["image_tokens"] == 0


def test_longer_sound_is_more_tokens(server: Server) -> None:
    one, two = (server.usage(part("audio", wav(n * RATE))) for n in (1, 2))
    a_second = server.family.sound_tokens
    assert two["audio_tokens"] == 2 * one["audio_tokens"] == 2 * a_second
    assert two["all"] - one["all"] == a_second


def test_one_sample_is_heard_and_none_is_refused(server: Server) -> None:
    assert server.usage(part("audio", wav(1)))["audio_tokens"] == 1
    refused(server.show(part("audio", wav(0))), PART, "no samples")


@pytest.mark.parametrize("name", PICTURES)
def test_any_picture_counts_as_its_size(server: Server, name: str) -> None:
    plain = server.usage(part("image", picture("PNG")))
    assert plain["image_tokens"] > 0
    assert server.usage(part("image", PICTURES[name]())) == plain


def test_every_door_has_the_limits_of_the_operator(text_server: Server) -> None:
    enough, long = wav(2 * RATE), wav(2 * RATE + 1)
    heard = text_server.usage(part("audio", enough))["audio_tokens"]
    assert heard == 2 * text_server.family.sound_tokens
    refused(text_server.show(part("audio", long)), PART, "limit of 2 s")
    for upload, status in ((enough, 200), (long, 400)):
        reply = text_server.http.post(
            "/v1/audio/transcriptions", data={"max_tokens": 2}, files={"file": upload}
        )
        assert reply.status_code == status, reply.text
    refused(reply, "file", "limit of 2 s")


def test_a_larger_picture_is_more_tokens(server: Server) -> None:
    small, large = (server.usage(part("image", picture("PNG", size=(n, n)))) for n in (128, 256))
    assert large["image_tokens"] == 4 * small["image_tokens"]
    assert large["all"] - small["all"] == large["image_tokens"] - small["image_tokens"]


def test_degenerate_pictures(server: Server) -> None:
    assert server.usage(part("image", picture("PNG", size=(1, 1))))["image_tokens"] > 0
    for size in ((1, 2000), (2000, 1)):
        refused(server.show(part("image", picture("PNG", size=size))), PART, "200 times")
    refused(server.show(part("image", huge_png())), PART, "pixels")


def test_the_part_at_fault_is_named(server: Server) -> None:
    good, bad = part("image", picture("PNG")), part("image", b"no picture")
    refused(server.show(good, bad), "messages[0].content[1]", "recognised")
    refused(server.post(images=[good["image_url"]["url"], "data:,x"]), "images[1]", "recognised")
    refused(server.show(link("image", "data:;base64,???=")), f"{PART}.image_url", "base64")
    refused(server.show(link("image", "file:///etc/passwd")), f"{PART}.image_url", "http:")
    for path in ("/etc/passwd", "../x", "file:///no/such/file"):
        refused(server.post(images=[path]), "images[0]", "only http:, https: and data:")


def test_videos(server: Server) -> None:
    silent = part("video", video())
    upright = server.usage(silent)
    assert upright["image_tokens"] > 0
    assert server.usage(part("video", video(rotated=True))) == upright
    where = PART if server.family.audio_in_video else "use_audio_in_video"
    refused(server.show(silent, use_audio_in_video=True), where, "sound track")
    refused(server.show(part("video", video(0))), PART)
    refused(server.show(part("video", wav(RATE))), PART, "no video track")
    half = server.usage(silent, video_max_frames=2)
    assert 0 < half["image_tokens"] < upright["image_tokens"]


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x", "http://localhost/x", "http://10.0.0.1/x", "http://192.168.1.1/x",
        "http://169.254.169.254/latest/meta-data/", "http://[::1]/x", "http://[fe80::1]/x",
        "http://[::ffff:127.0.0.1]/x", "http://2130706433/x", "http://0x7f.1/x", "http://0.0.0.0/x",
    ],
)  # fmt: skip
def test_internal_addresses_are_refused(server: Server, kind: str, url: str) -> None:
    refused(server.show(link(kind, url)), PART)


def test_each_redirect_is_checked(text_server: Server, site: Site) -> None:
    """Loopback is allowed on this server; what it redirects to is not."""
    served = text_server.usage(link("image", f"{site.url}/to?{site.url}/picture"))
    assert served["image_tokens"] > 0
    for address in ("169.254.169.254", "[fd00:ec2::254]", "0.0.0.0", "2130706433"):
        refused(text_server.show(link("image", f"{site.url}/to?http://{address}/x")), PART)
    refused(text_server.show(link("image", f"{site.url}/to?file:///etc/passwd")), PART)


def test_choices_fetch_a_url_once(text_server: Server, site: Site) -> None:
    for n in (1, 3):
        site.asked.clear()
        reply = text_server.show(link("image", f"{site.url}/picture"), n=n, seed=1)
        assert len(reply.json()["choices"]) == n
        assert site.asked == ["/picture"]


def test_audio_of_a_text_variant(text_server: Server) -> None:
    asked = {
        "modalities": ["text", "audio"],
        "audio": {"voice": text_server.family.voices[0], "format": "wav"},
    }
    refused(text_server.post(**asked), "modalities", "not served")
    assert text_server.post(modalities=["text"]).status_code == 200


def test_pictures_over_the_memory_of_the_encoder(server: Server, text_server: Server) -> None:
    """One picture is refused, and told what to lower; a long video is encoded piece by piece."""
    large = part("image", picture("PNG", size=(512, 512)))
    url, full = large["image_url"]["url"], {"max_pixels": 512**2}
    assert server.usage(large, **full)["image_tokens"] == 256
    refused(text_server.show(large, **full), PART, "262144 pixels", "lower max_pixels")
    refused(text_server.post(images=[url], **full), "images[0]", "lower max_pixels")
    assert text_server.usage(large, max_pixels=256**2)["image_tokens"] == 64
    clip = part("video", video(16))
    whole, cut = (which.show(clip, max_completion_tokens=8) for which in (server, text_server))
    assert cut.json()["choices"] == whole.json()["choices"]


# --- numbers --------------------------------------------------------------------------------------

OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    "temperature": (-0.1, 2.1, 1e308),
    "top_p": (0, -0.1, 1.1),
    "top_k": (-2, 2**63, 2**70),
    "min_p": (-0.1, 1.1),
    "repetition_penalty": (0, -1),
    "presence_penalty": (-2.1, 2.1),
    "frequency_penalty": (-2.1, 2.1),
    "seed": (2**63, -(2**70), 0.5),
    "max_tokens": (0, -1, 2**63),
    "min_tokens": (-1, 2**40),
}
"""Of fields that the body and each entry of `stage_params` have."""
BODY_ONLY: dict[str, tuple[Any, ...]] = {
    "max_completion_tokens": (0, -1, 2**40, 2**63),
    "n": (0, -1, 9, 2**70),
    "video_fps": (0, -1),
    "video_max_frames": (0, -1, 0.5, 2**63),
    "min_pixels": (0, -1, 2**63),
    "max_pixels": (0, -1, 2**63),
    "total_pixels": (0, -1, 2**63),
    "top_logprobs": (1, 21, -1, 2**70),
}
NO_NUMBER = (float("nan"), float("inf"), -float("inf"), "1", True, [1], {})
FIELDS = OUT_OF_RANGE | BODY_ONLY


@pytest.mark.parametrize("name", FIELDS)
def test_numbers_of_the_body(server: Server, name: str) -> None:
    for value in (*FIELDS[name], *NO_NUMBER):
        refused(server.post(**{name: value}), name)
    limits = {"max_completion_tokens": 2, "max_tokens": 2, "temperature": 0}
    assert server.post(**{**limits, name: None}).status_code == 200


@pytest.mark.parametrize("speaks", [False, True])
@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_numbers_of_a_stage(server: Server, speaks: bool, name: str) -> None:
    stage = server.family.speaker if speaks else "thinker"
    for value in (*OUT_OF_RANGE[name], *NO_NUMBER):
        limit = {} if name == "max_tokens" else {"max_tokens": 2}
        asked = {stage: {**limit, name: value}}
        refused(server.post(stage_params=asked), f"stage_params.{stage}.{name}")
    assert server.post(stage_params={stage: {name: None}}).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"5": float("nan")}}, "logit_bias.5"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {str(2**70): 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1, "1"]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [2**62]}, "stop_token_ids"),
        ({"min_pixels": 2, "max_pixels": 1}, "min_pixels"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
    ],
)
def test_numbers_in_collections(server: Server, body: dict[str, Any], param: str) -> None:
    refused(server.post(**body), param)


def test_extremes_that_are_valid_reach_no_limit(server: Server) -> None:
    """Allowed by the schema and absurd: none may cost more than it should, or fail inside."""
    image = part("image", picture("PNG"))
    most = 2**63 - 1
    for body in ({"top_k": most}, {"repetition_penalty": 1e308}, {"temperature": 1e-300},
                 {"seed": -(2**63)}, {"max_pixels": most}, {"total_pixels": most}):  # fmt: skip
        assert server.show(image, **body).status_code == 200, body
    refused(server.show(image, min_pixels=most), "messages", "context")
    refused(server.show(image, max_pixels=1), "max_pixels", "smallest")
    clip = part("video", video())
    absurd = {"video_fps": 1e308, "video_max_frames": most}
    if server.family.repeats_frames:
        refused(server.show(clip, **absurd), "messages", "context")
    else:
        assert server.usage(clip, **absurd) == server.usage(clip, video_fps=4)
    assert server.show(clip, video_fps=1e308, video_max_frames=4).status_code == 200
    assert server.show(clip, video_fps=1e-300).status_code == 200


# --- what is to be said ---------------------------------------------------------------------------

SILENT = {
    "emoji": "\U0001f600\U0001f600",
    "joined emoji": "\U0001f469\u200d\U0001f467" * 40,
    "a flag": "\U0001f1eb\U0001f1f7",
    "full stops": "\u3002\u3002\u3002",
    "dots": "...",
    "signs": "?! \u2014 $ % # ~ * \"'",
    "brackets": "(" * 4_000,
    "controls": "\x00\x01\x7f",
    "no width": "\u200b\ufeff\u202e",
    "marks alone": "\u0301" * 20,
}
"""Without a letter or a digit."""
ODD = {
    "digits": "9" * 4_096,
    "an exponent": "1e999999",
    "list of numbers": "1," * 2_000,
    "money": "$1,000,000.50 " * 290,
    "fractions": "1/" * 2_000,
    "one word": "a" * 4_096,
    "Chinese without a mark": "\u54c8" * 4_096,
    "emoji between letters": "\U0001f600a" * 2_000,
    "dots before a letter": "." * 4_000 + "a",
    "lines before a letter": "\n" * 4_000 + "a",
    "marks on a letter": "a" + "\u0301" * 4_000,
    "addresses": "http://a.b/" * 90,
    "special tokens": "<|im_end|><|role_end|>" * 100,
}
LONG = {"letters": "a " * 5_000, "emoji": "\U0001f600" * 10_000, "stops": "\u3002" * 10_000}
"""10,000 characters, of 4,096."""


def say(server: Server, text: str, **more: Any) -> httpx.Response:
    """Ask for the shortest speech; fails if that takes `SPEECH_S`."""
    one_step = {server.family.speaker: {"max_tokens": 1 if server.family.unspoken else 12}}
    body = {"input": text, "response_format": "wav", "stage_params": one_step, **more}
    begun_s = time.monotonic()
    reply = server.http.post("/v1/audio/speech", content=json.dumps(body))
    assert time.monotonic() - begun_s < SPEECH_S
    if reply.status_code == 200:
        with wave.open(io.BytesIO(reply.content)) as file:
            assert file.getframerate() == server.family.rate
            assert file.readframes(1)
    return reply


@pytest.mark.parametrize("case", SILENT)
def test_what_has_no_words_is_refused_or_spoken(server: Server, case: str) -> None:
    reply = say(server, SILENT[case])
    if server.family.unspoken:
        refused(reply, "input", "nothing to say")
    else:
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("case", ODD)
def test_odd_texts_are_spoken_or_refused(server: Server, case: str) -> None:
    reply = say(server, ODD[case])
    if reply.status_code != 200:  # a model may count more tokens than its context has
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        refused(reply, "input", "tokens")


@pytest.mark.parametrize("case", LONG)
def test_texts_over_the_limit_are_refused(server: Server, case: str) -> None:
    refused(say(server, LONG[case]), "input", "4096")


def test_unknown_voices_are_refused_by_every_door(server: Server) -> None:
    known = server.family.voices[0]
    for name in ("nobody", "\U0001f600", "x" * 2_000, "../../etc/passwd"):
        refused(say(server, "Hello.", voice=name), "voice")
        asked = {"modalities": ["text", "audio"], "audio": {"voice": name, "format": "wav"}}
        refused(server.post(**asked), "audio.voice")
    assert say(server, "Hello.", voice=known).status_code == 200


@pytest.mark.parametrize("case", ["emoji", "full stops", "dots"])
@pytest.mark.parametrize("stream", [False, True])
def test_replies_without_words_are_written_at_least(
    server: Server, case: str, stream: bool
) -> None:
    """A grammar has the model say nothing else."""
    kind = {"name": "silent", "schema": {"const": SILENT[case]}}
    begun_s = time.monotonic()
    reply = server.post(
        stream=stream,
        max_tokens=200,
        modalities=["text", "audio"],
        audio={"format": "pcm16"},
        response_format={"type": "json_schema", "json_schema": kind},
    )
    assert time.monotonic() - begun_s < SPEECH_S
    assert reply.status_code == 200, reply.text
    if not stream:
        [choice] = reply.json()["choices"]
        said, audio = choice["message"]["content"], choice["message"].get("audio")
        assert bool(audio) == (not server.family.unspoken)
        assert json.loads(audio["transcript"] if audio else said) == SILENT[case]
        return
    assert reply.text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"stop"' in reply.text


RECORDINGS: dict[str, Callable[[], bytes]] = {
    "silent": lambda: wav(2 * RATE, loudness=0),
    "nearly silent": lambda: wav(2 * RATE, loudness=3),
    "short": lambda: wav(RATE // 2),
    "one sample": lambda: wav(1),
    "none": lambda: wav(0),
    "long": lambda: wav(31 * 8_000, 8_000, width=1),
    "hours at 8 Hz": lambda: wav(8 * 7_200, 8),
    "no sound": lambda: b"this is no sound",
    "cut off": lambda: wav(2 * RATE)[:30],
    "a picture": lambda: picture("PNG"),
    "a video without sound": lambda: video(),
}


@pytest.mark.parametrize("case", RECORDINGS)
def test_recordings_that_are_no_voice_are_refused(server: Server, case: str) -> None:
    """By a model that cannot clone, too."""
    data = base64.b64encode(RECORDINGS[case]()).decode()
    reply = say(server, "Hello.", ref_audio=f"data:audio/wav;base64,{data}")
    refused(reply, "ref_audio")


# --- what operators read of a real server ---------------------------------------------------------


def test_every_metric_of_a_real_server_is_documented(server: Server) -> None:
    text = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(omni_\w+)` \| (\w+)", text, re.MULTILINE)
    documented = {name: kind for name, kind in rows if not name.startswith("omni_router_")}
    exposed = server.http.get("/metrics").text
    found = dict(re.findall(r"^# TYPE (omni_\w+) (\w+)", exposed, re.MULTILINE))
    names = {name for name in found if not name.endswith("_created")}
    assert len(names) > 40
    assert names <= set(documented)
    assert {name for name in names if found[name] == "histogram"} == {
        name for name, kind in documented.items() if kind == "histogram"
    }
    assert 'omni_media_preparation_seconds_count{media="none"}' in exposed


def test_a_real_server_says_what_it_is(server: Server, checkpoint: str) -> None:
    said = server.http.get("/version").json()
    assert said["checkpoint"] == Path(checkpoint).name
    assert checkpoint not in json.dumps(said)
    assert said["torch"]
    assert set(said["stages"]) == set(server.http.get("/health").json()["stages"])
    engines = [place["ar_engine"] for place in said["stages"].values()]
    assert len([engine for engine in engines if engine]) >= 2
    assert server.http.get("/ready").json() == {"status": "ready", "waiting_for": []}
