"""The Thinker on the embedded engine: the language model over the rows of `prompt`.

Knows the decoder, media rows and the hidden states that are captured. Knows nothing of batching, KV
memory or sampling (the engine's), nor of what a reply is for (`thinker_stage`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from omni_core.checkpoint.renew import loader
from omni_core.checkpoint.weights import Checkpoint, Weights, open_weights
from omni_core.engine import build_engine, build_sglang_engine
from omni_core.engine.base import (
    AttentionParts,
    Batch,
)
from omni_core.engine.base import Sequence as EngineSequence
from omni_core.engine.common.transfer import upload
from omni_core.engine.sglang_engine import bootstrap
from omni_core.layers.decode import DecodeStep
from omni_core.layers.rows import Patch, decode_positions
from omni_core.scheduler.base import Scheduler
from omni_core.scheduler.omni import OmniScheduler
from omni_core.specs import StageContext
from omni_core.steps import StepBank, build_bank
from omni_core.text.detokenize import TokenBytes
from omni_core.types import IntArray
from omni_qwen3.config import OmniConfig, load_config
from omni_qwen3.defaults import eos_token_ids, thinker_defaults
from omni_qwen3.model.decoder import Decoder
from omni_qwen3.prompt import Prompt, flatten
from omni_qwen3.thinker_prompts import ThinkerPrompts
from omni_qwen3.thinker_stage import SPEECH_TARGET, ThinkerStage

if TYPE_CHECKING:
    from omni_core.engine.sglang_engine.model import SglangModel
    from omni_qwen3.on_sglang.thinker import SglangThinker

WEIGHTS = ("thinker.model.", "thinker.lm_head.")


def build(ctx: StageContext) -> Scheduler:
    """The stage over the engine that `ctx` names."""
    defaults = thinker_defaults(ctx.model_path)
    speaks = SPEECH_TARGET in ctx.stage.next
    if ctx.ar_engine == "sglang":
        model = load_sglang_model(ctx)
        engine = build_sglang_engine(ctx, model)
        room = engine.max_running
        stage = ThinkerStage(model.runner, defaults, can_speak=speaks, max_running=room)
        return OmniScheduler(engine, stage, grammars=model.runner.grammars(ctx.model_path))
    bank = build_bank(ctx)
    runner = load_runner(ctx, bank)
    engine = build_engine(ctx, runner)
    ctx.loads(loader(ctx, runner.parts, WEIGHTS, engine.forget_prefixes))
    stage = ThinkerStage(runner, defaults, can_speak=speaks, max_running=engine.max_running)
    rest_s = stage.rest_s if ctx.device == "cpu" else float
    return OmniScheduler(engine, stage, bank.stats, rest_s, runner.grammars(ctx.model_path))


def load_sglang_model(ctx: StageContext) -> SglangModel[SglangThinker]:
    """The same as a model of SGLang's, or a rank's part of it."""
    bootstrap.prepare()
    from omni_qwen3.on_sglang.thinker import load_model

    return load_model(ctx, speaks=SPEECH_TARGET in ctx.stage.next)


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
        self.parts = weights.parts
        """What new weights are copied into."""
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
        x = F.embedding(flat.line.ids, self._embeddings)
        for patch in flat.media:
            x[patch.rows] = patch.values
        tap = None
        if flat.deepstack or flat.captures:
            tap = _LayerTap(flat.deepstack, flat.captures, self.capture_layer)
        x = self._decoder(x, flat.line.positions, batch.attend, tap)
        if self.capture_layer is None:
            for patch in flat.captures:
                patch.values.copy_(self._decoder.norm(x[patch.rows]))
        return self._decoder.norm(x[flat.line.sampled_rows])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ARRunner`."""
        return F.linear(hidden, self._head).float()

    def embed(self, token_ids: IntArray | tuple[int, ...]) -> torch.Tensor:
        """Input embeddings (n, H) of some tokens."""
        with torch.inference_mode():
            return F.embedding(torch.as_tensor(token_ids, device=self.device), self._embeddings)
