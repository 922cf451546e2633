"""How many rows the towers make. Free of torch."""

from __future__ import annotations


def halved(length: int) -> int:
    """What a convolution of kernel 3, stride 2 and padding 1 makes of a length."""
    return (length + 1) // 2


def audio_tokens(frames: int) -> int:
    """Rows of a clip of `frames` mel frames."""
    return halved(halved(frames))
