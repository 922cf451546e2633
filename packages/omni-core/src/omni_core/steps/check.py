"""Whether two implementations of a step gave the same.

Integers and booleans must be identical. Numbers may differ by `TOLERANCES` of the largest number in
the result, since another order of additions rounds differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

TOLERANCES: Final[Mapping[torch.dtype, float]] = {
    torch.float64: 1e-9,
    torch.float32: 1e-3,  # a deep network of random weights doubles rounding again and again
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
}


def difference(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str | None:
    """What differs, in words; None if nothing does."""
    if len(results) != len(expected):
        return f"{len(results)} results instead of {len(expected)}"
    for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        if (result.shape, result.dtype) != (wanted.shape, wanted.dtype):
            return f"result {number} is {_kind(result)} instead of {_kind(wanted)}"
        if problem := _apart(result, wanted):
            return f"result {number}: {problem}"
    return None


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _apart(result: torch.Tensor, wanted: torch.Tensor) -> str | None:
    tolerance = TOLERANCES.get(wanted.dtype)
    if tolerance is None:
        return None if torch.equal(result, wanted) else "other integers"
    finite = wanted.isfinite()
    if not torch.equal(result.nan_to_num()[~finite], wanted.nan_to_num()[~finite]):
        return "not finite in other places"
    largest = wanted[finite].abs().amax().item() if finite.any() else 0.0
    apart = (result - wanted)[finite].abs().amax().item() if finite.any() else 0.0
    if apart <= tolerance * max(largest, 1e-6):
        return None
    return f"off by {apart:.3g} where the largest number is {largest:.3g}"
