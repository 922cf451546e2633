"""Drawing tokens and changing logits, against the formulas written out per row."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from omni_core.engine.common.rules import LogitsRules, RowRules, check_sampling
from omni_core.engine.common.sampling import BatchSampler, RowSampling, make_generator
from omni_core.errors import RequestError
from omni_core.types import SamplingParams

CPU = torch.device("cpu")
VOCAB = 40


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def sampling(**values: float) -> RowSampling:
    return RowSampling.of(SamplingParams(**{"seed": 1, **values}))  # type: ignore[arg-type]


def allowed(logits: list[float], row: RowSampling) -> dict[int, float]:
    """Token -> probability by transformers' chain of warpers, in plain floats."""

    def softmax(scores: dict[int, float]) -> dict[int, float]:
        top = max(scores.values())
        total = sum(math.exp(s - top) for s in scores.values())
        return {i: math.exp(s - top) / total for i, s in scores.items()}

    kept = {i: value / row.temperature for i, value in enumerate(logits)}
    if row.top_k > 0:
        last = sorted(kept.values(), reverse=True)[min(row.top_k, len(kept)) - 1]
        kept = {i: s for i, s in kept.items() if s >= last}
    if row.top_p < 1:
        probs, below = softmax(kept), 0.0
        for i in sorted(kept, key=kept.__getitem__)[:-1]:
            below += probs[i]
            if below <= 1 - row.top_p:
                del kept[i]
    if row.min_p > 0:
        probs = softmax(kept)
        kept = {i: s for i, s in kept.items() if probs[i] >= row.min_p * max(probs.values())}
    return softmax(kept)


ROWS = [
    sampling(temperature=1.0),
    sampling(temperature=0.7, top_k=5),
    sampling(temperature=1.3, top_p=0.8),
    sampling(temperature=1.0, min_p=0.1),
    sampling(temperature=0.9, top_k=50, top_p=0.5),
    sampling(temperature=2.0, top_k=12, top_p=0.9, min_p=0.05),
    sampling(temperature=1.0, top_k=1),
    sampling(temperature=1.0, top_p=0.0),
    sampling(temperature=1.0, top_k=-1, top_p=1.0, min_p=0.0),
]


def test_filters_in_a_mixed_batch_keep_what_each_row_alone_would() -> None:
    logits = random_logits(len(ROWS))
    probs = BatchSampler(ROWS, CPU).filter(logits).softmax(-1)
    for row, settings in enumerate(ROWS):
        wanted = allowed(logits[row].tolist(), settings)
        got = {i: p for i, p in enumerate(probs[row].tolist()) if p > 0}
        assert got == pytest.approx(wanted, rel=1e-4), settings
    assert len(allowed(logits[1].tolist(), ROWS[1])) == 5


def test_top_k_keeps_ties_as_transformers_does() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    kept = BatchSampler([sampling(temperature=1.0, top_k=2)], CPU).filter(logits).isfinite()
    assert kept.tolist() == [[False, True, True, True, False]]


def test_tokens_come_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.5, 0.5]])
    row = sampling(temperature=0.8, top_k=4)
    draws = 4000
    sampler = BatchSampler([row], CPU)
    counts = Counter(int(sampler(logits)) for _ in range(draws))
    wanted = allowed(logits[0].tolist(), row)
    assert set(counts) == set(wanted)
    chi_square = sum((counts[i] - draws * p) ** 2 / (draws * p) for i, p in wanted.items())
    assert chi_square < 16.3  # 0.999 quantile, 3 degrees of freedom


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = random_logits(3)
    tokens = BatchSampler([sampling(), sampling(temperature=1.0), sampling()], CPU)(logits)
    alone = BatchSampler([sampling(temperature=1.0)], CPU)(logits[1:2])
    assert tokens.tolist() == [int(logits[0].argmax()), int(alone), int(logits[2].argmax())]


@pytest.mark.parametrize("position", [0, 2, 4])
def test_a_seed_gives_the_same_tokens_in_any_batch(position: int) -> None:
    def draw(rows: list[RowSampling], at: int) -> list[int]:
        sampler, drawn = BatchSampler(rows, CPU), []
        for step in range(20):
            logits = random_logits(len(rows), seed=1000 + step)
            logits[at] = random_logits(1, seed=step)[0]
            drawn.append(int(sampler(logits)[at]))
        return drawn

    def mine() -> RowSampling:
        return sampling(seed=77, temperature=1.5)

    mates = [sampling(seed=i, temperature=1.0, top_p=0.9, top_k=7) for i in range(4)]
    mixed = [*mates[:position], mine(), *mates[position:]]
    assert draw([mine()], 0) == draw(mixed, position)
    assert draw([mine()], 0) != draw([sampling(seed=78, temperature=1.5)], 0)


