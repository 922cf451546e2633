"""What the thinker stage makes of requests: prompts in; tokens to text output, text to speech.

Knows replies. Knows nothing of layers or weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from omni_core.engine.base import EngineRequest, StepOutput
from omni_core.errors import StageError
from omni_core.scheduler.base import Outbox, Work
from omni_core.text.decode import Reply
from omni_core.text.detokenize import TokenBytes
from omni_core.text.payloads import ReplyStart, TokenChunk
from omni_core.text.stage import (
    TEXT_TARGET,
    TextReply,
    asked_sampling,
    engine_request,
    prompt_usage,
)
from omni_core.types import Payload, RequestParams, SamplingParams, TextDelta, Usage
from omni_ming.model.config import ThinkerConfig
from omni_ming.payloads import Prepared, SpeechStart, SpokenText
from omni_ming.prompt import row_keys


@dataclass(frozen=True, slots=True)
class _Reply:
    """What the stage remembers of a reply under way."""

    text: TextReply
    read: Reply | None
    """What a caller gets to read of it, which is what is said; None if nothing is said."""


class ThinkerStage:
    """`ARStage`: `Prepared` in, tokens to decode, text to who speaks it."""

    def __init__(
        self,
        targets: Sequence[str],
        tokens: TokenBytes,
        defaults: SamplingParams,
        config: ThinkerConfig,
        *,
        end_tokens: frozenset[int],
    ) -> None:
        """`targets` of the stage: what is not decode speaks."""
        self._speaker = next((target for target in targets if target != TEXT_TARGET), None)
        self._tokens = tokens
        self._defaults = defaults
        self._config = config
        self._end_tokens = end_tokens
        self._replies: dict[str, _Reply] = {}

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        """See `ARStage`."""
        prepared = cast(Prepared, work.payload)
        if "spoken_text" in prepared:
            self._read_aloud(work.request_id, prepared, outbox)
            return None
        ids = tuple(prepared["input_ids"].tolist())
        start = ReplyStart(opened=False, calls=False, raw=prepared.get("raw", False))
        speaks = self._speaker is not None and "audio" in work.params.modalities
        self._replies[work.request_id] = _Reply(
            TextReply(start, self._prompt_usage(ids)),
            self._readable(start, work.params) if speaks else None,
        )
        if speaks:
            outbox.send(work.request_id, _speech_start(prepared), target=self._speaker)
        return engine_request(
            work,
            prepared,
            ids,
            row_keys(prepared),
            defaults=self._defaults,
            grammar=asked_sampling(work.params).grammar,
        )

    def hear(self, request: EngineRequest, chunk: object, outbox: Outbox) -> bool:
        """See `ARStage`."""
        return True

    def publish(self, request: EngineRequest, output: StepOutput, outbox: Outbox) -> None:
        """See `ARStage`."""
        request_id, reply = request.request_id, self._replies[request.request_id]
        reply.text.write(request_id, output, outbox)
        if reply.read is not None and (text := _said(reply.read, output)):
            outbox.stream(request_id, SpokenText(text=text), target=self._speaker)
        if output.finish_reason is not None:
            reply.text.end(request_id, output, outbox)
            self.forget(request_id)

    def forget(self, request_id: str) -> None:
        """See `ARStage`."""
        self._replies.pop(request_id, None)

    def _readable(self, start: ReplyStart, params: RequestParams) -> Reply:
        return Reply(
            self._tokens,
            self._end_tokens,
            params,
            reasons=not start["raw"],
            opened=start["opened"],
            calls=start["calls"],
        )

    def _read_aloud(self, request_id: str, prepared: Prepared, outbox: Outbox) -> None:
        """All of the reply is there: no step is run for it."""
        if self._speaker is None:
            raise StageError("a text to read aloud came to a pipeline that does not speak")
        outbox.send(request_id, _speech_start(prepared), target=self._speaker)
        text = prepared["spoken_text"]
        outbox.stream(request_id, SpokenText(text=text), target=self._speaker)
        outbox.stream_done(request_id)
        outbox.done(request_id, Usage(prompt_tokens=len(prepared["input_ids"])))

    def _prompt_usage(self, ids: tuple[int, ...]) -> Usage:
        config = self._config
        pictures = (config.image_token_id, config.video_token_id)
        return prompt_usage(ids, audio=(config.audio_token_id,), pictures=pictures)


def _speech_start(prepared: Prepared) -> Payload:
    start = SpeechStart(cloned=True) if prepared.get("cloned") else SpeechStart()
    return cast(Payload, start)


def _said(read: Reply, output: StepOutput) -> str:
    """What certainly is part of the answer now: no thoughts, no stop string, no half characters."""
    deltas = read.push([TokenChunk(token=output.token, finish=output.finish_reason)])
    return "".join(
        delta.text
        for delta in deltas
        if isinstance(delta, TextDelta) and delta.channel == "content"
    )
