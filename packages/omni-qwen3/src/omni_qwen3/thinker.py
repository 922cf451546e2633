"""The thinker stage: the language model, and what it hands to text output and to the Talker.

Knows prompts with media, decoder rows and replies. Knows nothing of batching, KV memory or sampling
(the engine's), nor of the Talker beyond the rows it is conditioned on (`Conditioning`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F

from omni_core.engine import build_engine
from omni_core.engine.base import (
    AttentionParts,
    Batch,
    EngineRequest,
    KVSpec,
    StepOutput,
    TokenLogprobs,
)
from omni_core.engine.base import Sequence as EngineSequence
from omni_core.engine.torch_engine.transfer import upload
from omni_core.scheduler.base import Outbox, Scheduler, Work
from omni_core.scheduler.omni import OmniScheduler
from omni_core.specs import StageContext
from omni_core.steps import StepBank, build_bank
from omni_core.types import IntArray, Payload, SamplingParams, Usage
from omni_qwen3.config import OmniConfig, load_config
from omni_qwen3.defaults import eos_token_ids, thinker_defaults
from omni_qwen3.detokenize import TokenBytes
from omni_qwen3.head_start import HeadStart
from omni_qwen3.model.decoder import Decoder, DecodeStep
from omni_qwen3.payloads import Conditioning, Logprobs, Prepared, ReplyStart, TokenChunk
from omni_qwen3.prompt import Patch, Prompt, decode_positions, flatten
from omni_qwen3.reasoning import left_open
from omni_qwen3.rowkeys import row_keys
from omni_qwen3.weights import Checkpoint, Weights, open_weights

NAME = "thinker"
TEXT_TARGET = "decode"
SPEECH_TARGET = "talker_ar"
WEIGHTS = ("thinker.model.", "thinker.lm_head.")


def build(ctx: StageContext) -> Scheduler:
    """The stage over the engine that `ctx` names."""
    bank = build_bank(ctx)
    runner = load_runner(ctx, bank)
    defaults = thinker_defaults(ctx.model_path)
    stage = ThinkerStage(runner, defaults, can_speak=SPEECH_TARGET in ctx.stage.next)
    rest_s = stage.rest_s if ctx.device == "cpu" else float
    return OmniScheduler(build_engine(ctx, runner), stage, bank.stats, rest_s)


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


@dataclass(frozen=True, slots=True)
class ThinkerInputs:
    """`EngineRequest.inputs` of this stage."""

    prepared: Prepared
    speaks: bool
    """Whether the Talker will want to be conditioned on this prompt."""
    shares: bool = False
    """Whether the Talker may want that of a later request that shares this one's KV."""


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


