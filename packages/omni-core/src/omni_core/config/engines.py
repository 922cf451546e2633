"""The engine of each autoregressive stage: the pipeline's, or the stage's own.

Knows what stages can be driven by and what a machine can run. Knows no other layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from omni_core.config.draft import Draft
from omni_core.devices import stage_device
from omni_core.engine.availability import Machine
from omni_core.engine.base import TORCH

if TYPE_CHECKING:
    from omni_core.config.layers import Setting


def choose(draft: Draft, setting: Setting, machine: Machine) -> None:
    """Give the pipeline's engine to every autoregressive stage that names none.

    Where the choice is ours, a stage gets the best one for its device of those that can drive it.
    """
    driven = [stage for stage in draft.stages.values() if stage.ar_engines]
    for stage in driven:
        if stage.ar_engine is not None:
            continue
        engine = setting.value
        if setting.is_auto:
            engine = machine.default_engine(stage_device(stage))
            engine = engine if engine in stage.ar_engines else stage.ar_engines[0]
        draft.choose_engine(stage.name, engine, setting.source)
    if not (driven or setting.is_auto or setting.value == TORCH.name):
        draft.problems.append(
            f"pipeline: ar_engine is {setting.value} ({setting.source}) but no stage can be driven "
            "by it; leave it out"
        )


def missing(draft: Draft, machine: Machine) -> Iterator[str]:
    """A sentence for each stage whose engine cannot run on this machine. Torch says by itself when
    it is not there."""
    for stage in draft.stages.values():
        engine = stage.ar_engine
        if engine is None or engine == TORCH.name or engine not in stage.ar_engines:
            continue
        reason = machine.obstacle(engine, stage_device(stage))
        if reason is not None:
            source = draft.set_by(stage.name, "ar_engine")
            yield f"stage {stage.name!r}: ar_engine is {engine} ({source}) but {reason}"
