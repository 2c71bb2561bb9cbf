"""A Mermaid flowchart has every node and edge of the graph, and no name breaks its syntax."""

from __future__ import annotations

import re

from tailrace.graph import Edge, Graph, Node, as_mermaid, graph_of
from tests.graph.market import app, ledger

MARKET = graph_of([app.plan(), ledger.plan()])


def test_mermaid_has_every_node_and_every_edge() -> None:
    first, *lines = as_mermaid(MARKET).splitlines()
    assert first == "flowchart LR"
    nodes = [line for line in lines if re.match(r"    n\d+[\[(]", line)]
    edges = [line for line in lines if re.match(r"    n\d+ -", line)]
    assert len(nodes) == len(MARKET.nodes)
    assert len(edges) == len(MARKET.edges)
    assert len(nodes) + len(edges) == len(lines)


def test_names_are_escaped() -> None:
    nodes = (Node('topic "a"', "topic", 'x"<\\', ("one",)), Node("b", "actor", "B", ("one",)))
    drawn = Graph((), nodes, (Edge('topic "a"', "b", "late"),))
    assert 'n0[("x&quot;&lt;\\")]' in as_mermaid(drawn)
    assert 'n0 -.->|"late"| n1' in as_mermaid(drawn)
