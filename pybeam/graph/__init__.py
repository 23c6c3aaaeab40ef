"""Show what a model decodes in parallel: the decoding dependency graph of Santilli et al. 2023 (DDGviz).

graph = pybeam.graph.decoding_graph(model, request)
graph.save("graph.html")        # or .png, .svg, .json; in a notebook the graph shows itself
"""

from pybeam.graph.graph import DecodingGraph, decoding_graph

__all__ = ["DecodingGraph", "decoding_graph"]
