"""Positions of the nodes and edges of a graph in a picture, from left to right. Graphviz's ``dot`` computes them.

Graphviz gets nodes of a given size without text. So the result does not depend on fonts and is the same on every machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tailrace.core.errors import MissingExtraError

_PER_INCH = 72
"""Units of the picture per inch. Graphviz's unit of size is the inch."""

Point = tuple[float, float]


class Box(NamedTuple):
    """The place of a node: its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float


class Laid(NamedTuple):
    """A layout: the box of each node, the size of the whole, and the points of each edge.

    The points of an edge are its start, followed by three points for each Bézier curve.
    """

    boxes: dict[str, Box]
    curves: list[list[Point]]
    width: float
    height: float


def lay_out(
    sizes: Mapping[str, tuple[float, float]],
    edges: Sequence[tuple[str, str]],
    *,
    column_gap: float = 90,
    gap: float = 22,
) -> Laid:
    """Lay out nodes of given width and height. The result depends only on ``sizes`` and ``edges`` and their order.

    Raises:
        MissingExtraError: pygraphviz is not installed.
    """
    drawn = _graphviz().AGraph(
        strict=False,
        directed=True,
        rankdir="LR",
        ranksep=column_gap / _PER_INCH,
        nodesep=gap / _PER_INCH,
    )
    drawn.node_attr.update(shape="box", label="", fixedsize="true")
    drawn.edge_attr.update(dir="none")
    names = {node: f"n{number}" for number, node in enumerate(sizes)}
    for node, (width, height) in sizes.items():
        drawn.add_node(names[node], width=width / _PER_INCH, height=height / _PER_INCH)
    for number, (source, target) in enumerate(edges):
        drawn.add_edge(names[source], names[target], key=str(number))
    drawn.layout(prog="dot")
    left, bottom, right, top = map(float, drawn.graph_attr["bb"].split(","))

    def points(text: str) -> list[Point]:
        found = [tuple(map(float, one.split(","))) for one in text.split()]
        return [(x - left, top - y) for x, y in found]  # Graphviz's y axis points upwards

    boxes: dict[str, Box] = {}
    for node, (width, height) in sizes.items():
        [(x, y)] = points(drawn.get_node(names[node]).attr["pos"])
        boxes[node] = Box(x - width / 2, y - height / 2, width, height)
    curves = [
        points(drawn.get_edge(names[source], names[target], str(number)).attr["pos"])
        for number, (source, target) in enumerate(edges)
    ]
    drawn.close()
    return Laid(boxes, curves, right - left, top - bottom)


def _graphviz() -> Any:
    try:
        return importlib.import_module("pygraphviz")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "a picture of a graph needs pygraphviz",
            hint="pip install 'tailrace[graph]', or write text, JSON or Mermaid (--format), which need nothing.",
        ) from error
