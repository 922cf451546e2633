"""Handing messages to a stage of the same process: tensors by reference, containers by copy.

Two readers of one payload must never see each other's changes to a dict or list; tensors are
read-only by contract and may be as large as they like.
"""

from __future__ import annotations

from typing import Any

import msgspec

from omni_core.messages import DataReady, StreamChunk, StreamDone


def unshare(message: DataReady | StreamChunk | StreamDone) -> DataReady | StreamChunk | StreamDone:
    """The message with containers of its own."""
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
    return value
