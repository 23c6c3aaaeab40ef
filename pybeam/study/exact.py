"""`exact_search`: the most probable output of a model, found with proof."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pybeam.arguments import some, whole
from pybeam.decoder import Decoder
from pybeam.engine.schedule import Fifo
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, INT, Processor, Stage
from pybeam.request import Request, Result
from pybeam.search.beams import optimal_beam

FIRST_WIDTH = 16  # of the beam search that gives the first bound


class ExactResult(NamedTuple):
    """The most probable output of one source.

    Attributes:
        tokens: the output behind the source's prefix, without EOS; None: no output was found that ends.
        log_prob: the sum of its log-probabilities, EOS included; -inf without an output.
        is_exact: whether it is proven that no other output is more probable.
        upper_bound: no output has a larger log-probability; `log_prob` where `is_exact`.
        expansions: rows that the model has computed.
    """

    tokens: tuple[int, ...] | None
    log_prob: float
    is_exact: bool
    upper_bound: float
    expansions: int


class Node(NamedTuple):
    """All outputs that begin with these tokens, whose log-probability is given."""

    tokens: tuple[int, ...]
    log_prob: float

    def behind(self, before: Node) -> Node:
        """The node that this one is behind another."""
        return Node(before.tokens + self.tokens, before.log_prob + self.log_prob)


class Frontier:
    """Where searches have become too wide, by their tasks.

    Attributes:
        nodes: the beginnings that each had reached, behind the node that it began from.
        ended: outputs that ended right there.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, list[Node]] = {}
        self.ended: dict[int, list[Node]] = {}

    def note(self, task: int, rows: Rows, own: list[int], total: Tensor, kept: Tensor) -> None:
        """Keep the beginnings of rows `own`; of one row alone, those that are one token longer."""
        begun = [_generated(rows, row) for row in own]
        if len(own) > 1:
            scores = rows.score[own].tolist()
            self.nodes[task] = [Node(*node) for node in zip(begun, scores, strict=True)]
            return
        tokens = torch.nonzero(kept[own[0]]).flatten().tolist()
        scores = total[own[0], tokens].tolist()
        longer = [Node((*begun[0], one), score) for one, score in zip(tokens, scores, strict=True)]
        self.nodes[task] = [node for node in longer if node.tokens[-1] not in rows.eos_ids]
        shortest = int(rows.min_length[int(rows.row_slot[own[0]])])
        self.ended[task] = [
            Node(node.tokens[:-1], node.log_prob)
            for node in longer
            if node.tokens[-1] in rows.eos_ids and len(node.tokens) > shortest
        ]


def _generated(rows: Rows, row: int) -> tuple[int, ...]:
    end, num = int(rows.position[row]) + 1, int(rows.num_generated[row])
    return tuple(rows.history[row, end - num : end].tolist())


@dataclass(frozen=True)
class Bounded(Processor):
    """Drop what cannot be more probable than a bound, and end searches that would be wider than a limit.

    Log-probabilities are at most 0, so no continuation of a beginning is more probable than the beginning.
    """

    bound: float = -INF
    task: int = 0
    width: int = 1
    frontier: Frontier = field(default_factory=Frontier, repr=False)
    stage: Stage = field(default="log_probs", init=False)
    per_request: ClassVar = ("bound", "task")
    can_capture = False

    def parameters(self) -> tuple[Tensor, ...]:
        return torch.tensor(self.bound, dtype=torch.float32), torch.tensor(self.task, dtype=INT)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        bound, task = data
        slot = rows.row_slot.long()
        is_searched = (rows.num_generated >= 0) & (slot > 0)
        total = rows.score[:, None] + logits
        kept = (total > bound[:, None]) & is_searched[:, None]
        # an output that does not end in time is none
        ends = torch.zeros_like(kept[:1]).index_fill_(
            1, torch.tensor(rows.eos_ids, device=kept.device), True
        )
        kept &= ends | ~rows.is_last[:, None]
        num = torch.zeros_like(rows.max_length).index_add_(0, slot, kept.sum(1, dtype=INT))
        is_wide = (num > self.width)[slot] & is_searched
        for one in task[is_wide].unique().tolist():
            own = torch.nonzero(is_wide & (task == one)).flatten().tolist()
            self.frontier.note(one, rows, own, total, kept)
        is_dropped = is_wide[:, None] | (is_searched[:, None] & ~kept)
        return logits.masked_fill(is_dropped, -INF)


