"""Walks over the stage graph: what is behind what, and which stages a request can visit.

Pure functions over `StageConfig`, which also work on graphs that `validate` would refuse. Knows
nothing of processes or models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from omni_core.specs import StageConfig
from omni_core.types import Modality


def reachable(stages: Sequence[StageConfig], start: str) -> set[str]:
    """`start` and every stage a payload can get to from it; targets that do not exist are left
    out."""
    edges = {stage.name: stage.next for stage in stages}
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in edges and name not in seen:
            seen.add(name)
            todo += edges[name]
    return seen


def cycles(stages: Sequence[StageConfig]) -> list[tuple[str, ...]]:
    """One shortest way round for every set of stages that lead back to each other."""
    found: list[tuple[str, ...]] = []
    behind = {stage.name: reachable(stages, stage.name) for stage in stages}
    told: set[str] = set()
    for stage in stages:
        if stage.name not in told and (way := _way_back(stages, stage.name)):
            found.append(way)
            told |= {name for name in behind[stage.name] if stage.name in behind[name]}
    return found


def depths(stages: Sequence[StageConfig], entry: str) -> dict[str, int]:
    """Longest way from the entry to each stage, in edges; the graph has no cycles."""
    longest = dict.fromkeys((stage.name for stage in stages), 0)
    following = {stage.name: stage.next for stage in stages}
    reached = [entry]
    while reached:
        name = reached.pop()
        for target in following[name]:
            if longest[target] <= longest[name]:
                longest[target] = longest[name] + 1
                reached.append(target)
    return longest


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


def process_of(stage: StageConfig) -> str:
    """The name of the process a stage runs in."""
    return stage.process or stage.name


def replica_names(process: str, count: int) -> list[str]:
    """The processes that a replicated one runs in: NAME, NAME.1, NAME.2, ..."""
    return [process, *(f"{process}.{number}" for number in range(1, count))]


def place_of(process: str) -> str:
    """The place that a process fills: who follows one that died is NAME@1, NAME@2, ..."""
    place, at, number = process.rpartition("@")
    return place if at and number.isdecimal() else process


def cards_of(stage: StageConfig) -> tuple[int, ...]:
    """The cards of a stage; none for one that computes on the CPU."""
    return (stage.gpu,) if isinstance(stage.gpu, int) else stage.gpu or ()


def _way_back(stages: Sequence[StageConfig], start: str) -> tuple[str, ...]:
    """The stages of a shortest cycle through `start`, beginning with it; empty if there is none."""
    edges = {stage.name: stage.next for stage in stages}
    ways: list[tuple[str, ...]] = [(start,)]
    seen: set[str] = set()
    for way in ways:  # grows while it is read: breadth first
        for target in edges.get(way[-1], ()):
            if target == start:
                return way
            if target not in seen:
                seen.add(target)
                ways.append((*way, target))
    return ()
