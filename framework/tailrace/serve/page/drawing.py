"""Places the graph of an app on a plane: a column for each step from the inputs on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from tailrace.graph.model import Graph, Node

_WIDTH, _HEIGHT = 190, 58
_GAP_X, _GAP_Y = 56, 18
_MARGIN = 8
_LONGEST = 24
"""Characters of a line in a box."""


class Box(NamedTuple):
    """A node. ``lines`` are facts below its name."""

    x: int
    y: int
    kind: str
    name: str
    title: str
    lines: tuple[str, ...]


class Arrow(NamedTuple):
    """An edge, as the path of an SVG."""

    path: str
    kind: str
    title: str


class Drawing(NamedTuple):
    """The boxes and arrows, and the size of the plane in pixels."""

    width: int
    height: int
    box_width: int
    box_height: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def drawing_of(graph: Graph, facts: Mapping[str, tuple[str, ...]]) -> Drawing:
    """The drawing of a graph. ``facts``: by kind and name of a node (``topic:readings``), up to two lines for its box."""
    columns = _columns(graph)
    rows: dict[int, int] = defaultdict(int)
    places: dict[str, tuple[int, int]] = {}
    boxes: list[Box] = []
    for node in graph.nodes:
        column = columns[node.id]
        x = _MARGIN + column * (_WIDTH + _GAP_X)
        y = _MARGIN + rows[column] * (_HEIGHT + _GAP_Y)
        rows[column] += 1
        places[node.id] = x, y
        kind = "topic" if node.kind == "table" else node.kind
        lines = facts.get(f"{kind}:{node.name}", ())
        boxes.append(Box(x, y, node.kind, _short(node.name), _title(node), tuple(map(_short, lines))))
    arrows = [
        Arrow(
            _path(places[edge.source], places[edge.target]),
            edge.kind,
            f"{edge.kind} {', '.join(edge.handlers)}".strip(),
        )
        for edge in graph.edges
    ]
    width = 2 * _MARGIN + (max(columns.values(), default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X
    height = 2 * _MARGIN + max(rows.values(), default=1) * (_HEIGHT + _GAP_Y) - _GAP_Y
    return Drawing(width, height, _WIDTH, _HEIGHT, tuple(boxes), tuple(arrows))


def _columns(graph: Graph) -> dict[str, int]:
    """The column of each node: one after its sources. Edges that lead back, and feedback, do not count."""
    columns = {node.id: 0 for node in graph.nodes}
    onward = [edge for edge in graph.edges if not edge.feedback]
    for _ in graph.nodes:  # at most as many steps as nodes, also with a circle
        moved = False
        for edge in onward:
            wanted = columns[edge.source] + 1
            if columns[edge.target] < wanted < len(columns):
                columns[edge.target] = wanted
                moved = True
        if not moved:
            break
    used = {column: number for number, column in enumerate(sorted(set(columns.values())))}
    return {node: used[column] for node, column in columns.items()}


def _path(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + _WIDTH, source[1] + _HEIGHT // 2
    x2, y2 = target[0], target[1] + _HEIGHT // 2
    bend = max(_GAP_X // 2, (x2 - x1) // 2)
    return f"M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}"


def _title(node: Node) -> str:
    return "; ".join(filter(None, (f"{node.kind} {node.name}", node.type, node.key, *node.about)))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
