"""The Thinker on the embedded engine: the language model over the rows of `prompt`.

Knows the decoder and media rows. Knows nothing of batching, KV memory or sampling (the engine's),
nor of what a reply is for (`thinker_stage`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from omni_core.checkpoint.renew import loader
from omni_core.checkpoint.weights import Checkpoint, Weights, open_weights
from omni_core.engine import build_engine, build_sglang_engine
from omni_core.engine.base import AttentionParts, Batch
from omni_core.engine.common.transfer import upload
from omni_core.engine.sglang_engine import bootstrap
from omni_core.layers.decode import DecodeStep
from omni_core.layers.rows import decode_positions
from omni_core.scheduler.base import Scheduler
from omni_core.scheduler.omni import OmniScheduler
from omni_core.specs import StageContext
from omni_core.steps import StepBank, build_bank
from omni_core.text.detokenize import TokenBytes
from omni_ming.defaults import eos_token_ids, thinker_defaults
from omni_ming.model.config import ThinkerConfig, load_thinker_config
from omni_ming.model.decoder import PREFIX, Decoder
from omni_ming.prompt import flatten, kinds_of
from omni_ming.thinker_prompts import ThinkerPrompts
from omni_ming.thinker_stage import ThinkerStage

if TYPE_CHECKING:
    from omni_core.engine.sglang_engine.model import SglangModel
    from omni_ming.on_sglang.thinker import SglangThinker

WEIGHTS = (PREFIX, "model.lm_head.")


def build(ctx: StageContext) -> Scheduler:
    """The stage over the engine that `ctx` names."""
    if ctx.ar_engine == "sglang":
        model = load_sglang_model(ctx)
        engine = build_sglang_engine(ctx, model)
        stage = _stage(ctx, model.runner)
        return OmniScheduler(engine, stage, grammars=model.runner.grammars(ctx.model_path))
    bank = build_bank(ctx)
    runner = load_runner(ctx, bank)
    engine = build_engine(ctx, runner)
    ctx.loads(loader(ctx, runner.parts, WEIGHTS, engine.forget_prefixes))
    grammars = runner.grammars(ctx.model_path)
    return OmniScheduler(engine, _stage(ctx, runner), bank.stats, grammars=grammars)


def _stage(ctx: StageContext, runner: ThinkerPrompts) -> ThinkerStage:
    return ThinkerStage(
        ctx.stage.next,
        TokenBytes(ctx.model_path),
        thinker_defaults(ctx.model_path),
        runner.config,
        end_tokens=runner.eos_token_ids,
    )


def load_sglang_model(ctx: StageContext) -> SglangModel[SglangThinker]:
    """The language model as one of SGLang's, or a rank's part of it."""
    bootstrap.prepare()
    from omni_ming.on_sglang.thinker import load_model

    return load_model(ctx)


def load_runner(ctx: StageContext, bank: StepBank | None = None) -> ThinkerRunner:
    """The checkpoint's language model, without its encoders."""
    with Checkpoint(ctx.model_path) as checkpoint:
        weights = open_weights(
            checkpoint, WEIGHTS, device=ctx.device, dtype=ctx.dtype, report=ctx.report
        )
        runner = ThinkerRunner(
            weights,
            load_thinker_config(ctx.model_path),
            eos_token_ids=eos_token_ids(ctx.model_path),
            detokenize=TokenBytes(ctx.model_path).text,
            bank=bank,
        )
        weights.finish()
    return runner


class ThinkerRunner(ThinkerPrompts):
    """`ARRunner` of the language model."""

    lookahead = True

    def __init__(
        self,
        weights: Weights,
        config: ThinkerConfig,
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
        table = (config.vocab_size, config.hidden_size)
        self.parts = weights.parts
        """What new weights are copied into."""
        self._embeddings = weights.tensor(f"{PREFIX}word_embeddings.weight", table)
        self._decoder = Decoder.load(weights, config)
        self._head = weights.tensor("model.lm_head.weight", table)
        self._bank = bank or StepBank.eager()
        self._decode: DecodeStep | None = None

    def prepare(self, rows: int, decode: Callable[[int], AttentionParts]) -> None:
        """Set up the decode step; nothing is kept by row."""
        self._decode = self._decode or DecodeStep(
            "thinker_decode", self._decoder, self._bank, decode
        )

    def forward(self, batch: Batch) -> torch.Tensor:
        """See `ARRunner`."""
        parts = batch.attend.parts if batch.decodes == len(batch.segments) else None
        if parts is not None and self._decode is not None:
            x = F.embedding(batch.tokens, self._embeddings)
            line = decode_positions(batch.segments)
            return self._decode(x, upload(line, self.device, torch.float32), parts)
        flat = flatten(batch.segments, batch.tokens, self.device)
        x = F.embedding(flat.line.ids, self._embeddings)
        for patch in flat.media:
            x[patch.rows] = patch.values
        x = self._decoder(x, flat.line.positions, batch.attend, kinds_of(flat, self.config))
        return self._decoder.norm(x[flat.line.sampled_rows])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ARRunner`."""
        return F.linear(hidden, self._head).float()
