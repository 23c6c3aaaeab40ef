"""`must_contain`: phrases in every output, and places of a beam that are kept for rows which have some."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError, flag
from pybeam.automata.phrases import Spellings, phrases_automaton
from pybeam.automata.runs import widths
from pybeam.backends import Backend
from pybeam.backends.arrays import SelectInputs
from pybeam.backends.torch_automata import PoolArrays
from pybeam.backends.torch_places import PlacesInputs
from pybeam.contracts import EditRule, SelectOptions
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.automaton_pool import ANYTHING
from pybeam.processors.base import INT, Stage, check_ids, lists_of_ids
from pybeam.processors.constraints import Constraint

# of EOS, for the beams of a step; a step of more makes its own
_BANS = torch.ones(4096, dtype=torch.bool)


@dataclass(frozen=True)
class MustContain(Constraint):
    phrases: tuple[Spellings, ...] = ()
    allocates: bool = True
    per_request: ClassVar[tuple[str, ...]] = ("automaton", "phrases", "allocates")

    def __post_init__(self) -> None:
        super().__post_init__()
        flag("allocates", self.allocates)
        if self.allocates and self.stage == "logits":
            raise ValueError(
                "`stage` must be 'log_probs' where places of a beam are allocated by scores, but is "
                "'logits'; use allocates=False"
            )

    def check(self, model: Model) -> None:
        tokens = [token for phrase in self.phrases for one in phrase for token in one]
        check_ids("phrases", tokens, model)
        held = set(tokens).intersection(model.eos_ids)
        if held:
            raise ArgumentError(
                "phrases", f"must not hold EOS ({min(held)}), which ends every output; leave it out"
            )

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the numbers of the edges of a state, if places are allocated."""
        most = int(widths(self.automaton).max()) if self.allocates else 0
        return (torch.arange(most, dtype=INT),)

    def constants(self) -> tuple[Tensor, ...]:
        return (_BANS,)

    @property
    def by_source(self) -> bool:  # type: ignore[override]
        return bool(self.phrases)

    def of_source(self, content: Any, prefix: Sequence[int]) -> MustContain:
        """Return the one that begins where a forced prefix leads to."""
        start = self.automaton.walk(prefix).state
        if start == self.automaton.start:
            return self
        return dataclasses.replace(self, automaton=self.automaton.starting_at(start))

    def for_target(self) -> MustContain:
        return dataclasses.replace(self, allocates=False)

    @property
    def step_edit(self) -> EditRule | None:
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
        """`data` are as for a `Constraint`, with numbers of edges [S, M] and `_BANS` before states."""
        *own, child, bans, state = data
        allowed = super().spread(backend, logits, rows, (*own, state), are_logits=are_logits)
        if rows.inputs is None or not child.numel():
            return allowed
        assert rows.beam_score is not None
        inputs, room = SelectInputs(*rows.inputs()), rows.beam_score.shape[1]
        bans = bans[: len(inputs.width)]
        if len(bans) < len(inputs.width):
            bans = torch.ones_like(inputs.ban_eos)
        # held hypotheses take part, as fewer kernels leave them out behind it
        options = SelectOptions(
            capacity=room,
            eos_ids=rows.eos_ids,
            normalise=False,
            is_ended=inputs.is_ended,
            ban_eos=bans,
        )
        best = backend.select(allowed, inputs.score, inputs.offset, inputs.width, options)
        places = PlacesInputs(
            state,
            child,
            rows.row_slot,
            rows.node,
            rows.entry,
            rows.position,
            rows.offset,
            rows.prefix_length,
            rows.beam_score,
            inputs.offset,
            inputs.width,
        )
        arrays = PoolArrays(*own[:-1])
        divided = backend.automaton_places(
            allowed, arrays, places, best.token, best.parent, rows.eos_ids
        )
        return allowed if divided is None else divided


