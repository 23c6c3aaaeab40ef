"""Triton kernels, and the functions that launch them.

A folder holds an op, or ops that share code: `__init__.py` the functions that launch kernels, the other files
the kernels, from the outside in. `logits/` holds ops that share nothing, as this folder does, a file each.

Kernels take pointers and numbers one by one. Triton 3.6 compiles a variant for each value of 1 and each
multiple of 16 among the fields of a tuple, and for each alignment, whatever `do_not_specialize` says, so
tuples would multiply variants. Only arrays that are allocated whole, and so always aligned, come in tuples.
Functions that kernels call are inlined. There tuples cost nothing, and arguments travel in them. Constants
stand beside the tuples, because a constant in a variable becomes a number of the run.
"""
