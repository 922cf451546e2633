"""One safetensors file: what is in it, and tensors read by byte range.

Knows the format: eight bytes of header length, little-endian, a JSON header of dtype, shape and
offsets for each tensor, then the data. Nothing is mapped: a mapped file counts as memory of the
process once it is read, and would double what loading a stage takes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from omni_core.errors import ConfigError

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Stored types that are weights as they are; others belong to quantised checkpoints."""
_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies."""

    dtype: str
    """As the format names it: "BF16"."""
    shape: tuple[int, ...]
    start: int
    """Byte of the file."""


class TensorFile:
    """An open safetensors file. ConfigError if it is damaged, which says what to do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.entries = self._header()
        except ConfigError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; nothing can be read afterwards."""
        os.close(self._descriptor)

    def read(self, name: str) -> torch.Tensor:
        """A whole tensor as stored, on the CPU."""
        entry = self.entries[name]
        out = torch.empty(entry.shape, dtype=self.dtype(name))
        self.read_into(out, name)
        return out

    def read_into(self, out: torch.Tensor, name: str, *, first_row: int = 0) -> None:
        """Fill `out`, contiguous, of the stored dtype and on the CPU, with the tensor's bytes from
        `first_row` of its first dimension on."""
        entry = self.entries[name]
        row_bytes = math.prod(entry.shape[1:]) * out.element_size()
        self._read(_bytes_of(out), entry.start + first_row * row_bytes)

    def size_bytes(self, name: str) -> int:
        """How much of the file a tensor takes; ConfigError as of `dtype`."""
        return math.prod(self.entries[name].shape) * self.dtype(name).itemsize

    def dtype(self, name: str) -> torch.dtype:
        """The torch dtype of a tensor; ConfigError if it is none that weights may have."""
        stored = self.entries[name].dtype
        if stored not in DTYPES:
            raise ConfigError(
                f"{self.path}: tensor {name!r} is stored as {stored}; quantised checkpoints are "
                f"not supported, use one in {', '.join(DTYPES)}"
            )
        return DTYPES[stored]

    def _header(self) -> dict[str, Entry]:
        size = os.fstat(self._descriptor).st_size
        if size < _LENGTH_BYTES:
            raise self._damaged(f"it has {size} bytes, less than any header")
        head = bytearray(_LENGTH_BYTES)
        self._read(memoryview(head), 0)
        length = int.from_bytes(head, "little")
        data_start = _LENGTH_BYTES + length
        if length > _MAX_HEADER_BYTES:
            raise self._damaged("it does not begin with a safetensors header")
        if data_start > size:
            raise self._damaged(f"it has {size} bytes, its header alone would take {data_start}")
        text = bytearray(length)
        self._read(memoryview(text), _LENGTH_BYTES)
        try:
            content = json.loads(text)
            entries, end = _entries(content, data_start)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise self._damaged(f"its header cannot be read: {exc!r}") from exc
        if end != size:
            raise self._damaged(f"it has {size} bytes, its header announces {end}")
        return entries

    def _read(self, out: memoryview, start: int) -> None:
        done = 0
        while done < len(out):
            count = os.preadv(self._descriptor, [out[done:]], start + done)
            if count == 0:
                raise self._damaged(f"it ends at byte {start + done}, in the middle of a tensor")
            done += count

    def _damaged(self, what: str) -> ConfigError:
        return ConfigError(f"{self.path} is cut short or damaged: {what}; download it again")


def _entries(content: Mapping[str, Any], data_start: int) -> tuple[dict[str, Entry], int]:
    """The tensors, and where the file must end."""
    entries: dict[str, Entry] = {}
    end = data_start
    for name, item in content.items():
        if name == "__metadata__":
            continue
        start, stop = (int(offset) for offset in item["data_offsets"])
        shape = tuple(int(size) for size in item["shape"])
        dtype = DTYPES.get(item["dtype"])
        if dtype is not None and stop - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name!r} of shape {shape} cannot take {stop - start} bytes")
        entries[name] = Entry(dtype=item["dtype"], shape=shape, start=data_start + start)
        end = max(end, data_start + stop)
    return entries, end


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data
