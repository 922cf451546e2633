"""Rotary embedding for layers of another engine, by tables that a model of ours makes.

Such layers look positions up in a table of their own, so these would have to be integers on one
axis. Here the tables are made from the positions themselves, once for all layers, and travel
through the layers in the place of the positions.
"""

from __future__ import annotations

import torch
from torch import nn

from omni_core.layers.rotary import RotaryTables


def stacked_tables(tables: RotaryTables) -> torch.Tensor:
    """Cosine and signed sine (2, N, head_dim)."""
    return torch.stack([tables.cos[:, 0], tables.signed_sin[:, 0]])


class TableRotary(nn.Module):
    """Takes the place of an attention layer's rotary embedding."""

    rotary_dim = 0
    """No layer is to turn keys while it writes them to the cache."""

    def forward(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        fused_set_kv_buffer_arg: None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn query and key (N, heads * head_dim); `positions` as `stacked_tables` makes them. The
        last argument is for kernels that look positions up."""
        tables = RotaryTables(*positions.unsqueeze(2).unbind())
        return _turn(tables, query), _turn(tables, key)


def _turn(tables: RotaryTables, x: torch.Tensor) -> torch.Tensor:
    heads = x.view(x.shape[0], -1, tables.cos.shape[-1])
    return tables(heads).view_as(x)
