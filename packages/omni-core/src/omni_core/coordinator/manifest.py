"""What runs in a pipeline: the checkpoint, where each stage computes, and the machine.

For people who must tell two servers apart. Knows the plan and this host; imports no torch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from omni_core.coordinator.plan import Plan
from omni_core.devices import card_names
from omni_core.engine.availability import Machine
from omni_core.engine.base import SGLANG
from omni_core.graph import cards_of, process_of
from omni_core.specs import StageConfig

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SNAPSHOTS: Final = "snapshots"


class StagePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where one stage computes, and with what."""

    process: str
    devices: tuple[str, ...]
    """Torch devices: the card of each replica, or one for all."""
    replicas: int
    tp_size: int
    ar_engine: str | None
    """Of an autoregressive stage; None for every other."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline on one host. Processes of other hosts are placed, and not looked into."""

    pipeline: str
    variant: str
    checkpoint: str
    """The name of its directory, or its hub id."""
    revision: str | None
    """What the operator called the weights that were loaded last, else the commit of a snapshot
    from the hub; None for a directory, which has none."""
    dtype: str
    compile: str
    stages: dict[str, StagePlace]
    torch: str | None
    cuda: str | None
    """Release of CUDA that torch was built for."""
    sglang: str | None
    """None where no stage runs on it."""
    cards: tuple[str, ...]
    """What the driver calls the cards of this host, by their numbers."""


def manifest(plan: Plan, pipeline: str, variant: str) -> Manifest:
    """The manifest of a plan on this host. Asks the driver, which takes a while the first time."""
    places = {stage.name: _place(stage) for stage in plan.stages}
    name, revision = _checkpoint(Path(plan.model_path))
    machine = Machine.here()
    on_sglang = any(place.ar_engine == SGLANG.name for place in places.values())
    return Manifest(
        pipeline=pipeline,
        variant=variant,
        checkpoint=name,
        revision=plan.revision or revision,
        dtype=plan.dtype,
        compile=plan.compile,
        stages=places,
        torch=None if machine.torch is None else machine.torch.version,
        cuda=None if machine.torch is None else machine.torch.cuda,
        sglang=machine.sglang if on_sglang else None,
        cards=card_names(),
    )


def _place(stage: StageConfig) -> StagePlace:
    return StagePlace(
        process=process_of(stage),
        devices=tuple(f"cuda:{card}" for card in cards_of(stage)) or ("cpu",),
        replicas=stage.replicas,
        tp_size=stage.tp_size,
        ar_engine=stage.ar_engine if stage.ar_engines else None,
    )


def _checkpoint(path: Path) -> tuple[str, str | None]:
    """Name and commit; the hub's cache keeps models--ORGANISATION--NAME/snapshots/COMMIT."""
    if path.parent.name == _SNAPSHOTS and _COMMIT.fullmatch(path.name):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/", 1), path.name
    return path.name, None
