"""An app, or several that share topics, as a graph of what flows where: as data, as text, as a picture, and for other tools to draw.

The inputs of a handler are declared. Its outputs are found in its code (``core.declare.emissions``): a superset of what it
emits to.
"""

from tailrace.graph.diagrams import as_dot, as_mermaid
from tailrace.graph.model import Edge, Graph, Node, graph_of
from tailrace.graph.svg import as_svg
from tailrace.graph.text import as_text

__all__ = ["Edge", "Graph", "Node", "as_dot", "as_mermaid", "as_svg", "as_text", "graph_of"]
