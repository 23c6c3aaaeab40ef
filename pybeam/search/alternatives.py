"""Alternatives at a position: the most probable next tokens, and the best output after each.

The loop searches twice. The first search has one step and finds the next tokens of every request. The
second goes on from all of them at once, with the tokens as prefixes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import islice
from numbers import Real

from pybeam import scoring
from pybeam.arguments import whole
from pybeam.contracts import MAX_WIDTH
from pybeam.models.base import Model
from pybeam.processors.base import Processor
from pybeam.request import Hypothesis, Request, Result
from pybeam.search.algorithms import Algorithm
from pybeam.search.overrides import overridden, rule_of, with_default_prefix

Decode = Callable[[list[Request]], list[Result]]


def alternatives(
    decode: Decode,
    model: Model,
    algorithm: Algorithm,
    requests: Sequence[Request],
    num: int,
    min_probability: float,
) -> list[Result]:
    """See `Decoder.alternatives`."""
    _check(algorithm)
    # any EOS may be among the best tokens, and none is an alternative
    num_eos = len(model.eos_ids)
    whole("num", num, 1, MAX_WIDTH - num_eos)
    if not isinstance(min_probability, Real):
        raise TypeError(f"`min_probability` must be a number, but is {min_probability!r}")
    if not 0 <= min_probability <= 1:
        raise ValueError(f"`min_probability` must be 0 to 1, but is {min_probability}")
    requests = [
        with_default_prefix(_numbered(i, request), algorithm, model)
        for i, request in enumerate(requests)
    ]
    for request in requests:
        rule = rule_of(algorithm, request)
        if rule.in_length or rule.in_limits or rule.leading_eos:
            raise ValueError(
                f"alternatives are for algorithms whose prefixes count for nothing, but `prefix` is "
                f"{rule!r}; use dataclasses.replace(algorithm, prefix=pybeam.limits.FREE)"
            )
    results = decode([_first_step(request, num + num_eos) for request in requests])
    min_score = math.log(min_probability) if min_probability else -math.inf
    plans = [
        _Plan(request, result, algorithm, model, num, min_score)
        for request, result in zip(requests, results, strict=True)
        if result.error is None and result.stop_reason != "empty_source"
    ]
    rests = iter(decode([request for plan in plans for request in plan.requests]))
    for plan in plans:
        results[plan.first.index] = plan.joined(list(islice(rests, len(plan.requests))))
    return results


def _check(algorithm: Algorithm) -> None:
    """Raise ValueError unless tokens are ranked by their probabilities, and prefixes mean what they say."""
    if algorithm.perturbs or algorithm.num_groups > 1:
        raise ValueError(
            "`alternatives` ranks tokens by their probabilities, which "
            f"{algorithm.processors[-1]!r} changes; take another algorithm"
        )
    if algorithm.draft is not None:
        raise ValueError(
            "`alternatives` needs a beam of all next tokens, but the algorithm guesses ahead with one "
            "hypothesis; use pybeam.greedy(), whose output is the same"
        )
    if algorithm.scoring.coverage:
        raise ValueError(
            "`alternatives` cannot rank by coverage, but the algorithm's scoring has "
            f"{algorithm.scoring.coverage}; leave it out"
        )
    for processor in algorithm.processors:
        if isinstance(processor, Processor) and processor.begins_behind_prefix:
            raise ValueError(
                "`alternatives` goes on from each token as from a prefix, behind which what is allowed "
                f"begins anew, but the algorithm has {type(processor).__name__}; use `decode` with as "
                "large an `n_best`"
            )


def _numbered(index: int, request: Request) -> Request:
    if request.target is not None:
        raise ValueError(f"request {index} has a `target`, to which there are no alternatives")
    if getattr(request.scoring, "coverage", 0):
        raise ValueError(
            f"request {index} has a `scoring` with coverage, which cannot rank alternatives; leave it out"
        )
    source_id = index if request.source_id is None else request.source_id
    return dataclasses.replace(request, source_id=source_id)


def _first_step(request: Request, width: int) -> Request:
    """Make a search of one step that finds the best `width` tokens, whatever the algorithm."""
    return dataclasses.replace(
        request,
        width=width,
        n_best=width,
        min_length=0,
        max_length=1,
        scoring=scoring.raw(),
        ended_only=False,
        threshold=math.inf,
        max_candidates=math.inf,
        relative_threshold=math.inf,
        local_threshold=math.inf,
    )


class _Plan:
    """The alternatives of one request: the requests that decode them, and outputs joined from both parts."""

    def __init__(
        self,
        request: Request,
        first: Result,
        algorithm: Algorithm,
        model: Model,
        num: int,
        min_score: float,
    ) -> None:
        self.first = first
        self._starts = [h for h in first.hypotheses if not h.ended and h.score >= min_score][:num]
        source = model.check(request.source)
        length = model.source_length(source)
        own = overridden(algorithm, request, model.room(source), length)
        assert isinstance(own.max_length, int)
        self._scoring, self._ended_only = own.scoring, own.ended_only
        self._source_length = length
        # repeat the request for every alternative, with the alternative as part of the prefix
        self.requests = [
            dataclasses.replace(
                request,
                prefix=start.tokens,
                n_best=1,
                max_length=own.max_length - 1,
                min_length=max(own.min_length - 1, 0),
            )
            for start in self._starts
            if own.max_length > 1
        ]

    def joined(self, rests: list[Result]) -> Result:
        """Return the alternatives, each joined with its continuation."""
        first = self.first
        error = next((rest.error for rest in rests if rest.error is not None), None)
        if error is not None:
            hypotheses = []
        elif not rests:
            # `max_length` is 1, so none of them has ended
            starts = [] if self._ended_only else self._starts
            hypotheses = [self._join(start, start, num_more=0) for start in starts]
        else:
            hypotheses = [
                self._join(start, end, len(end.tokens) - len(start.tokens) + end.ended, end.score)
                for start, rest in zip(self._starts, rests, strict=True)
                for end in rest.hypotheses
            ]
        return dataclasses.replace(
            first,
            hypotheses=hypotheses,
            stop_reason="alternatives" if error is None else "error",
            steps=first.steps + max((rest.steps for rest in rests), default=0),
            expansions=first.expansions + sum(rest.expansions for rest in rests),
            error=error,
        )

    def _join(
        self, start: Hypothesis, end: Hypothesis, num_more: int, score: float = 0.0
    ) -> Hypothesis:
        total = start.score + score
        log_probs = start.log_probs
        if log_probs is not None and num_more:
            log_probs = [*log_probs, *(end.log_probs or ())]
        return dataclasses.replace(
            end,
            score=total,
            final_score=self._scoring.final_score(
                total, 1 + num_more, self._source_length, has_ended=end.ended
            ),
            log_probs=log_probs,
        )
