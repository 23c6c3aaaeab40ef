"""The `BeamProgram` of backends whose kernels are functions on tensors: `TensorBeams`, `TensorDrafts`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import (
    FLOAT_COLUMNS,
    INT_COLUMNS,
    Beams,
    Drafts,
    DraftTokens,
    NewLines,
    PlanRules,
    RowArrays,
    SelectInputs,
    TreeArrays,
)
from pybeam.backends.beam_program import ActiveRules, BeamRules
from pybeam.backends.layer_program import LayerProgram
from pybeam.backends.transfer import all_to_device, to_device
from pybeam.contracts import ColumnTokens, EditList, Finishing, SelectOptions, Survivors

if TYPE_CHECKING:
    from pybeam.backends.pinned import Replay
    from pybeam.backends.torch_automata import RowPlaces, StepColumns

INT = torch.int32
# every place in a beam may have one candidate that goes on, and one that finishes
REFILL_PER_PLACE = 2

Select = Callable[[Tensor, Tensor, Tensor, Tensor, SelectOptions], Survivors]
Backtrace = Callable[[Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]


# rules of a schedule, and the slots that move by them; None: all do
Read = Callable[
    [TreeArrays, Beams, Tensor, bool, int, int, PlanRules | None],
    tuple[Tensor, RowArrays, SelectInputs],
]


class BeamFunctions(NamedTuple):
    """The kernels of a backend. `torch_beams` has the first, and says what they do."""

    open: Callable[[TreeArrays, Beams, Tensor, NewLines, int], None]
    read: Read
    select: Select
    # of slots that move, and a report on slots that are live
    commit: Callable[
        [TreeArrays, Beams, Tensor, Tensor, Survivors, Tensor | None, BeamRules],
        tuple[Tensor, Tensor, Tensor],
    ]
    report: Callable[[TreeArrays, Beams, Tensor], Tensor]
    close: Callable[[TreeArrays, Beams, Tensor], None]
    backtrace: Backtrace


class DraftFunctions(NamedTuple):
    """The kernels of sources that guess ahead. `torch_drafts` has the first, and says what they do."""

    open: Callable[[TreeArrays, Beams, Drafts, Tensor, NewLines, int, DraftTokens], None]
    read: Read
    commit: Callable[
        [TreeArrays, Beams, Drafts, Tensor, Survivors, Tensor | None, DraftTokens], None
    ]


class TensorBeams:
    """See `BeamProgram`.

    Attributes:
        replay: captures what opens and closes beams; None: nothing is captured.
    """

    replay: Replay | None = None

    def __init__(
        self,
        functions: BeamFunctions,
        tree: TreeArrays,
        beams: Beams,
        rules: BeamRules,
        active: ActiveRules,
    ) -> None:
        self._functions, self._tree, self._beams = functions, tree, beams
        self._rules, self._active, self._device = rules, active, beams.ints.device
        # on the device, because each number that a step makes there is a kernel
        self._eos = to_device(rules.eos_ids, INT, self._device)
        self._slot: Tensor | None = None
        self._rows: RowArrays | None = None
        self._inputs: SelectInputs | None = None
        self._survivors: Survivors | None = None
        self._moves: tuple[Tensor, Tensor] | None = None

    def open(self, slots: list[int], ints: list[int], floats: list[float], start_id: int) -> None:
        def opened(slot: Tensor, *lines: Tensor) -> None:
            self._functions.open(self._tree, self._beams, slot, NewLines.of(*lines), start_id)

        self._between(("open", start_id), opened, new_lines(slots, ints, floats))

    def _between(
        self,
        name: Hashable,
        work: Callable[..., Tensor | None],
        arrays: Sequence[Sequence | np.ndarray],
    ) -> Tensor | None:
        """Call `work`, between steps, with arrays of int32 numbers [A, ...] on the device.

        Captured work gets more lines than are given. The others are zeros, those of the null slot.
        """
        if self.replay is None:
            return work(*all_to_device(arrays, self._device))
        from pybeam.backends.pinned import padded, replayed

        lines = map(np.asarray, arrays)
        given = [
            padded(one, 1 << max(0, len(one) - 1).bit_length(), *one.shape[1:]) for one in lines
        ]
        return replayed(self.replay, name, work, given, self._device)

    def read(self, slot: Tensor, num_rows: int) -> RowArrays:
        return self.plan_and_read(slot, num_rows, None)[1]

    def plan_and_read(
        self, slot: Tensor, num_rows: int, rules: PlanRules | None
    ) -> tuple[Tensor, RowArrays]:
        is_held = self._rules.finishing == Finishing.HELD
        num_entries = slot.numel() * self._beams.score.shape[1] if is_held else num_rows
        given = self._tree, self._beams, slot, self._rules.refills, num_rows, num_entries
        self._survivors = None
        self._slot, self._rows, self._inputs = self._functions.read(*given, rules)
        return self._slot, self._rows

    def inputs(self) -> SelectInputs:
        assert self._inputs is not None, "`inputs` needs a `read` before it"
        return self._inputs

    def choose(self, logits: Tensor, columns: ColumnTokens | None = None) -> None:
        assert self._slot is not None and self._rows is not None, (
            "`choose` needs a `read` before it"
        )
        given = logits, columns, *self._given(), self._slot, self._rows, self._beams.is_alive
        self._survivors = select_among(self._functions.select, *given)

    def choice(self) -> tuple[SelectInputs, SelectOptions] | None:
        """Inputs and options of `choose`, for a model that selects by itself; None: it may not."""
        return self._given()

    def _given(self) -> tuple[SelectInputs, SelectOptions]:
        inputs = self.inputs()
        options = select_options(self._rules, self._active, inputs, self._beams.score.shape[1])
        return inputs, options

    def take(self, slot: Tensor, survivors: Survivors) -> None:
        self._slot, self._survivors = slot, survivors

    def commit(self, live: Tensor) -> Tensor:
        assert self._slot is not None and self._survivors is not None, (
            "`commit` needs a `choose` before it"
        )
        survivors, eos_token = with_one_eos(self._survivors, self._eos)
        self._survivors = self._inputs = None
        given = self._tree, self._beams, self._slot, live, survivors, eos_token
        *moves, report = self._functions.commit(*given, self._rules)
        self._moves = moves[0], moves[1]
        return report

    def run(
        self,
        layers: LayerProgram,
        given: tuple[Any, ...],
        edits: tuple[EditList, Tensor],
        columns: StepColumns | None,
        live: Tensor,
        most: int,
        *ends: Tensor | float,
    ) -> tuple[int, Tensor, tuple[float, ...]]:
        return 0, self.report(live), ()

    def moves(self) -> tuple[Tensor, Tensor]:
        assert self._moves is not None, "`moves` needs a `commit` before it"
        return self._moves

    def report(self, slot: Tensor) -> Tensor:
        return self._functions.report(self._tree, self._beams, slot)

    def finished(
        self, slots: list[int], counts: list[int], capacity: int, wants_log_probs: bool
    ) -> Tensor:
        table = self._beams.finished_ints, self._beams.finished_floats
        room = table[0].shape[1]
        owners = [slot for slot, n in zip(slots, counts, strict=True) for _ in range(n)]
        lines = [slot * room + i for slot, n in zip(slots, counts, strict=True) for i in range(n)]

        def found(owner: Tensor, line: Tensor) -> Tensor:
            ints, floats = (array.view(-1, 3).index_select(0, line) for array in table)  # [n, 3]
            given = self._tree, owner, ints, floats, capacity, wants_log_probs
            return traced(self._functions.backtrace, *given)

        result = self._between(("finished", capacity, wants_log_probs), found, (owners, lines))
        assert result is not None
        return result

    def close(self, slots: list[int]) -> None:
        def closed(slot: Tensor) -> None:
            self._functions.close(self._tree, self._beams, slot)

        self._between("close", closed, (slots,))


class TensorDrafts(TensorBeams):
    """See `Backend.draft_program`."""

    # the parameters are the arrays of `BeamState`, their rules, and the kernels
    def __init__(
        self,
        functions: BeamFunctions,
        draft_functions: DraftFunctions,
        tree: TreeArrays,
        beams: Beams,
        drafts: Drafts,
        rules: BeamRules,
        active: ActiveRules,
        vocab_size: int,
    ) -> None:
        super().__init__(functions._replace(read=draft_functions.read), tree, beams, rules, active)
        self._draft_functions, self._drafts = draft_functions, drafts
        self._tokens = DraftTokens(rules.eos_ids[0], vocab_size)
        self._no_row = torch.zeros(0, dtype=INT, device=self._device)

    def open(self, slots: list[int], ints: list[int], floats: list[float], start_id: int) -> None:
        slot, *lines = all_to_device(new_lines(slots, ints, floats), self._device)
        given = slot, NewLines.of(*lines), start_id, self._tokens
        self._draft_functions.open(self._tree, self._beams, self._drafts, *given)

    def choose(self, logits: Tensor, columns: ColumnTokens | None = None) -> None:
        assert self._rows is not None, "`choose` needs a `read` before it"
        assert columns is None, "guesses are checked against the vocabulary"
        places = self._rows.row_slot, self._rows.position
        given = self._beams, self._rules, self._active, *places
        self._survivors = select_rows(self._functions.select, *given, logits)

    def choice(self) -> None:
        return None

    def commit(self, live: Tensor) -> Tensor:
        assert self._slot is not None and self._survivors is not None, (
            "`commit` needs a `choose` before it"
        )
        survivors, eos_token = with_one_eos(self._survivors, self._eos)
        self._survivors = None
        given = self._slot, survivors, eos_token, self._tokens
        self._draft_functions.commit(self._tree, self._beams, self._drafts, *given)
        return self.report(live)

    def moves(self) -> tuple[Tensor, Tensor]:
        return self._no_row, self._no_row


def select_among(
    select: Select,
    logits: Tensor,
    columns: ColumnTokens | None,
    inputs: SelectInputs,
    options: SelectOptions,
    slot: Tensor,
    rows: RowPlaces,
    is_alive: Tensor,
) -> Survivors:
    """`select` for slots [A] among a vocabulary, or among columns; see `select_columns`."""
    if columns is None:
        return select(logits, inputs.score, inputs.offset, inputs.width, options)
    # few searches have columns
    from pybeam.backends.torch_automata import select_columns

    return select_columns(select, logits, columns, inputs, options, slot, rows, is_alive)


def select_rows(
    select: Select,
    beams: Beams,
    rules: BeamRules,
    active: ActiveRules,
    row_slot: Tensor,
    position: Tensor,
    logits: Tensor,
) -> Survivors:
    """The token that greedy decoding would select for every row: `Survivors` of R beams of one row."""
    score = logits.new_zeros(logits.shape[0], dtype=torch.float32)
    offset = torch.arange(logits.shape[0] + 1, dtype=INT, device=logits.device)
    options = SelectOptions(capacity=1, eos_ids=rules.eos_ids, normalise=rules.normalise)
    if active.min_length or active.prefix:
        p = row_slot.long()
    if active.min_length:
        num_generated = position - beams.prefix_length[p]
        # the token of a scored prefix has its log-prob from the best one, which may be EOS
        ban = (num_generated >= 0) & (num_generated < beams.min_length[p])
        options = options._replace(ban_eos=ban)
    if active.prefix:
        given = given_tokens(beams, p, position)
        options = options._replace(forced=torch.where(position < beams.scored_from[p], given, -1))
    return select(logits, score, offset, torch.ones_like(offset[1:]), options)


def given_tokens(beams: Beams, slot: Tensor, position: Tensor) -> Tensor:
    """The tokens [R] of prefixes and targets behind so many tokens [R] of slots [R] int64."""
    return beams.prefix[slot, position.long().clamp(max=beams.prefix.shape[1] - 1)]


def new_lines(
    slots: Sequence[int], ints: list[int], floats: list[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return slots [A] and the lines that open them, which stand one after another; see `NewLines.of`."""
    num = len(slots)
    numbers = np.array(ints, dtype=np.int32).reshape(num, len(INT_COLUMNS))
    bits = np.array(floats, dtype=np.float32).reshape(num, len(FLOAT_COLUMNS)).view(np.int32)
    return np.array(slots, dtype=np.int32), numbers, bits


