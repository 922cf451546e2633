"""Text to token ids with the checkpoint's tokenizer.json. Knows no prompts."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer

from omni_core.checkpoint.files import read_json
from omni_core.checkpoint.vocabulary import read_vocabulary
from omni_core.errors import ContextLengthError

FILE = "tokenizer.json"


class TextTokenizer:
    """Text to ids; added tokens in ordinary text are plain text. Safe to share by threads."""

    def __init__(self, folder: str, context_length: int) -> None:
        """Of the tokenizer in `folder`, for texts of at most `context_length` tokens; ConfigError
        if it is missing or broken."""
        content = read_json(folder, FILE)
        self._spelled = _tokenizer(content)
        for token in content["added_tokens"]:
            token["special"] = True  # those that are not are found in ordinary text, too
        self._plain = _tokenizer(content)
        self._plain.encode_special_tokens = True
        longest = max(map(len, read_vocabulary(folder).base))
        self._most_characters = context_length * longest
        self._context_length = context_length

    def encode(self, text: str, *, param: str = "messages") -> list[int]:
        """Ids of ordinary text, what spells an added token included; ContextLengthError, which
        names `param`, for one that is too long to be counted."""
        self._require_countable(text, param)
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a prompt that is written out, special tokens and all."""
        self._require_countable(text, "prompt")
        ids: list[int] = self._spelled.encode(text, add_special_tokens=False).ids
        return ids

    def _require_countable(self, text: str, param: str) -> None:
        """Where even the longest tokens would be too many, to count them takes minutes."""
        if len(text) > self._most_characters:
            raise ContextLengthError(
                f"the text has {len(text)} characters, more than the model's context of "
                f"{self._context_length} tokens can hold; shorten the {param}",
                param=param,
            )


def _tokenizer(content: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(content))
