"""Audio as the API names it. The encoding itself is `omni_core.media`'s.

Samples are float32 mono in [-1, 1] at the model's own rate; no resampling happens here.
"""

from __future__ import annotations

import base64

from omni_core.media.encode import AUDIO_MEDIA_TYPES, pcm16
from omni_core.types import FloatArray

FORMATS = tuple(AUDIO_MEDIA_TYPES)
STREAM_FORMAT = "pcm16"
QUICK_SAMPLES = 48_000
"""So many become pcm16 and its base64 in a third of a millisecond; the way to a thread and back
takes as long as a third of them."""
_GROUP_BYTES = 3


class Base64Pieces:
    """Streamed bytes whose base64 pieces may be decoded one by one or joined first.

    Clients that add up deltas join the base64 text, which padding in the middle would break. So
    pieces are cut where base64 groups (3 bytes) end; the rest waits for the next piece.
    """

    def __init__(self, unit_bytes: int = 1) -> None:
        """Pieces are also cut where units of so many bytes end: 1 or 2."""
        self._cut = _GROUP_BYTES * unit_bytes
        self._rest = b""

    def push(self, data: bytes) -> str:
        """The next piece, "" when there are too few bytes for one."""
        data = self._rest + data
        whole = len(data) - len(data) % self._cut
        self._rest = data[whole:]
        return base64.b64encode(data[:whole]).decode("ascii")

    def flush(self) -> str:
        """The last piece, "" when nothing waits."""
        rest, self._rest = self._rest, b""
        return base64.b64encode(rest).decode("ascii")


class PcmPieces:
    """The same of streamed pcm16, cut where samples end, too."""

    def __init__(self) -> None:
        self._pieces = Base64Pieces(unit_bytes=2)

    def push(self, samples: FloatArray) -> str:
        """The next piece, "" when there are too few samples for one."""
        return self._pieces.push(pcm16(samples))

    def flush(self) -> str:
        """The last piece, "" when nothing waits."""
        return self._pieces.flush()
