"""One choice of a reply that is sent whole: its events gathered, and the object they make.

Knows events of the pipeline. What the reply around its choices looks like is `reply`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from omni_core.errors import StageError
from omni_core.types import (
    AudioDelta,
    Channel,
    Event,
    Finished,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from omni_server.offload import off_loop
from omni_server.openai.logprobs import logprobs_object
from omni_server.openai.reply import Json, audio_object, choice_object, tool_call_object

_QUICK_TOKENS: Final = 100
"""The log-probabilities of so many take a millisecond or two, with 20 others of each."""
Remember = Callable[[str, str], int]
"""(audio id, transcript) -> Unix time at which both are forgotten."""


@dataclass(slots=True, kw_only=True)
class Choice:
    """Gathers the events of one choice."""

    index: int
    said: dict[Channel, list[str]] = field(default_factory=lambda: {"content": [], "reasoning": []})
    tokens: list[TokenLogprob] = field(default_factory=list)
    sound: list[AudioDelta] = field(default_factory=list)
    calls: list[list[ToolCallDelta]] = field(default_factory=list)
    ended: Finished | None = None

    def hear(self, event: Event) -> None:
        """Take one event."""
        match event:
            case TextDelta():
                self.said[event.channel].append(event.text)
                self.tokens += event.logprobs if event.channel == "content" else ()
            case ToolCallDelta():
                if event.index == len(self.calls):
                    self.calls.append([])
                self.calls[event.index].append(event)
            case AudioDelta() if event.samples.size:
                self.sound.append(event)
            case Finished():
                self.ended = event

    @property
    def finished(self) -> Finished:
        """How the choice ended; StageError if the pipeline did not say."""
        if self.ended is None:
            raise StageError("The pipeline ended a request without finishing it.")
        return self.ended

    async def object(
        self, *, audio_id: str, audio_format: str, wants_logprobs: bool, remember: Remember
    ) -> Json:
        """The choice as OpenAI writes it; a long one, or one with audio, is made in a thread."""
        transcript = "".join(self.said["content"])
        expires_at = remember(audio_id, transcript) if self.sound else 0
        return await off_loop(
            partial(self._object, transcript, audio_id, audio_format, wants_logprobs, expires_at),
            if_=bool(self.sound) or len(self.tokens) > _QUICK_TOKENS,
        )

    def _object(
        self,
        transcript: str,
        audio_id: str,
        audio_format: str,
        wants_logprobs: bool,
        expires_at: int,
    ) -> Json:
        audio = None
        if self.sound:
            audio = audio_object(self.sound, audio_format, audio_id, transcript, expires_at)
            audio["finish_reason"] = self.finished.audio_finish_reason
        choice = choice_object(
            self.index,
            transcript,
            "".join(self.said["reasoning"]),
            audio,
            [tool_call_object(deltas) for deltas in self.calls],
            self.finished.finish_reason,
        )
        if wants_logprobs:
            choice["logprobs"] = logprobs_object(self.tokens)
        return choice
