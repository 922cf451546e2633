"""The towers' parts of config.json: vision_config and audio_config of thinker_config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_core.checkpoint.files import read_json
from omni_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Sizes of the vision tower, named as in config.json."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    """Patches that become one row, along each side."""
    out_hidden_size: int
    num_position_embeddings: int
    """Learned positions: a square grid, resampled to the grid of each picture."""
    deepstack_visual_indexes: tuple[int, ...]
    """Layers whose output the Thinker's first layers get as well."""
    rope_theta: float

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        """(frames, height, width) of one patch."""
        return self.temporal_patch_size, self.patch_size, self.patch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConfig:
    """Sizes of the audio tower, named as in config.json."""

    encoder_layers: int
    d_model: int
    encoder_ffn_dim: int
    encoder_attention_heads: int
    num_mel_bins: int
    downsample_hidden_size: int
    conv_chunksize: int
    """Chunks that go through the convolutions at a time."""
    output_dim: int
    n_window: int
    """Half the mel frames of a chunk, which is what the convolutions see at a time."""
    n_window_infer: int
    """Mel frames that attend to each other."""

    @property
    def chunk_frames(self) -> int:
        """Mel frames of a full chunk."""
        return 2 * self.n_window


def vision_config(model_path: str) -> VisionConfig:
    """Read the vision tower's sizes; ConfigError names what config.json lacks."""
    data = _section(model_path, "vision_config")
    _expect(data, "hidden_act", "gelu_pytorch_tanh")
    rope = data.get("rope_parameters") or {}
    return VisionConfig(
        depth=data["depth"],
        hidden_size=data["hidden_size"],
        intermediate_size=data["intermediate_size"],
        num_heads=data["num_heads"],
        in_channels=data.get("in_channels", 3),
        patch_size=data["patch_size"],
        temporal_patch_size=data["temporal_patch_size"],
        spatial_merge_size=data["spatial_merge_size"],
        out_hidden_size=data["out_hidden_size"],
        num_position_embeddings=data["num_position_embeddings"],
        deepstack_visual_indexes=tuple(data["deepstack_visual_indexes"]),
        rope_theta=float(rope.get("rope_theta", 10_000.0)),
    )


def audio_config(model_path: str) -> AudioConfig:
    """Read the audio tower's sizes; ConfigError names what config.json lacks."""
    data = _section(model_path, "audio_config")
    _expect(data, "activation_function", "gelu")
    return AudioConfig(
        encoder_layers=data["encoder_layers"],
        d_model=data["d_model"],
        encoder_ffn_dim=data["encoder_ffn_dim"],
        encoder_attention_heads=data["encoder_attention_heads"],
        num_mel_bins=data["num_mel_bins"],
        downsample_hidden_size=data["downsample_hidden_size"],
        conv_chunksize=data.get("conv_chunksize", 500),
        output_dim=data["output_dim"],
        n_window=data["n_window"],
        n_window_infer=data["n_window_infer"],
    )


class _Named(dict[str, Any]):
    """A config section whose missing keys are errors that say where they are missing."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        super().__init__(data)
        self.where = where

    def __missing__(self, key: str) -> Any:
        raise ConfigError(f"config.json lacks {self.where}.{key}")


def _section(model_path: str, name: str) -> _Named:
    root = _Named(read_json(model_path, "config.json"), "the top level")
    thinker = _Named(root["thinker_config"], "thinker_config")
    return _Named(thinker[name], f"thinker_config.{name}")


def _expect(data: _Named, key: str, supported: str) -> None:
    if data.get(key, supported) != supported:
        raise ConfigError(
            f"config.json: {data.where}.{key} is {data[key]!r}; only {supported!r} is supported"
        )
