from __future__ import annotations
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
T = TypeVar('T')

@dataclass(frozen=True, slots=True)
class Call:
    method: str
    request_id: str
    value: Any = None

class RecordingOutbox:

    def __init__(self) -> None:
        ...

    def send(self, request_id: str, payload: Payload, *, target: str | None=None) -> None:
        ...

    def pass_on(self, request_id: str, payload: Payload) -> None:
        ...

    def stream(self, request_id: str, data: Any, *, target: str | None=None) -> None:
        ...

    def stream_done(self, request_id: str) -> None:
        ...

    def emit(self, request_id: str, event: Event) -> None:
        ...

    def done(self, request_id: str, usage: Usage | None=None, *, cut: Modality | None=None) -> None:
        ...

    def complete(self, request_id: str, *, finish_reason: FinishReason='stop', usage: Usage | None=None) -> None:
        ...

    def fail(self, request_id: str, error: OmniError) -> None:
        ...

    def released(self, request_id: str) -> None:
        ...

    def of(self, request_id: str) -> list[Call]:
        ...

    def wait_for(self, method: str, request_id: str, patience_s: float=_PATIENCE_S) -> Call:
        ...

    def wait_until(self, found: Callable[[list[Call]], T], patience_s: float=_PATIENCE_S) -> T:
        ...

@contextlib.contextmanager
def running(scheduler: Scheduler, items: Iterable[InboxItem]=()) -> Iterator[tuple[Inbox, RecordingOutbox]]:
    ...

@dataclass(slots=True)
class RecordingLinks:
    delivered: list[DataReady | StreamChunk | StreamDone] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    reported: list[Emit | Done | Fail | Released] = field(default_factory=list)
    refuse: Exception | None = None

    def deliver(self, message: DataReady | StreamChunk | StreamDone, process: str) -> None:
        ...

    def report(self, message: Emit | Done | Fail | Released) -> None:
        ...

    def flush(self) -> None:
        ...

class ScriptedEngine:
    capabilities = EngineCapabilities(name='scripted', feedback=True, hidden_states=True)
    max_running = 64

    def __init__(self, refused: dict[str, OmniError] | None=None) -> None:
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

    def session(self) -> contextlib.AbstractContextManager[object]:
        ...

    def abort(self, request_id: str) -> None:
        ...

    def forget_prefixes(self) -> None:
        ...

    def stats(self) -> EngineStats:
        ...
