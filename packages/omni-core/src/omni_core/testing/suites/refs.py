"""Every `Ref` in what a plugin registers, wherever it stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from omni_core.specs import Ref


def refs_in(value: object, place: str = "") -> Iterator[tuple[str, Ref]]:
    """(where it stands, the reference) of each."""
    match value:
        case Ref():
            yield place, value
        case Mapping():
            for key, item in value.items():
                yield from refs_in(item, f"{place}[{key!r}]")
        case list() | tuple():
            for index, item in enumerate(value):
                yield from refs_in(item, f"{place}[{index}]")
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            name = getattr(value, "name", type(value).__name__)
            for field in dataclasses.fields(value):
                yield from refs_in(getattr(value, field.name), f"{place} {name}.{field.name}")
        case _:
            return
