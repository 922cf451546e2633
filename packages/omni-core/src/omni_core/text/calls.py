"""Calls of functions in a reply's text, told apart from what it says.

Knows the markup that checkpoints are trained to write calls in, `<tool_call>` around one JSON
object, and text that grows piece by piece, however it is cut. Knows nothing of tokens or stages.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from omni_core.types import ToolCallDelta

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)'
)
_HEAD_CHARACTERS: Final = 1024
"""A longer head is none, and such a call is read when it is whole."""

Run: TypeAlias = str | ToolCallDelta
"""Text that the reply says, or more of a call."""


def new_call_id() -> str:
    """An id for one call."""
    return f"call_{uuid.uuid4().hex[:24]}"


class CallParser:
    """Text in, runs of content and of calls out.

    A call's name is told once, then its arguments as they come. White space before a call and the
    markup are dropped. Markup around something that is no call is content: else it were lost.
    """

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self._place: Literal["content", "head", "arguments", "tail"] = "content"
        self._held = ""
        self._json = _JsonObject()
        self._call_id = ""
        self.calls = 0
        """Begun so far."""

    @property
    def waiting(self) -> int:
        """Characters that may turn out to be content or markup."""
        return len(self._held) if self._place == "content" else 0

    @property
    def in_call(self) -> bool:
        """Whether the text so far ends within a call."""
        return self._place != "content"

    @property
    def in_arguments(self) -> bool:
        """Whether the arguments of a call have begun and not ended."""
        return self._place == "arguments"

    def push(self, text: str) -> list[Run]:
        """Take more text; the runs that are certain now."""
        self._held += text
        runs: list[Run] = []
        while self._step(runs):
            pass
        return [run for run in runs if run]

    def flush(self, *, cut: bool) -> list[Run]:
        """What is left at the end of the reply, which was `cut` if it did not end by itself: then
        nothing is told of a call whose name did not come."""
        held, place = self._held, self._place
        self._held, self._place = "", "content"
        match place:
            case "content":
                return [held] if held else []
            case "head" if not cut:
                return self._whole(held) or [OPEN + held]
            case _:
                return []

    def _step(self, runs: list[Run]) -> bool:
        """Go on from the present place; False when more text is needed."""
        match self._place:
            case "content":
                return self._content(runs)
            case "head":
                return self._head(runs)
            case "arguments":
                return self._arguments(runs)
            case "tail":
                return self._tail()

    def _content(self, runs: list[Run]) -> bool:
        at = self._held.find(OPEN)
        if at >= 0:
            runs.append(self._held[:at].rstrip())
            self._held = self._held[at + len(OPEN) :]
            self._place = "head"
            return True
        certain = len(self._held[: len(self._held) - _begun(self._held, OPEN)].rstrip())
        runs.append(self._held[:certain])
        self._held = self._held[certain:]
        return False

    def _head(self, runs: list[Run]) -> bool:
        head = _HEAD.match(self._held, endpos=_HEAD_CHARACTERS)
        if head is not None and (name := _string(head[1])):
            runs.append(self._begin(name))
            self._held = self._held[head.end() :]
            self._json = _JsonObject()
            self._place = "arguments"
            return True
        body, closed, rest = self._held.partition(CLOSE)
        if not closed:
            return False
        runs += self._whole(body) or [OPEN + body + CLOSE]
        self._held, self._place = rest, "content"
        return True

    def _arguments(self, runs: list[Run]) -> bool:
        count = self._json.push(self._held)
        if count:
            piece = self._held[:count]
            runs.append(ToolCallDelta(index=self.calls - 1, call_id=self._call_id, arguments=piece))
        self._held = self._held[count:]
        if self._json.ended:
            self._place = "tail"
        return self._json.ended

    def _tail(self) -> bool:
        closed, opened = self._held.find(CLOSE), self._held.find(OPEN)
        if opened >= 0 and (closed < 0 or opened < closed):  # the next call closes this one
            self._held, self._place = self._held[opened:], "content"
            return True
        if closed >= 0:
            self._held, self._place = self._held[closed + len(CLOSE) :], "content"
            return True
        begun = max(_begun(self._held, CLOSE), _begun(self._held, OPEN))
        self._held = self._held[len(self._held) - begun :]
        return False

    def _begin(self, name: str, arguments: str = "") -> ToolCallDelta:
        index, self._call_id = self.calls, self._new_id()
        self.calls += 1
        return ToolCallDelta(index=index, call_id=self._call_id, name=name, arguments=arguments)

    def _whole(self, body: str) -> list[Run]:
        """The call that a body in another order or form is; nothing if it is none."""
        try:
            call = json.loads(body)
            json.dumps(call, ensure_ascii=False).encode()  # ValueError for half a character
        except (ValueError, RecursionError):
            return []
        match call:
            case {"name": str(name), "arguments": str(arguments)} if name:
                return [self._begin(name, arguments)]
            case {"name": str(name), "arguments": dict(arguments)} if name:
                return [self._begin(name, json.dumps(arguments, ensure_ascii=False))]
            case {"name": str(name), **others} if name and "arguments" not in others:
                return [self._begin(name, "{}")]
            case _:
                return []


class _JsonObject:
    """Finds the end of an object in text that comes in pieces, which may not be JSON at all."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.ended = False

    def push(self, text: str) -> int:
        """How many of these characters belong to the object."""
        for at, character in enumerate(text):
            if self._in_string:
                self._read_string(character)
            elif character == "<":  # the call is closed although the object is not
                self.ended = True
                return at
            elif self._read(character):
                self.ended = True
                return at + 1
        return len(text)

    def _read_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False

    def _read(self, character: str) -> bool:
        """Outside strings; whether the object ends here."""
        match character:
            case '"':
                self._in_string = True
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
        return self._depth == 0


def _begun(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` begins with."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)


def _string(written: str) -> str:
    try:
        read = str(json.loads(written))
        read.encode()  # ValueError for half a character
    except ValueError:
        return ""
    return read
