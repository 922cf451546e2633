"""The small parts: formats, heard words, windows of speech, silero's model, the docs."""

from __future__ import annotations

import asyncio
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import pytest

from omni_core.media import pcm16
from omni_core.testing.voice import say_vowels
from omni_server.realtime import vad
from omni_server.realtime.events import NAMES
from omni_server.realtime.formats import A_LAW, U_LAW, AudioFormat, PcmDecoder, encoder
from omni_server.realtime.heard import heard_text
from omni_server.realtime.listener import Listener, TurnBegan, TurnEnded
from omni_server.realtime.outbox import Outbox
from omni_server.realtime.settings import SessionSettings, TurnDetection
from omni_server.realtime.together import Together
from omni_server.realtime.turns import SpeechStarted, SpeechStopped, TurnDetector

DOCS = Path(__file__).resolve().parents[4] / "docs" / "realtime.md"
SOURCE = Path(vad.__file__).parent
SENTENCE = "The quick brown fox jumps over the lazy dog."
G711 = [("audio/pcmu", "pcm_mulaw", U_LAW), ("audio/pcma", "pcm_alaw", A_LAW)]


@pytest.mark.parametrize(("name", "codec", "table"), G711)
def test_g711_is_that_of_ffmpeg(name: Any, codec: str, table: Any) -> None:
    codes = np.arange(256, dtype=np.uint8).tobytes()
    decoder: Any = av.CodecContext.create(codec, "r")
    decoder.sample_rate, decoder.layout, decoder.format = 8_000, "mono", "s16"
    [frame] = decoder.decode(av.Packet(codes))
    known = frame.to_ndarray().reshape(-1)
    audio_format = AudioFormat(name, 8_000)
    assert np.array_equal(PcmDecoder(audio_format).push(codes), known)
    writer = encoder(audio_format, 8_000, 1.0)
    assert np.array_equal(table[np.frombuffer(writer.push(known / 32_768), np.uint8)], known)
    every = np.arange(-32_768, 32_768, 7)
    coded = table[np.frombuffer(writer.push((every / 32_768).astype(np.float32)), np.uint8)]
    nearest = np.abs(every[:, None] - np.sort(known)[None].astype(int)).min(axis=1)
    assert np.abs(coded.astype(int) - every).max() <= nearest.max() + 2


@pytest.mark.parametrize(
    ("heard_ms", "whole_ms", "text"),
    [
        (0, 4_400, ""),
        (100, 4_400, ""),
        (400, 4_400, "The"),
        (2_000, 4_400, "The quick brown fox"),
        (4_300, 4_400, "The quick brown fox jumps over the lazy"),
        (4_400, 4_400, SENTENCE),
        (9_000, 4_400, SENTENCE),
        (1_000, None, "The quick brown"),
        (60_000, None, SENTENCE),
    ],
)
def test_words_that_were_heard(heard_ms: int, whole_ms: int | None, text: str) -> None:
    assert heard_text(SENTENCE, heard_ms, whole_ms) == text


def test_signs_that_were_heard() -> None:
    assert heard_text("今天天气很好", 500, 1_000) == "今天天"
    assert heard_text("", 500, None) == ""


def boundaries(likely: list[float], **settings: Any) -> list[Any]:
    detector = TurnDetector(TurnDetection(**settings), most_ms=320_000)
    return [found for p in likely if (found := detector.push(p)) is not None]


def test_speech_begins_with_its_first_window_and_ends_after_silence() -> None:
    likely = [0.1] * 5 + [0.9] * 10 + [0.1] * 30
    assert boundaries(likely) == [SpeechStarted(5), SpeechStopped(15 + 16)]
    assert boundaries(likely, silence_duration_ms=64) == [SpeechStarted(5), SpeechStopped(17)]
    assert boundaries(likely, silence_duration_ms=0) == [SpeechStarted(5), SpeechStopped(16)]


def test_what_is_short_or_unlikely_is_no_speech() -> None:
    assert boundaries([0.1, 0.9, 0.9, 0.1] * 20) == []
    assert boundaries([0.6] * 50, threshold=0.7) == []
    assert boundaries([0.6] * 50, threshold=0.6) == [SpeechStarted(0)]


def test_a_breath_ends_no_turn() -> None:
    likely = [0.9] * 5 + [0.1] * 15 + [0.9] * 5 + [0.4] * 40
    assert boundaries(likely) == [SpeechStarted(0)]


