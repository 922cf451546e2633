"""The Thinker on SGLang: its decoder and head of upstream's layers, over prompts with media.

Knows the module upstream loads, and the input and the kind of each row. Knows nothing of batching,
KV memory or sampling (the engine's).

A decode step reads token ids and a table with a place for every `Sequence.row`, so that it can be
recorded as a graph; the rows of prompts are handed over as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from omni_core.checkpoint.weights import Checkpoint, torch_dtype
from omni_core.engine.base import Segment
from omni_core.engine.common.transfer import upload
from omni_core.engine.sglang_engine.model import SglangModel
from omni_core.engine.sglang_engine.split import require_even_split
from omni_core.layers.rotary_module import TableRotary, stacked_tables
from omni_core.specs import Ref, StageContext
from omni_core.text.detokenize import TokenBytes
from omni_ming.defaults import eos_token_ids
from omni_ming.model.config import load_thinker_config
from omni_ming.model.rope import PartialRope
from omni_ming.model.router import GATES, MultiRouter
from omni_ming.on_sglang.decoder import (
    NORMS,
    WEIGHTS,
    DecoderWeights,
    check_decoder,
    ours,
    renamed,
    split_widths,
    upstream_config,
)
from omni_ming.on_sglang.upstream import (
    BailingMoEForCausalLM,
    BailingMoESparseMoeBlock,
    ForwardBatch,
    LogitsProcessorOutput,
    StandardTopKOutput,
)
from omni_ming.prompt import FlatBatch, flatten, kinds_of
from omni_ming.thinker_prompts import ThinkerPrompts


def load_model(ctx: StageContext) -> SglangModel[SglangThinker]:
    """The checkpoint's language model, without its encoders."""
    config = load_thinker_config(ctx.model_path)
    with Checkpoint(ctx.model_path) as checkpoint:
        check_decoder(checkpoint, config)
    require_even_split(
        ctx.stage.name, ctx.stage.tp_size, split_widths(config), kv_heads=config.kv_heads
    )
    runner = SglangThinker(
        config,
        eos_token_ids=eos_token_ids(ctx.model_path),
        detokenize=TokenBytes(ctx.model_path).text,
        device=torch.device(ctx.device),
        dtype=torch_dtype(ctx.dtype),
    )
    return SglangModel(
        runner=runner,
        module=MingThinkerModule,
        config=upstream_config(config),
        tensors=WEIGHTS,
        weights=DecoderWeights(config),
        load=Ref("omni_ming.thinker:load_sglang_model"),
    )


class RoutedBlock(BailingMoESparseMoeBlock):
    """Upstream's experts, of which each row gets those that `MultiRouter` says.

    Upstream has the same rule. It has no kernel of it for a CPU, and rounds logits to the dtype of
    rows, by which experts change.
    """

    def __init__(self, layer: int, config: Any, quant_config: Any, prefix: str) -> None:
        """`prefix` of the parameters' names."""
        super().__init__(layer, config, quant_config, prefix=prefix)
        gates = [getattr(self, gate) for gate in GATES]
        self._router = MultiRouter(
            ours(config).moe,
            tuple(gate.weight for gate in gates),
            tuple(gate.expert_bias for gate in gates),
        )

    def _forward_router_experts(
        self, hidden_states: torch.Tensor, forward_batch: ForwardBatch
    ) -> torch.Tensor:
        chosen, shares = self._router(hidden_states, forward_batch.mm_token_modalities)
        # Who gives experts is not asked for logits.
        given = StandardTopKOutput(shares.float(), chosen.to(torch.int32), shares)
        routed: torch.Tensor = self.experts(hidden_states, given)
        return routed


class MingThinkerModule(BailingMoEForCausalLM):
    """The decoder and its head, as upstream loads and runs them."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        """`config` is of `upstream_config`."""
        super().__init__(config, quant_config, prefix)
        self._ours = ours(config)
        for index, layer in enumerate(self.model.layers):
            layer.attention.rotary_emb = TableRotary()
            if index >= self._ours.dense_layers:
                layer.mlp = RoutedBlock(index, config, quant_config, f"model.layers.{index}.mlp")
        self._rope: PartialRope | None = None

    def open_tables(self, rows: int) -> None:
        """Make the tables, for `Sequence.row` below `rows`."""
        weight = self.model.word_embeddings.weight
        self._rope = PartialRope.of(self._ours, weight.device)
        self.offsets = weight.new_zeros(rows, dtype=torch.float32)
        """(rows,): what a reply's positions are ahead of its rows."""
        self.flat: FlatBatch | None = None
        """Rows of the next forward that is no decode step."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: ForwardBatch,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> LogitsProcessorOutput:
        """Logits of each sequence's last row."""
        if self._rope is None:
            raise RuntimeError("the Thinker runs before its tables are made; call open_tables")
        if forward_batch.forward_mode.is_decode():
            x = self.model.word_embeddings(input_ids)
            line = positions + self.offsets.index_select(0, forward_batch.req_pool_indices)
        else:
            x, line = self._prompts(forward_batch)
        tables = stacked_tables(self._rope.tables(line, x.dtype))
        hidden = self.model(input_ids, tables, forward_batch, x)
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch)

    def _prompts(self, forward_batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows (N, H) of `flat` and their positions (3, N); routers are told the rows' kinds."""
        if self.flat is None:
            raise RuntimeError("prompts are computed before their rows are given")
        x = self.model.word_embeddings(self.flat.line.ids)
        for patch in self.flat.media:
            x[patch.rows] = patch.values
        forward_batch.mm_token_modalities = kinds_of(self.flat, self._ours)
        return x, self.flat.line.positions

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the decoder and its head out of the checkpoint's tensors."""
        super().load_weights(self._without_norms(renamed(weights, self._ours)))

    def _without_norms(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Take the norms of queries and keys, which upstream looks for under other names than its
        own."""
        for name, tensor in weights:
            if name.endswith(tuple(NORMS.values())):
                self.get_parameter(name).data.copy_(tensor)
            else:
                yield name, tensor


class SglangThinker(ThinkerPrompts):
    """`SglangRunner` of the language model."""

    def attach(self, module: MingThinkerModule, *, rows: int, slots: int) -> None:
        """See `SglangRunner`."""
        module.open_tables(rows)
        self._module = module
        self._no_tokens = upload([], self.device)
        self._nothing = torch.empty(0, 0)

    def begin(self, segments: list[Segment], *, decode: bool) -> None:
        """See `SglangRunner`."""
        if len(segments) != self._nothing.shape[0]:
            self._nothing = torch.empty(len(segments), 0)
        if decode:
            return
        self._module.flat = flatten(segments, self._no_tokens, self.device)
        rows = upload([segment.seq.row for segment in segments], self.device)
        offsets = [segment.seq.state.rope_delta for segment in segments]
        self._module.offsets[rows] = upload(offsets, self.device, torch.float32)

    def hidden(self) -> torch.Tensor:
        """See `SglangRunner`; nothing is made of it."""
        return self._nothing
