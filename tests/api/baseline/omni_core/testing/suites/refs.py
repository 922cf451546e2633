from __future__ import annotations
import dataclasses
from collections.abc import Iterator, Mapping

def refs_in(value: object, place: str='') -> Iterator[tuple[str, Ref]]:
    ...
