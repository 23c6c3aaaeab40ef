"""Triton on a GPU, or in Triton's interpreter on a CPU when TRITON_INTERPRET=1 is set.

Contracts are in `pybeam.ops` and `pybeam.kvcache.token_tree`. No function reads anything back from the
device, so arguments that are wrong only in value are not reported.
"""

from __future__ import annotations

from functools import partial

from pybeam.backends import torch_beams as beams
from pybeam.backends import torch_drafts as drafts
from pybeam.backends import torch_layers as layers
from pybeam.triton_kernels.backtrace import backtrace
from pybeam.triton_kernels.rows import gather_rows, scatter_rows
from pybeam.triton_kernels.select import select
from pybeam.triton_kernels.tree_append import tree_append
from pybeam.triton_kernels.tree_attention import tree_attention
from pybeam.triton_kernels.tree_release import tree_release

# few small arrays: not worth kernels of their own
beam_open = partial(beams.beam_open, tree_append)
beam_read = beams.beam_read
beam_commit = partial(beams.beam_commit, tree_append)
draft_open = partial(drafts.draft_open, tree_append)
draft_commit = drafts.draft_commit
beam_close = partial(beams.beam_close, tree_release)

# on a GPU torch's own layers are fast, and no weights are packed
linear = layers.linear
layer_norm = layers.layer_norm
glu = layers.glu
lstm_cell = layers.lstm_cell
mixture = layers.mixture

__all__ = [
    "backtrace",
    "beam_close",
    "beam_commit",
    "beam_open",
    "beam_read",
    "draft_commit",
    "draft_open",
    "gather_rows",
    "glu",
    "layer_norm",
    "linear",
    "lstm_cell",
    "mixture",
    "scatter_rows",
    "select",
    "tree_append",
    "tree_attention",
    "tree_release",
]
