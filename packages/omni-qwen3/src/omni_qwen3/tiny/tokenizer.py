"""The tiny tokenizer: byte-level BPE over a few words, then Qwen's special tokens in their order.

Nothing is trained: the merges spell each word from its first letter on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ROLES = ("user", "assistant", "system")
"""Must come first among the words: the model tells turns apart by these being one token each."""

_OTHER_WORDS = (
    "the of and to in is are you what do see hear say this that picture sound video image please "
    "count one two three four five describe hello how today answer short question quick brown fox "
    "dog shell sea voice"
)

_SPECIALS = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> "
    "<|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> "
    "<|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> "
    "<|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> "
    "<think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> "
    "<tts_text_bos_single> <|audio_pad|>"
)

WORDS = (*ROLES, *_OTHER_WORDS.split())
SPECIAL_TOKENS = tuple(_SPECIALS.split())

_ORDINARY = ("tool_", "fim_", "repo_", "file_", "think")
"""Added tokens that are not special, i.e. that survive `skip_special_tokens`."""

_SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What Qwen's tokenizer.json splits text with before BPE."""


def byte_symbols() -> list[str]:
    """The 256 byte symbols of byte-level BPE, in code point order.

    Printable Latin-1 bytes stand for themselves, the others for U+0100 onward (GPT-2's table).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(point) for point in (*sorted(printable), *range(0x100, 0x100 + len(others)))]


SPACE = "\u0120"
"""The symbol of the byte 0x20."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens, their ids and the merges that make them."""

    merges: list[tuple[str, str]] = field(default_factory=lambda: _prefix_merges(WORDS))

    @property
    def base_tokens(self) -> list[str]:
        """Byte symbols, then merged tokens; a token's place is its id."""
        return [*byte_symbols(), *(left + right for left, right in self.merges)]

    @property
    def ids(self) -> dict[str, int]:
        """{token: id}, special tokens included."""
        return {token: i for i, token in enumerate((*self.base_tokens, *SPECIAL_TOKENS))}

    @property
    def printable_ids(self) -> list[int]:
        """Ids of tokens that decode to printable ASCII on their own."""
        return [
            i
            for i, token in enumerate(self.base_tokens)
            if token.replace(SPACE, " ").isprintable() and token.replace(SPACE, " ").isascii()
        ]


def _prefix_merges(words: tuple[str, ...]) -> list[tuple[str, str]]:
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        symbols = word if word in ROLES else SPACE + word
        for end in range(1, len(symbols)):
            merges[symbols[:end], symbols[end]] = None
    return list(merges)


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """Contents of tokenizer.json."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {
        "type": "Split",
        "pattern": {"Regex": _SPLIT_PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(vocabulary.ids[token], token) for token in SPECIAL_TOKENS],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {**byte_level, "use_regex": False}],
        },
        "post_processor": {**byte_level, "trim_offsets": False, "use_regex": False},
        "decoder": {**byte_level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(vocabulary.base_tokens)},
            "merges": [list(merge) for merge in vocabulary.merges],
        },
    }


def _added_token(token_id: int, content: str) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": not content.strip("<|/>").startswith(_ORDINARY),
    }


def tokenizer_config() -> dict[str, Any]:
    """Contents of tokenizer_config.json; the media tokens become attributes of the tokenizer."""
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "processor_class": "Qwen3OmniMoeProcessor",
        "model_max_length": 131072,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "image_token": "<|image_pad|>",
        "audio_token": "<|audio_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    }
