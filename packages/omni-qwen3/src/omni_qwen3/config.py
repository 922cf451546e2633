"""Qwen3-Omni's config.json as frozen dataclasses, read without transformers.

Knows the fields our own modules need, including those no transformers config class declares. Knows
nothing of weights, towers (transformers reads its own config for these) or tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from omni_core.checkpoint.files import read_json
from omni_core.errors import ConfigError
from omni_qwen3.preprocess.settings import PromptConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding; `mrope_section` counts the frequencies of (time, height, width)."""

    theta: float
    mrope_section: tuple[int, int, int] | None
    """None: one position per row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Sparse feed-forward block."""

    experts: int
    top_k: int
    intermediate_size: int
    norm_topk_prob: bool
    shared_intermediate_size: int | None
    """Width of the always-on expert behind a sigmoid gate; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """One decoder stack: Thinker, Talker or code predictor."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    max_len: int
    """Longest sequence in tokens."""
    rope: RopeConfig
    moe: MoeConfig | None
    dense_layers: frozenset[int]
    """Layers with a plain feed-forward block although `moe` is set."""

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer's feed-forward block is the mixture of experts."""
        return self.moe is not None and layer not in self.dense_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkerConfig:
    """The language model and the placeholder tokens of its media."""

    decoder: DecoderConfig
    audio_token_id: int
    image_token_id: int
    video_token_id: int

    @property
    def media_token_ids(self) -> tuple[int, int, int]:
        """Placeholders whose embedding comes from an encoder."""
        return (self.audio_token_id, self.image_token_id, self.video_token_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerConfig:
    """The speech model: Talker and code predictor."""

    decoder: DecoderConfig
    predictor: DecoderConfig
    thinker_hidden_size: int
    code_groups: int
    accept_hidden_layer: int
    """Which Thinker hidden state conditions media rows: k is the output of layer k - 1."""
    codec_pad_id: int
    codec_bos_id: int
    codec_eos_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    positions: PromptConfig
    """Ids and constants of the Talker's own M-RoPE positions."""
    speakers: Mapping[str, int]
    """{lower-case name: codec token}, in the checkpoint's order."""

    @property
    def default_speaker(self) -> str:
        """Ethan, as in transformers' `generate`, or the checkpoint's first speaker."""
        return "ethan" if "ethan" in self.speakers else next(iter(self.speakers))


@dataclass(frozen=True, slots=True, kw_only=True)
class OmniConfig:
    """The whole checkpoint; `talker` is None where it was exported without speech."""

    thinker: ThinkerConfig
    talker: TalkerConfig | None
    im_start_token_id: int
    im_end_token_id: int
    user_token_id: int
    assistant_token_id: int
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int

    def require_talker(self) -> TalkerConfig:
        """The Talker's config; ConfigError for a checkpoint without one."""
        if self.talker is None:
            raise ConfigError(
                "this checkpoint has no Talker (enable_audio_output is false or talker_config "
                "missing); use --variant text"
            )
        return self.talker


class _Section:
    """One object of config.json that names a missing or mistyped key in full."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = data
        self._where = where

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self._data.get(key)
        if value is None:
            if default is None:
                raise ConfigError(f"config.json lacks {self._where}{key}")
            return default
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind):
            raise ConfigError(f"config.json: {self._where}{key} is {value!r}, not {kind.__name__}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        return self.get(key, int, default)

    def section(self, key: str) -> _Section:
        data: dict[str, Any] = self.get(key, dict)
        return _Section(data, f"{self._where}{key}.")

    def expect(self, key: str, allowed: object) -> None:
        """Refuse a variant that our modules do not compute."""
        value = self._data.get(key, allowed)
        if value != allowed:
            raise ConfigError(
                f"config.json: {self._where}{key} is {value!r}; only {allowed!r} is supported"
            )


def load_config(model_path: str) -> OmniConfig:
    """Read `config.json` of a checkpoint directory."""
    return parse_config(read_json(model_path, "config.json"))


def parse_config(data: Mapping[str, Any]) -> OmniConfig:
    """Build the typed config from the parsed JSON; keys nobody needs are ignored."""
    root = _Section(data, "")
    thinker = _thinker(root.section("thinker_config"))
    speaks = root.get("enable_audio_output", bool, True) and "talker_config" in root
    talker = _talker(root.section("talker_config")) if speaks else None
    if talker is not None and not 1 <= talker.accept_hidden_layer <= thinker.decoder.layers:
        raise ConfigError(
            f"config.json: talker_config.accept_hidden_layer is {talker.accept_hidden_layer}; "
            f"the Thinker has hidden states 1 to {thinker.decoder.layers}"
        )
    # The ids of the published vocabulary stand in where config.json is silent, as in transformers.
    return OmniConfig(
        thinker=thinker,
        talker=talker,
        im_start_token_id=root.integer("im_start_token_id", 151644),
        im_end_token_id=root.integer("im_end_token_id", 151645),
        user_token_id=root.integer("user_token_id", 872),
        assistant_token_id=root.integer("assistant_token_id", 77091),
        tts_pad_token_id=root.integer("tts_pad_token_id", 151671),
        tts_bos_token_id=root.integer("tts_bos_token_id", 151672),
        tts_eos_token_id=root.integer("tts_eos_token_id", 151673),
    )


def _thinker(section: _Section) -> ThinkerConfig:
    text = section.section("text_config")
    return ThinkerConfig(
        decoder=_decoder(text, _moe(text, norm_default=True, shared=False)),
        audio_token_id=section.integer("audio_token_id"),
        image_token_id=section.integer("image_token_id"),
        video_token_id=section.integer("video_token_id"),
    )


def _talker(section: _Section) -> TalkerConfig:
    text = section.section("text_config")
    speakers = section.get("speaker_id", dict)
    if not speakers:
        raise ConfigError("config.json: talker_config.speaker_id names no speaker")
    config = TalkerConfig(
        decoder=_decoder(text, _moe(text, norm_default=False, shared=True)),
        predictor=_decoder(section.section("code_predictor_config"), None),
        thinker_hidden_size=section.integer("thinker_hidden_size"),
        code_groups=section.integer("num_code_groups"),
        accept_hidden_layer=section.integer("accept_hidden_layer"),
        codec_pad_id=section.integer("codec_pad_id"),
        codec_bos_id=section.integer("codec_bos_id"),
        codec_eos_id=section.integer("codec_eos_token_id"),
        codec_nothink_id=section.integer("codec_nothink_id"),
        codec_think_bos_id=section.integer("codec_think_bos_id"),
        codec_think_eos_id=section.integer("codec_think_eos_id"),
        positions=_positions(section),
        speakers={str(name).lower(): int(token) for name, token in speakers.items()},
    )
    if config.predictor.hidden_size != config.decoder.hidden_size:
        raise ConfigError(
            "config.json: talker_config.code_predictor_config.hidden_size must equal "
            "talker_config.text_config.hidden_size: the predictor continues the Talker's state"
        )
    return config


def _positions(section: _Section) -> PromptConfig:
    return PromptConfig(
        image_token_id=section.integer("image_token_id"),
        video_token_id=section.integer("video_token_id"),
        audio_token_id=section.integer("audio_token_id"),
        vision_start_token_id=section.integer("vision_start_token_id"),
        audio_start_token_id=section.integer("audio_start_token_id"),
        position_id_per_seconds=section.get("position_id_per_seconds", float),
        spatial_merge_size=section.integer("spatial_merge_size"),
    )


def _decoder(section: _Section, moe: MoeConfig | None) -> DecoderConfig:
    section.expect("hidden_act", "silu")
    section.expect("attention_bias", False)
    heads, hidden_size = section.integer("num_attention_heads"), section.integer("hidden_size")
    layers, step = section.integer("num_hidden_layers"), section.integer("decoder_sparse_step", 1)
    dense = {i for i in range(layers) if (i + 1) % step} | set(
        section.get("mlp_only_layers", list, [])
    )
    return DecoderConfig(
        vocab_size=section.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=section.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=section.integer("num_key_value_heads"),
        head_dim=section.integer("head_dim", hidden_size // heads),
        norm_eps=section.get("rms_norm_eps", float, 1e-6),
        max_len=section.integer("max_position_embeddings"),
        rope=_rope(section),
        moe=moe,
        # The Talker is sparse in every layer, whatever these two keys say.
        dense_layers=frozenset() if moe and moe.shared_intermediate_size else frozenset(dense),
    )


def _moe(section: _Section, *, norm_default: bool, shared: bool) -> MoeConfig:
    experts_key = "num_experts" if "num_experts" in section else "num_local_experts"
    return MoeConfig(
        experts=section.integer(experts_key),
        top_k=section.integer("num_experts_per_tok"),
        intermediate_size=section.integer("moe_intermediate_size"),
        norm_topk_prob=section.get("norm_topk_prob", bool, norm_default),
        shared_intermediate_size=section.integer("shared_expert_intermediate_size")
        if shared
        else None,
    )


def _rope(section: _Section) -> RopeConfig:
    """Rotary settings: `rope_parameters` since transformers 5, `rope_scaling` with a `rope_theta`
    beside it before."""
    name = "rope_parameters" if "rope_parameters" in section else "rope_scaling"
    inner = section.section(name) if name in section else _Section({}, "")
    inner.expect("rope_type", "default")
    theta_from = inner if "rope_theta" in inner else section
    parts = inner.get("mrope_section", list, [])
    if parts and len(parts) != 3:
        raise ConfigError(f"config.json: mrope_section {parts!r} must have three entries")
    return RopeConfig(
        theta=theta_from.get("rope_theta", float),
        mrope_section=(int(parts[0]), int(parts[1]), int(parts[2])) if parts else None,
    )
