"""Code2Wav: the vocoder network as an incremental decoder.

Knows codes, waveforms and the memory of a stream. Knows nothing of requests or stages. For frames
in any pieces it gives the samples of one decode of the whole, from the first frame on: after n
frames, n * samples_per_frame - lookahead_samples are final (n * 1920 - 555), and no sample that was
given is ever revised. The waveform of a whole reply ends there too, as transformers' does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from omni_qwen3.code2wav.config import Code2WavConfig, load_config
from omni_qwen3.code2wav.layers import (
    CausalConv,
    Embedding,
    GatedMlp,
    LayerScale,
    SnakeBeta,
    Upsample,
    WindowAttention,
    rotation_tables,
)
from omni_qwen3.code2wav.memory import Memory
from omni_qwen3.weights import Checkpoint, open_weights

PREFIX = "code2wav."


class TransformerLayer(nn.Module):
    """Pre-norm attention and feed-forward block, both scaled per channel."""

    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.input_layernorm = nn.RMSNorm(hidden, config.norm_eps)
        self.self_attn = WindowAttention(config)
        self.self_attn_layer_scale = LayerScale(hidden)
        self.post_attention_layernorm = nn.RMSNorm(hidden, config.norm_eps)
        self.mlp = GatedMlp(hidden, config.intermediate_size)
        self.mlp_layer_scale = LayerScale(hidden)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], memory: Memory
    ) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x), rotation, memory)
        x = x + self.self_attn_layer_scale(attended)
        y: torch.Tensor = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return y


class Transformer(nn.Module):
    """Sliding-window transformer over frames. (B, n, H) -> (B, n, H)."""

    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self._config = config
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        start = torch.tensor(memory.frames, device=x.device)[:, None]
        positions = start + torch.arange(x.shape[1], device=x.device)
        config = self._config
        rotation = rotation_tables(config.rope_theta, config.head_dim, positions, x.dtype)
        for layer in self.layers:
            x = layer(x, rotation, memory)
        y: torch.Tensor = self.norm(x)
        return y


class ConvNextBlock(nn.Module):
    """Depth-wise convolution and a two-layer perceptron per position (Liu et al., 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(width, width, 7, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        y = self.norm(self.dwconv(x, memory).transpose(1, 2))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        out: torch.Tensor = x + y.transpose(1, 2)
        return out


class Chain(nn.ModuleList):
    """Layers with memory, one after the other."""

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        for layer in self:
            x = layer(x, memory)
        return x


class ResidualUnit(nn.Module):
    """Two activated convolutions beside a skip connection."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(width)
        self.conv1 = CausalConv(width, width, 7, dilation=dilation)
        self.act2 = SnakeBeta(width)
        self.conv2 = CausalConv(width, width, 1)

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        y = self.conv1(self.act1(x), memory)
        out: torch.Tensor = x + self.conv2(self.act2(y), memory)
        return out


class DecoderBlock(nn.Module):
    """Upsampling by `rate` while halving the width, then three residual units."""

    def __init__(self, inputs: int, rate: int) -> None:
        super().__init__()
        outputs = inputs // 2
        self.block = nn.ModuleList(
            [SnakeBeta(inputs), Upsample(inputs, outputs, 2 * rate, rate)]
            + [ResidualUnit(outputs, dilation) for dilation in (1, 3, 9)]
        )

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        activation, upsample, *units = self.block
        x = upsample(activation(x), memory)
        for unit in units:
            x = unit(x, memory)
        return x


class Code2Wav(nn.Module):
    """Codes (B, groups, n) to samples (B, m) in [-1, 1]."""

    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.code_embedding = Embedding(config.codebook_size * config.groups, hidden)
        self.pre_transformer = Transformer(config)
        self.upsample = nn.ModuleList(
            Chain([Upsample(hidden, hidden, ratio, ratio), ConvNextBlock(hidden)])
            for ratio in config.upsampling_ratios
        )
        width = config.decoder_dim
        blocks: list[nn.Module] = [CausalConv(hidden, width, 7)]
        for rate in config.upsample_rates:
            blocks.append(DecoderBlock(width, rate))
            width //= 2
        self.decoder = nn.ModuleList([*blocks, SnakeBeta(width), CausalConv(width, 1, 7)])

    def forward(self, codes: torch.Tensor, memory: Memory) -> torch.Tensor:
        """Advance a batch of streams by n > 0 frames; `memory` is updated in place."""
        if codes.shape[1] != self.config.groups:
            raise ValueError(f"a frame has {self.config.groups} codes, not {codes.shape[1]}")
        offsets = torch.arange(self.config.groups, device=codes.device) * self.config.codebook_size
        x = self.code_embedding(codes + offsets[:, None]).mean(1)
        x = self.pre_transformer(x, memory).transpose(1, 2)
        for upsample in self.upsample:
            x = upsample(x, memory)
        first, *blocks, activation, last = self.decoder
        x = first(x, memory)
        for block in blocks:
            x = block(x, memory)
        x = last(activation(x), memory)
        memory.frames = [count + codes.shape[-1] for count in memory.frames]
        samples: torch.Tensor = x[:, 0].clamp(-1, 1)
        return samples

    @torch.inference_mode()
    def push(self, memories: Sequence[Memory], codes: torch.Tensor) -> torch.Tensor:
        """Advance several replies at once by codes (B, groups, n): samples (B, m), now final.

        Either all memories are fresh or none is; their positions may differ.
        """
        batch = Memory.join(memories)
        samples: torch.Tensor = self(codes, batch)
        batch.split_into(memories)
        return samples

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """One decode of a whole reply: codes (groups, n) to n * 1920 - 555 samples."""
        return self.push([Memory()], codes[None])[0]


def load_model(
    model_path: str, *, device: str, dtype: str, report: Callable[[str], None]
) -> Code2Wav:
    """The vocoder of a checkpoint, ready to push."""
    config = load_config(model_path)
    with torch.device("meta"):
        model = Code2Wav(config)
    with Checkpoint(model_path) as checkpoint:
        weights = open_weights(checkpoint, (PREFIX,), device=device, dtype=dtype, report=report)
        tensors = {
            name: weights.tensor(PREFIX + name, empty.shape)
            for name, empty in model.state_dict().items()
        }
        weights.finish()
    model.load_state_dict(tensors, assign=True)
    return model.requires_grad_(False).eval()
