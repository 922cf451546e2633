"""What the thinker stage makes of requests: prompts in; tokens to text output, text to speech.

Knows replies. Knows nothing of layers or weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from omni_core.engine.base import EngineRequest, StepOutput
from omni_core.scheduler.base import Outbox, Work
from omni_core.text.detokenize import Detokenizer, TokenBytes
from omni_core.text.payloads import ReplyStart, TokenChunk, as_logprobs
from omni_core.text.reasoning import ReasoningSplitter
from omni_core.types import Payload, SamplingParams, Usage
from omni_ming.model.config import ThinkerConfig
from omni_ming.payloads import Prepared, SpeechStart, SpokenText
from omni_ming.prompt import row_keys

NAME = "thinker"
TEXT_TARGET = "decode"


class _Spoken:
    """The text of a reply that is to be said, as it becomes certain: no thoughts, no half
    characters."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._detokenizer = Detokenizer(tokens)
        self._split = ReasoningSplitter(opened=False)

    def push(self, token_ids: tuple[int, ...], *, last: bool) -> str:
        """More of the text."""
        text = self._detokenizer.push(token_ids)
        runs = self._split.push(text + self._detokenizer.flush() if last else text)
        if last:
            runs += self._split.flush()
        return "".join(run for channel, run in runs if channel == "content")


@dataclass(frozen=True, slots=True)
class _Reply:
    """What the stage remembers of a reply under way."""

    usage: Usage
    """Of the prompt."""
    raw: bool
    spoken: _Spoken | None


class ThinkerStage:
    """`ARStage`: `Prepared` in, tokens to decode, text to who speaks it."""

    def __init__(
        self,
        targets: Sequence[str],
        tokens: TokenBytes,
        defaults: SamplingParams,
        config: ThinkerConfig,
    ) -> None:
        """`targets` of the stage: what is not decode speaks."""
        self._speaker = next((target for target in targets if target != TEXT_TARGET), None)
        self._tokens = tokens
        self._defaults = defaults
        self._config = config
        self._replies: dict[str, _Reply] = {}

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        """See `ARStage`; the caller's parameters for this stage win over those for the request."""
        prepared = cast(Prepared, work.payload)
        if "spoken_text" in prepared:
            self._read_aloud(work.request_id, prepared["spoken_text"], outbox)
            return None
        asked = work.params.sampling_for(NAME).over(work.params.sampling)
        ids = tuple(prepared["input_ids"].tolist())
        speaks = self._speaker is not None and "audio" in work.params.modalities
        self._replies[work.request_id] = _Reply(
            usage=self._prompt_usage(ids),
            raw=prepared.get("raw", False),
            spoken=_Spoken(self._tokens) if speaks else None,
        )
        if speaks:
            outbox.send(work.request_id, cast(Payload, SpeechStart()), target=self._speaker)
        return EngineRequest(
            request_id=work.request_id,
            prompt_len=len(ids),
            inputs=prepared,
            params=work.params,
            sampling=asked.over(self._defaults),
            prompt_token_ids=ids,
            row_keys=row_keys(prepared),
            strict_max_tokens=asked.max_tokens is not None,
        )

    def hear(self, request: EngineRequest, chunk: object, outbox: Outbox) -> bool:
        """See `ARStage`."""
        return True

    def publish(self, request: EngineRequest, output: StepOutput, outbox: Outbox) -> None:
        """See `ARStage`."""
        request_id, reply = request.request_id, self._replies[request.request_id]
        if output.index == 0:
            start = ReplyStart(opened=False, calls=False, raw=reply.raw)
            outbox.send(request_id, cast(Payload, start), target=TEXT_TARGET)
        chunk = TokenChunk(token=output.token, finish=output.finish_reason)
        if output.logprobs is not None:
            chunk["logprobs"] = as_logprobs(output.logprobs)
        outbox.stream(request_id, chunk, target=TEXT_TARGET)
        if reply.spoken is not None:
            is_last = output.finish_reason is not None
            if text := reply.spoken.push(output.released, last=is_last):
                outbox.stream(request_id, SpokenText(text=text), target=self._speaker)
        if output.finish_reason is not None:
            outbox.stream_done(request_id)
            used = Usage(text_tokens=output.index + 1, cached_tokens=output.cached_tokens)
            outbox.done(request_id, reply.usage + used)
            self.forget(request_id)

    def forget(self, request_id: str) -> None:
        """See `ARStage`."""
        self._replies.pop(request_id, None)

    def _read_aloud(self, request_id: str, text: str, outbox: Outbox) -> None:
        """All of the reply is there: no step is run for it."""
        outbox.send(request_id, cast(Payload, SpeechStart()), target=self._speaker)
        outbox.stream(request_id, SpokenText(text=text), target=self._speaker)
        outbox.stream_done(request_id)
        outbox.done(request_id, Usage(prompt_tokens=0))

    def _prompt_usage(self, ids: tuple[int, ...]) -> Usage:
        config = self._config
        return Usage(
            prompt_tokens=len(ids),
            prompt_audio_tokens=ids.count(config.audio_token_id),
            prompt_image_tokens=ids.count(config.image_token_id) + ids.count(config.video_token_id),
        )
