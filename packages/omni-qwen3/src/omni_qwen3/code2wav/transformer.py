"""The frame-rate half of the vocoder: a sliding-window transformer, then doubling of the rate.

Knows rows (B, n, hidden), positions and the names of weights within a layer. Knows nothing of
codes or audio.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_qwen3.code2wav.config import Code2WavConfig
from omni_qwen3.code2wav.memory import Past

NORM_EPS = 1e-6
"""Of ConvNeXt's layer norm, which config.json does not give."""
DEPTHWISE_KERNEL = 7


@dataclass(frozen=True, slots=True)
class Frames:
    """Where the frames of a step stand, as every layer of the transformer needs it."""

    cos: torch.Tensor
    """(B, n, 1, head_dim)."""
    signed_sin: torch.Tensor
    """Minus sine for the first half, sine for the second."""
    visible: torch.Tensor
    """Bool (B, 1, n, window - 1 + n): which keys each frame sees."""

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary embedding of (B, n, heads, head_dim), halves paired (Su et al., 2021)."""
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * self.cos, swapped, self.signed_sin)


@dataclass(frozen=True, slots=True)
class Positions:
    """Computes `Frames`; positions count from a reply's first frame.

    In float32 whatever the model's dtype is: bfloat16 cannot count past 256.
    """

    frequency: torch.Tensor
    """Radians per frame, (head_dim,), negative in the first half."""
    remembered: int
    """Earlier frames that attention sees."""

    @classmethod
    def of(cls, config: Code2WavConfig, device: torch.device) -> Positions:
        """The rotary frequencies and the window of a vocoder."""
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        inverse = 1.0 / config.rope_theta**exponent
        return cls(torch.cat([-inverse, inverse]).to(device), config.window_frames - 1)

    def __call__(self, seen: torch.Tensor, count: int, dtype: torch.dtype) -> Frames:
        """Of the next `count` frames after `seen` int64 (B,) ones."""
        index = torch.arange(self.remembered + count, device=seen.device)
        positions = seen[:, None] + index[:count]
        angles = positions[:, :, None, None].float() * self.frequency
        distance = index - index[:count, None]
        inside = (distance >= 0) & (distance <= self.remembered)
        exists = index >= self.remembered - seen[:, None]
        return Frames(
            cos=angles.cos().to(dtype),
            signed_sin=angles.sin().to(dtype),
            visible=(inside & exists[:, None])[:, None],
        )


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """Pre-norm attention and feed-forward block; the layer scales are in the weights."""

    config: Code2WavConfig
    norm1: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    norm2: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: Code2WavConfig) -> TransformerLayer:
        """From `prefix`self_attn, mlp, their norms and their layer scales."""
        hidden, inner = config.hidden_size, config.intermediate_size
        rows = [heads * config.head_dim for heads in (config.heads, config.kv_heads)]
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        return cls(
            config=config,
            norm1=weights.tensor(f"{prefix}input_layernorm.weight", (hidden,)),
            qkv=weights.fused(
                [f"{attention}{part}_proj.weight" for part in ("q", "k", "v")],
                rows=[rows[0], rows[1], rows[1]],
                columns=hidden,
            ),
            output=_scaled(weights, f"{attention}o_proj", f"{prefix}self_attn_", (hidden, rows[0])),
            norm2=weights.tensor(f"{prefix}post_attention_layernorm.weight", (hidden,)),
            gate_up=weights.fused(
                [f"{mlp}{part}_proj.weight" for part in ("gate", "up")],
                rows=[inner, inner],
                columns=hidden,
            ),
            down=_scaled(weights, f"{mlp}down_proj", f"{prefix}mlp_", (hidden, inner)),
        )

    @property
    def state_shape(self) -> tuple[int, ...]:
        """What `Past` holds for this layer: rotated keys, then values, of the window's frames."""
        return self.config.window_frames - 1, 2 * self.config.kv_heads, self.config.head_dim

    def __call__(self, x: torch.Tensor, frames: Frames, past: Past) -> torch.Tensor:
        """(B, n, H) -> (B, n, H)."""
        hidden, eps = x.shape[-1:], self.config.norm_eps
        x = x + self._attend(F.rms_norm(x, hidden, self.norm1, eps), frames, past)
        gate, up = F.linear(F.rms_norm(x, hidden, self.norm2, eps), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)

    def _attend(self, x: torch.Tensor, frames: Frames, past: Past) -> torch.Tensor:
        heads, kv_heads = self.config.heads, self.config.kv_heads
        rows = F.linear(x, self.qkv).view(*x.shape[:2], -1, self.config.head_dim)
        turned = frames.rotate(rows[:, :, : heads + kv_heads])
        kv = torch.cat([turned[:, :, heads:], rows[:, :, heads + kv_heads :]], dim=2)
        keys, values = past.extend(kv, 1).transpose(1, 2).chunk(2, dim=1)
        y = F.scaled_dot_product_attention(
            turned[:, :, :heads].transpose(1, 2),
            keys,
            values,
            attn_mask=frames.visible,
            enable_gqa=heads != kv_heads,
        )
        return F.linear(y.transpose(1, 2).flatten(2), self.output)


