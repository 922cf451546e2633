"""HeadStart: when the Thinker rests, and for how long."""

from __future__ import annotations

import pytest

from omni_core.testing.clock import VirtualClock
from omni_qwen3.head_start import LEAD_TOKENS, LONGEST_REST_S, REST_PER_TOKEN, HeadStart

STEP_S = 0.002
REST_S = REST_PER_TOKEN * (LEAD_TOKENS - 1) * STEP_S


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(100.0)


def say(
    head_start: HeadStart, clock: VirtualClock, name: str, tokens: range, step_s: float
) -> None:
    for index in tokens:
        clock.now_s += step_s
        head_start.left(name, index)


def test_it_rests_after_the_lead_for_as_long_as_some_tokens_take(clock: VirtualClock) -> None:
    head_start = HeadStart(clock)
    say(head_start, clock, "a", range(LEAD_TOKENS - 1), STEP_S)
    assert head_start.rest_s() == 0
    say(head_start, clock, "a", range(LEAD_TOKENS - 1, LEAD_TOKENS), STEP_S)
    assert head_start.rest_s() == pytest.approx(REST_S)
    clock.now_s += REST_S / 2
    assert head_start.rest_s() == pytest.approx(REST_S / 2)
    clock.now_s += REST_S
    assert head_start.rest_s() == 0


def test_a_reply_has_one_rest_and_none_is_long(clock: VirtualClock) -> None:
    head_start = HeadStart(clock)
    say(head_start, clock, "a", range(LEAD_TOKENS), 1.0)
    assert head_start.rest_s() == pytest.approx(LONGEST_REST_S)
    clock.now_s += LONGEST_REST_S
    say(head_start, clock, "a", range(LEAD_TOKENS, 10), STEP_S)
    assert head_start.rest_s() == 0


def test_a_shorter_rest_does_not_end_a_longer_one(clock: VirtualClock) -> None:
    head_start = HeadStart(clock)
    say(head_start, clock, "a", range(LEAD_TOKENS), STEP_S)
    say(head_start, clock, "b", range(LEAD_TOKENS), STEP_S / 100)
    assert head_start.rest_s() == pytest.approx(REST_S - LEAD_TOKENS * STEP_S / 100)


def test_what_a_reply_left_behind_is_forgotten(clock: VirtualClock) -> None:
    head_start = HeadStart(clock)
    say(head_start, clock, "a", range(LEAD_TOKENS - 1), STEP_S)
    head_start.forget("a")
    head_start.forget("never there")
    say(head_start, clock, "a", range(LEAD_TOKENS), STEP_S)
    assert head_start.rest_s() == pytest.approx(REST_S)
