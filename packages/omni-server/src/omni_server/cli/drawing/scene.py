"""What there is to see of a stage graph: boxes, and edges with the transport of each.

Knows stages, and the API process, where requests come from and replies go to. Knows no format.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from omni_core.addresses import COORDINATOR
from omni_core.codec import INLINE_LIMIT_BYTES
from omni_core.devices import stage_device
from omni_core.graph import cards_of, depths, process_of
from omni_core.relay import transport
from omni_core.relay.transport import Transport
from omni_core.specs import StageConfig

REQUEST: Final = "request"
TRANSPORTS: Final = (
    f"{Transport.LOCAL}: by reference, within a process",
    f"{Transport.SHARED_MEMORY}: in the message up to {INLINE_LIMIT_BYTES // 1024} KiB a tensor, "
    "larger ones in shared memory",
    f"{Transport.CUDA_IPC}: as shm, but large tensors of the card both ends use stay on it",
    f"{Transport.TCP}: in the message, to or from another host",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A stage, or one end of the road in the API process."""

    name: str
    process: str
    """With the number of its replicas if there are several; "" in the API process."""
    device: str
    depth: int
    """Longest way from the request, in edges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """From box to box, by their names."""

    source: str
    target: str
    transports: tuple[Transport, ...]
    """Several where replicas differ."""
    streamed: bool
    """A payload and then a stream of chunks, or events for the client."""

    @property
    def label(self) -> str:
        """Its transports, written."""
        return ", ".join(self.transports)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A graph to draw: boxes in the order a request meets them."""

    title: str
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]

    @property
    def processes(self) -> tuple[str, ...]:
        """Names of the stage processes, in the order of their first stages."""
        return tuple(dict.fromkeys(box.process for box in self.boxes if box.process))


def scene(
    title: str, stages: Sequence[StageConfig], entry: str, remote: Collection[str] = ()
) -> Scene:
    """The picture of a valid graph; `remote` names the processes of other hosts."""
    depth = depths(stages, entry)
    ordered = sorted(stages, key=lambda stage: depth[stage.name])
    boxes = {REQUEST: Box(name=REQUEST, process="", device="", depth=0)}
    for stage in ordered:
        boxes[stage.name] = _box(stage, depth[stage.name] + 1)
        if stage.terminal is not None:
            reply = reply_of(stage.terminal)
            end = Box(name=reply, process="", device="", depth=depth[stage.name] + 2)
            boxes.setdefault(reply, end)
    by_name = {stage.name: stage for stage in stages}
    edges = [_edge(way, by_name) for way in transport.edges(ordered, entry, remote)]
    return Scene(title=title, boxes=tuple(boxes.values()), edges=tuple(edges))


def reply_of(terminal: str) -> str:
    """The name of the box where events of a terminal end."""
    return f"{terminal} reply"


def _box(stage: StageConfig, depth: int) -> Box:
    process = process_of(stage)
    if stage.replicas > 1:
        process += f" x{stage.replicas}"
    return Box(name=stage.name, process=process, device=_device(stage), depth=depth)


def _edge(way: transport.Edge, stages: Mapping[str, StageConfig]) -> Edge:
    source, target = way.source, way.target
    if source == COORDINATOR:
        return Edge(source=REQUEST, target=target, transports=way.transports, streamed=False)
    stage = stages[source]
    if target == COORDINATOR and stage.terminal is not None:
        reply = reply_of(stage.terminal)
        return Edge(source=source, target=reply, transports=way.transports, streamed=True)
    streamed = target in stage.stream_to
    return Edge(source=source, target=target, transports=way.transports, streamed=streamed)


def _device(stage: StageConfig) -> str:
    cards = cards_of(stage)
    return f"cuda:{','.join(map(str, cards))}" if cards else stage_device(stage)
