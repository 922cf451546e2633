"""Log-probabilities of sampled tokens, and how little a plain step does besides the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from omni_core.engine.base import EngineRequest, Sequence, TokenLogprobs
from omni_core.engine.common.active import ActiveSequence
from omni_core.engine.common.rules import check_sampling
from omni_core.engine.common.tokens import TokenSampler
from omni_core.engine.common.transfer import HostCopy
from omni_core.errors import RequestError
from omni_core.types import RequestParams, SamplingParams

CPU, VOCAB, ROWS = torch.device("cpu"), 50, 8


def sampler_of(suppress: torch.Tensor | None = None) -> TokenSampler:
    return TokenSampler(ROWS, VOCAB, suppress, CPU, HostCopy)


def seated(
    sampler: TokenSampler, row: int, tokens: tuple[int, ...] = (), **sampling: Any
) -> ActiveSequence:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 9, **sampling})
    request = EngineRequest(
        request_id=f"r{row}",
        prompt_len=3,
        inputs=None,
        params=RequestParams(),
        sampling=params,
        prompt_token_ids=(1, 2, 2),
    )
    active = ActiveSequence.of(
        request, eos_token_ids=frozenset({0}), max_len=99, text=lambda ids: ""
    )
    active.seq = Sequence(request=request, row=row, tokens=list(tokens))
    sampler.seat(active)
    return active


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


class Operations(TorchDispatchMode):
    """Names of the operations torch runs, but for views; "lift_fresh" is a new tensor's values."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view or name == "lift_fresh":
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_a_greedy_step_without_rules_only_looks_for_the_best_token() -> None:
    sampler = sampler_of()
    active = [seated(sampler, row) for row in range(8)]
    sampler.draw(active, random_logits(8))
    logits = random_logits(8, seed=1)
    with Operations() as ran:
        sampler.draw(active, logits)
    assert ran.names == ["argmax", "index_put_"]


def test_what_a_batch_needs_is_made_when_its_members_change() -> None:
    sampler = sampler_of()
    settings = {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.3}
    active = [seated(sampler, row, seed=row, **settings) for row in range(3)]
    logits = [random_logits(3, seed=i) for i in range(3)]
    made = []
    for batch, scores in zip((active, active, active[:2]), logits, strict=True):
        with Operations() as ran:
            sampler.draw(batch, scores[: len(batch)])
        made.append(ran.names.count("lift_fresh"))
    assert made[1] < made[0]
    assert made[1] < made[2]


def test_logprobs_are_the_models_own_whatever_changes_the_draw() -> None:
    suppress = torch.zeros(VOCAB, dtype=torch.bool)
    logits = random_logits(4)
    suppress[logits[0].argmax()] = True
    sampler = sampler_of(suppress)
    rules = {"logit_bias": {7: 90.0}, "repetition_penalty": 2.0}
    active = [
        seated(sampler, 0, logprobs=3),
        seated(sampler, 1),
        seated(sampler, 2, logprobs=0, **rules),
        seated(sampler, 3, logprobs=VOCAB + 5, temperature=1.5, seed=3, top_k=4),
    ]
    tokens, measured = sampler.draw(active, logits.clone()).wait()
    assert tokens[2] == 7
    assert set(measured) == {0, 2, 3}
    for row, top in ((0, 3), (2, 0), (3, VOCAB)):
        own = logits[row].log_softmax(-1)
        assert measured[row].logprob == pytest.approx(float(own[tokens[row]]), abs=1e-5)
        best = own.sort(descending=True)
        assert [token for token, _ in measured[row].top] == best.indices[:top].tolist()
        assert [p for _, p in measured[row].top] == pytest.approx(
            best.values[:top].tolist(), abs=1e-5
        )


def test_logprobs_below_zero_are_refused() -> None:
    with pytest.raises(RequestError, match="logprobs must not be negative"):
        check_sampling(SamplingParams(logprobs=-1), VOCAB)


def test_nobody_asks_for_logprobs_nobody_gets_them() -> None:
    sampler = sampler_of()
    _, measured = sampler.draw([seated(sampler, 0)], random_logits(1)).wait()
    assert measured == dict[int, TokenLogprobs]()


def test_a_sequence_that_comes_back_in_another_row_is_penalised_as_before() -> None:
    rules = {"repetition_penalty": 1.7, "frequency_penalty": 0.4, "presence_penalty": 0.3}
    stays, comes = sampler_of(), sampler_of()
    active = seated(stays, 2, **rules)
    tokens = [stays.draw([active], random_logits(1, seed=i)).wait()[0][0] for i in range(12)]
    tokens += [stays.draw([active], random_logits(1, seed=3)).wait()[0][0]]
    seated(comes, 5, (9, 9, 9), **rules)
    back = seated(comes, 5, tuple(tokens), **rules)
    rows, newest = comes.decode_rows([back])
    assert (rows.tolist(), newest.tolist()) == ([5], tokens[-1:])
    logits = random_logits(1, seed=77)
    raw, again = logits.clone(), logits.clone()
    assert stays.draw([active], raw).wait()[0] == comes.draw([back], again).wait()[0]
    assert torch.equal(raw, again)
    assert not torch.equal(raw, logits)
