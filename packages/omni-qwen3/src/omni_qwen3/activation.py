"""Activation memory of the encoder towers: what a call takes. Knows sizes only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from omni_core.layers.vit import MARGIN, patch_bytes
from omni_qwen3.towers.config import AudioConfig, VisionConfig


def vision_patch_bytes(config: VisionConfig, itemsize: int) -> int:
    """Peak bytes of the vision tower per patch of a call; deepstack levels are there twice."""
    levels = 2 * len(config.deepstack_visual_indexes) + 1
    kept = levels * config.out_hidden_size // config.spatial_merge_size**2
    return patch_bytes(config, itemsize, kept)


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
