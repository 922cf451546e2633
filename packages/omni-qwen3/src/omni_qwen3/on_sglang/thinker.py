"""The Thinker on SGLang: its decoder and head of upstream's layers, over prompts with media.

Knows the module upstream loads, and the input of each row. Knows nothing of batching, KV memory or
sampling (the engine's).

A decode step reads token ids and a table with a place for every `Sequence.row`, so that it can be
recorded as a graph; the rows of prompts are handed over as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from omni_core.checkpoint.files import read_json
from omni_core.checkpoint.weights import Checkpoint, torch_dtype
from omni_core.engine.base import Segment, Sequence
from omni_core.engine.common.transfer import upload
from omni_core.engine.sglang_engine.model import SglangModel
from omni_core.engine.sglang_engine.split import require_even_split
from omni_core.errors import ConfigError
from omni_core.layers.rotary_module import TableRotary, stacked_tables
from omni_core.layers.rows import Patch
from omni_core.specs import Ref, StageContext
from omni_core.text.detokenize import TokenBytes
from omni_core.types import IntArray
from omni_qwen3.config import DecoderConfig, load_config
from omni_qwen3.defaults import eos_token_ids
from omni_qwen3.model.layers import Rope
from omni_qwen3.on_sglang.decoder import as_qwen3_moe, check_tensors
from omni_qwen3.on_sglang.upstream import (
    ForwardBatch,
    LogitsProcessorOutput,
    Qwen3MoeForCausalLM,
    VocabParallelEmbedding,
    residual_batch,
)
from omni_qwen3.prompt import FlatBatch, Prompt, flatten
from omni_qwen3.thinker_prompts import ThinkerInputs, ThinkerPrompts

DECODER = "thinker.model."
HEAD = "thinker.lm_head."


def load_model(ctx: StageContext, *, speaks: bool) -> SglangModel[SglangThinker]:
    """The checkpoint's language model, without its encoders; `speaks` if a Talker may follow it."""
    config = load_config(ctx.model_path)
    decoder = config.thinker.decoder
    with Checkpoint(ctx.model_path) as checkpoint:
        check_decoder(checkpoint, decoder)
    require_even_split(
        ctx.stage.name, ctx.stage.tp_size, _split_widths(decoder), kv_heads=decoder.kv_heads
    )
    runner = SglangThinker(
        config,
        eos_token_ids=eos_token_ids(ctx.model_path),
        detokenize=TokenBytes(ctx.model_path).text,
        device=torch.device(ctx.device),
        dtype=torch_dtype(ctx.dtype),
    )
    runner.keeps = speaks
    return SglangModel(
        runner=runner,
        module=ThinkerModule,
        config=upstream_config(ctx.model_path, decoder),
        tensors=(DECODER, HEAD),
        weights=DecoderWeights(decoder),
        load=Ref("omni_qwen3.thinker:load_sglang_model"),
        inputs=ThinkerInputs,
    )


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """`SglangModel.weights`: upstream loads all there is."""

    decoder: DecoderConfig

    def check(self, model_path: str) -> None:
        """See `WeightLoader`."""
        with Checkpoint(model_path) as checkpoint:
            check_decoder(checkpoint, self.decoder)

    def load(self, model_path: str) -> None:
        """Nothing is left to load."""


def check_decoder(checkpoint: Checkpoint, config: DecoderConfig) -> None:
    """ConfigError unless upstream's layers are those of the config; see `check_tensors`."""
    if config.moe is None or config.dense_layers:
        raise ConfigError(
            "this Thinker has layers without experts, which SGLang's model of it does not know; "
            "use --ar-engine torch"
        )
    check_tensors(checkpoint, config, DECODER, HEAD, embeddings="embed_tokens")


def _split_widths(config: DecoderConfig) -> dict[str, int]:
    """What ranks divide among themselves, beside heads of keys and values."""
    widths = {"attention heads": config.heads}
    if config.moe is not None:
        widths["columns in an expert"] = config.moe.intermediate_size
    return widths


def upstream_config(model_path: str, decoder: DecoderConfig) -> dict[str, Any]:
    """config.json of the decoder alone, as one of Qwen3-MoE."""
    text = read_json(model_path, "config.json")["thinker_config"]["text_config"]
    return as_qwen3_moe(text, decoder)


