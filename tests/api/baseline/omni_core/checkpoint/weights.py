from __future__ import annotations
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
import torch
T = TypeVar('T')
INDEX_FILE = 'model.safetensors.index.json'
SINGLE_FILE = 'model.safetensors'
REPORTS_PER_LOAD = 100
LISTED = 5

def torch_dtype(name: str) -> torch.dtype:
    ...

class Checkpoint:

    def __init__(self, model_path: str) -> None:
        ...

    def __enter__(self) -> Self:
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        ...

    def names(self, prefix: str='') -> list[str]:
        ...

    def require(self, prefixes: Sequence[str]) -> None:
        ...

    def file(self, name: str) -> TensorFile:
        ...

    def tensor(self, name: str) -> torch.Tensor:
        ...

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        ...

@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    made: T
    make: Callable[[Weights], T]

class Weights:

    def __init__(self, checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype, report: Callable[[str], None], names: Sequence[str]) -> None:
        ...

    def part(self, make: Callable[[Weights], T]) -> T:
        ...

    def tensor(self, name: str, shape: Sequence[int], dtype: torch.dtype | None=None) -> torch.Tensor:
        ...

    def fused(self, names: Sequence[str], rows: Sequence[int], columns: int) -> torch.Tensor:
        ...

    def experts(self, prefix: str, count: int, *, hidden: int, inner: int) -> tuple[torch.Tensor, torch.Tensor]:
        ...

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        ...

    def finish(self) -> None:
        ...

def open_weights(checkpoint: Checkpoint, prefixes: Sequence[str], *, device: str, dtype: str, report: Callable[[str], None]) -> Weights:
    ...
