"""The code predictor (MTP): residual codes of one audio frame, for many requests at once.

Knows the dense stack, its own short KV cache and how codes are drawn. Knows nothing of the Talker,
of requests or of the engine's cache: every frame starts anew.

Frame of request b: two rows, the Talker's hidden state and the embedding of code 0, give code 1;
the embedding of code i then gives code i + 1. Head i and embedding i belong to code i + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_qwen3.config import DecoderConfig
from omni_qwen3.model.layers import DenseMlp, Qkv, RMSNorm, Rope, load_output
from omni_qwen3.weights import Weights

SAMPLED_TOP_K = 50
SAMPLED_TOP_P = 0.8
"""Fixed in transformers' Talker (`prepare_inputs_for_generation`), temperature 1."""


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: RMSNorm
    qkv: Qkv
    output: torch.Tensor
    mlp_norm: RMSNorm
    mlp: DenseMlp

    @classmethod
    def load(cls, weights: Weights, prefix: str, config: DecoderConfig) -> _Layer:
        before, after = (
            RMSNorm.load(weights, f"{prefix}{name}_layernorm.weight", config)
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


@dataclass(frozen=True, slots=True)
class Frames:
    """One frame for each request of a batch."""

    codes: torch.Tensor
    """Int64 (B, groups), code 0 included."""
    embedding: torch.Tensor
    """(B, hidden): sum of the embeddings of codes 1 to groups - 1."""


class CodePredictor:
    """Predicts the groups after the first; one batched forward per group."""

    def __init__(
        self, weights: Weights, prefix: str, config: DecoderConfig, code_groups: int
    ) -> None:
        self._config = config
        self._residual_groups = code_groups - 1
        self._layers = [
            _Layer.load(weights, f"{prefix}model.layers.{layer}.", config)
            for layer in range(config.layers)
        ]
        self._norm = RMSNorm.load(weights, f"{prefix}model.norm.weight", config)
        groups, table = range(self._residual_groups), (config.vocab_size, config.hidden_size)
        self._heads = [weights.tensor(f"{prefix}lm_head.{group}.weight", table) for group in groups]
        self._embeddings = [
            weights.tensor(f"{prefix}model.codec_embedding.{group}.weight", table)
            for group in groups
        ]
        rope = Rope(config.rope, config.head_dim, weights.device)
        positions = torch.arange(code_groups, device=weights.device)
        self._tables = rope.tables(positions, weights.dtype)
        self._cache = torch.empty(0, device=weights.device, dtype=weights.dtype)

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
        cache = self._reserve(len(hidden))
        x, start, codes = torch.stack([hidden, first_embedding], dim=1), 0, [first]
        total = torch.zeros_like(first_embedding)
        for group in range(self._residual_groups):
            state = self._forward(x, cache, start)
            start += x.shape[1]
            logits = F.linear(state, self._heads[group]).float()
            code = draw(logits, None if uniforms is None else uniforms[:, group])
            codes.append(code)
            embedding = F.embedding(code, self._embeddings[group])
            total = total + embedding
            x = embedding[:, None]
        return Frames(torch.stack(codes, dim=1), total)

    def _reserve(self, batch: int) -> torch.Tensor:
        """Keys and values (layers, 2, batch, kv_heads, groups, head_dim), kept between frames."""
        config = self._config
        if self._cache.numel() == 0 or self._cache.shape[2] < batch:
            groups = self._residual_groups + 1
            shape = (config.layers, 2, batch, config.kv_heads, groups, config.head_dim)
            self._cache = self._cache.new_empty(shape)
        return self._cache[:, :, :batch]

    def _forward(self, x: torch.Tensor, cache: torch.Tensor, start: int) -> torch.Tensor:
        """Rows x (B, n, hidden) at positions `start`..; returns the last state (B, hidden)."""
        end = start + x.shape[1]
        tables = self._tables.rows(start, end)
        for index, layer in enumerate(self._layers):
            queries, keys, values = layer.qkv(layer.attention_norm(x), tables)
            kept_keys, kept_values = cache[index, 0], cache[index, 1]
            kept_keys[:, :, start:end] = keys.transpose(1, 2)
            kept_values[:, :, start:end] = values.transpose(1, 2)
            attended = F.scaled_dot_product_attention(
                queries.transpose(1, 2),
                kept_keys[:, :, :end],
                kept_values[:, :, :end],
                is_causal=start == 0,
                enable_gqa=True,
            )
            x = x + F.linear(attended.transpose(1, 2).flatten(2), layer.output)
            x = x + layer.mlp(layer.mlp_norm(x))
        return self._norm(x[:, -1])


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