@dataclass(frozen=True, slots=True)
class UpsampleStage:
    """Each row becomes `rate` rows, then a ConvNeXt block (Liu et al., 2022).

    Its scale `gamma` is in the last weights. (B, n, H) -> (B, n * rate, H).
    """

    kernel: torch.Tensor
    """(rate * H, H)."""
    bias: torch.Tensor
    depthwise: torch.Tensor
    """(7, 1, H): a row per tap."""
    depthwise_bias: torch.Tensor
    norm: tuple[torch.Tensor, torch.Tensor]
    """Weight and bias."""
    expand: tuple[torch.Tensor, torch.Tensor]
    shrink: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def load(cls, weights: Weights, prefix: str, hidden: int, rate: int) -> UpsampleStage:
        """From `prefix`0, a transposed convolution, and `prefix`1, the block."""
        kernel = weights.tensor(f"{prefix}0.conv.weight", (hidden, hidden, rate))
        bias = weights.tensor(f"{prefix}0.conv.bias", (hidden,))
        taps = weights.tensor(f"{prefix}1.dwconv.conv.weight", (hidden, 1, DEPTHWISE_KERNEL))
        gamma = weights.tensor(f"{prefix}1.gamma", (hidden,))
        shrink, shrink_bias = _linear(weights, f"{prefix}1.pwconv2.", 4 * hidden, hidden)
        return cls(
            kernel=kernel.permute(2, 1, 0).flatten(0, 1).contiguous(),
            bias=bias.repeat(rate),
            depthwise=taps.permute(2, 1, 0).contiguous(),
            depthwise_bias=weights.tensor(f"{prefix}1.dwconv.conv.bias", (hidden,)),
            norm=(
                weights.tensor(f"{prefix}1.norm.weight", (hidden,)),
                weights.tensor(f"{prefix}1.norm.bias", (hidden,)),
            ),
            expand=_linear(weights, f"{prefix}1.pwconv1.", hidden, 4 * hidden),
            shrink=(gamma[:, None] * shrink, gamma * shrink_bias),
        )

    @property
    def state_shape(self) -> tuple[int, ...]:
        """What `Past` holds for this layer: the inputs that its kernel still reaches."""
        return DEPTHWISE_KERNEL - 1, self.depthwise.shape[2]

    def __call__(self, x: torch.Tensor, past: Past) -> torch.Tensor:
        batch, _, hidden = x.shape
        x = F.linear(x, self.kernel, self.bias).view(batch, -1, hidden)
        count, padded = x.shape[1], past.extend(x, 1)
        windows = padded.as_strided(
            (batch, DEPTHWISE_KERNEL, count, hidden), (padded.stride(0), hidden, hidden, 1)
        )
        y = (windows * self.depthwise).sum(1) + self.depthwise_bias
        y = F.layer_norm(y, (hidden,), *self.norm, NORM_EPS)
        return x + F.linear(F.gelu(F.linear(y, *self.expand)), *self.shrink)


def _scaled(weights: Weights, name: str, scale: str, shape: tuple[int, int]) -> torch.Tensor:
    """A matrix whose outputs are multiplied by a layer scale (Touvron et al., 2021)."""
    factors = weights.tensor(f"{scale}layer_scale.scale", shape[:1])
    return factors[:, None] * weights.tensor(f"{name}.weight", shape)


def _linear(
    weights: Weights, prefix: str, inputs: int, outputs: int
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = weights.tensor(f"{prefix}weight", (outputs, inputs))
    return weight, weights.tensor(f"{prefix}bias", (outputs,))
