"""The `omni` command: one function a subcommand, each in a file of its own.

Knows words on a command line. Every error meant for a person ends as one line and status 1.
"""

from __future__ import annotations

import typer

from omni_core.errors import OmniError
from omni_server.cli import config, demo, engines, graph, info, new_plugin, serve, stage, tiny
from omni_server.cli.options import EXTRA_OPTIONS

app = typer.Typer(
    name="omni",
    help="Serve omni-modal models: text, audio, images and video in; text and speech out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(config.app, name="config")
app.command(context_settings=EXTRA_OPTIONS)(serve.serve)
app.command(context_settings=EXTRA_OPTIONS)(graph.graph)
for command in (
    *(stage.stage, tiny.tiny, demo.demo, new_plugin.new_plugin),
    *(info.plugins, engines.engines, info.version),
):
    app.command()(command)


def main() -> None:
    """Run the command line; the entry point of `omni`."""
    try:
        app()
    except OmniError as error:
        typer.secho(f"error: {error.message}", fg="red", err=True)
        raise SystemExit(1) from error
