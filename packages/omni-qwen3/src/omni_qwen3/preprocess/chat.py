"""Messages to token ids with the checkpoint's own chat template.

Text of a message can never become a special token, however it is cut into parts; that of a raw
prompt can. Ordinary text gives exactly the ids that transformers' processor gives. Knows no media
beyond its kind.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from omni_core.errors import ContextLengthError, RequestError
from omni_core.text.template import ChatTemplate
from omni_core.types import MediaPart, Message, Part, TextPart, Tool, ToolCall
from omni_qwen3.preprocess.tokenizer import TextTokenizer

PRIVATE_USE = range(0xE000, 0xF900)
"""Code points without meaning of their own; one the request does not use breaks up special tokens
in its text while the template runs, and is taken out again before the text becomes ids."""


class ChatEncoder:
    """Template and tokenizer of one checkpoint; safe to share by threads."""

    def __init__(self, model_path: str, context_length: int) -> None:
        """`context_length` in tokens: what is far over it is refused before it is counted."""
        self._context_length = context_length
        self._tokenizer = TextTokenizer(model_path)
        self._template = ChatTemplate(model_path, self._tokenizer.named)
        special = self._tokenizer.special
        self._special_pattern = re.compile("(" + "|".join(map(re.escape, special)) + ")")
        self.audio_end_token_id: int = special[self._tokenizer.named["audio_eos_token"]]

    def encode(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Ids of the prompt up to the reply's first token, one placeholder per media item; `tools`
        are shown to the model."""
        if not messages:
            raise RequestError("messages must not be empty", param="messages")
        mark = _unused_character(messages, tools)
        turns = [self._turn(message, mark) for message in messages]
        shown = [self._marked(_function(tool), mark) for tool in tools]
        return self._ids(self._template.render(turns, shown), "messages", mark)

    def read_aloud(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of the prompt, which is an empty user turn, and of `text` as the reply to it.

        Talkers know no replies without a user's turn; transformers' takes the assistant's for one
        when there is none.
        """
        prompt = self.encode((Message(role="user", content=()),))
        return prompt, self._tokenizer.encode(text)

    def raw(self, text: str) -> list[int]:
        """Ids of a prompt that is written out, special tokens and all."""
        return self._ids(text, "prompt")

    def _ids(self, prompt: str, param: str, mark: str = "") -> list[int]:
        self._require_countable(prompt, param, mark)
        special = self._tokenizer.special
        ids: list[int] = []
        for segment in self._special_pattern.split(prompt):
            if segment in special:
                ids.append(special[segment])
            elif segment:
                ids += self._tokenizer.encode(segment.replace(mark, "") if mark else segment)
        return ids

    def _require_countable(self, prompt: str, param: str, mark: str) -> None:
        """ContextLengthError where even the longest tokens would be too many: to count a hundred
        megabytes takes minutes and gigabytes."""
        most = self._context_length * self._tokenizer.longest
        if len(prompt) <= most:
            return
        text = unicodedata.normalize("NFC", prompt.replace(mark, "") if mark else prompt)
        if len(text) > most:
            raise ContextLengthError(
                f"the prompt has {len(text)} characters, more than the model's context of "
                f"{self._context_length} tokens can hold; shorten the {param}",
                param=param,
            )

    def _turn(self, message: Message, mark: str) -> dict[str, Any]:
        """A message as templates expect it; only one with media is a list of parts."""
        turn: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
        parts = [self._part(part, mark) for part in _joined(message.content)]
        if any(part["type"] != "text" for part in parts):
            turn["content"] = parts
        else:
            turn["content"] = "".join(part["text"] for part in parts)
        if message.name is not None:
            turn["name"] = self._marked(message.name, mark)
        if message.tool_calls:
            turn["tool_calls"] = [self._marked(_call(c), mark) for c in message.tool_calls]
        if message.tool_call_id is not None:
            turn["tool_call_id"] = self._marked(message.tool_call_id, mark)
        return turn

    def _part(self, part: Part, mark: str) -> dict[str, str]:
        if isinstance(part, MediaPart):
            return {"type": part.kind}
        return {"type": "text", "text": self._marked(part.text, mark)}

    def _marked(self, value: Any, mark: str) -> Any:
        """JSON with the special tokens in all of its texts broken up."""
        match value:
            case str():
                return self._special_pattern.sub(lambda m: m[0][0] + mark + m[0][1:], value)
            case dict():
                return {self._marked(k, mark): self._marked(v, mark) for k, v in value.items()}
            case list():
                return [self._marked(item, mark) for item in value]
            case _:
                return value


def _joined(parts: Sequence[Part]) -> Iterator[Part]:
    """The parts with neighbouring texts made one, so that no two spell a special token together."""
    for is_text, group in groupby(parts, lambda part: isinstance(part, TextPart)):
        if is_text:
            yield TextPart(text="".join(p.text for p in group if isinstance(p, TextPart)))
        else:
            yield from group


def _function(tool: Tool) -> dict[str, Any]:
    """A function as templates expect it, which is as OpenAI writes it."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"type": "function", "id": call.call_id, "function": function}


def _unused_character(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    said = [
        (m.name, m.tool_calls, [part.text for part in m.content if isinstance(part, TextPart)])
        for m in messages
    ]
    used = set(msgspec.json.encode((said, tools)).decode())
    free = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
    try:
        return next(free)
    except StopIteration:
        raise RequestError(
            "the text uses every private-use character of Unicode; leave one out", param="messages"
        ) from None
