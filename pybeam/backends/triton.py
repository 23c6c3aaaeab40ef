"""Triton on a GPU, or in Triton's interpreter on a CPU when TRITON_INTERPRET=1 is set.

`pybeam.backends.Backend` states the contracts. No function reads anything back from the device, so
wrong values in tensors are not reported.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from pybeam.backends import torch_beams as beams
from pybeam.backends import torch_drafts as drafts
from pybeam.backends import torch_layers as layers
from pybeam.backends.arrays import CatalogueArrays, TreeArrays
from pybeam.contracts import ColumnRules, SelectOptions, Survivors
from pybeam.triton_kernels import catalogue as catalogue_kernels
from pybeam.triton_kernels import select as select_kernels
from pybeam.triton_kernels import tree_append as append_kernels
from pybeam.triton_kernels import tree_release as release_kernels
from pybeam.triton_kernels.backtrace import backtrace
from pybeam.triton_kernels.gumbel import perturb, restore_log_probs
from pybeam.triton_kernels.layers import add_norm, gated, rms_norm, rotary
from pybeam.triton_kernels.rows import gather_rows, scatter_rows
from pybeam.triton_kernels.tree_attention import tree_attention


def select(
    logits: Tensor, score: Tensor, offset: Tensor, width: Tensor, options: SelectOptions
) -> Survivors:
    results = select_kernels.select(logits, score, offset, width, **options._asdict())
    return Survivors(*results)


def tree_append(tree: TreeArrays, slot: Tensor, survivors: Survivors, eos_id: int) -> None:
    append_kernels.tree_append(
        *tree,
        slot,
        survivors.num_finished,
        survivors.count,
        survivors.parent,
        survivors.token,
        survivors.log_prob,
        eos_id,
    )


def tree_release(tree: TreeArrays, slot: Tensor) -> None:
    release_kernels.tree_release(
        tree.num_nodes,
        tree.num_live,
        tree.path_length,
        tree.num_free,
        tree.page,
        tree.num_pages,
        tree.free_page,
        tree.num_free_pages,
        slot,
    )


def catalogue_columns(
    arrays: CatalogueArrays, logits: Tensor, node: Tensor, line: Tensor, rules: ColumnRules
) -> Tensor:
    return catalogue_kernels.catalogue_columns(arrays, logits, node, line, *rules)


catalogue_child = catalogue_kernels.catalogue_child

# these arrays are few and small, and not worth kernels of their own
beam_program = None
layer_program = None
causal_program = None
beam_open = partial(beams.beam_open, tree_append)
beam_read = beams.beam_read
beam_commit = partial(beams.beam_commit, tree_append)
draft_open = partial(drafts.draft_open, tree_append)
draft_commit = drafts.draft_commit
beam_close = partial(beams.beam_close, tree_release)

# on a GPU torch's own layers are fast, and no weights are packed
linear = layers.linear
embed = layers.embed
layer_norm = layers.layer_norm
soft_cap = layers.soft_cap
prompt_attention = layers.prompt_attention
glu = layers.glu
lstm_cell = layers.lstm_cell
mixture = layers.mixture

__all__ = [
    "add_norm",
    "backtrace",
    "beam_close",
    "beam_commit",
    "beam_open",
    "beam_program",
    "beam_read",
    "catalogue_child",
    "catalogue_columns",
    "causal_program",
    "draft_commit",
    "draft_open",
    "embed",
    "gated",
    "gather_rows",
    "glu",
    "layer_norm",
    "layer_program",
    "linear",
    "lstm_cell",
    "mixture",
    "perturb",
    "prompt_attention",
    "restore_log_probs",
    "rms_norm",
    "rotary",
    "scatter_rows",
    "select",
    "soft_cap",
    "tree_append",
    "tree_attention",
    "tree_release",
]
