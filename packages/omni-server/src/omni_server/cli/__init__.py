"""The `omni` command: one function a subcommand, each in a file of its own.

Knows words on a command line. Every error meant for a person ends as one line and status 1.
"""

from __future__ import annotations

import typer

from omni_core.errors import OmniError
from omni_server.cli import demo, graph, info, serve, tiny

app = typer.Typer(
    name="omni",
    help="Serve omni-modal models: text, audio, images and video in; text and speech out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    serve.serve
)
for command in (tiny.tiny, graph.graph, demo.demo, info.plugins, info.version):
    app.command()(command)


def main() -> None:
    """Run the command line; the entry point of `omni`."""
    try:
        app()
    except OmniError as error:
        typer.secho(f"error: {error.message}", fg="red", err=True)
        raise SystemExit(1) from error
