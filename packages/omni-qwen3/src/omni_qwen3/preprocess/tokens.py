"""Media placeholders in token ids: one per item as the chat template writes them, one per encoder
row as the Thinker reads them.

Knows ids and sizes. Interleaves a video with its sound exactly as transformers' Qwen3-Omni
processor does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from omni_core.types import IntArray
from omni_qwen3.preprocess.audio import audio_tokens
from omni_qwen3.preprocess.settings import PromptConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSizes:
    """Sizes of a prompt's media, each kind in message order."""

    image_grids: list[list[int]]
    """[time, height, width] in patches, per image."""
    video_grids: list[list[int]]
    second_per_grid: list[float]
    """Seconds between two temporal patches, per video."""
    audio_lengths: list[int]
    """Mel frames per clip; a sound track that is interleaved stands in its video's place."""
    use_audio_in_video: bool


def expanded_length(n_ids: int, sizes: MediaSizes, config: PromptConfig) -> int:
    """Length of what `expand` would return for `n_ids` ids, without making it."""
    merged = config.spatial_merge_size**2
    grids = [*sizes.image_grids, *sizes.video_grids]
    length = n_ids + sum(math.prod(grid) // merged - 1 for grid in grids)
    length += sum(audio_tokens(frames) for frames in sizes.audio_lengths)
    sound_tracks = len(sizes.video_grids) if sizes.use_audio_in_video else 0
    # A clip stands in for its placeholder; a sound track has none, but two marks around it.
    return length + 2 * sound_tracks - (len(sizes.audio_lengths) - sound_tracks)


def expand(
    ids: list[int], sizes: MediaSizes, *, audio_end_token_id: int, config: PromptConfig
) -> IntArray:
    """Repeat every placeholder of `ids` as often as its item has rows; returns (S,).

    Each kind must have as many placeholders as `sizes` has items. With `use_audio_in_video`, a
    video's rows and its sound's are mixed by time between audio marks of their own.
    """
    images, audios = iter(sizes.image_grids), iter(sizes.audio_lengths)
    videos = iter(zip(sizes.video_grids, sizes.second_per_grid, strict=True))
    merged = config.spatial_merge_size**2
    expanded: list[int] = []
    for token in ids:
        if token == config.image_token_id:
            expanded += [token] * (math.prod(next(images)) // merged)
        elif token == config.audio_token_id:
            expanded += [token] * audio_tokens(next(audios))
        elif token == config.video_token_id and sizes.use_audio_in_video:
            grid, seconds = next(videos)
            mixed = _with_sound(grid, seconds, audio_tokens(next(audios)), config)
            expanded += [config.audio_start_token_id, *mixed.tolist(), audio_end_token_id]
        elif token == config.video_token_id:
            grid, _ = next(videos)
            expanded += [token] * (math.prod(grid) // merged)
        else:
            expanded.append(token)
    return np.array(expanded, dtype=np.int64)


def _with_sound(
    grid: list[int], seconds: float, sound_tokens: int, config: PromptConfig
) -> IntArray:
    """Video and audio placeholders in order of time, the picture first where both are equal."""
    per_time = grid[1] * grid[2] // config.spatial_merge_size**2
    times = np.arange(grid[0]) * seconds * config.position_id_per_seconds
    video_times = np.repeat(times, per_time)
    order = np.argsort(np.concatenate([video_times, np.arange(sound_tokens)]), kind="stable")
    return np.where(order < len(video_times), config.video_token_id, config.audio_token_id)


def rows_of(ids: IntArray, token: int) -> IntArray:
    """Ascending positions of `token` in the prompt (S,)."""
    return np.flatnonzero(ids == token)
