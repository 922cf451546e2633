"""Received arrays as torch tensors.

Knows that torch has no read-only tensors, and asks nobody to import it who does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

if TYPE_CHECKING:
    import torch


def tensor_over(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor of the array's memory, without a copy.

    For arrays that came from another process, which are read-only: of these `torch.from_numpy`
    warns, as it cannot keep anyone from writing. Whoever calls this promises not to.
    """
    import torch

    if not array.flags.writeable and array.base is not None:
        array = array.view()
        array.flags.writeable = True
    return torch.from_numpy(array)
