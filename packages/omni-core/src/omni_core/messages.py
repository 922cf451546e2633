"""The closed union of messages between the coordinator and stage processes.

Knows field names only. `codec` turns messages into frames; `relay` carries their tensors.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from omni_core.errors import ErrorInfo
from omni_core.specs import WeightsKind
from omni_core.types import Event, FinishReason, Modality, RequestParams, Usage

PROTOCOL_VERSION = 6


class StageDoc(msgspec.Struct, frozen=True, kw_only=True):
    """A `StageConfig` on the wire: callables are written "module:attribute"."""

    name: str
    factory: str
    process: str
    device: str
    other_devices: tuple[str, ...] = ()
    """Of the ranks after the first, where the model is split."""
    dtype: str
    next: tuple[str, ...] = ()
    stream_to: tuple[str, ...] = ()
    wait_for: tuple[str, ...] = ()
    wait_for_fn: str | None = None
    merge_fn: str | None = None
    route_fn: str | None = None
    project_payload: dict[str, str] = {}
    serves: dict[str, tuple[Modality, ...]] = {}
    """{target: modalities of the terminals it leads to}; other requests are not sent there."""
    terminal: str | None = None
    memory_fraction: float | None = None
    max_batch: int = 1
    max_wait_ms: float = 0.0
    max_concurrency: int = 1
    ar_engine: str = "torch"
    """Of an autoregressive stage."""
    weights: WeightsKind = "fixed"
    options: dict[str, Any] = {}


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message of a stage process."""

    version: int
    process: str
    """A guest's is that of the place it wants to fill; it is told its own in `Setup`."""
    pid: int
    address: str = ""
    """Where other hosts reach it; empty without a network."""
    guest: bool = False
    """Whether it was started by hand, on another host."""


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The coordinator's answer: what to build and who else is there."""

    version: int
    model_path: str
    compile: str = "off"
    stages: tuple[StageDoc, ...]
    """Those of this process, to be built in this order."""
    process: str = ""
    """The name a guest has from here on."""
    clock_s: float = 0.0
    """The coordinator's CLOCK_MONOTONIC, for a guest."""
    cards: dict[str, dict[str, str]] = {}
    """{place: {stage: torch device}} of the host's stages whose processes share cards."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start-up news of one stage."""

    process: str
    stage: str
    text: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The stage is built and its loop runs."""

    process: str
    stage: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """A stage holds nothing of the request any more.

    Times are CLOCK_MONOTONIC seconds, which all processes of a host share.
    """

    request_id: str
    stage: str
    opened: tuple[str, ...] = ()
    """Stages this one handed the request to; they owe a `Done` of their own."""
    usage: Usage = Usage()
    finish_reason: FinishReason | None = None
    """Set by terminal stages."""
    cut: Modality | None = None
    """What the stage made no more of because of its length."""
    start_s: float
    first_output_s: float | None
    end_s: float
    before: tuple[Done, ...] = ()
    """The ends that came with `DataReady.ended`; they have none of their own."""


class DataReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request enters `target`."""

    request_id: str
    source: str
    target: str
    params: RequestParams
    payload: Any
    pins: dict[str, str] = {}
    """{stage: process} of the stages the request can visit, for all its life."""
    ended: tuple[Done, ...] = ()
    """Ends of stages before `target`, the sender's last. Whoever ends the request next tells the
    coordinator of them: a message of their own costs more than this one."""


class StreamChunk(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """More of a stream; follows the `DataReady` of the same edge and request."""

    request_id: str
    source: str
    target: str
    data: Any


class StreamDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The stream of this edge and request has ended."""

    request_id: str
    source: str
    target: str


class Emit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An event for the client; `event` is an `Event` with arrays carried by the relay."""

    request_id: str
    stage: str
    event: Event


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request failed in a stage."""

    request_id: str
    stage: str
    error: ErrorInfo


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forget the request in every stage of the process."""

    request_id: str


class PeerAt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where a process of another host can be reached."""

    process: str
    address: str
    """Its host is "*" if it is the coordinator's."""


class TurnedAway(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A guest is not wanted; it leaves."""

    reason: str


class PeerDied(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A process has ended: drop what was meant for it. Its successor has another name."""

    process: str


class Released(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A stage holds nothing of an aborted request any more."""

    request_id: str
    stage: str


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask whether the process still turns its loop; it answers with `Pong`."""


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It does."""

    process: str


class StatsQuery(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask for the counters of every stage of the process."""

    query_id: int


class StatsReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Counters by stage, and of how the process sends and receives tensors."""

    query_id: int
    process: str
    stats: dict[str, dict[str, float]]
    relay: dict[str, float] = {}


class Crash(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A stage cannot go on; its process ends after this message."""

    process: str
    stage: str
    error: ErrorInfo


class Profile(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Look at the stacks of the process for so long, then answer."""

    query_id: int
    seconds: float


class ProfileReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What its threads were seen doing, and how often; see `omni_core.stage.sampler`."""

    query_id: int
    process: str
    stacks: dict[str, int]


class LogLevel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Log what is at least of this level from now on."""

    level: str
    """A name of Python's logging, such as "DEBUG"."""


class NewWeights(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compare a checkpoint with what the stages of the process are built of, or take its weights
    over; no request is in them then."""

    query_id: int
    model_path: str
    load: bool
    """False only compares, and touches nothing."""


class WeightsReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All stages of the process have done so, or one of them could not."""

    query_id: int
    process: str
    error: ErrorInfo | None = None


class StartTrace(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Record what torch does in the process, for so long or until `StopTrace`; answered with
    `TraceStarted` at once and with `TraceEnded` once the file is written."""

    query_id: int
    directory: str
    stamp: str
    """Makes names of files differ from those of other recordings."""
    seconds: float


class StopTrace(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End the recording now."""


class TraceStarted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The process records, or cannot."""

    query_id: int
    process: str
    file: str = ""
    """Written when it ends."""
    error: ErrorInfo | None = None


class TraceEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The recording is over."""

    process: str
    threads: dict[str, int] = {}
    """{name: number of the thread in the file}."""
    error: ErrorInfo | None = None
    """Why there is no file."""


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Leave after freeing everything."""


ToStage: TypeAlias = (
    Setup
    | DataReady
    | StreamChunk
    | StreamDone
    | AbortRequest
    | PeerAt
    | TurnedAway
    | PeerDied
    | Ping
    | StatsQuery
    | Profile
    | LogLevel
    | NewWeights
    | StartTrace
    | StopTrace
    | Shutdown
)
ToCoordinator: TypeAlias = (
    Hello
    | Progress
    | Ready
    | Emit
    | Done
    | Fail
    | Released
    | Pong
    | StatsReply
    | ProfileReply
    | WeightsReply
    | TraceStarted
    | TraceEnded
    | Crash
)
AnyMessage: TypeAlias = ToStage | ToCoordinator
