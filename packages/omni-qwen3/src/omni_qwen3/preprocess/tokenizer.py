"""Text to token ids, as transformers' Qwen2Tokenizer makes them of the same files.

Knows how text is cut into words. Written here because importing transformers' class takes seconds.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from omni_core.checkpoint.files import read_json
from omni_core.checkpoint.vocabulary import read_merges, read_vocabulary
from omni_core.errors import ConfigError

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen2's tokenizer cuts text into words: part of the format, like the vocabulary."""


class TextTokenizer:
    """Text to ids; special tokens in the text are plain text. Safe to share by threads."""

    def __init__(self, model_path: str) -> None:
        """ConfigError names the file that is missing or broken."""
        self.named = _named(read_json(model_path, "tokenizer_config.json"))
        """{role in the chat template, such as "eos_token": the token's text}."""
        vocabulary = read_vocabulary(model_path)
        self._backend = _byte_level(BPE(vocab=vocabulary.base, merges=read_merges(model_path)))
        named = set(self.named.values())
        added = {token: token.special or token.text in named for token in vocabulary.added}
        self._backend.add_tokens(
            [AddedToken(t.text, special=special, normalized=False) for t, special in added.items()]
        )
        self.special = {token.text: token.token_id for token, special in added.items() if special}
        """{special token: id}."""
        self.longest = max(map(len, [*vocabulary.base, *(token.text for token in added)]))
        """Characters that a token can stand for at most: a letter of the vocabulary is a byte."""
        for token in added:
            if self._backend.token_to_id(token.text) != token.token_id:
                raise ConfigError(
                    f"the tokenizer of {model_path} gives {token.text!r} the id {token.token_id}, "
                    "which is not the next free one; download it again"
                )
        self._backend.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def _byte_level(model: BPE) -> Tokenizer:
    backend = Tokenizer(model)
    backend.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, spelling])
    return backend


def _named(config: dict[str, Any]) -> dict[str, str]:
    """The tokens that tokenizer_config.json gives a role, as text or as an object around it."""
    tokens = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token")
    }
    return {name: token for name, token in tokens.items() if isinstance(token, str)}
