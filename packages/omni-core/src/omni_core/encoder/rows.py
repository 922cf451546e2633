"""Rows of several encoders in the order of the prompt. Imports torch when features are there."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.errors import StageError
from omni_core.types import IntArray


def in_prompt_order(parts: list[tuple[IntArray, Any]], dim: int) -> tuple[IntArray, Any]:
    """Join (rows, features) pairs; returns ascending rows and features along `dim` to match.

    Raises StageError where an encoder has made, or kept, another number of rows.
    """
    import torch

    for rows, features in parts:
        if len(rows) != features.shape[dim]:
            raise StageError(
                f"an encoder gave {features.shape[dim]} rows for media with {len(rows)} places in "
                "the prompt"
            )
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part for part, _ in parts])
    order = np.argsort(rows)
    joined = torch.cat([features for _, features in parts], dim=dim)
    return rows[order], joined.index_select(dim, torch.from_numpy(order).to(joined.device))
