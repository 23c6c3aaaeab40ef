"""Triton kernels, and the functions that launch them.

A folder holds an op, or ops that share code: `__init__.py` the functions that launch kernels, the other files
the kernels, from the outside in. `logits/` holds ops that share nothing, as this folder does, a file each.
"""
