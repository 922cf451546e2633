"""Recordings of voices: what a model gets of one, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from omni_core.errors import MediaError, RequestCancelledError, RequestError
from omni_core.media import MediaLimits, load_audio, wav_bytes
from omni_core.media.voice import check_voice_text, load_voice
from omni_core.specs import VoiceCloning
from omni_core.types import FloatArray

LIMITS = MediaLimits()
WANTED = VoiceCloning(sample_rates=(24_000, 16_000), min_s=1, max_s=3, max_characters=5)
RATE = 24_000


def hum(seconds: float, loud: float = 0.3) -> FloatArray:
    times = np.arange(round(seconds * RATE)) / RATE
    return (loud * np.sin(1000 * times)).astype(np.float32)


def test_it_comes_at_each_rate_that_the_model_hears() -> None:
    file = wav_bytes(hum(1.5), RATE)
    first, second = load_voice(file, WANTED, LIMITS)
    np.testing.assert_array_equal(first, load_audio(file, LIMITS, sample_rate=24_000))
    np.testing.assert_array_equal(second, load_audio(file, LIMITS, sample_rate=16_000))


@pytest.mark.parametrize("seconds", [1.0, 3.0])
def test_the_bounds_themselves_are_within(seconds: float) -> None:
    sounds = load_voice(wav_bytes(hum(seconds), RATE), WANTED, LIMITS)
    assert [len(sound) for sound in sounds] == [round(seconds * r) for r in WANTED.sample_rates]


REFUSED = {
    "short": (hum(0.9), "lasts 0.90 s; a voice takes 1 to 3 s"),
    "long": (hum(3.01), "limit of 3 s"),
    "faint": (hum(2, loud=1e-3), "0.0 s of the recording are not silent"),
    "mostly silent": (np.concatenate([hum(0.5), hum(2, loud=0)]), "0.5 s of the recording"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_voice_can_be_made_of_is_refused(case: str) -> None:
    sound, words = REFUSED[case]
    with pytest.raises(MediaError, match=words):
        load_voice(wav_bytes(sound, RATE), WANTED, LIMITS)


def test_an_operator_may_allow_less_than_the_model_does() -> None:
    with pytest.raises(MediaError, match=r"limit of 1\.5 s"):
        load_voice(wav_bytes(hum(2), RATE), WANTED, replace(LIMITS, max_audio_seconds=1.5))


def test_nobody_decodes_for_those_who_have_left() -> None:
    with pytest.raises(RequestCancelledError):
        load_voice(wav_bytes(hum(2), RATE), WANTED, LIMITS, stop=lambda: True)


def test_a_text_is_bounded() -> None:
    check_voice_text("Hello", WANTED, "ref_text")
    with pytest.raises(RequestError, match="6 characters") as refused:
        check_voice_text("Hello!", WANTED, "ref_text")
    assert refused.value.param == "ref_text"
