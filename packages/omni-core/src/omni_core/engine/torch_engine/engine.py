"""The embedded AR engine: continuous batching over a paged KV cache.

Knows sequences, batches and KV pages. Knows nothing of models or modalities: an `ARRunner` does.

Pages for a whole reply are reserved on admission, first come first served, so a running sequence
never waits for memory.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch

from omni_core.engine.base import (
    TORCH,
    ARRunner,
    Batch,
    EngineRequest,
    EngineStats,
    RequestFailedError,
    Segment,
    Sequence,
    StepOutput,
)
from omni_core.engine.torch_engine.active import ActiveSequence, end_token_ids, stop_tracker
from omni_core.engine.torch_engine.admission import check_request, output_limit
from omni_core.engine.torch_engine.attention import PagedAttention
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_core.engine.torch_engine.kv import KVCache
from omni_core.engine.torch_engine.rules import LogitsRules, RowRules
from omni_core.engine.torch_engine.sampling import BatchSampler, RowSampling
from omni_core.errors import OmniError


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request before admission, with the chunks that came for it meanwhile."""

    request: EngineRequest
    kv_tokens: int
    chunks: list[Any] = field(default_factory=list)


class TorchEngine:
    """`Engine` in plain torch; runs on any device torch has."""

    capabilities = TORCH

    def __init__(self, runner: ARRunner, config: TorchEngineConfig | None = None) -> None:
        self._runner = runner
        self._config = config or TorchEngineConfig()
        rows = self._config.max_running
        self._cache = KVCache(
            runner.kv,
            budget_bytes=self._config.kv_budget_bytes,
            rows=rows,
            device=runner.device,
            dtype=runner.dtype,
        )
        runner.prepare(rows)
        self._rules = LogitsRules(rows, runner.vocab_size, runner.suppress, runner.device)
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._running: dict[str, ActiveSequence] = {}
        self._steps = 0
        self._tokens = 0

    def add(self, request: EngineRequest) -> None:
        """See `Engine`."""
        request_id = request.request_id
        if request_id in self._waiting or request_id in self._running:
            raise ValueError(f"request {request_id!r} is still in the engine")
        max_len = self._runner.kv.max_len
        check_request(
            request,
            max_len=max_len,
            pages_total=self._cache.pages.total,
            vocab_size=self._runner.vocab_size,
        )
        kv_tokens = request.prompt_len + output_limit(request, max_len)
        self._waiting[request_id] = _Waiting(request, kv_tokens)

    @torch.inference_mode()
    def feed(self, request_id: str, chunk: Any) -> None:
        """See `Engine`."""
        if active := self._running.get(request_id):
            self._runner.feed(active.seq, chunk)
        elif waiting := self._waiting.get(request_id):
            waiting.chunks.append(chunk)

    def runnable(self) -> bool:
        """See `Engine`."""
        return self._admissible() or any(self._can_run(a) for a in self._running.values())

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """See `Engine`."""
        self._admit()
        batch = self._schedule()
        if not batch:
            return []
        self._steps += 1
        hidden = self._forward(batch)
        sampled = [self._running[s.seq.request_id] for s in batch if s.samples]
        if not sampled:
            return []
        self._sample(sampled, hidden)
        outputs = self._collect(sampled, hidden)
        for output in outputs:
            if output.finish_reason is not None:
                self._retire(output.request_id)
        return outputs

    @torch.inference_mode()
    def abort(self, request_id: str) -> None:
        """See `Engine`."""
        if self._waiting.pop(request_id, None) is None and request_id in self._running:
            self._retire(request_id)

    def stats(self) -> EngineStats:
        """See `Engine`."""
        return EngineStats(
            waiting=len(self._waiting),
            running=len(self._running),
            kv_pages_used=self._cache.pages.used,
            kv_pages_total=self._cache.pages.total,
            steps=self._steps,
            tokens=self._tokens,
        )

    def _admissible(self) -> bool:
        first = next(iter(self._waiting.values()), None)
        return first is not None and self._cache.fits(first.kv_tokens)

    def _can_run(self, active: ActiveSequence) -> bool:
        return active.seq.in_prefill or self._runner.ready(active.seq)

    def _admit(self) -> None:
        """Open waiting requests in order, as long as the first of them fits."""
        while self._admissible():
            _, waiting = self._waiting.popitem(last=False)
            seq = Sequence(request=waiting.request)
            try:
                self._runner.open(seq)
            except OmniError as exc:
                raise RequestFailedError(seq.request_id, exc) from exc
            self._running[seq.request_id] = self._activate(seq, waiting.kv_tokens)
            try:
                for chunk in waiting.chunks:
                    self._runner.feed(seq, chunk)
            except OmniError as exc:
                self._retire(seq.request_id)
                raise RequestFailedError(seq.request_id, exc) from exc

    def _activate(self, seq: Sequence, kv_tokens: int) -> ActiveSequence:
        params, runner = seq.request.sampling, self._runner
        kv = self._cache.reserve(kv_tokens)
        seq.row = kv.row
        end_ids = end_token_ids(params, runner.eos_token_ids)
        rules = RowRules.of(kv.row, params, end_ids, runner.device)
        self._rules.open(rules, seq.request.prompt_token_ids)
        return ActiveSequence(
            seq=seq,
            kv=kv,
            rules=rules,
            sampling=RowSampling.of(params),
            end_ids=end_ids,
            max_tokens=output_limit(seq.request, runner.kv.max_len),
            stops=stop_tracker(params, runner.text),
        )

    def _retire(self, request_id: str) -> None:
        active = self._running.pop(request_id)
        self._cache.release(active.kv)
        self._runner.close(active.seq)

    def _schedule(self) -> list[Segment]:
        """One row of every decode sequence that is ready, then prompt rows up to the budget."""
        budget = self._config.max_batch_tokens
        prefill = [a for a in self._running.values() if a.seq.in_prefill]
        decode = [a for a in self._running.values() if not a.seq.in_prefill]
        batch: list[Segment] = []
        for active in [a for a in decode if self._runner.ready(a.seq)] + prefill:
            if budget > 0:
                batch.append(active.next_segment(budget))
                budget -= batch[-1].count
        return batch

    def _forward(self, segments: list[Segment]) -> torch.Tensor:
        rows = [segment.seq.row for segment in segments]
        decoding = [s.seq for s in takewhile(lambda s: bool(s.seq.tokens), segments)]
        batch = Batch(
            segments=segments,
            decodes=len(decoding),
            rows=torch.tensor(rows[: len(decoding)], device=self._cache.device),
            tokens=torch.tensor([s.tokens[-1] for s in decoding], device=self._cache.device),
            attend=PagedAttention(self._cache, segments, rows),
        )
        hidden = self._runner.forward(batch)
        for segment in segments:
            segment.seq.computed += segment.count
        return hidden

    def _sample(self, sampled: list[ActiveSequence], hidden: torch.Tensor) -> None:
        """Append one token to each sequence."""
        rules = [a.rules for a in sampled]
        lengths = [len(a.seq.tokens) for a in sampled]
        logits = self._rules.apply(self._runner.logits(hidden), rules, lengths)
        tokens = BatchSampler([a.sampling for a in sampled], self._runner.device)(logits)
        self._rules.count(rules, tokens)
        for active, token in zip(sampled, tokens.tolist(), strict=True):
            active.seq.tokens.append(token)
        self._tokens += len(sampled)

    def _collect(self, sampled: list[ActiveSequence], hidden: torch.Tensor) -> list[StepOutput]:
        seqs = [a.seq for a in sampled]
        verdicts = [a.judge(a.seq.tokens[-1]) for a in sampled]
        finished = [v.finish_reason is not None for v in verdicts]
        data = self._runner.collect(seqs, hidden, finished)
        return [
            StepOutput(
                request_id=seq.request_id,
                token=seq.tokens[-1],
                index=len(seq.tokens) - 1,
                data=item,
                held=verdict.held,
                released=verdict.released,
                finish_reason=verdict.finish_reason,
            )
            for seq, verdict, item in zip(seqs, verdicts, data, strict=True)
        ]
