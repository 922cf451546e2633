"""What preprocessing hands to an encoder of pictures, and what it makes of them. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypeAlias, TypedDict

from omni_core.types import ByteArray, FloatArray, IntArray

VisualFeatures: TypeAlias = Mapping[str, Any]
"""Tensors that a tower makes, by name; the rows are the last dimension but one."""


class Visual(TypedDict):
    """The images (or videos) of a prompt, in message order.

    Of an item that preprocessing has met before there are no patches: most likely the encoder has
    in its cache what it makes of them, and else it reads `encoded` again.
    """

    pixel_values: list[FloatArray | None]
    """Per item (P, 3 * temporal_patch * patch * patch)."""
    encoded: list[ByteArray | None]
    """Per item (n,), its file; None where there are patches."""
    grid_thw: IntArray
    """(items, 3): temporal, height and width in patches, before merging."""
    params: list[str]
    """What an error about each item names."""
    keys: list[bytes]
    """Per item, equal for equal patches only (see `omni_core.media.keys.media_key`)."""
    rows: IntArray
    """(N,) rows of the prompt that the merged patches replace, ascending."""
    row_keys: IntArray
    """(N,) see `omni_core.media.keys.item_row_keys`."""
    fps: NotRequired[float]
    """Videos only: how densely frames are sampled, and how many at most."""
    max_frames: NotRequired[int]
