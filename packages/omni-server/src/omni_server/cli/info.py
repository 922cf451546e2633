"""`omni plugins` and `omni version`: what is installed."""

from __future__ import annotations

from importlib import metadata

import typer

from omni_core.plugins import PluginInfo, Plugins


def plugins() -> None:
    """List the installed plugins and the pipelines they bring."""
    typer.echo(plugin_table(Plugins().discover().listing()))


def version() -> None:
    """Print the versions of the server and of core."""
    for distribution in ("omni-server", "omni-core"):
        typer.echo(f"{distribution} {metadata.version(distribution)}")


def plugin_table(infos: list[PluginInfo]) -> str:
    """One line a plugin: name, distribution and version, pipelines."""
    if not infos:
        return "no plugins; install a model package"
    return "\n".join(
        f"{info.name:12} {info.distribution} {info.version:10} {', '.join(info.pipelines)}"
        for info in infos
    )
