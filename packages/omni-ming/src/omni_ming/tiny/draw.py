"""Random tensors from one seeded generator, and the blocks that several models are made of.

All tensors of a checkpoint come from one row of random numbers, so the order of calls is part of
the format: it must stay, or the goldens lose their checkpoint.
"""

from __future__ import annotations

import math
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


class Draw:
    """The tensors of one model by their names on disk, as they are drawn."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self.tensors: Tensors = {}

    def normal(self, name: str, shape: tuple[int, ...], scale: float = 1.0) -> None:
        """Normal, of mean 0 and deviation `scale`."""
        self.tensors[name] = torch.randn(*shape, generator=self._generator) * scale

    def matrix(self, name: str, outputs: int, inputs: int, gain: float = 1.0) -> None:
        """A matrix that keeps the size of what it multiplies, times `gain`."""
        self.normal(name, (outputs, inputs), gain / math.sqrt(inputs))

    def bias(self, name: str, size: int, scale: float = 0.05) -> None:
        """A vector near 0."""
        self.normal(name, (size,), scale)

    def norm(self, name: str, size: int) -> None:
        """A vector near 1, as norms have."""
        self.bias(name, size, 0.1)
        self.tensors[name] = 1.0 + self.tensors[name]

    def linear(self, name: str, outputs: int, inputs: int, gain: float = 1.0) -> None:
        """Weight, then bias."""
        self.matrix(f"{name}.weight", outputs, inputs, gain)
        self.bias(f"{name}.bias", outputs)

    def convolution(self, name: str, outputs: int, inputs: int, *kernel: int) -> None:
        """Weight, then bias."""
        self.linear(name, outputs, inputs * math.prod(kernel))
        weight = self.tensors[f"{name}.weight"]
        self.tensors[f"{name}.weight"] = weight.view(outputs, inputs, *kernel)

    def layer_norm(self, name: str, size: int) -> None:
        """Weight, then bias."""
        self.norm(f"{name}.weight", size)
        self.bias(f"{name}.bias", size)

    def gated_mlp(self, name: str, hidden: int, inner: int) -> None:
        """Gate, up, down."""
        self.matrix(f"{name}.gate_proj.weight", inner, hidden)
        self.matrix(f"{name}.up_proj.weight", inner, hidden)
        self.matrix(f"{name}.down_proj.weight", hidden, inner)


def qwen2(draw: Draw, prefix: str, config: dict[str, Any], layers: int | None = None) -> None:
    """A Qwen2 model; `layers` other than its config says."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * hidden // config["num_attention_heads"]
    draw.normal(f"{prefix}embed_tokens.weight", (config["vocab_size"], hidden), 0.5)
    for layer in range(layers or config["num_hidden_layers"]):
        at = f"{prefix}layers.{layer}"
        for name, width in (("q_proj", hidden), ("k_proj", kv), ("v_proj", kv)):
            draw.linear(f"{at}.self_attn.{name}", width, hidden)
        draw.matrix(f"{at}.self_attn.o_proj.weight", hidden, hidden)
        draw.gated_mlp(f"{at}.mlp", hidden, inner)
        draw.norm(f"{at}.input_layernorm.weight", hidden)
        draw.norm(f"{at}.post_attention_layernorm.weight", hidden)
    draw.norm(f"{prefix}norm.weight", hidden)
