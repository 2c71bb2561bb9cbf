"""The picture: nothing overlaps, everything flows to the right, and the SVG is well formed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.graph import as_svg, graph_of
from tailrace.graph.layout import Box, lay_out
from tests.graph.market import app, ledger


def apart(one: Box, other: Box) -> bool:
    return (
        one.x + one.width <= other.x
        or other.x + other.width <= one.x
        or one.y + one.height <= other.y
        or other.y + other.height <= one.y
    )


NEAR = 0.2
"""Graphviz gives five digits."""
AT_THE_BORDER = 1.0
"""A curve may end half a line's width beside the border of its box."""


def near(box: Box, point: tuple[float, float]) -> bool:
    """Whether a point is in the box or on its border."""
    away = max(
        box.x - point[0], point[0] - box.x - box.width, box.y - point[1], point[1] - box.y - box.height
    )
    return away <= AT_THE_BORDER


NODES = st.integers(1, 12)


@given(
    NODES.flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
    )
)
def test_boxes_never_overlap_and_all_edges_but_those_of_cycles_go_right(drawn) -> None:
    count, pairs = drawn
    sizes = {f"n{at}": (40.0 + at, 20.0 + 3 * at) for at in range(count)}
    edges = [(f"n{a}", f"n{b}") for a, b in pairs]
    laid = lay_out(sizes, edges)
    assert laid == lay_out(sizes, edges)
    assert laid.boxes.keys() == sizes.keys()
    for one, other in combinations(laid.boxes.values(), 2):
        assert apart(one, other)
    for box in laid.boxes.values():
        assert min(box.x, box.y) >= -NEAR
        assert box.x + box.width <= laid.width + NEAR
        assert box.y + box.height <= laid.height + NEAR
    for (a, b), curve in zip(edges, laid.curves, strict=True):
        assert len(curve) % 3 == 1
        assert near(laid.boxes[a], curve[0])
        assert near(laid.boxes[b], curve[-1])
    for a, b in edges:
        if a != b:
            left, right = sorted((laid.boxes[a], laid.boxes[b]))
            assert left.x + left.width < right.x
    if all(a < b for a, b in pairs):
        assert all(laid.boxes[a].x < laid.boxes[b].x for a, b in edges)


def test_a_straight_chain_lies_on_a_line() -> None:
    laid = lay_out(dict.fromkeys("abcd", (50, 20)), [("a", "b"), ("b", "c"), ("c", "d")])
    assert max(abs(box.y) for box in laid.boxes.values()) < NEAR


def test_two_edges_that_need_not_cross_do_not() -> None:
    laid = lay_out(dict.fromkeys("abxy", (50, 20)), [("a", "y"), ("b", "x")])
    boxes = laid.boxes
    assert (boxes["a"].y < boxes["b"].y) == (boxes["y"].y < boxes["x"].y)


def test_the_picture_is_well_formed_and_has_every_node_and_edge() -> None:
    graph = graph_of([app.plan(), ledger.plan()])
    root = ET.fromstring(as_svg(graph))
    space = "{http://www.w3.org/2000/svg}"
    texts = {text.text for text in root.iter(f"{space}text")}
    assert {node.name for node in graph.nodes} <= texts
    ways = [path for path in root.iter(f"{space}path") if path.get("marker-end")]
    assert len(ways) == len(graph.edges)
    assert not any("script" in element.tag or "href" in "".join(element.keys()) for element in root.iter())


def test_names_are_escaped() -> None:
    shop = tr.App("a")
    event = msgspec.defstruct("Generic", [("k", str)])
    event.__name__ = event.__qualname__ = "List<int> & more"
    shop.topic("t", event, key="k")
    assert "List&lt;int&gt; &amp; more" in as_svg(graph_of([shop.plan()]))
