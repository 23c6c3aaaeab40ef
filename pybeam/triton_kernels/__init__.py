"""Triton kernels: one op per file, kernel and launcher."""
