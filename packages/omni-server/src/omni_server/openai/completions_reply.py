"""What /v1/completions answers with: `Completion` of the openai package and its parts.

Knows events of the pipeline. The same object is a whole reply, and a chunk of a streamed one.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from omni_core.errors import StageError
from omni_core.types import Event, Finished, TextDelta, TokenLogprob, TopLogprob
from omni_server.openai.reply import Json, ReplyIds

OBJECT: Final = "text_completion"


def completion_object(ids: ReplyIds, choices: list[Json]) -> Json:
    """`Completion` without its usage."""
    return {
        "id": ids.completion_id,
        "object": OBJECT,
        "created": ids.created,
        "model": ids.model,
        "choices": choices,
        "system_fingerprint": ids.fingerprint,
    }


class _Offsets:
    """Log-probabilities as this endpoint writes them, with the place of each token in the text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def object(self, tokens: Iterable[TokenLogprob]) -> Json:
        """`Logprobs` of the openai package, of the next tokens."""
        listed = list(tokens)
        return {
            "tokens": [token_name(token) for token in listed],
            "token_logprobs": [token.logprob for token in listed],
            "top_logprobs": [
                {token_name(other): other.logprob for other in (*token.top, token)}
                for token in listed
            ],
            "text_offset": [self._place(token) for token in listed],
        }

    def _place(self, token: TokenLogprob) -> int:
        place = self._characters
        self._characters += len(self._decoder.decode(token.spelling))
        return place


@dataclass(slots=True)
class CompletionWriter:
    """Turns the events of one choice into its parts, in order."""

    index: int
    echoed: str
    """Stands before its text, until it is told."""
    wants_logprobs: bool
    _offsets: _Offsets = field(init=False, default_factory=_Offsets)
    _text: list[str] = field(init=False, default_factory=list)
    _tokens: list[TokenLogprob] = field(init=False, default_factory=list)
    ended: Finished | None = field(init=False, default=None)

    @property
    def finished(self) -> Finished:
        """How the choice ended; StageError if the pipeline did not say."""
        if self.ended is None:
            raise StageError("The pipeline ended a request without finishing it.")
        return self.ended

    @property
    def n_logprobs(self) -> int:
        """Tokens whose log-probabilities the next part has."""
        return len(self._tokens) if self.wants_logprobs else 0

    def hear(self, event: Event) -> None:
        """Take one event."""
        match event:
            case TextDelta():
                self._text.append(event.text)
                self._tokens += event.logprobs
            case Finished():
                self.ended = event
            case _:
                pass

    def part(self) -> Json | None:
        """What has come since the last part, as a choice; None if that is nothing to tell."""
        text, tokens = self.echoed + "".join(self._text), self._tokens
        self.echoed, self._text, self._tokens = "", [], []
        if not (text or tokens or self.ended):
            return None
        return {
            "text": text,
            "index": self.index,
            "logprobs": self._offsets.object(tokens) if self.wants_logprobs else None,
            "finish_reason": self.ended.finish_reason if self.ended else None,
        }


def token_name(token: TopLogprob) -> str:
    """Its text; of one that ends inside a character its bytes, as OpenAI spells them."""
    try:
        return token.spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.spelling)
