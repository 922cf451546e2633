"""The torch engine over a small real transformer, against a full recompute of every token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from omni_core.engine.base import AttentionBatch, Batch, EngineRequest, KVSpec, Segment, Sequence
from omni_core.engine.torch_engine import TorchEngine, TorchEngineConfig
from omni_core.engine.torch_engine.attention import PagedAttention
from omni_core.engine.torch_engine.kv import KVCache
from omni_core.engine.torch_engine.memory import KVMemory
from omni_core.testing.suites import RunnerSuite
from omni_core.types import RequestParams, SamplingParams

CPU = torch.device("cpu")
VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MAX_LEN = 61, 32, 4, 2, 8, 128
SMALL = TorchEngineConfig(max_running=5, max_batch_tokens=16)


class Transformer:
    """Two layers of grouped-query attention and an MLP, learned positions, random weights."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)

        def weight(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) / shape[0] ** 0.5

        self.embedding = 4 * weight(VOCAB, HIDDEN)
        self.position = 4 * weight(MAX_LEN, HIDDEN)
        self.layers = [
            {
                "q": weight(HIDDEN, HEADS * HEAD_DIM),
                "k": weight(HIDDEN, KV_HEADS * HEAD_DIM),
                "v": weight(HIDDEN, KV_HEADS * HEAD_DIM),
                "o": 2 * weight(HEADS * HEAD_DIM, HIDDEN),
                "up": weight(HIDDEN, 2 * HIDDEN),
                "down": weight(2 * HIDDEN, HIDDEN),
            }
            for _ in range(2)
        ]
        self.head = 3 * weight(HIDDEN, VOCAB)

    def hidden(self, ids: list[int], positions: list[int], attend: AttentionBatch) -> torch.Tensor:
        x = self.embedding[ids] + self.position[positions]
        for index, w in enumerate(self.layers):
            y = F.rms_norm(x, (HIDDEN,))
            q, k, v = ((y @ w[name]).unflatten(-1, (-1, HEAD_DIM)) for name in "qkv")
            x = x + attend(index, q, k, v).flatten(1) @ w["o"]
            x = x + F.silu(F.rms_norm(x, (HIDDEN,)) @ w["up"]) @ w["down"]
        return F.rms_norm(x, (HIDDEN,))


def dense(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of one whole sequence, written out; scores are (heads, rows, rows)."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1).float() for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


class TransformerRunner:
    """An `ARRunner` whose prompts are token ids (`EngineRequest.inputs`)."""

    kv = KVSpec(layers=2, kv_heads=KV_HEADS, head_dim=HEAD_DIM, max_len=MAX_LEN)
    device, dtype, vocab_size = CPU, torch.float32, VOCAB
    eos_token_ids: frozenset[int] = frozenset()
    suppress: torch.Tensor | None = None
    feedback = False
    prefix_cache = False
    lookahead = False

    def __init__(self) -> None:
        self.model = Transformer()
        self.batches: list[list[tuple[int, bool]]] = []
        """(count, samples) of the segments of every forward."""

    def prepare(self, rows: int, decode: Any) -> None:
        pass

    def open(self, seq: Sequence) -> None:
        seq.state = list(seq.request.inputs)

    def resume(self, seq: Sequence) -> None:
        pass

    def keep(self, seq: Sequence, start: int, stop: int) -> Any:
        return None

    def restore(self, seq: Sequence, start: int, stop: int, kept: Any) -> None:
        pass

    def feed(self, seq: Sequence, chunk: Any) -> None:
        raise AssertionError("no chunks here")

    def ready(self, seq: Sequence) -> bool:
        return True

    def forward(self, batch: Batch) -> torch.Tensor:
        self.batches.append([(s.count, s.samples) for s in batch.segments])
        ids, positions, last = [], [], []
        for s in batch.segments:
            rows = range(s.start, s.start + s.count)
            ids += (s.seq.state + s.seq.tokens)[s.start : s.start + s.count]
            positions += rows
            last += [len(ids) - 1] * s.samples
        return self.model.hidden(ids, positions, batch.attend)[last]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.model.head

    def collect(
        self, seqs: list[Sequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        return [len(seq.tokens) for seq in seqs]

    def text(self, token_ids: list[int]) -> str:
        return "".join(chr(ord("0") + i) for i in token_ids)

    def close(self, seq: Sequence) -> None:
        seq.state = None


def make(name: str, prompt: list[int], **sampling: Any) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_len=len(prompt),
        inputs=prompt,
        params=RequestParams(),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **sampling}),
        prompt_token_ids=tuple(prompt),
    )


