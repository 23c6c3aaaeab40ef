"""Triton kernels, installed as `pybeam.triton_kernels`: one op per file, kernel and launcher."""
