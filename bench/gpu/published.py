"""The published sizes of Qwen3-Omni-30B-A3B's speech, and weights of noise for any sizes.

Knows config.json and the interface of `Weights`. Knows nothing of what is measured with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import torch

from omni_core.checkpoint.weights import Weights

SIZES: Final[Mapping[str, Any]] = {
    "talker_config": {
        "thinker_hidden_size": 2048,
        "codec_pad_id": 2148,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        "text_config": {
            "vocab_size": 3072,
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "num_hidden_layers": 20,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "rope_parameters": {"mrope_section": [24, 20, 20]},
            "moe_intermediate_size": 384,
            "num_experts": 128,
            "num_experts_per_tok": 6,
            "shared_expert_intermediate_size": 768,
        },
        "code_predictor_config": {
            "vocab_size": 2048,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 5,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
    },
    "code2wav_config": {
        "codebook_size": 2048,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "decoder_dim": 1536,
    },
}
"""What the published model has other than the tiny one, as `tests/test_published_sizes.py` of
omni-qwen3 checks against transformers."""


def write_published(tiny: Path) -> None:
    """Give the config.json of a tiny checkpoint the published sizes; its weights no longer fit."""
    path = tiny / "config.json"
    path.write_text(json.dumps(_with(json.loads(path.read_text()), SIZES)))


def _with(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes`, section by section."""
    changed = {
        name: _with(values[name], change) if isinstance(change, Mapping) else change
        for name, change in changes.items()
    }
    return {**values, **changed}


class NoiseWeights(Weights):
    """Any tensor that is asked for, drawn from its name alone: two models get the same.

    Matrices keep the size of what goes through them; norms are 1, scales of layers 0.1, all other
    vectors 0.
    """

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self.parts = []

    def part(self, make: Callable[[Weights], Any]) -> Any:
        """See `Weights.part`; nothing is remembered."""
        return make(self)

    def tensor(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """See `Weights.tensor`."""
        if len(shape) == 1:
            scaled = name.endswith(("scale", "gamma"))
            value = 1.0 if "norm" in name and name.endswith("weight") else 0.1 * scaled
            return torch.full(tuple(shape), value, device=self.device, dtype=self.dtype)
        generator = torch.Generator(self.device).manual_seed(crc32(name.encode()))
        noise = torch.empty(tuple(shape), device=self.device, dtype=self.dtype)
        return noise.normal_(std=prod(shape[1:]) ** -0.5, generator=generator)

    def fused(self, names: Sequence[str], rows: Sequence[int], columns: int) -> torch.Tensor:
        """See `Weights.fused`."""
        return self.tensor(names[0], (sum(rows), columns))

    def experts(
        self, prefix: str, count: int, *, hidden: int, inner: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Weights.experts`."""
        gate_up = self.tensor(f"{prefix}gate_up", (count * 2 * inner, hidden))
        down = self.tensor(f"{prefix}down", (count * hidden, inner))
        return gate_up.view(count, 2 * inner, hidden), down.view(count, hidden, inner)

    def finish(self) -> None:
        """See `Weights.finish`; there is nothing to be left over."""
