"""The Talker on SGLang: its decoder and head of upstream's layers, over the rows of `talker_rows`.

Knows the module upstream loads, and where the input of each row comes from. Knows nothing of what
the rows are made of, of batching, KV memory or sampling (the engine's), nor of audio.

What a decode step reads and leaves behind lies in tables with a place for every `Sequence.row`;
the rows of prompts are handed over as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from omni_core.checkpoint.files import read_json
from omni_core.checkpoint.renew import PartsLoader, loader
from omni_core.checkpoint.weights import Checkpoint, open_weights
from omni_core.engine.base import Segment, Sequence
from omni_core.engine.common.transfer import upload
from omni_core.engine.sglang_engine.model import SglangModel
from omni_core.layers.rotary_module import TableRotary, stacked_tables
from omni_core.specs import StageContext
from omni_core.steps import StepBank
from omni_core.types import FloatArray
from omni_qwen3.config import DecoderConfig, load_config
from omni_qwen3.model.layers import Rope
from omni_qwen3.on_sglang.decoder import as_qwen3_moe, check_tensors
from omni_qwen3.on_sglang.upstream import (
    ForwardBatch,
    LogitsProcessorOutput,
    Qwen2MoeMLP,
    Qwen3MoeForCausalLM,
    Qwen3MoeSparseMoeBlock,
)
from omni_qwen3.talker_rows import PREFIXES, Speech, TalkerRows, tts_marks

DECODER = "talker.model."
HEAD = "talker.codec_head."


def load_model(ctx: StageContext, bank: StepBank) -> SglangModel[SglangTalker]:
    """The checkpoint's Talker and code predictor; upstream reads the decoder and its head."""
    config = load_config(ctx.model_path)
    with Checkpoint(ctx.model_path) as checkpoint:
        check_decoder(checkpoint, config.require_talker().decoder)
        weights = open_weights(
            checkpoint, PREFIXES, device=ctx.device, dtype=ctx.dtype, report=ctx.report
        )
        runner = SglangTalker(weights, config, tts_marks(weights, config), bank)
        weights.finish()
    return SglangModel(
        runner=runner,
        module=TalkerModule,
        config=upstream_config(ctx.model_path, runner.config.decoder),
        tensors=(DECODER, HEAD),
        weights=TalkerWeights(
            runner.config.decoder, loader(ctx, runner.parts, PREFIXES, runner.renew)
        ),
    )


def check_decoder(checkpoint: Checkpoint, decoder: DecoderConfig) -> None:
    """ConfigError unless the checkpoint has what upstream loads; see `check_tensors`."""
    check_tensors(checkpoint, decoder, DECODER, HEAD, embeddings="codec_embedding")


@dataclass(frozen=True, slots=True)
class TalkerWeights:
    """`SglangModel.weights`: the rows and the code predictor are the runner's own."""

    decoder: DecoderConfig
    rest: PartsLoader

    def check(self, model_path: str) -> None:
        """See `WeightLoader`."""
        with Checkpoint(model_path) as checkpoint:
            check_decoder(checkpoint, self.decoder)
        self.rest.check(model_path)

    def load(self, model_path: str) -> None:
        """See `WeightLoader`."""
        self.rest.load(model_path)


def upstream_config(model_path: str, decoder: DecoderConfig) -> dict[str, Any]:
    """config.json of the decoder alone, as one of Qwen3-MoE with a shared expert beside it."""
    text = read_json(model_path, "config.json")["talker_config"]["text_config"]
    return {**as_qwen3_moe(text, decoder), "mlp_only_layers": []}


class TalkerMoe(Qwen3MoeSparseMoeBlock):
    """Routed experts, and the shared one that every row visits, scaled by its gate."""

    def __init__(self, layer: int, config: Any, quant_config: Any, prefix: str) -> None:
        """`prefix` of the parameters' names."""
        super().__init__(layer, config, quant_config, prefix)
        self.shared_expert = Qwen2MoeMLP(
            hidden_size=config.hidden_size,
            intermediate_size=config.shared_expert_intermediate_size,
            hidden_act=config.hidden_act,
            quant_config=quant_config,
            reduce_results=False,  # the layer's boundary sums over cards, with the routed experts
            prefix=f"{prefix}.shared_expert",
        )
        self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(
        self, hidden_states: torch.Tensor, forward_batch: ForwardBatch | None = None
    ) -> torch.Tensor:
        """Rows (N, hidden) to (N, hidden)."""
        # First the shared expert: the routed ones may write over their input.
        share = F.sigmoid(self.shared_expert_gate(hidden_states))
        shared: torch.Tensor = share * self.shared_expert(hidden_states)
        routed: torch.Tensor = super().forward(hidden_states, forward_batch)
        return routed + shared


