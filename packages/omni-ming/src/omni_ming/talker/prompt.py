"""The Talker's prompt: what it is told before it speaks, as token ids with gaps for a voice.

Knows the published form. Each piece is encoded by itself, so that no token spans two of them. Knows
nothing of rows or weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from omni_core.errors import ContextLengthError
from omni_core.types import IntArray
from omni_ming.preprocess.tokenizer import TextTokenizer
from omni_ming.talker.config import CACHE_ROWS, LLM
from omni_ming.voices import Voice

_SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
_TASK = "Please generate speech based on the following description.\n"
_MUSIC = ("Genre: ", "Mood: ", "Instrument: ", "Theme: ", "Duration: ")
"""A text that holds all of these describes music, and is no text to be read."""
MOST_SAID: Final = CACHE_ROWS // 2
"""Tokens of a recording's text. The rest is for its patches, the utterance and its speech."""


@dataclass(frozen=True, slots=True)
class TalkerPrompt:
    """Token ids, and the rows among them that are no tokens."""

    ids: IntArray
    """(P,)."""
    speaker_row: int | None = None
    """Where the speaker's embedding stands."""
    patches_from: int = 0
    """The first row of the reference patches, which are the last rows."""


@dataclass(slots=True)
class _Pieces:
    encode: Callable[[str], list[int]]
    ids: list[int] = field(default_factory=list)

    def add(self, *pieces: str) -> int:
        """Append; the first row behind them."""
        for piece in pieces:
            self.ids += self.encode(piece)
        return len(self.ids)


class TalkerPrompts:
    """Makes prompts of one checkpoint."""

    def __init__(self, model_path: str, patch: int) -> None:
        """For patches of so many latents; ConfigError if there is no tokenizer."""
        self._patch = patch
        self._tokenizer = TextTokenizer(str(Path(model_path) / LLM), CACHE_ROWS)

    def __call__(self, text: str, voice: Voice | None, instruction: str = "") -> TalkerPrompt:
        """The prompt for `text`, read as plain text even where it spells a special token;
        ContextLengthError if it can never be spoken in one go.

        The patches of the voice's reference follow, if what it says is known.
        """
        cloned = 0
        if voice is not None and voice.prompt_text:
            cloned = len(voice.latents) // self._patch
        pieces = _Pieces(self._tokenizer.encode_raw)
        pieces.add(_SYSTEM, "<|im_start|>user\n", _TASK)
        speaker_row = None
        if voice is not None:
            speaker_row = pieces.add("  speaker_1:", "<|vision_start|>")
            pieces.add("<|vision_pad|>", "<|vision_end|>\n")
        if not all(word in text for word in _MUSIC):
            pieces.add(" Text input:\n")
        if voice is not None and cloned:
            pieces.ids += self._said(voice)
        pieces.ids += self._tokenizer.encode(text)
        pieces.add("<|im_end|>\n", "<|im_start|>assistant\n")
        if instruction:
            pieces.ids += self._tokenizer.encode(instruction)
            pieces.add("<|im_end|>")
        patches_from = pieces.add("<audio>")
        pieces.add(*["<audioPatch>"] * cloned)
        return TalkerPrompt(np.array(pieces.ids), speaker_row, patches_from)

    def _said(self, voice: Voice) -> list[int]:
        ids = self._tokenizer.encode(voice.prompt_text)
        if len(ids) > MOST_SAID:
            raise ContextLengthError(
                f"what the voice's recording says has {len(ids)} tokens; the Talker has room for "
                f"{MOST_SAID} of them beside what it is to say, send less",
                param="voice_sample.text",
            )
        return ids
