from __future__ import annotations
from collections.abc import Iterable
from typing import Final
import pluggy
NAMESPACE = 'omni'
hookspec = pluggy.HookspecMarker(NAMESPACE)
hookimpl = pluggy.HookimplMarker(NAMESPACE)
HOOKS_SINCE: Final = {'register_pipelines': '0.1', 'match_checkpoint': '0.1', 'register_audio_codecs': '0.1', 'register_routes': '0.1', 'register_commands': '0.1', 'register_metrics': '0.1', 'register_checks': '0.1', 'register_observers': '0.1'}

@hookspec
def register_pipelines() -> Iterable[PipelineConfig]:
    ...

@hookspec
def match_checkpoint(checkpoint: Checkpoint) -> str | None:
    ...

@hookspec
def register_audio_codecs() -> Iterable[AudioCodecSpec]:
    ...

@hookspec
def register_routes() -> Iterable[RouteSpec]:
    ...

@hookspec
def register_commands() -> Iterable[CommandSpec]:
    ...

@hookspec
def register_metrics() -> Iterable[MetricSpec]:
    ...

@hookspec
def register_checks() -> Iterable[CheckSpec]:
    ...

@hookspec
def register_observers() -> Iterable[ObserverSpec]:
    ...