def test_unseeded_generators_differ_and_any_integer_is_a_seed() -> None:
    def first(seed: int | None) -> float:
        return float(torch.rand((), generator=make_generator(seed), dtype=torch.float64))

    assert first(None) != first(None)
    assert first(-5) == first(-5)
    assert first(2**70 + 3) == first(2**70 + 3)


def test_a_sampled_row_without_generator_is_refused() -> None:
    with pytest.raises(ValueError, match="make_generator"):
        BatchSampler([RowSampling(temperature=1.0)], CPU)


def apply_rules(
    logits: torch.Tensor,
    params: list[SamplingParams],
    prompts: list[list[int]],
    history: torch.Tensor,
) -> torch.Tensor:
    """Run the rules over `history` (steps, rows) of sampled tokens; returns the last logits."""
    rules = LogitsRules(rows=8, vocab_size=VOCAB, suppress=None, device=CPU)
    rows = [RowRules.of(7 - i, p, frozenset({0}), CPU) for i, p in enumerate(params)]
    for row, prompt in zip(rows, prompts, strict=True):
        rules.open(row, prompt)
    batch = rules.batch(rows)
    for tokens in history:
        batch.count(tokens)
    return batch.apply(logits.clone(), [len(history)] * len(rows))


def test_penalties_follow_their_formulas_once() -> None:
    params = [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(),
        SamplingParams(presence_penalty=0.7, frequency_penalty=0.2),
        SamplingParams(repetition_penalty=0.8, presence_penalty=-0.5, frequency_penalty=0.1),
    ]
    prompts = [[3, 4, 4, 5], [1], [6, 7], []]
    history = torch.tensor([[4, 2, 7, 9], [8, 2, 7, 9], [8, 2, 1, 9]])
    logits = random_logits(4)
    got = apply_rules(logits, params, prompts, history)
    for row, (p, prompt) in enumerate(zip(params, prompts, strict=True)):
        generated = Counter(history[:, row].tolist())
        for token in range(VOCAB):
            value = float(logits[row, token])
            if p.repetition_penalty and (token in prompt or token in generated):
                factor = p.repetition_penalty if value < 0 else 1 / p.repetition_penalty
                value *= factor
            value -= generated[token] * (p.frequency_penalty or 0)
            value -= (generated[token] > 0) * (p.presence_penalty or 0)
            assert float(got[row, token]) == pytest.approx(value, abs=1e-5), (row, token)


def test_a_row_forgets_the_sequence_that_had_it_before() -> None:
    rules = LogitsRules(rows=1, vocab_size=VOCAB, suppress=None, device=CPU)
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0)
    row = RowRules.of(0, params, frozenset(), CPU)
    rules.open(row, [1, 2])
    rules.batch([row]).count(torch.tensor([3]))
    rules.open(row, [])
    logits = random_logits(1)
    assert torch.equal(rules.batch([row]).apply(logits.clone(), [0]), logits)


def test_bias_masks_and_end_tokens() -> None:
    suppress = torch.zeros(VOCAB, dtype=torch.bool)
    suppress[11] = True
    rules = LogitsRules(rows=2, vocab_size=VOCAB, suppress=suppress, device=CPU)
    params = SamplingParams(logit_bias={5: 100.0, 6: -100.0, 11: 100.0}, min_tokens=2)
    rows = [RowRules.of(0, params, frozenset({1, 2}), CPU)] * 2
    logits = random_logits(2)
    got = rules.batch(rows).apply(logits.clone(), [1, 2])
    assert got[0, 5] == logits[0, 5] + 100
    assert got[0, 6] == logits[0, 6] - 100
    assert got[:, 11].tolist() == [-math.inf] * 2
    assert got[0, [1, 2]].tolist() == [-math.inf] * 2
    assert torch.equal(got[1, [1, 2]], logits[1, [1, 2]])


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(logit_bias={VOCAB: 1.0}), "logit_bias"),
        (SamplingParams(logit_bias={-1: 1.0}), "logit_bias"),
        (SamplingParams(stop_token_ids=(3, VOCAB)), "stop_token_ids"),
        (SamplingParams(repetition_penalty=0.0), "repetition_penalty"),
    ],
)
def test_parameters_that_would_break_a_whole_batch_are_refused(
    params: SamplingParams, field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        check_sampling(params, VOCAB)
    assert caught.value.param == field
