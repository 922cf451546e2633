"""The authors' inputs and outputs, see `golden/`: fp32, on the tiny checkpoint of seed 0."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-5
"""Relative to the largest value."""


@cache
def arrays(name: str) -> dict[str, Any]:
    """All arrays of one file."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def assert_close(made: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """Equal but for rounding: no element is off by more than `tolerance` of the largest."""
    made, expected = torch.as_tensor(made), torch.as_tensor(expected)
    assert made.shape == expected.shape
    worst = (made - expected).abs().max() / expected.abs().max()
    assert worst <= tolerance, f"off by {worst:.2g} of the largest value"
