"""All contact with SGLang: the release, the names, what is relied on. Nothing else imports it.

Pinned to one release (`availability.SGLANG_RELEASE`). `nox -s sglang_contract` looks every name up
and says which have moved; the parity cases say whether the others still mean the same.

| name | for |
|---|---|
| `Scheduler` | subclassed: its queues, batches, KV pools and radix tree; one of its steps is ours |
| `Scheduler.init_ipc_channels` | overridden: nothing is sent to other processes |
| `Scheduler.update_running_batch` | overridden: rows whose input does not exist yet sit out |
| `Scheduler.get_next_batch_to_run`, `run_batch`, `process_batch_result` | the step |
| `Scheduler.process_pending_chunked_abort` | frees a prompt that is computed in part |
| `ScheduleBatch` | who runs: `filter_batch`, `merge_batch`, `check_decode_mem`, `retract_decode` |
| `Req` | one request: its ids, `prefix_len`, `extend_end`, `inflight_middle_chunks`, `kv` |
| `Req.update_finish_state` | overridden: when a reply ends is the engine's to say |
| `FINISH_ABORT`, `FINISH_LENGTH`, `BaseFinishReason`, `Req.to_finish` | the end of a request |
| `Scheduler.tp_group` | the ranks of a split model, which take the tokens of the first |
| `release_kv_cache` | frees a request between two steps |
| `Sampler`, `register_sampler_backend` | ours draws |
| `SamplingParams` | only how much memory a request is admitted with; the rest is our sampler's |
| `WeightUpdater.update_weights_from_disk` | other weights into the module that runs |
| `Scheduler.flush_cache` | empties the radix tree and the pools after that |
| `ServerArgs`, `PortArgs`, `publish`, `SpawnRanks` | the settings of this process |
| `ModelRegistry` | learns the module of the model package |

No code of upstream is changed at run time.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
import zmq
from sglang.srt.layers.sampler import Sampler, register_sampler_backend
from sglang.srt.managers.schedule_batch import (
    FINISH_ABORT,
    FINISH_LENGTH,
    BaseFinishReason,
    Req,
    ScheduleBatch,
)
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, ServerArgs
from torch import nn

from omni_core.errors import StageError

__all__ = [
    "InProcessScheduler",
    "Part",
    "Req",
    "ScheduleBatch",
    "Settings",
    "TokenCounts",
    "build_scheduler",
]

RESERVE_TOKENS = 16
"""Upstream admits a request while there is memory for its prompt and so many tokens. Who runs short
gives its memory back and is computed again; memory kept for tokens that never come serves none."""
SAMPLER = "pytorch"
"""The one backend upstream takes on every device; in this process the name means `_OurSampler`."""

WHOLE_HOST = 0.99
"""Share of a host's memory that upstream may count on without a card. A stage's own share is one of
a card: here its budget alone says what it takes."""

Draw = Callable[[torch.Tensor], torch.Tensor]
"""Logits (B, vocab) of the last row of each segment -> int64 (B,) tokens."""
Ready = Callable[[str], bool]
"""Whether the next row's input of a request exists, by its id."""
Retracted = Callable[[list[Req]], None]
"""Takes those whose memory a plan took; they are in no queue."""


class Part(msgspec.Struct, frozen=True, eq=False, gc=False):
    """`count` rows of a request from `start` on, computed next."""

    request_id: str
    row: int
    start: int
    count: int
    samples: bool
    """Upstream draws a token after the last of them."""


