"""Subcommands that plugins bring.

A command's code is imported when the command is run: not for help, nor for another command.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import typer

from omni_core.errors import PluginError
from omni_core.extensions import CommandSpec
from omni_core.plugins import COMMANDS, Plugins

PASSED_ON: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
"""All that follows the command's name is the command's own, --help included."""


def are_asked_for(words: Collection[str], ours: Collection[str]) -> bool:
    """Whether a command line cannot be understood, or explained, with our commands alone."""
    first = next(iter(words), "--help")
    return first == "--help" or not (first in ours or first.startswith("-"))


def names_of(app: typer.Typer) -> list[str]:
    """Of all subcommands that an application has."""
    commands = [
        known.name or known.callback.__name__.replace("_", "-")
        for known in app.registered_commands
        if known.callback is not None
    ]
    return commands + [group.name for group in app.registered_groups if group.name]


def add_commands(app: typer.Typer, plugins: Plugins, ours: Collection[str]) -> None:
    """Add the commands of plugins; PluginError for one with the name of ours."""
    for owner, spec in plugins.owned(COMMANDS):
        if spec.name in ours:
            raise PluginError(
                f"plugin {owner!r} registers command {spec.name!r}, which is omni's own; it must "
                "take another name"
            )
        app.command(name=spec.name, help=spec.help, context_settings=dict(PASSED_ON))(_runs(spec))


def _runs(spec: CommandSpec) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        command.command()(spec.function.resolve())
        command(args=context.args, prog_name=f"omni {spec.name}", standalone_mode=False)

    return run
