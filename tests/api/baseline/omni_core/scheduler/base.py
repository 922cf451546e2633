from __future__ import annotations
import queue
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias
import msgspec

class Work(msgspec.Struct, frozen=True):
    request_id: str
    params: RequestParams
    payload: Payload
    stop: Callable[[], bool] = _never

class Chunk(msgspec.Struct, frozen=True):
    request_id: str
    source: str
    data: Any

class ChunksDone(msgspec.Struct, frozen=True):
    request_id: str
    source: str

class Abort(msgspec.Struct, frozen=True):
    request_id: str

class Close(msgspec.Struct, frozen=True):
    ...
InboxItem: TypeAlias = Work | Chunk | ChunksDone | Abort | Close

class Inbox:

    def __init__(self, before_look: Callable[[], None]=lambda: None) -> None:
        ...

    def put(self, item: InboxItem) -> None:
        ...

    def get(self, timeout_s: float | None=None) -> InboxItem | None:
        ...

    def depth(self) -> int:
        ...

    def drain(self, *, block: bool, timeout_s: float | None=None) -> list[InboxItem]:
        ...

class Outbox(Protocol):

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

class Scheduler(Protocol):

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        ...

    def stats(self) -> dict[str, float]:
        ...
