"""A player piano for Omni: the plugin. Names its stages; imports none of them."""

from __future__ import annotations

from omni_core.hookspecs import hookimpl
from omni_core.specs import PipelineConfig, Ref, StageConfig

STAGES = (
    StageConfig(
        name="composer",
        factory=Ref("omni_pianola.composer:build"),
        next=("roll",),
        stream_to=("roll",),
        terminal="text",
    ),
    StageConfig(name="roll", factory=Ref("omni_pianola.roll:build"), terminal="audio"),
)
PIANOLA = PipelineConfig(
    name="pianola",
    architectures=("Pianola",),
    variants={"speech": STAGES},
    default_variant="speech",
    entry="composer",
    describe=Ref("omni_pianola.instrument:describe"),
    build_tiny=Ref("omni_pianola.instrument:write"),
)


@hookimpl
def register_pipelines() -> list[PipelineConfig]:
    """The one pipeline of this package."""
    return [PIANOLA]
