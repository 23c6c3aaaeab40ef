"""The shapes of what the native operators return, for tracers such as `torch.compile`."""

from __future__ import annotations

import torch
from torch import Tensor

import pybeam.backends.native  # noqa: F401  it registers the operators


@torch.library.register_fake("pybeam::select")
def _(logits, score, offset, width, *options) -> tuple[Tensor, ...]:
    num_beams, capacity = width.shape[0], options[9]  # `normalise` is left out where it is True
    ints = [width.new_empty(num_beams, capacity) for _ in range(2)]
    floats = [score.new_empty(num_beams, capacity) for _ in range(2)]
    counts = [width.new_empty(num_beams) for _ in range(2)]
    return *ints, *floats, *counts, width.new_empty(num_beams, dtype=torch.bool)


@torch.library.register_fake("pybeam::tree_attention")
@torch.library.register_fake("pybeam::prompt_attention")
@torch.library.register_fake("pybeam::layer_norm")
@torch.library.register_fake("pybeam::rms_norm")
@torch.library.register_fake("pybeam::rotary")
@torch.library.register_fake("pybeam::log_softmax")
def _(first, *_args) -> Tensor:
    return first.new_empty(first.shape)


@torch.library.register_fake("pybeam::tree_append")
@torch.library.register_fake("pybeam::tree_release")
@torch.library.register_fake("pybeam::gather_rows")
@torch.library.register_fake("pybeam::scatter_rows")
@torch.library.register_fake("pybeam::automaton_logits")
@torch.library.register_fake("pybeam::automaton_places")
@torch.library.register_fake("pybeam::edit_logits")
@torch.library.register_fake("pybeam::fill_panels")
@torch.library.register_fake("pybeam::linear")
@torch.library.register_fake("pybeam::soft_cap")
@torch.library.register_fake("pybeam::mixture")
def _(*_args) -> None:
    return None


@torch.library.register_fake("pybeam::automaton_walk")
def _(_arrays, _parent, _state, _row_slot, node, *_args) -> Tensor:
    return node.new_empty(2, *node.shape)


@torch.library.register_fake("pybeam::automaton_columns")
def _(_arrays, logits, _node, _line, _eos_id, _eos_first, num_columns, _normalise) -> Tensor:
    if num_columns == 0:
        # as many as a node has edges
        num_columns = torch.library.get_ctx().new_dynamic_size() - 1
    return logits.new_empty(logits.shape[0], num_columns + 1, dtype=torch.float32)


@torch.library.register_fake("pybeam::embed")
def _(token, _position, _table, _scale, _vocab_size, position_table, _embedding_scale) -> Tensor:
    return position_table.new_empty(token.shape[0], position_table.shape[1])


@torch.library.register_fake("pybeam::glu")
@torch.library.register_fake("pybeam::gated")
def _(x, *_args) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


@torch.library.register_fake("pybeam::lstm_cell")
def _(gates, cell) -> tuple[Tensor, Tensor]:
    return gates.new_empty(cell.shape), gates.new_empty(cell.shape)


@torch.library.register_fake("pybeam::backtrace")
def _(token, parent, slot, node, capacity) -> tuple[Tensor, Tensor]:
    return token.new_empty(slot.shape[0], capacity), token.new_empty(slot.shape[0])
