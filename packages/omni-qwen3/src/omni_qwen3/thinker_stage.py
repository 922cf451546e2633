"""What the thinker stage makes of requests: prompts in; tokens to text output, rows to the Talker.

Knows replies, tool calls and what the Talker is conditioned on. Knows nothing of layers or weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import msgspec

from omni_core.engine.base import EngineRequest, StepOutput
from omni_core.engine.stop import StopTracker
from omni_core.errors import StageError
from omni_core.scheduler.base import Outbox, Work
from omni_core.text import calls
from omni_core.text.payloads import ReplyStart
from omni_core.text.reasoning import left_open
from omni_core.text.reply_grammar import reply_grammar
from omni_core.text.stage import TextReply, asked_sampling, engine_request, prompt_usage
from omni_core.types import FinishReason, Payload, SamplingParams, ToolUse, Usage
from omni_qwen3.head_start import HeadStart
from omni_qwen3.payloads import Conditioning, Prepared
from omni_qwen3.rowkeys import row_keys
from omni_qwen3.thinker_prompts import ThinkerInputs, ThinkerPrompts

SPEECH_TARGET = "talker_ar"
ROWS_PER_CHUNK = 64
"""Of a text to read aloud: the Talker projects them together."""


@dataclass(slots=True)
class _Reply:
    """What the stage remembers of a reply under way."""

    text: TextReply
    speaks: bool
    unspoken: StopTracker | None = None
    """Looks for calls in what is to be said; None where there can be none."""
    silent: bool = False
    """A call has begun: no more of the reply is said."""
    opened: bool = False
    """The Talker has what the reply is conditioned on."""
    conditioning: Conditioning | None = None
    """Waits for the first spoken token."""
    speaking: bool = False
    released: int = 0


class ThinkerStage:
    """`ARStage`: `Prepared` in, tokens to decode, rows of the spoken tokens to the Talker.

    The Talker is given what a reply is conditioned on as soon as that is known: of turns without
    media at once, so that it computes its prompt while the Thinker computes its own.
    """

    def __init__(
        self,
        runner: ThinkerPrompts,
        defaults: SamplingParams,
        *,
        can_speak: bool,
        max_running: int,
        head_start: HeadStart | None = None,
    ) -> None:
        """`max_running` is the engine's: with more replies than that, what those that wait are
        conditioned on stays here."""
        self._runner = runner
        self._defaults = defaults
        self._can_speak = can_speak
        self._max_running = max_running
        self._replies: dict[str, _Reply] = {}
        self._head_start = head_start or HeadStart()

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        """See `ARStage`; the caller's parameters for this stage win over those for the request."""
        prepared = cast(Prepared, work.payload)
        if "spoken_ids" in prepared:
            self._read_aloud(work.request_id, prepared, outbox)
            return None
        speaks = self._can_speak and "audio" in work.params.modalities
        ids = tuple(prepared["input_ids"].tolist())
        packed = prepared.get("tool_use")
        use = None if packed is None else msgspec.msgpack.decode(packed, type=ToolUse)
        thinks = self._has_opened_thought(ids)
        start = ReplyStart(opened=thinks, calls=use is not None, raw=prepared.get("raw", False))
        reply = _Reply(TextReply(start, self._prompt_usage(ids)), speaks)
        if speaks and use is not None:
            reply.unspoken = StopTracker([calls.OPEN], self._runner.text)
        grammar = reply_grammar(asked_sampling(work.params).grammar, use, opened=thinks)
        self._replies[work.request_id] = reply
        if speaks and len(self._replies) <= self._max_running:
            self._open(work.request_id, reply, self._runner.conditioning(prepared), outbox)
        late = speaks and not reply.opened
        inputs = ThinkerInputs(prepared, late, shares=self._can_speak)
        return engine_request(
            work, inputs, ids, row_keys(prepared), defaults=self._defaults, grammar=grammar
        )

    def hear(self, request: EngineRequest, chunk: object, outbox: Outbox) -> bool:
        """See `ARStage`."""
        return True

    def publish(self, request: EngineRequest, output: StepOutput, outbox: Outbox) -> None:
        """See `ARStage`."""
        request_id, reply = request.request_id, self._replies[request.request_id]
        if output.index == 0:
            reply.conditioning = output.data
        reply.text.write(request_id, output, outbox)
        if reply.speaks:
            said = _without_calls(reply, _spoken(reply, output), output.finish_reason)
            self._speak(request_id, reply, said, outbox)
            self._head_start.left(request_id, output.index)
        if output.finish_reason is not None:
            self._finish(request_id, reply, output, outbox)

    def forget(self, request_id: str) -> None:
        """See `ARStage`."""
        self._replies.pop(request_id, None)
        self._head_start.forget(request_id)

    def rest_s(self) -> float:
        """How long the next step may wait; not at all while a prompt is computed or somebody only
        reads."""
        rest_s = self._head_start.rest_s()
        return rest_s if rest_s and all(r.speaking for r in self._replies.values()) else 0.0

    def _read_aloud(self, request_id: str, prepared: Prepared, outbox: Outbox) -> None:
        """All of the reply is there: the Talker gets it, and no step is run for it."""
        conditioning, spoken = self._runner.conditioning(prepared), prepared["spoken_ids"]
        if conditioning is None:
            raise StageError("a text to read aloud came with media")
        conditioning["reading"] = len(spoken)
        outbox.send(request_id, cast(Payload, conditioning), target=SPEECH_TARGET)
        for start in range(0, len(spoken), ROWS_PER_CHUNK):
            rows = self._runner.embed(spoken[start : start + ROWS_PER_CHUNK])
            outbox.stream(request_id, {"rows": rows}, target=SPEECH_TARGET)
        outbox.stream_done(request_id)
        outbox.done(request_id, Usage(prompt_tokens=len(spoken)))

    def _open(
        self, request_id: str, reply: _Reply, given: Conditioning | None, outbox: Outbox
    ) -> None:
        if given is not None:
            outbox.send(request_id, cast(Payload, given), target=SPEECH_TARGET)
            reply.opened = True

    def _speak(
        self, request_id: str, reply: _Reply, tokens: tuple[int, ...], outbox: Outbox
    ) -> None:
        if not tokens:
            return
        self._open(request_id, reply, reply.conditioning, outbox)
        reply.conditioning, reply.speaking = None, True
        outbox.stream(request_id, {"rows": self._runner.embed(tokens)}, target=SPEECH_TARGET)

    def _finish(self, request_id: str, reply: _Reply, output: StepOutput, outbox: Outbox) -> None:
        if reply.speaks and not reply.opened:
            outbox.send(request_id, {"speak": False}, target=SPEECH_TARGET)
        reply.text.end(request_id, output, outbox)
        self.forget(request_id)

    def _has_opened_thought(self, ids: tuple[int, ...]) -> bool:
        """Whether the template began a thought after the head of the reply's turn. Earlier turns
        do not count: what is theirs may be any text."""
        turns = self._runner.config.im_start_token_id
        head = ids[len(ids) - ids[::-1].index(turns) :] if turns in ids else ()
        return left_open(self._runner.text(list(head)))

    def _prompt_usage(self, ids: tuple[int, ...]) -> Usage:
        config = self._runner.config.thinker
        pictures = (config.image_token_id, config.video_token_id)
        return prompt_usage(ids, audio=(config.audio_token_id,), pictures=pictures)


def _spoken(reply: _Reply, output: StepOutput) -> tuple[int, ...]:
    """The released tokens that the Talker gets to say.

    A reply's last sampled token is never spoken: its row is only computed by the step that does not
    come any more. Normally that is an end token; at `max_tokens` it is a word.
    """
    reply.released += len(output.released)
    all_released = reply.released == output.index + 1
    if output.finish_reason is not None and all_released:
        return output.released[:-1]
    return output.released


def _without_calls(
    reply: _Reply, tokens: tuple[int, ...], finish: FinishReason | None
) -> tuple[int, ...]:
    """Those of the tokens that certainly come before the markup of a call."""
    if reply.unspoken is None:
        return tokens
    said: list[int] = []
    for token in tokens:
        if not reply.silent:
            released, reply.silent = reply.unspoken.push(token)
            said += released
    if finish is not None and not reply.silent:
        said += reply.unspoken.flush()
    return tuple(said)
