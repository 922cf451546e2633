"""Reads safetensors checkpoints by tensor name, lazily.

Knows files, names, dtypes and devices. Knows nothing of what the tensors are for. A tensor is read
when it is asked for and goes straight to its device, so loading never holds the model twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from omni_core.errors import ConfigError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
REPORTS_PER_LOAD = 20


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name such as "bfloat16"."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"dtype {name!r} is no torch dtype; use float32 or bfloat16")
    return dtype


class Checkpoint:
    """The tensors of a checkpoint directory; a context manager that closes its files."""

    def __init__(self, model_path: str) -> None:
        self._directory = Path(model_path)
        self._files: dict[str, Any] = {}
        self._file_of = self._index()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files.clear()

    def names(self, prefix: str = "") -> list[str]:
        """Names of all tensors that start with `prefix`."""
        return [name for name in self._file_of if name.startswith(prefix)]

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor as stored, on the CPU; ConfigError if there is none of that name."""
        tensor: torch.Tensor = self._open(name).get_tensor(name)
        return tensor

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        """A few rows of a large matrix, (len(indices), ...), without reading the rest."""
        part = self._open(name).get_slice(name)
        return torch.cat([part[index : index + 1] for index in indices])

    def _open(self, name: str) -> Any:
        file_name = self._file_of.get(name)
        if file_name is None:
            raise ConfigError(self._missing(name))
        if file_name not in self._files:
            path = self._directory / file_name
            if not path.is_file():
                raise ConfigError(f"{path} is named by {INDEX_FILE} and does not exist")
            self._files[file_name] = _open_file(path)
        return self._files[file_name]

    def _missing(self, name: str) -> str:
        prefix = name
        while prefix and not self.names(prefix + "."):
            prefix = prefix.rpartition(".")[0]
        known = (
            f"it has {len(self.names(prefix + '.'))} tensors under {prefix!r}"
            if prefix
            else ("it has no tensor under any prefix of that name")
        )
        return f"checkpoint {str(self._directory)!r} lacks the tensor {name!r}; {known}"

    def _index(self) -> dict[str, str]:
        index = self._directory / INDEX_FILE
        if index.is_file():
            mapping: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return mapping
        single = self._directory / SINGLE_FILE
        if single.is_file():
            self._files[SINGLE_FILE] = _open_file(single)
            return dict.fromkeys(self._files[SINGLE_FILE].keys(), SINGLE_FILE)
        raise ConfigError(f"{str(self._directory)!r} has neither {INDEX_FILE} nor {SINGLE_FILE}")


def _open_file(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except SafetensorError as exc:
        raise ConfigError(f"{path} is cut short or damaged ({exc}); download it again") from exc


class Weights:
    """One part of a checkpoint as tensors of one dtype on one device.

    Every read counts towards the progress given to `report` as "loading weights DONE/TOTAL".
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        report: Callable[[str], None],
        total: int,
    ) -> None:
        self._checkpoint = checkpoint
        self.device = device
        self.dtype = dtype
        self._report = report
        self._total = total
        self._done = 0

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor by its full name."""
        tensor = self._read(name).to(device=self.device, dtype=self.dtype)
        return tensor.contiguous()

    def fused(self, names: Sequence[str]) -> torch.Tensor:
        """Several matrices over the same input, one below the other."""
        return torch.cat([self.tensor(name) for name in names])

    def experts(self, prefix: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts `prefix`0 .. `prefix`count-1 of a layer, stacked: gate above up
        (count, 2 * intermediate, hidden), and down (count, hidden, intermediate)."""
        gate_up: torch.Tensor | None = None
        down: torch.Tensor | None = None
        for index in range(count):
            gate, up, back = (
                self._read(f"{prefix}{index}.{part}_proj.weight") for part in ("gate", "up", "down")
            )
            if gate_up is None or down is None:
                width, hidden = gate.shape
                gate_up = self._empty(count, 2 * width, hidden)
                down = self._empty(count, hidden, width)
            gate_up[index, : gate.shape[0]] = gate
            gate_up[index, gate.shape[0] :] = up
            down[index] = back
        if gate_up is None or down is None:
            raise ConfigError(f"{prefix!r}: a mixture of experts needs at least one expert")
        return gate_up, down

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def _read(self, name: str) -> torch.Tensor:
        tensor = self._checkpoint.tensor(name)
        self._done += 1
        every = max(1, self._total // REPORTS_PER_LOAD)
        if self._done % every == 0 or self._done == self._total:
            self._report(f"loading weights {self._done}/{self._total}")
        return tensor


def open_weights(
    checkpoint: Checkpoint,
    prefixes: Sequence[str],
    *,
    device: str,
    dtype: str,
    report: Callable[[str], None],
) -> Weights:
    """The tensors under `prefixes`, which is what the progress is counted against."""
    return Weights(
        checkpoint,
        device=torch.device(device),
        dtype=torch_dtype(dtype),
        report=report,
        total=sum(len(checkpoint.names(prefix)) for prefix in prefixes),
    )
