"""Prompts of the Thinker on the device, and flat batches of their rows and the replies' rows.

Knows token ids, positions and which rows are media, visual, or wanted by the Talker. Knows nothing
of layers: a `Patch` says which rows, the runner says when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omni_core.engine.base import Segment
from omni_core.tensors import tensor_over
from omni_core.types import FloatArray, IntArray
from omni_qwen3.config import OmniConfig
from omni_qwen3.payloads import Prepared

MEDIA_SIZES = ("image_grid_thw", "video_grid_thw", "second_per_grid", "audio_lengths")
"""Keys the Talker needs for its own positions."""
ASSISTANT_ROWS = 3
"""<|im_start|>, assistant and the newline that open the reply."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Values of some rows of a flat batch: to write into it, to add to it, or to fill from it."""

    rows: torch.Tensor
    """Int64 (R,) rows of the batch."""
    values: torch.Tensor
    """(..., R, H), a view of what the prompt holds."""


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Values (..., M, H) for the rows `index` (M,), ascending, of one prompt."""

    index: IntArray
    values: torch.Tensor

    def part(self, start: int, stop: int) -> PromptRows | None:
        """Those of the rows that are in `start`..`stop`, a view; None for none."""
        low, high = np.searchsorted(self.index, [start, stop])
        if low == high:
            return None
        return PromptRows(self.index[low:high], self.values[..., low:high, :])

    def patch(self, segment: Segment, offset: int) -> Patch | None:
        """The part inside a segment that begins at row `offset` of a batch; None if empty."""
        part = self.part(segment.start, segment.start + segment.count)
        if part is None:
            return None
        rows = torch.from_numpy(part.index + (offset - segment.start))
        return Patch(rows.to(self.values.device), part.values)


@dataclass(frozen=True, slots=True)
class UserTurns:
    """What the Talker is conditioned on: all user turns, and the head of the reply."""

    rows: IntArray
    """(U,) rows of the prompt."""
    ids: IntArray
    is_media: npt.NDArray[np.bool_]
    hidden: torch.Tensor
    """(media rows, H): `accept_hidden_layer` states, filled as the prompt is computed."""
    assistant_ids: IntArray
    media_sizes: dict[str, Any]


class Prompt:
    """`Sequence.state` of the Thinker."""

    def __init__(
        self,
        prepared: Prepared,
        config: OmniConfig,
        captures: bool,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.ids: IntArray = prepared["input_ids"]
        self._positions = prepared["positions"].astype(np.float32)
        self.rope_delta = float(np.float32(prepared["rope_delta"]))
        self.media: PromptRows | None = None
        self.deepstack: PromptRows | None = None
        self.user: UserTurns | None = None
        self.capture: PromptRows | None = None
        if "media_index" in prepared:
            values = torch.as_tensor(prepared["media_embeds"]).to(device, dtype)
            self.media = PromptRows(prepared["media_index"], values)
        if "visual_index" in prepared:
            values = torch.as_tensor(prepared["deepstack"]).to(device, dtype)
            self.deepstack = PromptRows(prepared["visual_index"], values)
        if captures:
            self.user = user_turns(prepared, config, device=device, dtype=dtype)
            self.capture = PromptRows(self.user.rows[self.user.is_media], self.user.hidden)

    def reply_position(self, row: int) -> float:
        """Of a row after the prompt, on every axis."""
        return row + self.rope_delta

    def captured(self, start: int, stop: int) -> IntArray:
        """Those of the rows `start`..`stop` of which hidden states are captured."""
        part = self.capture.part(start, stop) if self.capture else None
        return np.empty(0, dtype=np.int64) if part is None else part.index

    def keep(self, start: int, stop: int) -> torch.Tensor | None:
        """A copy of what was captured of rows `start`..`stop`; None for nothing."""
        part = self.capture.part(start, stop) if self.capture else None
        return None if part is None else part.values.clone()

    def restore(self, start: int, stop: int, kept: torch.Tensor | None) -> None:
        """Take what another prompt with the same rows has kept of them."""
        part = self.capture.part(start, stop) if self.capture else None
        if part is not None and kept is not None:
            part.values.copy_(kept)

    def rows(self, segment: Segment) -> tuple[IntArray, FloatArray]:
        """Token ids (count,) and M-RoPE positions (3, count) of a segment, in prompt or reply."""
        length, start = len(self.ids), segment.start
        stop = start + segment.count
        ids, positions = self.ids[start:stop], self._positions[:, start:stop]
        if stop > length:
            first = max(start, length)
            tokens = segment.seq.tokens[first - length : stop - length]
            line = np.arange(first, stop, dtype=np.float32) + np.float32(self.rope_delta)
            ids = np.concatenate([ids, np.array(tokens, dtype=np.int64)])
            positions = np.concatenate([positions, np.broadcast_to(line, (3, len(line)))], axis=1)
        return ids, positions


def user_rows(ids: IntArray, config: OmniConfig) -> IntArray:
    """Rows of all turns whose <|im_start|> is followed by `user`."""
    starts = np.flatnonzero(ids == config.im_start_token_id)
    turn = np.searchsorted(starts, np.arange(len(ids)), side="right") - 1
    roles = ids[np.minimum(starts + 1, len(ids) - 1)]
    is_user = np.append(roles == config.user_token_id, False)  # rows before any turn index -1
    return np.flatnonzero(is_user[turn])


def user_turns(
    prepared: Prepared,
    config: OmniConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> UserTurns:
    """Of a prompt; `device` and `dtype` of the hidden states to come."""
    ids = prepared["input_ids"]
    rows = user_rows(ids, config)
    own = ids[rows]
    is_media = np.zeros(len(rows), dtype=bool)
    for token_id in config.thinker.media_token_ids:  # np.isin sorts, and takes as long as the rest
        is_media |= own == token_id
    reply = int(np.flatnonzero(ids == config.im_start_token_id).max(initial=0))
    hidden_size = config.thinker.decoder.hidden_size
    return UserTurns(
        rows=rows,
        ids=own,
        is_media=is_media,
        hidden=torch.zeros(int(is_media.sum()), hidden_size, device=device, dtype=dtype),
        assistant_ids=ids[reply : reply + ASSISTANT_ROWS].copy(),
        media_sizes={key: value for key, value in prepared.items() if key in MEDIA_SIZES},
    )


@dataclass(slots=True)
class FlatBatch:
    """Rows of several sequences, one after the other."""

    ids: torch.Tensor
    """Int64 (N,)."""
    positions: torch.Tensor
    """Float32 (3, N)."""
    sampled_rows: torch.Tensor
    """Int64 (M,): the last row of each segment that samples."""
    media: list[Patch] = field(default_factory=list)
    deepstack: list[Patch] = field(default_factory=list)
    captures: list[Patch] = field(default_factory=list)


def flatten(segments: list[Segment], tokens: torch.Tensor, device: torch.device) -> FlatBatch:
    """Gather the rows of sequences whose `state` is a `Prompt`; the first segments are decode rows
    of the newest `tokens`, as many as these."""
    decodes = len(tokens)
    parts = [segment.seq.state.rows(segment) for segment in segments[decodes:]]
    ends = np.cumsum([segment.count for segment in segments])
    sampled = [int(e) - 1 for e, segment in zip(ends, segments, strict=True) if segment.samples]
    line = np.array(decode_positions(segments[:decodes]), dtype=np.float32)
    positions = [np.broadcast_to(line, (3, decodes)), *(p for _, p in parts)]
    ids = [tensor_over(ids).to(device) for ids, _ in parts]
    flat = FlatBatch(
        ids=torch.cat([tokens, *ids]),
        positions=torch.from_numpy(np.concatenate(positions, axis=1)).to(device),
        sampled_rows=torch.tensor(sampled, dtype=torch.long, device=device),
    )
    for end, segment in zip(ends[decodes:], segments[decodes:], strict=True):
        prompt: Prompt = segment.seq.state
        for rows, patches in (
            (prompt.media, flat.media),
            (prompt.deepstack, flat.deepstack),
            (prompt.capture, flat.captures),
        ):
            patch = rows.patch(segment, int(end) - segment.count) if rows else None
            if patch is not None:
                patches.append(patch)
    return flat


def decode_positions(segments: list[Segment]) -> list[float]:
    """Positions of decode rows, on every axis."""
    return [s.seq.state.reply_position(s.start) for s in segments]