def must_contain(
    phrases: Iterable[str | Iterable[int] | Iterable[Iterable[int]]] = (),
    tokenizer: Encoder | None = None,
    *,
    allocates: bool = True,
    stage: Stage = "log_probs",
) -> MustContain:
    """Let every output contain each of these phrases, in any order, with beams kept for those that have some.

    An output is valid if each phrase stands in it at least as often as in the list. Occurrences may overlap,
    one may lie in another, and the tokens of a forced prefix count. EOS has -inf until all phrases are
    there. So has a token behind which what is missing and EOS fit into `max_length` no more. Scores are the
    model's otherwise. With a beam as wide as the language, the n best hypotheses are the best valid outputs.

    Phrases are seldom what the model would say next, so a narrow beam would put them off until `max_length`
    forces them. Therefore the places of a beam are allocated: K are its places, less those of held
    hypotheses, and the bank of a continuation is the number of tokens that are missing behind it, the fewest
    that complete all phrases. In each step these continuations compete: the best K of all rows, the best of
    each row, all behind which fewer tokens are missing than before, and EOS. First the best of each bank gets
    a place, from the fewest missing tokens on, then the second best of each, until all places are taken. EOS
    needs one, but takes none from those that go on. All others get -inf. Pruning and the finishing rule
    see the rest.

    Where there is one open place there is nothing to allocate, and so in searches that sample or guess: there
    phrases come when the model says them, or at the last moment.

    Per request: the phrases. An algorithm with `must_contain()`, which asks for nothing, leaves them to its
    requests. Put it last: it compares rows by the log-probabilities that it is given.

    Args:
        phrases: lists of token ids without EOS; or lists of such lists, the spellings of a phrase, any of
            which will do and which count together; or texts. None of them is empty. A text has the spellings
            that the tokenizer gives it at the beginning of an output and behind a space.
        tokenizer: `pybeam.Tokenizer` or another object with its `encode_target`, for texts.
        allocates: False: the rule about outputs alone.
        stage: "logits" only with ``allocates=False``; see `pybeam.processors`.

    Raises:
        TypeError, ValueError: they are no such lists or texts, one is empty or has tokens that the tokenizer
            does not know, or there are too many: the automaton of n different phrases has more than ``2**n``
            states. With a decoder: a phrase holds EOS, or an id that the model lacks. With a request: phrases
            do not fit into `max_length`.

    See Post and Vilar 2018; Hu et al. 2019.
    """
    spelt = spellings_of(phrases, tokenizer)
    automaton = phrases_automaton(spelt) if spelt else ANYTHING
    return MustContain(automaton, stage, spelt, allocates)


class Encoder(Protocol):
    """The part of a tokenizer that phrases need."""

    def encode_target(self, text: str) -> list[int]:
        """Return the target ids of a text, without tags and EOS."""


def spellings_of(phrases: Any, tokenizer: Encoder | None) -> tuple[Spellings, ...]:
    """Return the spellings of each phrase, as `must_contain` takes them."""
    if isinstance(phrases, str) or not isinstance(phrases, Iterable):
        raise TypeError(f"`phrases` must be a list of phrases, but is {phrases!r}")
    return tuple(_spellings(phrase, tokenizer) for phrase in phrases)


def _spellings(phrase: Any, tokenizer: Encoder | None) -> Spellings:
    """Return the spellings of a phrase, as `must_contain` takes it."""
    if isinstance(phrase, str):
        if tokenizer is None or not hasattr(tokenizer, "encode_target"):
            raise TypeError(
                f"`tokenizer` must be a pybeam.Tokenizer, as `phrases` hold {phrase!r}, but is {tokenizer!r}"
            )
        texts = (phrase, f" {phrase}") if phrase.strip() else ()
        given: list[Any] = [tokenizer.encode_target(text) for text in texts]
        if any(getattr(tokenizer, "unk_id", None) in one for one in given):
            raise ValueError(f"`phrases` must be what the tokenizer can spell, but hold {phrase!r}")
    elif not isinstance(phrase, Iterable):
        raise TypeError(f"`phrases` must hold lists of token ids, but hold {phrase!r}")
    else:
        given = list(phrase.tolist() if isinstance(phrase, Tensor) else phrase)
        if not any(isinstance(one, Iterable) for one in given):
            given = [given]
    spellings = lists_of_ids("phrases", given)
    if not (spellings and all(spellings)):
        raise ValueError("`phrases` must not hold an empty one; leave it out")
    return tuple(dict.fromkeys(spellings))
