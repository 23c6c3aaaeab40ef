"""`constraint`: nothing but the outputs of an automaton, with its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.automata.automaton import NEVER, Automaton
from pybeam.backends import Backend
from pybeam.backends.torch_automata import PoolArrays, StepColumns
from pybeam.contracts import ColumnRules, Edit, EditRule, Normalise
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.automaton_pool import ANYTHING
from pybeam.processors.base import INT, Stage, check_ids, check_stage
from pybeam.processors.columns import ColumnProcessor, Columns, places_of


@dataclass(frozen=True)
class Constraint(ColumnProcessor):
    """Its `data` are the arrays of a pool, the start [S] of every slot, and the states [S, N]."""

    automaton: Automaton = field(default=ANYTHING, repr=False)
    stage: Stage = "log_probs"
    per_request: ClassVar[tuple[str, ...]] = ("automaton",)
    state: ClassVar = (INT,)
    begins_behind_prefix: ClassVar = True
    narrows_on_gpu: ClassVar = False

    def __post_init__(self) -> None:
        check_stage(self.stage)
        if not isinstance(self.automaton, Automaton):
            raise TypeError(
                f"`automaton` must be a pybeam.automata.Automaton, but is {self.automaton!r}"
            )
        # an engine would find it between the steps of others; a pickle has it, too
        _ = self.automaton.needed

    @property
    def is_neutral(self) -> bool:  # type: ignore[override]
        return self.automaton is ANYTHING

    @property
    def allows_cuts(self) -> bool:  # type: ignore[override]
        return self.automaton.allows_cuts

    @property
    def step_edit(self) -> EditRule | None:
        return EditRule(Edit.AUTOMATON)

    @property
    def gives_columns(self) -> bool:  # type: ignore[override]
        # probabilities of stage "logits" sum to 1 behind all processors
        return self.stage == "log_probs" and self.automaton.is_sparse

    def shared(self) -> Automaton:
        return self.automaton

    def check(self, model: Model) -> None:
        automaton = self.automaton
        check_ids("automaton", automaton.tokens[-1:].tolist(), model)
        held = [one for one in model.eos_ids if automaton.has_token(one)]
        if held:
            raise ArgumentError(
                "automaton",
                f"must have no edges with EOS ({held[0]}), which `final` allows; leave them out",
            )

    @property
    def longest_output(self) -> int | None:
        longest = self.automaton.longest
        return None if longest is None else longest + 1

    def check_lengths(self, min_length: int, max_length: int) -> None:
        shortest, may_cut = self.automaton.shortest, self.automaton.allows_cuts
        if shortest == NEVER:
            raise ArgumentError("automaton", "must have a valid output, but has none")
        if max_length <= shortest - may_cut:
            raise ArgumentError(
                "max_length",
                f"must be at least {shortest + 1}, the tokens of the shortest valid output and EOS, but is "
                f"{max_length}",
            )
        if min_length and not self.automaton.has_output(min_length, max_length - 1 + may_cut):
            raise ArgumentError(
                "min_length",
                f"must leave a valid output, but none has {min_length} to {max_length - 1} tokens",
            )

    def can_narrow(self, eos_ids: Sequence[int], own: Constraint) -> bool:
        automaton, [eos_id, *others] = own.automaton, eos_ids
        ends = [*automaton.tokens[:1], *automaton.tokens[-1:]]
        eos_first = self._eos_first(eos_id)
        is_ordered = all((token > eos_id) == eos_first for token in ends)
        # columns have one EOS
        return automaton.is_sparse and is_ordered and not others

    def _eos_first(self, eos_id: int) -> bool:
        return all(token > eos_id for token in self.automaton.tokens[:1])

    def columns(
        self,
        backend: Backend,
        logits: Tensor,
        rows: Rows,
        data: tuple[Tensor, ...],
        *,
        are_logits: bool,
    ) -> Columns:
        *arrays, start, state = data
        pool = PoolArrays(*arrays)
        here, room = backend.automaton_walk(pool, *places_of(rows, start, state))
        rules = self._rules(rows.eos_id, are_logits=are_logits)
        log_probs = backend.automaton_columns(pool, logits, here, room, rules)
        return Columns(log_probs, pool, here, rules)

    def in_steps(self, arrays: Sequence[Tensor], eos_id: int, *, are_logits: bool) -> StepColumns:
        *pool, start, state = arrays
        rules = self._rules(eos_id, are_logits=are_logits)
        return StepColumns(PoolArrays(*pool), start, state, rules)

    def _rules(self, eos_id: int, *, are_logits: bool) -> ColumnRules:
        normalise = Normalise.VOCABULARY if are_logits else Normalise.NOTHING
        return ColumnRules(eos_id, self._eos_first(eos_id), 0, normalise)

    def wanted(self, backend: Backend, rows: Rows, data: tuple[Tensor, ...]) -> Tensor | None:
        return None

    def spread(
        self,
        backend: Backend,
        logits: Tensor,
        rows: Rows,
        data: tuple[Tensor, ...],
        *,
        are_logits: bool,
    ) -> Tensor:
        *arrays, start, state = data
        shaped = backend.log_softmax(logits) if are_logits else logits
        places = places_of(rows, start, state)
        backend.automaton_logits(shaped, PoolArrays(*arrays), *places, rows.eos_ids)
        return shaped


def constraint(automaton: Automaton | None = None, *, stage: Stage = "log_probs") -> Constraint:
    """Allow nothing but the outputs of an automaton, and add its weights.

    A token v behind the forced prefix has ``x[v] + w``, where w is the weight of the automaton's step by v
    from the state s that the tokens before it lead to. EOS has ``x[EOS] + final[s]``; a model's EOS are all
    alike. A token that the automaton forbids has -inf. So has one behind which no valid output ends within
    `max_length`: every hypothesis is valid and ends in EOS. With a beam as wide as the language, the n best
    hypotheses are the n best of all valid outputs.

    Several constraints together allow what all of them do. A hypothesis from which none of them forbids a
    token alone, but all together forbid all, ends there and is dropped; so it is where `min_length` bans the
    only end.

    Per request: the automaton. Requests that share one, the same object, share its place on the device.

    Args:
        automaton: a `pybeam.automata.Automaton` over tokens of the model; None: all is allowed, and requests
            bring theirs.
        stage: see `pybeam.processors`. With "logits", probabilities sum to 1 over what is allowed.

    Raises:
        TypeError: `automaton` is none.
        ValueError: with a decoder: it has edges with EOS or with tokens that the model lacks. With a request:
            no valid output has `min_length` to `max_length` tokens.
    """
    return Constraint(ANYTHING if automaton is None else automaton, stage)
