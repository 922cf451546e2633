"""Options of every test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--ar-engine`: what drives the autoregressive stages of pipelines that tests serve."""
    parser.addoption("--ar-engine", default="torch", choices=("torch", "sglang"))


@pytest.fixture(scope="session")
def ar_engine(request: pytest.FixtureRequest) -> str:
    """The engine that the run was asked to test."""
    engine: str = request.config.getoption("--ar-engine")
    return engine
