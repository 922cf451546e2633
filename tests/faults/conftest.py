"""The servers that faults are injected into: of the echo pipeline, and of a tiny checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_core.testing import echo
from target import LAYOUT, Start, Target, echo_environment, serving, start


@pytest.fixture(scope="session")
def start_echo(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a server of the echo pipeline with the given arguments; not awaited."""
    root: Path = tmp_path_factory.mktemp("faults")
    environment = echo_environment(root / "site")
    checkpoint = echo.write_checkpoint(root / "echo")
    return lambda *arguments: start(checkpoint, *arguments, environment=environment)


@pytest.fixture
def echo_target(start_echo: Start) -> Iterator[Target]:
    """A ready server of the echo pipeline: processes "front" (two stages) and "voice"."""
    target = start_echo()
    try:
        target.wait_ready()
        yield target
    finally:
        target.close()


@pytest.fixture(scope="session")
def tiny_target(tiny_checkpoint: str, ar_engine: str) -> Iterator[Target]:
    """A ready server of the tiny checkpoint: a process for each kind of stage.

    Who hurts it leaves it ready.
    """
    with serving(tiny_checkpoint, *LAYOUT, "--ar-engine", ar_engine) as target:
        yield target
