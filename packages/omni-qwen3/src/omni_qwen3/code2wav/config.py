"""The vocoder's part of config.json. Knows its sizes and nothing of weights or streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from omni_core.checkpoint.files import read_json
from omni_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Code2WavConfig:
    """Sizes of one vocoder; "frame" is one column of codes."""

    codebook_size: int
    groups: int
    """Codes per frame."""
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    norm_eps: float
    rope_theta: float
    window_frames: int
    """Frames that attention sees, the current one included."""
    upsampling_ratios: tuple[int, ...]
    """Latents per latent of the stage before, at constant width."""
    upsample_rates: tuple[int, ...]
    """The same for the decoder's blocks, each halving the width."""
    decoder_dim: int

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.heads

    @property
    def samples_per_frame(self) -> int:
        """Samples that one further frame makes final."""
        return prod(self.upsampling_ratios) * prod(self.upsample_rates)

    @property
    def lookahead_samples(self) -> int:
        """Samples at the end of n frames that only frame n + 1 makes final.

        Each block of the decoder looks one of its inputs ahead, which is as many samples as the
        blocks from it on make of one.
        """
        rates = self.upsample_rates
        return sum(prod(rates[i:]) for i in range(len(rates)))


def load_config(model_path: str) -> Code2WavConfig:
    """Read `code2wav_config` of a checkpoint; ConfigError names what it lacks."""
    section = read_json(model_path, "config.json").get("code2wav_config")
    if not isinstance(section, dict):
        raise ConfigError(
            f"{model_path}/config.json has no code2wav_config: this checkpoint cannot speak; "
            "use --variant text"
        )
    try:
        return _parse(section)
    except KeyError as exc:
        raise ConfigError(f"config.json lacks code2wav_config.{exc.args[0]}") from exc


def _parse(section: Mapping[str, Any]) -> Code2WavConfig:
    if section.get("hidden_act", "silu") != "silu" or section.get("attention_bias", False):
        raise ConfigError("code2wav_config: only hidden_act 'silu' without attention_bias is known")
    rope = section.get("rope_parameters") or section
    return Code2WavConfig(
        codebook_size=section["codebook_size"],
        groups=section["num_quantizers"],
        hidden_size=section["hidden_size"],
        intermediate_size=section["intermediate_size"],
        layers=section["num_hidden_layers"],
        heads=section["num_attention_heads"],
        kv_heads=section["num_key_value_heads"],
        norm_eps=section["rms_norm_eps"],
        rope_theta=rope["rope_theta"],
        window_frames=section["sliding_window"],
        upsampling_ratios=tuple(section["upsampling_ratios"]),
        upsample_rates=tuple(section["upsample_rates"]),
        decoder_dim=section["decoder_dim"],
    )
