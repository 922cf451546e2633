"""One compilation: what is compiled, for which tensors, and the name its result has on disk.

Knows what makes a result valid again: shapes, source, torch and CPU. Compiles nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
import torch

from omni_core.errors import StageError
from omni_core.steps.describe import ProgramDoc, TensorDoc

CPU_INFO = Path("/proc/cpuinfo")
HINTS = (11, 13, 17, 19, 23, 29, 31, 37)
"""Sizes for dynamic dimensions to be compiled with. A size that also occurs elsewhere may be taken
for that one, and the library is then good for no other."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the compiling process is told, and all of it: the key is made of its fields."""

    program: ProgramDoc
    tensors: tuple[TensorDoc, ...]
    """Of a call; dynamic dimensions have a size that is theirs alone."""
    dynamic: tuple[dict[int, str], ...]
    threads: int
    torch_version: str
    cpu: str
    source: str

    @classmethod
    def of(
        cls,
        program: ProgramDoc,
        call: Sequence[TensorDoc],
        dynamic: Sequence[Mapping[int, str]],
    ) -> Request:
        """For calls like this one, on this machine and with the source as it is now."""
        names = sorted({name for dims in dynamic for name in dims.values()})
        docs = (*program.weights, *call)
        free = (size for size in HINTS if not any(size in doc.shape for doc in docs))
        hints = dict(zip(names, free, strict=False))
        if len(hints) < len(names):
            raise StageError(f"{len(names)} sizes vary, more than can be told apart")
        return cls(
            program=program,
            tensors=tuple(_hinted(t, d, hints) for t, d in zip(call, dynamic, strict=True)),
            dynamic=tuple(dict(dims) for dims in dynamic),
            threads=torch.get_num_threads(),
            torch_version=f"{torch.__version__} {torch.version.git_version}",
            cpu=cpu_flags(),
            source=source_hash(frozenset(program.packages() | {__name__.partition(".")[0]})),
        )

    def key(self) -> str:
        """Equal where a result of one serves the other."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]


def _hinted(doc: TensorDoc, dims: Mapping[int, str], hints: Mapping[str, int]) -> TensorDoc:
    shape = [hints[dims[n]] if n in dims else size for n, size in enumerate(doc.shape)]
    return TensorDoc.of(torch.empty(shape, dtype=getattr(torch, doc.dtype), device="meta"))


@cache
def cpu_flags() -> str:
    """What machine code may use here: the architecture and, on Linux, the CPU's own list."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()}"


@cache
def source_hash(packages: frozenset[str]) -> str:
    """Of every Python file of these top-level packages, so that any edit compiles anew."""
    digest = hashlib.sha256()
    for package in sorted(packages):
        for path in _files(package):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _files(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)] if spec.origin else []
    return sorted(p for root in spec.submodule_search_locations for p in Path(root).rglob("*.py"))
