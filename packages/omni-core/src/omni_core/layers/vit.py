"""The vision transformer that several model families share: patches in, states
of its layers out.

Knows patches and grids. Knows nothing of requests, nor of what becomes of the states: mergers are
the model's. Attribute names are the checkpoints'.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.layers.segments import attend

NORM_EPS = 1e-6

MARGIN = 1.1
"""Of memory over what is counted: kernels' own buffers and the allocator's rounding."""
_FLOAT32 = 4
_INT64 = 8

Grid: TypeAlias = Sequence[int]
"""(frames, height, width) of one picture or video, in patches."""
Rotation: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, (patches, 1, head_dim) each, float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VitConfig:
    """Sizes of a vision transformer, named as in config.json."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    """Patches that become one row, along each side."""
    num_position_embeddings: int
    """Learned positions: a square grid, resampled to the grid of each picture."""
    rope_theta: float

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        """(frames, height, width) of one patch."""
        return self.temporal_patch_size, self.patch_size, self.patch_size


class PatchEmbed(nn.Module):
    """One linear map per patch; the checkpoint keeps it as a convolution."""

    def __init__(self, config: VitConfig) -> None:
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

    def __init__(self, config: VitConfig) -> None:
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

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.mlp = Mlp(config)

    def forward(self, x: torch.Tensor, rotation: Rotation, lengths: Sequence[int]) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), rotation, lengths)
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTransformer(nn.Module):
    """Patches of any number of pictures and videos, each frame apart from all others."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = PositionTable(config.num_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))

    def states(self, patches: torch.Tensor, grids: Sequence[Grid]) -> Iterator[torch.Tensor]:
        """The output (P, hidden_size) of each layer for `patches` (P, pixels of a patch), merged
        neighbours adjacent, in the tower's dtype."""
        places, sizes = (part.to(patches.device) for part in self._places(grids))
        x = self.patch_embed(patches)
        x = x + self.pos_embed(places, sizes).to(x.dtype)
        rotation = self._rotation(places)
        lengths = [height * width for frames, height, width in grids for _ in range(frames)]
        for block in self.blocks:
            x = block(x, rotation, lengths)
            yield x

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


def patch_bytes(config: VitConfig, itemsize: int, kept: int) -> int:
    """Peak bytes of a call of the transformer per patch, with `kept` more elements for as long.

    Counted from this module, whose attention keeps no score matrix. With h hidden_size,
    i intermediate_size and s bytes an element, a patch takes the largest of

        patches       hs (+ ps)             a 16-bit convolution reorders its p pixel values
        embedding     5hs + 20h             four float32-weighted corners of the position grid
        rotary        5hs + 16h (+ 8h)      residual, norm, qkv; float32 products (and casts)
        attention     10hs                  residual, norm, qkv, turned q and k, pieces, joined
        feed-forward  2hs + 2is

    beside what lives through all layers: the input, angles, and what is `kept`.
    """
    hidden, wide = config.hidden_size, config.intermediate_size
    pixels = config.in_channels * config.temporal_patch_size * config.patch_size**2
    short = itemsize < _FLOAT32
    casts = 2 * _FLOAT32 * hidden if short else 0
    peak = max(
        (pixels * short + hidden) * itemsize,
        5 * hidden * itemsize + 5 * _FLOAT32 * hidden,
        5 * hidden * itemsize + 4 * _FLOAT32 * hidden + casts,
        10 * hidden * itemsize,
        2 * (hidden + wide) * itemsize,
    )
    angles = 2 * _FLOAT32 * (hidden // config.num_heads) + 4 * (_INT64 + _FLOAT32) + 2 * _INT64
    counted = peak + angles + (pixels + kept) * itemsize
    return math.ceil(MARGIN * counted)
