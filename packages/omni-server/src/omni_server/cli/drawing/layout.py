"""Where the boxes of a layered graph go: columns by depth, few crossings, bent edges around boxes.

The method is Sugiyama's: an edge over several columns gets a waypoint in each, then every column is
sorted by the mean position of its neighbours, back and forth. Knows names and sizes, no format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final, TypeAlias

BOX_HEIGHT: Final = 46.0
WAYPOINT_HEIGHT: Final = 18.0
ROW_GAP: Final = 26.0
_SWEEPS: Final = 8

Pair: TypeAlias = tuple[str, str]
Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Coordinates: x grows to the right, y downwards, from 0."""

    rows: Mapping[str, float]
    """y of the middle of each box."""
    waypoints: Mapping[Pair, tuple[float, ...]]
    """y of an edge in every column between its ends."""
    height: float


def lay_out(depths: Mapping[str, int], edges: Sequence[Pair]) -> Layout:
    """Rows for boxes in the columns `depths`; edges go from a smaller depth to a larger one."""
    chains = {edge: _chain(edge, depths) for edge in edges}
    columns: list[list[str]] = [[] for _ in range(max(depths.values()) + 1)]
    for name, depth in depths.items():
        columns[depth].append(name)
    for (source, _), chain in chains.items():
        for number, waypoint in enumerate(chain[1:-1], 1):
            columns[depths[source] + number].append(waypoint)
    links = [link for chain in chains.values() for link in pairwise(chain)]
    _sort(columns, links)
    sizes = {name: BOX_HEIGHT if name in depths else WAYPOINT_HEIGHT for c in columns for name in c}
    rows, height = _rows(columns, sizes)
    return Layout(
        rows={name: rows[name] for name in depths},
        waypoints={edge: tuple(rows[w] for w in chain[1:-1]) for edge, chain in chains.items()},
        height=height,
    )


def _chain(edge: Pair, depths: Mapping[str, int]) -> list[str]:
    source, target = edge
    between = range(depths[source] + 1, depths[target])
    return [source, *(f"{source}>{target}@{depth}" for depth in between), target]


def _sort(columns: list[list[str]], links: Sequence[Pair]) -> None:
    """Order every column by where its neighbours to one side are, then to the other."""
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for left, right in links:
        before.setdefault(right, []).append(left)
        after.setdefault(left, []).append(right)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        neighbours = before if forward else after
        for column in columns if forward else reversed(columns):
            place = {name: (i + 0.5) / len(c) for c in columns for i, name in enumerate(c)}
            mean = {n: fmean([place[m] for m in neighbours.get(n, [n])]) for n in column}
            column.sort(key=mean.__getitem__)


def _rows(
    columns: Sequence[Sequence[str]], sizes: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Columns stacked and centred."""
    heights = [sum(sizes[n] for n in c) + ROW_GAP * (len(c) - 1) for c in columns]
    height = max(heights)
    rows: dict[str, float] = {}
    for column, own in zip(columns, heights, strict=True):
        top = (height - own) / 2
        for name in column:
            rows[name] = top + sizes[name] / 2
            top += sizes[name] + ROW_GAP
    return rows, height