class ThinkerRunner:
    """`ARRunner` of the language model."""

    suppress: torch.Tensor | None = None
    feedback = False
    prefix_cache = True
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
        decoder = config.thinker.decoder
        self.device, self.dtype = weights.device, weights.dtype
        self.vocab_size = decoder.vocab_size
        self.eos_token_ids = eos_token_ids
        self.kv = KVSpec(
            layers=decoder.layers,
            kv_heads=decoder.kv_heads,
            head_dim=decoder.head_dim,
            max_len=decoder.max_len,
        )
        self.config = config
        self._detokenize = detokenize
        table = (decoder.vocab_size, decoder.hidden_size)
        self._embeddings = weights.tensor("thinker.model.embed_tokens.weight", table)
        self._decoder = Decoder.load(weights, "thinker.model.", decoder)
        self._bank = bank or StepBank.eager()
        self._decode: DecodeStep | None = None
        self._head = weights.tensor("thinker.lm_head.weight", table)
        accepted = config.talker.accept_hidden_layer if config.talker else decoder.layers
        self._capture_normed = accepted == decoder.layers
        self._capture_layer = None if self._capture_normed else accepted - 1

    def prepare(self, rows: int, decode: Callable[[int], AttentionParts]) -> None:
        """Set up the decode step; nothing is kept by row."""
        self._decode = self._decode or DecodeStep(
            "thinker_decode", self._decoder, self._bank, decode
        )

    def open(self, seq: EngineSequence) -> None:
        """Move the prompt's media rows to the device; see `ARRunner`."""
        inputs: ThinkerInputs = seq.request.inputs
        seq.state = Prompt(
            inputs.prepared,
            self.config,
            inputs.speaks or inputs.shares,
            device=self.device,
            dtype=self.dtype,
        )

    def resume(self, seq: EngineSequence) -> None:
        """The prompt is still there, and so are the tokens."""

    def keep(self, seq: EngineSequence, start: int, stop: int) -> Any:
        """The hidden states of media rows that the Talker is conditioned on; None for none."""
        prompt: Prompt = seq.state
        return prompt.keep(start, stop)

    def restore(self, seq: EngineSequence, start: int, stop: int, kept: Any) -> None:
        """Take the hidden states that `keep` gave."""
        prompt: Prompt = seq.state
        prompt.restore(start, stop, kept)

    def feed(self, seq: EngineSequence, chunk: Any) -> None:
        """Nothing streams into the Thinker."""

    def ready(self, seq: EngineSequence) -> bool:
        """Always: the next row is the sampled token's embedding."""
        return True

    def forward(self, batch: Batch) -> torch.Tensor:
        """See `ARRunner`."""
        parts = batch.attend.parts if batch.decodes == len(batch.segments) else None
        if parts is not None and self._decode is not None:
            x = F.embedding(batch.tokens, self._embeddings)
            positions = upload(decode_positions(batch), self.device, torch.float32)
            return self._decode(x, positions, parts)
        flat = flatten(batch, self.device)
        x = F.embedding(flat.ids, self._embeddings)
        for patch in flat.media:
            x[patch.rows] = patch.values
        tap = None
        if flat.deepstack or flat.captures:
            tap = _LayerTap(flat.deepstack, flat.captures, self._capture_layer)
        x = self._decoder(x, flat.positions, batch.attend, tap)
        if self._capture_normed:
            for patch in flat.captures:
                patch.values.copy_(self._decoder.norm(x[patch.rows]))
        return self._decoder.norm(x[flat.sampled_rows])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ARRunner`."""
        return F.linear(hidden, self._head).float()

    def collect(
        self, seqs: list[EngineSequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        """With the first token of a reply that will be spoken: its `Conditioning`, as far as the
        prompt decides it. None otherwise."""
        return [self._conditioning(seq) if len(seq.tokens) == 1 else None for seq in seqs]

    def text(self, token_ids: list[int]) -> str:
        """See `ARRunner`."""
        return self._detokenize(token_ids)

    def close(self, seq: EngineSequence) -> None:
        """Drop the prompt."""
        seq.state = None

    def embed(self, token_ids: IntArray | tuple[int, ...]) -> torch.Tensor:
        """Input embeddings (n, H) of some tokens."""
        with torch.inference_mode():
            return F.embedding(torch.as_tensor(token_ids, device=self.device), self._embeddings)

    def _conditioning(self, seq: EngineSequence) -> Conditioning | None:
        inputs: ThinkerInputs = seq.request.inputs
        prompt: Prompt = seq.state
        if not inputs.speaks or prompt.user is None:
            return None
        user_rows = self.embed(prompt.user.ids)
        is_media = torch.from_numpy(prompt.user.is_media).to(self.device)
        user_rows[is_media] = prompt.user.hidden
        conditioning = Conditioning(
            speak=True,
            user_ids=prompt.user.ids,
            user_rows=user_rows,
            user_is_media=is_media,
            assistant_rows=self.embed(prompt.user.assistant_ids),
        )
        conditioning.update(cast(Conditioning, prompt.user.media_sizes))
        return conditioning


@dataclass(slots=True)
class _Reply:
    """What the stage remembers of a reply under way."""

    usage: Usage
    """Of the prompt."""
    speaks: bool
    conditioning: Conditioning | None = None
    """Waits for the first spoken token."""
    speaking: bool = False
    released: int = 0


class ThinkerStage:
    """`ARStage`: `Prepared` in, tokens to decode, rows of the spoken tokens to the Talker."""

    def __init__(
        self,
        runner: ThinkerRunner,
        defaults: SamplingParams,
        *,
        can_speak: bool,
        head_start: HeadStart | None = None,
    ) -> None:
        self._runner = runner
        self._defaults = defaults
        self._can_speak = can_speak
        self._replies: dict[str, _Reply] = {}
        self._head_start = head_start or HeadStart()

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        """See `ARStage`; the caller's parameters for this stage win over those for the request."""
        prepared = cast(Prepared, work.payload)
        asked = work.params.sampling_for(NAME).over(work.params.sampling)
        speaks = self._can_speak and "audio" in work.params.modalities
        ids = tuple(prepared["input_ids"].tolist())
        self._replies[work.request_id] = _Reply(usage=self._prompt_usage(ids), speaks=speaks)
        return EngineRequest(
            request_id=work.request_id,
            prompt_len=len(ids),
            inputs=ThinkerInputs(prepared, speaks, shares=self._can_speak),
            params=work.params,
            sampling=asked.over(self._defaults),
            prompt_token_ids=ids,
            row_keys=row_keys(prepared),
            strict_max_tokens=asked.max_tokens is not None,
        )

    def publish(self, request: EngineRequest, output: StepOutput, outbox: Outbox) -> None:
        """See `ARStage`."""
        request_id, reply = request.request_id, self._replies[request.request_id]
        if output.index == 0:
            reply.conditioning = output.data
            start = ReplyStart(opened=self._has_opened_thought(request.prompt_token_ids))
            outbox.send(request_id, cast(Payload, start), target=TEXT_TARGET)
        chunk = TokenChunk(token=output.token, finish=output.finish_reason)
        if output.logprobs is not None:
            chunk["logprobs"] = _logprobs(output.logprobs)
        outbox.stream(request_id, chunk, target=TEXT_TARGET)
        if reply.speaks:
            self._speak(request_id, reply, _spoken(reply, output), outbox)
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

    def _speak(
        self, request_id: str, reply: _Reply, tokens: tuple[int, ...], outbox: Outbox
    ) -> None:
        if not tokens:
            return
        for row in self._runner.embed(tokens):
            if reply.conditioning is not None:
                start: Payload = {**reply.conditioning, "first_row": row}
                outbox.send(request_id, start, target=SPEECH_TARGET)
                reply.conditioning, reply.speaking = None, True
            else:
                outbox.stream(request_id, {"row": row}, target=SPEECH_TARGET)

    def _finish(self, request_id: str, reply: _Reply, output: StepOutput, outbox: Outbox) -> None:
        if reply.speaks and not reply.speaking:
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
