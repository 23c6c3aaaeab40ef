"""Algorithms: data for the kernels and small policies between them."""
