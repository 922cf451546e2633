"""Sums over the media of one request: exact, and refused with the sum that is passed."""

import pytest

from omni_core.errors import MediaError, PayloadTooLargeError
from omni_core.media import MediaLimits, RequestBudget

LIMITS = MediaLimits(
    request_max_bytes=100,
    request_max_pixels=1_000,
    request_max_audio_seconds=5,
    fetch_timeout_s=20,
    request_fetch_timeout_s=30,
)


def test_sums_are_counted_to_the_last_unit() -> None:
    budget = RequestBudget(LIMITS)
    for n in (60, 40):
        budget.add_bytes(n)
        budget.add_pixels(10 * n)
        budget.add_audio(n / 20)
    with pytest.raises(PayloadTooLargeError, match="100 bytes together") as refusal:
        budget.add_bytes(1)
    assert refusal.value.status == 413
    with pytest.raises(MediaError, match="1000 pixels together"):
        budget.add_pixels(1)
    with pytest.raises(MediaError, match="5 s together"):
        budget.add_audio(0.001)


def test_items_share_the_time_that_decoding_may_take() -> None:
    now_s = iter([100.0, 100.0, 390.0, 400.0])
    budget = RequestBudget(LIMITS, clock=lambda: next(now_s))
    assert budget.decoding() == LIMITS
    assert budget.decoding().decode_timeout_s == 10
    with pytest.raises(MediaError, match="the limit of 300 s"):
        budget.decoding()


def test_urls_share_the_time_of_their_request() -> None:
    now_s = iter([100.0, 105.0, 118.0, 130.0])
    budget = RequestBudget(LIMITS, clock=lambda: next(now_s))
    assert budget.fetching() == LIMITS
    assert budget.fetching().fetch_timeout_s == 12
    with pytest.raises(MediaError, match="within 30 s together"):
        budget.fetching()
