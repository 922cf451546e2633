"""`omni graph`: the stages of a pipeline, their processes and edges, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from omni_core import devices
from omni_core.config import Asked, architectures, resolve
from omni_core.errors import ConfigError
from omni_core.plugins import Plugins
from omni_core.specs import PipelineConfig, StageConfig

LEGEND = "-> whole payload   ~> payload, then a stream   => what the client hears"


def graph(
    model_path: Annotated[str | None, typer.Option(help="A checkpoint's directory.")] = None,
    pipeline: Annotated[str | None, typer.Option(help="Or a pipeline by name.")] = None,
    variant: Annotated[str | None, typer.Option(help="Variant of the pipeline.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Draw the stages of a pipeline as they would run on this machine."""
    config = choose(Plugins().discover(), model_path, pipeline)
    asked = Asked(flags={"variant": variant, "device": device})
    resolved = resolve(config, asked, cards=devices.cuda_device_count(), here=False)
    typer.echo(f"{config.name}, variant {resolved.settings['variant'].value}")
    typer.echo(draw(resolved.stages, config.entry))


def choose(plugins: Plugins, model_path: str | None, name: str | None) -> PipelineConfig:
    """The pipeline of a checkpoint, or the one named, or the only one installed."""
    if model_path is not None:
        return plugins.pipeline_for(architectures(model_path))
    pipelines = plugins.pipelines()
    if name is None and len(pipelines) == 1:
        return next(iter(pipelines.values()))
    if name not in pipelines:
        known = ", ".join(sorted(pipelines)) or "none"
        raise ConfigError(f"give --model-path DIR or --pipeline NAME; installed: {known}")
    return pipelines[name]


def draw(stages: Sequence[StageConfig], entry: str) -> str:
    """One line a stage in the order a request meets them, indented by distance from the entry."""
    depths = depth_of(stages, entry)
    ordered = sorted(stages, key=lambda stage: depths[stage.name])
    names = {stage.name: "  " * depths[stage.name] + stage.name for stage in ordered}
    width = max(len(name) for name in names.values())
    homes = {stage.name: f"[{_home(stage)}]" for stage in ordered}
    home_width = max(len(home) for home in homes.values())
    lines = [
        f"{names[s.name]:{width}}  {homes[s.name]:{home_width}}  {_edges(s)}".rstrip()
        for s in ordered
    ]
    return "\n".join([*lines, LEGEND])


def depth_of(stages: Sequence[StageConfig], entry: str) -> dict[str, int]:
    """Longest way from the entry to each stage, in edges; the graph has no cycles."""
    depths = dict.fromkeys((stage.name for stage in stages), 0)
    following = {stage.name: stage.next for stage in stages}
    reached = [entry]
    while reached:
        name = reached.pop()
        for target in following[name]:
            if depths[target] <= depths[name]:
                depths[target] = depths[name] + 1
                reached.append(target)
    return depths


def _home(stage: StageConfig) -> str:
    process = stage.process or stage.name
    if stage.gpu is None:
        return process
    cards = (stage.gpu,) if isinstance(stage.gpu, int) else stage.gpu
    return f"{process} on gpu {','.join(map(str, cards))}"


def _edges(stage: StageConfig) -> str:
    edges = [f"{'~>' if t in stage.stream_to else '->'} {t}" for t in stage.next]
    if stage.terminal is not None:
        edges.append(f"=> {stage.terminal}")
    return "  ".join(edges)
