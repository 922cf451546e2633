"""Which variant of a pipeline runs a checkpoint.

Knows what variants emit and what a checkpoint cannot give. Knows no stage settings.
"""

from __future__ import annotations

from omni_core.errors import ConfigError
from omni_core.specs import ModelInfo, PipelineConfig


def choose_variant(pipeline: PipelineConfig, asked: str | None, info: ModelInfo) -> str:
    """The variant asked for; else the pipeline's default, or, where the checkpoint cannot give what
    that emits, the first variant that emits less.

    ConfigError if the checkpoint can serve neither; an unknown name is returned as it is.
    """
    order = [pipeline.default_variant, *pipeline.variants] if asked is None else [asked]
    refusals = [_refusal(pipeline, variant, info) for variant in order]
    for variant, refusal in zip(order, refusals, strict=True):
        if refusal is None:
            return variant
    fitting = [v for v in pipeline.variants if _refusal(pipeline, v, info) is None]
    hint = f"use --variant {' or '.join(fitting)}" if fitting else "no variant fits"
    raise ConfigError(f"variant {order[0]!r} of {pipeline.name!r} {refusals[0]}; {hint}")


def _refusal(pipeline: PipelineConfig, variant: str, info: ModelInfo) -> str | None:
    for stage in pipeline.variants.get(variant, ()):
        if stage.terminal is not None and stage.terminal in info.refused_modalities:
            return f"emits {stage.terminal}: {info.refused_modalities[stage.terminal]}"
    return None
