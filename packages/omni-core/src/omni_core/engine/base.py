"""The protocol of AR engines and of the model runners they drive.

An engine batches sequences, owns KV memory, samples and stops. A runner owns a model: it turns a
request into input rows, rows into hidden states, and a sampled token into what the stage sends on.
The engine knows nothing of modalities; the runner knows nothing of batching policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from omni_core.errors import OmniError
from omni_core.types import FinishReason, IntArray, RequestParams, SamplingParams

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    """What an engine can do; a pipeline that needs more is refused at load."""

    name: str
    feedback: bool
    """The runner may compute the next input row from the sampled token (Talker)."""
    hidden_states: bool
    """The runner sees intermediate hidden states of every row."""
    tensor_parallel: bool = False
    """One model may be split over several cards."""
    one_per_process: bool = False
    """Two stages on it cannot share a process."""


TORCH = EngineCapabilities(name="torch", feedback=True, hidden_states=True)
"""The embedded engine, described here so that configuration need not import torch."""

SGLANG = EngineCapabilities(
    name="sglang",
    feedback=True,
    hidden_states=True,
    tensor_parallel=True,
    one_per_process=True,
)
"""SGLang's scheduler, KV memory and kernels, driven in the stage's process."""

ENGINES: Mapping[str, EngineCapabilities] = {engine.name: engine for engine in (TORCH, SGLANG)}
"""Every engine, by the name that configuration knows it by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec:
    """Shape of the KV cache a runner needs."""

    layers: int
    kv_heads: int
    head_dim: int
    max_len: int
    """Longest sequence in tokens, prompt and output together."""


class TokenConstraint(Protocol):
    """Which tokens may come next in one reply."""

    def allowed(self, *, may_end: bool) -> npt.NDArray[np.int32]:
        """Bit i % 32 of word i // 32 says whether token i may come. End tokens may only if
        `may_end`, or if nothing else may."""

    def advance(self, token: int) -> None:
        """A token has come that was allowed and does not end the reply."""

    @property
    def error(self) -> OmniError | None:
        """Why nothing can be said of the rest of the reply; None as long as it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A request as an engine sees it."""

    request_id: str
    prompt_len: int
    """Rows of the prompt (known before admission)."""
    inputs: Any
    """The runner's own description of the prompt; opaque to the engine."""
    params: RequestParams
    sampling: SamplingParams
    """Resolved: caller over checkpoint defaults. `max_tokens` is set; temperature 0 is greedy."""
    prompt_token_ids: tuple[int, ...] = ()
    """For repetition penalties over the prompt; empty when the prompt is rows, not tokens."""
    row_keys: IntArray | None = None
    """(prompt_len,): what decides each row's input. Two prompts whose keys are equal up to a row
    have equal KV up to that row. Rows of text have their token id, rows of media a negative key of
    their own. None: the prompt's KV is never shared."""
    open_prompt: bool = False
    """The last row of the prompt is still to come: it is computed once the runner is `ready`, as a
    newest token's is. Only for a runner with `feedback`, and without `row_keys`."""
    strict_max_tokens: bool = False
    """The caller, not a default, chose `max_tokens`: refuse the request if prompt and `max_tokens`
    exceed the context, instead of ending the reply ("length") where the context ends."""
    constraint: TokenConstraint | None = None
    """`sampling.grammar`, compiled; without it, an engine leaves the grammar alone."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities of one sampled token, of the model's own distribution: before
    penalties, bias, temperature and filters."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token, log-probability) of the likeliest, as many as `SamplingParams.logprobs` asks for,
    the likeliest first."""


