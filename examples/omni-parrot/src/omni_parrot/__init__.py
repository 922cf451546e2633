"""A parrot for Omni: hears speech and says the same words in another voice.

The plugin: names its stages, and imports none of them.

    preprocessing ──► asr ══► decode               text
                          ╚═► segmenter ══► voice  audio
"""

from __future__ import annotations

from omni_core.encoder.options import MEDIA_OPTIONS
from omni_core.hookspecs import hookimpl
from omni_core.specs import PipelineConfig, Ref, StageConfig

STAGES = (
    StageConfig(
        name="preprocessing",
        factory=Ref("omni_parrot.turn:build"),
        next=("asr",),
        max_concurrency=8,  # threads, most of which wait for the hosts of URLs
        options=MEDIA_OPTIONS,
    ),
    StageConfig(
        name="asr",
        factory=Ref("omni_parrot.asr:build"),
        next=("decode", "segmenter"),
        stream_to=("decode", "segmenter"),
        options={"threads": None},
    ),
    StageConfig(name="decode", factory=Ref("omni_parrot.decode:build"), terminal="text"),
    StageConfig(
        name="segmenter",
        factory=Ref("omni_parrot.segmenter:build"),
        next=("voice",),
        stream_to=("voice",),
    ),
    StageConfig(name="voice", factory=Ref("omni_parrot.voice:build"), terminal="audio"),
)
PARROT = PipelineConfig(
    name="parrot",
    architectures=("Parrot",),
    variants={"speech": STAGES},
    default_variant="speech",
    entry="preprocessing",
    produces={"speech": ("text", "audio")},
    describe=Ref("omni_parrot.checkpoint:describe"),
    cpu_processes={
        "preprocessing": "ears",
        "asr": "ears",
        "decode": "ears",
        "segmenter": "beak",
        "voice": "beak",
    },
)


@hookimpl
def register_pipelines() -> list[PipelineConfig]:
    """The one pipeline of this package."""
    return [PARROT]
