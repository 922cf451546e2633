"""Token ids back to text, one token at a time, without ever cutting a character in two.

Knows byte-level BPE: every token is a fixed run of bytes. Knows nothing of stop strings or stages.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from omni_core.checkpoint.vocabulary import read_vocabulary


def _byte_alphabet() -> dict[str, int]:
    """{character: byte} of byte-level BPE (GPT-2): printable Latin-1 stands for itself, the other
    bytes, in order, for the code points from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


class TokenBytes:
    """The bytes of every token of a checkpoint's tokenizer; special tokens have none.

    Read straight from the tokenizer's files: the stages that only turn ids into text then start
    without transformers.
    """

    def __init__(self, model_path: str) -> None:
        alphabet = _byte_alphabet()
        vocabulary = read_vocabulary(model_path)
        self._bytes: dict[int, bytes] = {
            token_id: _spelled(token, alphabet) for token, token_id in vocabulary.base.items()
        }
        for token in vocabulary.added:
            self._bytes[token.token_id] = b"" if token.special else token.text.encode()
        self._special = {
            token.token_id: token.text.encode() for token in vocabulary.added if token.special
        }

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of a token; none for ids the model can emit but the tokenizer does not know."""
        return self._bytes.get(token_id, b"")

    def spelling(self, token_id: int) -> bytes:
        """Its bytes, or the name of a special token."""
        return self._special.get(token_id, self[token_id])

    def text(self, token_ids: Iterable[int]) -> str:
        """Text of whole replies; a character that is not complete shows as U+FFFD."""
        return b"".join(self[token_id] for token_id in token_ids).decode(errors="replace")


def _spelled(text: str, alphabet: dict[str, int]) -> bytes:
    if all(character in alphabet for character in text):
        return bytes(alphabet[character] for character in text)
    return text.encode()


class Detokenizer:
    """The text of one growing reply. Invalid bytes show as U+FFFD, as tokenizers decode them."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that is complete now; a character begun but not ended waits."""
        return self._utf8.decode(b"".join(self._tokens[token_id] for token_id in token_ids))

    @property
    def waiting(self) -> bool:
        """Whether a character is begun and not ended."""
        return bool(self._utf8.getstate()[0])

    def flush(self) -> str:
        """What is left at the end of the reply: U+FFFD for a character cut short, or nothing."""
        return self._utf8.decode(b"", final=True)
