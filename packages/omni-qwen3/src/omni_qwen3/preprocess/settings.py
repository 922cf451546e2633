"""What a checkpoint says about preprocessing: token ids, picture sizes, mel features, context.

Reads config.json and processor_config.json (or the older preprocessor_config.json, which holds the
picture and audio settings in one flat object). Knows no media and no text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omni_core.checkpoint.files import has_file, read_json
from omni_core.errors import ConfigError

VIDEO_MIN_PIXELS = 128 * 32 * 32
"""Per frame. transformers' Qwen3OmniMoeProcessor uses these two whatever the checkpoint says."""
VIDEO_MAX_PIXELS = 768 * 32 * 32
DEFAULT_VIDEO_FPS = 2.0
"""Frames sampled per second of video when neither request nor checkpoint says (qwen-vl-utils)."""
DEFAULT_VIDEO_MAX_FRAMES = 768


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptConfig:
    """Token ids and position constants of Thinker or Talker, named as in config.json."""

    image_token_id: int
    video_token_id: int
    audio_token_id: int
    vision_start_token_id: int
    audio_start_token_id: int
    position_id_per_seconds: float
    spatial_merge_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSettings:
    """How pictures become patches."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rescale_factor: float
    min_pixels: int
    """Smallest area of one picture after resizing."""
    max_pixels: int

    @property
    def factor(self) -> int:
        """Both sides of a resized picture are multiples of this, in pixels."""
        return self.patch_size * self.merge_size

    def seconds_per_grid(self, fps: float) -> float:
        """Time between two temporal patches of a video with `fps` frames a second."""
        return self.temporal_patch_size / fps


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSettings:
    """How sound becomes mel frames."""

    sample_rate: int
    mel_bands: int
    window: int
    """Samples of one Fourier transform."""
    hop: int
    """Samples between two frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything preprocessing reads from a checkpoint."""

    prompt: PromptConfig
    image: VisionSettings
    video: VisionSettings
    video_fps: float
    video_max_frames: int
    audio: AudioSettings
    context_length: int
    """Tokens of prompt and reply together."""
    vocab_size: int


def load_settings(model_path: str) -> Settings:
    """Read the settings of a checkpoint directory; ConfigError names a file that is missing."""
    thinker = read_json(model_path, "config.json")["thinker_config"]
    image, video, audio = _processors(model_path)
    vision_config = thinker["vision_config"]
    return Settings(
        prompt=_prompt_config(thinker),
        image=_vision(image, vision_config, *_image_area(image)),
        video=_vision(video, vision_config, VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS),
        video_fps=float(video.get("fps") or DEFAULT_VIDEO_FPS),
        video_max_frames=int(video.get("max_frames") or DEFAULT_VIDEO_MAX_FRAMES),
        audio=_audio(audio),
        context_length=int(thinker["text_config"]["max_position_embeddings"]),
        vocab_size=int(thinker["text_config"]["vocab_size"]),
    )


def _processors(model_path: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The settings of the image processor, the video processor and the feature extractor."""
    if not has_file(model_path, "processor_config.json"):
        flat = read_json(model_path, "preprocessor_config.json")
        return flat, flat, flat
    saved = read_json(model_path, "processor_config.json")
    return saved["image_processor"], saved["video_processor"], saved["feature_extractor"]


def _image_area(image: dict[str, Any]) -> tuple[int, int]:
    """(min, max) pixels; transformers has written them in two ways over time."""
    size = image.get("size") or {}
    return (
        int(image.get("min_pixels") or size["shortest_edge"]),
        int(image.get("max_pixels") or size["longest_edge"]),
    )


def _vision(
    saved: dict[str, Any], vision_config: dict[str, Any], min_pixels: int, max_pixels: int
) -> VisionSettings:
    return VisionSettings(
        patch_size=int(saved.get("patch_size") or vision_config["patch_size"]),
        temporal_patch_size=int(
            saved.get("temporal_patch_size") or vision_config["temporal_patch_size"]
        ),
        merge_size=int(saved.get("merge_size") or vision_config["spatial_merge_size"]),
        mean=tuple(saved.get("image_mean") or (0.5, 0.5, 0.5)),
        std=tuple(saved.get("image_std") or (0.5, 0.5, 0.5)),
        rescale_factor=float(saved.get("rescale_factor") or 1 / 255),
        min_pixels=min_pixels,
        max_pixels=max_pixels,
    )


def _audio(saved: dict[str, Any]) -> AudioSettings:
    """The feature extractor's settings; those left out are WhisperFeatureExtractor's defaults."""
    if unusual := [name for name in ("dither", "padding_value") if saved.get(name)]:
        raise ConfigError(
            f"the checkpoint's feature extractor sets {unusual[0]} to {saved[unusual[0]]}; only 0 "
            "is supported"
        )
    return AudioSettings(
        sample_rate=int(saved.get("sampling_rate") or 16_000),
        mel_bands=int(saved.get("feature_size") or 80),
        window=int(saved.get("n_fft") or 400),
        hop=int(saved.get("hop_length") or 160),
    )


def _prompt_config(thinker: dict[str, Any]) -> PromptConfig:
    return PromptConfig(
        image_token_id=thinker["image_token_id"],
        video_token_id=thinker["video_token_id"],
        audio_token_id=thinker["audio_token_id"],
        vision_start_token_id=thinker["vision_start_token_id"],
        audio_start_token_id=thinker["audio_start_token_id"],
        position_id_per_seconds=float(thinker["position_id_per_seconds"]),
        spatial_merge_size=int(thinker["vision_config"]["spatial_merge_size"]),
    )
