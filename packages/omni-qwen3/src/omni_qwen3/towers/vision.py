"""The vision tower: patches of pictures and video frames to rows of the Thinker.

Knows patches and grids. Knows nothing of requests. Attribute names are the checkpoint's; the
numbers are those of transformers' Qwen3OmniMoeVisionEncoder.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from omni_core.layers.vit import NORM_EPS, Grid, VisionTransformer
from omni_qwen3.towers.config import VisionConfig


class Merger(nn.Module):
    """spatial_merge_size ** 2 neighbouring patches to one row of the Thinker's width."""

    def __init__(self, config: VisionConfig, *, norm_merged: bool) -> None:
        """`norm_merged`: the norm comes after merging instead of before."""
        super().__init__()
        self._width = config.hidden_size * config.spatial_merge_size**2
        self._norm_merged = norm_merged
        width = self._width if norm_merged else config.hidden_size
        self.ln_q = nn.LayerNorm(width, eps=NORM_EPS)
        self.mlp = nn.Sequential(
            nn.Linear(self._width, self._width),
            nn.GELU(),
            nn.Linear(self._width, config.out_hidden_size),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        merged = self.ln_q(x.view(-1, self._width) if self._norm_merged else x)
        out: torch.Tensor = self.mlp(merged.view(-1, self._width))
        return out


class VisionTower(VisionTransformer):
    """Patches of any number of pictures and videos, each frame apart from all others."""

    config: VisionConfig

    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config)
        self.merger = Merger(config, norm_merged=False)
        self.merger_list = nn.ModuleList(
            Merger(config, norm_merged=True) for _ in config.deepstack_visual_indexes
        )

    def forward(self, patches: torch.Tensor, grids: Sequence[Grid]) -> dict[str, torch.Tensor]:
        """`patches` (P, pixels of a patch), merged neighbours adjacent, in the tower's dtype.

        -> "embeds" (rows, out_hidden_size), rows = P / spatial_merge_size ** 2, and what the
        deepstack layers add to them, "deepstack" (levels, rows, out_hidden_size).
        """
        mergers = dict(zip(self.config.deepstack_visual_indexes, self.merger_list, strict=True))
        deepstack = []
        for layer, x in enumerate(self.states(patches, grids)):
            if layer in mergers:
                deepstack.append(mergers[layer](x))
        return {"embeds": self.merger(x), "deepstack": torch.stack(deepstack)}
