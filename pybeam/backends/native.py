"""C++ on a CPU: the operators of `csrc/registration.cpp`, called directly.

Contracts are in `pybeam.ops` and `pybeam.kvcache.token_tree`. Every function checks what it would use as an
address, so a wrong argument raises and never corrupts memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import pybeam._C  # noqa: F401, registers the operators
except ImportError as error:
    raise ImportError(
        f"the C++ extension was not built: install a C++ compiler and run `make build` ({error})"
    ) from error

_ops = torch.ops.pybeam

select = _ops.select.default
tree_attention = _ops.tree_attention.default
tree_append = _ops.tree_append.default
tree_release = _ops.tree_release.default
beam_open = _ops.beam_open.default
beam_read = _ops.beam_read.default
beam_commit = _ops.beam_commit.default
beam_close = _ops.beam_close.default
draft_open = _ops.draft_open.default
draft_commit = _ops.draft_commit.default
gather_rows = _ops.gather_rows.default
scatter_rows = _ops.scatter_rows.default
backtrace = _ops.backtrace.default
linear = _ops.linear.default
layer_norm = _ops.layer_norm.default
glu = _ops.glu.default
lstm_cell = _ops.lstm_cell.default
mixture = _ops.mixture.default

isa = _ops.isa.default  # in use: "generic", "avx2", "avx512" or "avx512_bf16"
set_isa = _ops.set_isa.default


@torch.library.register_fake("pybeam::select")
def _(logits, score, offset, width, *options) -> tuple[Tensor, ...]:
    num_beams, capacity = width.shape[0], options[9]  # `normalise` is left out where it is True
    ints = [width.new_empty(num_beams, capacity) for _ in range(2)]
    floats = [score.new_empty(num_beams, capacity) for _ in range(2)]
    counts = [width.new_empty(num_beams) for _ in range(2)]
    return *ints, *floats, *counts, width.new_empty(num_beams, dtype=torch.bool)


@torch.library.register_fake("pybeam::tree_attention")
@torch.library.register_fake("pybeam::layer_norm")
def _(first, *_args) -> Tensor:
    return first.new_empty(first.shape)


@torch.library.register_fake("pybeam::tree_append")
@torch.library.register_fake("pybeam::tree_release")
@torch.library.register_fake("pybeam::beam_open")
@torch.library.register_fake("pybeam::beam_close")
@torch.library.register_fake("pybeam::draft_open")
@torch.library.register_fake("pybeam::draft_commit")
@torch.library.register_fake("pybeam::gather_rows")
@torch.library.register_fake("pybeam::scatter_rows")
@torch.library.register_fake("pybeam::linear")
@torch.library.register_fake("pybeam::mixture")
def _(*_args) -> None:
    return None


@torch.library.register_fake("pybeam::beam_read")
def _(token, _row_node, _row_cell, beams, slot, _refills, num_rows, num_entries) -> list[Tensor]:
    num_beams = slot.shape[0]
    ints, floats = token.new_empty, beams[1].new_empty
    return [
        ints(num_beams + 1),
        *[ints(num_rows) for _ in range(6)],
        floats(num_entries),
        ints(num_beams + 1),
        ints(num_entries, dtype=torch.bool),
        *[ints(num_beams) for _ in range(2)],
        *[floats(num_beams) for _ in range(3)],
        ints(num_beams),
        ints(num_beams, dtype=torch.bool),
    ]


@torch.library.register_fake("pybeam::beam_commit")
def _(_tree, beams, slot, *_args) -> tuple[Tensor, Tensor]:
    num_entries = slot.shape[0] * beams[3].shape[1]
    return slot.new_empty(num_entries), slot.new_empty(num_entries)


@torch.library.register_fake("pybeam::glu")
def _(x) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


@torch.library.register_fake("pybeam::lstm_cell")
def _(gates, cell) -> tuple[Tensor, Tensor]:
    return gates.new_empty(cell.shape), gates.new_empty(cell.shape)


@torch.library.register_fake("pybeam::backtrace")
def _(token, parent, slot, node, capacity) -> tuple[Tensor, Tensor]:
    return token.new_empty(slot.shape[0], capacity), token.new_empty(slot.shape[0])
