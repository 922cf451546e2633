"""Frame times and groups of pictures, from packets as demuxers hand them over."""

from dataclasses import dataclass
from fractions import Fraction

import pytest

from omni_core.errors import MediaError
from omni_core.media.timeline import Timeline, sample_times

MS = Fraction(1, 1_000)


@dataclass(frozen=True)
class Packet:
    pts: int | None
    is_keyframe: bool = False
    duration: int | None = None
    is_discard: bool = False


def timeline(*packets: Packet, tick_s: Fraction = MS, fps: int | None = None) -> Timeline:
    nominal = None if fps is None else Fraction(fps)
    return Timeline.from_packets(packets, tick_s=tick_s, nominal_fps=nominal)


def test_times_are_in_order_of_presentation() -> None:
    """I P B B as an encoder with B frames stores them."""
    found = timeline(Packet(0, True), Packet(120), Packet(40), Packet(80), fps=25)
    assert found.times == (0, 40, 80, 120)
    assert found.duration == Fraction(4, 25)
    assert found.groups_for(found.times) == {0}


def test_closed_groups_are_needed_alone() -> None:
    found = timeline(*(Packet(40 * i, is_keyframe=i % 5 == 0) for i in range(15)))
    assert found.groups_for([0, 160]) == {0}
    assert found.groups_for([400]) == {2}
    assert found.groups_for([200, 560]) == {1, 2}


def test_a_frame_shown_before_its_keyframe_needs_the_group_before() -> None:
    """I P | I b b P: the two b refer to the P before their I."""
    found = timeline(
        Packet(0, True), Packet(40), Packet(160, True), Packet(80), Packet(120), Packet(200)
    )
    assert found.groups_for([80]) == {0, 1}
    assert found.groups_for([160]) == {1}
    assert found.groups_for([200]) == {1}


def test_packets_not_to_be_shown_are_left_out() -> None:
    found = timeline(Packet(-40, True, is_discard=True), Packet(0), Packet(40), fps=25)
    assert found.times == (0, 40)
    assert found.groups_for([0, 40]) == {0}


def test_rounded_times_give_the_exact_duration() -> None:
    found = timeline(*(Packet(round(i * 1_000 / 30), True, 33) for i in range(30)), fps=30)
    assert found.duration == 1
    assert sample_times(found, 30, 100) == list(found.times)
    assert sample_times(found, 15, 100) == list(found.times[::2])


def test_the_last_frame_lasts_as_long_as_it_says() -> None:
    found = timeline(Packet(0, True, 100), Packet(100, True, 900))
    assert found.duration == 1
    assert sample_times(found, 4, 100) == [0, 100, 100, 100]


def test_without_a_duration_the_last_frame_lasts_as_long_as_the_others() -> None:
    assert timeline(Packet(0, True), Packet(200), Packet(400)).duration == Fraction(3, 5)


def test_packets_without_times_are_numbered() -> None:
    found = timeline(Packet(None, True), Packet(None), Packet(None, True), Packet(None), fps=2)
    assert found.duration == 2
    assert sample_times(found, 1, 100) == [0, 2]
    assert found.groups_for([0, 2]) == {0}
    assert not found.starts_group(2, is_keyframe=True)
    assert found.time_of(None, 3) == 3


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_samples_lie_evenly_and_never_after_their_time(count: int) -> None:
    found = timeline(*(Packet(40 * i, True) for i in range(100)), fps=25)
    times = sample_times(found, 1_000, count)
    for i, time in enumerate(times):
        assert 0 <= i * 4_000 / count - time < 40


def test_no_frames() -> None:
    for packets in ((), (Packet(0, True, is_discard=True),)):
        with pytest.raises(MediaError, match="no frames"):
            timeline(*packets)
