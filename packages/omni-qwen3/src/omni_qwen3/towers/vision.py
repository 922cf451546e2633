"""The vision tower: patches of pictures and video frames to rows of the Thinker.

Knows patches and grids. Knows nothing of requests. Attribute names are the checkpoint's; the
numbers are those of transformers' Qwen3OmniMoeVisionEncoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.layers.segments import attend
from omni_qwen3.towers.config import VisionConfig

NORM_EPS = 1e-6

Grid: TypeAlias = Sequence[int]
"""(frames, height, width) of one picture or video, in patches."""
Rotation: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, (patches, 1, head_dim) each, float32."""


class PatchEmbed(nn.Module):
    """One linear map per patch; the checkpoint keeps it as a convolution."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        kernel = config.patch_shape
        self.proj = nn.Conv3d(config.in_channels, config.hidden_size, kernel, stride=kernel)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class PositionTable(nn.Module):
    """Learned positions on a square, resampled bilinearly to each grid, corner to corner."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions, width))
        self._side = round(positions**0.5)

    def forward(self, places: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        """`places` (patches, 2): row and column, of grids of `sizes` (patches, 2)."""
        exact = places.float() * (self._side - 1) / (sizes - 1).clamp(min=1)
        low = exact.floor()
        share = exact - low
        corners = torch.stack([low, low + 1]).long().clamp(max=self._side - 1)
        weights = torch.stack([1 - share, share])
        index = corners[:, None, :, 0] * self._side + corners[None, :, :, 1]
        weight = weights[:, None, :, 0] * weights[None, :, :, 1]
        rows = F.embedding(index.flatten(0, 1), self.weight)
        return (rows * weight.flatten(0, 1)[..., None]).sum(0)


class Attention(nn.Module):
    """Full attention inside each frame, rotated by row and column."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self._heads = config.num_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: torch.Tensor, rotation: Rotation, lengths: Sequence[int]) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(1, (3, self._heads, -1)).unbind(1)
        query, key = _rotate(query, rotation), _rotate(key, rotation)
        out: torch.Tensor = self.proj(attend(query, key, value, lengths))
        return out


class Mlp(nn.Module):
    """Two linear maps around a GELU (its tanh form)."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.mlp = Mlp(config)

    def forward(self, x: torch.Tensor, rotation: Rotation, lengths: Sequence[int]) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), rotation, lengths)
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


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


class VisionTower(nn.Module):
    """Patches of any number of pictures and videos, each frame apart from all others."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = PositionTable(config.num_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.merger = Merger(config, norm_merged=False)
        self.merger_list = nn.ModuleList(
            Merger(config, norm_merged=True) for _ in config.deepstack_visual_indexes
        )

    def forward(
        self, patches: torch.Tensor, grids: Sequence[Grid]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`patches` (P, pixels of a patch), merged neighbours adjacent, in the tower's dtype.

        -> embeddings (rows, out_hidden_size), rows = P / spatial_merge_size ** 2, and what the
        deepstack layers add to them, (levels, rows, out_hidden_size).
        """
        places, sizes = (part.to(patches.device) for part in self._places(grids))
        x = self.patch_embed(patches)
        x = x + self.pos_embed(places, sizes).to(x.dtype)
        rotation = self._rotation(places)
        lengths = [height * width for frames, height, width in grids for _ in range(frames)]
        mergers = dict(zip(self.config.deepstack_visual_indexes, self.merger_list, strict=True))
        deepstack = []
        for layer, block in enumerate(self.blocks):
            x = block(x, rotation, lengths)
            if layer in mergers:
                deepstack.append(mergers[layer](x))
        return self.merger(x), torch.stack(deepstack)

    def _places(self, grids: Sequence[Grid]) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and column of every patch, and height and width of its grid, (P, 2) each."""
        merge = self.config.spatial_merge_size
        places, sizes = [], []
        for frames, height, width in grids:
            place = torch.stack(
                torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), dim=-1
            )
            blocks = place.view(height // merge, merge, width // merge, merge, 2)
            places.append(blocks.transpose(1, 2).reshape(-1, 2).repeat(frames, 1))
            sizes.append(torch.tensor([height, width]).expand(len(places[-1]), 2))
        return torch.cat(places), torch.cat(sizes)

    def _rotation(self, places: torch.Tensor) -> Rotation:
        """Half of each head's angles turn with the row, half with the column (axial RoPE)."""
        half = self.config.hidden_size // self.config.num_heads // 2
        steps = torch.arange(0, half, 2, dtype=torch.float32, device=places.device)
        angles = places[..., None] * (1.0 / self.config.rope_theta ** (steps / half))
        angles = angles.flatten(1).repeat(1, 2)[:, None]
        return angles.cos(), angles.sin()


def _rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate (n, heads, dim) in float32, whatever its dtype."""
    cos, sin = rotation
    exact = x.float()
    left, right = exact.chunk(2, dim=-1)
    return (exact * cos + torch.cat([-right, left], dim=-1) * sin).to(x.dtype)