class StepOutput(msgspec.Struct, kw_only=True, eq=False):
    """What one step made of one sequence."""

    request_id: str
    token: int
    """The sampled token, end tokens included."""
    index: int
    """0 for the first sampled token."""
    data: Any = None
    """What the runner's `collect` returned for this sequence, once it has."""
    held: bool = False
    """The token may belong to a stop string; it is released (or not) by a later output."""
    released: tuple[int, ...] = ()
    """Tokens now certain to be part of the reply, in order; never end tokens or stop strings."""
    logprobs: TokenLogprobs | None = None
    """Of `token`, if the request asks for them."""
    cached_tokens: int = 0
    """Prompt rows whose KV was found in the prefix cache when the request was first admitted."""
    finish_reason: FinishReason | None = None
    error: OmniError | None = None
    """The request has failed with this token. The engine has already forgotten it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Occupancy now and totals since start."""

    waiting: int
    running: int
    kv_pages_used: int
    """Held by running sequences."""
    kv_pages_total: int
    steps: int
    tokens: int
    """Sampled."""
    kv_pages_cached: int = 0
    """Held by the prefix cache alone; given up when a sequence needs them."""
    prompt_tokens: int = 0
    """Prompt rows of admitted requests."""
    prefix_hit_tokens: int = 0
    """Those of them found in the prefix cache."""
    cut_prompts: int = 0
    """Steps that computed a part of a prompt and left the rest for later."""
    retractions: int = 0
    """Running sequences that had to give their KV to older ones and were admitted again."""
    lookahead_steps: int = 0
    """Steps launched before the tokens of the step before were known on the host."""


class RequestFailedError(Exception):
    """`Engine.step`: the runner refused one request on admission (an OmniError of `open`).

    Raised before anything ran in that step. The engine has already forgotten the request, all other
    requests are untouched: report `error` for `request_id` and call `step` again.
    """

    def __init__(self, request_id: str, error: OmniError) -> None:
        super().__init__(f"request {request_id!r}: {error.message}")
        self.request_id = request_id
        self.error = error


class Engine(Protocol):
    """Batched autoregressive decoding. Driven by one thread."""

    capabilities: EngineCapabilities
    max_running: int
    """Sequences that hold memory at once; more wait."""

    def session(self) -> AbstractContextManager[object]:
        """What the thread may hold around all its calls, which are then spared setting up for
        themselves what the model wants."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request. ContextLengthError if it can never fit, RequestError if its sampling
        parameters cannot be used; the engine keeps nothing of a refused request. ValueError if the
        id is still in use."""

    def feed(self, request_id: str, chunk: Any) -> None:
        """Give the runner a streamed chunk for a request; None says no more will come. Chunks of a
        request that waits for admission are kept for it; unknown ids are ignored."""

    def runnable(self) -> bool:
        """Whether `step` can make progress now (False while all sequences wait for chunks)."""

    def wakes_in_s(self) -> float | None:
        """While not `runnable`: seconds until it will be, if nothing else happens; None for never.
        An engine may hold a lone prompt for company."""

    def step(self) -> list[StepOutput]:
        """Admit, run one batched forward, sample, collect. One output per sequence that sampled.

        Raises RequestFailedError if admission failed for one request; other errors of the runner
        pass through and leave the engine unusable."""

    def abort(self, request_id: str) -> None:
        """Free everything of the request; unknown ids are ignored."""

    def forget_prefixes(self) -> None:
        """Drop all that the prefix cache keeps: it was computed with other weights. ValueError
        while there are requests."""

    def stats(self) -> EngineStats:
        """Occupancy and totals."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request inside an engine. Runners keep their own state in `state`."""

    request: EngineRequest
    row: int = -1
    """Its place in the running batch, kept while it runs: where a runner keeps state on the device.
    A sequence that was retracted may come back in another row."""
    computed: int = 0
    """Rows whose KV is in the cache."""
    tokens: list[int] = field(default_factory=list)
    """Sampled so far, as far as the host knows."""
    state: Any = None
    """The runner's; set by `open`."""

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def in_prefill(self) -> bool:
        """Whether rows before the newest token's are to be computed: the prompt, but for a last row
        that is to come, and after a retraction the tokens sampled before it."""
        decoding = self.tokens or self.request.open_prompt
        known = self.request.prompt_len + (len(self.tokens) - 1 if decoding else 0)
        return self.computed < known


class Segment(msgspec.Struct, kw_only=True, eq=False):
    """`count` consecutive rows of one sequence in a flat batch, from its row `start`.

    Row `prompt_len + i` is the input that follows sampled token i. Good for one forward: the engine
    moves the segments of decode rows on and uses them again.
    """

    seq: Sequence
    start: int
    count: int
    samples: bool
    """The last row is sampled from (False for a chunk that leaves rows for later)."""


