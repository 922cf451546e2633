"""Silence at the end of an utterance: held back until something follows, and then shortened.

The rule is the authors': tenths of a second whose mean magnitude is small are silent, and three of
them stay at the end. They also drop what is left of a tenth, which may be speech; that is done here
only where asked for, to compare.
"""

from __future__ import annotations

import numpy as np

from omni_core.types import FloatArray

FRAME_S = 0.1
QUIET = 1e-3
"""Mean magnitude of a silent frame, at most."""
KEPT_FRAMES = 3


class SilenceTrim:
    """The end of one utterance."""

    def __init__(self, sample_rate: int, *, drops_rest: bool = False) -> None:
        """`drops_rest`: as the authors do with what is less than a frame at the end."""
        self._frame = round(FRAME_S * sample_rate)
        self._drops_rest = drops_rest
        self._begun = np.zeros(0, dtype=np.float32)
        """Less than a frame."""
        self._silent: list[FloatArray] = []

    def push(self, sound: FloatArray, *, last: bool) -> FloatArray:
        """Take more sound (n,); what is certain to be heard now, all of it if it was the `last`."""
        sound = np.concatenate([self._begun, sound])
        whole = len(sound) // self._frame * self._frame
        frames = [sound[at : at + self._frame] for at in range(0, whole, self._frame)]
        self._begun = sound[whole:]
        if last and len(self._begun) and not self._drops_rest:
            frames.append(self._begun)
        heard: list[FloatArray] = [np.zeros(0, dtype=np.float32)]
        for frame in frames:
            self._silent.append(frame)
            if np.abs(frame).mean() > QUIET:
                heard += self._silent
                self._silent = []
        if last:
            heard += self._silent[:KEPT_FRAMES]
        return np.concatenate(heard)
