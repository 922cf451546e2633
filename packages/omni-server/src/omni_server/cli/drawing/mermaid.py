"""A stage graph as a Mermaid flowchart: one subgraph a process."""

from __future__ import annotations

from omni_server.cli.drawing.scene import Box, Scene


def draw(scene: Scene) -> str:
    """The text of a flowchart; thick edges are streams."""
    ids = {box.name: f"s{number}" for number, box in enumerate(scene.boxes)}
    lines = ["---", f'title: "{_quoted(scene.title)}"', "---", "flowchart LR"]
    lines += [
        f'  {ids[box.name]}(["{_quoted(box.name)}"])' for box in scene.boxes if not box.process
    ]
    for number, process in enumerate(scene.processes):
        lines.append(f'  subgraph p{number}["process {_quoted(process)}"]')
        inside = [box for box in scene.boxes if box.process == process]
        lines += [f'    {ids[box.name]}["{_label(box)}"]' for box in inside]
        lines.append("  end")
    for edge in scene.edges:
        arrow = "==>" if edge.streamed else "-->"
        lines.append(f'  {ids[edge.source]} {arrow}|"{edge.label}"| {ids[edge.target]}')
    return "\n".join(lines)


def _label(box: Box) -> str:
    return f"{_quoted(box.name)}<br/>{_quoted(box.device)}"


def _quoted(text: str) -> str:
    return text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;")
