"""Long sound cut into segments, between words where there is a pause.

Knows how loud samples are and nothing of speech. Pure: samples in, ranges of samples out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_core.types import FloatArray

FRAME_S = 0.02
_LEAST_POWER = 1e-10
_FLOOR_PERCENTILE, _SPEECH_PERCENTILE = 1.0, 95.0
_QUIET_SHARE = 0.3
"""A frame is quiet that is less than so far up from the floor of its surroundings to their speech,
in decibels."""
_LEAST_RANGE_DB = 6.0
"""Surroundings of less range than this have no pauses: they are all speech, or all noise."""
_STRETCH_FRAMES = 10
"""Without a pause, the quietest stretch of so many frames is where a cut hurts least."""

Levels = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Segment:
    """Samples `start` up to `stop`, which is not part of it."""

    start: int
    stop: int


def split_at_pauses(
    samples: FloatArray,
    sample_rate: int,
    *,
    min_s: float,
    max_s: float,
    min_pause_s: float = 0.2,
) -> list[Segment]:
    """Cut samples (n,), n > 0, into neighbouring segments of `min_s` to `max_s` that cover all.

    Sound of at most `max_s` is one segment, however short. Each cut is in the middle of a pause of
    at least `min_pause_s`: the latest within reach that is at least half as long as the longest;
    where there is none, it is in the quietest stretch of the second half within reach. `min_s` may
    be at most half of `max_s`. Quiet is relative: to the softest and the loudest of the sound
    within reach.
    """
    frame = max(1, round(FRAME_S * sample_rate))
    levels = frame_levels(samples, frame)
    shortest, longest = round(min_s * sample_rate) // frame, round(max_s * sample_rate) // frame
    pause = max(1, round(min_pause_s * sample_rate) // frame)
    cuts = [0]
    while len(samples) - cuts[-1] * frame > longest * frame:
        left = len(levels) - cuts[-1]
        reach = levels[cuts[-1] : cuts[-1] + min(longest, left - shortest)]
        cuts.append(cuts[-1] + _cut(reach, shortest, pause))
    stops = [cut * frame for cut in cuts[1:]] + [len(samples)]
    return [Segment(cut * frame, stop) for cut, stop in zip(cuts, stops, strict=True)]


def frame_levels(samples: FloatArray, frame: int) -> Levels:
    """Loudness of each frame of `frame` samples, the last one maybe shorter: decibels of full
    scale."""
    whole = len(samples) - len(samples) % frame
    frames = samples[:whole].reshape(-1, frame)
    power: Levels = np.einsum("ij,ij->i", frames, frames, dtype=np.float64) / frame
    if whole < len(samples):
        power = np.append(power, np.square(samples[whole:], dtype=np.float64).mean())
    levels: Levels = 10 * np.log10(np.maximum(power, _LEAST_POWER))
    return levels


def _cut(reach: Levels, shortest: int, pause: int) -> int:
    """The frame at which to cut, at least `shortest` and at most all of `reach`."""
    pauses = [run for run in _pauses(reach, pause) if sum(run) // 2 >= shortest]
    if pauses:
        longest = max(stop - start for start, stop in pauses)
        start, stop = [(a, b) for a, b in pauses if 2 * (b - a) >= longest][-1]
        return (start + stop) // 2
    first = max(shortest, len(reach) // 2)
    stretch = min(_STRETCH_FRAMES, len(reach) - first)
    if stretch < 1:
        return len(reach)
    means = np.convolve(reach[first:], np.full(stretch, 1 / stretch), "valid")[::-1]
    latest = len(means) - 1 - int(means.argmin())
    return first + latest + stretch // 2


def _pauses(reach: Levels, pause: int) -> list[tuple[int, int]]:
    """(start, stop) of every run of at least `pause` quiet frames."""
    floor, speech = np.percentile(reach, (_FLOOR_PERCENTILE, _SPEECH_PERCENTILE))
    if speech - floor < _LEAST_RANGE_DB:
        return []
    quiet = reach < floor + _QUIET_SHARE * (speech - floor)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], quiet, [False])).astype(np.int8)))
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(start, stop) for start, stop in runs if stop - start >= pause]
