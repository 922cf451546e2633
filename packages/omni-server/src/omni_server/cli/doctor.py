"""`omni doctor`: what stands in the way on this machine, as core and plugins see it.

Knows tables and JSON. What is looked at is core's and the plugins' to say.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from omni_core.doctor import Checked, examine
from omni_core.plugins import Plugins


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="The same, for programs.")] = False,
) -> None:
    """Look at this machine: what pipelines need, and what installed plugins need.

    Ends with status 1 if anything is a problem.
    """
    checks = list(examine(Plugins().discover()))
    if as_json:
        typer.echo(json.dumps([_document(checked) for checked in checks], indent=2))
    else:
        for checked in checks:
            finding = checked.finding
            typer.echo(f"{finding.level:8} {checked.name:16} {finding.text}  ({checked.owner})")
    if any(checked.finding.level == "problem" for checked in checks):
        raise typer.Exit(1)


def _document(checked: Checked) -> dict[str, Any]:
    finding = checked.finding
    return {
        "name": checked.name,
        "owner": checked.owner,
        "level": finding.level,
        "text": finding.text,
    }
