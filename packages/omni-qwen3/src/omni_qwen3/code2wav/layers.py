"""Layers of the vocoder that continue where their last input ended.

Each takes its input and a `Memory`, and gives for a sequence in pieces exactly what it would give
for the whole: a convolution remembers the inputs its kernel still reaches, attention the keys and
values inside its window. Attribute names are the checkpoint's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from omni_qwen3.code2wav.config import Code2WavConfig
from omni_qwen3.code2wav.memory import Memory


class Embedding(nn.Module):
    """Rows of a table by index: int64 (...) -> (..., width).

    torch's own draws initial values, which for a table on the meta device imports torch's compiler:
    seconds, and 80 MB that nothing uses.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return F.embedding(index, self.weight)


class CausalConv(nn.Module):
    """Convolution over the past: zeros before the first input. (B, C, n) -> (B, C', n)."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)
        self._reach = (kernel - 1) * dilation

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        if self._reach:
            x = self._after_past(x, memory)
        y: torch.Tensor = self.conv(x)
        return y

    def _after_past(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        past = memory.past.get(self)
        if past is None:
            past = x.new_zeros(x.shape[0], x.shape[1], self._reach)
        x = torch.cat([past, x], dim=-1)
        memory.past[self] = x[..., -self._reach :].clone()
        return x


class Upsample(nn.Module):
    """Transposed convolution by `rate`, cut by kernel - rate samples on both sides.

    With kernel 2 * rate, what input i contributes to is final only once input i + 1 is there: n
    inputs give (n - 1) * rate outputs at first and n * rate later. (B, C, n) -> (B, C', ...).
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, rate: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=rate)
        self._cut = kernel - rate

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        if self._cut:
            past = memory.past.get(self)
            if past is not None:
                x = torch.cat([past, x], dim=-1)
            memory.past[self] = x[..., -1:].clone()
        y: torch.Tensor = self.conv(x)
        return y[..., self._cut : y.shape[-1] - self._cut]


class SnakeBeta(nn.Module):
    """x + sin(x e^alpha)^2 / e^beta, per channel (BigVGAN; Lee et al., 2023)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frequency, magnitude = self.alpha.exp()[:, None], self.beta.exp()[:, None]
        return x + torch.sin(x * frequency).square() / (magnitude + 1e-9)


class LayerScale(nn.Module):
    """Multiplication by a learnt vector (Touvron et al., 2021)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class WindowAttention(nn.Module):
    """Causal attention over the last `window_frames` frames. (B, n, H) -> (B, n, H).

    Positions count from the reply's first frame: keys are remembered rotated, so a window that
    restarted at 0 would not give the same numbers.
    """

    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        self._heads, self._kv_heads, self._head_dim = config.heads, config.kv_heads, head_dim
        self._remembered = config.window_frames - 1
        self.q_proj = nn.Linear(hidden, config.heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * head_dim, hidden, bias=False)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], memory: Memory
    ) -> torch.Tensor:
        batch, frames, _ = x.shape
        q = rotate(self._split(self.q_proj(x), self._heads), rotation)
        k = rotate(self._split(self.k_proj(x), self._kv_heads), rotation)
        kv = torch.stack([k, self._split(self.v_proj(x), self._kv_heads)], dim=1)
        past = memory.past.get(self)
        if past is None:
            past = kv.new_zeros(batch, 2, self._kv_heads, self._remembered, self._head_dim)
        kv = torch.cat([past, kv], dim=3)
        memory.past[self] = kv[:, :, :, -self._remembered :].clone()
        mask = self._mask(memory.frames, frames, x.device)
        y = F.scaled_dot_product_attention(
            q, kv[:, 0], kv[:, 1], attn_mask=mask, enable_gqa=self._heads != self._kv_heads
        )
        out: torch.Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, frames, -1))
        return out

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """(B, n, heads * head_dim) -> (B, heads, n, head_dim)."""
        return x.view(*x.shape[:2], heads, self._head_dim).transpose(1, 2)

    def _mask(self, seen: list[int], frames: int, device: torch.device) -> torch.Tensor:
        """Bool (B, 1, n, remembered + n): keys inside the window that are frames of the reply."""
        remembered = self._remembered
        query = torch.arange(frames, device=device)[:, None] + remembered
        key = torch.arange(remembered + frames, device=device)
        inside = (key <= query) & (key >= query - remembered)
        first = remembered - torch.tensor(seen, device=device)
        return inside[None, None] & (key >= first[:, None, None, None])


def rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary embedding of (B, heads, n, head_dim), halves paired (Su et al., 2021)."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rotation_tables(
    theta: float, head_dim: int, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, each (B, 1, n, head_dim), of positions (B, n).

    In float32 whatever the model's dtype is: bfloat16 cannot count past 256.
    """
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[:, None, :, None].float() * (1.0 / theta**exponent)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)
