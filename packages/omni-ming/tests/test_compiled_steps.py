"""Ming's hot steps really compiled: the same replies. Compiling takes most of a minute, so
`nox -s parity_variants` runs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from thinker_cases import CASES, context, expected_tokens, generate, request

from omni_core.engine.torch_engine import TorchEngine
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_core.steps import StepBank
from omni_core.steps.aoti import Libraries
from omni_core.steps.maker import LibraryMaker
from omni_ming import thinker


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
