from __future__ import annotations
from typing import Protocol, TypeVar
Memory = TypeVar('Memory')
Reference = TypeVar('Reference')

class Relay(Protocol[Memory, Reference]):

    def place(self, data: Memory, target: str) -> Reference:
        ...

    def open(self, reference: Reference) -> Memory:
        ...

    def discard(self, reference: Reference) -> None:
        ...

    def forget(self, process: str) -> None:
        ...

    def stats(self) -> dict[str, float]:
        ...

    def close(self) -> None:
        ...
