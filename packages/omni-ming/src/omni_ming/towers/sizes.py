"""How many rows the towers make. Free of torch."""

from __future__ import annotations


def audio_tokens(frames: int) -> int:
    """Rows of a clip of `frames` mel frames: two convolutions halve them, rounding up."""
    return ((frames - 1) // 2) // 2 + 1
