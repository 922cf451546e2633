"""Sizes that preprocessing and encoders share. Free of torch and of codecs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSettings:
    """How pictures become patches."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rescale_factor: float
    min_pixels: int
    """Smallest area of one picture after resizing."""
    max_pixels: int

    @property
    def factor(self) -> int:
        """Both sides of a resized picture are multiples of this, in pixels."""
        return self.patch_size * self.merge_size