class ThinkerModule(Qwen3MoeForCausalLM):
    """The decoder and its head, as upstream loads and runs them."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        """`config` is of `upstream_config`."""
        super().__init__(config, quant_config, prefix)
        if self.model.embed_tokens.tp_size > 1:
            # Whole on every rank: rows are embedded between steps, too, by the first rank alone.
            self.model.embed_tokens = VocabParallelEmbedding(
                config.vocab_size, config.hidden_size, enable_tp=False
            )
        for layer in self.model.layers:
            layer.self_attn.rotary_emb = TableRotary()
        self._rope: Rope | None = None

    def open_tables(self, rope: Rope, *, rows: int, slots: int, capture_layer: int | None) -> None:
        """Make the tables: for `Sequence.row` below `rows`, and for KV that lies below `slots`."""
        weight = self.model.embed_tokens.weight
        self._rope = rope
        self._capture_layer = capture_layer
        self.offsets = weight.new_zeros(rows, dtype=torch.float32)
        """(rows,): what a reply's positions are ahead of its rows."""
        self.kept = weight.new_zeros(slots, weight.shape[1])
        """(slots, H): the captured state of the row whose KV lies there, where one is captured."""
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
            x = self.model.embed_tokens(input_ids)
            line = positions + self.offsets.index_select(0, forward_batch.req_pool_indices)
            tables = stacked_tables(self._rope.tables(line, x.dtype))
            hidden = self.model(input_ids, tables, forward_batch, x)
        else:
            hidden = self._prompts(forward_batch)
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch)

    def _prompts(self, forward_batch: ForwardBatch) -> torch.Tensor:
        """Normed states (N, H) of the rows of `flat`."""
        flat, rope = self.flat, self._rope
        if flat is None or rope is None:
            raise RuntimeError("prompts are computed before their rows are given")
        x = self.model.embed_tokens(flat.line.ids)
        for patch in flat.media:
            x[patch.rows] = patch.values
        tables = stacked_tables(rope.tables(flat.line.positions, x.dtype))
        residual_batch.start(forward_batch)
        for index, layer in enumerate(self.model.layers):
            x = layer(tables, x, forward_batch)
            captures = flat.captures if index == self._capture_layer else []
            deepstack = [patch for patch in flat.deepstack if index < len(patch.values)]
            if captures or deepstack:
                x = residual_batch.fold(x, forward_batch)
            # transformers captures before the deepstack add
            self._keep(captures, x, forward_batch)
            for patch in deepstack:
                x.index_add_(0, patch.rows, patch.values[index])
        hidden: torch.Tensor = residual_batch.final_norm(x, forward_batch, self.model.norm)
        if self._capture_layer is None:
            self._keep(flat.captures, hidden, forward_batch)
        return hidden

    def _keep(self, captures: list[Patch], x: torch.Tensor, forward_batch: ForwardBatch) -> None:
        """Copy states to who wants them, and beside the KV of their rows."""
        for patch in captures:
            states = x[patch.rows]
            patch.values.copy_(states)
            self.kept[forward_batch.out_cache_loc[patch.rows]] = states

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the decoder and its head out of the checkpoint's tensors."""
        super().load_weights(_renamed(weights))


def _renamed(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in weights:
        if name.startswith((DECODER, HEAD)):
            yield name.removeprefix("thinker."), tensor


class SglangThinker(ThinkerPrompts):
    """`SglangRunner` of the language model."""

    keeps = True
    """Whether hidden states are kept beside KV, for a Talker."""

    def attach(self, module: ThinkerModule, *, rows: int, slots: int) -> None:
        """See `SglangRunner`."""
        decoder = self.config.thinker.decoder
        module.open_tables(
            Rope.of(decoder.rope, decoder.head_dim, self.device),
            rows=rows,
            slots=slots if self.keeps else 0,
            capture_layer=self.capture_layer,
        )
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

    def restore(self, seq: Sequence, start: int, stop: int, slots: torch.Tensor) -> None:
        """Take the hidden states of media rows that lie beside their KV."""
        prompt: Prompt = seq.state
        rows = prompt.captured(start, stop)
        if len(rows):
            prompt.restore(start, stop, self._module.kept[slots[upload(rows - start, self.device)]])

    def embed(self, token_ids: IntArray | tuple[int, ...]) -> torch.Tensor:
        """Input embeddings (n, H) of some tokens."""
        with torch.inference_mode():
            ids = torch.as_tensor(token_ids, device=self.device)
            rows: torch.Tensor = self._module.model.embed_tokens(ids)
            return rows
