"""A stage graph as an SVG picture: a colour a process, thick lines for streams.

Knows shapes and type. Where boxes go is `layout`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from omni_core.relay.transport import Transport
from omni_server.cli.drawing.layout import BOX_HEIGHT, Layout, Point, lay_out
from omni_server.cli.drawing.scene import TRANSPORTS, Box, Edge, Scene

MARGIN: Final = 24.0
TITLE_HEIGHT: Final = 44.0
LEGEND_LINE: Final = 20.0
COLUMN_GAP: Final = 104.0
LETTER_WIDTH: Final = 8.4
"""Of a 13 px sans-serif letter, on average and rounded up."""
FILLS: Final = (
    "#dbeafe",
    "#dcfce7",
    "#fef3c7",
    "#fae8ff",
    "#ffe4e6",
    "#cffafe",
    "#e0e7ff",
    "#ecfccb",
)
INK: Final = "#1f2937"
FAINT: Final = "#6b7280"
STYLE: Final = (
    f"text{{font-family:Helvetica,Arial,sans-serif;font-size:13px;fill:{INK}}}"
    f".small{{font-size:11px;fill:{FAINT}}}.title{{font-size:16px;font-weight:bold}}"
    ".name{font-weight:bold}.middle{text-anchor:middle}"
    f".edge{{fill:none;stroke:{FAINT};stroke-width:1.4}}.stream{{stroke:{INK};stroke-width:3}}"
    ".local{stroke-dasharray:5 4}"
)


def draw(scene: Scene) -> str:
    """The text of an SVG file."""
    depths = {box.name: box.depth for box in scene.boxes}
    layout = lay_out(depths, [(edge.source, edge.target) for edge in scene.edges])
    width = max(_box_width(box) for box in scene.boxes)
    columns = max(depths.values()) + 1
    total_width = 2 * MARGIN + columns * width + (columns - 1) * COLUMN_GAP
    legend = _legend(scene, MARGIN + TITLE_HEIGHT + layout.height + MARGIN)
    total_height = MARGIN + TITLE_HEIGHT + layout.height + MARGIN + _legend_height(scene)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_width:.0f}" '
        f'height="{total_height:.0f}" viewBox="0 0 {total_width:.0f} {total_height:.0f}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" markerUnits="userSpaceOnUse" markerWidth="10" markerHeight="10" '
        f'refX="9" refY="5" orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker>'
        "</defs>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(MARGIN, MARGIN + 16, scene.title, "title"),
    ]
    parts += [_line(edge, layout, depths, width) for edge in scene.edges]
    parts += [_box(box, layout.rows[box.name], width, scene.processes) for box in scene.boxes]
    parts += [_label(edge, layout, depths, width) for edge in scene.edges]
    return "\n".join([*parts, *legend, "</svg>"])


def _box(box: Box, row: float, width: float, processes: Sequence[str]) -> str:
    x, y = _left(box.depth, width), _down(row) - BOX_HEIGHT / 2
    fill = FILLS[processes.index(box.process) % len(FILLS)] if box.process else "#ffffff"
    radius = 8 if box.process else BOX_HEIGHT / 2
    below = f"{box.process} · {box.device}" if box.process else "api process"
    middle = x + width / 2
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOX_HEIGHT:.0f}" '
        f'rx="{radius:.0f}" fill="{fill}" stroke="{INK}"/>'
        + _text(middle, y + 20, box.name, "name middle")
        + _text(middle, y + 36, below, "small middle")
    )


def _line(edge: Edge, layout: Layout, depths: dict[str, int], width: float) -> str:
    start, *rest = _points(edge, layout, depths, width)
    path = f"M{start[0]:.1f},{start[1]:.1f}"
    for number, (x, y) in enumerate(rest):
        if number % 2:  # along the column of a waypoint
            path += f" L{x:.1f},{y:.1f}"
        else:
            bend = start[0] + (x - start[0]) / 2
            path += f" C{bend:.1f},{start[1]:.1f} {bend:.1f},{y:.1f} {x:.1f},{y:.1f}"
        start = (x, y)
    kinds = ["edge"]
    kinds += ["stream"] if edge.streamed else []
    kinds += ["local"] if edge.transports == (Transport.LOCAL,) else []
    return f'<path class="{" ".join(kinds)}" d="{path}" marker-end="url(#tip)"/>'


def _label(edge: Edge, layout: Layout, depths: dict[str, int], width: float) -> str:
    """The transports, in the middle of the edge's first bend."""
    start, end, *_ = _points(edge, layout, depths, width)
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    half = len(edge.label) * 6.0 / 2 + 3
    return (
        f'<rect x="{x - half:.1f}" y="{y - 8:.1f}" width="{2 * half:.1f}" height="16" '
        f'fill="#ffffff" opacity="0.9"/>' + _text(x, y + 4, edge.label, "small middle")
    )


def _points(edge: Edge, layout: Layout, depths: dict[str, int], width: float) -> list[Point]:
    """Both ends, and where the edge enters and leaves the columns between."""
    first, last = depths[edge.source], depths[edge.target]
    points = [(_left(first, width) + width, _down(layout.rows[edge.source]))]
    for number, row in enumerate(layout.waypoints[edge.source, edge.target], first + 1):
        x, y = _left(number, width), _down(row)
        points += [(x, y), (x + width, y)]
    return [*points, (_left(last, width), _down(layout.rows[edge.target]))]


def _legend(scene: Scene, top: float) -> list[str]:
    lines = [
        "thin, a payload, once; thick, a payload and then a stream",
        *(f"{'dashed' if t.startswith(Transport.LOCAL) else 'solid'}, {t}" for t in TRANSPORTS),
    ]
    parts = [
        _text(MARGIN, top + 12 + number * LEGEND_LINE, line, "small")
        for number, line in enumerate(lines)
    ]
    x, y = MARGIN, top + len(lines) * LEGEND_LINE
    for number, process in enumerate(scene.processes):
        fill = FILLS[number % len(FILLS)]
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="14" height="14" fill="{fill}" stroke="{INK}"/>'
            + _text(x + 20, y + 11, f"process {process}", "small")
        )
        x += 44 + LETTER_WIDTH * len(f"process {process}")
    return parts


def _legend_height(scene: Scene) -> float:
    return LEGEND_LINE * (len(TRANSPORTS) + 2) + MARGIN


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _box_width(box: Box) -> float:
    small = len(f"{box.process} · {box.device}") * 0.85
    return max(len(box.name), small) * LETTER_WIDTH + 24


def _left(depth: int, width: float) -> float:
    return MARGIN + depth * (width + COLUMN_GAP)


def _down(row: float) -> float:
    return MARGIN + TITLE_HEIGHT + row
