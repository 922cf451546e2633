"""Every hook a plugin may implement. Hooks run at start-up, never per request."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from omni_core.specs import PipelineConfig

NAMESPACE = "omni"

hookspec = pluggy.HookspecMarker(NAMESPACE)
hookimpl = pluggy.HookimplMarker(NAMESPACE)


@hookspec
def register_pipelines() -> Iterable[PipelineConfig]:  # type: ignore[empty-body]
    """Return the pipelines this plugin brings; names must be unique over all plugins."""