def select_options(
    rules: BeamRules, active: ActiveRules, inputs: SelectInputs, width: int
) -> SelectOptions:
    """The options of `select` for beams with these inputs, whose arrays have room for `width` entries."""
    is_held = rules.finishing == Finishing.HELD
    per_place = REFILL_PER_PLACE if rules.finishing == Finishing.REFILL else 1
    return SelectOptions(
        capacity=width * per_place,
        eos_ids=rules.eos_ids,
        finishing=rules.finishing,
        normalise=rules.normalise,
        is_ended=inputs.is_ended if is_held else None,
        max_candidates=inputs.max_candidates if active.max_candidates else None,
        margin=inputs.margin if active.margin else None,
        local_margin=inputs.local_margin if active.local_margin else None,
        best_finished=inputs.best_finished if is_held and active.margin else None,
        forced=inputs.forced if active.prefix else None,
        ban_eos=inputs.ban_eos if active.min_length else None,
    )


def with_one_eos(survivors: Survivors, eos: Tensor) -> tuple[Survivors, Tensor | None]:
    """Replace every EOS by the first of `eos` [n]. If there are several, return the original tokens too."""
    token = survivors.token
    if len(eos) == 1:
        return survivors, None
    is_eos = (token[..., None] == eos).any(-1)
    return survivors._replace(token=torch.where(is_eos, eos[0], token)), token


