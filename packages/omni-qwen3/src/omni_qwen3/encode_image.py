"""Images and videos through the vision tower, item by item or many at once.

Knows payloads, grids and the tower's memory. Knows nothing of caches or requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from omni_core.checkpoint.weights import Weights
from omni_core.encoder.budget import cut_grids
from omni_core.errors import RequestError, StageError
from omni_core.tensors import tensor_over
from omni_core.types import FloatArray, Payload
from omni_qwen3.activation import vision_patch_bytes
from omni_qwen3.payloads import ByteArray, Visual, VisualFeatures
from omni_qwen3.preprocess.again import MediaAgain
from omni_qwen3.towers.vision import VisionTower

KINDS = ("image", "video")
"""Inputs of the vision tower, by payload key."""


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
        self, tower: VisionTower, weights: Weights, budget_bytes: int, again: MediaAgain
    ) -> None:
        config = tower.config
        self._tower = tower
        self._again = again
        self._merged = config.spatial_merge_size**2
        self._patch_pixels = config.patch_size**2
        self._device, self._dtype = weights.device, weights.dtype
        self._max_patches = budget_bytes // vision_patch_bytes(config, self._dtype.itemsize)

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
        embeds, deepstack = self._run(pixels, calls)
        counts = [len(rows) // self._merged for rows in patches]
        # Copies: a view would keep what all the others of the batch were made into.
        return [
            VisualFeatures(embeds=rows.to("cpu", copy=True), deepstack=levels.to("cpu", copy=True))
            for rows, levels in zip(
                torch.split(embeds, counts), torch.split(deepstack, counts, dim=1), strict=True
            )
        ]

    def join(self, items: Sequence[VisualItem], made: Sequence[VisualFeatures]) -> Payload:
        """`Features` of a request out of those of its items."""
        features: Payload = {}
        for kind in dict.fromkeys(item.kind for item in items):
            parts = [part for item, part in zip(items, made, strict=True) if item.kind == kind]
            features[kind] = parts[0] if len(parts) == 1 else _joined(parts)
        return features

    def size_bytes(self, made: VisualFeatures) -> int:
        """Memory of one item's features."""
        return int(made["embeds"].nbytes + made["deepstack"].nbytes)

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

    def _run(
        self, pixels: FloatArray, calls: list[list[list[int]]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings (N, H) and deepstack rows (levels, N, H) of all patches, call by call."""
        embeds, deepstack = [], []
        start = 0
        for grids in calls:
            end = start + sum(math.prod(grid) for grid in grids)
            patches = tensor_over(pixels[start:end]).to(self._device, self._dtype)
            rows, levels = self._tower(patches, grids)
            embeds.append(rows)
            deepstack.append(levels)
            start = end
        return torch.cat(embeds), torch.cat(deepstack, dim=1)


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
    return VisualFeatures(
        embeds=torch.cat([part["embeds"] for part in parts]),
        deepstack=torch.cat([part["deepstack"] for part in parts], dim=1),
    )
