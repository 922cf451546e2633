"""When the frames of a streamed reply are decoded: the first at once, later ones in larger chunks.

Knows frames, seconds of audio and time. Knows nothing of codecs, queues or requests.

A chunk waits until it has its size or the reply has ended, but never longer than the listener has
audio left: a source that is slower than playback is passed on as it comes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """Sizes of chunks: the initial one, doubled until it reaches the steady one."""

    initial_frames: int = 1
    steady_frames: int = 8
    margin_s: float = 0.04
    """How long before the listener runs out of audio a chunk goes as it is."""

    def __post_init__(self) -> None:
        if not 1 <= self.initial_frames <= self.steady_frames:
            raise ValueError(
                f"initial_frames ({self.initial_frames}) must be at least 1 and at most "
                f"steady_frames ({self.steady_frames})"
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """All sizes, rising."""
        sizes = [self.initial_frames]
        while sizes[-1] < self.steady_frames:
            sizes.append(min(2 * sizes[-1], self.steady_frames))
        return tuple(sizes)

    def largest(self, frames: int) -> int:
        """The largest size that so many frames fill; 0 if none."""
        return max((size for size in self.sizes if size <= frames), default=0)

    def after(self, frames: int) -> int:
        """The size that follows a chunk of so many frames."""
        return min((size for size in self.sizes if size > frames), default=self.steady_frames)


@dataclass(slots=True)
class Pace:
    """How far one reply is in its cadence, and how far its listener."""

    cadence: Cadence
    size: int = field(init=False)
    """Frames the next chunk waits for."""
    audio_until_s: float | None = None
    """When a listener who plays without pause has heard everything; None before the first audio."""

    def __post_init__(self) -> None:
        self.size = self.cadence.initial_frames

    @property
    def wake_s(self) -> float | None:
        """When frames that wait go whatever their number; None before the first audio."""
        return None if self.audio_until_s is None else self.audio_until_s - self.cadence.margin_s

    def due(self, waiting: int, *, ended: bool, now_s: float) -> int:
        """How many of `waiting` frames to decode now; 0 is to wait for more."""
        if waiting >= self.size:
            return self.size if self.audio_until_s is None else self.cadence.largest(waiting)
        late = self.wake_s is not None and now_s >= self.wake_s
        return waiting if ended or late else 0

    def decoded(self, frames: int, *, audio_s: float, now_s: float) -> bool:
        """Note a chunk and the audio it gave; True if the listener had run out before."""
        self.size = self.cadence.after(frames)
        if not audio_s:
            return False
        ran_out = self.audio_until_s is not None and now_s > self.audio_until_s
        start_s = now_s if self.audio_until_s is None else max(now_s, self.audio_until_s)
        self.audio_until_s = start_s + audio_s
        return ran_out
