"""What a pipeline runs, and what each of its processes is told to build.

Resolves every reference once, before any process starts. Starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from omni_core.config import to_doc
from omni_core.coordinator.fleet import Fleet, Replica
from omni_core.coordinator.supervisor import Blueprint
from omni_core.devices import stage_devices
from omni_core.graph import served
from omni_core.messages import PROTOCOL_VERSION, Setup
from omni_core.relay.transport import shared_cards
from omni_core.specs import StageConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run, fully resolved."""

    model_path: str
    stages: tuple[StageConfig, ...]
    entry: str
    dtype: str
    compile: str = "off"
    revision: str | None = None
    """What the operator calls the weights; None if nobody said."""


def blueprints(plan: Plan, fleet: Fleet, remote: Collection[str] = ()) -> dict[str, Blueprint]:
    """{name of a replica: what fills it}; `remote` are those on other hosts."""
    threads = _threads_per_process(len(fleet.replicas))
    cards = shared_cards(plan.stages, remote)
    return {
        replica.name: Blueprint(
            env={**threads, **{k: v for stage in replica.stages for k, v in stage.env.items()}},
            setup=_setup(plan, replica, fleet.number(replica), cards),
        )
        for replica in fleet.replicas
    }


def _setup(
    plan: Plan, replica: Replica, number: int, cards: Mapping[str, Mapping[str, str]]
) -> Setup:
    modalities = served(plan.stages)
    return Setup(
        version=PROTOCOL_VERSION,
        model_path=plan.model_path,
        compile=plan.compile,
        cards={place: dict(devices) for place, devices in cards.items()},
        stages=tuple(
            to_doc(
                stage,
                devices=stage_devices(stage, number),
                dtype=plan.dtype,
                serves={target: modalities[target] for target in stage.next},
            )
            for stage in replica.stages
        ),
    )


def _threads_per_process(processes: int) -> dict[str, str]:
    """Share the cores among the processes, unless the operator has set a number."""
    cores = len(os.sched_getaffinity(0))
    share = str(max(1, cores // processes))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: os.environ.get(name, share) for name in names}
