"""The thinker stage: the language model, and what it hands to text output and to the Talker.

Knows prompts with media, decoder rows and replies. Knows nothing of batching, KV memory or sampling
(the engine's), nor of the Talker beyond the rows it is conditioned on (`Conditioning`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import torch
import torch.nn.functional as F

from omni_core.engine import build_engine, build_sglang_engine
from omni_core.engine.base import (
    AttentionParts,
    Batch,
    EngineRequest,
    StepOutput,
    TokenLogprobs,
)
from omni_core.engine.base import Sequence as EngineSequence
from omni_core.engine.grammar import Grammars
from omni_core.engine.sglang_engine import bootstrap
from omni_core.engine.stop import StopTracker
from omni_core.engine.torch_engine.transfer import upload
from omni_core.scheduler.base import Outbox, Scheduler, Work
from omni_core.scheduler.omni import OmniScheduler
from omni_core.specs import StageContext
from omni_core.steps import StepBank, build_bank
from omni_core.types import FinishReason, IntArray, Payload, SamplingParams, ToolUse, Usage
from omni_qwen3 import calls
from omni_qwen3.config import OmniConfig, load_config
from omni_qwen3.defaults import eos_token_ids, thinker_defaults
from omni_qwen3.detokenize import TokenBytes
from omni_qwen3.head_start import HeadStart
from omni_qwen3.model.decoder import Decoder, DecodeStep
from omni_qwen3.payloads import Conditioning, Logprobs, Prepared, ReplyStart, TokenChunk
from omni_qwen3.prompt import Patch, Prompt, decode_positions, flatten
from omni_qwen3.reasoning import left_open
from omni_qwen3.reply_grammar import reply_grammar
from omni_qwen3.rowkeys import row_keys
from omni_qwen3.thinker_prompts import ThinkerInputs, ThinkerPrompts
from omni_qwen3.weights import Checkpoint, Weights, open_weights

NAME = "thinker"
TEXT_TARGET = "decode"
SPEECH_TARGET = "talker_ar"
WEIGHTS = ("thinker.model.", "thinker.lm_head.")


def build(ctx: StageContext) -> Scheduler:
    """The stage over the engine that `ctx` names."""
    defaults = thinker_defaults(ctx.model_path)
    speaks = SPEECH_TARGET in ctx.stage.next
    if ctx.ar_engine == "sglang":
        bootstrap.prepare()
        from omni_qwen3.on_sglang.thinker import load_model

        model = load_model(ctx, speaks=speaks)
        engine = build_sglang_engine(ctx, model)
        room = engine.max_running
        stage = ThinkerStage(model.runner, defaults, can_speak=speaks, max_running=room)
        return OmniScheduler(engine, stage, grammars=_grammars(ctx, model.runner))
    bank = build_bank(ctx)
    runner = load_runner(ctx, bank)
    engine = build_engine(ctx, runner)
    stage = ThinkerStage(runner, defaults, can_speak=speaks, max_running=engine.max_running)
    rest_s = stage.rest_s if ctx.device == "cpu" else float
    return OmniScheduler(engine, stage, bank.stats, rest_s, _grammars(ctx, runner))


def _grammars(ctx: StageContext, runner: ThinkerPrompts) -> Grammars:
    """Over the text of the checkpoint's tokens, which is read when it is first needed."""

    def spelling() -> Callable[[int], bytes]:
        return TokenBytes(ctx.model_path).__getitem__

    return Grammars(spelling, runner.vocab_size, runner.eos_token_ids)


def load_runner(ctx: StageContext, bank: StepBank | None = None) -> ThinkerRunner:
    """The checkpoint's language model, without its encoders."""
    with Checkpoint(ctx.model_path) as checkpoint:
        weights = open_weights(
            checkpoint, WEIGHTS, device=ctx.device, dtype=ctx.dtype, report=ctx.report
        )
        runner = ThinkerRunner(
            weights,
            load_config(ctx.model_path),
            eos_token_ids=eos_token_ids(ctx.model_path),
            detokenize=TokenBytes(ctx.model_path).text,
            bank=bank,
        )
        weights.finish()
    return runner


