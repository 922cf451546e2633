"""Sound that has come in and is in no turn yet, by its place in all that came.

Knows samples and places. Knows nothing of speech.
"""

from __future__ import annotations

import numpy as np

from omni_server.realtime.formats import Pcm

_SAMPLE_BYTES = 2


class InputBuffer:
    """Samples from `start` to `end`, counted from the first that ever came."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self._bytes = bytearray()

    @property
    def end(self) -> int:
        """The place of the next sample."""
        return self.start + len(self._bytes) // _SAMPLE_BYTES

    def push(self, samples: Pcm) -> None:
        """Add samples at the end."""
        self._bytes += samples.astype("<i2", copy=False).tobytes()

    def take(self, start: int, stop: int) -> Pcm:
        """The samples from `start` to `stop`, as far as they are here; all before `stop` goes."""
        first, last = self._offset(start), self._offset(stop)
        whole, self._bytes = self._bytes, self._bytes[last:]  # what stays is short, the turn is not
        self.start += last // _SAMPLE_BYTES
        taken = np.frombuffer(whole, "<i2", (last - first) // _SAMPLE_BYTES, first)
        return taken.astype(np.int16, copy=False)

    def drop_before(self, place: int) -> None:
        """Forget what is before `place`."""
        n_bytes = self._offset(place)
        del self._bytes[:n_bytes]
        self.start += n_bytes // _SAMPLE_BYTES

    def _offset(self, place: int) -> int:
        return _SAMPLE_BYTES * min(max(place - self.start, 0), self.end - self.start)
