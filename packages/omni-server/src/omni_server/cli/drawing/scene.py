"""What there is to see of a stage graph: boxes, and edges with the transport of each.

Knows stages, and the API process, where requests come from and replies go to. Knows no format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omni_core.addresses import COORDINATOR
from omni_core.codec import INLINE_LIMIT_BYTES
from omni_core.devices import stage_device
from omni_core.graph import cards_of, depths, process_of
from omni_core.relay.transport import Transport, transport
from omni_core.specs import StageConfig

REQUEST: Final = "request"
TRANSPORTS: Final = (
    f"{Transport.OBJECT}: by reference, within a process",
    f"{Transport.MESSAGE}: in the message up to {INLINE_LIMIT_BYTES // 1024} KiB a tensor, larger "
    "ones in shared memory",
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
    transport: Transport
    streamed: bool
    """A payload and then a stream of chunks, or events for the client."""


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


def scene(title: str, stages: Sequence[StageConfig], entry: str) -> Scene:
    """The picture of a valid graph."""
    depth = depths(stages, entry)
    ordered = sorted(stages, key=lambda stage: depth[stage.name])
    home = {stage.name: process_of(stage) for stage in stages}
    boxes = [Box(name=REQUEST, process="", device="", depth=0)]
    edges = [_edge(REQUEST, entry, COORDINATOR, home[entry], streamed=False)]
    for stage in ordered:
        here = home[stage.name]
        below = depth[stage.name] + 1
        process = f"{here} x{stage.replicas}" if stage.replicas > 1 else here
        boxes.append(Box(name=stage.name, process=process, device=_device(stage), depth=below))
        for target in stage.next:
            streamed = target in stage.stream_to
            edges.append(_edge(stage.name, target, here, home[target], streamed=streamed))
        if stage.terminal is not None:
            reply = reply_of(stage.terminal)
            if reply not in {box.name for box in boxes}:
                boxes.append(Box(name=reply, process="", device="", depth=below + 1))
            edges.append(_edge(stage.name, reply, here, COORDINATOR, streamed=True))
    return Scene(title=title, boxes=tuple(boxes), edges=tuple(edges))


def reply_of(terminal: str) -> str:
    """The name of the box where events of a terminal end."""
    return f"{terminal} reply"


def _edge(source: str, target: str, here: str, there: str, *, streamed: bool) -> Edge:
    return Edge(source=source, target=target, transport=transport(here, there), streamed=streamed)


def _device(stage: StageConfig) -> str:
    cards = cards_of(stage)
    return f"cuda:{','.join(map(str, cards))}" if cards else stage_device(stage)
