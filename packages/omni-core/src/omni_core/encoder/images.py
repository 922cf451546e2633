"""Images and videos through the vision tower, item by item or many at once.

Knows payloads, grids and the tower's memory. Knows nothing of caches or requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import torch

from omni_core.encoder.budget import cut_grids
from omni_core.encoder.payloads import Visual, VisualFeatures
from omni_core.errors import RequestError, StageError
from omni_core.layers.vit import Grid, VitConfig
from omni_core.tensors import tensor_over
from omni_core.types import ByteArray, FloatArray, Payload

KINDS = ("image", "video")
"""Inputs of the vision tower, by payload key."""


class PicturesAgain(Protocol):
    """Reads files that preprocessing has let through before."""

    def image(self, encoded: ByteArray, grid: list[int]) -> FloatArray:
        """Patches (P, 3 * temporal_patch * patch * patch) of a picture."""

    def video(self, encoded: ByteArray, grid: list[int], fps: float, max_frames: int) -> FloatArray:
        """Patches (P, 3 * temporal_patch * patch * patch) of a video sampled as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisualItem:
    """One image or video."""

    kind: str
    key: bytes
    param: str
    grid: list[int]
    content: FloatArray | None
    """Patches (P, 3 * temporal_patch * patch * patch); without them `encoded` is read again."""
    encoded: ByteArray | None
    fps: float
    max_frames: int


class ImageEncoder:
    """Images and videos to embeddings, in tower calls that keep to a memory budget."""

    too_large = "send fewer or smaller pictures or lower max_pixels"

    def __init__(
        self,
        tower: Callable[[torch.Tensor, Sequence[Grid]], VisualFeatures],
        config: VitConfig,
        again: PicturesAgain,
        *,
        max_patches: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`max_patches` of one call of the tower, which takes patches in `dtype` on `device`."""
        self._tower = tower
        self._again = again
        self._merged = config.spatial_merge_size**2
        self._patch_pixels = config.patch_size**2
        self._max_patches = max_patches
        self._device, self._dtype = device, dtype

    def cost(self, payload: Payload) -> int:
        """Patches of a request."""
        grids = [payload[kind]["grid_thw"] for kind in KINDS if kind in payload]
        return int(sum(grid.prod(axis=1).sum() for grid in grids))

    def items(self, payload: Payload) -> list[VisualItem]:
        """All items of a request; RequestError for a picture over the budget by itself."""
        items = [item for kind in KINDS if kind in payload for item in _items(kind, payload[kind])]
        for item in items:
            _, height, width = item.grid
            if height * width > self._max_patches:
                raise self._over_budget(height * width, item.param)
            if item.content is not None and len(item.content) != math.prod(item.grid):
                raise StageError(
                    f"{len(item.content)} patches do not fill the grid's {math.prod(item.grid)}"
                )
        return items

    @torch.inference_mode()
    def encode(self, items: Sequence[VisualItem]) -> list[VisualFeatures]:
        """As few tower calls for all items as the budget allows; results on the CPU.

        A picture of one item attends to itself alone, so calls may be cut between any two.
        MediaError if the file of an item cannot be read again.
        """
        patches = [self._patches(item) for item in items]
        pixels = patches[0] if len(patches) == 1 else np.concatenate(patches)
        calls = cut_grids([item.grid for item in items], self._max_patches)
        made = self._run(pixels, calls)
        counts = [len(rows) // self._merged for rows in patches]
        parts = {name: torch.split(rows, counts, dim=-2) for name, rows in made.items()}
        # Copies: a view would keep what all the others of the batch were made into.
        return [
            {name: split[index].to("cpu", copy=True) for name, split in parts.items()}
            for index in range(len(items))
        ]

    def join(self, items: Sequence[VisualItem], made: Sequence[VisualFeatures]) -> Payload:
        """`Features` of a request out of those of its items."""
        features: Payload = {}
        for kind in dict.fromkeys(item.kind for item in items):
            parts = [part for item, part in zip(items, made, strict=True) if item.kind == kind]
            features[kind] = dict(parts[0] if len(parts) == 1 else _joined(parts))
        return features

    def size_bytes(self, made: VisualFeatures) -> int:
        """Memory of one item's features."""
        return sum(rows.nbytes for rows in made.values())

    def _patches(self, item: VisualItem) -> FloatArray:
        if item.content is not None:
            return item.content
        assert item.encoded is not None
        if item.kind == "video":
            return self._again.video(item.encoded, item.grid, item.fps, item.max_frames)
        return self._again.image(item.encoded, item.grid)

    def _over_budget(self, patches: int, param: str) -> RequestError:
        pixels, most = patches * self._patch_pixels, self._max_patches * self._patch_pixels
        return RequestError(
            f"one picture of {param} has {pixels} pixels after resizing, more than the {most} this "
            "server has memory to encode at once; lower max_pixels or send a smaller one",
            param=param,
        )

    def _run(self, pixels: FloatArray, calls: list[list[list[int]]]) -> VisualFeatures:
        """Features of all patches, call by call."""
        made = []
        start = 0
        for grids in calls:
            end = start + sum(math.prod(grid) for grid in grids)
            patches = tensor_over(pixels[start:end]).to(self._device, self._dtype)
            made.append(self._tower(patches, grids))
            start = end
        return _joined(made)


def _items(kind: str, payload: Payload) -> Iterator[VisualItem]:
    visual = cast(Visual, payload)
    for index, key in enumerate(visual["keys"]):
        yield VisualItem(
            kind=kind,
            key=key,
            param=visual["params"][index],
            grid=visual["grid_thw"][index].tolist(),
            content=visual["pixel_values"][index],
            encoded=visual["encoded"][index],
            fps=visual.get("fps", 0.0),
            max_frames=visual.get("max_frames", 0),
        )


def _joined(parts: Sequence[VisualFeatures]) -> VisualFeatures:
    return {name: torch.cat([part[name] for part in parts], dim=-2) for name in parts[0]}
