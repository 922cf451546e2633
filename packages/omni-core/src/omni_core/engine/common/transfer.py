"""Values between host and device, without the host waiting for the device to catch up.

Knows tensors and CUDA's rules for asynchronous copies. Knows nothing of what is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch


class TokenCopy(Protocol):
    """Device tensors on their way to the host."""

    def wait(self) -> list[torch.Tensor]:
        """The tensors on the host, once they are there."""


StartCopy: TypeAlias = Callable[[Sequence[torch.Tensor]], TokenCopy]
"""Begins a copy of what has been launched on the device so far."""


class HostCopy:
    """`TokenCopy` through pinned memory: waits for this copy, not for work launched after it."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._host = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._done: torch.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._done = torch.Event("cuda")
            self._done.record()

    def wait(self) -> list[torch.Tensor]:
        """See `TokenCopy`."""
        if self._done is not None:
            self._done.synchronize()
        return self._host


def upload(values: Any, device: torch.device, dtype: torch.dtype = torch.long) -> torch.Tensor:
    """Nested lists of numbers as a device tensor. A plain `torch.tensor(..., device="cuda")` would
    wait for all work before it."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
