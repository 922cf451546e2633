"""Attention over pages in place, with torch's kernel played by a reference that runs anywhere."""

from __future__ import annotations

import pytest
import torch

from omni_core.engine.base import EngineRequest, KVSpec, Segment, Sequence
from omni_core.engine.torch_engine import varlen
from omni_core.engine.torch_engine.attention import PagedAttention, attention
from omni_core.engine.torch_engine.kv import KVCache
from omni_core.engine.torch_engine.memory import KVMemory
from omni_core.engine.torch_engine.varlen import VarlenAttention, page_size_for
from omni_core.types import RequestParams, SamplingParams

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM, LAYERS, PAGE = 4, 2, 8, 2, 8
LENGTHS = (9, 40, 17)


def reference_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    num_splits: int,
) -> torch.Tensor:
    """What `varlen_attn` computes with a block table, by its documentation, one row at a time."""
    sequences = len(seqused_k)
    for index in (cu_seq_q, cu_seq_k, seqused_k, block_table):
        assert index.dtype == torch.int32
        assert index.is_contiguous()
    assert len(cu_seq_q) == len(cu_seq_k) == sequences + 1
    assert key.shape[1] == PAGE
    assert (window_size, enable_gqa, num_splits) == ((-1, 0), True, 1)
    assert max_k >= int(seqused_k.max())
    out = torch.full_like(query, torch.nan)
    for i, used in enumerate(seqused_k.tolist()):
        first, end = cu_seq_q[i : i + 2].tolist()
        assert end - first <= max_q
        keys, values = (
            pool[block_table[i].long()].flatten(0, 1)[:used].repeat_interleave(2, dim=1)
            for pool in (key, value)
        )
        for row in range(first, end):
            seen = used - (end - 1 - row)
            scores = torch.einsum("hd,khd->hk", query[row], keys[:seen]) * HEAD_DIM**-0.5
            out[row] = torch.einsum("hk,khd->hd", scores.softmax(-1), values[:seen])
    return out


def filled_cache() -> tuple[KVCache, list[int]]:
    """Sequences of `LENGTHS` with random KV, their pages out of order; and their rows."""
    spec = KVSpec(layers=LAYERS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, max_len=64)
    cache = KVCache(
        spec, budget_bytes=1 << 20, rows=4, device=CPU, dtype=torch.float32, page_size=PAGE
    )
    memory = KVMemory(cache, rows=4)
    held = [memory.open() for _ in LENGTHS]
    for length in range(1, max(LENGTHS) + 1):
        for pages, last in zip(held, LENGTHS, strict=True):
            assert memory.extend(pages, min(length, last))
    memory.map()
    for pool in (*cache.keys, *cache.values):
        pool.copy_(torch.randn(pool.shape))
    return cache, [pages.row for pages in held]


def segment(start: int, count: int) -> Segment:
    request = EngineRequest(
        request_id="r",
        prompt_len=1,
        inputs=None,
        params=RequestParams(),
        sampling=SamplingParams(),
    )
    return Segment(seq=Sequence(request=request), start=start, count=count, samples=True)


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param(((8, 1), (39, 1), (16, 1)), id="decodes"),
        pytest.param(((8, 1), (39, 1), (0, 17)), id="decodes and a prompt"),
        pytest.param(((8, 1), (17, 23), (12, 5)), id="later chunks"),
        pytest.param(((0, 9), (0, 40), (0, 17)), id="prompts"),
        pytest.param(((0, 9), (0, 9), (0, 9)), id="prompts of one length"),
        pytest.param(((8, 1), (0, 12), (0, 12)), id="a decode and prompts of one length"),
        pytest.param(((0, 9), (31, 9), (0, 9)), id="a later chunk between prompts as long"),
    ],
)
@torch.inference_mode()
def test_pages_in_place_equal_copied_contexts(
    spans: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", reference_kernel)
    torch.manual_seed(0)
    cache, rows = filled_cache()
    segments = [segment(start, count) for start, count in spans]
    total = sum(count for _, count in spans)
    in_place = VarlenAttention(cache, segments, rows)
    copied = PagedAttention(cache, segments, rows)
    for layer in range(LAYERS):
        q = torch.randn(total, HEADS, HEAD_DIM)
        k, v = (torch.randn(total, KV_HEADS, HEAD_DIM) for _ in range(2))
        expected = copied(layer, q, k, v)
        written = (cache.keys[layer].clone(), cache.values[layer].clone())
        got = in_place(layer, q, k, v)
        torch.testing.assert_close(got, expected)
        assert torch.equal(cache.keys[layer], written[0])
        assert torch.equal(cache.values[layer], written[1])


@torch.inference_mode()
def test_only_decode_rows_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", reference_kernel)
    cache, rows = filled_cache()
    q, kv = torch.randn(3, HEADS, HEAD_DIM), torch.randn(3, KV_HEADS, HEAD_DIM)
    decodes = [segment(length - 1, 1) for length in LENGTHS]
    mixed = [*decodes[:2], segment(0, LENGTHS[2])]
    for kind in (VarlenAttention, PagedAttention):
        assert kind(cache, mixed, rows).parts is None
        whole = kind(cache, decodes, rows)
        assert whole.parts is not None
        assert len(whole.parts.dynamic) == len(whole.parts.tensors)
        assert all(a is b for a, b in zip(whole.parts.pools[:LAYERS], cache.keys, strict=True))
        assert torch.equal(whole.parts.attend()(1, q, kv, kv), whole(1, q, kv, kv))


def test_a_cpu_copies_contexts_out_of_small_pages() -> None:
    cache, rows = filled_cache()
    assert isinstance(attention(cache, [segment(8, 1)], rows[:1]), PagedAttention)
    assert page_size_for(CPU, torch.bfloat16, 16) == 16
    assert page_size_for(torch.device("cuda"), torch.bfloat16, 16) == varlen.PAGE_SIZE
    assert page_size_for(torch.device("cuda"), torch.float32, 16) == 16
