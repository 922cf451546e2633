"""The stages of Qwen3-Omni and how they connect, in three layouts.

Topology only: factories and functions are named by `Ref` and imported where they run.
"""

from __future__ import annotations

from dataclasses import replace

from omni_core.encoder.options import AR_OPTIONS, ENCODER_OPTIONS, MEDIA_OPTIONS
from omni_core.specs import PipelineConfig, Ref, StageConfig

PREPROCESSING = StageConfig(
    name="preprocessing",
    weights="none",
    factory=Ref("omni_qwen3.preprocess.stage:build"),
    next=("image_encoder", "audio_encoder", "mm_aggregate"),
    route_fn=Ref("omni_qwen3.edges:route_prompt"),
    project_payload={
        "image_encoder": Ref("omni_qwen3.edges:image_encoder_input"),
        "audio_encoder": Ref("omni_qwen3.edges:audio_encoder_input"),
        "mm_aggregate": Ref("omni_qwen3.edges:without_media_arrays"),
    },
    max_concurrency=16,  # threads, most of which wait for the hosts of URLs
    options=MEDIA_OPTIONS,
)
IMAGE_ENCODER = StageConfig(
    name="image_encoder",
    weights="loads",
    factory=Ref("omni_qwen3.encoders:build_image"),
    next=("mm_aggregate",),
    max_batch=8,
    options=dict.fromkeys((*ENCODER_OPTIONS, "max_batch_patches")),
)
AUDIO_ENCODER = StageConfig(
    name="audio_encoder",
    weights="loads",
    factory=Ref("omni_qwen3.encoders:build_audio"),
    next=("mm_aggregate",),
    max_batch=8,
    options=dict.fromkeys((*ENCODER_OPTIONS, "max_batch_frames")),
)
MM_AGGREGATE = StageConfig(
    name="mm_aggregate",
    weights="none",
    factory=Ref("omni_qwen3.aggregate:build"),
    wait_for=("preprocessing", "image_encoder", "audio_encoder"),
    wait_for_fn=Ref("omni_qwen3.aggregate:wait_for_fn"),
    merge_fn=Ref("omni_qwen3.aggregate:merge"),
    next=("thinker",),
)
THINKER = StageConfig(
    name="thinker",
    weights="loads",
    factory=Ref("omni_qwen3.thinker:build"),
    next=("decode", "talker_ar"),
    stream_to=("decode", "talker_ar"),
    route_fn=Ref("omni_qwen3.edges:route_reply"),
    splits=True,
    ar_engines=("torch", "sglang"),
    options=AR_OPTIONS,
)
DECODE = StageConfig(
    name="decode", weights="none", factory=Ref("omni_qwen3.decode:build"), terminal="text"
)
TALKER_AR = StageConfig(
    name="talker_ar",
    weights="loads",
    factory=Ref("omni_qwen3.talker:build"),
    next=("code2wav",),
    stream_to=("code2wav",),
    ar_engines=("torch", "sglang"),
    options=AR_OPTIONS,
)
CODE2WAV = StageConfig(
    name="code2wav",
    weights="loads",
    factory=Ref("omni_qwen3.code2wav.stage:build"),
    terminal="audio",
    options=dict.fromkeys(("decode", "initial_frames", "steady_frames", "max_replies")),
)


def _on(stage: StageConfig, gpu: int, memory_fraction: float) -> StageConfig:
    return replace(stage, gpu=gpu, memory_fraction=memory_fraction)


TEXT = (
    PREPROCESSING,
    _on(IMAGE_ENCODER, 0, 0.05),
    _on(AUDIO_ENCODER, 0, 0.05),
    MM_AGGREGATE,
    replace(_on(THINKER, 0, 0.85), next=("decode",), stream_to=("decode",), route_fn=None),
    DECODE,
)
SPEECH = (
    PREPROCESSING,
    _on(IMAGE_ENCODER, 0, 0.05),
    _on(AUDIO_ENCODER, 0, 0.05),
    MM_AGGREGATE,
    _on(THINKER, 0, 0.85),
    DECODE,
    replace(_on(TALKER_AR, 1, 0.7), not_on_cards_of=("thinker",)),  # the shares are of two cards
    _on(CODE2WAV, 1, 0.2),
)
# The shares hold the published 30B-A3B in bfloat16 on one card of 96 GB or more.
SPEECH_COLOCATED = (
    PREPROCESSING,
    _on(IMAGE_ENCODER, 0, 0.03),
    _on(AUDIO_ENCODER, 0, 0.03),
    MM_AGGREGATE,
    _on(THINKER, 0, 0.72),
    DECODE,
    _on(TALKER_AR, 0, 0.12),
    _on(CODE2WAV, 0, 0.05),
)

QWEN3_OMNI = PipelineConfig(
    name="qwen3-omni",
    architectures=("Qwen3OmniMoeForConditionalGeneration",),
    variants={"text": TEXT, "speech": SPEECH, "speech_colocated": SPEECH_COLOCATED},
    # The one speaking layout that starts on any machine: one card is enough, and so is none.
    default_variant="speech_colocated",
    entry="preprocessing",
    produces={
        "text": ("text",),
        "speech": ("text", "audio"),
        "speech_colocated": ("text", "audio"),
    },
    describe=Ref("omni_qwen3.defaults:describe"),
    cpu_processes={
        "preprocessing": "frontend",
        "image_encoder": "frontend",
        "audio_encoder": "frontend",
        "mm_aggregate": "frontend",
        "thinker": "thinker",
        "decode": "thinker",
        "talker_ar": "talker",
        "code2wav": "code2wav",
    },
    check_update=Ref("omni_core.checkpoint.files:check_update"),
    build_tiny=Ref("omni_qwen3.tiny:build"),
    build_tiny_for={"text": Ref("omni_qwen3.tiny:build_text")},
)
