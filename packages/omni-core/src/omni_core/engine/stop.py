"""Stop strings in growing text, and which text and tokens are safe to send on meanwhile.

Knows text and token ids; detokenizing is a callable. Knows nothing of tensors or models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omni_core.errors import RequestError

Decode = Callable[[list[int]], str]
"""Token ids -> text; a character whose bytes are not complete yet shows as U+FFFD at the end."""

INCOMPLETE = "\ufffd"


@dataclass(frozen=True, slots=True)
class StopState:
    """How far text may be shown."""

    safe: int
    """The first `safe` characters of all text are certainly part of the reply."""
    stopped: bool
    """A stop string is complete; it starts at character `safe` and nothing after it counts."""


class StopMatcher:
    """Looks for stop strings in text that arrives in pieces of any size.

    The match that ends first wins, the longest of these if several end together, so the result does
    not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise RequestError("a stop string must not be empty", param="stop")
        self._stops = tuple(stops)
        self._held = ""
        self._state = StopState(safe=0, stopped=False)

    def push(self, text: str) -> StopState:
        """Take more text; once stopped, further text changes nothing."""
        if self._state.stopped:
            return self._state
        base = self._state.safe
        tail = self._held + text
        match = self._first_match(tail)
        if match is not None:
            self._held = ""
            self._state = StopState(safe=base + match, stopped=True)
        else:
            keep = self._possible_start(tail)
            self._held = tail[len(tail) - keep :]
            self._state = StopState(safe=base + len(tail) - keep, stopped=False)
        return self._state

    def _first_match(self, tail: str) -> int | None:
        found = [(at + len(stop), at) for stop in self._stops if (at := tail.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_start(self, tail: str) -> int:
        """Length of the longest suffix of `tail` that some stop string begins with."""
        longest = min(len(tail), max(map(len, self._stops), default=1) - 1)
        for size in range(longest, 0, -1):
            suffix = tail[len(tail) - size :]
            if any(stop.startswith(suffix) for stop in self._stops):
                return size
        return 0


class IncrementalText:
    """Text of a growing token sequence, decoded a few tokens at a time.

    Every decode starts at an earlier character border, so that tokenizers which treat the first
    token of a sequence differently (a stripped leading space) see it in context.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._context = 0
        """Tokens at the head of the window whose text was returned before."""
        self._returned = 0
        """Characters of the window's text returned before."""
        self.pending = False
        """The last token ended inside a character."""

    def push(self, token: int) -> str:
        """Take one token; returns the text that is now final, without an incomplete character."""
        self._window.append(token)
        text = self._decode(self._window)
        self.pending = text.endswith(INCOMPLETE)
        final = len(text) - self.pending
        new = text[self._returned : final]
        self._returned = max(self._returned, final)
        if not self.pending:
            self._slide()
        return new

    def _slide(self) -> None:
        """Make the tokens since the last border the context of the next ones."""
        recent = self._window[self._context :]
        text = self._decode(recent)
        if text:
            self._window, self._returned = recent, len(text)
        self._context = len(self._window)


class StopTracker:
    """Stop strings over tokens: which tokens of a reply may be released."""

    def __init__(self, stops: Sequence[str], decode: Decode) -> None:
        self._matcher = StopMatcher(stops)
        self._text = IncrementalText(decode)
        self._length = 0
        self._held: list[tuple[int, int]] = []
        """(token, character at which its text ends), not released yet."""

    @property
    def holding(self) -> bool:
        """Whether the last token is not released yet."""
        return bool(self._held)

    def push(self, token: int) -> tuple[tuple[int, ...], bool]:
        """Take one token; returns the tokens now certain to be part of the reply, and whether a
        stop string is complete (then the tokens that spell it are never released)."""
        new = self._text.push(token)
        self._length += len(new)
        self._held.append((token, self._length + self._text.pending))
        state = self._matcher.push(new)
        count = 0
        while count < len(self._held) and self._held[count][1] <= state.safe:
            count += 1
        return self._release(count), state.stopped

    def flush(self) -> tuple[int, ...]:
        """The reply ended without a stop string: release what was held."""
        return self._release(len(self._held))

    def _release(self, count: int) -> tuple[int, ...]:
        released, self._held = self._held[:count], self._held[count:]
        return tuple(token for token, _ in released)
