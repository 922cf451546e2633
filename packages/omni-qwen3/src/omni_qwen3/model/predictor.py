"""The code predictor (MTP): residual codes of one audio frame, for many requests at once.

Knows the dense stack, its own short KV cache and how codes are drawn. Knows nothing of the Talker,
of requests or of the engine's cache: every frame starts anew.

Frame of request b: the Talker's hidden state at position 0 and the embedding of code 0 at position
1, which gives code 1; the embedding of code i at position i + 1 then gives code i + 1. Head i and
embedding i belong to code i + 1. On a CPU a step is one position, small enough to be compiled in
seconds; on a card it is the whole frame, launched as one graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_core.layers.mlp import DenseMlp
from omni_core.layers.norm import RMSNorm
from omni_core.layers.rotary import RotaryTables
from omni_core.steps import Step, StepBank
from omni_qwen3.config import DecoderConfig
from omni_qwen3.model.layers import Qkv, Rope, load_output

SAMPLED_TOP_K = 50
SAMPLED_TOP_P = 0.8
"""Fixed in transformers' Talker (`prepare_inputs_for_generation`), temperature 1."""

Drawn: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Codes (B,) and their embeddings (B, hidden)."""


@dataclass(frozen=True, slots=True)
class PredictorLayer:
    """One layer of the dense stack."""

    attention_norm: RMSNorm
    qkv: Qkv
    output: torch.Tensor
    mlp_norm: RMSNorm
    mlp: DenseMlp

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: DecoderConfig) -> PredictorLayer:
        """From everything under `prefix`."""
        before, after = (
            RMSNorm.load(
                weights, f"{prefix}{name}_layernorm.weight", config.hidden_size, config.norm_eps
            )
            for name in ("input", "post_attention")
        )
        return cls(
            attention_norm=before,
            qkv=Qkv.load(weights, f"{prefix}self_attn.", config),
            output=load_output(weights, f"{prefix}self_attn.", config),
            mlp_norm=after,
            mlp=DenseMlp.load(
                weights, f"{prefix}mlp.", config.hidden_size, config.intermediate_size
            ),
        )

    def __call__(
        self,
        x: torch.Tensor,
        position: torch.Tensor,
        tables: RotaryTables,
        mask: torch.Tensor,
        cache: torch.Tensor,
    ) -> torch.Tensor:
        """Rows (B, hidden) of one position to (B, hidden); writes it into `cache`."""
        queries, keys, values = self.qkv(self.attention_norm(x), tables)
        cache[0].index_copy_(2, position, keys[:, :, None])
        cache[1].index_copy_(2, position, values[:, :, None])
        kept_keys, kept_values = cache.flatten(1, 2).unbind()
        batch, heads, head_dim = queries.shape
        grouped = queries.reshape(-1, heads // cache.shape[2], head_dim)
        scores = torch.baddbmm(mask, grouped, kept_keys.transpose(1, 2), alpha=head_dim**-0.5)
        attended = torch.bmm(scores.softmax(dim=-1), kept_values)
        x = x + F.linear(attended.view(batch, heads * head_dim), self.output)
        return x + self.mlp(self.mlp_norm(x))


@dataclass(frozen=True, slots=True)
class GreedyStep:
    """One position of a frame (a program of `omni_core.steps`): the likeliest code."""

    layers: tuple[PredictorLayer, ...]
    norm: RMSNorm

    def __call__(self, *tensors: torch.Tensor) -> Drawn:
        """Of `Place.tensors`, x (B, hidden) and the cache."""
        logits, table = _logits(self.layers, self.norm, *tensors)
        code = logits.argmax(dim=-1)
        return code, F.embedding(code, table)


@dataclass(frozen=True, slots=True)
class SampledStep:
    """As `GreedyStep`, the code drawn."""

    layers: tuple[PredictorLayer, ...]
    norm: RMSNorm

    def __call__(self, *tensors: torch.Tensor) -> Drawn:
        """Of `uniforms` (B,) as in `draw`, then as `GreedyStep`."""
        logits, table = _logits(self.layers, self.norm, *tensors[1:])
        code = draw(logits, tensors[0])
        return code, F.embedding(code, table)


def _logits(
    layers: tuple[PredictorLayer, ...],
    norm: RMSNorm,
    position: torch.Tensor,
    cos: torch.Tensor,
    signed_sin: torch.Tensor,
    mask: torch.Tensor,
    head: torch.Tensor,
    table: torch.Tensor,
    x: torch.Tensor,
    cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    tables = RotaryTables(cos, signed_sin)
    for index, layer in enumerate(layers):  # written through `unbind`, the batch would be fixed
        x = layer(x, position, tables, mask, cache[index])
    return F.linear(norm(x), head).float(), table


@dataclass(frozen=True, slots=True)
class Place:
    """What is special about one position of a frame."""

    position: torch.Tensor
    """Int64 (1,)."""
    cos: torch.Tensor
    """(1, 1, head_dim), as the next."""
    signed_sin: torch.Tensor
    mask: torch.Tensor
    """(1, 1, positions): 0 up to here, minus infinity after it."""
    head: torch.Tensor
    """(vocab, hidden)."""
    table: torch.Tensor
    """(vocab, hidden) embeddings of the codes drawn here."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """In the order of the fields."""
        return self.position, self.cos, self.signed_sin, self.mask, self.head, self.table


@dataclass(frozen=True, slots=True)
class WholeFrame:
    """All positions of a frame (a program of `omni_core.steps`)."""

    step: GreedyStep | SampledStep
    places: tuple[Place, ...]
    cache_row: tuple[int, int, int]
    """kv_heads, positions, head_dim."""

    def __call__(self, *tensors: torch.Tensor) -> Drawn:
        """Of the arguments of `CodePredictor`, to its results."""
        hidden = tensors[0]
        shape = cache_shape(len(hidden), len(self.step.layers), self.cache_row)
        return draw_frame(self.step, self.places, hidden.new_zeros(shape), *tensors)


def cache_shape(batch: int, layers: int, row: tuple[int, int, int]) -> tuple[int, ...]:
    """Keys and values (layers, 2, B, kv_heads, positions, head_dim); `row` is the last three.

    Such memory starts as zeros: what is masked is multiplied by 0, which a NaN would outlast.
    """
    return (layers, 2, batch, *row)


def draw_frame(
    step: Callable[..., tuple[torch.Tensor, ...]],
    places: Sequence[Place],
    cache: torch.Tensor,
    hidden: torch.Tensor,
    first: torch.Tensor,
    first_embedding: torch.Tensor,
    *uniforms: torch.Tensor,
) -> Drawn:
    """Codes (B, groups) and the sum of the embeddings (B, hidden) of those after the first."""
    columns = uniforms[0].t().contiguous().unbind() if uniforms else ()
    step(*columns[:1], *places[0].tensors, hidden, cache)  # for its keys and values
    x, codes = first_embedding, [first]
    total = torch.zeros_like(first_embedding)
    for number, place in enumerate(places[1:]):
        code, x = step(*columns[number : number + 1], *place.tensors, x, cache)
        codes.append(code)
        total = total + x  # one by one: `sum` over groups rounds as the batch's size makes it
    return torch.stack(codes, dim=1), total


@dataclass(frozen=True, slots=True)
class Frames:
    """One frame for each request of a batch."""

    codes: torch.Tensor
    """Int64 (B, groups), code 0 included."""
    embedding: torch.Tensor
    """(B, hidden): sum of the embeddings of codes 1 to groups - 1."""


class CodePredictor:
    """Predicts the groups after the first; one batched step per group."""

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: DecoderConfig,
        code_groups: int,
        bank: StepBank | None = None,
    ) -> None:
        """`bank` may make the steps faster; without one they stay as they are."""
        layers = tuple(
            weights.part(
                partial(PredictorLayer.load, prefix=f"{prefix}model.layers.{layer}.", config=config)
            )
            for layer in range(config.layers)
        )
        norm = weights.part(
            partial(
                RMSNorm.load,
                name=f"{prefix}model.norm.weight",
                size=config.hidden_size,
                eps=config.norm_eps,
            )
        )
        self._places = _places(weights, prefix, config, code_groups)
        self._layers = config.layers
        self._cache_row = (config.kv_heads, code_groups, config.head_dim)
        self._cache_memory = torch.empty(0, device=weights.device, dtype=weights.dtype)
        self._whole = weights.device.type == "cuda"
        self._greedy, self._sampled = (
            self._register(bank or StepBank.eager(), program)
            for program in (GreedyStep(layers, norm), SampledStep(layers, norm))
        )

    def __call__(
        self,
        hidden: torch.Tensor,
        first: torch.Tensor,
        first_embedding: torch.Tensor,
        uniforms: torch.Tensor | None,
    ) -> Frames:
        """The frames that continue `hidden` (B, hidden) and code 0 `first` (B,).

        `uniforms` (B, groups - 1) in [0, 1) draws the codes, row by row; a negative row is greedy,
        None makes all rows greedy. A row's codes do not depend on the rows beside it.
        """
        step = self._greedy if uniforms is None else self._sampled
        tensors = (hidden, first, first_embedding, *(() if uniforms is None else (uniforms,)))
        if self._whole:
            return Frames(*step(*tensors))
        return Frames(*draw_frame(step, self._places, self._cache(hidden), *tensors))

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """`Frames.embedding` (F, hidden) of frames drawn before, from their codes (F, groups)."""
        total = torch.zeros_like(self._places[0].table[:1])
        for column, place in zip(codes[:, 1:].unbind(dim=1), self._places[1:], strict=True):
            total = total + F.embedding(column, place.table)
        return total

    def _register(self, bank: StepBank, program: GreedyStep | SampledStep) -> Step:
        sampled = isinstance(program, SampledStep)
        name = f"code_predictor_{'sampled' if sampled else 'greedy'}"
        uniforms = ({0: "batch"},) if sampled else ()
        if self._whole:
            frame = WholeFrame(program, self._places, self._cache_row)
            return bank.step(
                name,
                frame,
                dynamic=({0: "batch"},) * 3 + uniforms,
                examples=lambda: map(partial(self._frame_example, sampled), bank.batches),
            )
        still: tuple[dict[int, str], ...] = ({},) * len(self._places[0].tensors)
        return bank.step(
            name,
            program,
            dynamic=(*uniforms, *still, {0: "batch"}, {2: "batch"}),
            pools=1,
            examples=lambda: map(partial(self._step_example, sampled), bank.batches),
        )

    def _frame_example(self, sampled: bool, batch: int) -> tuple[torch.Tensor, ...]:
        hidden = self._places[0].table.new_zeros((batch, self._places[0].table.shape[1]))
        uniforms = (hidden.new_zeros((batch, len(self._places) - 1), dtype=torch.float32),)
        first = hidden.new_zeros(batch, dtype=torch.long)
        return (hidden, first, hidden, *(uniforms if sampled else ()))

    def _step_example(self, sampled: bool, batch: int) -> tuple[torch.Tensor, ...]:
        hidden, _, _, *uniforms = self._frame_example(sampled, batch)
        columns = (u[:, 0].contiguous() for u in uniforms)
        return (*columns, *self._places[1].tensors, hidden, self._cache(hidden))

    def _cache(self, hidden: torch.Tensor) -> torch.Tensor:
        """Kept between frames, which find finite numbers of the frame before in it."""
        shape = cache_shape(len(hidden), self._layers, self._cache_row)
        size = math.prod(shape)
        if self._cache_memory.numel() < size:
            self._cache_memory = hidden.new_zeros(size)
        return self._cache_memory[:size].view(shape)


def _places(
    weights: Weights, prefix: str, config: DecoderConfig, code_groups: int
) -> tuple[Place, ...]:
    """One for the hidden state, whose head and table are not meant, and one for each code."""
    shape = (config.vocab_size, config.hidden_size)
    heads, tables = (
        [weights.tensor(f"{prefix}{name}.{n}.weight", shape) for n in range(code_groups - 1)]
        for name in ("lm_head", "model.codec_embedding")
    )
    positions = torch.arange(code_groups, device=weights.device)
    rope = Rope.of(config.rope, config.head_dim, weights.device).tables(positions, weights.dtype)
    hidden_yet = torch.full(
        (code_groups, code_groups), -torch.inf, device=weights.device, dtype=weights.dtype
    ).triu(diagonal=1)
    return tuple(
        Place(
            position=positions[n : n + 1],
            cos=rope.cos[n : n + 1],
            signed_sin=rope.signed_sin[n : n + 1],
            mask=hidden_yet[None, n : n + 1],
            head=heads[max(n - 1, 0)],
            table=tables[max(n - 1, 0)],
        )
        for n in range(code_groups)
    )


def draw(logits: torch.Tensor, uniforms: torch.Tensor | None) -> torch.Tensor:
    """Codes (B,) from float32 logits (B, vocab): argmax where `uniforms` (B,) is negative or None,
    else the inverse of the cumulative distribution after top-k and top-p, at `uniforms`."""
    greedy = logits.argmax(dim=-1)
    if uniforms is None:
        return greedy
    best, codes = logits.topk(min(SAMPLED_TOP_K, logits.shape[-1]), dim=-1)
    probabilities = best.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = probabilities * (before < SAMPLED_TOP_P)
    cumulative = kept.cumsum(dim=-1)
    passed = cumulative <= uniforms[:, None] * cumulative[:, -1:]
    # A uniform next to 1 may round onto the total; the last kept code is then meant.
    last_kept = (kept > 0).sum(dim=-1) - 1
    index = torch.minimum(passed.sum(dim=-1), last_kept)
    sampled = codes.gather(1, index[:, None])[:, 0]
    return torch.where(uniforms < 0, greedy, sampled)
