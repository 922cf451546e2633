"""`omni config explain` and `omni config export`: what a command line and a file come to.

Knows tables and files. Resolves as `omni serve` does, for this machine or any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import typer

from omni_core.config import Resolved, Setting
from omni_core.config.explain import Row, document, rows, to_yaml
from omni_server.cli.configuration import Configuration, command_line, read, resolve_pipeline
from omni_server.cli.options import (
    EXTRA_OPTIONS,
    ArEngine,
    Compile,
    ConfigPath,
    Device,
    DrainTimeoutS,
    Dtype,
    Host,
    Layout,
    MaxBodyMib,
    ModelPath,
    PipelineName,
    Port,
    ServedModelName,
    TextOnly,
    Variant,
)

app = typer.Typer(help="Explain a configuration, or write it to a file.", no_args_is_help=True)


@app.command(context_settings=EXTRA_OPTIONS)
def explain(
    context: typer.Context,
    model_path: ModelPath = None,
    pipeline: PipelineName = None,
    config: ConfigPath = None,
    variant: Variant = None,
    text_only: TextOnly = False,
    host: Host = None,
    port: Port = None,
    device: Device = None,
    dtype: Dtype = None,
    ar_engine: ArEngine = None,
    compile: Compile = None,
    layout: Layout = None,
    served_model_name: ServedModelName = None,
    max_body_mib: MaxBodyMib = None,
    drain_timeout_s: DrainTimeoutS = None,
) -> None:
    """Print every setting of the server, the pipeline and its stages, and where it was set.

    Takes the options of `omni serve`, --STAGE.FIELD VALUE included.
    """
    configuration = read(command_line(context))
    resolved = resolve_pipeline(configuration, pipeline)
    typer.echo(f"{resolved.pipeline.name}\n")
    typer.echo(table(rows(resolved), configuration.server))


@app.command(context_settings=EXTRA_OPTIONS)
def export(
    context: typer.Context,
    model_path: ModelPath = None,
    pipeline: PipelineName = None,
    config: ConfigPath = None,
    variant: Variant = None,
    text_only: TextOnly = False,
    host: Host = None,
    port: Port = None,
    device: Device = None,
    dtype: Dtype = None,
    ar_engine: ArEngine = None,
    compile: Compile = None,
    layout: Layout = None,
    served_model_name: ServedModelName = None,
    max_body_mib: MaxBodyMib = None,
    drain_timeout_s: DrainTimeoutS = None,
) -> None:
    """Print the whole configuration as a file for --config, with nothing left to defaults.

    Takes the options of `omni serve`, --STAGE.FIELD VALUE included.
    """
    configuration = read(command_line(context))
    resolved = resolve_pipeline(configuration, pipeline)
    typer.echo(to_yaml(content(configuration, resolved)), nl=False)


def table(found: Iterable[Row], server: Mapping[str, Setting]) -> str:
    """Three columns, name, value and source, with the stages as headings."""
    groups: dict[str, list[tuple[str, str, str]]] = {"pipeline": [], "server": []}
    for row in found:
        group = "pipeline" if row.stage is None else f"stage {row.stage}"
        groups.setdefault(group, []).append((row.name, row.value, row.source))
    for name, setting in server.items():
        value = "-" if setting.value is None else str(setting.value)
        groups["server"].append((name, value, setting.source))
    cells = [cell for group in groups.values() for cell in group]
    widths = [max(len(cell[column]) for cell in cells) for column in (0, 1)]
    lines: list[str] = []
    for heading, settings in groups.items():
        lines += ["", heading] if lines else [heading]
        lines += [f"  {n:{widths[0]}}  {v:{widths[1]}}  {source}" for n, v, source in settings]
    return "\n".join(lines)


def content(configuration: Configuration, resolved: Resolved) -> dict[str, Any]:
    """The file that resolves to the same: checkpoint, server, pipeline and stages."""
    named = configuration.model_path or configuration.asked.file.values.get("model_path")
    head: dict[str, Any] = {} if named is None else {"model_path": named}
    server = {n: s.value for n, s in configuration.server.items() if s.value is not None}
    return {**head, "server": server, **document(resolved)}
