"""The code predictor's steps really compiled: same codes at every batch size, found again on disk.

Compiling takes most of a minute, so `nox -s parity_variants` runs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.checkpoint.renew import PartsLoader
from omni_core.checkpoint.weights import Checkpoint, open_weights
from omni_core.pipeline import Pipeline
from omni_core.specs import StageContext
from omni_core.steps import StepBank
from omni_core.steps.aoti import Libraries
from omni_core.steps.base import Spec
from omni_core.steps.compiled import Library
from omni_core.steps.maker import LibraryMaker
from omni_core.types import RequestParams
from omni_qwen3 import talker, thinker, tiny
from omni_qwen3.code2wav import stage
from omni_qwen3.code2wav.model import load_model
from omni_qwen3.code2wav.vocoder import Qwen3Vocoder
from omni_qwen3.config import load_config
from omni_qwen3.model.predictor import CodePredictor
from omni_qwen3.pipeline import SPEECH_COLOCATED

PREFIX = "talker.code_predictor."


def predictor(directory: str, bank: StepBank) -> CodePredictor:
    return loaded(directory, bank)[0]


def loaded(directory: str, bank: StepBank) -> tuple[CodePredictor, PartsLoader]:
    """The predictor, and what brings other weights into it."""
    talker = load_config(directory).require_talker()
    with Checkpoint(directory) as checkpoint:
        weights = open_weights(
            checkpoint, [PREFIX], device="cpu", dtype="float32", report=lambda text: None
        )
        made = CodePredictor(weights, PREFIX, talker.predictor, talker.code_groups, bank)
    return made, PartsLoader(
        parts=weights.parts, prefixes=(PREFIX,), device="cpu", dtype="float32", after=lambda: None
    )


@pytest.mark.matrix
@torch.inference_mode()
def test_compiled_steps_draw_the_same_codes(tiny_checkpoint: str, tmp_path: Path) -> None:
    eager = predictor(tiny_checkpoint, StepBank.eager())
    bank = StepBank(maker=LibraryMaker(Libraries(tmp_path)), waits=True)
    compiled = predictor(tiny_checkpoint, bank)
    for batch in (1, 2, 8, 33):
        hidden, embedding = torch.randn(2, batch, 48)
        first = torch.randint(64, (batch,))
        for uniforms in (None, torch.rand(batch, 15)):
            wanted = eager(hidden, first, embedding, uniforms)
            given = compiled(hidden, first, embedding, uniforms)
            assert torch.equal(given.codes, wanted.codes)
            torch.testing.assert_close(given.embedding, wanted.embedding)
    stats = bank.stats()
    assert stats["steps_compiled_here"] == stats["steps_swapped"] == 2
    assert stats["step_calls_compiled"] == 4 * 2 * 16
    again = StepBank(maker=LibraryMaker(Libraries(tmp_path)), waits=True)
    compiled, loader = loaded(tiny_checkpoint, again)
    assert (again.stats()["steps_swapped"], again.stats()["steps_compiled_here"]) == (2, 0)

    tiny.build(str(tmp_path / "other"), seed=1)
    loader.load(str(tmp_path / "other"))
    wanted = predictor(str(tmp_path / "other"), StepBank.eager())(hidden, first, embedding, None)
    assert torch.equal(compiled(hidden, first, embedding, None).codes, wanted.codes)
    assert not torch.equal(eager(hidden, first, embedding, None).codes, wanted.codes)
    assert again.stats()["step_calls_compiled"] == 16


class Instant(LibraryMaker):
    """Makes every library at once, of the program itself."""

    def make_now(self, spec: Spec, call: object, done: Callable[[Library], None]) -> None:
        done(lambda tensors: spec.program(*tensors))


def speaking_stage(name: str, directory: str, options: dict[str, Any]) -> StageContext:
    found = next(stage for stage in SPEECH_COLOCATED if stage.name == name)
    return StageContext(
        stage=replace(found, options=options, gpu=None),
        model_path=directory,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        compile="wait",
        report=lambda text: None,
    )


@pytest.mark.parametrize(
    ("module", "name", "options", "steps"),
    [
        (thinker, "thinker", {"kv_budget_bytes": 2**20}, 1),
        (talker, "talker_ar", {"kv_budget_bytes": 2**20}, 3),  # two of them the predictor's
        (stage, "code2wav", {}, 4),  # the sizes of its cadence
    ],
)
def test_waiting_makes_every_hot_step_ready(
    module: ModuleType,
    name: str,
    options: dict[str, Any],
    steps: int,
    tiny_checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bank = StepBank(maker=Instant(Libraries(tmp_path)), waits=True)
    monkeypatch.setattr(module, "build_bank", lambda ctx: bank)
    module.build(speaking_stage(name, tiny_checkpoint, options))
    stats = bank.stats()
    assert stats["steps_swapped"] == steps
    assert stats["step_calls_eager"] == 0  # of requests


@torch.inference_mode()
def test_chunks_are_cut_into_the_widths_that_are_ready(
    tiny_checkpoint: str, tmp_path: Path
) -> None:
    model = load_model(tiny_checkpoint, device="cpu", dtype="float32", report=lambda text: None)
    bank = StepBank(maker=Instant(Libraries(tmp_path)), waits=True)
    vocoder = Qwen3Vocoder(model, bank, max_replies=1, chunk_frames=(1, 4))
    codes = np.random.default_rng(0).integers(0, model.config.codebook_size, (16, 6))
    heard = vocoder.push([vocoder.open(RequestParams(), {})], [codes])[0]
    stats = bank.stats()
    assert (stats["step_calls_compiled"], stats["step_calls_eager"]) == (3, 0)  # 4, 1 and 1
    whole = model.decode(torch.from_numpy(codes)).numpy()
    np.testing.assert_allclose(heard, whole, rtol=0, atol=2e-4)


def test_without_a_cpp_compiler_there_is_one_warning(
    tiny_checkpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING):
        Pipeline.load(tiny_checkpoint, device="cpu", compile="off")
        assert not caplog.records
        Pipeline.load(tiny_checkpoint, device="cpu")
    assert ["no C++ compiler" in record.message for record in caplog.records] == [True]
