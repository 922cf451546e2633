"""talker/vae/config.json as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.checkpoint.files import read_json
from omni_core.errors import ConfigError

FOLDER = "talker/vae"
ENCODER_LAYERS = 4
"""The authors build encoder and aggregator from one config, whose number of layers they then set to
this: whatever the file says, and however many layers the weights have, both run so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneConfig:
    """A Qwen2 decoder without a vocabulary."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    window: int | None
    """Frames that a frame sees, itself included; None for all before it."""
    rope_theta: float
    norm_eps: float

    @property
    def head_dim(self) -> int:
        """Of one head."""
        return self.hidden_size // self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class VaeConfig:
    """Sizes of encoder and decoder."""

    sample_rate: int
    hop: int
    """Samples of one frame."""
    frames_per_latent: int
    latent_dim: int
    encoder: BackboneConfig
    decoder: BackboneConfig

    @property
    def samples_per_latent(self) -> int:
        """Sound that one latent stands for."""
        return self.hop * self.frames_per_latent


def vae_folder(model_path: str) -> str:
    """Where a checkpoint has its AudioVAE."""
    return str(Path(model_path) / FOLDER)


def load_vae_config(model_path: str) -> VaeConfig:
    """The AudioVAE of a checkpoint; ConfigError for a missing field."""
    data = read_json(vae_folder(model_path), "config.json")
    try:
        encoder, decoder = data["enc_kwargs"], data["dec_kwargs"]
        return VaeConfig(
            sample_rate=data["sample_rate"],
            hop=decoder["output_dim"],
            frames_per_latent=data["patch_size"],
            latent_dim=decoder["latent_dim"],
            encoder=_backbone(encoder["backbone"], layers=ENCODER_LAYERS),
            decoder=_backbone(decoder["backbone"]),
        )
    except KeyError as exc:
        raise ConfigError(
            f"config.json in {vae_folder(model_path)} lacks {exc.args[0]!r}; download it again"
        ) from exc


def _backbone(data: Mapping[str, Any], layers: int | None = None) -> BackboneConfig:
    slides = data.get("use_sliding_window") and data.get("max_window_layers", 0) == 0
    return BackboneConfig(
        hidden_size=data["hidden_size"],
        intermediate_size=data["intermediate_size"],
        layers=data["num_hidden_layers"] if layers is None else layers,
        heads=data["num_attention_heads"],
        kv_heads=data["num_key_value_heads"],
        window=data["sliding_window"] if slides else None,
        rope_theta=float(data["rope_theta"]),
        norm_eps=float(data["rms_norm_eps"]),
    )
