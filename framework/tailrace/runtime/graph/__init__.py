"""An app, or several that share topics, as a graph of what flows where: as data, as text, and as a picture.

What handlers take is declared. What they emit is not: it is read from their code (``core.declare.emissions``), and may be more than what
they ever do.
"""

from tailrace.runtime.graph.model import Edge, Graph, Node, graph_of
from tailrace.runtime.graph.svg import as_svg
from tailrace.runtime.graph.text import as_text

__all__ = ["Edge", "Graph", "Node", "as_svg", "as_text", "graph_of"]