class _LayerTap:
    """Adds deepstack features to, and copies hidden states from, the layers' outputs."""

    def __init__(
        self, deepstack: list[Patch], captures: list[Patch], capture_layer: int | None
    ) -> None:
        self._deepstack = deepstack
        self._captures = captures
        self._capture_layer = capture_layer

    def __call__(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        if layer == self._capture_layer:  # transformers captures before the deepstack add
            for patch in self._captures:
                patch.values.copy_(x[patch.rows])
        for patch in self._deepstack:
            if layer < len(patch.values):
                x = x.index_add(0, patch.rows, patch.values[layer])
        return x


class ThinkerRunner(ThinkerPrompts):
    """`ARRunner` of the language model."""

    lookahead = True

    def __init__(
        self,
        weights: Weights,
        config: OmniConfig,
        *,
        eos_token_ids: frozenset[int],
        detokenize: Callable[[list[int]], str],
        bank: StepBank | None = None,
    ) -> None:
        """`bank` may make the decode step faster; without one it stays as it is."""
        super().__init__(
            config,
            eos_token_ids=eos_token_ids,
            detokenize=detokenize,
            device=weights.device,
            dtype=weights.dtype,
        )
        decoder = config.thinker.decoder
        table = (decoder.vocab_size, decoder.hidden_size)
        self._embeddings = weights.tensor("thinker.model.embed_tokens.weight", table)
        self._decoder = Decoder.load(weights, "thinker.model.", decoder)
        self._bank = bank or StepBank.eager()
        self._decode: DecodeStep | None = None
        self._head = weights.tensor("thinker.lm_head.weight", table)

    def prepare(self, rows: int, decode: Callable[[int], AttentionParts]) -> None:
        """Set up the decode step; nothing is kept by row."""
        self._decode = self._decode or DecodeStep(
            "thinker_decode", self._decoder, self._bank, decode
        )

    def keep(self, seq: EngineSequence, start: int, stop: int) -> Any:
        """The hidden states of media rows that the Talker is conditioned on; None for none."""
        prompt: Prompt = seq.state
        return prompt.keep(start, stop)

    def restore(self, seq: EngineSequence, start: int, stop: int, kept: Any) -> None:
        """Take the hidden states that `keep` gave."""
        prompt: Prompt = seq.state
        prompt.restore(start, stop, kept)

    def forward(self, batch: Batch) -> torch.Tensor:
        """See `ARRunner`."""
        parts = batch.attend.parts if batch.decodes == len(batch.segments) else None
        if parts is not None and self._decode is not None:
            x = F.embedding(batch.tokens, self._embeddings)
            line = decode_positions(batch.segments)
            positions = upload(line, self.device, torch.float32)
            return self._decode(x, positions, parts)
        flat = flatten(batch.segments, batch.tokens, self.device)
        x = F.embedding(flat.ids, self._embeddings)
        for patch in flat.media:
            x[patch.rows] = patch.values
        tap = None
        if flat.deepstack or flat.captures:
            tap = _LayerTap(flat.deepstack, flat.captures, self.capture_layer)
        x = self._decoder(x, flat.positions, batch.attend, tap)
        if self.capture_layer is None:
            for patch in flat.captures:
                patch.values.copy_(self._decoder.norm(x[patch.rows]))
        return self._decoder.norm(x[flat.sampled_rows])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ARRunner`."""
        return F.linear(hidden, self._head).float()

    def embed(self, token_ids: IntArray | tuple[int, ...]) -> torch.Tensor:
        """Input embeddings (n, H) of some tokens."""
        with torch.inference_mode():
            return F.embedding(torch.as_tensor(token_ids, device=self.device), self._embeddings)


@dataclass(slots=True)
class _Reply:
    """What the stage remembers of a reply under way."""

    usage: Usage
    """Of the prompt."""
    speaks: bool
    thinks: bool
    """The prompt has begun a thought for the reply to continue."""
    calls: bool
    """The reply may call functions."""
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
        asked = work.params.sampling_for(NAME).over(work.params.sampling)
        speaks = self._can_speak and "audio" in work.params.modalities
        ids = tuple(prepared["input_ids"].tolist())
        packed = prepared.get("tool_use")
        use = None if packed is None else msgspec.msgpack.decode(packed, type=ToolUse)
        thinks = self._has_opened_thought(ids)
        reply = _Reply(
            usage=self._prompt_usage(ids), speaks=speaks, thinks=thinks, calls=use is not None
        )
        if speaks and use is not None:
            reply.unspoken = StopTracker([calls.OPEN], self._runner.text)
        grammar = reply_grammar(asked.grammar, use, opened=thinks)
        self._replies[work.request_id] = reply
        if speaks and len(self._replies) <= self._max_running:
            self._open(work.request_id, reply, self._runner.conditioning(prepared), outbox)
        late = speaks and not reply.opened
        return EngineRequest(
            request_id=work.request_id,
            prompt_len=len(ids),
            inputs=ThinkerInputs(prepared, late, shares=self._can_speak),
            params=work.params,
            sampling=msgspec.structs.replace(asked.over(self._defaults), grammar=grammar),
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
            reply.conditioning = output.data
            start = ReplyStart(opened=reply.thinks, calls=reply.calls)
            outbox.send(request_id, cast(Payload, start), target=TEXT_TARGET)
        chunk = TokenChunk(token=output.token, finish=output.finish_reason)
        if output.logprobs is not None:
            chunk["logprobs"] = _logprobs(output.logprobs)
        outbox.stream(request_id, chunk, target=TEXT_TARGET)
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
        for row in self._runner.embed(tokens):
            outbox.stream(request_id, {"row": row}, target=SPEECH_TARGET)

    def _finish(self, request_id: str, reply: _Reply, output: StepOutput, outbox: Outbox) -> None:
        if reply.speaks and not reply.opened:
            outbox.send(request_id, {"speak": False}, target=SPEECH_TARGET)
        outbox.stream_done(request_id)
        used = Usage(text_tokens=output.index + 1, cached_tokens=output.cached_tokens)
        outbox.done(request_id, reply.usage + used)
        self.forget(request_id)

    def _has_opened_thought(self, ids: tuple[int, ...]) -> bool:
        """Whether the template began a thought after the head of the reply's turn. Earlier turns
        do not count: what is theirs may be any text."""
        turns = self._runner.config.im_start_token_id
        head = ids[len(ids) - ids[::-1].index(turns) :] if turns in ids else ()
        return left_open(self._runner.text(list(head)))

    def _prompt_usage(self, ids: tuple[int, ...]) -> Usage:
        config = self._runner.config.thinker
        return Usage(
            prompt_tokens=len(ids),
            prompt_audio_tokens=ids.count(config.audio_token_id),
            prompt_image_tokens=ids.count(config.image_token_id) + ids.count(config.video_token_id),
        )


def _logprobs(found: TokenLogprobs) -> Logprobs:
    ids, logprobs = zip(*found.top, strict=True) if found.top else ((), ())
    return Logprobs(token=found.logprob, top_ids=list(ids), top=list(logprobs))


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
