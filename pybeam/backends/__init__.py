"""Backends are modules with the functions of `Backend`, loaded once.

`reference` is readable plain torch and the oracle, `native` is C++ on a CPU, `triton` runs on a GPU. A
backend that is named never falls back to another one.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from pybeam.backends.arrays import Beams, Drafts, TreeArrays
from pybeam.backends.beam_program import ActiveRules, BeamProgram, BeamRules
from pybeam.backends.layer_program import LayerProgram, StackShape
from pybeam.backends.poison import poison_new_tensors
from pybeam.contracts import Cells, Distances, EditRule, NewNodes, SelectOptions, Survivors
from pybeam.platforms.decoding import watch_forks

log = logging.getLogger(__name__)

NAMES = ("reference", "native", "triton")
OptionalTensor = Tensor | None

watch_forks()
poison_new_tensors()


class Backend(Protocol):
    """The functions that the module of a backend must have.

    All tensors are on one device. Arrays of the tree, the beams and the drafts are changed in place. When
    beams are read or committed, an empty slot may be named many times. It stays as it is.
    """

    __name__: str

    def select(
        self,
        logits: Tensor,
        score: Tensor,
        offset: Tensor,
        width: Tensor,
        options: SelectOptions,
        /,
    ) -> Survivors:
        """`pybeam.ops.select`, which also checks its arguments."""

    def tree_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cells: Cells,
        scale: float,
        distances: Distances | None = None,
        new: NewNodes | None = None,
        /,
    ) -> Tensor:
        """`pybeam.ops.tree_attention`, which also checks its arguments.

        Keys and values of new nodes are written to their cells first.
        """

    def tree_append(
        self, tree: TreeArrays, slot: Tensor, survivors: Survivors, eos_id: int, /
    ) -> None:
        """`pybeam.kvcache.token_tree.TokenTree.append`."""

    def tree_release(self, tree: TreeArrays, slot: Tensor, /) -> None:
        """Empty the trees of these slots [A] and give their pages back."""

    def layer_program(
        self, weights: tuple[Tensor, ...], shape: StackShape, /
    ) -> LayerProgram | None:
        """The layers of a transformer in one object; None: they are put together from the functions below."""

    # whether products add to what they find where they write; else `add_norm` adds
    adds_in_products: bool
    # whether its norms, gates and rotary embeddings take layers that are not packed
    takes_plain: bool

    # Hidden states [n, d] and their norm [n, d] in one call. It is given tokens [n] int32, their rows [n]
    # int32 in the table of positions, a plain table [V, d], that of positions, `Stack.embedding_scale`,
    # `Stack.skipped_id`, and `Norm.parts` of two norms, each of which may be None: the norm of embeddings and
    # the first layer's. None: one call after another does it.
    embed_norm: Callable[..., tuple[Tensor, Tensor]] | None

    # `Prompts.begin`, in one kernel, of rows, their own cells, the cells, lengths and last tokens of prompts,
    # the number of a pool's cells, and first rows and positions of cells, if asked for. None: torch does it.
    prepend_prompts: Callable[..., tuple[Tensor, Tensor, Tensor, Any]] | None

    # What `edit_logits` is told of neighbours among processors, whose logits it changes in one call: their
    # rules, and their arrays on that device. None: processors change logits one after another.
    edit_list: Callable[[Sequence[EditRule], Sequence[Sequence[Tensor]], torch.device], Any] | None
    edit_logits: Callable[..., None]

    # whether a step does not read the logits of rows whose next token is given
    skips_forced_logits: bool

    def beam_program(
        self, tree: TreeArrays, beams: Beams, rules: BeamRules, active: ActiveRules, /
    ) -> BeamProgram:
        """All that a step does to these arrays, in one object."""

    # whether its programs choose who moves as they read; else `torch_plan` does it before
    plans_as_it_reads: bool

    # the parameters are the arrays of `BeamState` and their rules
    def draft_program(
        self,
        tree: TreeArrays,
        beams: Beams,
        drafts: Drafts,
        rules: BeamRules,
        active: ActiveRules,
        vocab_size: int,
        /,
    ) -> BeamProgram:
        """The same for sources that guess ahead, see `pybeam.state.draft_state`.

        `open` takes sources whose lines stand in `drafts.ints`. Every row of `read` is a beam of its own for
        `choose`, and `take` is given survivors of R beams of one row. `commit` accepts what is proven.
        """

    # `pybeam.ops` says what these do, and checks their arguments
    gather_rows: Callable[[list[Tensor], Tensor, Tensor], None]
    scatter_rows: Callable[[Tensor, Tensor, Tensor], None]
    backtrace: Callable[[Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]

    # `torch_automata` says what these do
    automaton_walk: Callable[..., Tensor]
    automaton_columns: Callable[..., Tensor]
    automaton_logits: Callable[..., None]
    automaton_places: Callable[..., OptionalTensor]  # see `torch_places`

    # `torch_layers` says what these do
    linear: Callable[[Tensor, Tensor, Tensor, OptionalTensor, OptionalTensor, int, bool], None]
    embed: Callable[[Tensor, Tensor, Tensor, OptionalTensor, int, Tensor, float], Tensor]
    layer_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_norm: Callable[[Tensor, Tensor, OptionalTensor, Tensor, OptionalTensor, float], Tensor]
    few_rows: Any  # the module of products that `transformer.few_rows` takes; None: there is none
    gated: Callable[[Tensor, int], Tensor]
    soft_cap: Callable[[Tensor, float], None]
    prompt_attention: Callable[..., Tensor]
    glu: Callable[[Tensor], Tensor]
    lstm_cell: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    mixture: Callable[[Tensor, Sequence[Tensor]], None]

    # `torch_heads`, `torch_gumbel`, `packing` and `defaults` say what these do
    turn_heads: Callable[..., tuple[Tensor, Tensor]]
    perturb: Callable[..., Tensor]
    draw: Any  # the module of `draw` and `cut`, which samplers take; None: there is none
    fill_panels: Callable[[Tensor, Tensor], None]
    log_softmax: Callable[[Tensor], Tensor]
    rounded_rows: Callable[[Tensor], tuple[Tensor, Tensor]]
    restore_log_probs: Callable[..., Tensor]


@cache
def load(name: str) -> Backend:
    """Return the backend of that name. Raises ValueError if it is unknown or not installed."""
    if name not in NAMES:
        raise ValueError(f"`backend` must be 'auto' or one of {NAMES}, but is {name!r}")
    if name == "triton" and not (torch.cuda.is_available() or is_interpreting()):
        raise ValueError(
            "backend 'triton' is not available: there is no CUDA device; use another backend, or set "
            "TRITON_INTERPRET=1 before Python starts to run it in Triton's slow interpreter"
        )
    try:
        if name == "triton" and is_interpreting():
            importlib.import_module("pybeam.backends.triton_interpreter").take_computed_ranges()
        elif name == "triton":
            importlib.import_module("pybeam.backends.launchers").load_driver()
        return cast(Backend, importlib.import_module(f"pybeam.backends.{name}"))
    except ImportError as error:
        is_triton = (error.name or "").partition(".")[0] == "triton"
        remedy = "; run `pip install 'pybeam-search[gpu]'`" if is_triton else ""
        raise ValueError(f"backend {name!r} is not available: {error}{remedy}") from error


def is_interpreting() -> bool:
    """Whether Triton interprets kernels on the CPU in this process instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def available() -> tuple[str, ...]:
    """Return the names of the backends that this installation can load."""

    def loads(name: str) -> bool:
        try:
            load(name)
        except ValueError:
            return False
        return True

    return tuple(name for name in NAMES if loads(name))


