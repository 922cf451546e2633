"""The Talker on SGLang against the Talker on torch: the same codes from the same conditioning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.engine.base import Engine
from omni_core.engine.torch_engine import TorchEngine
from omni_core.scheduler.base import Work
from omni_core.specs import StageConfig, StageContext, WeightLoader
from omni_core.steps import StepBank
from omni_core.types import IntArray, RequestParams, SamplingParams
from omni_qwen3 import talker, tiny
from omni_qwen3.defaults import talker_defaults
from omni_qwen3.talker_stage import TalkerStage

pytestmark = pytest.mark.sglang

FRAMES = 60
KV_PAGES = 20
PROMPTS = ((12, 0), (30, 4), (7, 0), (60, 20), (21, 3))
"""Rows of the user turns, and how many of them are of media."""


class Frames:
    """An `Outbox` that keeps the frames of each request."""

    def __init__(self) -> None:
        self.of: dict[str, list[IntArray]] = {}

    def send(self, request_id: str, payload: Any, *, target: str | None = None) -> None:
        """Nobody listens."""

    def stream(self, request_id: str, data: Any, *, target: str | None = None) -> None:
        self.of.setdefault(request_id, []).append(data)

    def stream_done(self, request_id: str) -> None:
        """Nobody listens."""

    def done(self, request_id: str, usage: Any = None, **_: Any) -> None:
        """Nobody listens."""


def context(model_path: str, engine: str, **options: str) -> StageContext:
    return StageContext(
        stage=StageConfig(name="talker_ar", factory=talker.build, options=options),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine=engine,
        report=lambda message: None,
    )


@pytest.fixture(scope="module")
def torch_runner(tiny_checkpoint: str) -> talker.TalkerRunner:
    return talker.load_runner(context(tiny_checkpoint, "torch"))


@pytest.fixture(scope="module")
def weights() -> list[WeightLoader]:
    """What the engine's stage hands over when it is built."""
    return []


@pytest.fixture(scope="module")
def engine(
    tiny_checkpoint: str, torch_runner: talker.TalkerRunner, weights: list[WeightLoader]
) -> Iterator[Engine]:
    """There can be one in a process: prompts in chunks, and memory for a few requests at once."""
    kv = torch_runner.kv
    page_bytes = 2 * kv.layers * 16 * kv.kv_heads * kv.head_dim * 4
    options = {"prefill_chunk": "16", "kv_budget_bytes": str(KV_PAGES * page_bytes)}
    ctx = replace(context(tiny_checkpoint, "sglang", **options), loads=weights.append)
    built = talker.engine_for(ctx, StepBank.eager())
    with built.session():
        yield built


class Conversation:
    """Requests in an engine, and what they have said so far."""

    def __init__(self, engine: Engine, stage: TalkerStage, width: int, temperature: float) -> None:
        self._engine, self._stage, self._width = engine, stage, width
        self._frames = Frames()
        self._requests = {}
        for number in range(len(PROMPTS)):
            sampling = SamplingParams(
                temperature=temperature, seed=number, max_tokens=FRAMES + 1, ignore_eos=True
            )
            params = RequestParams(stage_params={"talker_ar": sampling})
            work = Work(str(number), params, self._conditioning(number))
            request = stage.admit(work, self._frames)  # type: ignore[arg-type]
            assert request is not None
            self._requests[str(number)] = request
            engine.add(request)

    def say(self, number: int, text: int | None) -> None:
        """Feed text row `text`; None ends the text."""
        chunk = None if text is None else {"rows": self._rows(1, 1000 + text)}
        self._engine.feed(str(number), chunk)

    def step(self) -> dict[int, int]:
        """Go on for as long as anybody can; frames of each so far."""
        while self._engine.runnable():
            for output in self._engine.step():
                request = self._requests[output.request_id]
                self._stage.publish(request, output, self._frames)  # type: ignore[arg-type]
        return {int(name): len(frames) for name, frames in self._frames.of.items()}

    def codes(self) -> list[IntArray]:
        return [np.concatenate(self._frames.of[name], axis=1) for name in self._requests]

    def _rows(self, count: int, seed: int) -> torch.Tensor:
        return torch.randn(count, self._width, generator=torch.Generator().manual_seed(seed))

    def _conditioning(self, number: int) -> dict[str, Any]:
        count, media = PROMPTS[number]
        return {
            "speak": True,
            "user_ids": np.arange(5, 5 + count),
            "user_rows": self._rows(count, number),
            "user_is_media": (np.arange(count) >= 2) & (np.arange(count) < 2 + media),
            "assistant_rows": self._rows(3, 100 + number),
        }


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_codes_are_those_of_the_torch_engine(
    engine: Engine, torch_runner: talker.TalkerRunner, tiny_checkpoint: str, temperature: float
) -> None:
    """Though prompts are cut, memory runs out, and text comes late and not for all at once."""
    stage = TalkerStage(torch_runner.config, talker_defaults(tiny_checkpoint))
    width = torch_runner.config.thinker_hidden_size
    before = engine.stats()
    late = Conversation(engine, stage, width, temperature)
    assert late.step() == {}  # prompts are computed, their last rows wait
    for text in range(3):
        late.say(0, text)
        late.say(1, text)
    assert late.step() == {0: 3, 1: 3}  # the others sit out
    for number in range(2, len(PROMPTS)):
        for text in range(3):
            late.say(number, text)
    for number in range(len(PROMPTS)):
        late.say(number, None)
    assert late.step() == dict.fromkeys(range(len(PROMPTS)), FRAMES)
    after = engine.stats()
    assert after.retractions > before.retractions
    assert after.cut_prompts > before.cut_prompts
    assert after.running == after.waiting == after.kv_pages_used == 0
    with torch.inference_mode():
        expected = at_once(TorchEngine(torch_runner), stage, width, temperature)
    for codes, those in zip(late.codes(), expected, strict=True):
        np.testing.assert_array_equal(codes, those)


def at_once(
    engine: Engine, stage: TalkerStage, width: int, temperature: float = 0.0
) -> list[IntArray]:
    """Codes of all prompts whose text is there from the start."""
    talk = Conversation(engine, stage, width, temperature)
    for number in range(len(PROMPTS)):
        for text in range(3):
            talk.say(number, text)
        talk.say(number, None)
    talk.step()
    return talk.codes()


def test_codes_are_those_of_new_weights(
    engine: Engine,
    weights: list[WeightLoader],
    torch_runner: talker.TalkerRunner,
    tiny_checkpoint: str,
    tmp_path: Path,
) -> None:
    stage = TalkerStage(torch_runner.config, talker_defaults(tiny_checkpoint))
    width = torch_runner.config.thinker_hidden_size
    other = str(tmp_path / "other")
    tiny.build(other, seed=1)
    [loader] = weights
    old = at_once(engine, stage, width)
    loader.check(other)
    loader.load(other)
    try:
        with torch.inference_mode():
            runner = talker.load_runner(context(other, "torch"))
            expected = at_once(TorchEngine(runner), stage, width)
        new = at_once(engine, stage, width)
        assert all(map(np.array_equal, new, expected))
        assert not all(map(np.array_equal, new, old))
    finally:
        loader.load(tiny_checkpoint)
    assert all(map(np.array_equal, at_once(engine, stage, width), old))
