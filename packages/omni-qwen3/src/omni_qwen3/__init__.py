"""Qwen3-Omni for Omni: the plugin. Importing it loads neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterable

from omni_core.hookspecs import hookimpl
from omni_core.specs import PipelineConfig


@hookimpl
def register_pipelines() -> Iterable[PipelineConfig]:
    """The one pipeline of this package, `qwen3-omni`."""
    from omni_qwen3.pipeline import QWEN3_OMNI

    return [QWEN3_OMNI]
