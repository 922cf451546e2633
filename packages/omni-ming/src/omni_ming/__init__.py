"""Ming-flash-omni 2.0 for Omni: the plugin. Importing it loads neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterable

from omni_core.hookspecs import hookimpl
from omni_core.specs import PipelineConfig


@hookimpl
def register_pipelines() -> Iterable[PipelineConfig]:
    """The one pipeline of this package, `ming-omni`."""
    from omni_ming.pipeline import MING_OMNI

    return [MING_OMNI]
