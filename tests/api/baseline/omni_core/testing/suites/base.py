from __future__ import annotations
from collections.abc import Iterable
from typing import Any, ClassVar, Final

class Suite:
    since: ClassVar[str] = '0.1'

    def __init_subclass__(cls, **more: Any) -> None:
        ...

def laws_of(suites: Iterable[type]) -> list[str]:
    ...

def missing(suite: Suite | type[Suite], fixture: str) -> NotImplementedError:
    ...
