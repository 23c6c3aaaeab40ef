"""`constraint`: nothing but the outputs of an automaton, with its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import LARGEST_INT32, ArgumentError
from pybeam.automata.automaton import Automaton
from pybeam.backends.torch_automata import Automata, automaton_logits, automaton_walk
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.automaton_pool import ANYTHING
from pybeam.processors.base import INT, Processor, Stage, check_ids, check_stage


@dataclass(frozen=True)
class Constraint(Processor):
    automaton: Automaton = field(default=ANYTHING, repr=False)
    stage: Stage = "log_probs"
    per_request: ClassVar[tuple[str, ...]] = ("automaton",)
    state: ClassVar = (INT,)
    begins_behind_prefix: ClassVar = True
    can_capture = False

    def __post_init__(self) -> None:
        check_stage(self.stage)
        if not isinstance(self.automaton, Automaton):
            raise TypeError(
                f"`automaton` must be a pybeam.automata.Automaton, but is {self.automaton!r}"
            )

    @property
    def is_neutral(self) -> bool:  # type: ignore[override]
        return self.automaton is ANYTHING

    @property
    def allows_cuts(self) -> bool:  # type: ignore[override]
        return self.automaton.allows_cuts

    def shared(self) -> Automaton:
        return self.automaton

    def check(self, model: Model) -> None:
        tokens = self.automaton.tokens
        check_ids("automaton", tokens[-1:].tolist(), model)
        held = sorted({*model.eos_ids} & {*tokens.tolist()})
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
        if shortest == LARGEST_INT32:
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

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        """`data` are the two arrays of a pool, the start [R] of every row, and the states [S, N]."""
        *arrays, root, state = data
        automata, generated = Automata(*arrays), rows.num_generated
        # outputs begin behind the prefix
        places = rows.tree.parent, state, rows.row_slot, rows.node, rows.token
        here = automaton_walk(automata, *places, generated, root)
        room = rows.max_length.index_select(0, rows.row_slot) - generated - 1
        allowed = automaton_logits(automata, logits, here, room, rows.eos_ids)
        return torch.where(generated[:, None] < 0, logits, allowed)


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
