"""The graph as a Mermaid flowchart, which many Markdown viewers draw."""

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
