"""The graph as text, and as a Mermaid flowchart, which many Markdown viewers draw.

The text names every topic and actor with its facts, and where its events come from and go to.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.graph.model import Edge, Graph, Node, NodeKind

_MERMAID: dict[NodeKind, tuple[str, str]] = {
    "topic": ("[(", ")]"),
    "table": ("{{", "}}"),
    "stream": ("([", "])"),
    "actor": ("[", "]"),
    "function": ("[[", "]]"),
    "inbox": ("[(", ")]"),
    "dead-letters": ("[(", ")]"),
}
_DOTTED = ("late", "dead-letters")
"""Kinds of edges that events take only in special cases."""


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
        yield _heading(node, several=several)
        for edge in graph.edges:
            if edge.target == node.id:
                yield f"    ◄── {_end(edge, nodes[edge.source])}"
        for edge in graph.edges:
            if edge.source == node.id:
                yield f"    ──► {_end(edge, nodes[edge.target])}"


def _heading(node: Node, *, several: bool) -> str:
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


def as_mermaid(graph: Graph) -> str:
    """A Mermaid flowchart."""
    return "\n".join(["flowchart LR", *(f"    {line}" for line in _mermaid(graph))]) + "\n"


def _mermaid(graph: Graph) -> Iterator[str]:
    ids = {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        before, after = _MERMAID[node.kind]
        yield f'{ids[node.id]}{before}"{_escaped(_title(graph, node))}"{after}'
    for edge in graph.edges:
        arrow = "-.->" if edge.kind in _DOTTED else "-->"
        label = _label(edge)
        said = f'|"{_escaped(label)}"|' if label else ""
        yield f"{ids[edge.source]} {arrow}{said} {ids[edge.target]}"


def _title(graph: Graph, node: Node) -> str:
    whose = f" ({', '.join(node.apps)})" if len(graph.apps) > 1 else ""
    return f"{node.name}{whose}"


def _label(edge: Edge) -> str:
    """The handler methods of an edge, after its kind if that is not ``takes`` or ``emits``."""
    methods = ", ".join(handler.rpartition(".")[2] for handler in edge.handlers)
    kind = edge.kind if edge.kind not in ("takes", "emits") else "feedback" if edge.feedback else ""
    return ": ".join(filter(None, (kind, methods)))


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
