"""The tokens of a checkpoint, read from its tokenizer files without a tokenizer.

Knows both forms: tokenizer.json, or the older vocab.json, merges.txt and tokenizer_config.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.checkpoint.files import has_file, read_json
from omni_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that is matched whole, beside the byte-level vocabulary."""

    token_id: int
    text: str
    special: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Byte-level BPE: tokens by their spelling, and the tokens added later, by id."""

    base: dict[str, int]
    added: tuple[AddedToken, ...]


def read_vocabulary(model_path: str) -> Vocabulary:
    """The tokens of a checkpoint; ConfigError names the file that is missing or broken."""
    if has_file(model_path, "tokenizer.json"):
        tokenizer = read_json(model_path, "tokenizer.json")
        base, listed = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
        added = [(token["id"], token) for token in listed]
    else:
        base = read_json(model_path, "vocab.json")
        config = read_json(model_path, "tokenizer_config.json")
        added = [(int(name), token) for name, token in config["added_tokens_decoder"].items()]
    return Vocabulary(
        base=base, added=tuple(sorted(map(_added, added), key=lambda token: token.token_id))
    )


def read_merges(model_path: str) -> list[tuple[str, str]]:
    """The merges of byte-level BPE, first to last; ConfigError if they are missing."""
    if has_file(model_path, "tokenizer.json"):
        merges = read_json(model_path, "tokenizer.json")["model"]["merges"]
        return [_pair(merge) for merge in merges]
    path = Path(model_path) / "merges.txt"
    if not path.is_file():
        raise ConfigError(
            f"{model_path} has neither tokenizer.json nor merges.txt; download it again"
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    return [_pair(line) for line in lines if line and not line.startswith("#version")]


def _added(entry: tuple[int, dict[str, Any]]) -> AddedToken:
    token_id, token = entry
    return AddedToken(token_id=token_id, text=token["content"], special=token["special"])


def _pair(merge: str | list[str]) -> tuple[str, str]:
    """A merge as written by tokenizers of today (a list) or of before ("left right")."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right
