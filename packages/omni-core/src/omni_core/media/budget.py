"""What the media of one request may cost together, whatever each may cost alone.

Knows sums. Whoever loads an item says what it was; the first over a sum is refused, so at most one
item more than the sum is ever held.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from omni_core.errors import MediaError, PayloadTooLargeError
from omni_core.media.limits import MediaLimits


@dataclass(slots=True)
class RequestBudget:
    """The sums of one request, which begins to fetch, or to decode, now."""

    limits: MediaLimits
    clock: Callable[[], float] = time.monotonic
    n_bytes: int = field(default=0, init=False)
    pixels: int = field(default=0, init=False)
    audio_seconds: float = field(default=0.0, init=False)
    begun_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.begun_s = self.clock()

    def fetching(self) -> MediaLimits:
        """The limits of the next item to be fetched: no later than the request may fetch.

        Raises MediaError when that time has passed.
        """
        whole_s = self.limits.request_fetch_timeout_s
        left_s = self.begun_s + whole_s - self.clock()
        if left_s <= 0:
            raise MediaError(
                f"The media URLs of this request did not deliver within {whole_s:g} s together; "
                "send fewer, or the media as data: URLs."
            )
        return replace(self.limits, fetch_timeout_s=min(self.limits.fetch_timeout_s, left_s))

    def decoding(self) -> MediaLimits:
        """The limits of the next item to be decoded: no longer than the request may decode.

        Raises MediaError when that time has passed.
        """
        whole_s = self.limits.decode_timeout_s
        left_s = self.begun_s + whole_s - self.clock()
        if left_s <= 0:
            raise MediaError(
                f"Decoding the media of this request took longer than the limit of {whole_s:g} s; "
                "send fewer or shorter ones."
            )
        return replace(self.limits, decode_timeout_s=left_s)

    def add_bytes(self, n_bytes: int) -> None:
        """Count an item as it was sent; PayloadTooLargeError if all are too large together."""
        self.n_bytes += n_bytes
        if self.n_bytes > self.limits.request_max_bytes:
            raise PayloadTooLargeError(
                f"The media of this request are larger than {self.limits.request_max_bytes} bytes "
                "together, the limit; send fewer or smaller ones."
            )

    def add_pixels(self, pixels: int) -> None:
        """Count a decoded picture, or the kept frames of a video; MediaError if too many."""
        self.pixels += pixels
        if self.pixels > self.limits.request_max_pixels:
            raise MediaError(
                f"The pictures and frames of this request have more than "
                f"{self.limits.request_max_pixels} pixels together, the limit; send fewer or "
                "smaller ones."
            )

    def add_audio(self, seconds: float) -> None:
        """Count decoded sound; MediaError if there is too much."""
        self.audio_seconds += seconds
        if self.audio_seconds > self.limits.request_max_audio_seconds:
            raise MediaError(
                f"The sound of this request lasts longer than "
                f"{self.limits.request_max_audio_seconds:g} s together, the limit; send less."
            )