def resolve(name: str, device: torch.device) -> Backend:
    """Return the module for `name` on `device`; "auto" is the fastest one that is installed there."""
    if name != "auto":
        return load(name)
    try:
        return load("triton" if device.type == "cuda" else "native")
    except ValueError as error:
        _log_fallback(str(error))
        return load("reference")


@cache
def _log_fallback(reason: str) -> None:
    """Log it, once per process."""
    log.warning("falling back to plain torch, which is slow: %s", reason)


@cache
def _warn_without_kernels() -> None:
    """Warn, once per process, when `auto` has to decode on a CPU with the reference backend."""
    try:
        load("native")
    except ValueError as error:
        with warnings.catch_warnings():
            # a filter that makes errors of warnings must not end every decoding
            warnings.simplefilter("default")
            warnings.warn(f"decoding will be slow: {error.__cause__}", RuntimeWarning, stacklevel=4)


def for_decoding(name: str, device: torch.device) -> Backend:
    """Return the module as `resolve` does. Raises ValueError if it cannot decode on such a device."""
    backend = resolve(name, device)
    if name == "auto" and device.type == "cpu":
        _warn_without_kernels()
    if name == "native":
        from pybeam.backends import native

        missing = native.lacking(device.type)
        if missing:
            raise ValueError(
                f"`backend` must be one that decodes on {device.type}, but is 'native', which has no "
                f"kernel there for {', '.join(missing)}; use backend='auto'"
            )
    if name == "triton" and device.type == "cpu" and not is_interpreting():
        raise ValueError(
            "`backend` must be one that decodes on cpu, but is 'triton', whose kernels run on a GPU; use "
            "backend='auto', or set TRITON_INTERPRET=1 before Python starts to run them in Triton's "
            "slow interpreter"
        )
    isa = getattr(backend, "isa", None)
    log.info("decoding on %s with %s%s", device, backend.__name__, f", {isa()}" if isa else "")
    return backend
