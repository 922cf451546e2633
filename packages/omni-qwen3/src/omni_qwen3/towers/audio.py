"""The audio tower: mel frames of clips to rows of the Thinker.

Knows mel frames and clips. Knows nothing of requests. Attribute names are the checkpoint's; the
numbers are those of transformers' Qwen3OmniMoeAudioEncoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from omni_core.layers.segments import attend
from omni_qwen3.preprocess.audio import audio_tokens
from omni_qwen3.towers.config import AudioConfig

MAX_TIMESCALE = 10_000.0


class Attention(nn.Module):
    """Full attention inside each window."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self._heads = config.encoder_attention_heads
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.k_proj = nn.Linear(config.d_model, config.d_model)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        query, key, value = (
            project(x).unflatten(1, (self._heads, -1))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        out: torch.Tensor = self.out_proj(attend(query, key, value, lengths))
        return out


class Layer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.self_attn = Attention(config)
        self.final_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)

    def forward(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), lengths)
        x = x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))
        if x.dtype == torch.float16:  # as transformers: its largest values overflow in half
            limit = torch.finfo(x.dtype).max - 1000
            x = x.clamp(-limit, limit)
        return x


class AudioTower(nn.Module):
    """Clips of any lengths; each is cut into chunks, and attends within windows of chunks."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config = config
        channels, hidden = config.downsample_hidden_size, config.d_model
        self.conv2d1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2d2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.conv2d3 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.conv_out = nn.Linear(
            channels * _thrice_halved(config.num_mel_bins), hidden, bias=False
        )
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.encoder_layers))
        self.ln_post = nn.LayerNorm(hidden)
        self.proj1 = nn.Linear(hidden, hidden)
        self.proj2 = nn.Linear(hidden, config.output_dim)

    def forward(self, features: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """`features` (mel_bins, frames) of clips of `lengths` frames -> (tokens, output_dim).

        Chunks are padded to the longest of the call, which the convolutions see.
        """
        chunks = [size for length in lengths for size in self._chunks(length)]
        pieces = list(torch.split(features.T, chunks))
        x = self._embed(pad_sequence(pieces, batch_first=True))
        tokens = torch.tensor([audio_tokens(size) for size in chunks], device=x.device)
        there = torch.arange(x.shape[1], device=x.device) < tokens[:, None]
        windows = self._windows(lengths, x.shape[1])
        x = x[there]
        for layer in self.layers:
            x = layer(x, windows)
        out: torch.Tensor = self.proj2(F.gelu(self.proj1(self.ln_post(x))))
        return out

    def _chunks(self, frames: int) -> list[int]:
        full, rest = divmod(frames, self.config.chunk_frames)
        return [self.config.chunk_frames] * full + [rest] * bool(rest)

    def _windows(self, lengths: Sequence[int], chunk_tokens: int) -> list[int]:
        """Tokens of each attention window; a clip's last one is shorter."""
        window = chunk_tokens * (self.config.n_window_infer // self.config.chunk_frames)
        windows: list[int] = []
        for length in lengths:
            full, rest = divmod(audio_tokens(length), window)
            windows += [window] * full + [rest] * bool(rest)
        return windows

    def _embed(self, chunks: torch.Tensor) -> torch.Tensor:
        """(chunks, frames, num_mel_bins) -> (chunks, tokens, d_model), positions added."""
        images = torch.split(chunks.transpose(1, 2)[:, None], self.config.conv_chunksize)
        convolved = torch.cat([self._convolve(image) for image in images])
        x: torch.Tensor = self.conv_out(convolved.permute(0, 3, 1, 2).flatten(2))
        return x + _sinusoids(x.shape[1], x.shape[2], x.device).to(x.dtype)

    def _convolve(self, x: torch.Tensor) -> torch.Tensor:
        for conv in (self.conv2d1, self.conv2d2, self.conv2d3):
            x = F.gelu(conv(x))
        return x


def _thrice_halved(size: int) -> int:
    for _ in range(3):
        size = (size + 1) // 2
    return size


def _sinusoids(length: int, width: int, device: torch.device) -> torch.Tensor:
    """Whisper's positions, float32 (length, width): sines of all scales, then cosines."""
    step = math.log(MAX_TIMESCALE) / (width // 2 - 1)
    scales = torch.exp(-step * torch.arange(width // 2, device=device).float())
    times = torch.arange(length, device=device)[:, None] * scales
    return torch.cat([times.sin(), times.cos()], dim=1)