def prompt_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (length,), generator=generator).tolist()


def serve(engine: TorchEngine, arrivals: dict[int, list[EngineRequest]]) -> dict[str, list[int]]:
    """Step until all is done, adding requests before the steps they arrive at."""
    tokens: dict[str, list[int]] = {r.request_id: [] for rs in arrivals.values() for r in rs}
    step = 0
    while engine.runnable() or step <= max(arrivals):
        for request in arrivals.get(step, []):
            engine.add(request)
        for output in engine.step():
            assert output.index == len(tokens[output.request_id]) == output.data - 1
            tokens[output.request_id].append(output.token)
        step += 1
    assert engine.stats().running == engine.stats().waiting == engine.stats().kv_pages_used == 0
    return tokens


def recompute(model: Transformer, request: EngineRequest, penalties: int = 0) -> list[int]:
    """Greedy tokens, each from a forward over the whole sequence, penalised `penalties` times."""
    ids = list(request.inputs)
    factor = request.sampling.repetition_penalty or 1.0
    for _ in range(request.sampling.max_tokens or 0):
        logits = model.hidden(ids, list(range(len(ids))), dense)[-1] @ model.head
        for token in list(set(ids)) * penalties:
            logits[token] *= factor if logits[token] < 0 else 1 / factor
        ids.append(int(logits.argmax()))
    return ids[request.prompt_len :]


@pytest.fixture(scope="module")
def runner() -> TransformerRunner:
    return TransformerRunner()


@pytest.fixture(scope="module")
def mixed() -> list[EngineRequest]:
    return [
        make(f"r{i}", prompt_of(1 + (17 * i) % 53, seed=i), max_tokens=1 + (7 * i) % 23)
        for i in range(14)
    ]


class TestTransformer(RunnerSuite):
    @pytest.fixture
    def runner(self) -> TransformerRunner:
        return TransformerRunner()

    @pytest.fixture
    def requests(self, mixed: list[EngineRequest]) -> list[EngineRequest]:
        return [
            replace(request, sampling=SamplingParams(temperature=0.0, max_tokens=3 + 4 * number))
            for number, request in enumerate(mixed[1:6])
        ]


def test_mixed_requests_arriving_at_any_step_equal_a_full_recompute(
    runner: TransformerRunner, mixed: list[EngineRequest]
) -> None:
    runner.batches.clear()
    arrivals = {0: mixed[:3], 2: mixed[3:4], 5: mixed[4:10], 9: mixed[10:]}
    tokens = serve(TorchEngine(runner, SMALL), arrivals)
    assert tokens == {r.request_id: recompute(runner.model, r) for r in mixed}
    assert len({t for row in tokens.values() for t in row}) > 20
    shapes = [sorted(batch) for batch in runner.batches]
    assert any((1, True) in s and any(c > 1 and not end for c, end in s) for s in shapes)
    assert all(sum(count for count, _ in s) <= SMALL.max_batch_tokens for s in shapes)


