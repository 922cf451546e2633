"""Ming's hot steps really compiled: the same replies and the same speech. Compiling takes minutes,
so `nox -s parity_variants` runs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from golden_files import assert_close
from thinker_cases import CASES, context, expected_tokens, generate, request

from omni_core.checkpoint.renew import PartsLoader
from omni_core.engine.torch_engine import TorchEngine
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_core.specs import StageConfig, StageContext
from omni_core.steps import StepBank
from omni_core.steps.aoti import Libraries
from omni_core.steps.maker import LibraryMaker
from omni_ming import thinker, tiny
from omni_ming.talker.runner import WEIGHTS, TalkerRunner, load_runner


@pytest.mark.matrix
def test_a_compiled_decode_step_writes_the_same(tiny_checkpoint: str, tmp_path: Path) -> None:
    bank = StepBank(maker=LibraryMaker(Libraries(tmp_path)), waits=True)
    compiled = thinker.load_runner(context(tiny_checkpoint), bank)
    engine = TorchEngine(compiled, TorchEngineConfig())
    made = generate(engine, [request(case, compiled.config) for case in CASES])
    assert made == {case: expected_tokens(case, compiled.config) for case in CASES}
    stats = bank.stats()
    assert stats["steps_compiled_here"] == stats["steps_swapped"] == 1
    assert stats["step_calls_compiled"] > 0
    assert stats["step_calls_eager"] == 0


def talker(model_path: str, bank: StepBank) -> TalkerRunner:
    ctx = StageContext(
        stage=StageConfig(name="talker", factory=load_runner),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )
    return load_runner(ctx, bank)


def patches(made: TalkerRunner, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A patch of each, and its row."""
    drawn = torch.Generator().manual_seed(batch)
    rows, history, start = (
        torch.randn(batch, *shape, generator=drawn) for shape in ((64,), (32, 64), (4, 64))
    )
    patch = made.flow(rows, history, start)
    return patch, made._aggregate(patch)[0].clone()


@pytest.mark.matrix
@torch.inference_mode()
def test_compiled_steps_make_the_same_patches_of_speech(
    tiny_checkpoint: str, tmp_path: Path
) -> None:
    eager = talker(tiny_checkpoint, StepBank.eager())
    bank = StepBank(maker=LibraryMaker(Libraries(tmp_path)), waits=True)
    compiled = talker(tiny_checkpoint, bank)
    for batch in (1, 2, 8, 33):
        for made, wanted in zip(patches(compiled, batch), patches(eager, batch), strict=True):
            assert_close(made, wanted)
    stats = bank.stats()
    assert stats["steps_compiled_here"] == stats["steps_swapped"] == 2
    assert stats["step_calls_compiled"] == 4 * (10 + 1)

    other = str(tmp_path / "other")
    tiny.build(other, seed=1)
    loader = PartsLoader(
        parts=compiled.parts,
        prefixes=WEIGHTS,
        device="cpu",
        dtype="float32",
        after=lambda: None,
        folder="talker",
    )
    loader.check(other)
    loader.load(other)
    wanted = patches(talker(other, StepBank.eager()), 3)
    for made, given in zip(patches(compiled, 3), wanted, strict=True):
        assert_close(made, given)
    assert not torch.allclose(wanted[0], patches(eager, 3)[0])
