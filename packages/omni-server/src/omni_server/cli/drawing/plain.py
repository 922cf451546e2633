"""A stage graph as lines of text."""

from __future__ import annotations

from omni_server.cli.drawing.scene import TRANSPORTS, Box, Scene

LEGEND = "->  a payload, once    =>  a payload, then a stream"


def draw(scene: Scene) -> str:
    """Each box with its process and device, and below it its edges with their transport."""
    stages = [box for box in scene.boxes if any(edge.source == box.name for edge in scene.edges)]
    names = max(len(edge.target) for edge in scene.edges) + len("  -> ")
    names = max(names, *(len(box.name) for box in stages))
    homes = max(len(box.process) for box in stages)
    lines = [scene.title]
    for box in stages:
        lines += ["", f"{box.name:{names}}  {_home(box):{homes}}  {box.device}".rstrip()]
        for edge in scene.edges:
            if edge.source == box.name:
                arrow = f"  {'=>' if edge.streamed else '->'} {edge.target}"
                lines.append(f"{arrow:{names}}  {edge.label}")
    return "\n".join([*lines, "", LEGEND, *TRANSPORTS])


def _home(box: Box) -> str:
    return box.process or "api process"