class FinishedArrays(NamedTuple):
    """``n`` finished hypotheses on the device; paths begin with the start token and have `C` places."""

    ints: Tensor  # [n, len(FINISHED_INT_COLUMNS)] int32
    floats: Tensor  # [n, len(FINISHED_FLOAT_COLUMNS)] float32
    num_tokens: Tensor  # [n] int32, of each path
    path: Tensor  # [n, C] int32, padded on the right
    log_prob: Tensor | None  # [n, C] float32 of the tokens of each path

    def packed(self) -> Tensor:
        """Return all numbers as one int32 tensor, a line per hypothesis."""
        floats = self.floats.view(torch.int32)
        parts = [self.ints, floats, self.num_tokens[:, None], self.path]
        if self.log_prob is not None:
            parts.append(self.log_prob.view(torch.int32))
        return torch.cat(parts, 1)


def traced(
    backtrace: Backtrace,
    tree: TreeArrays,
    owner: Tensor,
    ints: Tensor,
    floats: Tensor,
    capacity: int,
    wants_log_probs: bool,
) -> Tensor:
    """Return the hypotheses with these numbers [n, 3] each, packed with the paths to their nodes."""
    node = ints[:, 0]
    paths, length = backtrace(tree.token, tree.parent, owner, node, capacity)
    log_probs = None
    if wants_log_probs:
        values = tree.log_prob.view(INT)
        log_probs = backtrace(values, tree.parent, owner, node, capacity)[0].view(torch.float32)
    return FinishedArrays(ints, floats, length, paths, log_probs).packed()
