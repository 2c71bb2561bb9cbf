"""The graph in formats that other tools draw: Mermaid (for Markdown pages) and DOT (for Graphviz)."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.graph.model import Edge, Graph, Node, NodeKind

_MERMAID: dict[NodeKind, tuple[str, str]] = {
    "topic": ("[(", ")]"),
    "stream": ("([", "])"),
    "actor": ("[", "]"),
    "function": ("[[", "]]"),
    "inbox": ("[(", ")]"),
    "dead-letters": ("[(", ")]"),
}
_DOT: dict[NodeKind, str] = {
    "topic": "cylinder",
    "stream": "oval",
    "actor": "box",
    "function": "component",
    "inbox": "cylinder",
    "dead-letters": "cylinder",
}
_DOTTED = ("late", "dead-letters")
"""Kinds of edges that events take only in special cases."""


def as_mermaid(graph: Graph) -> str:
    """A Mermaid flowchart."""
    return "\n".join(["flowchart LR", *(f"    {line}" for line in _mermaid(graph))]) + "\n"


def as_dot(graph: Graph) -> str:
    """A directed graph in DOT."""
    return "\n".join(["digraph tailrace {", *(f"    {line};" for line in _dot(graph)), "}"]) + "\n"


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


def _dot(graph: Graph) -> Iterator[str]:
    yield "rankdir=LR"
    for node in graph.nodes:
        yield f"{_quoted(node.id)} [label={_quoted(_title(graph, node))}, shape={_DOT[node.kind]}]"
    for edge in graph.edges:
        style = ", style=dotted" if edge.kind in _DOTTED else ""
        yield f"{_quoted(edge.source)} -> {_quoted(edge.target)} [label={_quoted(_label(edge))}{style}]"


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


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
