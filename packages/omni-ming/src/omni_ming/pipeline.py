"""The stages of Ming-flash-omni and how they connect, in three layouts.

Topology only: factories and functions are named by `Ref` and imported where they run.
"""

from __future__ import annotations

from dataclasses import replace

from omni_core.encoder.options import AR_OPTIONS, ENCODER_OPTIONS, MEDIA_OPTIONS
from omni_core.specs import PipelineConfig, Ref, StageConfig

PREPROCESSING = StageConfig(
    name="preprocessing",
    weights="none",
    factory=Ref("omni_ming.preprocess.stage:build"),
    next=("image_encoder", "audio_encoder", "mm_aggregate"),
    route_fn=Ref("omni_ming.edges:route_prompt"),
    project_payload={
        "image_encoder": Ref("omni_ming.edges:image_encoder_input"),
        "audio_encoder": Ref("omni_ming.edges:audio_encoder_input"),
        "mm_aggregate": Ref("omni_ming.edges:without_media_arrays"),
    },
    max_concurrency=16,  # threads, most of which wait for the hosts of URLs
    options=MEDIA_OPTIONS,
)
IMAGE_ENCODER = StageConfig(
    name="image_encoder",
    weights="loads",
    factory=Ref("omni_ming.encoders:build_image"),
    next=("mm_aggregate",),
    max_batch=8,
    options=dict.fromkeys((*ENCODER_OPTIONS, "max_batch_patches")),
)
AUDIO_ENCODER = StageConfig(
    name="audio_encoder",
    weights="loads",
    factory=Ref("omni_ming.encoders:build_audio"),
    next=("mm_aggregate",),
    max_batch=8,
    options=dict.fromkeys((*ENCODER_OPTIONS, "max_batch_frames")),
)
MM_AGGREGATE = StageConfig(
    name="mm_aggregate",
    weights="none",
    factory=Ref("omni_ming.aggregate:build"),
    wait_for=("preprocessing", "image_encoder", "audio_encoder"),
    wait_for_fn=Ref("omni_ming.aggregate:wait_for_fn"),
    merge_fn=Ref("omni_ming.aggregate:merge"),
    next=("thinker",),
)
THINKER = StageConfig(
    name="thinker",
    weights="loads",
    factory=Ref("omni_ming.thinker:build"),
    next=("decode",),
    stream_to=("decode",),
    ar_engines=("torch",),
    options=AR_OPTIONS,
)
DECODE = StageConfig(
    name="decode", weights="none", factory=Ref("omni_ming.decode:build"), terminal="text"
)


def _on(stage: StageConfig, gpu: int, memory_fraction: float) -> StageConfig:
    return replace(stage, gpu=gpu, memory_fraction=memory_fraction)


TEXT = (
    PREPROCESSING,
    _on(IMAGE_ENCODER, 0, 0.03),
    _on(AUDIO_ENCODER, 0, 0.03),
    MM_AGGREGATE,
    _on(THINKER, 0, 0.9),
    DECODE,
)

MING_OMNI = PipelineConfig(
    name="ming-omni",
    architectures=("BailingMM2NativeForConditionalGeneration",),
    variants={"text": TEXT},
    default_variant="text",
    entry="preprocessing",
    produces={"text": ("text",)},
    describe=Ref("omni_ming.defaults:describe"),
    cpu_processes={
        "preprocessing": "frontend",
        "image_encoder": "frontend",
        "audio_encoder": "frontend",
        "mm_aggregate": "frontend",
        "thinker": "thinker",
        "decode": "thinker",
    },
    check_update=Ref("omni_core.checkpoint.files:check_update"),
    build_tiny=Ref("omni_ming.tiny:build"),
)
