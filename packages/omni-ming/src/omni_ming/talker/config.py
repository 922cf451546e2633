"""The Talker's parts of a checkpoint: talker/config.json and talker/llm/config.json.

Knows the fields that our own modules need and refuses what they could not honour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_core.checkpoint.files import read_json
from omni_core.errors import ConfigError
from omni_ming.defaults import TALKER

LLM = f"{TALKER}/llm"
"""Folder of the language model's config.json and tokenizer."""
CACHE_ROWS = 2048
"""Prompt and patches of one utterance together: the size of the authors' cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmConfig:
    """The language model, a Qwen2."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    max_len: int
    """Longest sequence in rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """The stack without causal order behind the flow, or behind the aggregator."""

    hidden_size: int
    layers: int
    heads: int
    inner_size: int
    """Width of the feed-forward blocks."""

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerConfig:
    """All that makes latents."""

    llm: LlmConfig
    flow: TransformerConfig
    aggregator: TransformerConfig
    latent_dim: int
    patch: int
    """Latents that one step makes."""
    history: int
    """Latents before them that the flow sees."""
    steps: int
    """Euler steps of the flow."""
    speaker_dim: int
    """Of the speaker embedding that a voice comes with."""


_LLM_NEEDED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "rope_scaling": (None,),
}
_BLOCKS_NEEDED: Mapping[str, tuple[Any, ...]] = {"qk_norm": (None, False)}
"""Values that this implementation is of."""


def load_talker_config(model_path: str) -> TalkerConfig:
    """The Talker of a checkpoint; ConfigError for a missing field or an unknown variant."""
    llm, talker = (read_json(model_path, f"{folder}/config.json") for folder in (LLM, TALKER))
    _refuse_others(f"{LLM}/config.json", llm, _LLM_NEEDED)
    for name in ("flowmodel", "aggregator"):
        _refuse_others(f"{name} in {TALKER}/config.json", talker.get(name, {}), _BLOCKS_NEEDED)
    try:
        return TalkerConfig(
            llm=_llm(llm),
            flow=_blocks(talker["flowmodel"]),
            aggregator=_blocks(talker["aggregator"]),
            latent_dim=talker["latent_dim"],
            patch=talker["patch_size"],
            history=talker["history_patch_size"],
            steps=talker["steps"],
            speaker_dim=talker.get("spk_dim", 192),
        )
    except KeyError as exc:
        raise ConfigError(
            f"{TALKER}/config.json or {LLM}/config.json of {model_path} lacks {exc.args[0]!r}; "
            "download it again"
        ) from exc


def _refuse_others(
    where: str, values: Mapping[str, Any], needed: Mapping[str, tuple[Any, ...]]
) -> None:
    problems = [
        f"{name} in {where} is {values.get(name)!r}; this release runs checkpoints with "
        f"{' or '.join(map(repr, allowed))}"
        for name, allowed in needed.items()
        if values.get(name) not in allowed
    ]
    if problems:
        raise ConfigError(problems)


def _llm(values: Mapping[str, Any]) -> LlmConfig:
    return LlmConfig(
        vocab_size=values["vocab_size"],
        hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"],
        layers=values["num_hidden_layers"],
        heads=values["num_attention_heads"],
        kv_heads=values["num_key_value_heads"],
        head_dim=values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"],
        rope_theta=float(values["rope_theta"]),
        norm_eps=float(values["rms_norm_eps"]),
        max_len=min(CACHE_ROWS, values["max_position_embeddings"]),
    )


def _blocks(values: Mapping[str, Any]) -> TransformerConfig:
    return TransformerConfig(
        hidden_size=values["hidden_size"],
        layers=values["depth"],
        heads=values["num_heads"],
        inner_size=int(values["hidden_size"] * values.get("mlp_ratio", 4.0)),
    )
