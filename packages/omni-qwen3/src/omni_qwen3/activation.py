"""Activation memory of the encoder towers: what a call takes. Knows sizes only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from omni_qwen3.towers.config import AudioConfig, VisionConfig

MARGIN = 1.1
"""Over what is counted: kernels' own buffers and the allocator's rounding."""
_FLOAT32 = 4
_INT64 = 8


def vision_patch_bytes(config: VisionConfig, itemsize: int) -> int:
    """Peak bytes of the vision tower per patch of a call; `config` is the vision_config.

    Counted from `towers.vision`, whose attention keeps no score matrix. With h hidden_size,
    i intermediate_size and s bytes an element, a patch takes the largest of

        patches       hs (+ ps)             a 16-bit convolution reorders its p pixel values
        embedding     5hs + 20h             four float32-weighted corners of the position grid
        rotary        5hs + 16h (+ 8h)      residual, norm, qkv; float32 products (and casts)
        attention     10hs                  residual, norm, qkv, turned q and k, pieces, joined
        feed-forward  2hs + 2is

    beside what lives through all blocks: the input, angles, and deepstack levels twice.
    """
    hidden, wide = config.hidden_size, config.intermediate_size
    pixels = config.in_channels * config.temporal_patch_size * config.patch_size**2
    short = itemsize < _FLOAT32
    casts = 2 * _FLOAT32 * hidden if short else 0
    peak = max(
        (pixels * short + hidden) * itemsize,
        5 * hidden * itemsize + 5 * _FLOAT32 * hidden,
        5 * hidden * itemsize + 4 * _FLOAT32 * hidden + casts,
        10 * hidden * itemsize,
        2 * (hidden + wide) * itemsize,
    )
    angles = 2 * _FLOAT32 * (hidden // config.num_heads) + 4 * (_INT64 + _FLOAT32) + 2 * _INT64
    levels = 2 * len(config.deepstack_visual_indexes) + 1
    rows = levels * config.out_hidden_size // config.spatial_merge_size**2
    counted: int = peak + angles + (pixels + rows) * itemsize
    return math.ceil(MARGIN * counted)


@dataclass(frozen=True, slots=True)
class AudioBytes:
    """Peak bytes of the audio tower for a call of n chunks:
    `convolution` * min(n, `at_once`) + `kept` * n."""

    convolution: int
    at_once: int
    kept: int

    def of(self, chunks: int) -> int:
        """Peak bytes of a call."""
        return self.convolution * min(chunks, self.at_once) + self.kept * chunks

    def chunks_within(self, budget: int) -> int:
        """The most chunks that fit `budget`; may be 0."""
        if self.of(self.at_once) <= budget:
            return (budget - self.convolution * self.at_once) // self.kept
        return budget // (self.convolution + self.kept)


def audio_bytes(config: AudioConfig, itemsize: int) -> AudioBytes:
    """Peak bytes of the audio tower per chunk; `config` is the audio_config.

    Counted from `towers.audio`. A chunk is an image of mel bins x frames,
    whose sides each of three convolutions halves. The first makes `downsample_hidden_size` channels
    of it, before and after GELU and once more where a kernel reorders them (16-bit ones do, others
    on some processors), for `conv_chunksize` chunks at a time. What the third makes is
    kept for all chunks, joined and turned; a token then takes, with d d_model, f encoder_ffn_dim
    and s bytes an element, the larger of 9ds and 2(d + f)s.
    """
    bins, frames = config.num_mel_bins, 2 * config.n_window
    channels = config.downsample_hidden_size
    first = channels * _halved(bins, 1) * _halved(frames, 1)
    third = channels * _halved(bins, 3) * _halved(frames, 3)
    token = max(9 * config.d_model, 2 * (config.d_model + config.encoder_ffn_dim))
    tokens = _halved(frames, 3) * token
    padded = 2 * bins * frames
    kept = (max(3 * third, third + tokens) + padded) * itemsize
    return AudioBytes(
        convolution=math.ceil(MARGIN * 3 * first * itemsize),
        at_once=config.conv_chunksize,
        kept=math.ceil(MARGIN * kept),
    )


def _halved(length: int, times: int) -> int:
    for _ in range(times):
        length = (length + 1) // 2
    return length
