"""The Thinker's part of config.json as frozen dataclasses, read without transformers.

Knows the fields that our own modules need and refuses what they could not honour. Placeholders are
the tokenizer's to say: config.json lacks the one for audio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_core.checkpoint.files import read_json
from omni_core.checkpoint.vocabulary import read_vocabulary
from omni_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Mixture of experts with grouped sigmoid routing and one router per modality."""

    experts: int
    top_k: int
    groups: int
    top_groups: int
    """Groups that a row's experts may come from."""
    intermediate_size: int
    shared_intermediate_size: int
    """Width of the expert that every row visits."""
    scale: float
    """On the shares of the chosen experts, which sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkerConfig:
    """The language model and the placeholder tokens of its media."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    dense_layers: int
    """So many first layers have a plain feed-forward block."""
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    """Leading dimensions of a head that are turned; the rest has no position."""
    rope_theta: float
    norm_eps: float
    max_len: int
    """Longest sequence in tokens."""
    moe: MoeConfig
    image_token_id: int
    video_token_id: int
    audio_token_id: int
    """Placeholders whose embedding comes from an encoder."""
    eos_token_id: int


IMAGE_PATCH, FRAME_PATCH, AUDIO_PATCH = "<imagePatch>", "<framePatch>", "<audioPatch>"

_NEEDED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "router_type": ("MultiRouter",),
    "use_qk_norm": (True,),
    "use_qkv_bias": (False, None),
    "use_bias": (False, None),
    "norm_topk_prob": (True, None),
    "score_function": ("sigmoid", None),
    "num_shared_experts": (1,),
    "tie_word_embeddings": (False, None),
}
"""Values of `llm_config` that this implementation is of."""


def load_thinker_config(model_path: str) -> ThinkerConfig:
    """The Thinker of a checkpoint; ConfigError for a missing field or token, or an unknown
    variant."""
    llm = read_json(model_path, "config.json").get("llm_config")
    if not isinstance(llm, Mapping):
        raise ConfigError(f"config.json of {model_path} has no llm_config; download it again")
    _refuse_others(llm, model_path)
    try:
        return _thinker_config(llm, _placeholders(model_path))
    except KeyError as exc:
        raise ConfigError(
            f"llm_config in config.json of {model_path} lacks {exc.args[0]!r}; download it again"
        ) from exc


def _placeholders(model_path: str) -> tuple[int, int, int]:
    """Of images, videos and audio."""
    ids = {token.text: token.token_id for token in read_vocabulary(model_path).added}
    names = (IMAGE_PATCH, FRAME_PATCH, AUDIO_PATCH)
    if missing := [name for name in names if name not in ids]:
        raise ConfigError(
            f"the tokenizer of {model_path} has no {' or '.join(missing)}; download it again"
        )
    image, video, audio = (ids[name] for name in names)
    return image, video, audio


def _refuse_others(llm: Mapping[str, Any], where: str) -> None:
    problems = [
        f"llm_config.{name} of {where} is {llm.get(name)!r}; this release runs checkpoints with "
        f"{' or '.join(map(repr, allowed))}"
        for name, allowed in _NEEDED.items()
        if llm.get(name) not in allowed
    ]
    rope = (llm.get("rope_scaling") or {}).get("type")
    if rope != "video_rope":
        problems.append(f"llm_config.rope_scaling of {where} is {rope!r}, not 'video_rope'")
    if problems:
        raise ConfigError(problems)


def _thinker_config(llm: Mapping[str, Any], placeholders: tuple[int, int, int]) -> ThinkerConfig:
    image, video, audio = placeholders
    head_dim = int(llm.get("head_dim") or llm["hidden_size"] // llm["num_attention_heads"])
    scale = llm.get("routed_scaling_factor") or llm.get("moe_router_topk_scaling_factor") or 2.5
    return ThinkerConfig(
        vocab_size=llm["vocab_size"],
        hidden_size=llm["hidden_size"],
        intermediate_size=llm["intermediate_size"],
        layers=llm["num_hidden_layers"],
        dense_layers=llm["first_k_dense_replace"],
        heads=llm["num_attention_heads"],
        kv_heads=llm["num_key_value_heads"],
        head_dim=head_dim,
        rotary_dim=int(head_dim * llm["partial_rotary_factor"]),
        rope_theta=float(llm["rope_theta"]),
        norm_eps=float(llm["rms_norm_eps"]),
        max_len=llm["max_position_embeddings"],
        moe=MoeConfig(
            experts=llm["num_experts"],
            top_k=llm["num_experts_per_tok"],
            groups=llm["n_group"],
            top_groups=llm["topk_group"],
            intermediate_size=llm["moe_intermediate_size"],
            shared_intermediate_size=llm["moe_intermediate_size"] * llm["num_shared_experts"],
            scale=float(scale),
        ),
        image_token_id=image,
        video_token_id=video,
        audio_token_id=audio,
        eos_token_id=llm["eos_token_id"],
    )
