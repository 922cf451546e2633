"""`omni engines`: what can drive autoregressive stages on this machine, and what cannot, and why.

Knows tables and JSON. What an engine needs is core's to say.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from omni_core.devices import default_device
from omni_core.engine.availability import EngineReport, Machine


def engines(
    as_json: Annotated[
        bool, typer.Option("--json", help="Everything about them, for programs.")
    ] = False,
) -> None:
    """Say which engines of autoregressive stages can run here, and why others cannot.

    The one after --ar-engine drives every such stage, the one after --STAGE.ar_engine that stage.
    """
    machine = Machine.here()
    if as_json:
        typer.echo(json.dumps(document(machine), indent=2))
    else:
        typer.echo("\n".join(lines(machine)))


def lines(machine: Machine) -> Iterator[str]:
    """A paragraph an engine, and what "auto" comes to."""
    for report in machine.reports():
        yield f"{report.capabilities.name:8} {report.version or 'not installed'}"
        for place, obstacle in report.obstacles.items():
            yield f"  {place:6} {'runs' if obstacle is None else f'no: {obstacle}'}"
    yield f"auto     {auto(machine)}"


def document(machine: Machine) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "auto": auto(machine),
        "engines": [engine_document(report) for report in machine.reports()],
    }


def engine_document(report: EngineReport) -> dict[str, Any]:
    """One engine as plain data."""
    capabilities = dataclasses.asdict(report.capabilities)
    return {
        "name": capabilities.pop("name"),
        "version": report.version,
        "runs_on": [place for place, obstacle in report.obstacles.items() if obstacle is None],
        "obstacles": {place: o for place, o in report.obstacles.items() if o is not None},
        "capabilities": capabilities,
    }


def auto(machine: Machine) -> str:
    """The engine of stages that can be driven by any, on the device that "auto" is here."""
    return machine.default_engine(default_device(machine.cards))