def exact_search(
    model: Model,
    sources: Iterable[Any],
    *,
    max_length: int,
    min_length: int = 0,
    width: int = 128,
    together: int = 32,
    max_expansions: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[ExactResult]:
    """Return the most probable output of each source, the mode of the model, with proof.

    A beam search gives a first output, whose log-probability is a bound. Then beginnings of outputs are
    searched breadth first, without those that are not more probable than the bound. A search that would
    need more than `width` rows ends, and what it had reached is searched from there, the most probable
    beginning first. So memory is bounded, and nothing is dropped that could win. This is the depth-first
    search of Stahlberg and Byrne 2019 ("On NMT Search Errors and Model Errors: Cat Got Your Tongue?"),
    with many beginnings in each step of the model.

    Settings of the model's folder, such as forced tokens and penalties, are no part of the model's
    log-probabilities; leave them out with `Model.without`.

    The mode of a translation model is often short, or empty. The time grows with the number of beginnings
    that are more probable than the mode, from a few dozen to millions.

    Args:
        model: from `pybeam.load_model`, or any other.
        sources: what a `pybeam.Decoder` takes. A prefix has no log-probability.
        max_length: tokens of an output at most, EOS included. Outputs that do not end do not count.
        min_length: tokens of an output at least, without EOS.
        width: rows of one search at most, 1 to 4,096.
        together: searches that run at once, of all sources.
        max_expansions: rows after which a source is given up, at the next round of searches; it has the best
            output found so far, and `is_exact` is false. None: none is given up.
        progress: is told how many sources are done, and of how many.

    Returns:
        a result for each source, in order.

    Raises:
        ValueError, TypeError: an option is out of range, a source is none for the model, or the model has
            settings that a search applies.
    """
    whole("together", together, 1)
    if max_expansions is not None:
        whole("max_expansions", max_expansions, 1)
    if model.settings.names:
        raise ValueError(
            f"`model` must have no settings of its folder, but has {some(model.settings.names)}; leave them "
            "out with `model.without(…)`"
        )
    bounded = Bounded(width=width)
    first = optimal_beam(FIRST_WIDTH, min_length=min_length, max_length=max_length)
    algorithm = dataclasses.replace(first, width=width, processors=(bounded,))
    decoder = Decoder(model, algorithm, Fifo(together))
    requests = [Request.of(source) for source in sources]
    found = Decoder(model, first).decode(requests)
    searches = [
        _Search(
            dataclasses.replace(request, source_id=_source_id(request, i)),
            result,
            (min_length, max_length),
        )
        for i, (request, result) in enumerate(zip(requests, found, strict=True))
    ]
    most = INF if max_expansions is None else max_expansions
    while unfinished := [search for search in searches if search.goes_on(most)]:
        if progress is not None:
            progress(len(searches) - len(unfinished), len(searches))
        share = -(-together // len(unfinished))
        asked = [(search, node) for search in unfinished for node in search.take(share)]
        given = [
            search.request(node, dataclasses.replace(bounded, task=task))
            for task, (search, node) in enumerate(asked)
        ]
        results = decoder.decode(given)
        for task, ((search, node), result) in enumerate(zip(asked, results, strict=True)):
            search.learn(node, result, bounded.frontier, task)
    if progress is not None:
        progress(len(searches), len(searches))
    return [search.result for search in searches]


def _source_id(request: Request, place: int) -> int:
    return place if request.source_id is None else request.source_id


class _Search:
    """One source: the best output so far, and the beginnings that are still to be looked at."""

    def __init__(self, request: Request, first: Result, lengths: tuple[int, int]) -> None:
        self._request, self._lengths = request, lengths
        self._best: Node | None = None
        self._open = [Node((), 0.0)]
        self._expansions = 0
        # of the source, unless the request has one
        prefix = getattr(request.source, "prefix", ()) if request.prefix is None else request.prefix
        self._prefix = tuple(prefix)
        self._meet(Node((), 0.0), first)

    def goes_on(self, most: float) -> bool:
        """Whether some beginning may still win, after so many rows at most."""
        self._open = [node for node in self._open if node.log_prob > self._bound]
        return bool(self._open) and self._expansions < most

    @property
    def _bound(self) -> float:
        return -INF if self._best is None else self._best.log_prob

    def take(self, num: int) -> list[Node]:
        """So many of the beginnings that are to be looked at, the most probable ones."""
        self._open.sort(key=lambda node: node.log_prob)
        taken = self._open[-num:]
        del self._open[-num:]
        return taken

    def request(self, node: Node, bounded: Bounded) -> Request:
        """The search for what is more probable than the best output, and begins so."""
        (shortest, longest), size = self._lengths, len(node.tokens)
        bounded = dataclasses.replace(bounded, bound=self._bound - node.log_prob)
        return dataclasses.replace(
            self._request,
            prefix=(*self._prefix, *node.tokens),
            max_length=longest - size,
            min_length=max(shortest - size, 0),
            processors=[bounded],
        )

    def learn(self, node: Node, result: Result, frontier: Frontier, task: int) -> None:
        """Take what a search has found, and what it has left."""
        self._meet(node, result)
        for ended in frontier.ended.pop(task, ()):
            self._take(ended.behind(node))
        self._open += [left.behind(node) for left in frontier.nodes.pop(task, ())]

    def _meet(self, node: Node, result: Result) -> None:
        self._expansions += result.expansions
        for hypothesis in result.hypotheses:
            if hypothesis.ended:
                tokens = tuple(hypothesis.tokens[len(self._prefix) + len(node.tokens) :])
                self._take(Node(tokens, hypothesis.score).behind(node))

    def _take(self, output: Node) -> None:
        if self._best is None or output.log_prob > self._best.log_prob:
            self._best = output

    @property
    def result(self) -> ExactResult:
        left = max((node.log_prob for node in self._open), default=-INF)
        tokens = None if self._best is None else self._best.tokens
        is_exact = left <= self._bound
        return ExactResult(tokens, self._bound, is_exact, max(left, self._bound), self._expansions)
