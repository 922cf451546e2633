"""Importing core is quick and loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

TORCHLESS = ["pipeline", "plugins", "config", "coordinator.coordinator", "coordinator.runtime"]


def run(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_importing_core_takes_a_blink() -> None:
    timed = (
        "import time; start = time.process_time()\n"
        "import omni_core\n"
        "print(time.process_time() - start)"
    )
    assert float(run(timed)) < 0.3


@pytest.mark.parametrize("module", ["", *TORCHLESS, "stage.process", "testing.echo"])
def test_the_module_loads_nothing_heavy(module: str) -> None:
    name = f"omni_core.{module}" if module else "omni_core"
    heavy = {"torch", "transformers", "omni_core.relay.cuda_device"}
    assert run(f"import sys, {name}; print(sorted({heavy} & set(sys.modules)))") == "[]"
