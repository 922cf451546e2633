"""The registered plugins, and what they bring, with its owner.

Knows hooks, provenance and clashes. Looks for plugins only when `discover` is called, never at
import.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Generic, TypeVar, cast

import pluggy

from omni_core import hookspecs
from omni_core.config.checkpoint import architectures, checkpoint_at
from omni_core.discovery import (
    ALLOW_LIST,
    GROUP,
    SKIP_BROKEN,
    installed,
    load,
    skips_broken,
    unknown,
    wanted,
)
from omni_core.errors import ConfigError, PluginError
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

__all__ = ["ALLOW_LIST", "GROUP", "SKIP_BROKEN", "PluginInfo", "Plugins"]

log = logging.getLogger("omni.plugins")
Spec = TypeVar("Spec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[Spec]):
    """What one hook gives: descriptions of one type, each with names that nobody else may use."""

    hook: str
    type: type[Spec]
    noun: str
    names: Callable[[Spec], Iterable[str]]


PIPELINES: Final = Kind(
    hook="register_pipelines", type=PipelineConfig, noun="pipeline", names=lambda p: [p.name]
)
AUDIO_CODECS: Final = Kind(
    hook="register_audio_codecs", type=AudioCodecSpec, noun="audio codec", names=lambda c: [c.name]
)
ROUTES: Final = Kind(
    hook="register_routes",
    type=RouteSpec,
    noun="route",
    names=lambda r: [f"{method} {r.path}" for method in r.methods],
)
COMMANDS: Final = Kind(
    hook="register_commands", type=CommandSpec, noun="command", names=lambda c: [c.name]
)
METRICS: Final = Kind(
    hook="register_metrics", type=MetricSpec, noun="metric", names=lambda m: [m.stat]
)
CHECKS: Final = Kind(hook="register_checks", type=CheckSpec, noun="check", names=lambda c: [c.name])
OBSERVERS: Final = Kind(
    hook="register_observers", type=ObserverSpec, noun="observer", names=lambda o: [o.name]
)
KINDS: Final[tuple[Kind[Any], ...]] = (
    PIPELINES,
    AUDIO_CODECS,
    ROUTES,
    COMMANDS,
    METRICS,
    CHECKS,
    OBSERVERS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One plugin, for listings."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    """Names of the hooks it implements."""
    pipelines: tuple[PipelineConfig, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    """(noun, name) of whatever else it registers: ("route", "GET /feathers")."""
    broken: str = ""
    """Why it was left out; empty if it is loaded."""


class Plugins:
    """The registered plugins of this process."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(hookspecs.NAMESPACE)
        self._manager.add_hookspecs(hookspecs)
        self._origin: dict[str, tuple[str, str]] = {}
        self._broken: dict[str, str] = {}

    def discover(self) -> Plugins:
        """Load every installed plugin, or those the OMNI_PLUGINS list names; returns self.

        PluginError for one that cannot be loaded; with OMNI_SKIP_BROKEN_PLUGINS it is logged, and
        left out."""
        found = installed()
        for name in wanted(found):
            point = found[name]
            if point.dist is not None:
                self._origin[name] = (point.dist.name, point.dist.version)
            try:
                self.register(load(point), name)
            except PluginError as error:
                if not skips_broken():
                    raise
                self._broken[name] = error.message
                log.warning("left out: %s", error.message)
        return self

    def register(self, module: ModuleType, name: str) -> None:
        """Add one plugin module; a misspelt hook is an error that names it."""
        try:
            self._manager.register(module, name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as exc:
            if self._manager.get_plugin(name) is module:
                self._manager.unregister(module)
            raise PluginError(f"plugin {name!r}: {exc}") from exc

    def owned(self, kind: Kind[Spec]) -> list[tuple[str, Spec]]:
        """(plugin, description) of everything of a kind, in order of registration; PluginError if
        two have a name in common."""
        owners: dict[str, str] = {}
        owned: list[tuple[str, Spec]] = []
        for impl in getattr(self._manager.hook, kind.hook).get_hookimpls():
            for spec in _registered(impl, kind):
                for name in kind.names(spec):
                    if name in owners:
                        raise _clash(owners[name], impl.plugin_name, kind.noun, name)
                    owners[name] = impl.plugin_name
                owned.append((impl.plugin_name, spec))
        return owned

    def all(self, kind: Kind[Spec]) -> list[Spec]:
        """Everything of a kind; see `owned`."""
        return [spec for _, spec in self.owned(kind)]

    def pipelines(self) -> dict[str, PipelineConfig]:
        """Every registered pipeline by name."""
        return {pipeline.name: pipeline for pipeline in self.all(PIPELINES)}

    def provenance(self, pipeline: str) -> str:
        """The name of the plugin that registered a pipeline."""
        for plugin, registered in self.owned(PIPELINES):
            if registered.name == pipeline:
                return plugin
        raise ConfigError(unknown("pipeline", pipeline, self.pipelines()))

    def pipeline_at(self, directory: str) -> PipelineConfig:
        """The pipeline that serves the checkpoint in a directory: the one that plugins say, else by
        its architectures. ConfigError if there is none."""
        matched = self._matched(checkpoint_at(directory))
        return self.pipeline_for(architectures(directory)) if matched is None else matched

    def pipeline_for(self, architectures: Iterable[str]) -> PipelineConfig:
        """The pipeline that serves a checkpoint with these "architectures" in its config.json."""
        wanted = set(architectures)
        owned = self.owned(PIPELINES)
        matching = [(o, p) for o, p in owned if wanted.intersection(p.architectures)]
        if len(matching) == 1:
            return matching[0][1]
        if matching:
            claims = " and ".join(f"{p.name!r} of plugin {owner!r}" for owner, p in matching)
            raise ConfigError(
                f"several pipelines serve architecture {', '.join(sorted(wanted))}: {claims}; "
                f"leave one out with {ALLOW_LIST}"
            )
        served = sorted({a for _, p in owned for a in p.architectures})
        raise ConfigError(
            f"no installed plugin serves architecture {', '.join(sorted(wanted)) or '(none)'}; "
            f"installed plugins serve: {', '.join(served) or 'nothing (install a model package)'}"
        )

    def listing(self) -> list[PluginInfo]:
        """What is loaded, in order of registration, then what was left out."""
        given = {kind.noun: self.owned(kind) for kind in KINDS}
        loaded = [
            self._info(name, module, given) for name, module in self._manager.list_name_plugin()
        ]
        return loaded + [
            PluginInfo(name=name, distribution=d, version=v, broken=why)
            for name, why in self._broken.items()
            for d, v in [self._origin.get(name, ("", ""))]
        ]

    def _info(
        self, name: str, module: object, given: dict[str, list[tuple[str, Any]]]
    ) -> PluginInfo:
        distribution, version = self._origin.get(name, ("", ""))
        callers = self._manager.get_hookcallers(module) or []
        return PluginInfo(
            name=name,
            distribution=distribution,
            version=version,
            hooks=tuple(sorted(caller.name for caller in callers)),
            pipelines=tuple(p for plugin, p in given[PIPELINES.noun] if plugin == name),
            others=tuple(
                (kind.noun, label)
                for kind in KINDS
                if kind is not PIPELINES
                for plugin, spec in given[kind.noun]
                if plugin == name
                for label in kind.names(spec)
            ),
        )

    def _matched(self, checkpoint: Checkpoint) -> PipelineConfig | None:
        """What `match_checkpoint` says, of which all who answer must be of one opinion."""
        claims: dict[str, str] = {}
        for impl in self._manager.hook.match_checkpoint.get_hookimpls():
            arguments = (checkpoint,) if impl.argnames else ()
            named = _called(impl, "match_checkpoint", *arguments)
            if named is not None:
                claims.setdefault(str(named), impl.plugin_name)
        if len(claims) > 1:
            said = " and ".join(f"{name!r} by plugin {owner!r}" for name, owner in claims.items())
            raise ConfigError(
                f"{checkpoint.path} is claimed for several pipelines: {said}; leave one out with "
                f"{ALLOW_LIST}"
            )
        for name, owner in claims.items():
            if name not in (known := self.pipelines()):
                raise PluginError(
                    f"plugin {owner!r}: match_checkpoint: {unknown('pipeline', name, known)}"
                )
            return known[name]
        return None


def _clash(one: str, other: str, noun: str, name: str) -> PluginError:
    if one == other:
        return PluginError(f"plugin {one!r} registers {noun} {name!r} twice; it must give one")
    return PluginError(
        f"plugins {one!r} and {other!r} both register {noun} {name!r}; "
        f"leave one out with {ALLOW_LIST}"
    )


def _registered(impl: pluggy.HookImpl, kind: Kind[Spec]) -> list[Spec]:
    given = _called(impl, kind.hook, as_list=True)
    specs = [item for item in given if isinstance(item, kind.type)]
    if len(specs) != len(given):
        raise PluginError(
            f"plugin {impl.plugin_name!r}: {kind.hook} gave {given!r}; "
            f"it must return {kind.type.__name__}s"
        )
    return specs


def _called(impl: pluggy.HookImpl, hook: str, *arguments: object, as_list: bool = False) -> Any:
    """What a plugin's hook gives. A plugin may do anything: its errors are named, and it is."""
    try:
        given: object = impl.function(*arguments)
        return list(cast("Iterable[object]", given)) if as_list else given
    except Exception as exc:
        raise PluginError(f"plugin {impl.plugin_name!r}: {hook}: {exc!r}") from exc
