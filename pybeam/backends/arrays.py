"""The arrays that hold every beam, with one line per slot. `pybeam.state` changes them.

There are few arrays, because operators take all of them: numbers per slot are columns of two tensors. Slot 0,
`NULL_SLOT`, belongs to no source. It is always empty and replaces a source that does not move.
`csrc/params/` has the same columns and stop reasons in the same order (`tests/project/test_columns.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from pybeam.contracts import Survivors

INT_COLUMNS = (
    # columns of the report, which the engine reads after every step, come first
    "reason",  # why the source stopped, a number into STOP_REASONS
    "num_rows",
    "depth",  # tokens after the start token
    "num_finished",
    "steps",
    "expansions",
    "waited",  # steps in which it could have moved and did not
    "num_entries",
    "width",  # places of the beam after a step behind the first ones, which are in `early_width`
    "num_early_widths",
    "stop_at",
    "max_candidates",
    "min_length",
    "max_length",
    "prefix_length",  # tokens of the prefix, scored or not: the limits count what comes behind it
    "certified",  # hypotheses that a stop rule other than counting compares with
    "num_found",  # hypotheses that have finished, kept or not
    "top_has_ended",  # whether the best candidate of a step has ever ended in EOS
    "scored_from",  # tokens at log-prob 0 behind the start token: n counts what comes behind them
    "target_length",  # given tokens that are scored, EOS included; they follow in `prefix`
    "ended_only",  # whether a row that is cut at the limit is no hypothesis
)
NUM_REPORTED = INT_COLUMNS.index("waited")
FLOAT_COLUMNS = (
    "margin",
    "local_margin",
    "best_finished",
    # the numbers of `Scoring`
    "alpha",
    "offset",
    "scale",
    "reward",
    "cap",
    "cut_length_offset",
)
DRAFT_COLUMNS = (
    "max_rows",  # most rows of the source in a step
    "block",  # generated tokens between two fixed boundaries; 0: a window that adapts
    "horizon",  # nothing is guessed behind so many generated tokens
    "window",  # rows of the next step, if the window adapts
    "credit",  # credit that guesses have earned, in hundredths of a step
    "price",  # price of a guess, in hundredths of a step
    "fill",  # the guess if there is no other; `FILL_LAST`: the token before; `FILL_NONE`: no row
    "ngram",  # length of n-grams that are looked up in output and guesses; 0: guesses are in order
    "num_guesses",
    "feeds_all",  # whether tokens behind a guessed EOS are sent through the model too
)
STEP = 100  # credit and price count hundredths of a step
MOST_NGRAM = 4
FILL_NONE, FILL_LAST = -2, -1
# the last is the token that ended it, or -1
FINISHED_INT_COLUMNS = ("finished_node", "finished_length", "finished_eos")
# the log-prob is that of EOS
FINISHED_FLOAT_COLUMNS = ("finished_score", "finished_log_prob", "finished_final")
COLUMNS = dict(
    ints=INT_COLUMNS,
    floats=FLOAT_COLUMNS,
    finished_ints=FINISHED_INT_COLUMNS,
    finished_floats=FINISHED_FLOAT_COLUMNS,
)
DRAFT_PLACES = {name: n for n, name in enumerate(DRAFT_COLUMNS)}
PLACES = {name: (array, n) for array, names in COLUMNS.items() for n, name in enumerate(names)}

NULL_SLOT = 0
NO_LIMIT = torch.iinfo(torch.int32).max
STOP_REASONS = (
    "running",
    "width",
    "n_best",
    "top_finished",
    "optimal",
    "heuristic",  # `Certificate.CURRENT`
    "empty_beam",
    "max_length",
    "error",
)
RUNNING, WIDTH, N_BEST, TOP_FINISHED, OPTIMAL, HEURISTIC, EMPTY_BEAM, MAX_LENGTH, NAN = range(9)


Arrays = TypeVar("Arrays", "Beams", "Drafts")


def resized(tensor: Tensor, shape: tuple[int, ...], fill: int = 0) -> Tensor:
    """Return a copy of at least that shape. New places hold `fill`."""
    shape = tuple(max(old, new) for old, new in zip(tensor.shape, shape, strict=True))
    if shape == tuple(tensor.shape):
        return tensor
    larger = tensor.new_full(shape, fill)
    larger[tuple(slice(0, n) for n in tensor.shape)] = tensor
    return larger


def _all_resized(arrays: Arrays, shapes: Sequence[tuple[int, ...]]) -> Arrays:
    """Return arrays of at least these shapes: the given ones, where none has to grow.

    Programs are made for arrays, and go on for the same ones.
    """
    larger = [resized(array, shape) for array, shape in zip(arrays, shapes, strict=True)]
    return arrays if all(map(is_, larger, arrays)) else type(arrays)(*larger)


def root_survivors(slot: Tensor, start_id: int) -> Survivors:
    """Make the survivors [A, 1] that start empty slots [A] with one row each, the start token."""
    none = slot.new_zeros(slot.numel(), 1)
    return tree_survivors(none + start_id, none - 1, none.float())


def tree_survivors(
    token: Tensor,
    parent: Tensor,
    log_prob: Tensor,
    count: Tensor | None = None,
    num_finished: Tensor | None = None,
) -> Survivors:
    """Make survivors [A, C] for a token tree alone, which needs no scores. By default all of them go on."""
    none = token.new_zeros(token.shape[0])
    count = none + token.shape[1] if count is None else count
    num_finished = none if num_finished is None else num_finished
    return Survivors(token, parent, log_prob, log_prob, count, num_finished, none.bool())


class TreeArrays(NamedTuple):
    """The arrays of a `TokenTree`, in the order in which operators take them."""

    token: Tensor
    parent: Tensor
    log_prob: Tensor
    num_nodes: Tensor
    row_node: Tensor
    row_cell: Tensor
    live_cell: Tensor
    live_mask: Tensor
    num_live: Tensor
    path: Tensor
    path_length: Tensor
    free_cell: Tensor
    num_free: Tensor
    page: Tensor
    num_pages: Tensor
    free_page: Tensor
    num_free_pages: Tensor


class Beams(NamedTuple):
    """Beams of ``S`` slots with ``K`` entries and ``F = 2K + 1`` finished hypotheses each.

    An *entry* is a place in a beam: a row that is alive, or a held hypothesis that has ended. Columns
    can be read and written by name: ``beams.depth`` is [S], ``beams.finished_score`` is [S, F].
    """

    ints: Tensor  # [S, len(INT_COLUMNS)] int32
    floats: Tensor  # [S, len(FLOAT_COLUMNS)] float32
    prefix: Tensor  # [S, longest] int32, all given tokens: prefix and target
    early_width: Tensor  # [S, most] int32, places after each of the first steps behind the prefix

    score: Tensor  # [S, K] float32, best first
    is_alive: Tensor  # [S, K] bool, False behind the last entry
    ended_length: Tensor  # [S, K] int32, of held entries
    eos_log_prob: Tensor  # [S, K] float32, of held entries
    eos_token: Tensor  # [S, K] int32, of held entries

    # best first if the best are kept, else in the order of finishing; candidates that do not finish are
    # written to the last place
    finished_ints: Tensor  # [S, F, len(FINISHED_INT_COLUMNS)] int32
    finished_floats: Tensor  # [S, F, len(FINISHED_FLOAT_COLUMNS)] float32

    def __getattr__(self, name: str) -> Tensor:
        if name not in PLACES:
            raise AttributeError(name)
        array, column = PLACES[name]
        return getattr(self, array)[..., column]

    @classmethod
    def empty(cls, device: torch.device) -> Beams:
        """Make arrays without any beam; `reserved` makes room."""
        i, f, b = torch.int32, torch.float32, torch.bool
        dtypes = (i, f, i, i, f, b, i, f, i, i, f)
        dims = (2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3)
        pairs = zip(dims, dtypes, strict=True)
        return cls(*[torch.zeros([0] * dim, dtype=dtype, device=device) for dim, dtype in pairs])

    def reserved(self, num_slots: int, width: int, prefix: int, num_early: int = 0) -> Beams:
        """Return the same beams with room for that many slots, entries, tokens of prefix and early widths."""
        num_finished = 2 * width + 1
        shapes = (
            [len(INT_COLUMNS)],
            [len(FLOAT_COLUMNS)],
            [prefix],
            [num_early],
            *[[width]] * 5,
            [num_finished, len(FINISHED_INT_COLUMNS)],
            [num_finished, len(FINISHED_FLOAT_COLUMNS)],
        )
        return _all_resized(self, [(num_slots, *shape) for shape in shapes])


class Drafts(NamedTuple):
    """The guesses of sources that have one hypothesis, whose tokens are nodes 0, 1, … of the tree.

    The rows of such a source are its last token and the guesses behind it. Columns can be read and
    written by name, as those of `Beams`.
    """

    ints: Tensor  # [S, len(DRAFT_COLUMNS)] int32
    guess: Tensor  # [S, longest] int32, of the generated tokens, or what n-grams are looked up in

    def __getattr__(self, name: str) -> Tensor:
        if name not in DRAFT_PLACES:
            raise AttributeError(name)
        return self.ints[..., DRAFT_PLACES[name]]

    @classmethod
    def empty(cls, device: torch.device) -> Drafts:
        """No guesses at all; `reserved` makes room."""
        return cls(*[torch.zeros(0, 0, dtype=torch.int32, device=device) for _ in range(2)])

    def reserved(self, num_slots: int, num_guesses: int) -> Drafts:
        """Return the same guesses with room for that many slots, and guesses of each."""
        return _all_resized(self, [(num_slots, len(DRAFT_COLUMNS)), (num_slots, num_guesses)])


class NewLines(NamedTuple):
    """The lines of ``A`` slots that are opened."""

    ints: Tensor  # [A, len(INT_COLUMNS)] int32
    floats: Tensor  # [A, len(FLOAT_COLUMNS)] float32

    @classmethod
    def of(cls, ints: Tensor, bits: Tensor) -> NewLines:
        """Return the lines whose floats have come as the bits [A, …] of numbers of int32."""
        return cls(ints, bits.view(torch.float32))


class PlanRules(NamedTuple):
    """The rules by which a schedule chooses who moves. They are fixed numbers of a captured step."""

    only_least: bool  # only sources that are least advanced move, and those that are late
    order: int  # who moves first: 1 the least advanced, -1 the most advanced, 0 who waited longest
    most_rows: int  # room for rows; `NO_LIMIT`: any number
    # a source is late that has waited so many steps, and moves first; `NO_LIMIT`: none is
    max_wait: int


class DraftTokens(NamedTuple):
    """The tokens that drafting must know."""

    eos_id: int
    vocab_size: int


class RowArrays(NamedTuple):
    """The rows of the ``A`` slots that move, as fields of `Rows`.

    There is room for ``R`` rows; those behind the last offset are padding.
    """

    offset: Tensor  # [A + 1] int32
    token: Tensor  # [R] int32
    position: Tensor  # [R] int32, tokens before each, behind the start token
    row_slot: Tensor  # [R] int32
    entry: Tensor  # [R] int32
    node: Tensor  # [R] int32
    cell: Tensor  # [R] int32


class SelectInputs(NamedTuple):
    """The arguments and rules of `select` for the ``A`` beams that move, and for their entries.

    There is room for ``B`` entries; those behind the last offset are padding.
    """

    score: Tensor  # [B] float32
    offset: Tensor  # [A + 1] int32, entries of the a-th beam are offset[a] .. offset[a + 1]
    is_ended: Tensor  # [B] bool
    width: Tensor  # [A] int32, places that are left
    max_candidates: Tensor  # [A] int32
    margin: Tensor  # [A] float32
    local_margin: Tensor  # [A] float32
    best_finished: Tensor  # [A] float32
    forced: Tensor  # [A] int32, next token of the prefix or -1
    ban_eos: Tensor  # [A] bool
