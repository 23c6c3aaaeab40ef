"""`explain`: follow one search step by step, and say which rule has dropped what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pybeam.arguments import whole
from pybeam.backends import reference
from pybeam.backends.arrays import Beams, TreeArrays
from pybeam.backends.beam_program import ActiveRules, BeamRules
from pybeam.backends.tensor_beams import TensorBeams
from pybeam.contracts import ColumnTokens, Survivors
from pybeam.decoder import Decoder
from pybeam.engine.schedule import Batch
from pybeam.inspect.rules import Asked, Candidate, Judge, given_token, ranked_candidates
from pybeam.inspect.tree import ROOT, Event, Fate, Node, SearchTree
from pybeam.models.base import Model
from pybeam.processors.sampling import Draw
from pybeam.request import Request, Result
from pybeam.search.algorithms import Algorithm
from pybeam.search.overrides import with_default_prefix

# candidates of a step that are shown beside those that stay, for each place of the beam
SHOWN_PER_PLACE, SHOWN = 1, 3
INF = math.inf


def explain(
    model: Any,
    source: Any,
    algorithm: Algorithm | None = None,
    *,
    labels: Mapping[int, str] | None = None,
    shown: int | None = None,
) -> SearchTree:
    """Search for the output of one source, and keep the tree of all that was looked at.

    Each candidate of each step has its log-probability, its score, and what became of it: it stays in the
    beam, it finishes, or a rule drops it, with the numbers by which the rule decides. The rules are those of
    `pybeam.ops.select`. The result is the same as that of a `pybeam.Decoder`; it takes longer.

    Args:
        model: from `pybeam.load`, whose source is a text, or from `pybeam.load_model`.
        source: a text, token ids or a `Request`.
        algorithm: such as `pybeam.fixed_beam(5)`; None: the search of a model from `pybeam.load`.
        labels: the text of each token id; a token without a text shows its id. None: those of the files of a
            model from `pybeam.load`.
        shown: candidates of each step at most, beside those that stay; None: one for each place of the beam,
            and three more.

    Raises:
        ValueError, TypeError: the source is none; or the algorithm has groups, draws its tokens or guesses
            them ahead, its processors narrow the vocabulary to columns, as catalogues do, or a `pybeam.rule`
            changes the candidates of a step.
    """
    if shown is not None:
        whole("shown", shown, 0)
    network, request, labels = _parts(model, source, labels)
    if algorithm is None:
        if network is model:
            raise TypeError("`algorithm` is needed, such as pybeam.fixed_beam(5)")
        algorithm = model.decoder.algorithm
    _check(algorithm)
    decoder = Decoder(network, algorithm, Batch(1), graphs=None if _is_cpu(network) else False)
    if request.target is not None:
        raise ValueError("`source` must have no target, since nothing is searched for then")
    places = decoder.algorithm.max_rows
    log = _Log(SHOWN + SHOWN_PER_PLACE * places if shown is None else shown)
    decoder._backend = _following(decoder._backend, log)
    [result] = decoder.decode([request], on_error="return")
    if result.error is not None:
        raise result.error
    prefix = with_default_prefix(request, decoder.algorithm, network).prefix or ()
    return log.tree(result, tuple(map(int, prefix)), labels, decoder.algorithm)


def _parts(
    model: Any, source: Any, labels: Mapping[int, str] | None
) -> tuple[Model, Request, Mapping[int, str]]:
    """The network, the request, and the texts of tokens."""
    if isinstance(model, Model):
        return model, Request.of(source), labels or {}
    if not hasattr(model, "decoder") or not hasattr(model, "request"):
        raise TypeError(
            f"`model` must be a pybeam.Model, or a translator from pybeam.load, but is {model!r}"
        )
    if labels is None:
        from pybeam.text.tokenizer import load_vocabularies

        found = load_vocabularies(model.path)
        labels = {} if found is None else {i: piece for piece, i in found[1].items()}
    return model.decoder.model, model.request(source), labels


def _check(algorithm: Algorithm) -> None:
    """Raise ValueError for searches that are no single beam of steps."""
    if not isinstance(algorithm, Algorithm):
        raise TypeError(
            f"`algorithm` must be one, such as pybeam.fixed_beam(5), but is {algorithm!r}"
        )
    if algorithm.draft is not None:
        raise ValueError(
            "`algorithm` must take one token a step; pybeam.inspect.decoding_graph shows those that guess"
        )
    draws = algorithm.perturbs or any(isinstance(one, Draw) for one in algorithm.processors)
    if algorithm.num_groups > 1 or draws:
        raise ValueError(
            "`algorithm` must be one beam that ranks by probability: no groups, and no samples"
        )
    for one in algorithm.processors:
        if getattr(one, "acts_on_candidates", False):
            raise ValueError(
                f"`algorithm` must keep candidates by the rules of pybeam.ops.select, but {one!r} changes "
                "them; a rule may have `stop` alone here"
            )


def _is_cpu(model: Model) -> bool:
    return model.device.type == "cpu"


def _following(backend: Any, log: _Log) -> Any:
    """Return the backend, whose beams tell `log` what they choose. Everything else is as fast as it was."""

    def select(logits: Tensor, score: Tensor, offset: Tensor, width: Tensor, options: Any) -> Any:
        log.asked = Asked(logits, score, offset, width, options)
        return backend.select(logits, score, offset, width, options)

    functions = reference.BEAM_FUNCTIONS._replace(select=select)

    def beam_program(
        tree: TreeArrays, beams: Beams, rules: BeamRules, active: ActiveRules
    ) -> TensorBeams:
        program = _Followed(functions, tree, beams, rules, active)
        program.log = log
        return program

    own = {name: getattr(backend, name) for name in dir(backend)}
    return SimpleNamespace(**own | {"select": select, "beam_program": beam_program})


class _Followed(TensorBeams):
    """Beams that tell a log what they commit."""

    log: _Log

    def choose(self, logits: Tensor, columns: ColumnTokens | None = None) -> None:
        if columns is not None:
            raise ValueError("`algorithm` must choose among the vocabulary, and not among columns")
        super().choose(logits)

    def commit(self, live: Tensor) -> Tensor:
        assert self._survivors is not None and self._slot is not None
        moved = torch.nonzero(self._slot).flatten()
        # a step of nobody is padding
        if len(moved):
            self.log.note(int(moved[0]), self._survivors)
        return super().commit(live)


class _Log:
    """All that a search has looked at, step by step."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self.asked: Asked | None = None
        self.nodes: list[Node] = []
        self._beam = [ROOT]
        self._left: list[int] = []
        self._num_given = 0

    def note(self, slot: int, survivors: Survivors) -> None:
        """Note a step: the arguments of the last `select`, and the survivors of a beam."""
        assert self.asked is not None
        step = len(self._left) + 1
        ranked = ranked_candidates(self.asked, slot)
        judge = Judge(self.asked, slot)
        is_given = given_token(self.asked.options, slot) >= 0
        self._num_given += is_given
        fates = judge.fates(ranked)
        num, num_finished = int(survivors.count[slot]), int(survivors.num_finished[slot])
        chosen = list(
            zip(
                survivors.parent[slot, :num].tolist(),
                survivors.token[slot, :num].tolist(),
                strict=True,
            )
        )
        place = {key: i for i, key in enumerate(chosen)}
        found: dict[tuple[int, int], int] = {}
        num_others = 0
        for candidate, (fate, reason) in zip(ranked, fates, strict=True):
            own = place.get(candidate.key)
            if is_given:
                fate = Fate.GIVEN
            elif own is not None:
                is_going_on = Fate.HELD if judge.ends(candidate) else Fate.KEPT
                fate, reason = (Fate.FINISHED if own < num_finished else is_going_on), ""
            elif fate in (Fate.KEPT, Fate.HELD, Fate.FINISHED):
                fate, reason = Fate.WIDTH, "a tie with one that stays"
            is_new = own is not None or candidate.is_held or num_others < self._shown
            num_others += own is None
            if is_new:
                found[candidate.key] = self._add(candidate, Event(step, fate, reason))
        self._left.append(judge.num_candidates - len(found))
        self._beam = [found[key] for key in chosen[num_finished:]]

    def _add(self, candidate: Candidate, event: Event) -> int:
        """Add what happens to a candidate; returns its node."""
        parent = self._beam[candidate.parent]
        if candidate.is_held:
            node = self.nodes[parent]
            self.nodes[parent] = node._replace(events=(*node.events, event))
            return parent
        given = candidate.token, candidate.log_prob, candidate.score, (event,)
        self.nodes.append(Node(parent, *given))
        return len(self.nodes) - 1

    def tree(
        self,
        result: Result,
        prefix: tuple[int, ...],
        labels: Mapping[int, str],
        algorithm: Algorithm,
    ) -> SearchTree:
        """Return the tree of a search that has this result."""
        children: dict[tuple[int, int], int] = {
            (node.parent, node.token): i for i, node in enumerate(self.nodes)
        }
        outputs = []
        # the output of an empty source is known without a step
        is_searched = result.stop_reason != "empty_source"
        for hypothesis in result.hypotheses if is_searched else ():
            # a prefix that was read at once has no nodes
            tokens = [int(t) for t in hypothesis.tokens[len(prefix) - self._num_given :]]
            tokens += [] if hypothesis.eos_id is None else [hypothesis.eos_id]
            outputs.append((_end_of(tokens, children), hypothesis.final_score))
        names = {node.token for node in self.nodes} | {*prefix}
        return SearchTree(
            nodes=self.nodes,
            labels={token: labels.get(token, str(token)) for token in sorted(names)},
            prefix=prefix,
            left=self._left,
            beam=[one for one in self._beam if one != ROOT],
            outputs=outputs,
            stop_reason=result.stop_reason,
            expansions=result.expansions,
            algorithm=repr(algorithm),
        )


def _end_of(tokens: Iterable[int], children: Mapping[tuple[int, int], int]) -> int:
    """The node that these tokens lead to."""
    node = ROOT
    for token in tokens:
        node = children[node, token]
    return node
