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
from omni_core.layers.rows import (
    FlatRows,
    Patch,
    PromptLine,
    PromptRows,
    flat_rows,
    prompt_offsets,
)
from omni_core.types import IntArray
from omni_qwen3.config import OmniConfig
from omni_qwen3.payloads import Prepared

MEDIA_SIZES = ("image_grid_thw", "video_grid_thw", "second_per_grid", "audio_lengths")
"""Keys the Talker needs for its own positions."""
ASSISTANT_ROWS = 3
"""<|im_start|>, assistant and the newline that open the reply."""


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


class Prompt(PromptLine):
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
        super().__init__(prepared["input_ids"], prepared["positions"], prepared["rope_delta"])
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
    """Rows of several sequences, one after the other, and what else some of them have."""

    line: FlatRows
    media: list[Patch] = field(default_factory=list)
    deepstack: list[Patch] = field(default_factory=list)
    captures: list[Patch] = field(default_factory=list)


def flatten(segments: list[Segment], tokens: torch.Tensor, device: torch.device) -> FlatBatch:
    """Gather the rows of sequences whose `state` is a `Prompt`; the first segments are decode rows
    of the newest `tokens`, as many as these."""
    flat = FlatBatch(flat_rows(segments, tokens, device))
    for offset, segment in prompt_offsets(segments, decodes=len(tokens)):
        prompt: Prompt = segment.seq.state
        for rows, patches in (
            (prompt.media, flat.media),
            (prompt.deepstack, flat.deepstack),
            (prompt.capture, flat.captures),
        ):
            patch = rows.patch(segment, offset) if rows else None
            if patch is not None:
                patches.append(patch)
    return flat