@pytest.mark.parametrize("budget", [5, 7, 64])
def test_a_prompt_in_chunks_gives_what_it_gives_whole(
    runner: TransformerRunner, budget: int
) -> None:
    request = make("long", prompt_of(64, seed=9))
    whole = serve(TorchEngine(runner), {0: [request]})
    runner.batches.clear()
    config = TorchEngineConfig(max_running=2, max_batch_tokens=budget)
    assert serve(TorchEngine(runner, config), {0: [request]}) == whole
    chunks = [batch for batch in runner.batches if batch[0][0] > 1 or not batch[0][1]]
    assert len(chunks) in (64 // budget, -(-64 // budget))


def test_a_long_prompt_does_not_stop_the_others(runner: TransformerRunner) -> None:
    config = TorchEngineConfig(max_running=4, max_batch_tokens=8)
    engine = TorchEngine(runner, config)
    engine.add(make("first", prompt_of(4, seed=1), max_tokens=40))
    assert [o.request_id for o in engine.step()] == ["first"]
    engine.add(make("long", prompt_of(60, seed=2)))
    for _ in range(60 // 7):
        assert [o.request_id for o in engine.step()] == ["first"]
    assert {o.request_id for o in engine.step()} == {"first", "long"}


def test_a_runner_that_leaves_a_sequence_out_is_caught() -> None:
    class Forgetful(TransformerRunner):
        def collect(
            self, seqs: list[Sequence], hidden: torch.Tensor, finished: list[bool]
        ) -> list[Any]:
            return super().collect(seqs, hidden, finished)[1:]

    engine = TorchEngine(Forgetful())
    engine.add(make("forgotten", prompt_of(4, seed=1)))
    with pytest.raises(ValueError, match="shorter"):
        engine.step()


def test_seeded_sampling_gives_the_same_tokens_in_any_batch_mix(
    runner: TransformerRunner, mixed: list[EngineRequest]
) -> None:
    settings = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "max_tokens": 24}
    mine = make("mine", prompt_of(21, seed=50), seed=42, **settings)
    alone = serve(TorchEngine(runner), {0: [mine]})["mine"]
    sampled = [
        replace(r, sampling=SamplingParams(temperature=1.2, max_tokens=20, top_p=0.7))
        for r in mixed[::2]
    ]
    arrivals = {0: [*sampled[:2], mixed[1]], 3: [mine], 6: [*sampled[2:], mixed[3]]}
    together = serve(TorchEngine(runner, SMALL), arrivals)
    assert together["mine"] == alone
    assert together["r1"] == recompute(runner.model, mixed[1])
    other = make("mine", prompt_of(21, seed=50), seed=43, **settings)
    assert serve(TorchEngine(runner), {0: [other]})["mine"] != alone
    free = make("mine", prompt_of(21, seed=50), **settings)
    first, second = (serve(TorchEngine(runner), {0: [free]})["mine"] for _ in range(2))
    assert first != second


def test_the_repetition_penalty_is_applied_exactly_once(
    runner: TransformerRunner, mixed: list[EngineRequest]
) -> None:
    requests = [
        make(f"p{i}", prompt_of(10 + i, seed=i), repetition_penalty=1.4, max_tokens=30)
        for i in range(3)
    ]
    tokens = serve(TorchEngine(runner, SMALL), {0: [*requests, *mixed[:3]]})
    once, twice = (
        {r.request_id: recompute(runner.model, r, penalties=n) for r in requests} for n in (1, 2)
    )
    assert {name: tokens[name] for name in once} == once
    assert all(once[name] != twice[name] for name in once)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_paged_attention_equals_dense_attention(dtype: torch.dtype, tolerance: float) -> None:
    spec = KVSpec(layers=1, kv_heads=KV_HEADS, head_dim=HEAD_DIM, max_len=MAX_LEN)
    cache = KVCache(spec, budget_bytes=1 << 20, rows=4, device=CPU, dtype=dtype)
    for stored in (*cache.keys, *cache.values):
        stored.fill_(torch.nan)  # what uninitialised memory may hold
    lengths = [1, 40, 37, 17]
    memory = KVMemory(cache, rows=4)
    held = [memory.open() for _ in lengths]
    assert all(memory.extend(*wanted) for wanted in zip(held, lengths, strict=True))
    memory.map()
    rows = [pages.row for pages in held]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        [torch.randn(n, heads, HEAD_DIM, generator=generator).to(dtype) for n in lengths]
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    wanted = [dense(0, *qkv) for qkv in zip(q, k, v, strict=True)]

    def attend(spans: list[tuple[int, int, int]]) -> None:
        segments = [
            Segment(seq=Sequence(request=make("", [])), start=a, count=b - a, samples=True)
            for _, a, b in spans
        ]
        batch = PagedAttention(cache, segments, [rows[i] for i, _, _ in spans])
        out = batch(0, *(torch.cat([x[i][a:b] for i, a, b in spans]) for x in (q, k, v)))
        expected = torch.cat([wanted[i][a:b] for i, a, b in spans])
        torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)

    attend([(1, 0, 39), (2, 0, 20)])
    attend([(1, 39, 40), (0, 0, 1), (2, 20, 36), (3, 0, 17)])
    attend([(2, 36, 37)])
