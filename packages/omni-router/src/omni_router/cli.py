"""The omni-router command.

Knows flags and the environment. What it does is `serve`'s.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
import uvloop

from omni_router.access import access_log as open_access_log
from omni_router.errors import ConfigError
from omni_router.keys import Keys, read_keys
from omni_router.serve import bind, serve
from omni_router.settings import Settings, read

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
BAD_USAGE = 2
app = typer.Typer(add_completion=False)
Text: TypeAlias = str | None


def main() -> None:
    """Run the command."""
    try:
        app()
    except ConfigError as error:
        typer.echo(f"omni-router: {error}", err=True)
        sys.exit(BAD_USAGE)


@app.command()
def run(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings.")] = None,
    worker: Annotated[
        list[str] | None, typer.Option(help="URL of a worker; may be given again.")
    ] = None,
    host: Annotated[Text, typer.Option(help="Address to listen on; 127.0.0.1 if not set.")] = None,
    port: Annotated[int | None, typer.Option(help="Port, 8080 if not set; 0: a free one.")] = None,
    access_log: Annotated[
        Text, typer.Option(help="File for one line of JSON a request, - for standard output.")
    ] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="A key that clients need.")] = None,
) -> None:
    """Put one address in front of many workers."""
    flags: dict[str, Any] = {
        "workers": worker,
        "host": host,
        "port": port,
        "access_log": access_log,
    }
    settings = read(config, flags)
    logging.basicConfig(format=LOG_FORMAT, level=settings.log_level.upper())
    keys = keys_of(settings, api_key or [])
    with (
        bind(settings.host, settings.port) as listener,
        open_access_log(settings.access_log) as on_access,
    ):
        uvloop.run(serve(settings, keys, listener, typer.echo, on_access))


def keys_of(settings: Settings, typed: list[str]) -> Keys:
    """All keys, from wherever they are set."""
    return read_keys(
        typed=typed,
        api_file=settings.api_key_file,
        admin_file=settings.admin_key_file,
        worker_file=settings.worker_key_file,
        worker_admin_file=settings.worker_admin_key_file,
    )
