from __future__ import annotations
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, assert_never
K = TypeVar('K')

class PerRequestScheduler(ABC, Generic[K]):

    def __init__(self) -> None:
        ...

    @abstractmethod
    def open(self, work: Work, outbox: Outbox) -> K:
        ...

    def push(self, request_id: str, kept: K, data: Any, outbox: Outbox) -> None:
        ...

    def end(self, request_id: str, kept: K, outbox: Outbox) -> None:
        ...

    def due(self) -> str | None:
        ...

    def advance(self, request_id: str, kept: K, outbox: Outbox) -> None:
        ...

    def close(self, kept: K) -> None:
        ...

    def let_go(self, request_id: str) -> None:
        ...

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        ...

    def stats(self) -> dict[str, float]:
        ...
