"""`omni stage`: one stage process of a pipeline that is served from another host.

Knows words on a command line; what a guest does is core's.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from omni_core.stage.guest import Invitation, serve_as_guest
from omni_core.stage.process import LOG_FORMAT


def stage(
    process: Annotated[str, typer.Argument(help="Its name, as `omni serve --remote` has it.")],
    connect: Annotated[str, typer.Option(help="What `omni serve` listens on: tcp://HOST:PORT.")],
    secret_file: Annotated[Path, typer.Option(help="The same secret as there.")],
    listen: Annotated[
        str | None,
        typer.Option(help="Where the others reach this process; any free port if not set."),
    ] = None,
    model_path: Annotated[
        str | None, typer.Option(help="The checkpoint here, if it lies elsewhere than there.")
    ] = None,
) -> None:
    """Run a stage process of a pipeline that another host serves, until that ends."""
    logging.basicConfig(format=LOG_FORMAT, force=True)
    code = serve_as_guest(
        Invitation(
            process=process,
            coordinator=connect,
            secret_file=secret_file,
            listen=listen,
            model_path=model_path,
        )
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everything is closed; taking torch apart module by module costs seconds
