"""The data flow of an app, or of several that share topics, as a graph: as data, text and Mermaid.

The inputs of a handler are declared. Its outputs are the ones that its code names, or that ``emits=`` lists
(``core.declare.emissions``). They are a superset of the topics that it emits to.
"""

from tailrace.graph.diagrams import as_mermaid, as_text
from tailrace.graph.model import Edge, Graph, Node, graph_of

__all__ = ["Edge", "Graph", "Node", "as_mermaid", "as_text", "graph_of"]
