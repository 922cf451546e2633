"""Finding plugins and collecting what they register.

Knows entry points, provenance and clashes. Runs only when `discover` is called, never at import.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import cast

import pluggy

from omni_core import hookspecs
from omni_core.errors import ConfigError, PluginError
from omni_core.specs import PipelineConfig

GROUP = "omni.plugins"
ALLOW_LIST = "OMNI_PLUGINS"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One loaded plugin, for listings."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...]
    """Names of the hooks it implements."""
    pipelines: tuple[PipelineConfig, ...]


class Plugins:
    """The registered plugins of this process."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(hookspecs.NAMESPACE)
        self._manager.add_hookspecs(hookspecs)
        self._origin: dict[str, tuple[str, str]] = {}

    def discover(self) -> Plugins:
        """Load every installed plugin, or those the OMNI_PLUGINS list names; returns self."""
        found = _found()
        for name in _allowed(found):
            point = found[name]
            self.register(_load(point), name)
            if point.dist is not None:
                self._origin[name] = (point.dist.name, point.dist.version)
        return self

    def register(self, module: ModuleType, name: str) -> None:
        """Add one plugin module; a misspelt hook is an error that names it."""
        try:
            self._manager.register(module, name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as exc:
            raise PluginError(f"plugin {name!r}: {exc}") from exc

    def pipelines(self) -> dict[str, PipelineConfig]:
        """Every registered pipeline by name."""
        return {pipeline.name: pipeline for _, pipeline in self._owned()}

    def provenance(self, pipeline: str) -> str:
        """The name of the plugin that registered a pipeline."""
        for plugin, registered in self._owned():
            if registered.name == pipeline:
                return plugin
        raise ConfigError(_unknown("pipeline", pipeline, self.pipelines()))

    def pipeline_for(self, architectures: Iterable[str]) -> PipelineConfig:
        """The pipeline that serves a checkpoint with these "architectures" in its config.json."""
        wanted = set(architectures)
        owned = self._owned()
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
        """What is loaded, in order of registration."""
        owned = self._owned()
        return [
            self._info(name, module, tuple(p for plugin, p in owned if plugin == name))
            for name, module in self._manager.list_name_plugin()
        ]

    def _info(self, name: str, module: object, pipelines: tuple[PipelineConfig, ...]) -> PluginInfo:
        distribution, version = self._origin.get(name, ("", ""))
        callers = self._manager.get_hookcallers(module) or []
        return PluginInfo(
            name=name,
            distribution=distribution,
            version=version,
            hooks=tuple(sorted(caller.name for caller in callers)),
            pipelines=pipelines,
        )

    def _owned(self) -> list[tuple[str, PipelineConfig]]:
        owners: dict[str, str] = {}
        owned: list[tuple[str, PipelineConfig]] = []
        for impl in self._manager.hook.register_pipelines.get_hookimpls():
            for pipeline in _registered(impl):
                if pipeline.name in owners:
                    raise PluginError(
                        f"plugins {owners[pipeline.name]!r} and {impl.plugin_name!r} both register "
                        f"pipeline {pipeline.name!r}; leave one out with {ALLOW_LIST}"
                    )
                owners[pipeline.name] = impl.plugin_name
                owned.append((impl.plugin_name, pipeline))
        return owned


def _registered(impl: pluggy.HookImpl) -> list[PipelineConfig]:
    try:
        given = list(cast("Iterable[object]", impl.function()))
    except Exception as exc:
        raise PluginError(f"plugin {impl.plugin_name!r}: register_pipelines: {exc!r}") from exc
    pipelines = [item for item in given if isinstance(item, PipelineConfig)]
    if len(pipelines) != len(given):
        raise PluginError(
            f"plugin {impl.plugin_name!r}: register_pipelines gave {given!r}; "
            "it must return PipelineConfigs"
        )
    return pipelines


def _found() -> dict[str, EntryPoint]:
    """Entry points by name; two distributions must not use one name."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise PluginError(
                f"two plugins are named {point.name!r}: {other.value} of {_distribution(other)} "
                f"and {point.value} of {_distribution(point)}; uninstall one"
            )
    return found


def _allowed(found: dict[str, EntryPoint]) -> list[str]:
    listed = os.environ.get(ALLOW_LIST)
    if listed is None:
        return sorted(found)
    names = [name.strip() for name in listed.split(",") if name.strip()]
    for name in names:
        if name not in found:
            raise PluginError(f"{ALLOW_LIST}: {_unknown('plugin', name, found)}")
    return names


def _load(point: EntryPoint) -> ModuleType:
    try:
        module = point.load()
    except Exception as exc:
        raise PluginError(
            f"plugin {point.name!r} ({point.value} of {_distribution(point)}) fails to import: "
            f"{type(exc).__name__}: {exc}; mend or uninstall it, or leave it out with {ALLOW_LIST}"
        ) from exc
    if not isinstance(module, ModuleType):
        raise PluginError(
            f"plugin {point.name!r} of {_distribution(point)}: its entry point {point.value!r} "
            "must name a module"
        )
    return module


def _distribution(point: EntryPoint) -> str:
    return "an unknown distribution" if point.dist is None else point.dist.name


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}; {hint}"
