"""Tensors as flat bytes and back, and received arrays as torch tensors.

Knows numpy and torch, that torch has no read-only tensors, and asks nobody to import it who does
not. Bytes from elsewhere are not believed: ProtocolError where they cannot be the tensor.
"""

from __future__ import annotations

import functools
import re
import sys
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from omni_core.errors import ProtocolError

if TYPE_CHECKING:
    import torch

TensorKind: TypeAlias = Literal["numpy", "torch"]
Shape: TypeAlias = tuple[int, ...]
_Buffer: TypeAlias = bytes | bytearray | memoryview
_NUMPY_DTYPE: Final = re.compile(r"[<>|=][?bBiufcmMSUV]\d{1,9}(\[\w+\])?", re.ASCII)
"""What numpy may be asked to read: it evaluates other text as Python."""


def tensor_over(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor of the array's memory, without a copy.

    For arrays that came from another process, which are read-only: of these `torch.from_numpy`
    warns, as it cannot keep anyone from writing. Whoever calls this promises not to.
    """
    import torch

    if not array.flags.writeable and array.base is not None:
        array = array.view()
        array.flags.writeable = True
    return torch.from_numpy(array)


def flat(value: object) -> tuple[TensorKind, str, Shape, npt.NDArray[np.uint8]]:
    """Kind, dtype, shape and bytes (n,) of a tensor; TypeError for anything else."""
    if isinstance(value, np.ndarray):
        array = value if value.flags.c_contiguous else np.ascontiguousarray(value)
        return "numpy", array.dtype.str, value.shape, array.reshape(-1).view(np.uint8)
    tensor = as_torch(value)
    if tensor is not None:
        data = flat_torch(tensor.detach().cpu()).numpy()
        return "torch", torch_name(tensor), tuple(tensor.shape), data
    raise TypeError(f"{type(value).__name__} cannot cross a process; send plain data or tensors")


def as_torch(value: object) -> torch.Tensor | None:
    """The value, if it is a torch tensor; then somebody has imported torch."""
    torch = sys.modules.get("torch")
    return value if torch is not None and isinstance(value, torch.Tensor) else None


def flat_torch(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes (n,), uint8, where it lies; a copy only if it has gaps."""
    import torch

    dense = tensor.detach().contiguous()
    # A dense tensor of one element may have any stride, with which torch refuses the view.
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def torch_name(tensor: torch.Tensor) -> str:
    """Of its dtype: "bfloat16"."""
    return str(tensor.dtype).removeprefix("torch.")


def array_over(dtype: str, shape: Shape, data: _Buffer) -> npt.NDArray[Any]:
    """An array over bytes, which it keeps."""
    known = _numpy_dtype(dtype)
    _check_size(shape, known.itemsize, memoryview(data).nbytes)
    return np.ndarray(shape, known, data)


def torch_over(dtype: str, shape: Shape, data: _Buffer) -> torch.Tensor:
    """A tensor over bytes, which it keeps."""
    import torch

    known = _torch_dtype(dtype)
    _check_size(shape, known.itemsize, memoryview(data).nbytes)
    if prod(shape) == 0:
        return torch.empty(shape, dtype=known)
    return torch.frombuffer(data, dtype=known).reshape(shape)


def torch_over_card(dtype: str, shape: Shape, data: torch.Tensor) -> torch.Tensor:
    """As `torch_over`, of flat bytes on a card."""
    known = _torch_dtype(dtype)
    _check_size(shape, known.itemsize, data.nbytes)
    return data.view(known).reshape(shape)


@functools.lru_cache(maxsize=64)
def _numpy_dtype(name: str) -> np.dtype[Any]:
    if not _NUMPY_DTYPE.fullmatch(name):
        raise ProtocolError(f"unknown tensor dtype {name!r}")
    dtype = np.dtype(name)
    if dtype.hasobject:
        raise ProtocolError("arrays of objects are refused")
    return dtype


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    dtype = vars(torch).get(name)  # getattr may import a module of torch
    if not isinstance(dtype, torch.dtype):
        raise ProtocolError(f"unknown tensor dtype {name!r}")
    return dtype


def _check_size(shape: Shape, item_bytes: int, have: int) -> None:
    need = prod(shape) * item_bytes
    if need != have:
        raise ProtocolError(f"a tensor of {need} bytes came with {have}")
