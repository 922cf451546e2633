"""How tensors travel along an edge, by where its two ends run.

The rule only: `local`, `slabs` and `cuda_ipc` do the work, and `codec` decides for each tensor what
is small enough for its message, and takes shared memory where a card has no room.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Final

from omni_core.addresses import COORDINATOR
from omni_core.devices import stage_device
from omni_core.graph import cards_of, process_of, replica_names
from omni_core.specs import StageConfig

CARD_POOL_VARIABLE: Final = "OMNI_CARD_POOL_MIB"
"""Unset or 0, tensors leave their cards."""
_VISIBLE_CARDS_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


class Transport(StrEnum):
    """What an edge is carried by."""

    LOCAL = "local"
    """Within a process: tensors by reference, containers copied."""
    SHARED_MEMORY = "shm"
    """Between processes of a host: small tensors in the message, large ones in shared memory."""
    CUDA_IPC = "cuda-ipc"
    """Between processes that use the same card: large tensors stay on it."""
    TCP = "tcp"
    """To and from another host: all in messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where a stage, or the API process, runs."""

    process: str
    """The place, whoever fills it."""
    card: str = ""
    """Its torch device, where other processes mean the same card by it; else empty."""
    remote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What hands something to what: stages, or the coordinator, where requests come from and events
    go to."""

    source: str
    target: str
    transports: tuple[Transport, ...]
    """Several where replicas differ."""


def transport(source: End, target: End) -> Transport:
    """How payloads and chunks get from one end to the other."""
    if source.process == target.process:
        return Transport.LOCAL
    if source.remote or target.remote:
        return Transport.TCP
    if source.card and source.card == target.card:
        return Transport.CUDA_IPC
    return Transport.SHARED_MEMORY


def edges(
    stages: Sequence[StageConfig], entry: str, remote: Collection[str] = ()
) -> tuple[Edge, ...]:
    """Those of a valid graph, in the order of its stages. `remote` names places on other hosts."""
    at = {stage.name: ends(stages, stage, remote) for stage in stages}
    at[COORDINATOR] = (End(process=COORDINATOR),)
    pairs = [(COORDINATOR, entry)]
    for stage in stages:
        pairs += [(stage.name, target) for target in stage.next]
        pairs += [(stage.name, COORDINATOR)] if stage.terminal is not None else []
    return tuple(
        Edge(source=source, target=target, transports=_transports(at[source], at[target]))
        for source, target in pairs
    )


def ends(
    stages: Sequence[StageConfig], stage: StageConfig, remote: Collection[str] = ()
) -> tuple[End, ...]:
    """Where each replica of a stage runs."""
    process = process_of(stage)
    env = dict(os.environ)
    env.pop(_VISIBLE_CARDS_VARIABLE, None)  # the same for all, unless a stage says otherwise
    for member in stages:
        if process_of(member) == process:
            env.update(member.env)
    return tuple(
        End(
            process=name,
            card=_shared_card(stage, number, env),
            remote=name in remote,
        )
        for number, name in enumerate(replica_names(process, stage.replicas))
    )


def shared_cards(
    stages: Sequence[StageConfig], remote: Collection[str] = ()
) -> dict[str, dict[str, str]]:
    """{place: {stage: card}} on this host; empty if no two processes have a card in common."""
    found: dict[str, dict[str, str]] = {}
    users: dict[str, set[str]] = {}
    for stage in stages:
        for end in ends(stages, stage, remote):
            if end.card and not end.remote:
                found.setdefault(end.process, {})[stage.name] = end.card
                users.setdefault(end.card, set()).add(end.process)
    return found if any(len(processes) > 1 for processes in users.values()) else {}


def _transports(sources: Iterable[End], targets: Iterable[End]) -> tuple[Transport, ...]:
    pairs = list(product(sources, targets))
    if any(source.process == target.process for source, target in pairs):
        return (Transport.LOCAL,)  # replicas of one process; a request stays in the one it met
    return tuple(dict.fromkeys(transport(source, target) for source, target in pairs))


def _shared_card(stage: StageConfig, replica: int, env: Mapping[str, str]) -> str:
    wanted = env.get(CARD_POOL_VARIABLE, "0") != "0" and _VISIBLE_CARDS_VARIABLE not in env
    return stage_device(stage, replica) if wanted and cards_of(stage) else ""
