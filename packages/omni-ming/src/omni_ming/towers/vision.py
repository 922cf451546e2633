"""The vision tower: patches of pictures and video frames to rows of the Thinker, of length 1.

Knows patches and grids. Knows nothing of requests. Attribute names are the checkpoint's. The
mergers of deeper layers that a checkpoint has are not here: nothing reads what they make.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.layers.vit import NORM_EPS, Grid, VisionTransformer
from omni_ming.towers.config import VisionConfig

WEIGHTS = ("vision.patch_embed.", "vision.pos_embed.", "vision.blocks.", "vision.merger.")
PROJECTOR_WEIGHTS = "linear_proj."


class Merger(nn.Module):
    """spatial_merge_size ** 2 neighbouring patches to one row."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self._width = config.hidden_size * config.spatial_merge_size**2
        self.norm = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.linear_fc1 = nn.Linear(self._width, self._width)
        self.linear_fc2 = nn.Linear(self._width, config.out_hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        merged = self.norm(x).view(-1, self._width)
        out: torch.Tensor = self.linear_fc2(F.gelu(self.linear_fc1(merged)))
        return out


class _Vision(VisionTransformer):
    """The transformer and its merger."""

    config: VisionConfig

    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config)
        self.merger = Merger(config)


class VisionTower(nn.Module):
    """Patches of any number of pictures and videos, each frame apart from all others."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = _Vision(config)
        hidden = config.thinker_hidden_size
        self.linear_proj = nn.Sequential(
            nn.Linear(config.out_hidden_size, hidden), nn.GELU(), nn.Linear(hidden, hidden)
        )

    def forward(self, patches: torch.Tensor, grids: Sequence[Grid]) -> dict[str, torch.Tensor]:
        """`patches` (P, pixels of a patch), merged neighbours adjacent, in the tower's dtype, to
        "embeds" (P / spatial_merge_size ** 2, hidden)."""
        return {"embeds": F.normalize(self.linear_proj(self.merged(patches, grids)), dim=-1)}

    def merged(self, patches: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """The transformer's own rows (P / spatial_merge_size ** 2, out_hidden_size)."""
        for x in self.vision.states(patches, grids):
            last = x
        rows: torch.Tensor = self.vision.merger(last)
        return rows
