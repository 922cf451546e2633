"""`omni plugins` and `omni version`: what is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from typing import Annotated, Any

import typer

from omni_core.plugins import PluginInfo, Plugins
from omni_core.specs import PipelineConfig


def plugins(
    as_json: Annotated[
        bool, typer.Option("--json", help="Everything about them, for programs.")
    ] = False,
) -> None:
    """List the installed plugins and what they bring.

    OMNI_PLUGINS=NAME,NAME loads only these; set but empty, it loads none. With
    OMNI_SKIP_BROKEN_PLUGINS=1, one that cannot be loaded is listed with the reason, and left out.
    """
    infos = Plugins().discover().listing()
    if as_json:
        typer.echo(json.dumps([plugin_document(info) for info in infos], indent=2))
    else:
        typer.echo(plugin_table(infos))


def version() -> None:
    """Print the versions of the server and of core."""
    for distribution in ("omni-server", "omni-core"):
        typer.echo(f"{distribution} {metadata.version(distribution)}")


def plugin_table(infos: list[PluginInfo]) -> str:
    """One line a plugin: name, distribution and version, pipelines and whatever else it brings."""
    if not infos:
        return "no plugins; install a model package"
    return "\n".join(
        f"{info.name:12} {info.distribution} {info.version:10} {', '.join(_brings(info))}"
        for info in infos
    )


def _brings(info: PluginInfo) -> Iterator[str]:
    yield from (pipeline.name for pipeline in info.pipelines)
    yield from (f"{noun} {name}" for noun, name in info.others)
    if info.broken:
        yield f"left out: {info.broken.splitlines()[0]}"


def plugin_document(info: PluginInfo) -> dict[str, Any]:
    """A plugin as plain data."""
    return {
        "name": info.name,
        "distribution": info.distribution,
        "version": info.version,
        "hooks": list(info.hooks),
        "pipelines": [pipeline_document(pipeline) for pipeline in info.pipelines],
        "others": [{"kind": noun, "name": name} for noun, name in info.others],
        "broken": info.broken or None,
    }


def pipeline_document(pipeline: PipelineConfig) -> dict[str, Any]:
    """A pipeline as plain data: what it serves, and the stages of each variant."""
    return {
        "name": pipeline.name,
        "architectures": list(pipeline.architectures),
        "default_variant": pipeline.default_variant,
        "variants": {
            variant: [stage.name for stage in stages]
            for variant, stages in pipeline.variants.items()
        },
    }
