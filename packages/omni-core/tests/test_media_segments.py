"""Where long sound is cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.media.segments import Segment, frame_levels, split_at_pauses
from omni_core.types import FloatArray

RATE = 8_000
RNG = np.random.default_rng(0)


def noise(seconds: float, loud: float) -> FloatArray:
    return (loud * RNG.standard_normal(round(seconds * RATE))).astype("f4")


def cuts(*parts: FloatArray, min_s: float = 5, max_s: float = 30, **more: float) -> list[float]:
    samples = np.concatenate(parts)
    found = split_at_pauses(samples, RATE, min_s=min_s, max_s=max_s, **more)
    assert found[0].start == 0
    assert found[-1].stop == len(samples)
    assert all(one.stop == two.start for one, two in pairwise(found))
    return [segment.stop / RATE for segment in found[:-1]]


@pytest.mark.parametrize("n", [1, 159, 160, 161, 239_999, 240_000])
def test_short_sound_is_one_segment(n: int) -> None:
    samples = np.ones(n, "f4")
    assert split_at_pauses(samples, RATE, min_s=5, max_s=30) == [Segment(0, n)]


@pytest.mark.parametrize("floor", [0.0, 1e-5, 3e-3, 0.03])
def test_cuts_are_in_pauses_whatever_the_noise(floor: float) -> None:
    """The latest in reach of those that are long, not the longest, and never a short one."""
    speech, long, short = noise(6, 0.2), noise(0.6, floor), noise(0.1, floor)
    parts = (speech, long, speech, noise(0.8, floor), speech, long, speech, short, speech)
    assert cuts(*parts) == [pytest.approx(19.7, abs=0.1)]


def test_a_change_of_loudness_moves_the_floor() -> None:
    quiet = [part for _ in range(8) for part in (noise(4, 0.002), noise(0.4, 0.0001))]
    loud = [part for _ in range(8) for part in (noise(4, 0.4), noise(0.4, 0.01))]
    for cut in cuts(*quiet, *loud):
        assert 4 < cut % 4.4 < 4.4


def test_pauses_shorter_than_asked_for_are_none() -> None:
    parts = [part for _ in range(12) for part in (noise(3, 0.2), noise(0.3, 0.001))]
    assert [cut % 3.3 > 3 for cut in cuts(*parts)] == [True]
    late = noise(1.0, 0.001)
    assert cuts(
        noise(12, 0.2), noise(0.3, 0.001), noise(8, 0.2), late, noise(12, 0.2), min_pause_s=0.5
    ) == [pytest.approx(20.8, abs=0.05)]


def test_without_a_pause_the_quietest_stretch_is_cut() -> None:
    samples = noise(40, 0.2)
    samples[22 * RATE : 22 * RATE + 2_400] *= 0.6
    assert cuts(samples) == [pytest.approx(22.15, abs=0.1)]


def test_silence_is_cut_late() -> None:
    [first, *_] = cuts(np.zeros(70 * RATE, "f4"))
    assert first > 29


def test_levels_are_decibels_of_full_scale() -> None:
    samples = np.concatenate([np.ones(20), np.full(20, 0.1), np.zeros(20), [0.01]]).astype("f4")
    np.testing.assert_allclose(frame_levels(samples, 20), [0, -20, -100, -40], atol=1e-4)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9_000), st.sampled_from([0.0, 0.001, 0.3])), min_size=1),
    st.sampled_from([7_999, 8_000, 16_000]),
)
def test_lengths_are_within_bounds(parts: list[tuple[int, float]], rate: int) -> None:
    samples = np.concatenate([np.full(n, loud, "f4") for n, loud in parts])
    found = split_at_pauses(samples, rate, min_s=0.25, max_s=0.6)
    lengths = [segment.stop - segment.start for segment in found]
    assert sum(lengths) == len(samples)
    assert max(lengths) <= 0.6 * rate + 1
    if len(found) > 1:
        assert min(lengths) >= 0.25 * rate - 200
