"""The towers' parts of config.json: vision_config and audio_config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from omni_core.checkpoint.files import read_json
from omni_core.errors import ConfigError
from omni_core.layers.vit import VitConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig(VitConfig):
    """Sizes of the vision tower, named as in config.json."""

    out_hidden_size: int
    thinker_hidden_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConfig:
    """Sizes of the audio tower; those of the first block are named as in Whisper."""

    n_mels: int
    n_ctx: int
    """Longest clip, in states of the tower, each of two mel frames."""
    n_state: int
    n_head: int
    n_layer: int
    thinker_hidden_size: int

    @property
    def max_frames(self) -> int:
        """Mel frames of the longest clip."""
        return 2 * self.n_ctx


def vision_config(model_path: str) -> VisionConfig:
    """Read the vision tower's sizes; ConfigError names what config.json lacks."""
    root = read_json(model_path, "config.json")
    _require_two_layers(root)
    data = _section(root, "vision_config")
    _expect(data, "vision_config", "hidden_act", "gelu_pytorch_tanh")
    return _read(
        "vision_config",
        lambda: VisionConfig(
            depth=data["depth"],
            hidden_size=data["hidden_size"],
            intermediate_size=data["intermediate_size"],
            num_heads=data["num_heads"],
            in_channels=data.get("in_channels", 3),
            patch_size=data["patch_size"],
            temporal_patch_size=data["temporal_patch_size"],
            spatial_merge_size=data["spatial_merge_size"],
            num_position_embeddings=data["num_position_embeddings"],
            rope_theta=10_000.0,
            out_hidden_size=data["out_hidden_size"],
            thinker_hidden_size=root["llm_config"]["hidden_size"],
        ),
    )


def audio_config(model_path: str) -> AudioConfig:
    """Read the audio tower's sizes; ConfigError names what config.json lacks."""
    root = read_json(model_path, "config.json")
    _require_two_layers(root)
    data = _section(root, "audio_config")
    for name, supported in (("norm_query_embeds", True), ("ds_kernel_size", 3), ("ds_stride", 2)):
        _expect(data, "audio_config", name, supported)
    whisper = _section(data, "whisper_encoder_config")
    return _read(
        "audio_config",
        lambda: AudioConfig(
            n_mels=whisper["n_mels"],
            n_ctx=whisper["n_ctx"],
            n_state=whisper["n_state"],
            n_head=whisper["n_head"],
            n_layer=whisper["n_layer"],
            thinker_hidden_size=root["llm_config"]["hidden_size"],
        ),
    )


def _require_two_layers(root: Mapping[str, Any]) -> None:
    _expect(root, "the top level", "mlp_depth", 2)


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name)
    if not isinstance(section, Mapping):
        raise ConfigError(f"config.json has no {name}; download it again")
    return section


def _expect(data: Mapping[str, Any], where: str, key: str, supported: Any) -> None:
    if data.get(key, supported) != supported:
        raise ConfigError(
            f"config.json: {key} of {where} is {data[key]!r}; only {supported!r} is supported"
        )


def _read(where: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except KeyError as exc:
        raise ConfigError(f"config.json: {where} lacks {exc.args[0]!r}; download it again") from exc
