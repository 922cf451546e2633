"""Silence at the end of utterances, beside the authors' and where ours differs."""

from __future__ import annotations

import numpy as np
import pytest
from golden_files import arrays
from hypothesis import given
from hypothesis import strategies as st

from omni_core.types import FloatArray
from omni_ming.silence import SilenceTrim

RATE = 44_100
FRAME = RATE // 10


def trimmed(sound: FloatArray, size: int, **options: bool) -> list[FloatArray]:
    trim, parts = SilenceTrim(RATE, **options), range(0, len(sound), size)
    return [trim.push(sound[at : at + size], last=at + size >= len(sound)) for at in parts]


@pytest.mark.parametrize(("name", "size"), [("one", 69_000), ("c14112", 14_112), ("c5000", 5_000)])
def test_lengths_are_the_authors(name: str, size: int) -> None:
    sound = arrays("silence")["wave"].astype(np.float32)
    made = trimmed(sound, size, drops_rest=True)
    assert [len(part) for part in made] == arrays("silence")[f"{name}.out_lengths"].tolist()
    silent = np.zeros(69_000, dtype=np.float32)
    kept = sum(map(len, trimmed(silent, size, drops_rest=True)))
    assert kept == arrays("silence")["all_silent_out_len"]


@given(st.integers(1, 40_000), st.integers(0, 60_000), st.integers(500, 20_000))
def test_no_speech_is_lost_and_silence_is_bounded(spoken: int, silent: int, size: int) -> None:
    speech = np.full(spoken, 0.5, dtype=np.float32)
    sound = np.concatenate([speech, np.zeros(silent, dtype=np.float32)])
    made = np.concatenate(trimmed(sound, size))
    assert np.array_equal(made, sound[: len(made)])
    assert spoken <= len(made) <= max(spoken + 4 * FRAME, 4 * FRAME)
