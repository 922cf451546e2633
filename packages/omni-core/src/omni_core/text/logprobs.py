"""Log-probabilities of a reply's tokens, each held back until its text is certain.

Knows tokens, their spelling and places in the text. What is certain, decode knows.
"""

from __future__ import annotations

from collections import deque

from omni_core.text.detokenize import TokenBytes
from omni_core.text.payloads import Logprobs
from omni_core.types import Channel, TextDelta, TokenLogprob, TopLogprob


class HeldLogprobs:
    """Of one reply, in order."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._held: deque[tuple[int, TextDelta]] = deque()
        """(character of the reply at which the token's text ends, what to say of it)."""

    def hold(self, token_id: int, found: Logprobs, *, end: int, channel: Channel) -> None:
        """Take what the Thinker found of one token, whose text ends at character `end`."""
        likeliest = zip(found["top_ids"], found["top"], strict=True)
        token = TokenLogprob(
            token_id=token_id,
            spelling=self._tokens.spelling(token_id),
            logprob=found["token"],
            top=tuple(
                TopLogprob(token_id=other, spelling=self._tokens.spelling(other), logprob=logprob)
                for other, logprob in likeliest
            ),
        )
        self._held.append((end, TextDelta(text="", channel=channel, logprobs=(token,))))

    def release(self, shown: int) -> list[TextDelta]:
        """Of the tokens whose text ends within the first `shown` characters, each once."""
        released: list[TextDelta] = []
        while self._held and self._held[0][0] <= shown:
            released.append(self._held.popleft()[1])
        return released
