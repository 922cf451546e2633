"""Every hook a plugin may implement. Hooks run at start-up, never per request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pluggy

from omni_core.extensions import (
    AudioCodecSpec,
    Checkpoint,
    CheckSpec,
    CommandSpec,
    MetricSpec,
    ObserverSpec,
    RouteSpec,
)
from omni_core.specs import PipelineConfig

NAMESPACE = "omni"

hookspec = pluggy.HookspecMarker(NAMESPACE)
hookimpl = pluggy.HookimplMarker(NAMESPACE)

HOOKS_SINCE: Final = {
    "register_pipelines": "0.1",
    "match_checkpoint": "0.1",
    "register_audio_codecs": "0.1",
    "register_routes": "0.1",
    "register_commands": "0.1",
    "register_metrics": "0.1",
    "register_checks": "0.1",
    "register_observers": "0.1",
}
"""The minor version of omni-core that first calls each hook."""


@hookspec
def register_pipelines() -> Iterable[PipelineConfig]:  # type: ignore[empty-body]
    """Return the pipelines this plugin brings; names must be unique over all plugins."""


@hookspec
def match_checkpoint(checkpoint: Checkpoint) -> str | None:
    """Name the pipeline that runs a checkpoint which its architectures do not tell, or None."""


@hookspec
def register_audio_codecs() -> Iterable[AudioCodecSpec]:  # type: ignore[empty-body]
    """Return the formats that speech can be had in because of this plugin."""


@hookspec
def register_routes() -> Iterable[RouteSpec]:  # type: ignore[empty-body]
    """Return the HTTP routes that the server has because of this plugin."""


@hookspec
def register_commands() -> Iterable[CommandSpec]:  # type: ignore[empty-body]
    """Return the subcommands that `omni` has because of this plugin."""


@hookspec
def register_metrics() -> Iterable[MetricSpec]:  # type: ignore[empty-body]
    """Return what the numbers mean that the stages of this plugin count."""


@hookspec
def register_checks() -> Iterable[CheckSpec]:  # type: ignore[empty-body]
    """Return what `omni doctor` should look at on a machine where this plugin is to run."""


@hookspec
def register_observers() -> Iterable[ObserverSpec]:  # type: ignore[empty-body]
    """Return what is to be told of the requests and processes of every pipeline of this process."""
