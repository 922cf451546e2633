"""RMSNorm (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x / rms(x) * weight over the last dimension (Zhang and Sennrich, 2019)."""

    weight: torch.Tensor
    """(size,), or (heads, size) where every head has its own."""
    eps: float
    scaled_weight: torch.Tensor
    """sqrt(size) times `weight`."""
    floor: torch.Tensor
    """0-d: sqrt(size * eps), the least length that a row is divided by."""

    @classmethod
    def of(cls, weight: torch.Tensor, eps: float) -> RMSNorm:
        """A norm with this weight."""
        size = weight.shape[-1]
        return cls(weight, eps, weight * size**0.5, weight.new_tensor((size * eps) ** 0.5))

    @classmethod
    def load(cls, weights: Weights, name: str, size: int, eps: float) -> RMSNorm:
        """A norm over rows of `size`."""
        return cls.of(weights.tensor(name, (size,)), eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape; the mean is taken in float32."""
        if x.is_cpu and x.dtype == torch.float32:  # F.rms_norm is eight operations here, not one
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return (x * self.scaled_weight).div_(torch.hypot(length, self.floor))
        if self.weight.ndim == 1:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.rms_norm(x, self.weight.shape[-1:], None, self.eps) * self.weight
