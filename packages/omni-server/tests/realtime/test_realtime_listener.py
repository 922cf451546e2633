"""From samples to turns: nothing of a turn is lost, and nothing is in two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_server.realtime.formats import AudioFormat
from omni_server.realtime.listener import Listener, TurnBegan, TurnEnded
from omni_server.realtime.settings import TurnDetection

CHUNK = 120
"""Samples in a piece: 5 ms."""
PCM = AudioFormat("audio/pcm", 24_000)
QUICK = TurnDetection(silence_duration_ms=64, prefix_padding_ms=30)


@pytest.fixture
def listening(sounds: Any) -> Any:
    def make(audio_format: AudioFormat = PCM, settings: Any = QUICK, most_s: float = 60) -> Any:
        listener = Listener(audio_format, sounds.LoudIsSpeech(), sounds.Inline(), most_s)
        listener.detect(settings)
        return listener

    return make


async def heard(listener: Listener, samples: Any, step: int) -> list[Any]:
    data = samples.astype("<i2").tobytes()
    pieces = (data[start : start + 2 * step] for start in range(0, len(data), 2 * step))
    return [one for piece in pieces async for one in listener.push(piece)]


def spliced(sounds: Any, offset: int) -> Any:
    """Two utterances after `offset` samples; the second begins as soon as the first is a turn."""
    first, second = sounds.speech(0.128), sounds.speech(0.16, seed=1)
    parts = (sounds.silence(0.1)[:offset], first, sounds.silence(0.1), second)
    return np.concatenate([*parts, sounds.silence(0.2)]).astype(np.int16), first, second


async def test_no_sample_is_lost_wherever_turns_are_spliced(listening, sounds):
    for offset in range(CHUNK):
        sent, first, second = spliced(sounds, offset)
        began, ended, began_again, ended_again = await heard(listening(), sent, CHUNK)
        assert isinstance(began, TurnBegan)
        assert isinstance(began_again, TurnBegan)
        for begin, end in ((began, ended), (began_again, ended_again)):
            assert isinstance(end, TurnEnded)
            whole = sent[begin.start_ms * 24 : end.end_ms * 24]
            assert np.array_equal(end.samples, whole)
        assert began_again.start_ms >= ended.end_ms
        for samples, turn in ((first, ended.samples), (second, ended_again.samples)):
            place = np.flatnonzero(turn == samples[0])
            assert any(np.array_equal(turn[p : p + len(samples)], samples) for p in place)


@pytest.mark.parametrize("step", [1, 7, 480, 100_000])
async def test_how_sound_is_cut_into_pieces_changes_nothing(listening, sounds, step):
    sent, *_ = spliced(sounds, 100)
    whole = await heard(listening(), sent, 480)
    assert str(await heard(listening(), sent, step)) == str(whole)


async def test_bytes_may_be_cut_within_a_sample(listening, sounds):
    sent, *_ = spliced(sounds, 100)
    data, listener, found = sent.tobytes(), listening(), []
    for start in range(0, len(data), 101):
        found += [one async for one in listener.push(data[start : start + 101])]
    assert str(found) == str(await heard(listening(), sent, 480))


@pytest.mark.parametrize(
    "audio_format", [AudioFormat("audio/pcm", 16_000), AudioFormat("audio/pcmu", 8_000)]
)
async def test_places_are_right_at_every_rate(listening, sounds, audio_format):
    rate = audio_format.rate
    parts = (sounds.silence(0.32, rate), sounds.speech(0.32, rate), sounds.silence(0.3, rate))
    if audio_format.name == "audio/pcmu":
        data = np.concatenate([np.full(len(p), 0xFF if i != 1 else 0x90, np.uint8)
                               for i, p in enumerate(parts)]).tobytes()  # fmt: skip
    else:
        data = np.concatenate(parts).astype("<i2").tobytes()
    found = [one async for one in listening(audio_format).push(data)]
    assert found[0] == TurnBegan(320 - 30)
    assert found[1].end_ms == 640 + 64
    assert len(found[1].samples) == (704 - 290) * rate // 1000


async def test_padding_reaches_no_further_than_the_last_turn(listening, sounds):
    padded = TurnDetection(silence_duration_ms=64, prefix_padding_ms=5_000)
    sent, *_ = spliced(sounds, 240)
    _, ended, began_again, _ = await heard(listening(settings=padded), sent, 240)
    assert began_again.start_ms == ended.end_ms
    assert np.array_equal(ended.samples, sent[: ended.end_ms * 24])


async def test_silence_is_not_kept(listening, sounds):
    listener = listening()
    for _ in range(60):
        assert await heard(listener, sounds.silence(1.0), 24_000) == []
        assert listener.waiting_s < 0.2
    assert listener.now_ms == 60_000
    assert len(await heard(listener, spliced(sounds, 0)[0], CHUNK)) == 4


async def test_a_click_is_no_speech(listening, sounds):
    click = np.concatenate([sounds.silence(0.2), sounds.speech(0.03), sounds.silence(0.5)])
    assert await heard(listening(), click, 480) == []


async def test_speech_without_end_is_cut_into_turns_that_join(listening, sounds):
    sent = sounds.speech(1.5)
    listener = listening(most_s=0.5)
    turns = [one for one in await heard(listener, sent, 480) if isinstance(one, TurnEnded)]
    assert len(turns) >= 2
    joined = np.concatenate([*(turn.samples for turn in turns), listener.commit()])
    assert np.array_equal(joined, sent)


@pytest.mark.parametrize("padding_ms", [0, 100, 333, 60_000])
@pytest.mark.parametrize("offset", [0, 5_000, 20_000])
async def test_a_turn_is_bounded_with_its_padding(listening, sounds, padding_ms, offset):
    settings = TurnDetection(silence_duration_ms=64, prefix_padding_ms=padding_ms)
    sent = np.concatenate([sounds.silence(1.0)[:offset], sounds.speech(2.0)]).astype(np.int16)
    listener = listening(settings=settings, most_s=0.5)
    found = await heard(listener, sent, 480)
    turns = [one for one in found if isinstance(one, TurnEnded)]
    assert max(len(turn.samples) for turn in turns) <= 12_000
    assert min(len(turn.samples) for turn in turns) >= 5_000
    joined = np.concatenate([*(turn.samples for turn in turns), listener.commit()])
    assert np.array_equal(joined, sent[found[0].start_ms * 24 :])
    assert found[0].start_ms * 24 <= offset


async def test_a_commit_in_the_middle_splits_a_turn(listening, sounds):
    listener = listening()
    sent = np.concatenate([sounds.speech(0.3), sounds.silence(0.2)]).astype(np.int16)
    await heard(listener, sent[:5_000], 480)
    assert listener.speaks
    begun = listener.commit()
    assert not listener.speaks
    rest = await heard(listener, sent[5_000:], 480)
    assert np.array_equal(np.concatenate([begun, rest[-1].samples]), sent[: rest[-1].end_ms * 24])


async def test_without_a_detector_all_is_kept_until_it_is_committed(listening, sounds):
    listener = listening(settings=None)
    sent = sounds.speech(2.0)
    assert await heard(listener, sent, 777) == []
    assert listener.waiting_s == 2.0
    assert np.array_equal(listener.commit(), sent)
    assert listener.waiting_s == 0
