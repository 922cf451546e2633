"""The stage graph: what is wrong with it, and which stages a request can visit.

Pure functions over `StageConfig`. Knows nothing of processes or models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from math import inf
from typing import Final

from omni_core.addresses import COORDINATOR
from omni_core.specs import StageConfig
from omni_core.types import Modality

_PROCESS_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def problems(stages: Sequence[StageConfig], entry: str) -> list[str]:
    """Everything wrong with a graph, one sentence each: the stage, the field and the mend."""
    names = [stage.name for stage in stages]
    found = [
        f"stage {name!r}: the name is used {names.count(name)} times; rename all but one"
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    if entry not in names:
        found.append(f"entry {entry!r} {_suggest(entry, names)}")
    for stage in stages:
        found += _stage_problems(stage, names)
    if not found:  # the checks below walk edges, which exist now
        found += _walk_problems(stages, entry)
    return found + _memory_problems(stages)


def reachable(stages: Sequence[StageConfig], start: str) -> set[str]:
    """`start` and every stage a payload can get to from it."""
    edges = {stage.name: stage.next for stage in stages}
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += edges[name]
    return seen


def needed(stages: Sequence[StageConfig], modalities: Iterable[Modality]) -> set[str]:
    """The stages a request for these modalities can visit: all from which a wanted terminal is
    reachable."""
    wanted = set(modalities)
    return {name for name, behind in served(stages).items() if wanted.intersection(behind)}


def served(stages: Sequence[StageConfig]) -> dict[str, tuple[Modality, ...]]:
    """{stage: modalities of the terminals reachable from it}, itself included."""
    terminals = {stage.name: stage.terminal for stage in stages}
    return {
        stage.name: tuple(
            sorted({kind for name in reachable(stages, stage.name) if (kind := terminals[name])})
        )
        for stage in stages
    }


def _stage_problems(stage: StageConfig, names: Sequence[str]) -> list[str]:
    found = []
    for field, targets in (("next", stage.next), ("wait_for", stage.wait_for)):
        found += [
            f"stage {stage.name!r}: {field} names {target!r}, which {_suggest(target, names)}"
            for target in targets
            if target not in names
        ]
    for field, keys in (("stream_to", stage.stream_to), ("project_payload", stage.project_payload)):
        found += [
            f"stage {stage.name!r}: {field} names {key!r}, which must also be in next"
            for key in keys
            if key not in stage.next
        ]
    if not stage.next and stage.terminal is None:
        found.append(f"stage {stage.name!r}: give it next, or terminal if requests end there")
    process = stage.process or stage.name
    if process == COORDINATOR or not _PROCESS_NAME.fullmatch(process):
        found.append(
            f"stage {stage.name!r}: process is {process!r}; use up to 64 letters, digits, '_', '-' "
            f"and '.', and not {COORDINATOR!r}"
        )
    for field, fn in (("wait_for_fn", stage.wait_for_fn), ("merge_fn", stage.merge_fn)):
        if fn is not None and not stage.wait_for:
            found.append(f"stage {stage.name!r}: {field} needs wait_for, the sources to gather")
    if len(stage.wait_for) > 1 and stage.merge_fn is None:
        found.append(f"stage {stage.name!r}: wait_for has several sources; set merge_fn")
    return found + _number_problems(stage)


def _number_problems(stage: StageConfig) -> list[str]:
    found = []
    if stage.tp_size != 1 or stage.replicas != 1:
        found.append(f"stage {stage.name!r}: tp_size and replicas above 1 are not supported")
    for field, value in (
        ("max_batch", stage.max_batch),
        ("max_concurrency", stage.max_concurrency),
    ):
        if value < 1:
            found.append(f"stage {stage.name!r}: {field} is {value}; it must be at least 1")
    if not 0 <= stage.max_wait_ms < inf:
        found.append(
            f"stage {stage.name!r}: max_wait_ms is {stage.max_wait_ms}; it must be 0 or more"
        )
    if stage.memory_fraction is not None and not 0 < stage.memory_fraction <= 1:
        found.append(
            f"stage {stage.name!r}: memory_fraction is {stage.memory_fraction}; "
            "it is a share of one card, above 0 and at most 1"
        )
    if any(card < 0 for card in _cards(stage)):
        found.append(f"stage {stage.name!r}: gpu is {stage.gpu}; cards count from 0")
    return found


def _walk_problems(stages: Sequence[StageConfig], entry: str) -> list[str]:
    found = []
    visited = reachable(stages, entry)
    edges = {stage.name: set(stage.next) for stage in stages}
    for stage in stages:
        if stage.name not in visited:
            found.append(
                f"stage {stage.name!r}: unreachable from {entry!r}; add it to the next of a stage "
                "or remove it"
            )
        if any(stage.name in reachable(stages, target) for target in stage.next):
            found.append(f"stage {stage.name!r}: next leads back to it; break the cycle")
        found += [
            f"stage {stage.name!r}: wait_for names {source!r}, whose next does not contain it"
            for source in stage.wait_for
            if stage.name not in edges[source]
        ]
    return found


def _memory_problems(stages: Sequence[StageConfig]) -> list[str]:
    shares: dict[int, float] = {}
    for stage in stages:
        for card in _cards(stage):
            shares[card] = shares.get(card, 0.0) + (stage.memory_fraction or 0.0)
    return [
        f"cuda:{card}: the memory_fraction of its stages sums to {share:.2f}; "
        "lower them to at most 1 together"
        for card, share in sorted(shares.items())
        if share > 1.0 + 1e-9
    ]


def _cards(stage: StageConfig) -> tuple[int, ...]:
    return (stage.gpu,) if isinstance(stage.gpu, int) else stage.gpu or ()


def _suggest(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, list(names), n=1)
    return f"does not exist; did you mean {close[0]!r}?" if close else "does not exist"
