"""Kernels that change logits before they are ranked, a file for each op with its launcher."""
