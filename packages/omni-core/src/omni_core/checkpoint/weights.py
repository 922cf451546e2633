"""Reads safetensors checkpoints by tensor name: a stage opens the files and reads the byte ranges
of its own tensors, and of nothing else.

Knows files, names, shapes, dtypes and devices. Knows nothing of what the tensors are for. A tensor
is read when it is asked for, straight into its place, so loading takes the memory of the weights
and at most one tensor more. On torch's meta device all is checked and nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch

from omni_core.checkpoint.files import has_file, read_json
from omni_core.checkpoint.quantization import refuse_quantised
from omni_core.checkpoint.tensorfile import TensorFile
from omni_core.errors import ConfigError

T = TypeVar("T")

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
REPORTS_PER_LOAD = 100
LISTED = 5
"""Of many missing things, so many are named."""


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name such as "bfloat16"."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"dtype {name!r} is no torch dtype; use float32 or bfloat16")
    return dtype


class Checkpoint:
    """The tensors of a checkpoint directory; a context manager that closes its files. ConfigError
    if the checkpoint is quantised or has no weights that can be read."""

    def __init__(self, model_path: str) -> None:
        refuse_quantised(model_path)
        self._directory = Path(model_path)
        self._files: dict[str, TensorFile] = {}
        self._file_of = self._index(model_path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def names(self, prefix: str = "") -> list[str]:
        """Names of all tensors that start with `prefix`."""
        return [name for name in self._file_of if name.startswith(prefix)]

    def require(self, prefixes: Sequence[str]) -> None:
        """ConfigError unless there are tensors under each prefix and the files of all of them."""
        for prefix in prefixes:
            if not self.names(prefix):
                raise ConfigError(
                    f"{self._directory} has no tensors under {prefix!r}, but its config.json "
                    "describes that part; download the checkpoint again, or leave the part out "
                    "(--variant text serves a checkpoint without speech)"
                )
        wanted = {self._file_of[name] for prefix in prefixes for name in self.names(prefix)}
        lost = sorted(file for file in wanted if not (self._directory / file).is_file())
        if lost:
            raise ConfigError(
                f"{self._directory} lacks {_some(lost)}, which {INDEX_FILE} names; "
                "finish the download"
            )

    def file(self, name: str) -> TensorFile:
        """The file that holds a tensor, opened; ConfigError if there is none of that name."""
        file_name = self._file_of.get(name)
        if file_name is None:
            raise ConfigError(self._missing(name))
        if file_name not in self._files:
            path = self._directory / file_name
            if not path.is_file():
                raise ConfigError(
                    f"{path} is named by {INDEX_FILE} and does not exist; finish the download"
                )
            self._files[file_name] = TensorFile(path)
        file = self._files[file_name]
        if name not in file.entries:
            raise ConfigError(
                f"{file.path} does not hold {name!r}, which {INDEX_FILE} says is there; the files "
                "are of different downloads or revisions, download all of them again"
            )
        return file

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor as stored, on the CPU; ConfigError if there is none of that name."""
        return self.file(name).read(name)

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        """A few rows of a large matrix, (len(indices), ...), without reading the rest."""
        file = self.file(name)
        shape = file.entries[name].shape
        if not all(0 <= index < shape[0] for index in indices):
            raise ConfigError(
                f"{file.path}: {name!r} has {shape[0]} rows; config.json asks for {max(indices)}"
            )
        out = torch.empty((len(indices), *shape[1:]), dtype=file.dtype(name))
        for place, index in enumerate(indices):
            file.read_into(out[place], name, first_row=index)
        return out

    def _missing(self, name: str) -> str:
        prefix = name
        while prefix and not self.names(prefix + "."):
            prefix = prefix.rpartition(".")[0]
        known = (
            f"it has {len(self.names(prefix + '.'))} tensors under {prefix!r}"
            if prefix
            else ("it has no tensor under any prefix of that name")
        )
        return (
            f"checkpoint {str(self._directory)!r} lacks the tensor {name!r}; {known}; "
            "config.json and the weights must be of one download"
        )

    def _index(self, model_path: str) -> dict[str, str]:
        if has_file(model_path, INDEX_FILE):
            mapping = read_json(model_path, INDEX_FILE).get("weight_map")
            if not isinstance(mapping, dict):
                path = self._directory / INDEX_FILE
                raise ConfigError(f"{path} has no 'weight_map'; download it again")
            if strange := [f for f in mapping.values() if f != Path(str(f)).name]:
                raise ConfigError(
                    f"{self._directory / INDEX_FILE} names {strange[0]!r}, which is no file beside "
                    "it; download it again"
                )
            return mapping
        if has_file(model_path, SINGLE_FILE):
            self._files[SINGLE_FILE] = TensorFile(self._directory / SINGLE_FILE)
            return dict.fromkeys(self._files[SINGLE_FILE].entries, SINGLE_FILE)
        raise ConfigError(
            f"{str(self._directory)!r} has neither {INDEX_FILE} nor {SINGLE_FILE}; "
            "download the weights"
        )


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """Something made of weights, and how it was made."""

    made: T
    make: Callable[[Weights], T]


