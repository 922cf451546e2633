"""The flow and the aggregator really compiled: the same patches at every batch size, also of other
weights.

Compiling takes most of a minute, so `nox -s parity_variants` runs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from golden_files import assert_close

from omni_core.checkpoint.renew import PartsLoader
from omni_core.specs import StageConfig, StageContext
from omni_core.steps import StepBank
from omni_core.steps.aoti import Libraries
from omni_core.steps.maker import LibraryMaker
from omni_ming import tiny
from omni_ming.talker.runner import WEIGHTS, TalkerRunner, load_runner


def runner(model_path: str, bank: StepBank) -> TalkerRunner:
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
def test_compiled_steps_make_the_same_patches(tiny_checkpoint: str, tmp_path: Path) -> None:
    eager = runner(tiny_checkpoint, StepBank.eager())
    bank = StepBank(maker=LibraryMaker(Libraries(tmp_path)), waits=True)
    compiled = runner(tiny_checkpoint, bank)
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
    wanted = patches(runner(other, StepBank.eager()), 3)
    for made, given in zip(patches(compiled, 3), wanted, strict=True):
        assert_close(made, given)
    assert not torch.allclose(wanted[0], patches(eager, 3)[0])
