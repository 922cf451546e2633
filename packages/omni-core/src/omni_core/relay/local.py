"""Handing messages to a stage of the same process: tensors by reference, containers by copy.

Two readers of one payload must never see each other's changes to a dict or list; tensors are
read-only by contract and may be as large as they like. What could not cross a process is refused
here too, so that a pipeline which works in one layout works in all.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, Final

import msgspec
import numpy as np

from omni_core.messages import DataReady, StreamChunk, StreamDone
from omni_core.tensors import as_torch

_PLAIN: Final = frozenset({str, bytes, int, float, bool, NoneType, np.ndarray})


def unshare(message: DataReady | StreamChunk | StreamDone) -> DataReady | StreamChunk | StreamDone:
    """The message with containers of its own; TypeError for what is neither plain nor a tensor."""
    match message:
        case DataReady():
            return msgspec.structs.replace(message, payload=_copy(message.payload))
        case StreamChunk():
            return msgspec.structs.replace(message, data=_copy(message.data))
        case StreamDone():
            return message


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    if type(value) in _PLAIN or as_torch(value) is not None:
        return value
    raise TypeError(f"{type(value).__name__} cannot cross a process; send plain data or tensors")
