"""The Talker on the embedded engine: its decoder and head over the rows of `talker_rows`.

Knows the decoder, its positions and how a batch's rows come together. Knows nothing of what the
rows are made of, of batching, KV memory or sampling (the engine's), nor of audio.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from omni_core.checkpoint.renew import loader
from omni_core.checkpoint.weights import Checkpoint, Weights, open_weights
from omni_core.engine import build_engine, build_sglang_engine
from omni_core.engine.base import AttentionParts, Batch, Engine, Segment
from omni_core.engine.base import Sequence as EngineSequence
from omni_core.engine.common.transfer import upload
from omni_core.engine.sglang_engine import bootstrap
from omni_core.layers.decode import DecodeStep
from omni_core.scheduler.base import Scheduler
from omni_core.scheduler.omni import OmniScheduler
from omni_core.specs import StageContext
from omni_core.steps import StepBank, build_bank
from omni_core.types import FloatArray
from omni_qwen3.config import OmniConfig, load_config
from omni_qwen3.defaults import talker_defaults
from omni_qwen3.model.decoder import Decoder
from omni_qwen3.talker_rows import Speech, TalkerRows, tts_marks
from omni_qwen3.talker_stage import TalkerStage

WEIGHTS = "talker."


def build(ctx: StageContext) -> Scheduler:
    """The stage over the engine that `ctx` names."""
    bank = build_bank(ctx)
    config = load_config(ctx.model_path).require_talker()
    stage = TalkerStage(config, talker_defaults(ctx.model_path))
    return OmniScheduler(engine_for(ctx, bank), stage, bank.stats)


def engine_for(ctx: StageContext, bank: StepBank) -> Engine:
    """The engine that `ctx` names, with the Talker loaded."""
    if ctx.ar_engine != "sglang":
        runner = load_runner(ctx, bank)
        ctx.loads(loader(ctx, runner.parts, (WEIGHTS,), runner.renew))
        return build_engine(ctx, runner)
    bootstrap.prepare()
    from omni_qwen3.on_sglang.talker import load_model

    return build_sglang_engine(ctx, load_model(ctx, bank))


def load_runner(ctx: StageContext, bank: StepBank | None = None) -> TalkerRunner:
    """The checkpoint's Talker and code predictor."""
    config = load_config(ctx.model_path)
    with Checkpoint(ctx.model_path) as checkpoint:
        weights = open_weights(
            checkpoint, (WEIGHTS,), device=ctx.device, dtype=ctx.dtype, report=ctx.report
        )
        runner = TalkerRunner(weights, config, tts_marks(weights, config), bank)
        weights.finish()
    return runner


class TalkerRunner(TalkerRows):
    """`ARRunner` with feedback."""

    def __init__(
        self,
        weights: Weights,
        config: OmniConfig,
        marks: torch.Tensor,
        bank: StepBank | None = None,
    ) -> None:
        """As `TalkerRows`; `bank` may make the decode steps faster, without one they stay as they
        are."""
        self._bank = bank or StepBank.eager()
        super().__init__(weights, config, marks, self._bank)
        decoder = self.config.decoder
        self._decoder = Decoder.load(weights, "talker.model.", decoder)
        self._decode: DecodeStep | None = None
        self._head = weights.tensor(
            "talker.codec_head.weight", (decoder.vocab_size, decoder.hidden_size)
        )

    def prepare(self, rows: int, decode: Callable[[int], AttentionParts]) -> None:
        """Set up the decode step, and make room for the newest frame of every row."""
        self._decode = self._decode or DecodeStep(
            "talker_decode", self._decoder, self._bank, decode
        )
        self.make_room(rows)

    def open(self, seq: EngineSequence) -> None:
        """See `ARRunner`."""
        super().open(seq)
        self.place(seq)

    def resume(self, seq: EngineSequence) -> None:
        """Make all rows before the newest anew. What was drawn stays drawn."""
        self.recall(seq, len(seq.state.codes))
        self.place(seq)

    def keep(self, seq: EngineSequence, start: int, stop: int) -> Any:
        """Nothing: see `TalkerRows`."""

    def restore(self, seq: EngineSequence, start: int, stop: int, kept: Any) -> None:
        """Never called."""

    def forward(self, batch: Batch) -> torch.Tensor:
        """See `ARRunner`."""
        decoding, chunks = batch.segments[: batch.decodes], batch.segments[batch.decodes :]
        line = [s.start + s.seq.state.rope_delta for s in decoding]
        parts = None if chunks else batch.attend.parts
        if parts is not None and self._decode is not None:
            where = upload(line, self.device, torch.float32)
            return self._decode(self.reply_rows(decoding, batch.rows), where, parts)
        rows = [_chunk(segment) for segment in chunks]
        lines = np.broadcast_to(np.array(line, dtype=np.float32), (3, len(line)))
        positions = np.concatenate([lines, *(positions for _, positions in rows)], axis=1)
        x = torch.cat([self.reply_rows(decoding, batch.rows), *(rows for rows, _ in rows)])
        x = self._decoder(x, torch.from_numpy(positions).to(self.device), batch.attend)
        ends = np.cumsum([s.count for s in batch.segments])
        sampled = [int(e) - 1 for e, s in zip(ends, batch.segments, strict=True) if s.samples]
        return self._decoder.norm(x[torch.tensor(sampled, dtype=torch.long, device=self.device)])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of code 0; see `ARRunner`."""
        return F.linear(hidden, self._head).float()


def _chunk(segment: Segment) -> tuple[torch.Tensor, FloatArray]:
    """Rows (count, D) and M-RoPE positions (3, count) of a part of what is known beforehand."""
    speech: Speech = segment.seq.state
    part = slice(segment.start, segment.start + segment.count)
    return speech.rows[part], speech.positions[:, part]
