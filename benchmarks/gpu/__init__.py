"""Microbenchmarks of every op on a GPU beside its peers: `python -m benchmarks.gpu`."""
