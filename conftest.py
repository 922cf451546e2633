"""What holds for the tests of every package."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--ar-engine`: what drives the autoregressive stages of pipelines that tests serve.
    `--ranks`: over how many processes SGLang's engine splits a Thinker."""
    parser.addoption("--ar-engine", default="torch", choices=("torch", "sglang"))
    parser.addoption("--ranks", default=1, type=int, help="processes of SGLang's engine")


@pytest.fixture(scope="session")
def ar_engine(request: pytest.FixtureRequest) -> str:
    """The engine that the run was asked to test."""
    engine: str = request.config.getoption("--ar-engine")
    return engine


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> int:
    """Processes that the model is split over, in tests of SGLang's engine that ask for it."""
    ranks: int = request.config.getoption("--ranks")
    return ranks


@pytest.fixture(autouse=True)
def ordinary_scheduling() -> Iterator[None]:
    """Undo what an encoder does to the thread that calls it: SVT-AV1 makes it a real-time one where
    it may, as root may, and every process started from there inherits that. Real-time processes
    keep the cores from each other for as long as they compute."""
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    yield
    os.sched_setscheduler(0, policy, param)
