"""Everything preprocessing reads from a checkpoint: sizes, ids and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_core.checkpoint.files import has_file, read_json
from omni_core.checkpoint.vocabulary import read_vocabulary
from omni_core.encoder.settings import PatchSettings
from omni_core.errors import ConfigError
from omni_ming.model.config import ThinkerConfig, load_thinker_config
from omni_ming.towers.config import audio_config

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
PATCH = 16
TEMPORAL_PATCH = 2
MERGE = 2
IMAGE_MIN_PIXELS, IMAGE_MAX_PIXELS = 4096, 16_777_216
VIDEO_FPS = 2.0
VIDEO_MIN_FRAMES, VIDEO_MAX_FRAMES = 4, 256
"""Of a video, in the authors' code, which is also where the areas in `video` are from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSettings:
    """How sound becomes mel frames, which is as in Whisper."""

    sample_rate: int = 16_000
    mel_bands: int
    window: int = 400
    """Samples of one Fourier transform."""
    hop: int = 160
    """Samples between two frames."""
    max_frames: int
    """Of one clip."""

    @property
    def max_seconds(self) -> float:
        """Length of the longest clip."""
        return self.max_frames * self.hop / self.sample_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Token ids around turns, and around and in place of media."""

    role_start: int
    role_end: int
    image_start: int
    image_end: int
    image: int
    video_start: int
    video_end: int
    frame: int
    audio_start: int
    audio_end: int
    audio: int
    turn_end: int

    @property
    def placeholders(self) -> tuple[int, int, int]:
        """Those whose embedding comes from an encoder."""
        return self.image, self.frame, self.audio


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything preprocessing reads from a checkpoint."""

    marks: Marks
    pictures: PatchSettings
    """Of images; videos have areas of their own."""
    audio: AudioSettings
    context_length: int
    """Tokens of prompt and reply together."""
    vocab_size: int


def load_settings(model_path: str) -> Settings:
    """Read the settings of a checkpoint directory; ConfigError names what is missing."""
    thinker = load_thinker_config(model_path)
    tower = audio_config(model_path)
    name = "preprocessor_config.json"
    saved = read_json(model_path, name) if has_file(model_path, name) else {}
    return Settings(
        marks=_marks(model_path, thinker),
        pictures=_pictures(saved),
        audio=AudioSettings(mel_bands=tower.n_mels, max_frames=tower.max_frames),
        context_length=thinker.max_len,
        vocab_size=thinker.vocab_size,
    )


def _pictures(saved: Mapping[str, Any]) -> PatchSettings:
    return PatchSettings(
        patch_size=int(saved.get("patch_size") or PATCH),
        temporal_patch_size=int(saved.get("temporal_patch_size") or TEMPORAL_PATCH),
        merge_size=int(saved.get("merge_size") or MERGE),
        mean=tuple(saved.get("image_mean") or CLIP_MEAN),
        std=tuple(saved.get("image_std") or CLIP_STD),
        rescale_factor=1 / 255,
        min_pixels=int(saved.get("min_pixels") or IMAGE_MIN_PIXELS),
        max_pixels=int(saved.get("max_pixels") or IMAGE_MAX_PIXELS),
    )


def _marks(model_path: str, thinker: ThinkerConfig) -> Marks:
    """By the tokens' names: config.json has one of the ids wrong and lacks others."""
    ids = {token.text: token.token_id for token in read_vocabulary(model_path).added}

    def named(text: str) -> int:
        if text not in ids:
            raise ConfigError(f"the tokenizer of {model_path} has no {text}; download it again")
        return ids[text]

    return Marks(
        role_start=named("<role>"),
        role_end=named("</role>"),
        image_start=named("<image>"),
        image_end=named("</image>"),
        image=thinker.image_token_id,
        video_start=named("<video>"),
        video_end=named("</video>"),
        frame=thinker.video_token_id,
        audio_start=named("<audio>"),
        audio_end=named("</audio>"),
        audio=thinker.audio_token_id,
        turn_end=thinker.eos_token_id,
    )
