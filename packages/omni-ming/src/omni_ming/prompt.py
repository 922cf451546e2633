"""Prompts of the Thinker on the device, and flat batches of their rows and the replies' rows.

Knows token ids, positions and which rows are media. Knows nothing of layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
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
from omni_ming.model.config import ThinkerConfig
from omni_ming.model.router import AUDIO, IMAGE
from omni_ming.payloads import Prepared


class Prompt(PromptLine):
    """`Sequence.state` of the Thinker."""

    def __init__(self, prepared: Prepared, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(prepared["input_ids"], prepared["positions"], prepared["rope_delta"])
        self.media: PromptRows | None = None
        if "media_index" in prepared:
            values = torch.as_tensor(prepared["media_embeds"]).to(device, dtype)
            self.media = PromptRows(prepared["media_index"], values)


@dataclass(slots=True)
class FlatBatch:
    """Rows of several sequences, one after the other, and those of them that are media."""

    line: FlatRows
    media: list[Patch] = field(default_factory=list)


def flatten(segments: list[Segment], tokens: torch.Tensor, device: torch.device) -> FlatBatch:
    """Gather the rows of sequences whose `state` is a `Prompt`; the first segments are decode rows
    of the newest `tokens`, as many as these."""
    flat = FlatBatch(flat_rows(segments, tokens, device))
    for offset, segment in prompt_offsets(segments, decodes=len(tokens)):
        prompt: Prompt = segment.seq.state
        patch = prompt.media.patch(segment, offset) if prompt.media else None
        if patch is not None:
            flat.media.append(patch)
    return flat


def kinds_of(flat: FlatBatch, config: ThinkerConfig) -> torch.Tensor | None:
    """The router's kind of each row, int64 (N,); None where none is media. Rows of replies are text
    whatever their token: a token that the model writes has no media behind it."""
    if not flat.media:
        return None
    ids = flat.line.ids
    kinds = torch.zeros_like(ids)
    for patch in flat.media:
        kinds[patch.rows] = torch.where(ids[patch.rows] == config.audio_token_id, AUDIO, IMAGE)
    return kinds


def row_keys(prepared: Prepared) -> IntArray:
    """(S,) int64, for the prefix cache: the token id of text rows, a negative key of media rows.

    Prompts with equal keys up to a row have equal input rows, positions and kinds up to it: a media
    key covers the item's bytes, its options and its grid.
    """
    keys: IntArray = np.array(prepared["input_ids"])
    if "media_index" in prepared:
        keys[prepared["media_index"]] = prepared["media_row_keys"]
    return keys
