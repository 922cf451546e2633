"""When the frames of a video are shown, and which of them to keep.

Knows packet times and groups of pictures. Knows nothing of codecs or pixels. Times are integers in
ticks of the stream's time base, or plain frame numbers where a container stores no times.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, TypeAlias

from omni_core.errors import MediaError

_DEFAULT_FPS = Fraction(25)
"""For a single frame without a duration, as FFmpeg assumes for image sequences."""


class TimedPacket(Protocol):
    """What is read of a demuxed packet."""

    @property
    def pts(self) -> int | None:
        """When the frame is shown, in ticks."""

    @property
    def duration(self) -> int | None:
        """How long it is shown, in ticks; 0 or None when unknown."""

    @property
    def is_keyframe(self) -> bool:
        """Whether decoding may start here."""

    @property
    def is_discard(self) -> bool:
        """Whether the container says not to show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The times of all frames of one video stream."""

    times: tuple[int, ...]
    """Sorted and distinct."""
    tick_s: Fraction
    duration: Fraction
    """In seconds, the last frame's own included."""
    has_times: bool
    """False when `times` are frame numbers."""
    group_of: dict[int, int]
    """Time to number of its group of pictures, in decoding order."""
    group_starts: tuple[int, ...]
    """Time of the keyframe of each group."""

    @property
    def duration_s(self) -> float:
        """`duration` as a float."""
        return float(self.duration)

    @classmethod
    def from_packets(
        cls, packets: Iterable[TimedPacket], *, tick_s: Fraction, nominal_fps: Fraction | None
    ) -> Timeline:
        """Read packets in decoding order. Raises MediaError when there are none."""
        times: list[int] = []
        last_ticks: dict[int, int] = {}
        group_of: dict[int, int] = {}
        group_starts: list[int] = []
        n_shown = 0
        complete = True
        for number, packet in enumerate(packets):
            complete = complete and packet.pts is not None
            time = number if packet.pts is None else packet.pts
            if number == 0 or packet.is_keyframe:
                group_starts.append(time)
            if packet.is_discard:
                continue
            n_shown += 1
            times.append(time)
            last_ticks[time] = packet.duration or 0
            group_of[time] = len(group_starts) - 1
        if not n_shown:
            raise MediaError("The video holds no frames.")
        if not complete:
            return cls._numbered(n_shown, nominal_fps or _DEFAULT_FPS)
        shown = tuple(sorted(group_of))
        return cls(
            times=shown,
            tick_s=tick_s,
            duration=_duration(shown, last_ticks[shown[-1]], tick_s, nominal_fps),
            has_times=True,
            group_of=group_of,
            group_starts=tuple(group_starts),
        )

    @classmethod
    def _numbered(cls, n_frames: int, fps: Fraction) -> Timeline:
        """A constant-rate timeline for containers without times, decoded from end to end."""
        times = tuple(range(n_frames))
        return cls(
            times=times,
            tick_s=1 / fps,
            duration=n_frames / fps,
            has_times=False,
            group_of=dict.fromkeys(times, 0),
            group_starts=(0,),
        )

    def starts_group(self, number: int, is_keyframe: bool) -> bool:
        """Whether packet `number`, in decoding order, opens a group after the first."""
        return self.has_times and is_keyframe and number > 0

    def groups_for(self, wanted: Iterable[int]) -> set[int]:
        """Groups to decode for these times.

        A frame shown before its group's keyframe (an open GOP) needs the previous group as well.
        """
        needed = set()
        for time in wanted:
            group = self.group_of[time]
            needed.add(group)
            if group and time < self.group_starts[group]:
                needed.add(group - 1)
        return needed

    def time_of(self, pts: int | None, number: int) -> int | None:
        """Time of a decoded frame: its `pts`, or its number where times are numbers."""
        return pts if self.has_times else number


FrameChoice: TypeAlias = Callable[[Timeline, float, int], list[int]]
"""(timeline, frames a second, most frames) to times of it, in order, repeats possible."""


def sample_times(timeline: Timeline, fps: float, max_frames: int) -> list[int]:
    """Times of the frames on screen at even steps over the clip, in order, repeats possible.

    The count is the duration times `fps`, rounded, and at most `max_frames`.
    """
    by_rate = max(1, math.floor(timeline.duration * Fraction(fps) + Fraction(1, 2)))
    count = min(by_rate, max_frames)
    step = timeline.duration / count / timeline.tick_s
    slack = _rounding_slack(timeline)
    first = timeline.times[0]
    return [
        timeline.times[bisect.bisect_right(timeline.times, first + i * step + slack) - 1]
        for i in range(count)
    ]


def _rounding_slack(timeline: Timeline) -> Fraction:
    """Ticks by which stored times may be late: containers round them to their time base.

    Where a frame lasts a whole number of ticks there is nothing to round.
    """
    spacing = timeline.duration / len(timeline.times) / timeline.tick_s
    return Fraction(0) if spacing.denominator == 1 else min(Fraction(2), spacing / 4)


def _duration(
    times: tuple[int, ...], last_ticks: int, tick_s: Fraction, nominal_fps: Fraction | None
) -> Fraction:
    """Seconds from the first frame to the end of the last; exact where the rate is constant."""
    span = times[-1] - times[0]
    if not last_ticks and len(times) > 1:
        last_ticks = round(span / (len(times) - 1))
    measured = (span + last_ticks) * tick_s
    nominal = len(times) / (nominal_fps or _DEFAULT_FPS)
    if not last_ticks or (nominal_fps and abs(measured - nominal) <= 2 * tick_s):
        return nominal
    return measured