class Batch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The rows of one forward, flat: one row of each decoding sequence, then chunks of prompts."""

    segments: list[Segment]
    decodes: int
    """So many leading segments are the single row that follows the newest token."""
    rows: torch.Tensor
    """Int64 (decodes,): `Sequence.row` of each of them."""
    tokens: torch.Tensor
    """Int64 (decodes,): their newest tokens; anything where an open prompt has none. With
    look-ahead the host does not know them yet, so a runner reads them here and not in
    `Sequence.tokens`."""
    attend: AttentionBatch


class AttentionBatch(Protocol):
    """Attention of one flat batch over the paged cache; made by the engine for each step."""

    @property
    def parts(self) -> AttentionParts | None:
        """The same in pieces, for a batch of decode rows alone; None for any other."""

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Append k, v (N, kv_heads, head_dim) and attend q (N, heads, head_dim) causally within
        each sequence, scaled by head_dim**-0.5; returns (N, heads, head_dim)."""


class Attend(Protocol):
    """`AttentionBatch` without its pieces."""

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """See `AttentionBatch`."""


class AttentionParts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Attention of decode rows as data, so that a runner can make it part of a compiled step."""

    build: Callable[..., Attend]
    """Makes the attention from `tensors`, then `pools`. A frozen dataclass of plain values, the
    same for every batch of an engine."""
    tensors: tuple[torch.Tensor, ...]
    """What differs from step to step."""
    dynamic: tuple[Mapping[int, str], ...]
    """For each of `tensors` {dimension: name} of those whose size differs from step to step."""
    pools: tuple[torch.Tensor, ...]
    """Keys and values of all layers: always the same tensors, and written in place."""

    def attend(self) -> Attend:
        """The attention itself."""
        return self.build(*self.tensors, *self.pools)


class ARRunner(Protocol):
    """A model under an engine. All methods run on the engine's thread, under inference mode."""

    kv: KVSpec
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    eos_token_ids: frozenset[int]
    suppress: torch.Tensor | None
    """Bool (vocab,): ids never sampled, whatever the request says; None for none."""
    feedback: bool
    """Needs `EngineCapabilities.feedback`."""
    prefix_cache: bool
    """KV may be shared between requests with equal `row_keys`."""
    lookahead: bool
    """The next row follows from the sampled token alone, so every row is always `ready`, and a step
    may be launched before the tokens of the one before have reached the host. `collect` then comes
    after the next `forward`, which must not overwrite `hidden`."""

    def prepare(self, rows: int, decode: Callable[[int], AttentionParts]) -> None:
        """Called once, before anything else: `Sequence.row` will be below `rows`. `decode` gives
        the attention of so many decode rows, to make a step of them ready with."""

    def open(self, seq: Sequence) -> None:
        """Build `seq.state` from `seq.request` when the sequence is first admitted. An OmniError
        fails this request alone; `close` is then not called for it."""

    def resume(self, seq: Sequence) -> None:
        """The sequence was retracted and is admitted again, maybe in another row: all its rows up
        to the newest token's will be asked for again."""

    def keep(self, seq: Sequence, start: int, stop: int) -> Any:
        """What must stay with the KV of rows `start`..`stop` in the prefix cache, for `restore`;
        None for nothing."""

    def restore(self, seq: Sequence, start: int, stop: int, kept: Any) -> None:
        """These rows will not be computed, their KV was in the prefix cache with `kept`."""

    def feed(self, seq: Sequence, chunk: Any) -> None:
        """Take a streamed chunk (None: no more)."""

    def ready(self, seq: Sequence) -> bool:
        """Whether the next row's input exists. Asked before each decode step of the sequence (the
        last row of an open prompt is one), but for a runner with `lookahead`."""

    def forward(self, batch: Batch) -> torch.Tensor:
        """Run a flat batch; returns (M, hidden), the final normed hidden state of the last row of
        each segment with `samples`, in order."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(M, hidden) -> float32 (M, vocab), which the engine may overwrite."""

    def collect(
        self, seqs: list[Sequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        """After sampling (`seq.tokens[-1]` is new): per-sequence data for `StepOutput.data`.

        Feedback runners also compute the next input row here, for sequences not finished."""

    def text(self, token_ids: list[int]) -> str:
        """Detokenize, for stop strings; special tokens are skipped."""

    def close(self, seq: Sequence) -> None:
        """The sequence ended or was aborted; release what `state` holds."""
