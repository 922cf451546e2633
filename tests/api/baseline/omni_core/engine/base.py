from __future__ import annotations
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
import msgspec
import numpy as np
import numpy.typing as npt

@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    name: str
    feedback: bool
    hidden_states: bool
    tensor_parallel: bool = False
    one_per_process: bool = False
TORCH = EngineCapabilities(name='torch', feedback=True, hidden_states=True)
SGLANG = EngineCapabilities(name='sglang', feedback=True, hidden_states=True, tensor_parallel=True, one_per_process=True)
ENGINES: Mapping[str, EngineCapabilities] = {engine.name: engine for engine in (TORCH, SGLANG)}

@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec:
    layers: int
    kv_heads: int
    head_dim: int
    max_len: int

class TokenConstraint(Protocol):

    def allowed(self, *, may_end: bool) -> npt.NDArray[np.int32]:
        ...

    def advance(self, token: int) -> None:
        ...

    @property
    def error(self) -> OmniError | None:
        ...

@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    request_id: str
    prompt_len: int
    inputs: Any
    params: RequestParams
    sampling: SamplingParams
    prompt_token_ids: tuple[int, ...] = ()
    row_keys: IntArray | None = None
    open_prompt: bool = False
    strict_max_tokens: bool = False
    constraint: TokenConstraint | None = None

@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    logprob: float
    top: tuple[tuple[int, float], ...]

class StepOutput(msgspec.Struct, kw_only=True, eq=False):
    request_id: str
    token: int
    index: int
    data: Any = None
    held: bool = False
    released: tuple[int, ...] = ()
    logprobs: TokenLogprobs | None = None
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: OmniError | None = None

@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    waiting: int
    running: int
    kv_pages_used: int
    kv_pages_total: int
    steps: int
    tokens: int
    kv_pages_cached: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    cut_prompts: int = 0
    retractions: int = 0
    lookahead_steps: int = 0

class RequestFailedError(Exception):

    def __init__(self, request_id: str, error: OmniError) -> None:
        ...

class Engine(Protocol):
    capabilities: EngineCapabilities
    max_running: int

    def session(self) -> AbstractContextManager[object]:
        ...

    def add(self, request: EngineRequest) -> None:
        ...

    def feed(self, request_id: str, chunk: Any) -> None:
        ...

    def runnable(self) -> bool:
        ...

    def wakes_in_s(self) -> float | None:
        ...

    def step(self) -> list[StepOutput]:
        ...

    def abort(self, request_id: str) -> None:
        ...

    def forget_prefixes(self) -> None:
        ...

    def stats(self) -> EngineStats:
        ...

@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    request: EngineRequest
    row: int = -1
    computed: int = 0
    tokens: list[int] = field(default_factory=list)
    state: Any = None

    @property
    def request_id(self) -> str:
        ...

    @property
    def in_prefill(self) -> bool:
        ...

class Segment(msgspec.Struct, kw_only=True, eq=False):
    seq: Sequence
    start: int
    count: int
    samples: bool

class Batch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    segments: list[Segment]
    decodes: int
    rows: torch.Tensor
    tokens: torch.Tensor
    attend: AttentionBatch

class AttentionBatch(Protocol):

    @property
    def parts(self) -> AttentionParts | None:
        ...

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ...

class Attend(Protocol):

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ...

class AttentionParts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    build: Callable[..., Attend]
    tensors: tuple[torch.Tensor, ...]
    dynamic: tuple[Mapping[int, str], ...]
    pools: tuple[torch.Tensor, ...]

    def attend(self) -> Attend:
        ...

class ARRunner(Protocol):
    kv: KVSpec
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    eos_token_ids: frozenset[int]
    suppress: torch.Tensor | None
    feedback: bool
    prefix_cache: bool
    lookahead: bool

    def prepare(self, rows: int, decode: Callable[[int], AttentionParts]) -> None:
        ...

    def open(self, seq: Sequence) -> None:
        ...

    def resume(self, seq: Sequence) -> None:
        ...

    def keep(self, seq: Sequence, start: int, stop: int) -> Any:
        ...

    def restore(self, seq: Sequence, start: int, stop: int, kept: Any) -> None:
        ...

    def feed(self, seq: Sequence, chunk: Any) -> None:
        ...

    def ready(self, seq: Sequence) -> bool:
        ...

    def forward(self, batch: Batch) -> torch.Tensor:
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        ...

    def collect(self, seqs: list[Sequence], hidden: torch.Tensor, finished: list[bool]) -> list[Any]:
        ...

    def text(self, token_ids: list[int]) -> str:
        ...

    def close(self, seq: Sequence) -> None:
        ...
