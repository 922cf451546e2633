"""Which part of a split model a process has, and how the parts meet.

Knows the environment that upstream, gloo and NCCL read. Knows nothing of engines or processes.

The ranks of one model are on one host and have one parent, from which they inherit a file in memory
to meet in: no port is open to strangers, and nothing is left behind. What they send each other goes
over the loopback interface, or between the cards.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from omni_core.errors import ConfigError

_MEETING_SWITCH: Final = "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"
_CORES_SWITCH: Final = "SGLANG_CPU_OMP_THREADS_BIND"
"""The cores of each rank on a CPU. Upstream insists on it for more ranks than there are NUMA nodes,
and only kernels that its CPU builds have act on it."""
_INTERFACE_SWITCHES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_LOOPBACK: Final = "lo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One rank of several."""

    ranks: int
    rank: int
    meeting: int
    """Descriptor of the file in which the ranks meet, the same in all their processes."""

    def prepare(self) -> None:
        """Tell upstream and what it communicates by, in the environment of this process."""
        os.environ[_MEETING_SWITCH] = f"file:///proc/self/fd/{self.meeting}"
        cores = f"0-{(os.cpu_count() or 1) - 1}"
        os.environ.setdefault(_CORES_SWITCH, "|".join([cores] * self.ranks))
        for switch in _INTERFACE_SWITCHES:
            os.environ.setdefault(switch, _LOOPBACK)


def require_even_split(stage: str, ranks: int, widths: Mapping[str, int], *, kv_heads: int) -> None:
    """ConfigError unless every rank gets as much of the model as the others; {what it is: how many}
    of all that is divided. Heads of keys and values can be shared by ranks as well."""
    uneven = [f"{count} {what}" for what, count in widths.items() if count % ranks]
    if kv_heads % ranks and ranks % kv_heads:
        uneven.append(f"{kv_heads} heads of keys and values")
    if uneven:
        raise ConfigError(
            f"stage {stage!r}: tp_size is {ranks} but the model has {' and '.join(uneven)}, which "
            "it does not divide; set one that does"
        )


def meeting_place() -> int:
    """Descriptor of a new file in memory, for ranks to inherit."""
    return os.memfd_create("omni-ranks")
