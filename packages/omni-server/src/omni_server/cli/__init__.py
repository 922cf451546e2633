"""The `omni` command: one function a subcommand, each in a file of its own.

Knows words on a command line. Every error meant for a person ends as one line and status 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from omni_core.errors import OmniError, PluginError
from omni_core.plugins import Plugins
from omni_server.cli import (
    config,
    demo,
    doctor,
    engines,
    graph,
    info,
    new_plugin,
    plugged,
    serve,
    stage,
    tiny,
)
from omni_server.cli.options import EXTRA_OPTIONS


def application() -> typer.Typer:
    """The command with all subcommands of ours."""
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
        *(info.plugins, engines.engines, doctor.doctor, info.version),
    ):
        app.command()(command)
    return app


app = application()


def complete(words: Sequence[str]) -> typer.Typer:
    """The command that understands these words: with the subcommands of plugins, if it takes them.

    Help is there even if a plugin is broken; it says so."""
    command = application()
    ours = plugged.names_of(command)
    if plugged.are_asked_for(words, ours):
        try:
            plugged.add_commands(command, Plugins().discover(), ours)
        except PluginError as error:
            if words and words[0] != "--help":
                raise
            _say(error)
    return command


def main() -> None:
    """Run the command line; the entry point of `omni`."""
    try:
        complete(sys.argv[1:])()
    except OmniError as error:
        _say(error)
        raise SystemExit(1) from error


def _say(error: OmniError) -> None:
    typer.secho(f"error: {error.message}", fg="red", err=True)
