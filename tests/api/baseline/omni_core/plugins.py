from __future__ import annotations
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Generic, TypeVar, cast
import pluggy
__all__ = ['ALLOW_LIST', 'GROUP', 'SKIP_BROKEN', 'PluginInfo', 'Plugins']
log = logging.getLogger('omni.plugins')
Spec = TypeVar('Spec')

@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[Spec]):
    hook: str
    type: type[Spec]
    noun: str
    names: Callable[[Spec], Iterable[str]]
PIPELINES: Final = Kind(hook='register_pipelines', type=PipelineConfig, noun='pipeline', names=lambda p: [p.name])
AUDIO_CODECS: Final = Kind(hook='register_audio_codecs', type=AudioCodecSpec, noun='audio codec', names=lambda c: [c.name])
ROUTES: Final = Kind(hook='register_routes', type=RouteSpec, noun='route', names=lambda r: [f'{method} {r.path}' for method in r.methods])
COMMANDS: Final = Kind(hook='register_commands', type=CommandSpec, noun='command', names=lambda c: [c.name])
METRICS: Final = Kind(hook='register_metrics', type=MetricSpec, noun='metric', names=lambda m: [m.stat])
CHECKS: Final = Kind(hook='register_checks', type=CheckSpec, noun='check', names=lambda c: [c.name])
OBSERVERS: Final = Kind(hook='register_observers', type=ObserverSpec, noun='observer', names=lambda o: [o.name])
KINDS: Final[tuple[Kind[Any], ...]] = (PIPELINES, AUDIO_CODECS, ROUTES, COMMANDS, METRICS, CHECKS, OBSERVERS)

@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    pipelines: tuple[PipelineConfig, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    broken: str = ''

class Plugins:

    def __init__(self) -> None:
        ...

    def discover(self) -> Plugins:
        ...

    def register(self, module: ModuleType, name: str) -> None:
        ...

    def owned(self, kind: Kind[Spec]) -> list[tuple[str, Spec]]:
        ...

    def all(self, kind: Kind[Spec]) -> list[Spec]:
        ...

    def pipelines(self) -> dict[str, PipelineConfig]:
        ...

    def provenance(self, pipeline: str) -> str:
        ...

    def pipeline_at(self, directory: str) -> PipelineConfig:
        ...

    def pipeline_for(self, architectures: Iterable[str]) -> PipelineConfig:
        ...

    def listing(self) -> list[PluginInfo]:
        ...
ALLOW_LIST: Final = 'OMNI_PLUGINS'
GROUP: Final = 'omni.plugins'
SKIP_BROKEN: Final = 'OMNI_SKIP_BROKEN_PLUGINS'
