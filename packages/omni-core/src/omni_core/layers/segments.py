"""Attention over rows of several segments, each of which sees itself alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.nn.functional as F


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Sequence[int]
) -> torch.Tensor:
    """(n, heads, dim) each -> (n, heads * dim); `lengths` of the segments add up to n.

    Neighbours of equal length, the frames of a video for example, share one call.
    """
    outputs = []
    begin = 0
    for length, run in groupby(lengths):
        count = len(list(run))
        rows = slice(begin, begin + count * length)
        begin = rows.stop
        q, k, v = (
            states[rows].view(count, length, *states.shape[1:]).transpose(1, 2)
            for states in (query, key, value)
        )
        attended = F.scaled_dot_product_attention(q, k, v)
        outputs.append(attended.transpose(1, 2).flatten(0, 1).flatten(1))
    return torch.cat(outputs)
