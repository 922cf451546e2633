"""A program as data: what another process needs to compile it, without the weights.

Knows dataclasses, tensors and the JSON between them. Knows nothing of compilers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import msgspec
import torch

from omni_core.errors import StageError
from omni_core.specs import Ref

SMALL = 8
"""Elements of a constant that torch's compiler treats as text."""

Skeleton: TypeAlias = Any
"""JSON values: a plain value as itself, anything else as a one-key object that names its kind."""


class TensorDoc(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorDoc:
        """Describe a tensor."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(shape=tuple(tensor.shape), stride=tensor.stride(), dtype=dtype)

    @property
    def is_small(self) -> bool:
        """So small that compilers write its values into the code, wherever they come from."""
        return math.prod(self.shape) <= SMALL

    def empty(self) -> torch.Tensor:
        """A tensor like it on the CPU, its values undefined."""
        return torch.empty_strided(self.shape, self.stride, dtype=getattr(torch, self.dtype))


class ProgramDoc(msgspec.Struct, frozen=True, kw_only=True):
    """A program whose weights are numbered."""

    skeleton: Skeleton
    weights: tuple[TensorDoc, ...]

    def build(self, weights: Sequence[torch.Tensor]) -> Any:
        """The program with these weights."""
        return _build(self.skeleton, weights)

    def packages(self) -> set[str]:
        """Top-level packages its classes are from."""
        return {target.partition(".")[0].partition(":")[0] for target in _classes(self.skeleton)}


def describe(program: object) -> tuple[ProgramDoc, list[torch.Tensor]]:
    """A program as data, and its weights in the order of their numbers.

    StageError if it holds anything but tensors, plain values, dataclasses, lists and tuples.
    """
    weights: list[torch.Tensor] = []
    skeleton = _describe(program, weights, type(program).__name__)
    return ProgramDoc(skeleton=skeleton, weights=tuple(map(TensorDoc.of, weights))), weights


def _describe(value: object, weights: list[torch.Tensor], place: str) -> Skeleton:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case torch.Tensor():
            number = next((n for n, known in enumerate(weights) if known is value), len(weights))
            weights[number:] = weights[number:] or [value]
            return {"tensor": number}
        case list() | tuple():
            items = [_describe(v, weights, f"{place}[{n}]") for n, v in enumerate(value)]
            return {"list" if isinstance(value, list) else "tuple": items}
    if not is_dataclass(value):
        raise StageError(
            f"{place} is a {type(value).__name__}; a program is made of tensors, plain values, "
            "dataclasses, lists and tuples"
        )
    kind = type(value)
    held = {f.name: getattr(value, f.name) for f in fields(value)}
    return {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "fields": {name: _describe(v, weights, f"{place}.{name}") for name, v in held.items()},
    }


def _build(skeleton: Skeleton, weights: Sequence[torch.Tensor]) -> Any:
    match skeleton:
        case {"tensor": number}:
            return weights[number]
        case {"list": items}:
            return [_build(item, weights) for item in items]
        case {"tuple": items}:
            return tuple(_build(item, weights) for item in items)
        case {"class": target, "fields": held}:
            return Ref(target).resolve()(**{n: _build(v, weights) for n, v in held.items()})
        case _:
            return skeleton


def _classes(skeleton: Skeleton) -> set[str]:
    match skeleton:
        case {"list": items} | {"tuple": items}:
            return set().union(*map(_classes, items))
        case {"class": target, "fields": held}:
            return {target}.union(*map(_classes, held.values()))
        case _:
            return set()
