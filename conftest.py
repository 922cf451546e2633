"""What holds for the tests of every package."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--ar-engine`: what drives the autoregressive stages of pipelines that tests serve."""
    parser.addoption("--ar-engine", default="torch", choices=("torch", "sglang"))


@pytest.fixture(scope="session")
def ar_engine(request: pytest.FixtureRequest) -> str:
    """The engine that the run was asked to test."""
    engine: str = request.config.getoption("--ar-engine")
    return engine


@pytest.fixture(autouse=True)
def ordinary_scheduling() -> Iterator[None]:
    """Undo what an encoder does to the thread that calls it: SVT-AV1 makes it a real-time one where
    it may, as root may, and every process started from there inherits that. Real-time processes
    keep the cores from each other for as long as they compute."""
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    yield
    os.sched_setscheduler(0, policy, param)
