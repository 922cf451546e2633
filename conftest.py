"""What holds for the tests of every package."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def ordinary_scheduling() -> Iterator[None]:
    """Undo what an encoder does to the thread that calls it: SVT-AV1 makes it a real-time one where
    it may, as root may, and every process started from there inherits that. Real-time processes
    keep the cores from each other for as long as they compute."""
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    yield
    os.sched_setscheduler(0, policy, param)
