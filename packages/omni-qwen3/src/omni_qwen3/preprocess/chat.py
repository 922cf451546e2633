"""Messages to token ids with the checkpoint's own chat template.

Text of a message can never become a special token, however it is cut into parts; ordinary text
gives exactly the ids that transformers' processor gives. Knows no media beyond its kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from omni_core.errors import RequestError
from omni_core.types import MediaPart, Message, Part, TextPart
from omni_qwen3.preprocess.template import ChatTemplate
from omni_qwen3.preprocess.tokenizer import TextTokenizer

PRIVATE_USE = range(0xE000, 0xF900)
"""Code points without meaning of their own; one the request does not use breaks up special tokens
in its text while the template runs, and is taken out again before the text becomes ids."""


class ChatEncoder:
    """Template and tokenizer of one checkpoint; safe to share by threads."""

    def __init__(self, model_path: str) -> None:
        self._tokenizer = TextTokenizer(model_path)
        self._template = ChatTemplate(model_path, self._tokenizer.named)
        special = self._tokenizer.special
        self._special_pattern = re.compile("(" + "|".join(map(re.escape, special)) + ")")
        self.audio_end_token_id: int = special[self._tokenizer.named["audio_eos_token"]]

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the prompt up to the reply's first token, one placeholder per media item."""
        if not messages:
            raise RequestError("messages must not be empty", param="messages")
        mark = _unused_character(messages)
        prompt = self._template.render([self._turn(message, mark) for message in messages])
        special = self._tokenizer.special
        ids: list[int] = []
        for segment in self._special_pattern.split(prompt):
            if segment in special:
                ids.append(special[segment])
            else:
                ids += self._tokenizer.encode(segment.replace(mark, ""))
        return ids

    def read_aloud(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of the prompt, which is an empty user turn, and of `text` as the reply to it.

        Talkers know no replies without a user's turn; transformers' takes the assistant's for one
        when there is none.
        """
        prompt = self.encode((Message(role="user", content=()),))
        return prompt, self._tokenizer.encode(text)

    def _turn(self, message: Message, mark: str) -> dict[str, Any]:
        """A message as templates expect it; only one with media is a list of parts."""
        role = "system" if message.role == "developer" else message.role
        parts = [self._part(part, mark) for part in _joined(message.content)]
        if any(part["type"] != "text" for part in parts):
            return {"role": role, "content": parts}
        return {"role": role, "content": "".join(part["text"] for part in parts)}

    def _part(self, part: Part, mark: str) -> dict[str, str]:
        if isinstance(part, MediaPart):
            return {"type": part.kind}
        text = self._special_pattern.sub(lambda m: m[0][0] + mark + m[0][1:], part.text)
        return {"type": "text", "text": text}


def _joined(parts: Sequence[Part]) -> Iterator[Part]:
    """The parts with neighbouring texts made one, so that no two spell a special token together."""
    for is_text, group in groupby(parts, lambda part: isinstance(part, TextPart)):
        if is_text:
            yield TextPart(text="".join(p.text for p in group if isinstance(p, TextPart)))
        else:
            yield from group


def _unused_character(messages: Sequence[Message]) -> str:
    used = {
        character
        for message in messages
        for part in message.content
        if isinstance(part, TextPart)
        for character in part.text
    }
    free = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
    try:
        return next(free)
    except StopIteration:
        raise RequestError(
            "the text uses every private-use character of Unicode; leave one out", param="messages"
        ) from None
