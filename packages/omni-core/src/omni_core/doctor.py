"""What of this machine decides whether and how well pipelines run: our checks, and plugins'.

Knows descriptions of checks and the order of levels. What a check looks at is its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from omni_core.devices import card_names, cpp_compiler
from omni_core.engine.availability import Machine
from omni_core.engine.base import TORCH
from omni_core.errors import PluginError
from omni_core.extensions import CheckSpec, Finding
from omni_core.plugins import CHECKS, Plugins
from omni_core.specs import Ref

CORE: Final = "omni-core"
SHARED_MEMORY: Final = "/dev/shm"
ENOUGH_SHARED_MEMORY: Final = 1 << 30
"""A pool of each process, at its usual size, for a pipeline of a few processes."""
OURS: Final = (
    CheckSpec(name="engine", check=Ref(f"{__name__}:check_engine")),
    CheckSpec(name="cards", check=Ref(f"{__name__}:check_cards")),
    CheckSpec(name="compiler", check=Ref(f"{__name__}:check_compiler")),
    CheckSpec(name="shared memory", check=Ref(f"{__name__}:check_shared_memory")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One check, whose it is, and what it found."""

    owner: str
    name: str
    finding: Finding


def examine(plugins: Plugins) -> Iterator[Checked]:
    """Our checks, then those of plugins; PluginError for one with the name of ours. A check that
    raises has found a problem."""
    theirs = plugins.owned(CHECKS)
    ours = {spec.name for spec in OURS}
    for owner, spec in theirs:
        if spec.name in ours:
            raise PluginError(
                f"plugin {owner!r} registers check {spec.name!r}, which is core's own; it must "
                "take another name"
            )
    for owner, spec in [*((CORE, spec) for spec in OURS), *theirs]:
        yield Checked(owner=owner, name=spec.name, finding=_found(spec))


def _found(spec: CheckSpec) -> Finding:
    try:
        finding = spec.check.resolve()()
    except Exception as exc:  # noqa: BLE001 - a plugin may do anything; what it did is the finding
        return Finding(level="problem", text=f"the check itself failed: {exc!r}")
    if not isinstance(finding, Finding):
        return Finding(level="problem", text=f"{spec.check.target} gave {finding!r}, no Finding")
    return finding


def check_engine() -> Finding:
    """Whether autoregressive stages can be computed at all."""
    machine = Machine.here()
    reason = machine.obstacle(TORCH.name, "cpu")
    if reason is not None or machine.torch is None:
        return Finding(level="problem", text=reason or "torch is not installed")
    return Finding(level="ok", text=f"torch {machine.torch.version}; `omni engines` says more")


def check_cards() -> Finding:
    """Whether there are CUDA cards."""
    if names := card_names():
        return Finding(level="ok", text=", ".join(names))
    return Finding(level="warning", text="no CUDA card is visible; stages compute on the CPU")


def check_compiler() -> Finding:
    """Whether hot steps can be compiled."""
    if found := cpp_compiler():
        return Finding(level="ok", text=found)
    text = "no C++ compiler, so hot steps stay eager on CPUs; install g++, or set CXX"
    return Finding(level="warning", text=text)


def check_shared_memory() -> Finding:
    """Whether processes can hand large tensors over."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        text = f"{SHARED_MEMORY} cannot be written to; tensors go through the temporary directory"
        return Finding(level="warning", text=text)
    free = shutil.disk_usage(SHARED_MEMORY).free
    text = f"{free >> 20} MiB free in {SHARED_MEMORY}"
    if free < ENOUGH_SHARED_MEMORY:
        advice = "large inputs may find no room; give it more (docker run --shm-size)"
        return Finding(level="warning", text=f"{text}: {advice}")
    return Finding(level="ok", text=text)