class TalkerModule(Qwen3MoeForCausalLM):
    """The decoder and the head of code 0, as upstream loads and runs them."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        """`config` is of `upstream_config`."""
        super().__init__(config, quant_config, prefix)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn.rotary_emb = TableRotary()
            layer.mlp = TalkerMoe(index, config, quant_config, f"{prefix}model.layers.{index}.mlp")
        self._rope: Rope | None = None

    def open_tables(self, rope: Rope, rows: int) -> None:
        """Make the tables of decode steps, for `Sequence.row` below `rows`."""
        weight = self.model.embed_tokens.weight
        self._rope = rope
        self.inputs = weight.new_zeros(rows, weight.shape[1])
        """(rows, D): input of the next decode step."""
        self.positions = weight.new_zeros(rows, dtype=torch.float32)
        """(rows,): its position, on every axis."""
        self.states = self.inputs.clone()
        """(rows, D): normed state of the last row computed."""
        self.chunk, self.chunk_positions = self.inputs[:0], self.positions.expand(3, -1)[:, :0]
        """(N, D) and (3, N): rows of the next forward that is no decode step."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: ForwardBatch,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> LogitsProcessorOutput:
        """Logits of code 0 of each sequence's last row; rows come from the tables, not from
        `input_ids` and `positions`."""
        if self._rope is None:
            raise RuntimeError("the Talker runs before its tables are made; call open_tables")
        rows = forward_batch.req_pool_indices
        decodes = forward_batch.forward_mode.is_decode()
        x = self.inputs.index_select(0, rows) if decodes else self.chunk
        line = self.positions.index_select(0, rows) if decodes else self.chunk_positions
        tables = stacked_tables(self._rope.tables(line, x.dtype))
        hidden = self.model(input_ids, tables, forward_batch, x)
        ends = slice(None) if decodes else forward_batch.extend_seq_lens.cumsum(0) - 1
        self.states.index_copy_(0, rows, hidden[ends])
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the decoder and its head out of the checkpoint's tensors."""
        super().load_weights(_renamed(weights))


def _renamed(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in weights:
        if name.startswith(DECODER):
            renamed = name.removeprefix("talker.").replace("codec_embedding", "embed_tokens")
            yield renamed, tensor
        elif name.startswith(HEAD):
            yield name.replace(HEAD, "lm_head."), tensor


class SglangTalker(TalkerRows):
    """`SglangRunner` with feedback."""

    def attach(self, module: TalkerModule, *, rows: int, slots: int) -> None:
        """See `SglangRunner`."""
        decoder = self.config.decoder
        module.open_tables(Rope.of(decoder.rope, decoder.head_dim, self.device), rows)
        self.make_room(rows)
        self._module = module
        self._places = upload([], self.device)

    def begin(self, segments: list[Segment], *, decode: bool) -> None:
        """See `SglangRunner`."""
        self._places = upload([segment.seq.row for segment in segments], self.device)
        if decode:
            line = [segment.start + segment.seq.state.rope_delta for segment in segments]
            rows = self.reply_rows(segments, self._places)
            self._module.inputs.index_copy_(0, self._places, rows)
            where = upload(line, self.device, torch.float32)
            self._module.positions.index_copy_(0, self._places, where)
            return
        chunks = [self._chunk(segment) for segment in segments]
        self._module.chunk = torch.cat([rows for rows, _ in chunks])
        positions = np.concatenate([positions for _, positions in chunks], axis=1)
        self._module.chunk_positions = torch.from_numpy(positions).to(self.device)

    def hidden(self) -> torch.Tensor:
        """See `SglangRunner`."""
        states: torch.Tensor = self._module.states.index_select(0, self._places)
        return states

    def resume(self, seq: Sequence) -> None:
        """Forget the reply's rows until they are asked for; by then their text has come."""
        seq.state.retracted = True

    def restore(self, seq: Sequence, start: int, stop: int, slots: torch.Tensor) -> None:
        """Never called: see `TalkerRows`."""

    def _chunk(self, segment: Segment) -> tuple[torch.Tensor, FloatArray]:
        """Rows (count, D) and M-RoPE positions (3, count) of a part of what is known beforehand."""
        speech: Speech = segment.seq.state
        stop = segment.start + segment.count
        if speech.retracted and stop >= segment.seq.request.prompt_len:
            self.recall(segment.seq, len(speech.codes) + 1)
            speech.retracted = False
        elif stop == segment.seq.request.prompt_len - 1:
            self.place(segment.seq)
        return speech.rows[segment.start : stop], speech.positions[:, segment.start : stop]
