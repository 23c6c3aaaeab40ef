"""Triton on a GPU, or in Triton's interpreter on a CPU when TRITON_INTERPRET=1 is set.

`pybeam.backends.Backend` states the contracts. No function reads anything back from the device, so
wrong values in tensors are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pybeam.backends import defaults, gpu_select, packing, torch_beams
from pybeam.backends import torch_layers as layers
from pybeam.backends.arrays import (
    Beams,
    Drafts,
    DraftTokens,
    NewLines,
    PlanRules,
    RowArrays,
    SelectInputs,
    TreeArrays,
)
from pybeam.backends.tensor_beams import (
    BeamFunctions,
    DraftFunctions,
    TensorBeams,
    TensorDrafts,
)
from pybeam.backends.transfer import to_device
from pybeam.contracts import EditRule
from pybeam.triton_kernels import draw as draw
from pybeam.triton_kernels import product
from pybeam.triton_kernels.attention import tree_attention as tree_attention
from pybeam.triton_kernels.attention.prompts import prompt_attention as prompt_attention_kernel
from pybeam.triton_kernels.beam import beam_commit, beam_report, read_beams, tree_append
from pybeam.triton_kernels.draft import draft_commit
from pybeam.triton_kernels.embedding import embed_norm as embed_norm
from pybeam.triton_kernels.float8 import rounded_rows as rounded_rows
from pybeam.triton_kernels.heads import turn_heads as heads_kernel
from pybeam.triton_kernels.layers import add_norm as add_norm
from pybeam.triton_kernels.layers import gated as gated_kernel
from pybeam.triton_kernels.layers import rms_norm as rms_norm_kernel
from pybeam.triton_kernels.logits.automata import automaton_walk as automaton_walk
from pybeam.triton_kernels.logits.automaton_places import automaton_places as automaton_places
from pybeam.triton_kernels.logits.automaton_rows import automaton_columns as automaton_columns
from pybeam.triton_kernels.logits.automaton_rows import automaton_logits as automaton_logits
from pybeam.triton_kernels.logits.edits import edit_logits as edit_logits
from pybeam.triton_kernels.logits.edits import line_of
from pybeam.triton_kernels.logits.gumbel import perturb as perturb
from pybeam.triton_kernels.logits.gumbel import restore_log_probs as restore_log_probs
from pybeam.triton_kernels.logits.log_softmax import log_softmax as log_softmax_kernel
from pybeam.triton_kernels.prompts import prepend_prompts as prepend_prompts
from pybeam.triton_kernels.rows import gather_rows as gather_rows
from pybeam.triton_kernels.rows import scatter_rows as scatter_rows
from pybeam.triton_kernels.select import select as select
from pybeam.triton_kernels.tree import backtrace as backtrace
from pybeam.triton_kernels.tree import tree_release


def edit_list(
    rules: Sequence[EditRule], arrays: Sequence[Sequence[Tensor]], device: torch.device
) -> Tensor:
    return to_device([*map(line_of, rules, arrays)], torch.int64, device)


def _unless_float64(own: Callable[..., Tensor], others: Callable[..., Tensor]) -> Any:
    """Return `own`, and for numbers in float64 `others`, which rounds nothing to float32."""

    def call(x: Tensor, *given: Any) -> Tensor:
        return (others if x.dtype == torch.float64 else own)(x, *given)

    return call


prompt_attention = _unless_float64(prompt_attention_kernel, layers.prompt_attention)
log_softmax = _unless_float64(log_softmax_kernel, defaults.log_softmax)
rms_norm = _unless_float64(rms_norm_kernel, layers.rms_norm)
gated = _unless_float64(gated_kernel, layers.gated)


def turn_heads(heads: Tensor, num_heads: int, norms: Any, angles: Any) -> tuple[Tensor, Tensor]:
    # no decoder known has layer norms of heads
    has_bias = norms is not None and norms[0][1] is not None
    is_own = heads.dtype != torch.float64 and not has_bias
    return (heads_kernel if is_own else layers.turn_heads)(heads, num_heads, norms, angles)


def beam_read(
    tree: TreeArrays,
    beams: Beams,
    slot: Tensor,
    refills: bool,
    num_rows: int,
    num_entries: int,
    rules: PlanRules | None,
    is_path: bool = False,
) -> tuple[Tensor, RowArrays, SelectInputs]:
    num_beams = slot.numel()
    ints, floats = slot.new_empty, beams.floats.new_empty
    rows = RowArrays(ints(num_beams + 1), *[ints(num_rows) for _ in RowArrays._fields[1:]])
    inputs = SelectInputs(
        score=floats(num_entries),
        offset=ints(num_beams + 1),
        is_ended=beams.is_alive.new_empty(num_entries),
        width=ints(num_beams),
        max_candidates=ints(num_beams),
        margin=floats(num_beams),
        local_margin=floats(num_beams),
        best_finished=floats(num_beams),
        forced=ints(num_beams),
        ban_eos=beams.is_alive.new_empty(num_beams),
    )
    moved = read_beams(tree, beams, slot, rows, inputs, refills, rules, is_path)
    return moved, rows, inputs


BEAM_FUNCTIONS = BeamFunctions(
    open=partial(torch_beams.beam_open, tree_append),
    read=beam_read,
    select=gpu_select.select,
    commit=beam_commit,
    report=beam_report,
    close=partial(torch_beams.beam_close, tree_release),
    backtrace=backtrace,
)
beam_program = partial(TensorBeams, BEAM_FUNCTIONS)
plans_as_it_reads = True
skips_forced_logits = False


def draft_open(
    tree: TreeArrays,
    beams: Beams,
    drafts: Drafts,
    slot: Tensor,
    lines: NewLines,
    start_id: int,
    tokens: DraftTokens,
) -> None:
    BEAM_FUNCTIONS.open(tree, beams, slot, lines, start_id)
    draft_commit(tree, beams, drafts, slot, None, None, tokens)


DRAFT_FUNCTIONS = DraftFunctions(draft_open, partial(beam_read, is_path=True), draft_commit)
draft_program = partial(TensorDrafts, BEAM_FUNCTIONS, DRAFT_FUNCTIONS)

layer_program = defaults.no_program
adds_in_products, takes_plain = False, True
few_rows = product

# on a GPU torch's own layers are fast, and no weights are packed
fill_panels = packing.fill_panels
linear = layers.linear
embed = layers.embed
layer_norm = layers.layer_norm
soft_cap = layers.soft_cap
glu = layers.glu
lstm_cell = layers.lstm_cell
mixture = layers.mixture
