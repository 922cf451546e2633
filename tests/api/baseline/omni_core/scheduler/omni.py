from __future__ import annotations
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Final, Protocol, assert_never
COMPILED: Final = '(compiled grammar)'

class ARStage(Protocol):

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        ...

    def hear(self, request: EngineRequest, chunk: object, outbox: Outbox) -> bool:
        ...

    def publish(self, request: EngineRequest, output: StepOutput, outbox: Outbox) -> None:
        ...

    def forget(self, request_id: str) -> None:
        ...

class OmniScheduler:

    def __init__(self, engine: Engine, stage: ARStage, more_stats: Callable[[], Mapping[str, float]]=dict, rest_s: Callable[[], float]=float, grammars: Grammars | None=None) -> None:
        ...

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        ...

    def stats(self) -> dict[str, float]:
        ...
