"""How a payload travels along an edge, by where its two ends run.

The rule only: `local` and `slabs` do the work, `codec` decides for each tensor what is small.
"""

from __future__ import annotations

from enum import StrEnum


class Transport(StrEnum):
    """What an edge is carried by."""

    OBJECT = "object"
    """Within a process: tensors by reference, containers copied."""
    MESSAGE = "inline+shm"
    """Between processes of a host: small tensors in the message, large ones in shared memory."""


def transport(source_process: str, target_process: str) -> Transport:
    """How payloads and chunks get from a stage of one process to a stage of another."""
    return Transport.OBJECT if source_process == target_process else Transport.MESSAGE
