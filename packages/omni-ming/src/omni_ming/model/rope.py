"""The Thinker's rotary embedding: part of each head, with time, height and width in one.

Of r / 2 frequencies theta^(-2j / r), the first three quarters belong to height (even j) and width
(odd j), the last to time ("video_rope" of the authors' code).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_core.layers.rotary import RotaryTables
from omni_ming.model.config import ThinkerConfig

TIME, HEIGHT, WIDTH = 0, 1, 2
SPATIAL_SHARE = 3 / 4
"""Of the frequencies; the authors' code has it as 24 of 32."""


@dataclass(frozen=True, slots=True)
class PartialRope:
    """Tables for heads whose dimensions are in the order of `head_order`."""

    signed_frequency: torch.Tensor
    """Float32 (head_dim,): minus the frequencies in the first half, the same in the second; 0 where
    nothing is turned."""
    axis: torch.Tensor
    """Int64 (head_dim,): the axis that owns each dimension."""

    @classmethod
    def of(cls, config: ThinkerConfig, device: torch.device) -> PartialRope:
        """For a stack."""
        turned = config.rotary_dim // 2
        still = (config.head_dim - config.rotary_dim) // 2
        exponent = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
        frequency = 1.0 / config.rope_theta**exponent
        axis = torch.full((turned,), TIME)
        spatial = int(turned * SPATIAL_SHARE)
        axis[:spatial] = torch.tensor([HEIGHT, WIDTH]).repeat(spatial // 2)
        zeros = torch.zeros(still)
        signed = torch.cat([-frequency, zeros, frequency, zeros])
        axes = torch.cat([axis, zeros.long()]).repeat(2)
        return cls(signed.to(device), axes.to(device))

    def tables(self, positions: torch.Tensor, dtype: torch.dtype) -> RotaryTables:
        """Tables for positions (3, N), or (N,) where all axes agree."""
        line = positions[:, None] if positions.ndim == 1 else positions.t()[:, self.axis]
        angles = (line.float() * self.signed_frequency)[:, None]
        return RotaryTables(angles.cos().to(dtype), angles.sin().to(dtype))


def reordered(rows: torch.Tensor, config: ThinkerConfig) -> torch.Tensor:
    """Rows (heads * head_dim, ...) of the checkpoint's query_key_value in our order: by
    `head_order` for queries and keys, as they are for values."""
    turning = (config.heads + config.kv_heads) * config.head_dim
    heads = rows[:turning].view(-1, config.head_dim, *rows.shape[1:])
    ours = heads[:, head_order(config, rows.device)].flatten(0, 1)
    return torch.cat([ours, rows[turning:]])


def head_order(config: ThinkerConfig, device: torch.device) -> torch.Tensor:
    """Int64 (head_dim,): the checkpoint's dimension that stands at each place of ours.

    Queries and keys are reordered alike, which leaves their products as they are. The components
    of a pair, `rotary_dim` / 2 apart in the checkpoint, are then half a head apart, so that a whole
    head can be turned at once.
    """
    half, turned = config.head_dim // 2, config.rotary_dim // 2
    dims = torch.arange(config.head_dim, device=device)
    rotary, rest = dims[: config.rotary_dim], dims[config.rotary_dim :]
    still = half - turned
    return torch.cat([rotary[:turned], rest[:still], rotary[turned:], rest[still:]])
