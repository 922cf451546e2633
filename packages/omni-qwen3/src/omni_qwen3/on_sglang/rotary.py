"""Rotary embedding for layers of upstream, by the tables of `omni_qwen3.model.layers`.

Upstream looks positions up in a table, so they must be integers; those of video frames need not be.
Here the tables are made from the positions themselves, once for all layers, and travel through the
layers in the place of the positions.
"""

from __future__ import annotations

import torch
from torch import nn

from omni_core.layers.rotary import RotaryTables
from omni_qwen3.model.layers import Rope


def rotary_tables(rope: Rope, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cosine and signed sine (2, N, head_dim) of positions (3, N), or (N,) where all axes agree."""
    tables = rope.tables(positions, dtype)
    return torch.stack([tables.cos[:, 0], tables.signed_sin[:, 0]])


class TableRotary(nn.Module):
    """Takes the place of an attention layer's `rotary_emb`."""

    def forward(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        fused_set_kv_buffer_arg: None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn query and key (N, heads * head_dim); `positions` as `rotary_tables` makes them. The
        last argument is for upstream's own kernels, which do not serve M-RoPE."""
        tables = RotaryTables(*positions.unsqueeze(2).unbind())
        return _turn(tables, query), _turn(tables, key)


def _turn(tables: RotaryTables, x: torch.Tensor) -> torch.Tensor:
    heads = x.view(x.shape[0], -1, tables.cos.shape[-1])
    return tables(heads).view_as(x)
