"""The encoder stages: the vision and audio towers of the checkpoint, each behind a cache."""

from __future__ import annotations

import torch

from omni_core.checkpoint.renew import loader
from omni_core.encoder.budget import activation_budget
from omni_core.encoder.cached import CachedEncoder, cached, encoder_scheduler, load_tower
from omni_core.encoder.images import ImageEncoder, VisualItem
from omni_core.encoder.options import whole_number
from omni_core.encoder.payloads import VisualFeatures
from omni_core.scheduler.base import Scheduler
from omni_core.specs import StageContext
from omni_ming.activation import vision_patch_bytes
from omni_ming.encode_audio import AudioEncoder, Clip
from omni_ming.preprocess.again import MediaAgain
from omni_ming.towers import audio, vision
from omni_ming.towers.config import audio_config, vision_config

VISION_WEIGHTS = (*vision.WEIGHTS, vision.PROJECTOR_WEIGHTS)
AUDIO_WEIGHTS = (audio.WEIGHTS, audio.PROJECTOR_WEIGHTS)
MAX_BATCH_PATCHES = "max_batch_patches"
DEFAULT_MAX_BATCH_PATCHES = 16_384
"""Four pictures of a megapixel; more would keep a small one waiting."""
MAX_BATCH_FRAMES = "max_batch_frames"
DEFAULT_MAX_BATCH_FRAMES = 24_000
"""Four minutes of sound."""


def build_image(ctx: StageContext) -> Scheduler:
    """The image_encoder stage: images and videos."""
    most = whole_number(ctx.stage, MAX_BATCH_PATCHES, DEFAULT_MAX_BATCH_PATCHES)
    return encoder_scheduler(ctx, load_image(ctx), most)


def build_audio(ctx: StageContext) -> Scheduler:
    """The audio_encoder stage."""
    most = whole_number(ctx.stage, MAX_BATCH_FRAMES, DEFAULT_MAX_BATCH_FRAMES)
    return encoder_scheduler(ctx, load_audio(ctx), most)


def load_image(ctx: StageContext) -> CachedEncoder[VisualItem, VisualFeatures]:
    """The checkpoint's vision tower, with a cache."""
    with torch.device("meta"):
        tower = vision.VisionTower(vision_config(ctx.model_path))
    weights = load_tower(ctx, tower, *VISION_WEIGHTS)
    budget = activation_budget(ctx, weights.device)
    images = ImageEncoder(
        tower,
        tower.config,
        MediaAgain(ctx.model_path),
        max_patches=budget // vision_patch_bytes(tower.config, weights.dtype.itemsize),
        device=weights.device,
        dtype=weights.dtype,
    )
    encoder = cached(ctx, images)
    ctx.loads(loader(ctx, weights.parts, VISION_WEIGHTS, encoder.forget))
    return encoder


def load_audio(ctx: StageContext) -> CachedEncoder[Clip, torch.Tensor]:
    """The checkpoint's audio tower, with a cache."""
    with torch.device("meta"):
        tower = audio.AudioTower(audio_config(ctx.model_path))
    weights = load_tower(ctx, tower, *AUDIO_WEIGHTS)
    budget = activation_budget(ctx, weights.device)
    encoder = cached(ctx, AudioEncoder(tower, weights, budget, MediaAgain(ctx.model_path)))
    ctx.loads(loader(ctx, weights.parts, AUDIO_WEIGHTS, encoder.forget))
    return encoder
