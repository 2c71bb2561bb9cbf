"""The graph as text: every topic and actor with its facts, and where its events come from and go to."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.graph.model import Edge, Graph, Node


def as_text(graph: Graph) -> str:
    """The graph as lines for people. Ends with a newline."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: Graph) -> Iterator[str]:
    nodes = {node.id: node for node in graph.nodes}
    several = len(graph.apps) > 1
    for app in graph.apps:
        yield (
            f"app {app.name}: version {app.version}, {app.partitions} partitions, "
            + ("stops at an error" if app.on_error == "stop" else "what fails goes to the dead letters")
        )
        yield f"    keeps for itself: {', '.join(app.own_topics)}"
    for node in graph.nodes:
        yield ""
        yield _title(node, several=several)
        for edge in graph.edges:
            if edge.target == node.id:
                yield f"    ◄── {_end(edge, nodes[edge.source])}"
        for edge in graph.edges:
            if edge.source == node.id:
                yield f"    ──► {_end(edge, nodes[edge.target])}"


def _title(node: Node, *, several: bool) -> str:
    facts = [] if node.partitions is None else [f"{node.partitions} partitions"]
    if node.key is not None:
        facts.append(f"key {node.key}")
    facts += node.about
    of = f" of {node.type}" if node.type else ""
    whose = f" [{', '.join(node.apps)}]" if several else ""
    return f"{node.kind} {node.name}{of}{whose}" + (f": {', '.join(facts)}" if facts else "")


def _end(edge: Edge, node: Node) -> str:
    said = {"takes": "feedback: " if edge.feedback else "", "emits": ""}.get(edge.kind, f"{edge.kind}: ")
    methods = [handler.rpartition(".")[2] for handler in edge.handlers if "." in handler]
    by = f" ({', '.join(methods)})" if methods else ""
    return f"{said}{node.name}{by}"
