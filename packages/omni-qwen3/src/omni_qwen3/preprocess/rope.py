"""Multimodal rotary positions (M-RoPE) of a prompt: time, height and width of every token.

Knows token ids and media sizes. Knows no models. The rules are those of `get_rope_index` in
transformers' Qwen3-Omni, its float32 arithmetic and its handling of audio-in-video included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from omni_core.types import FloatArray, IntArray
from omni_qwen3.preprocess.audio import audio_tokens

_NONE = np.iinfo(np.int64).max - 1
"""Stands after every token: nothing of the kind is left."""


class PositionConfig(Protocol):
    """The ids and constants positions depend on, named as in config.json."""

    @property
    def image_token_id(self) -> int: ...
    @property
    def video_token_id(self) -> int: ...
    @property
    def audio_token_id(self) -> int: ...
    @property
    def vision_start_token_id(self) -> int: ...
    @property
    def audio_start_token_id(self) -> int: ...
    @property
    def position_id_per_seconds(self) -> float: ...
    @property
    def spatial_merge_size(self) -> int: ...


def rope_index(
    ids: IntArray,
    *,
    image_grid_thw: IntArray | None = None,
    video_grid_thw: IntArray | None = None,
    second_per_grid: Sequence[float] | None = None,
    audio_lengths: IntArray | None = None,
    use_audio_in_video: bool = False,
    config: PositionConfig,
) -> tuple[FloatArray, float]:
    """Positions float32 (3, S) of the prompt `ids` (S,), and what to add to S + i for token i of
    the reply.

    `audio_lengths` are mel frames. Without any picture all three rows count 0 to S - 1. The Talker
    calls this with `use_audio_in_video` False even where a sound track is interleaved, because
    transformers does: a video is then only found if a picture is still to come.
    """
    if image_grid_thw is None and video_grid_thw is None:
        return _line(np.float32(0), len(ids)).copy(), 0.0
    walk = _Walk(
        ids,
        images=[] if image_grid_thw is None else image_grid_thw.tolist(),
        videos=[] if video_grid_thw is None else video_grid_thw.tolist(),
        seconds=[] if second_per_grid is None else [float(value) for value in second_per_grid],
        audios=[] if audio_lengths is None else [audio_tokens(int(n)) for n in audio_lengths],
        config=config,
    )
    walk.run(use_audio_in_video)
    positions = np.concatenate(walk.columns, axis=1, dtype=np.float32)
    return positions, float(positions.max() + np.float32(1 - len(ids)))


def _line(start: np.float32, count: int) -> FloatArray:
    """(3, count): a run of text or sound, the same in all three rows."""
    return np.broadcast_to(np.arange(count, dtype=np.float32) + start, (3, count))


class _Walk:
    """Lays positions down from left to right, one media item with the text before it at a time."""

    def __init__(
        self,
        ids: IntArray,
        *,
        images: list[list[int]],
        videos: list[list[int]],
        seconds: list[float],
        audios: list[int],
        config: PositionConfig,
    ) -> None:
        self.columns: list[FloatArray] = []
        self._ids = ids
        self._images = iter(images)
        self._videos = iter(zip(videos, seconds, strict=True))
        self._audios = iter(audios)
        self._config = config
        self._visual_starts = np.flatnonzero(ids == config.vision_start_token_id)
        self._audio_starts = np.flatnonzero(ids == config.audio_start_token_id)
        self._cursor = 0

    def run(self, use_audio_in_video: bool) -> None:
        """Fill `columns`."""
        config = self._config
        after_start = self._ids[self._visual_starts + 1]
        video_mark = config.audio_start_token_id if use_audio_in_video else config.video_token_id
        images = int((after_start == config.image_token_id).sum())
        videos = int((after_start == video_mark).sum())
        audios = len(self._audio_starts)
        items = images + audios + (0 if use_audio_in_video else videos)
        for _ in range(items):
            visual = self._next(self._visual_starts) if images > 0 or videos > 0 else _NONE
            audio = self._next(self._audio_starts) if audios > 0 else _NONE
            if audio < visual:
                self._audio(audio)
                audios -= 1
            elif audio == visual + 1:
                self._video_with_sound(visual)
                # Uncounted videos take this below zero; a picture still to come keeps the search
                # for visual items alive all the same, as in transformers.
                videos -= 1
                audios -= 1
            elif self._ids[visual + 1] == config.image_token_id:
                self._image(visual)
                images -= 1
            else:
                self._video(visual)
                videos -= 1
        if self._cursor < len(self._ids):
            self.columns.append(_line(self._end(), len(self._ids) - self._cursor))

    def _next(self, starts: IntArray) -> int:
        at = int(np.searchsorted(starts, self._cursor))
        return int(starts[at]) if at < len(starts) else _NONE

    def _end(self) -> np.float32:
        """One after the last run; not after all of them, as transformers counts."""
        return np.float32(self.columns[-1].max() + 1) if self.columns else np.float32(0)

    def _audio(self, start: int) -> None:
        begin = self._open(start, marks=1)
        self._close(_line(begin, next(self._audios)), marks=1)

    def _image(self, start: int) -> None:
        begin = self._open(start, marks=1)
        self._close(self._grid(begin, next(self._images), 1.0), marks=1)

    def _video(self, start: int) -> None:
        begin = self._open(start, marks=1)
        self._close(self._grid(begin, *next(self._videos)), marks=1)

    def _video_with_sound(self, start: int) -> None:
        """Picture and sound in order of their time, the picture first where both are equal."""
        begin = self._open(start, marks=2)
        video = self._grid(begin, *next(self._videos))
        both = np.concatenate([video, _line(begin, next(self._audios))], axis=1)
        order = np.argsort(both[0], kind="stable")
        is_video = order < video.shape[1]
        last_run = len(order) - int(np.flatnonzero(is_video != is_video[-1]).max(initial=-1)) - 1
        merged = both[:, order]
        if last_run < len(order):
            self._append(merged[:, :-last_run])
        self._close(merged[:, -last_run:], marks=2)

    def _grid(self, begin: np.float32, grid: list[int], seconds: float) -> FloatArray:
        """(3, tokens): row-major over time, height, width after merging."""
        merge = self._config.spatial_merge_size
        shape = (grid[0], grid[1] // merge, grid[2] // merge)
        columns = np.indices(shape, dtype=np.float32).reshape(3, -1)
        columns[0] = (
            columns[0] * np.float32(seconds) * np.float32(self._config.position_id_per_seconds)
        )
        return columns + begin

    def _open(self, start: int, marks: int) -> np.float32:
        """Lay down text up to `start`, then the start marks; returns the item's first position."""
        begin, text = self._end(), start - self._cursor
        if text:
            self.columns.append(_line(begin, text))
        begin = np.float32(begin + text)
        self.columns.append(_line(begin, marks))
        self._cursor += text + marks
        return np.float32(begin + marks)

    def _append(self, run: FloatArray) -> None:
        self.columns.append(run)
        self._cursor += run.shape[1]

    def _close(self, run: FloatArray, marks: int) -> None:
        """Lay down the item's last run and its end marks."""
        self._append(run)
        self.columns.append(_line(self._end(), marks))
        self._cursor += marks
