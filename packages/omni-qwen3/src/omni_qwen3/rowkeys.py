"""Keys of the rows of a prompt, for the prefix cache."""

from __future__ import annotations

from omni_core.types import IntArray
from omni_qwen3.payloads import Prepared


def row_keys(prepared: Prepared) -> IntArray:
    """(S,) int64, for the prefix cache: the token id of text rows, a negative key of media rows.

    Prompts with equal keys up to a row have equal input rows and positions up to it: a media key
    covers bytes, options, grid and time between frames, and how an item's neighbours pad it.
    """
    keys = prepared["input_ids"].copy()
    if "media_index" in prepared:
        keys[prepared["media_index"]] = prepared["media_row_keys"]
    return keys