async def test_an_outbox_is_bounded_and_keeps_its_order() -> None:
    outbox = Outbox(lambda event: (event,), most_waiting_bytes=200)
    outbox.put({"type": "a"})
    outbox.put({"type": "b"})
    texts = outbox.texts()
    for kind in ("a", "b"):
        assert msgspec.json.decode(await anext(texts))["type"] == kind
    for _ in range(10):
        outbox.put({"type": "c"})
    assert outbox.overflowed.is_set()


async def test_work_of_many_goes_to_a_thread_together() -> None:
    threads = Together("test")
    order: list[int] = []
    free = threading.Event()

    def work(number: int) -> int:
        free.wait(5)
        order.append(number)
        return 10 // number

    asked = [asyncio.create_task(threads.run(partial(work, number))) for number in (5, 2, 0, 1)]
    await asyncio.sleep(0)
    asked[1].cancel()
    free.set()
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert order == [5, 2, 0, 1]
    assert (done[0], done[3]) == (2, 10)
    assert isinstance(done[1], asyncio.CancelledError)
    assert isinstance(done[2], ZeroDivisionError)
    assert await threads.run(lambda: "again") == "again"
    threads.close()


def test_silence_noise_and_tones_are_no_speech() -> None:
    pytest.importorskip("onnxruntime", reason="the realtime extra is not installed")
    assert vad.missing() is None
    model = vad.SileroModel()
    rng = np.random.default_rng(0)
    place = np.arange(64 * vad.WINDOW)
    sounds = {
        "silence": np.zeros(len(place)),
        "noise": rng.normal(0, 0.01, len(place)),
        "tone": 0.3 * np.sin(place * 0.2),
        "clicks": np.where(place % 4_000 < 400, rng.uniform(-0.8, 0.8, len(place)), 0),
    }
    for name, samples in sounds.items():
        stream = model.stream()
        windows = samples.astype(np.float32).reshape(-1, vad.WINDOW)
        assert max(map(stream.probability, windows)) < 0.5, name


async def test_a_voice_is_found_where_it_is() -> None:
    pytest.importorskip("onnxruntime", reason="the realtime extra is not installed")
    voice = say_vowels("aeiou", 24_000)
    parts = (np.zeros(12_000), voice, np.zeros(24_000))
    data = pcm16(np.concatenate(parts).astype(np.float32))
    threads = Together("test")
    listener = Listener(AudioFormat("audio/pcm", 24_000), vad.SileroModel(), threads, 60.0)
    listener.detect(TurnDetection())
    pieces = (data[start : start + 960] for start in range(0, len(data), 960))
    began, ended = [one for piece in pieces async for one in listener.push(piece)]
    threads.close()
    assert isinstance(began, TurnBegan)
    assert isinstance(ended, TurnEnded)
    assert began.start_ms == pytest.approx(500 - 300, abs=100)
    assert ended.end_ms == pytest.approx(500 + 900 + 500, abs=200)


def test_streams_have_states_of_their_own() -> None:
    pytest.importorskip("onnxruntime", reason="the realtime extra is not installed")
    model = vad.SileroModel()
    windows = np.random.default_rng(1).normal(0, 0.2, (20, vad.WINDOW)).astype(np.float32)
    alone, beside, other = model.stream(), model.stream(), model.stream()
    expected = [alone.probability(window) for window in windows]
    found = []
    for window in windows:
        found.append(beside.probability(window))
        other.probability(window[::-1].copy())
    assert found == expected


def test_the_docs_have_every_event_and_every_setting() -> None:
    text = DOCS.read_text()
    shown = re.sub(r"`(\S+?)(\.\w+)`(?:, `(\.\w+)`)+", _spelt_out, text)
    for name in NAMES:
        assert f"`{name}`" in text
    for name in SessionSettings.__struct_fields__:
        assert name in text
    for kind in said_by_the_server():
        assert f"`{kind}`" in shown, kind


def _spelt_out(found: re.Match[str]) -> str:
    """`a.b`, `.c` as `a.b`, `a.c`."""
    names = re.findall(r"`(\S+)`", found[0])
    return ", ".join(f"`{found[1] if name[0] == '.' else ''}{name}`" for name in names)


def said_by_the_server() -> set[str]:
    """Event types as the source spells them whole."""
    sources = "".join(path.read_text() for path in SOURCE.glob("*.py"))
    found = set(re.findall(r'"type": "([a-z_]+\.[a-z_.]+)"', sources))
    found |= set(re.findall(r'"(response\.[a-z_]+\.[a-z_.]+)"', sources))
    return found - {"response.text.delta"} - BETA_NAMES


BETA_NAMES = {
    "response.text.delta", "response.text.done", "response.audio.delta", "response.audio.done",
    "response.audio_transcript.delta", "response.audio_transcript.done",
}  # fmt: skip
