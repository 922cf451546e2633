"""Attention that reads KV pages where they lie, through torch's variable-length kernel.

Knows the limits of that kernel: a CUDA card, 16-bit floats, pages of a multiple of 256 tokens.
Knows nothing of how a batch came about.

KV is never split over thread blocks (`num_splits=1`), so that a row's result does not depend on the
rows beside it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from omni_core.engine.base import Attend, AttentionParts, Segment
from omni_core.engine.common.transfer import upload
from omni_core.engine.torch_engine.kv import DecodeTables, KVCache

PAGE_SIZE = 256
"""FlashAttention 2 wants pages of a multiple of this."""
KERNEL_DTYPES = (torch.float16, torch.bfloat16)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class SequenceAttention:
    """`Attend` of S sequences, each with its newest rows, one after the other."""

    newest: torch.Tensor
    """Int64 (N,): the slot of each row itself."""
    row_ends: torch.Tensor
    """Int32 (S + 1,): 0, then the end of each sequence's rows."""
    lengths: torch.Tensor
    """Int32 (S,): tokens of each sequence, these rows included."""
    length_ends: torch.Tensor
    """Int32 (S + 1,): 0, then the running sum of `lengths`; FlashAttention 2 only looks at its
    shape."""
    pages: torch.Tensor
    """Int32 (S, pages_per_row)."""
    most_rows: int
    """Rows of any one sequence, at most."""
    page_size: int
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """See `AttentionBatch`. The kernel puts a sequence's last row at its last token."""
        # Here, as it loads torch's compiler: seconds and 100 MB of a process without a card.
        from torch.nn.attention.varlen import varlen_attn

        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(0, self.newest, k)
        values.index_copy_(0, self.newest, v)
        paged = (-1, self.page_size, *keys.shape[1:])
        out = varlen_attn(
            q.contiguous(),
            keys.view(paged),
            values.view(paged),
            self.row_ends,
            self.length_ends,
            self.most_rows,
            self.pages.shape[1] * self.page_size,
            window_size=(-1, 0),
            enable_gqa=q.shape[1] != k.shape[1],
            seqused_k=self.lengths,
            block_table=self.pages,
            num_splits=1,
        )
        return cast(torch.Tensor, out)


@dataclass(frozen=True, slots=True)
class VarlenPaging:
    """Makes `SequenceAttention` of decode rows from tensors alone: `AttentionParts.build`."""

    page_size: int

    def __call__(self, *tensors: torch.Tensor) -> SequenceAttention:
        """`starts` (D,): positions of the rows; `pages` (D, pages_per_row): their page tables; then
        keys and values of all layers."""
        starts, pages, *pools = tensors
        page = pages.gather(1, (starts // self.page_size)[:, None])[:, 0]
        lengths = starts + 1
        return SequenceAttention(
            newest=page * self.page_size + starts % self.page_size,
            row_ends=torch.arange(starts.shape[0] + 1, device=starts.device, dtype=torch.int32),
            lengths=lengths.int(),
            length_ends=_ends(lengths),
            pages=pages.int(),
            most_rows=1,
            page_size=self.page_size,
            keys=tuple(pools[: len(pools) // 2]),
            values=tuple(pools[len(pools) // 2 :]),
        )


class VarlenAttention:
    """`StepAttention` for segments of any length."""

    def __init__(self, cache: KVCache, segments: Sequence[Segment], rows: Sequence[int]) -> None:
        starts, counts = [s.start for s in segments], [s.count for s in segments]
        self._cache = cache
        self.parts: AttentionParts | None = None
        self._attend: Attend | None = None
        if max(counts) > 1:
            self._attend = _ragged(cache, starts, counts, rows)
        else:
            self._tables = cache.decode_tables(list(rows), starts)
            self.parts = varlen_parts(cache, self._tables)

    def advance(self) -> None:
        """See `StepAttention`."""
        self._tables.advance()
        self._attend, self.parts = None, varlen_parts(self._cache, self._tables)

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """See `AttentionBatch`."""
        if self._attend is None and self.parts is not None:
            self._attend = self.parts.attend()  # only here: a captured step does without
        assert self._attend is not None
        return self._attend(layer, q, k, v)


def varlen_parts(cache: KVCache, tables: DecodeTables) -> AttentionParts:
    """Of decode rows."""
    return AttentionParts(
        build=VarlenPaging(cache.page_size),
        tensors=(tables.positions, tables.pages),
        dynamic=({0: "batch"}, {0: "batch"}),
        pools=cache.pools,
    )


def _ragged(
    cache: KVCache, starts: list[int], counts: list[int], rows: Sequence[int]
) -> SequenceAttention:
    """Attention of so many rows from `starts` of each sequence."""
    device = cache.device
    first, counted, where = upload([starts, counts, list(rows)], device)
    owner = torch.arange(len(counts), device=device).repeat_interleave(
        counted, output_size=sum(counts)
    )
    row_ends = _ends(counted)
    place = torch.arange(sum(counts), device=device) - row_ends[owner]
    return SequenceAttention(
        newest=cache.slots(where[owner], first[owner] + place),
        row_ends=row_ends,
        lengths=(first + counted).int(),
        length_ends=_ends(first + counted),
        pages=cache.tables.index_select(0, where).int(),
        most_rows=max(counts),
        page_size=cache.page_size,
        keys=tuple(cache.keys),
        values=tuple(cache.values),
    )


def page_size_for(device: torch.device, dtype: torch.dtype, default: int) -> int:
    """Tokens of a page: what the kernel wants where it could run, else `default`."""
    return PAGE_SIZE if device.type == "cuda" and dtype in KERNEL_DTYPES else default


def reads_pages(cache: KVCache) -> bool:
    """Whether the kernel takes this cache on this card and torch."""
    if cache.device.type != "cuda" or cache.keys[0].dtype not in KERNEL_DTYPES:
        return False
    _, kv_heads, head_dim = cache.keys[0].shape
    return _kernel_runs(cache.device, cache.keys[0].dtype, cache.page_size, kv_heads, head_dim)


@functools.cache
def _kernel_runs(
    device: torch.device, dtype: torch.dtype, page_size: int, kv_heads: int, head_dim: int
) -> bool:
    """Try it on one page: what a card and a build of torch take is written down nowhere else."""
    pool = torch.zeros(page_size, kv_heads, head_dim, device=device, dtype=dtype)
    start = torch.zeros(1, device=device, dtype=torch.long)
    attend = VarlenPaging(page_size)(start, start[:, None], pool, pool.clone())
    try:
        attend(0, pool[:1], pool[:1], pool[:1])
    except RuntimeError as exc:
        _log.warning("attention copies KV contexts, for the paged kernel does not run: %s", exc)
        return False
    return True


def _ends(counts: torch.Tensor) -> torch.Tensor:
    """Int32 (S + 1,): 0, then the running sum of `counts` (S,)."""
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
