"""How a decode went: where its time went, which tokens were found in parallel, and what a search dropped.

graph = pybeam.inspect.decoding_graph(model, request)
graph.save("graph.html")        # or .png, .svg, .json; in a notebook the graph shows itself
tree = pybeam.inspect.explain(model, request, pybeam.fixed_beam(3))
tree.save("tree.html")          # or .json, .txt; the same holds in a notebook

The graph is the decoding dependency graph of Santilli et al. 2023 (DDGviz). For `pybeam profile`, `profile`
decodes with and without `torch.profiler`, and `trace` reads what the profiler recorded.
"""

from pybeam.inspect.drawing import DecodingGraph
from pybeam.inspect.following import explain
from pybeam.inspect.graph import decoding_graph
from pybeam.inspect.tree import Event, Node, SearchTree

__all__ = [
    "DecodingGraph",
    "Event",
    "Node",
    "SearchTree",
    "decoding_graph",
    "explain",
]
