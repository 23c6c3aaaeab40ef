"""`must_contain`: phrases in every output, and places of a beam that are kept for rows which have some."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError, flag
from pybeam.automata.phrases import Spellings, phrases_automaton
from pybeam.automata.runs import widths
from pybeam.backends import Backend
from pybeam.backends.arrays import SelectInputs
from pybeam.backends.torch_automata import NEEDED, OTHER, PoolArrays, edges_of
from pybeam.contracts import EditRule, SelectOptions
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.automaton_pool import ANYTHING
from pybeam.processors.base import INF, INT, Stage, check_ids, lists_of_ids
from pybeam.processors.constraints import Constraint


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
        """`data` are as for a `Constraint`, with numbers of edges [S, M], padded with -1, before states."""
        *own, child, state = data
        allowed = super().spread(backend, logits, rows, (*own, state), are_logits=are_logits)
        if rows.inputs is None or not child.numel():
            return allowed
        here = state[rows.row_slot.long(), rows.node.long()]
        number = child.index_select(0, rows.row_slot)
        return allocated(backend, allowed, rows, Edges.of(PoolArrays(*own[:-1]), here, number))


class Edges(NamedTuple):
    """Tokens that may follow rows, and how many are missing behind them."""

    token: Tensor  # [R, M] int32, of every edge of a row's state; -1: none
    missing: Tensor  # [R, M] int64, behind that token
    others: Tensor  # [R] int64, behind a token without an edge
    before: Tensor  # [R] int64, now

    @classmethod
    def of(cls, pool: PoolArrays, state: Tensor, number: Tensor) -> Edges:
        """Return the edges of states [R] with these numbers [R, M]; -1: none."""
        begin, end = edges_of(pool, state)
        edge = begin[:, None] + number
        is_edge = (number >= 0) & (edge < end[:, None])
        edge = torch.where(is_edge, edge, 0)
        return cls(
            torch.where(is_edge, pool.token[edge], -1),
            pool.number(pool.targets(edge, is_edge), NEEDED).long(),
            pool.number(pool.number(state, OTHER), NEEDED).long(),
            pool.number(state, NEEDED).long(),
        )

    def behind(self, row: Tensor, token: Tensor) -> Tensor:
        """Return how many tokens are missing if these rows [A, n] go on with these tokens [A, n]."""
        is_here = self.token[row] == token[..., None]  # [A, n, M]
        missing = torch.where(is_here, self.missing[row], 0).sum(-1)
        return torch.where(is_here.any(-1), missing, self.others[row])


def allocated(backend: Backend, log_probs: Tensor, rows: Rows, edges: Edges) -> Tensor:
    """Leave the continuations that get a place; may overwrite `log_probs` [R, V]. See `must_contain`.

    Rows without edges, within a prefix, or of a beam with fewer than two open places are left as they are.
    """
    assert rows.inputs is not None and rows.beam_score is not None
    inputs = SelectInputs(*rows.inputs())
    places = inputs.width - (inputs.offset.diff() - rows.offset.diff())  # [A], less the held ones
    log_probs, (num_rows, vocab_size) = log_probs.contiguous(), log_probs.shape
    token, parent, has_nan = _candidates(backend, log_probs, rows, places, edges)
    row = (rows.offset[:-1, None] + parent).clamp(max=num_rows - 1).long()
    index = row * vocab_size + token.clamp(min=0)
    gain = log_probs.view(-1)[index].masked_fill(token < 0, -INF)
    score = rows.score[row] + gain
    missing = edges.behind(row, token)
    order = _order(token, -gain, parent, -score, missing)
    order = order.gather(1, _in_rounds(missing.gather(1, order), score.gather(1, order) > -INF))
    is_there = score.gather(1, order) > -INF
    token = token.gather(1, order)
    ends = torch.zeros_like(is_there)
    for eos_id in rows.eos_ids:
        ends |= token == eos_id
    # what ends takes no place of what goes on
    goes_on = (is_there & ~ends).cumsum(1) <= places[:, None]
    is_kept = is_there & torch.where(ends, is_there.cumsum(1) <= places[:, None], goes_on)
    number = torch.arange(num_rows, device=row.device)
    source = torch.searchsorted(rows.offset[1:], number, right=True).clamp(max=len(places) - 1)
    is_divided = ((places > 1) & ~has_nan)[source]
    is_divided &= (edges.token >= 0).any(1) & (rows.num_generated >= 0)
    log_probs.masked_fill_(is_divided[:, None], -INF)
    kept = torch.where(is_kept, gain.gather(1, order), -INF)
    # other rows have these values still
    given = index.gather(1, order).flatten(), kept.flatten()
    log_probs.view(-1).scatter_reduce_(0, *given, "amax")
    return log_probs


def _candidates(
    backend: Backend, log_probs: Tensor, rows: Rows, places: Tensor, edges: Edges
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens and parents [A, n] of continuations that compete, each once, and beams with a NaN [A].

    A token of -1 is none. They are the best of all rows, the best of each row, and all that are nearer to
    the end of what is missing; and every end.
    """
    assert rows.beam_score is not None
    room, device = rows.beam_score.shape[1], log_probs.device
    of_eos = {eos_id: log_probs[:, eos_id].clone() for eos_id in rows.eos_ids}
    for eos_id in of_eos:
        log_probs[:, eos_id] = -INF
    options = SelectOptions(capacity=room, normalise=False)
    best = backend.select(log_probs, rows.score, rows.offset, places.clamp(min=0), options)
    first = log_probs.argmax(1, keepdim=True).to(INT)
    for eos_id, values in of_eos.items():
        log_probs[:, eos_id] = values
    nearer = torch.where(edges.missing < edges.before[:, None], edges.token, -1)  # [R, M]
    first = first.masked_fill((nearer == first).any(1, keepdim=True), -1)
    of_row = torch.cat((nearer, first, *(torch.full_like(first, i) for i in of_eos)), 1)
    parent = torch.arange(room, dtype=INT, device=device)
    row = rows.offset[:-1, None] + parent  # [A, K]
    is_row = row < rows.offset[1:, None]
    own = of_row[torch.where(is_row, row, 0).long()].masked_fill(~is_row[..., None], -1)
    token, parent = own.flatten(1), parent.repeat_interleave(own.shape[2]).expand(len(own), -1)
    is_best = (token[..., None] == best.token[:, None]) & (
        parent[..., None] == best.parent[:, None]
    )
    token = token.masked_fill(is_best.any(-1), -1)
    tokens, parents = torch.cat((best.token, token), 1), torch.cat((best.parent, parent), 1)
    return tokens, parents.clamp(min=0), best.has_nan


def _order(*keys: Tensor) -> Tensor:
    """Return the order [A, n] by the last key, ties by the one before, and so on; each ascends."""
    order = torch.arange(keys[0].shape[1], device=keys[0].device).expand(keys[0].shape)
    for key in keys:
        order = order.gather(1, key.gather(1, order).sort(stable=True).indices)
    return order


def _in_rounds(bank: Tensor, is_there: Tensor) -> Tensor:
    """Return the order [A, n] of the first of each bank, the second of each, …, and what is not there last.

    Banks ascend, and the best of a bank stands first in it.
    """
    place = torch.arange(bank.shape[1], device=bank.device).expand(bank.shape)
    is_first = torch.ones_like(is_there)
    is_first[:, 1:] = bank[:, 1:] != bank[:, :-1]
    turn = place - torch.where(is_first, place, 0).cummax(1).values
    return turn.masked_fill(~is_there, bank.shape[1]).sort(stable=True).indices


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
