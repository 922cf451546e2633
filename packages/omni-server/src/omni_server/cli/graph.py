"""`omni graph`: the stages of a pipeline, their processes, devices, edges and transports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

import typer

from omni_core.errors import ConfigError
from omni_core.relay.transport import ends
from omni_core.specs import StageConfig
from omni_server.cli.configuration import command_line, guests, read, resolve_pipeline
from omni_server.cli.drawing import mermaid, plain, svg
from omni_server.cli.drawing.scene import Scene, scene
from omni_server.cli.options import (
    ConfigPath,
    Device,
    Layout,
    ModelPath,
    PipelineName,
    Remote,
    TextOnly,
    Variant,
)

FORMATS: Final[Mapping[str, Callable[[Scene], str]]] = {
    "text": plain.draw,
    "mermaid": mermaid.draw,
    "svg": svg.draw,
}


def graph(
    context: typer.Context,
    model_path: ModelPath = None,
    pipeline: PipelineName = None,
    config: ConfigPath = None,
    variant: Variant = None,
    text_only: TextOnly = False,
    device: Device = None,
    layout: Layout = None,
    remote: Remote = None,
    format_name: Annotated[str, typer.Option("--format", help="text, mermaid or svg.")] = "text",
) -> None:
    """Draw the stages of a pipeline as a configuration would run them.

    Takes --STAGE.FIELD VALUE as `omni serve` does. Cards this machine lacks are drawn as well.
    """
    draw = FORMATS.get(format_name)
    if draw is None:
        raise ConfigError(f"--format: got {format_name!r}; expected text, mermaid or svg")
    configuration = read(command_line(context))
    resolved = resolve_pipeline(configuration, pipeline)
    title = f"{resolved.pipeline.name}, variant {resolved.settings['variant'].value}"
    far = guests(configuration.server)
    _check(far, resolved.stages)
    typer.echo(draw(scene(title, resolved.stages, resolved.pipeline.entry, far)))


def _check(remote: Sequence[str], stages: Sequence[StageConfig]) -> None:
    places = dict.fromkeys(end.process for stage in stages for end in ends(stages, stage))
    if unknown := [name for name in remote if name not in places]:
        named = ", ".join(unknown)
        raise ConfigError(f"remote: no process {named}; there are {', '.join(places)}")
