"""Messages to token ids with the checkpoint's own chat template.

Text of a message can never become a special token, however it is cut into parts; ordinary text
gives exactly the ids that transformers' processor gives. Knows no media beyond its kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from jinja2 import TemplateError

from omni_core.errors import RequestError
from omni_core.types import MediaPart, Message, Part, TextPart
from omni_qwen3.files import has_file, read_json

PRIVATE_USE = range(0xE000, 0xF900)
"""Code points without meaning of their own; one the request does not use breaks up special tokens
in its text while the template runs, and is taken out again before the text becomes ids."""


class ChatEncoder:
    """Template and tokenizer of one checkpoint; safe to share by threads."""

    def __init__(self, model_path: str) -> None:
        from transformers import Qwen2Tokenizer  # AutoTokenizer imports torch and every model

        tokenizer = Qwen2Tokenizer.from_pretrained(model_path)
        self._render = tokenizer.apply_chat_template
        self._template = _legacy_template(model_path)
        special = {
            token.content: token_id
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        self._special = special
        self._special_pattern = re.compile("(" + "|".join(map(re.escape, special)) + ")")
        self._backend = tokenizer.backend_tokenizer
        self._backend.encode_special_tokens = True  # "<|im_end|>" inside a segment is plain text
        self.audio_end_token_id: int = special[tokenizer.audio_eos_token]

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the prompt up to the reply's first token, one placeholder per media item."""
        if not messages:
            raise RequestError("messages must not be empty", param="messages")
        mark = _unused_character(messages)
        prompt = self._prompt([self._turn(message, mark) for message in messages])
        ids: list[int] = []
        for segment in self._special_pattern.split(prompt):
            if segment in self._special:
                ids.append(self._special[segment])
            else:
                text = segment.replace(mark, "")
                ids += self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def _prompt(self, turns: list[dict[str, Any]]) -> str:
        try:
            prompt: str = self._render(
                turns, chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as exc:
            raise RequestError(
                f"the model's chat template refuses these messages: {exc}", param="messages"
            ) from exc
        return prompt

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


def _legacy_template(model_path: str) -> str | None:
    """The template of chat_template.json, which the tokenizer itself does not read."""
    name = "chat_template.json"
    if not has_file(model_path, name):
        return None
    template: str = read_json(model_path, name)["chat_template"]
    return template
