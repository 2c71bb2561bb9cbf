"""The graph as a picture: one SVG without scripts and external resources, for light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from tailrace.graph.layout import Box, Point, lay_out
from tailrace.graph.model import Edge, Graph, Node

_MARGIN = 24.0
_LINE = 16.0
_CHARACTER = 6.6
_LONGEST = 44
_ARROW = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path class="head" d="M0 0.5 8 4 0 7.5z"/></marker></defs>'
)
_STYLE = """
svg { font: 12px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif; background: #fff; }
text { fill: #1f2933; } .name { font-weight: 600; } .about { fill: #616e7c; font-size: 11px; }
.node { stroke-width: 1.4; } .edge { fill: none; stroke: #7b8794; stroke-width: 1.4; } .head { fill: #7b8794; }
.topic { fill: #e3f1fd; stroke: #2f80c3; } .stream { fill: #eef2f6; stroke: #7b8794; stroke-dasharray: 4 3; }
.actor { fill: #fff3d6; stroke: #d08a0b; } .function { fill: #f3ebfa; stroke: #8a56b8; }
.inbox { fill: #e4f5e9; stroke: #3a9a5c; } .dead-letters { fill: #fde8e6; stroke: #c8483c; }
.late, .dead-letters-edge { stroke-dasharray: 5 4; } .feedback { stroke-dasharray: 2 3; }
.sends { stroke: #3a9a5c; } .dead-letters-edge { stroke: #c8483c; }
@media (prefers-color-scheme: dark) {
  svg { background: #14181d; } text { fill: #e4e7eb; } .about { fill: #9aa5b1; }
  .topic { fill: #12293d; } .stream { fill: #20262d; } .actor { fill: #3a2b0a; } .function { fill: #2b1f38; }
  .inbox { fill: #12301d; } .dead-letters { fill: #3b1714; }
}
"""


def as_svg(graph: Graph) -> str:
    """The picture as the text of an SVG file. Raises MissingExtraError if pygraphviz is not installed."""
    lines = {node.id: list(_lines(node, several=len(graph.apps) > 1)) for node in graph.nodes}
    sizes = {id_: _size(said) for id_, said in lines.items()}
    laid = lay_out(sizes, [(edge.source, edge.target) for edge in graph.edges])
    title = ", ".join(
        f"{app.name} {app.version} ({app.partitions} partition{'s' if app.partitions != 1 else ''})"
        for app in graph.apps
    )
    top = _MARGIN + 28
    width = max(laid.width, len(title) * 8.5, 560) + 2 * _MARGIN
    height = laid.height + top + _MARGIN + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        _ARROW,
        f'<text x="{_MARGIN:g}" y="{_MARGIN + 4:g}" font-size="15" class="name">{escape(title)}</text>',
        f'<g transform="translate({_MARGIN:g} {top:g})">',
    ]
    parts += [_edge(edge, curve) for edge, curve in zip(graph.edges, laid.curves, strict=True)]
    parts += [_node(node, laid.boxes[node.id], lines[node.id]) for node in graph.nodes]
    parts += ["</g>", *_legend(graph, height - _MARGIN), "</svg>"]
    return "\n".join(parts) + "\n"


def _lines(node: Node, *, several: bool) -> Iterator[str]:
    yield node.name
    if node.type is not None:
        yield (
            node.type
            if node.partitions is None
            else f"{node.type}, {node.partitions} partition{'s' * (node.partitions != 1)}"
        )
    facts = [] if node.key is None else [f"key {node.key}"]
    facts += node.about
    if several and node.kind in ("actor", "function"):
        facts.insert(0, f"of {node.apps[0]}")
    if len(node.apps) > 1:
        facts.append(f"shared by {', '.join(node.apps)}")
    yield from facts[:5]
    if len(facts) > 5:
        yield f"and {len(facts) - 5} more"


def _size(lines: list[str]) -> tuple[float, float]:
    widest = max(len(_cut(line)) * (_CHARACTER if at else 7.4) for at, line in enumerate(lines))
    return max(90.0, widest + 28), len(lines) * _LINE + 14


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _node(node: Node, box: Box, lines: list[str]) -> str:
    x, y, width, height = box
    # Actors and functions have sharp corners; topics and streams are round.
    radius = 4 if node.kind in ("actor", "function") else min(16.0, height / 2)
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"'
    said = [f'<g><rect class="node {node.kind}" {place}/>']
    for at, line in enumerate(lines):
        said.append(
            f'<text class="{"about" if at else "name"}" x="{x + width / 2:.1f}" y="{y + 19 + at * _LINE:.1f}" '
            f'text-anchor="middle">{escape(_cut(line))}</text>'
        )
    return "".join(said) + "</g>"


def _edge(edge: Edge, curve: list[Point]) -> str:
    begin, *rest = (f"{x:.1f} {y:.1f}" for x, y in curve)
    path = f"M{begin}C{' '.join(rest)}"
    kind: str = "dead-letters-edge" if edge.kind == "dead-letters" else edge.kind
    meaning = f"{edge.kind}, feedback" if edge.feedback else edge.kind
    kind += " feedback" * edge.feedback
    hint = escape(f"{meaning}: {', '.join(edge.handlers)}" if edge.handlers else meaning)
    return f'<path class="edge {kind}" marker-end="url(#head)" d="{path}"><title>{hint}</title></path>'


def _legend(graph: Graph, y: float) -> Iterator[str]:
    """The legend at the bottom: the kinds of nodes and edges in this graph."""
    x = _MARGIN
    for kind in dict.fromkeys(node.kind for node in graph.nodes):
        radius = 2 if kind in ("actor", "function") else 7
        yield f'<rect class="node {kind}" x="{x:.1f}" y="{y - 10:.1f}" width="22" height="14" rx="{radius}"/>'
        yield f'<text class="about" x="{x + 28:.1f}" y="{y + 1:.1f}">{kind}</text>'
        x += 28 + len(kind) * 6.5 + 20
    meanings = (
        ("late", "late"),
        ("sends", "message"),
        ("feedback", "feedback"),
        ("dead-letters", "cannot be handled"),
    )
    for meaning, said in meanings:
        if any(edge.feedback if meaning == "feedback" else edge.kind == meaning for edge in graph.edges):
            style = "dead-letters-edge" if meaning == "dead-letters" else meaning
            yield f'<path class="edge {style}" d="M{x:.1f} {y - 3:.1f}h26"/>'
            yield f'<text class="about" x="{x + 32:.1f}" y="{y + 1:.1f}">{said}</text>'
            x += 32 + len(said) * 6.5 + 20
