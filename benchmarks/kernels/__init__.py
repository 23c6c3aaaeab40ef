"""Microbenchmarks of single kernels, for pytest-benchmark: `pytest benchmarks/kernels --benchmark-only`."""
