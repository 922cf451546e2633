"""Where somebody begins and ends to speak, from how likely each moment is speech.

Knows probabilities of windows of 32 ms and the settings of OpenAI's server_vad. Knows no sound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from omni_server.realtime.settings import TurnDetection

WINDOW_MS: Final = 32
SPEECH_WINDOWS: Final = 3
"""So many in a row are speech: a click is shorter."""
_HYSTERESIS: Final = 0.15
"""Speech goes on until it is so much less likely than it had to be to begin, as in silero-vad."""
_LEAST_THRESHOLD: Final = 0.01


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """In the window of this number."""

    window: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """Before the window of this number; the silence that shows it comes before it as well."""

    window: int


Boundary: TypeAlias = SpeechStarted | SpeechStopped


class TurnDetector:
    """Follows one stream, window by window."""

    def __init__(self, settings: TurnDetection, most_ms: int) -> None:
        """Speech that lasts for `most_ms`, the padding before it included, is a turn, though it may
        go on."""
        self.settings = settings
        self.speaks = False
        self.windows = 0
        """So many have been seen."""
        self._most_ms = most_ms
        self._last = 0
        self._likely = 0
        self._unlikely = 0
        self._began = 0

    @property
    def maybe_began(self) -> int:
        """The first window that may yet turn out to be the beginning of speech."""
        return self._began if self.speaks else self.windows - self._likely

    @property
    def padding_ms(self) -> int:
        """Of what comes before speech: as asked for, but leaving half of a turn to the speech."""
        return min(self.settings.prefix_padding_ms, self._most_ms // 2)

    def push(self, probability: float) -> Boundary | None:
        """Take the next window; what it shows."""
        self.windows += 1
        return self._while_speech(probability) if self.speaks else self._before(probability)

    def _before(self, probability: float) -> SpeechStarted | None:
        self._likely = self._likely + 1 if probability >= self.settings.threshold else 0
        if self._likely < SPEECH_WINDOWS:
            return None
        self.speaks, self._unlikely = True, 0
        self._began = self.windows - self._likely
        windows = (self._most_ms - self.padding_ms) // WINDOW_MS
        self._last = self._began + max(windows, SPEECH_WINDOWS)
        return SpeechStarted(self._began)

    def _while_speech(self, probability: float) -> SpeechStopped | None:
        least = max(self.settings.threshold - _HYSTERESIS, _LEAST_THRESHOLD)
        self._unlikely = self._unlikely + 1 if probability < least else 0
        is_silent = self._unlikely * WINDOW_MS >= max(self.settings.silence_duration_ms, 1)
        if not is_silent and self.windows < self._last:
            return None
        self.stop()
        return SpeechStopped(self.windows)

    def stop(self) -> None:
        """End the turn, if there is one."""
        self.speaks, self._likely, self._unlikely = False, 0, 0
