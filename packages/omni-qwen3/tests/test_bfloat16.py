"""How far bfloat16 is from float32: the tolerances that docs/support.md states.

A reply is forced token by token, so that errors are of single steps and do not grow with a reply
that took another turn. The yardstick is transformers, which rounds in the same places or nearby.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

from omni_core.engine.base import Batch, EngineRequest, Sequence
from omni_core.engine.torch_engine import TorchEngine
from omni_core.specs import StageConfig, StageContext
from omni_core.types import RequestParams, SamplingParams
from omni_qwen3 import thinker
from omni_qwen3.code2wav.model import load_model
from omni_qwen3.thinker_prompts import ThinkerInputs

WORDS = (
    "What do you see and hear?",
    "Please describe the voice of the fox.",
    "one two three four five one two three four five",
    "How are you? What is that sound, and who is it that speaks?",
)
FORCED = 24
"""Tokens of each reply, which are those that float32 chooses."""
MEDIAN_ERROR = 0.04
"""Of a step's logits: root mean square difference over their standard deviation."""
OVER_TRANSFORMERS = 2.0
AGREEMENT = 0.9
"""Of steps, those where bfloat16 and float32 like the same token best."""
WAVE_ERROR = 0.2
"""Root mean square difference of samples over the root mean square sample. Random weights amplify:
transformers has 0.12 with these."""


def chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Forced:
    """A runner whose every reply is given; keeps the logits it would have chosen by."""

    runner: Any
    replies: dict[str, list[int]]
    logits_of: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    sampling: list[Sequence] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def forward(self, batch: Batch) -> torch.Tensor:
        self.sampling = [segment.seq for segment in batch.segments if segment.samples]
        hidden: torch.Tensor = self.runner.forward(batch)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.runner.logits(hidden)
        forced = torch.full_like(logits, -torch.inf)
        for row, seq in enumerate(self.sampling):
            steps = self.logits_of.setdefault(seq.request_id, [])
            reply = self.replies.get(seq.request_id)
            token = int(logits[row].argmax()) if reply is None else reply[len(steps)]
            forced[row, token] = 0.0
            steps.append(logits[row].clone())
        return forced


@dataclass
class Prompts:
    """The prompts as token ids, and what each runner makes of them."""

    ids: dict[str, np.ndarray[Any, Any]]
    runners: dict[str, thinker.ThinkerRunner]

    def logits(
        self, dtype: str, replies: dict[str, list[int]], *, together: bool = False
    ) -> dict[str, torch.Tensor]:
        """{name: (FORCED, vocab)} along the replies, or along the runner's own where none is."""
        forced = Forced(self.runners[dtype], replies)
        engine = TorchEngine(forced)
        for name, ids in self.ids.items():
            engine.add(request(name, ids))
            while not together and engine.runnable():
                engine.step()
        while engine.runnable():
            engine.step()
        return {name: torch.stack(steps) for name, steps in forced.logits_of.items()}


def request(name: str, ids: np.ndarray[Any, Any]) -> EngineRequest:
    line = np.arange(len(ids), dtype=np.float32)
    prepared: Any = {"input_ids": ids, "positions": np.stack([line] * 3), "rope_delta": 0.0}
    return EngineRequest(
        request_id=name,
        prompt_len=len(ids),
        inputs=ThinkerInputs(prepared, conditions=False),
        params=RequestParams(),
        sampling=SamplingParams(temperature=0.0, max_tokens=FORCED, ignore_eos=True),
    )


@pytest.fixture(scope="module")
def prompts(tiny_checkpoint: str) -> Prompts:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    ids = {w: np.array(tokenizer(chat(w), add_special_tokens=False)["input_ids"]) for w in WORDS}
    runners = {}
    for dtype in ("float32", "bfloat16"):
        context = StageContext(
            stage=StageConfig(name="thinker", factory=thinker.build),
            model_path=tiny_checkpoint,
            device="cpu",
            dtype=dtype,
            ar_engine="torch",
            report=lambda message: None,
        )
        runners[dtype] = thinker.load_runner(context)
    return Prompts(ids, runners)


@pytest.fixture(scope="module")
def exact(prompts: Prompts) -> dict[str, torch.Tensor]:
    """Logits in float32 along its own greedy replies."""
    return prompts.logits("float32", {})


@pytest.fixture(scope="module")
def replies(exact: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: steps.argmax(-1).tolist() for name, steps in exact.items()}


def errors(logits: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> torch.Tensor:
    """Relative error of each step, all prompts' in one row."""
    return torch.cat(
        [
            (logits[name] - exact[name]).square().mean(-1).sqrt() / exact[name].std(-1)
            for name in exact
        ]
    )


def agreement(logits: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    same = [logits[name].argmax(-1) == exact[name].argmax(-1) for name in exact]
    return torch.cat(same).float().mean().item()


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: str) -> Any:
    """transformers' model in bfloat16."""
    load = Qwen3OmniMoeForConditionalGeneration.from_pretrained
    return load(tiny_checkpoint, dtype=torch.bfloat16).eval()


def of_transformers(
    reference: Any, prompts: Prompts, replies: dict[str, list[int]]
) -> dict[str, torch.Tensor]:
    """The same steps by transformers, without a cache."""
    logits = {}
    for name, ids in prompts.ids.items():
        rows = torch.tensor([[*ids.tolist(), *replies[name][:-1]]])
        with torch.inference_mode():
            logits[name] = reference.thinker(input_ids=rows).logits[0, len(ids) - 1 :].float()
    return logits


def test_logits_are_as_near_to_float32_as_those_of_transformers(
    prompts: Prompts,
    exact: dict[str, torch.Tensor],
    replies: dict[str, list[int]],
    reference: Any,
) -> None:
    mine = prompts.logits("bfloat16", replies)
    theirs = of_transformers(reference, prompts, replies)
    median = errors(mine, exact).median().item()
    assert 0 < median < MEDIAN_ERROR
    assert median < OVER_TRANSFORMERS * errors(theirs, exact).median().item()
    assert AGREEMENT <= agreement(mine, exact) <= 1


def test_company_moves_logits_no_more_than_rounding_does(
    prompts: Prompts, exact: dict[str, torch.Tensor], replies: dict[str, list[int]]
) -> None:
    """So in bfloat16 ids may differ between batch mixes, where two tokens are as good as equal; in
    float32 they do not."""
    alone = prompts.logits("bfloat16", replies)
    company = prompts.logits("bfloat16", replies, together=True)
    assert errors(company, alone).median() < MEDIAN_ERROR
    assert agreement(company, alone) >= AGREEMENT
    assert agreement(prompts.logits("float32", replies, together=True), exact) == 1


def test_the_same_batches_give_the_same_logits(
    prompts: Prompts, replies: dict[str, list[int]]
) -> None:
    first, second = (prompts.logits("bfloat16", replies, together=True) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_waveform_is_as_near_to_float32_as_that_of_transformers(
    tiny_checkpoint: str, reference: Any
) -> None:
    codes = torch.from_numpy(np.random.default_rng(0).integers(64, size=(16, 30)))
    exact, mine = (
        load_model(tiny_checkpoint, device="cpu", dtype=dtype, report=lambda message: None)
        .decode(codes)
        .float()
        for dtype in ("float32", "bfloat16")
    )
    with torch.inference_mode():
        theirs = reference.code2wav(codes[None]).float().flatten()
    error, allowed = (
        ((wave - exact).square().mean() / exact.square().mean()).sqrt().item()
        for wave in (mine, theirs)
    )
    assert 0 < error < min(WAVE_ERROR, OVER_TRANSFORMERS * allowed)
