"""What is said to the parrot comes back: the same words, in its own voice, as soon as it can."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile
import soxr

from omni_core.types import FloatArray
from omni_parrot.checkpoint import SPOKEN_HZ
from server import REALTIME_HZ, Heard, by_chat, client_of, metric, talking
from speech import (
    HEARD_HZ,
    SENTENCES,
    SPEAKERS,
    a_low_voice,
    median_pitch_hz,
    word_errors,
    words,
    written_down,
)

MOST_WORD_ERRORS = 0.1
TALE = " ".join(SENTENCES)


def check(replies: list[Heard], door: str) -> None:
    """Words of texts and of sounds, told to whoever runs the tests."""
    said = sum(len(words(sentence)) for sentence in SENTENCES)
    pairs = list(zip(replies, SENTENCES, strict=True))
    written = sum(word_errors(reply.text, sentence) for reply, sentence in pairs)
    spoken = sum(
        word_errors(written_down(reply.sound, SPOKEN_HZ), sentence) for reply, sentence in pairs
    )
    print(f"\n{door}: word error rate {written / said:.1%} in text, {spoken / said:.1%} in sound")
    assert written / said < MOST_WORD_ERRORS
    assert spoken / said < MOST_WORD_ERRORS


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_twenty_sentences_over_http(url: str, speaker: str) -> None:
    sounds = [SPEAKERS[speaker](sentence) for sentence in SENTENCES]
    replies = [by_chat(url, sound, HEARD_HZ) for sound in sounds]
    check(replies, f"{speaker} over HTTP")


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_twenty_sentences_over_realtime(url: str, speaker: str) -> None:
    sounds = [SPEAKERS[speaker](sentence) for sentence in SENTENCES]
    with talking(url) as talk:
        replies = [talk.say(soxr.resample(sound, HEARD_HZ, REALTIME_HZ)) for sound in sounds]
    check(replies, f"{speaker} over realtime")


@pytest.fixture(scope="module")
def tale() -> FloatArray:
    """A minute of speech."""
    return a_low_voice(TALE)


def over_http(url: str, sound: FloatArray) -> Heard:
    return by_chat(url, sound, HEARD_HZ)


def over_realtime(url: str, sound: FloatArray) -> Heard:
    with talking(url) as talk:
        return talk.say(soxr.resample(sound, HEARD_HZ, REALTIME_HZ))


@pytest.mark.parametrize("door", [over_http, over_realtime])
def test_sound_comes_before_all_is_spoken_or_even_heard(
    url: str, tale: FloatArray, door: Callable[[str, FloatArray], Heard]
) -> None:
    """Whisper hears half a minute at a time: the first is spoken before the second is heard."""
    reply = door(url, tale)
    assert word_errors(reply.text, TALE) < MOST_WORD_ERRORS * len(words(TALE))
    voice, asr = reply.timeline["voice"], reply.timeline["asr"]
    assert voice["first_output_s"] < asr["end_s"] < voice["end_s"]
    assert reply.came_s[0] < asr["end_s"]
    assert len(reply.came_s) >= len(SENTENCES) / 2


def test_the_first_sentence_is_heard_before_the_last_is_spoken(url: str) -> None:
    before = metric(url, "omni_stage_pieces", "voice")
    body = {
        "model": "parrot",
        "voice": "heart",
        "input": " ".join(3 * [TALE]),
        "response_format": "pcm",
    }
    with client_of(url).audio.speech.with_streaming_response.create(**body) as answer:
        pieces = answer.iter_bytes()
        first = next(pieces)
        spoken = metric(url, "omni_stage_pieces", "voice") - before
        rest = sum(map(len, pieces))
    assert len(first)
    assert 1 <= spoken < 3 * len(SENTENCES) / 2
    all_spoken = metric(url, "omni_stage_pieces", "voice") - before
    assert all_spoken >= 3 * len(SENTENCES)
    assert rest > len(first)


def test_it_speaks_in_another_voice(url: str) -> None:
    """The same sentence of one speaker, by each voice of the checkpoint."""
    sound = a_low_voice(SENTENCES[1])
    pitches = {
        voice: median_pitch_hz(by_chat(url, sound, HEARD_HZ, voice).sound, SPOKEN_HZ)
        for voice in ("heart", "low")
    }
    assert pitches["heart"] > 1.15 * median_pitch_hz(sound, HEARD_HZ)
    assert pitches["low"] == pytest.approx(0.8 * pitches["heart"], rel=0.1)


def test_text_is_said_as_it_is(url: str) -> None:
    said = "Hello there, my friend. How are you today?"
    reply = client_of(url).chat.completions.create(
        model="parrot",
        messages=[
            {"role": "system", "content": "Answer in French."},
            {"role": "user", "content": "Earlier."},
            {"role": "assistant", "content": "Earlier."},
            {"role": "user", "content": said},
        ],
    )
    assert reply.choices[0].message.content == said
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (8, 8)


def test_a_limit_and_a_stop_string_end_what_is_said(url: str) -> None:
    ask = client_of(url).chat.completions.create
    messages = [{"role": "user", "content": "one two three four five"}]
    short = ask(model="parrot", messages=messages, max_tokens=2).choices[0]
    assert (short.message.content, short.finish_reason) == ("one two", "length")
    stopped = ask(model="parrot", messages=messages, stop=" three").choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("one two", "stop")


def test_speech_and_transcription(url: str) -> None:
    client = client_of(url)
    body = {"model": "parrot", "input": SENTENCES[1], "response_format": "wav"}
    wav = client.audio.speech.create(**body, voice="low").content
    sound, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
    assert word_errors(written_down(sound, rate), SENTENCES[1]) <= 1
    again = client.audio.speech.create(**body, voice="low").content
    assert again == wav
    heard = client.audio.transcriptions.create(model="parrot", file=("a.wav", wav), language="en")
    assert word_errors(heard.text, SENTENCES[1]) <= 1


def test_silence_is_answered_with_nothing(url: str) -> None:
    reply = by_chat(url, np.zeros(HEARD_HZ, np.float32), HEARD_HZ)
    assert (reply.text, reply.sound.size) == ("", 0)


def test_eight_at_once_each_get_their_own_words(url: str) -> None:
    sounds = [a_low_voice(sentence) for sentence in SENTENCES[:8]]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda sound: by_chat(url, sound, HEARD_HZ), sounds))
    for reply, sentence in zip(replies, SENTENCES, strict=False):
        assert word_errors(reply.text, sentence) <= 2
        assert word_errors(written_down(reply.sound, SPOKEN_HZ), reply.text) <= 2