class Weights:
    """One part of a checkpoint as tensors of one dtype on one device.

    Every tensor must have the shape that is asked for, and counts towards the progress given to
    `report` as "loading weights DONE/TOTAL bytes".
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        report: Callable[[str], None],
        names: Sequence[str],
    ) -> None:
        self._checkpoint = checkpoint
        self.device = device
        self.dtype = dtype
        self._report = report
        self._unread = {name: checkpoint.file(name).size_bytes(name) for name in names}
        self._done_bytes, self._total_bytes = 0, sum(self._unread.values())
        self.parts: list[Part[Any]] = []
        """All that was made of the weights."""
        self._makes_part = False

    def part(self, make: Callable[[Weights], T]) -> T:
        """What `make` makes of the weights, remembered so that it can be made of others. Of parts
        within parts, the outermost is remembered."""
        if self._makes_part:
            return make(self)
        self._makes_part = True
        try:
            made = make(self)
        finally:
            self._makes_part = False
        self.parts.append(Part(made, make))
        return made

    def tensor(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """One tensor by its full name, a part by itself if it belongs to none."""
        return self.part(lambda weights: weights._tensor(name, shape))

    def fused(self, names: Sequence[str], rows: Sequence[int], columns: int) -> torch.Tensor:
        """Several matrices over the same input, one below the other: (sum of rows, columns)."""
        out = self._empty(sum(rows), columns)
        for part, name in zip(torch.split(out, list(rows)), names, strict=True):
            self._fill(part, name)
        return out

    def experts(
        self, prefix: str, count: int, *, hidden: int, inner: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts `prefix`0 .. `prefix`count-1 of a layer, stacked: gate above up
        (count, 2 * inner, hidden), and down (count, hidden, inner)."""
        gate_up, down = self._empty(count, 2 * inner, hidden), self._empty(count, hidden, inner)
        for index in range(count):
            gate, up = torch.split(gate_up[index], inner)
            self._fill(gate, f"{prefix}{index}.gate_proj.weight")
            self._fill(up, f"{prefix}{index}.up_proj.weight")
            self._fill(down[index], f"{prefix}{index}.down_proj.weight")
        return gate_up, down

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        """A few rows of a matrix that need not be among the tensors of this part, as stored, on the
        CPU."""
        return self.part(lambda weights: weights._checkpoint.rows(name, indices))

    def finish(self) -> None:
        """ConfigError if the checkpoint has more of this part than the model asked for."""
        if self._unread:
            raise ConfigError(
                f"the model that config.json describes has no place for {_some(self._unread)}; "
                "config.json and the weights must be of one download, or the checkpoint needs a "
                "newer release"
            )

    def _tensor(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        out = self._empty(*shape)
        self._fill(out, name)
        return out

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def _fill(self, out: torch.Tensor, name: str) -> None:
        """Write one stored tensor into `out`, a contiguous part of a result."""
        file = self._checkpoint.file(name)
        self._check(file, name, tuple(out.shape))
        if out.is_cpu and out.dtype == file.dtype(name):
            file.read_into(out, name)
        elif not out.is_meta:
            out.copy_(file.read(name))
        self._count(self._unread.pop(name))

    def _count(self, size_bytes: int) -> None:
        before, self._done_bytes = self._done_bytes, self._done_bytes + size_bytes
        steps = [
            done * REPORTS_PER_LOAD // self._total_bytes for done in (before, self._done_bytes)
        ]
        if steps[0] < steps[1]:
            self._report(f"loading weights {self._done_bytes}/{self._total_bytes} bytes")

    def _check(self, file: TensorFile, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._unread:
            raise ValueError(f"{name!r} is loaded twice, or is of no prefix that was opened")
        stored = file.entries[name].shape
        if stored != shape:
            raise ConfigError(
                f"{file.path}: {name!r} has the shape {stored}, config.json makes it {shape}; "
                "both must be of one download"
            )
        file.dtype(name)


def open_weights(
    checkpoint: Checkpoint,
    prefixes: Sequence[str],
    *,
    device: str,
    dtype: str,
    report: Callable[[str], None],
) -> Weights:
    """The tensors under `prefixes`, which is what the progress is counted against."""
    checkpoint.require(prefixes)
    return Weights(
        checkpoint,
        device=torch.device(device),
        dtype=torch_dtype(dtype),
        report=report,
        names=[name for prefix in prefixes for name in checkpoint.names(prefix)],
    )


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    return ", ".join(listed[:LISTED]) + more