class TokenCounts(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Tokens of the KV pool."""

    used: int
    """By requests."""
    cached: int
    """Kept for requests to come alone."""


class _OurSampler(Sampler):
    """Hands logits to the engine."""

    draw: Draw | None = None

    def forward(self, logits_output: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """See `Sampler`."""
        if self.draw is None:
            raise RuntimeError("a token is drawn before the engine has begun")
        return self.draw(logits_output.next_token_logits)


class _Request(Req):
    """A request that ends when it is told to, and never by itself."""

    to_finish: BaseFinishReason | None

    def update_finish_state(self, new_accepted_len: int = 1) -> None:
        """See `Req`."""
        if self.to_finish is not None:
            self.finished_reason, self.to_finish = self.to_finish, None


class _Nowhere:
    """The other end of upstream's sockets: takes everything, says nothing."""

    socket = None

    def send_output(self, output: object, recv_obj: object = None) -> None:
        """Outputs are read from the requests."""

    def recv(self, *args: object, **kwargs: object) -> object:
        """There is never a message."""
        raise zmq.Again

    recv_multipart = recv_pyobj = recv


class InProcessScheduler(Scheduler):
    """Upstream's scheduler, stepped by the engine in its own thread."""

    def __init__(self, args: ServerArgs, ports: PortArgs) -> None:
        self._ready: Ready | None = None
        self.running_batch: ScheduleBatch
        self.last_batch: ScheduleBatch | None
        self._in_flight = False
        super().__init__(args, ports)

    def attend_to(self, *, draw: Draw, ready: Ready | None, retracted: Retracted) -> None:
        """The engine's part in a step; to be told before the first. `ready`: None for always."""
        self._ready, self._retracted = ready, retracted
        self.tp_worker.model_runner.sampler.draw = draw

    @property
    def module(self) -> nn.Module:
        """The loaded model."""
        module: nn.Module = self.tp_worker.model_runner.model
        return module

    @property
    def rows(self) -> int:
        """Rows are below this number."""
        return int(self.req_to_token_pool.req_to_token.shape[0])

    @property
    def kv_tokens(self) -> int:
        """Tokens the KV pool holds."""
        tokens: int = self.max_total_num_tokens
        return tokens

    @property
    def slots(self) -> int:
        """Places of KV are below this number: the pool, and a page that nobody has."""
        page: int = self.page_size
        return self.kv_tokens + page

    def agreed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens that the first rank has drawn, whatever those of this one are."""
        drawn: torch.Tensor = self.tp_group.broadcast(tokens)
        return drawn

    def slots_of(self, row: int, start: int, stop: int) -> torch.Tensor:
        """Where the KV of a row's tokens lies."""
        slots: torch.Tensor = self.req_to_token_pool.req_to_token[row, start:stop]
        return slots.long()

    def token_counts(self) -> TokenCounts:
        """Tokens of the KV pool by use."""
        cached = self.tree_cache.evictable_size()
        free = self.token_to_kv_pool_allocator.available_size()
        return TokenCounts(used=self.kv_tokens - free - cached, cached=cached)

    def load_weights(self, directory: str) -> None:
        """Read the module's tensors into the places of the old ones; between requests."""
        updater: WeightUpdater = self.tp_worker.model_runner.weight_updater
        loaded, message = updater.update_weights_from_disk(directory, "auto")
        if not loaded:
            raise StageError(message)

    def forget_prefixes(self) -> None:
        """Empty the radix tree and the pools; between requests."""
        rest = self.plan(in_flight=False)  # takes those that ended out of the last batch
        if rest is not None or not self.flush_cache(empty_cache=False):
            raise StageError("the prefix cache is in use and cannot be emptied")

    def init_ipc_channels(self, port_args: PortArgs) -> None:
        """See `Scheduler`."""
        nowhere = _Nowhere()
        self.recv_from_tokenizer = nowhere
        self.load_snapshot_writer = None
        self.ipc_channels = SimpleNamespace(
            recv_from_tokenizer=nowhere,
            recv_from_rpc=None,
            send_to_tokenizer=nowhere,
            send_to_detokenizer=nowhere,
            send_metrics_from_scheduler=None,
        )

    def update_running_batch(self, batch: ScheduleBatch) -> ScheduleBatch | None:
        """Make room, then take those that are ready out of `batch` for a decode step; the others
        stay in it. While a step is in flight, the tokens of whom it would retract are not known."""
        if not batch.check_decode_mem():
            if self._in_flight:
                return None
            self._retract(batch)
        going = [self._ready is None or self._ready(req.rid) for req in batch.reqs]
        if not any(going):
            return None
        if all(going):
            batch.prepare_for_decode()
            return batch
        step = copy.copy(batch)
        step.sampling_info = copy.copy(batch.sampling_info)
        step.filter_batch(keep_indices=[i for i, goes in enumerate(going) if goes])
        batch.filter_batch(keep_indices=[i for i, goes in enumerate(going) if not goes])
        step.prepare_for_decode()
        return step

    def _retract(self, batch: ScheduleBatch) -> None:
        retracted, _, lost = batch.retract_decode()
        if lost:
            raise RuntimeError(f"request {lost[0].rid!r} was admitted and does not fit")
        batch.batch_is_full = False
        self._retracted(retracted)

    def plan(self, *, in_flight: bool) -> ScheduleBatch | None:
        """The batch of the next step; None if there is none. `in_flight`: a step was launched and
        is not settled."""
        self._in_flight = in_flight
        plan = self.get_next_batch_to_run(
            running_batch=self.running_batch, last_batch=self.last_batch
        )
        self.running_batch = plan.running_batch
        self.last_batch = plan.batch_to_run
        return plan.batch_to_run

    def parts(self, batch: ScheduleBatch) -> list[Part]:
        """What each request of a batch computes, in its order."""
        if batch.forward_mode.is_decode():
            lengths = batch.seq_lens_cpu.tolist()
            return [
                Part(req.rid, req.kv.req_pool_idx, length - 1, 1, samples=True)
                for req, length in zip(batch.reqs, lengths, strict=True)
            ]
        return [
            Part(
                request_id=req.rid,
                row=req.kv.req_pool_idx,
                start=req.prefix_len,
                count=req.extend_len,
                samples=req.inflight_middle_chunks <= 0,
            )
            for req in batch.reqs
        ]

    def request(self, request_id: str, ids: array[int], shares: bool) -> Req:
        """A request with these row keys, of which KV is looked up and kept only if it `shares`."""
        params = SamplingParams(temperature=0.0, max_new_tokens=RESERVE_TOKENS)
        params.normalize(None)
        req = _Request(
            rid=request_id,
            origin_input_text="",
            origin_input_ids=ids,
            sampling_params=params,
            extra_key=None if shares else request_id,
        )
        req.logprob_start_len = -1
        req.skip_radix_cache_insert = not shares
        return req

    def queue(self, req: Req) -> None:
        """The request waits for memory from now on."""
        self.waiting_queue.append(req)

    def end(self, req: Req) -> None:
        """The token that the request has just got is its last."""
        req.to_finish = FINISH_LENGTH(length=len(req.output_ids) + 1)

    def settle(self, batch: ScheduleBatch, result: Any) -> None:
        """The step was computed, and requests that ended know it: free what they hold."""
        self.process_batch_result(batch, result)
        if self.enable_overlap:
            return
        if batch.forward_mode.is_decode() and batch is not self.running_batch:
            if self.running_batch.is_empty():
                self.running_batch = batch
            else:
                self.running_batch.merge_batch(batch)

    def drop(self, req: Req) -> None:
        """Free everything of a request, between two steps."""
        if req in self.waiting_queue:
            self.waiting_queue.remove(req)
        elif req is self.chunked_req:
            self._pending_chunked_abort_req = req
            self.process_pending_chunked_abort()
        elif req.kv.holds_kv:
            req.finished_reason = FINISH_ABORT()
            # A step in flight may have computed a row of a token that nobody knows.
            release_kv_cache(req, self.tree_cache, checkpoint=not self.enable_overlap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What we decide of upstream's settings."""

    model_path: str
    device: str
    ranks: int
    """Processes that the model is split over."""
    dtype: str
    max_running: int
    prefill_chunk: int
    max_batch_tokens: int
    page_size: int
    kv_tokens: int | None
    """None: as many as fit into `memory_fraction`."""
    memory_fraction: float | None
    prefix_cache: bool
    looks_ahead: bool
    """A step may be launched before the one before is settled."""
    context_length: int

    @property
    def card(self) -> int:
        """Number of the CUDA card; 0 on a CPU."""
        return int(self.device.partition(":")[2] or 0)


def server_args(settings: Settings) -> ServerArgs:
    """Upstream's settings; all it would set up for other processes is off."""
    on_cpu = settings.device == "cpu"
    return ServerArgs(
        model_path=settings.model_path,
        skip_tokenizer_init=True,
        device=settings.device.partition(":")[0],
        base_gpu_id=settings.card,
        tp_size=settings.ranks,
        dtype=settings.dtype,
        context_length=settings.context_length,
        max_running_requests=settings.max_running,
        chunked_prefill_size=settings.prefill_chunk,
        max_prefill_tokens=settings.max_batch_tokens,
        max_total_tokens=settings.kv_tokens,
        mem_fraction_static=WHOLE_HOST if on_cpu else settings.memory_fraction,
        page_size=settings.page_size,
        disable_radix_cache=not settings.prefix_cache,
        disable_overlap_schedule=not settings.looks_ahead,
        schedule_conservativeness=0.0,  # nothing is kept for the tokens of those that run
        attention_backend="torch_native" if on_cpu else None,
        disable_cuda_graph=True,
        sampling_backend=SAMPLER,
        grammar_backend="none",
        log_level="error",
    )


def build_scheduler(
    settings: Settings, module: type[nn.Module], rank: int = 0
) -> InProcessScheduler:
    """Load the module, or the part of it that is this rank's, and set up its pools; once per
    process. Returns when all ranks have done so."""
    ModelRegistry.models[module.__name__] = module
    register_sampler_backend(SAMPLER, _OurSampler)
    args = server_args(settings)
    ports = PortArgs.init_new(args)
    ranks = SpawnRanks(world_rank=rank, dp_rank=None, gpu_id=settings.card)
    publish(args, role="scheduler", ranks=ranks)
    return InProcessScheduler(args, ports)
