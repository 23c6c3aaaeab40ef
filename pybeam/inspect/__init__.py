"""How a decode went: where its time went, and which tokens were found in parallel.

graph = pybeam.inspect.decoding_graph(model, request)
graph.save("graph.html")        # or .png, .svg, .json; in a notebook the graph shows itself

The graph is the decoding dependency graph of Santilli et al. 2023 (DDGviz). For `pybeam profile`, `profile`
decodes with and without `torch.profiler`, and `trace` reads what the profiler recorded.
"""

from pybeam.inspect.drawing import DecodingGraph
from pybeam.inspect.graph import decoding_graph

__all__ = ["DecodingGraph", "decoding_graph"]
