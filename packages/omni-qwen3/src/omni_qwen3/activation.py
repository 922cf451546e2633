"""Activation memory of the encoder towers: what a call takes, and how to cut calls to a budget.

Knows sizes only. Cuts lie where the towers' attention has its borders, so a cut call computes what
the whole would: pictures and single temporal patches of videos, and the windows of audio.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from omni_core.errors import ConfigError
from omni_core.specs import StageContext
from omni_qwen3.options import whole_number
from omni_qwen3.towers.config import AudioConfig, VisionConfig

OPTION = "activation_budget_bytes"
CPU_BUDGET_BYTES = 4 * 1024**3
FREE_SHARE = 0.5
"""Of a card's free memory, for a stage without a `memory_fraction`."""
MARGIN = 1.1
"""Over what is counted: kernels' own buffers and the allocator's rounding."""
_FLOAT32 = 4
_INT64 = 8


def activation_budget(ctx: StageContext, device: torch.device) -> int:
    """Bytes that one tower call of a stage may take beyond weights, inputs and results.

    The stage's option `activation_budget_bytes`; else on a card what its `memory_fraction` leaves
    beside the weights (half of the free memory without a fraction), and 4 GiB on a CPU.
    """
    name, fraction = ctx.stage.name, ctx.stage.memory_fraction
    given = whole_number(ctx.stage, OPTION, None)
    if given is not None:
        return given
    if device.type != "cuda":
        return CPU_BUDGET_BYTES
    if fraction is None:
        return int(torch.cuda.mem_get_info(device)[0] * FREE_SHARE)
    share = int(torch.cuda.get_device_properties(device).total_memory * fraction)
    left = share - torch.cuda.memory_allocated(device)
    if left <= 0:
        raise ConfigError(
            f"stage {name!r}: its weights fill its memory_fraction {fraction}; raise it to leave "
            "room for activations"
        )
    return left


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


def cut_grids(grids: Iterable[Sequence[int]], max_patches: int) -> list[list[list[int]]]:
    """Grids [time, height, width] of consecutive items as calls of at most `max_patches` patches,
    which hold at least one picture of each.

    Videos are cut between temporal patches.
    """
    calls: list[list[list[int]]] = [[]]
    room = max_patches
    for time, height, width in grids:
        left, patches = time, height * width
        while left:
            count = min(left, room // patches)
            if not count:
                calls.append([])
                room = max_patches
                continue
            calls[-1].append([count, height, width])
            left -= count
            room -= count * patches
    return calls


def cut_clips(
    lengths: Iterable[int], *, chunk: int, window: int, max_frames: int
) -> list[list[int]]:
    """Frames of consecutive clips as calls of at most `max_frames`, counted in whole chunks.

    Clips are cut at multiples of `window`, a multiple of `chunk`; `max_frames` is at least one.
    """
    calls: list[list[int]] = [[]]
    room = max_frames
    for frames in lengths:
        left = frames
        while left:
            piece = left if left <= room // chunk * chunk else room // window * window
            if not piece:
                calls.append([])
                room = max_frames
                continue
            calls[-1].append(piece)
            left -= piece
            room -= -(-piece // chunk) * chunk
    return calls
