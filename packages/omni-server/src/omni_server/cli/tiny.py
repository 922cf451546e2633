"""`omni tiny`: a random checkpoint in the real format, small enough for a laptop.

Knows plugins, no model: a plugin's pipeline says how to build one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from omni_core.errors import ConfigError
from omni_core.plugins import Plugins
from omni_core.specs import PipelineConfig, Ref


def tiny(
    name: Annotated[str, typer.Argument(help="A plugin or pipeline, see `omni plugins`.")],
    directory: Annotated[Path, typer.Argument(help="Where to write the checkpoint.")],
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
    variant: Annotated[
        str | None, typer.Option(help="One that only this variant can serve, such as text.")
    ] = None,
) -> None:
    """Write a tiny random checkpoint of a model family."""
    build(find(name, Plugins().discover()), directory, seed, variant)
    typer.echo(f"wrote {directory}")


def find(name: str, plugins: Plugins) -> PipelineConfig:
    """The pipeline of that name, or the one of the plugin of that name, that can be built tiny."""
    buildable = {n: p for n, p in plugins.pipelines().items() if p.build_tiny is not None}
    if name in buildable:
        return buildable[name]
    owned = [p for n, p in buildable.items() if plugins.provenance(n) == name]
    if len(owned) == 1:
        return owned[0]
    if owned:
        raise ConfigError(f"plugin {name!r} has several: {_names(p.name for p in owned)}; name one")
    raise ConfigError(f"no plugin builds a tiny {name!r}; there are: {_names(buildable)}")


def any_buildable(plugins: Plugins) -> PipelineConfig:
    """The first pipeline that can be built tiny."""
    for pipeline in plugins.pipelines().values():
        if pipeline.build_tiny is not None:
            return pipeline
    raise ConfigError("no installed plugin builds a tiny checkpoint; install a model package")


def build(pipeline: PipelineConfig, directory: Path, seed: int, variant: str | None = None) -> None:
    """Write the tiny checkpoint of a pipeline that has one, or the one for a variant alone."""
    builder = pipeline.build_tiny if variant is None else pipeline.build_tiny_for.get(variant)
    if builder is None:
        only = f" for {variant!r} alone; there are: {_names(pipeline.build_tiny_for)}"
        raise ConfigError(
            f"pipeline {pipeline.name!r} has no tiny checkpoint{only if variant else ''}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    if isinstance(builder, Ref):
        builder = builder.resolve()
    builder(str(directory), seed)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
