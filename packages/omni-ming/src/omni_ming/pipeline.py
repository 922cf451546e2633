"""The stages of Ming-flash-omni and how they connect, in three layouts.

Topology only: factories and functions are named by `Ref` and imported where they run.
"""

from __future__ import annotations

from dataclasses import replace

from omni_core.encoder.options import (
    AR_OPTIONS,
    CACHE_ENTRIES,
    ENCODER_OPTIONS,
    MEDIA_OPTIONS,
)
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
VOICE_ENCODER = StageConfig(
    name="voice_encoder",
    weights="loads",
    factory=Ref("omni_ming.voice_encoder:build"),
    max_concurrency=2,
    options={CACHE_ENTRIES: None},
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
    ar_engines=("torch", "sglang"),
    splits=True,
    options=AR_OPTIONS,
)
DECODE = StageConfig(
    name="decode", weights="none", factory=Ref("omni_ming.decode:build"), terminal="text"
)
SEGMENTER = StageConfig(
    name="segmenter",
    weights="none",
    factory=Ref("omni_ming.segmenter:build"),
    next=("talker_stream",),
    stream_to=("talker_stream",),
)
TALKER = StageConfig(
    name="talker",
    weights="loads",
    factory=Ref("omni_ming.talker.stage:build"),
    terminal="audio",
    ar_engines=("torch",),
    options={**AR_OPTIONS, "utterances_at_once": None},
    wait_for=("thinker", "voice_encoder"),
    wait_for_fn=Ref("omni_ming.edges:wait_for_voice"),
    merge_fn=Ref("omni_ming.edges:with_voice"),
)
TALKER_STREAM = replace(
    TALKER,
    name="talker_stream",
    factory=Ref("omni_ming.talker.stage:build_stream"),
    wait_for=("segmenter", "voice_encoder"),
)


def _on(stage: StageConfig, gpu: int, memory_fraction: float) -> StageConfig:
    return replace(stage, gpu=gpu, memory_fraction=memory_fraction)


def _speaking_through(speaker: str, route_fn: Ref) -> StageConfig:
    """The Thinker, with the stage that its text goes to where audio is asked for."""
    targets = ("decode", speaker)
    return replace(_on(THINKER, 0, 0.8), next=targets, stream_to=targets, route_fn=route_fn)


def _cloning_for(speaker: str) -> tuple[StageConfig, ...]:
    """The stages up to the Thinker, with the one that makes voices of recordings."""
    seen = Ref("omni_ming.edges:voice_encoder_input")
    entry = replace(
        PREPROCESSING,
        next=(*PREPROCESSING.next, "voice_encoder"),
        project_payload={**PREPROCESSING.project_payload, "voice_encoder": seen},
    )
    return (entry, *BEFORE_THINKER, replace(VOICE_ENCODER, next=(speaker,)))


BEFORE_THINKER = (_on(IMAGE_ENCODER, 0, 0.03), _on(AUDIO_ENCODER, 0, 0.03), MM_AGGREGATE)
TEXT = (PREPROCESSING, *BEFORE_THINKER, _on(THINKER, 0, 0.9), DECODE)
SPEECH = (
    *_cloning_for("talker"),
    _speaking_through("talker", Ref("omni_ming.edges:route_spoken_whole")),
    DECODE,
    _on(TALKER, 0, 0.1),
)
STREAMING_SPEECH = (
    *_cloning_for("talker_stream"),
    _speaking_through("segmenter", Ref("omni_ming.edges:route_spoken_streaming")),
    DECODE,
    SEGMENTER,
    _on(TALKER_STREAM, 0, 0.1),
)

MING_OMNI = PipelineConfig(
    name="ming-omni",
    architectures=("BailingMM2NativeForConditionalGeneration",),
    variants={"text": TEXT, "speech": SPEECH, "streaming_speech": STREAMING_SPEECH},
    default_variant="streaming_speech",  # which begins to speak before the reply has ended
    entry="preprocessing",
    produces={
        "text": ("text",),
        "speech": ("text", "audio"),
        "streaming_speech": ("text", "audio"),
    },
    describe=Ref("omni_ming.defaults:describe"),
    cpu_processes={
        "preprocessing": "frontend",
        "image_encoder": "frontend",
        "audio_encoder": "frontend",
        "voice_encoder": "frontend",
        "mm_aggregate": "frontend",
        "thinker": "thinker",
        "decode": "thinker",
        "segmenter": "thinker",
        "talker": "talker",
        "talker_stream": "talker",
    },
    check_update=Ref("omni_ming.defaults:check_update"),
    build_tiny=Ref("omni_ming.tiny:build"),
    build_tiny_for={"text": Ref("omni_ming.tiny:build_text")},
)
