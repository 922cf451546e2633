"""A process that gets no more memory fails the request that needs it, and serves the others."""

from __future__ import annotations

from typing import Any

import pytest

from caller import Manners, call
from cases import image
from inject import memory_refused
from target import Target, until

SIDE = 1600
"""Pixels; a picture of this size is 59 MiB as patches."""
PATIENT = Manners(patience_s=60)
READY_S = 30.0


def show(seed: int) -> dict[str, Any]:
    """A request with a large picture that nobody has seen before."""
    picture = image(width=SIDE, height=SIDE, seed=seed)
    return saying(picture) | {"min_pixels": SIDE * SIDE, "max_pixels": SIDE * SIDE}


def saying(*parts: object) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": "Hi"}]
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 4,
        "temperature": 0,
    }


@pytest.mark.matrix
@pytest.mark.parametrize(("victim", "seed"), [("frontend", 0), ("encoders", 1), ("thinker", 2)])
async def test_refused_to(tiny_target: Target, victim: str, seed: int) -> None:
    before = await call(tiny_target.url, saying(), PATIENT)
    assert before.status == 200
    with memory_refused(tiny_target.processes()[victim]):
        refused = await call(tiny_target.url, show(seed), PATIENT)
        other = await call(tiny_target.url, saying(), PATIENT)
    assert refused.status == 503 or (refused.status == 200 and victim != "frontend")
    if refused.error is not None:
        assert refused.error["code"] in ("out_of_memory", "stage_died")
        assert "retry-after" in refused.headers
    assert other.status == 503 or other.text == before.text
    until(lambda: tiny_target.health()["status"] == "ready", READY_S, "all is ready")
    assert (await call(tiny_target.url, show(seed), PATIENT)).status == 200
