"""A prompt as pieces, and the token ids and positions they stand for.

Knows ids and sizes. The positions are the authors' own rule for "video_rope", which is not that of
the Qwen models: rows of a picture lie around the diagonal, and time goes on by one after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import numpy as np

from omni_core.types import IntArray


@dataclass(frozen=True, slots=True)
class Line:
    """Tokens one after the other."""

    ids: Sequence[int]

    @property
    def count(self) -> int:
        """Rows of the prompt."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Sound:
    """A clip, one row after the other."""

    token: int
    count: int


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, or a pair of a video's frames, of height x width rows."""

    token: int
    height: int
    width: int

    @property
    def count(self) -> int:
        """Rows of the prompt."""
        return self.height * self.width


Piece: TypeAlias = Line | Sound | Picture


def token_ids(pieces: Sequence[Piece]) -> IntArray:
    """(S,) ids of a prompt."""
    parts = []
    for piece in pieces:
        match piece:
            case Line():
                parts.append(np.asarray(piece.ids, dtype=np.int64))
            case Sound() | Picture():
                parts.append(np.full(piece.count, piece.token, dtype=np.int64))
            case _:
                assert_never(piece)
    return np.concatenate(parts)


def positions(pieces: Sequence[Piece]) -> tuple[IntArray, int]:
    """(3, S) time, height and width of each row, and what to add to the number of a later row.

    Text and sound count on, the same on all axes. A picture that begins at n has time n, heights
    from n - (height - 1) // 2 and widths likewise; what follows begins at n + 1.
    """
    parts, n = [], 0
    for piece in pieces:
        match piece:
            case Line() | Sound():
                line = np.arange(n, n + piece.count, dtype=np.int64)
                parts.append(np.broadcast_to(line, (3, piece.count)))
                n += piece.count
            case Picture():
                parts.append(_around_diagonal(n, piece))
                n += 1
            case _:
                assert_never(piece)
    joined = np.concatenate(parts, axis=1)
    return joined, n - joined.shape[1]


def _around_diagonal(n: int, picture: Picture) -> IntArray:
    rows, columns = np.divmod(np.arange(picture.count, dtype=np.int64), picture.width)
    return np.stack(
        [
            np.full(picture.count, n, dtype=np.int64),
            n + rows - (picture.height - 1) // 2,
            n + columns - (picture.width - 1) // 2,
        ]
    )
