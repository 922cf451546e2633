"""A voice that says vowels: sound that a speech detector takes for speech, out of nothing.

A train of pulses through resonances at the formants of a vowel, after Klatt (1980), "Software for a
cascade/parallel formant synthesizer". Knows samples. Says no words.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from omni_core.types import FloatArray

FORMANTS: Final = {
    "a": ((730, 90), (1090, 110), (2440, 170)),
    "e": ((530, 70), (1840, 100), (2480, 150)),
    "i": ((270, 60), (2290, 100), (3010, 150)),
    "o": ((570, 80), (840, 90), (2410, 150)),
    "u": ((300, 60), (870, 90), (2240, 150)),
}
"""Of each vowel: frequencies and bandwidths, in Hz."""
VOWEL_S: Final = 0.18
_PITCH_HZ: Final = 120.0
_FADE_S: Final = 0.03


def say_vowels(vowels: str, rate: int = 16_000, seed: int = 0) -> FloatArray:
    """Mono samples (n,) at `rate` Hz, half of full scale: each letter of "aeiou" for `VOWEL_S`
    seconds. The same for the same seed."""
    rng = np.random.default_rng(seed)
    said = [_vowel(letter, rate, _PITCH_HZ * rng.uniform(0.9, 1.2), rng) for letter in vowels]
    return np.concatenate([np.zeros(0, np.float32), *said])


def _vowel(
    letter: str, rate: int, pitch_hz: float, rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    n = round(VOWEL_S * rate)
    melody = pitch_hz * (1 + 0.08 * np.sin(2 * np.pi * 2.1 * np.arange(n) / rate))
    cycles = np.floor(np.cumsum(melody) / rate)
    sound = (np.diff(cycles, prepend=0) > 0) + 0.01 * rng.standard_normal(n)
    for frequency, bandwidth in FORMANTS[letter]:
        sound = _resonance(sound, frequency, bandwidth, rate)
    place = np.arange(n)
    fade = np.minimum(1.0, np.minimum(place, place[::-1]) / (_FADE_S * rate))
    faded: npt.NDArray[np.float64] = sound * fade
    loudest = float(np.abs(faded).max())
    return (0.5 / loudest * faded).astype(np.float32)


def _resonance(
    sound: npt.NDArray[np.float64], frequency: float, bandwidth: float, rate: int
) -> npt.NDArray[np.float64]:
    """A filter with two poles."""
    radius = np.exp(-np.pi * bandwidth / rate)
    first = 2 * radius * np.cos(2 * np.pi * frequency / rate)
    second = -radius * radius
    before = last = 0.0
    out = np.zeros(len(sound))
    for index, sample in enumerate(sound.tolist()):
        before, last = last, sample + first * last + second * before
        out[index] = last
    return out
