"""C++ on a CPU: the operators of `csrc/registration.cpp`, called directly.

`pybeam.backends.Backend` states the contracts. Every function checks values that serve as addresses, so a
wrong argument raises and never corrupts memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from pybeam.backends import defaults, torch_layers
from pybeam.backends.arrays import Beams, Drafts, TreeArrays
from pybeam.backends.beam_program import ActiveRules, BeamProgram, BeamRules
from pybeam.backends.defaults import HALVES
from pybeam.backends.layer_program import LayerProgram, StackShape
from pybeam.contracts import (
    Cells,
    ColumnRules,
    Distances,
    EditList,
    EditRule,
    NewNodes,
    SelectOptions,
    Survivors,
)

try:
    import pybeam._C  # registers the operators, too
except ImportError as error:
    from pybeam.backends import absent

    raise ImportError(absent.reason(error)) from error

# how the message of a wrong value begins, which torch raises as RuntimeError
VALUE_ERROR = "ValueError: "


def operator(name: str) -> Callable[..., Any]:
    """The operator, which raises ValueError for a wrong value."""
    kernel = getattr(torch.ops.pybeam, name).default

    def call(*arguments: Any) -> Any:
        try:
            return kernel(*arguments)
        except RuntimeError as error:
            message = str(error)
            if not message.startswith(VALUE_ERROR):
                raise
        raise ValueError(message.removeprefix(VALUE_ERROR))

    vars(call)["_schema"] = kernel._schema  # names its arguments
    return call


_select = operator("select")
_tree_attention = operator("tree_attention")
_automaton_columns = operator("automaton_columns")
_edit_logits = operator("edit_logits")
_log_softmax = operator("log_softmax")

# operators that a decoder calls, whatever its model
DECODING = (
    "select",
    "tree_attention",
    "tree_append",
    "tree_release",
    "gather_rows",
    "backtrace",
)


def select(
    logits: Tensor, score: Tensor, offset: Tensor, width: Tensor, options: SelectOptions
) -> Survivors:
    return Survivors(
        *_select(
            logits,
            score,
            offset,
            width,
            options.is_ended,
            options.max_candidates,
            options.margin,
            options.local_margin,
            options.best_finished,
            options.forced,
            options.ban_eos,
            options.eos_ids,
            options.finishing,
            options.capacity,
            options.normalise,
        )
    )


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cells: Cells,
    scale: float,
    distances: Distances | None = None,
    new: NewNodes | None = None,
) -> Tensor:
    if new is not None:
        defaults.write_nodes(scatter_rows, key, value, new)
    *tables, paths = cells
    if distances is None and paths is None:
        return _tree_attention(query, key, value, *tables, scale)
    *given, window, soft_cap = Distances() if distances is None else distances
    more = *given, window or 0, soft_cap or 0.0, *(paths or ())
    return _tree_attention(query, key, value, *tables, scale, *more)


def layer_program(weights: tuple[Tensor, ...], shape: StackShape) -> LayerProgram:
    return pybeam._C.LayerProgram(weights, *shape)


def beam_program(
    tree: TreeArrays, beams: Beams, rules: BeamRules, active: ActiveRules
) -> BeamProgram:
    # rules that no source uses cost next to nothing here
    return pybeam._C.BeamProgram(tree, beams, *rules)


def draft_program(
    tree: TreeArrays,
    beams: Beams,
    drafts: Drafts,
    rules: BeamRules,
    active: ActiveRules,
    vocab_size: int,
) -> BeamProgram:
    return pybeam._C.BeamProgram(tree, beams, *rules, drafts, vocab_size)


skips_forced_logits = True
draw = None


# a CPU needs no kernel: mostly everyone moves
plans_as_it_reads = False


def perturb(*given: Any) -> Tensor:
    # few searches draw
    from pybeam.backends import torch_gumbel

    return torch_gumbel.perturb(*given)


def turn_heads(*given: Any) -> tuple[Tensor, Tensor]:
    # a program turns its heads itself
    from pybeam.backends import torch_heads

    return torch_heads.turn_heads(rms_norm, rotary, *given)


prompt_attention = operator("prompt_attention")


def automaton_columns(
    arrays: Sequence[Tensor], logits: Tensor, node: Tensor, line: Tensor, rules: ColumnRules
) -> Tensor:
    return _automaton_columns(arrays, logits, node, line, *rules)


def edit_list(
    rules: Sequence[EditRule], arrays: Sequence[Sequence[Tensor]], device: torch.device
) -> EditList:
    return EditList([word for rule in rules for word in rule.words], (*chain(*arrays),))


def edit_logits(logits: Tensor, edits: EditList, *places: Any) -> None:
    _edit_logits(logits, *edits, *places)


def log_softmax(logits: Tensor) -> Tensor:
    return _log_softmax(logits.float() if logits.dtype in HALVES else logits)


automaton_walk = operator("automaton_walk")
automaton_logits = operator("automaton_logits")
automaton_places = operator("automaton_places")
tree_append = operator("tree_append")
tree_release = operator("tree_release")
gather_rows = operator("gather_rows")
scatter_rows = operator("scatter_rows")
backtrace = operator("backtrace")
fill_panels = operator("fill_panels")
linear = operator("linear")
embed = operator("embed")
layer_norm = operator("layer_norm")
rms_norm = operator("rms_norm")
rotary = operator("rotary")
gated = operator("gated")
adds_in_products, takes_plain = True, False
embed_norm = prepend_prompts = few_rows = None
add_norm = torch_layers.add_norm
rounded_rows = defaults.rounded_rows
restore_log_probs = defaults.restore_log_probs
soft_cap = operator("soft_cap")
glu = operator("glu")
lstm_cell = operator("lstm_cell")
mixture = operator("mixture")

# in use, such as "avx2"; `pybeam info --help` names all
isa = operator("isa")
set_isa = operator("set_isa")
# how bfloat16 weights are multiplied: "pairs" or "float32"
bfloat16_products = operator("bfloat16_products")
set_bfloat16_products = operator("set_bfloat16_products")


def lacking(device_type: str) -> list[str]:
    """Return the operators that a decoder calls and that have no kernel for such a device."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device_type, device_type)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return [name for name in DECODING if not has_kernel(f"pybeam::{name}", key)]
