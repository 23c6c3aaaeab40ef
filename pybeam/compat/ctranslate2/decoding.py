"""Batches of requests are decoded, and their results are told as CTranslate2 tells them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from pybeam.compat.ctranslate2.options import COUNTED, SearchOptions
from pybeam.compat.ctranslate2.pool import Pool
from pybeam.compat.ctranslate2.recording import Record
from pybeam.compat.ctranslate2.results import GenerationStepResult, Logits, StorageView
from pybeam.compat.ctranslate2.vocabulary import Vocabulary
from pybeam.models.base import Model
from pybeam.processors.base import Processor
from pybeam.request import Hypothesis, Partial, Request, Result
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import greedy

Callback = Callable[[GenerationStepResult], Any]
MAX_SEED = 2**63 - 1
_seeds = random.Random()


def set_random_seed(seed: int) -> None:
    """Set the `seed` of the numbers by which tokens are drawn; they are others than CTranslate2's."""
    _seeds.seed(seed)


@dataclass(frozen=True)
class Call:
    """A search that somebody asks for, and what shall be told of it.

    Attributes:
        options: the search.
        end_ids: tokens that end, in place of the model's; nothing: the model's.
        callback: is told each token; None: nobody is.
        processors: before those of the options.
        has_scores, has_attention, has_logits, has_end: what is told beside tokens.
        replaces_unknowns: whether source tokens stand for unknown words.
    """

    options: SearchOptions
    end_ids: tuple[int, ...] = ()
    callback: Callback | None = None
    has_scores: bool = False
    has_attention: bool = False
    has_logits: bool = False
    has_end: bool = False
    replaces_unknowns: bool = False
    processors: tuple[Processor, ...] = ()

    @property
    def attends(self) -> bool:
        """Whether somebody looks at attention."""
        return self.has_attention or self.replaces_unknowns

    def within(self, model: Model) -> Call:
        """Return the call with the most tokens that the model has positions for."""
        most = model.max_tokens if model.max_positions is None else model.max_positions
        longest = min(self.options.max_length, most)
        return dataclasses.replace(
            self, options=dataclasses.replace(self.options, max_length=longest)
        )

    def algorithm(self, vocabulary: Vocabulary, num_ends: int) -> Algorithm:
        """Return the search, for a model with so many EOS ids."""
        found = self.options.algorithm(vocabulary)
        if found.prefix.leading_eos and num_ends > 1:
            # which of them must lead is not defined
            found = dataclasses.replace(found, prefix=COUNTED)
        return dataclasses.replace(found, processors=(*self.processors, *found.processors))


class SearchPool(Pool):
    """A model with threads, and its searches."""

    def _decode(self, call: Call, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        """Return the hypotheses of each request. Raises the error of the first that failed."""
        call.options.check(call.callback is not None)
        call = call.within(self._ready)
        options, algorithm = call.options, self._algorithm(call)
        if options.return_alternatives:
            decoder = self._decoder(algorithm, call.end_ids, False, call.attends)
            own = [
                dataclasses.replace(one, max_length=max(1, options.max_length - one.prefix_length))
                for one in requests
            ]
            num, least = options.num_hypotheses, options.min_alternative_expansion_prob
            return _sound(decoder.alternatives(own, num, min_probability=least, on_error="return"))
        repeated = list(requests)
        if options.samples:
            num = options.num_hypotheses
            repeated = [_drawing(one, options) for one in requests for _ in range(num)]
        if call.callback is None:
            decoder = self._decoder(algorithm, call.end_ids, False, call.attends)
            found = _sound(decoder.decode(repeated, on_error="return"))
        else:
            found = self._told(call, algorithm, repeated)
        if not options.samples:
            return found
        num = options.num_hypotheses
        # each has one hypothesis
        groups = [[one for [one] in found[i : i + num]] for i in range(0, len(found), num)]
        return [sorted(group, key=lambda one: -one.final_score) for group in groups]

    def _algorithm(self, call: Call) -> Algorithm:
        return call.algorithm(self._vocabulary, len(call.end_ids or self._ready.eos_ids))

    def _told(
        self, call: Call, algorithm: Algorithm, requests: Sequence[Request]
    ) -> list[list[Hypothesis]]:
        """Decode and tell the callback each token; a request that it stops ends with that token."""
        assert call.callback is not None
        if call.has_logits or call.attends:
            raise NotImplementedError(
                "`return_logits_vocab` and `return_attention` are not there beside a `callback`"
            )
        num = call.options.num_hypotheses if call.options.samples else 1
        found: list[list[Hypothesis]] = [[] for _ in requests]
        stopped: set[int] = set()
        tokens: list[list[GenerationStepResult]] = [[] for _ in requests]
        steps = self._steps(call, algorithm, requests)
        for i, item in steps:
            if isinstance(item, Hypothesis):
                if i not in stopped:
                    found[i] = [item]
            elif i not in stopped:
                told = dataclasses.replace(
                    item,
                    batch_id=i // num,
                    hypothesis_id=i % num,
                    log_prob=item.log_prob if call.has_scores else None,
                )
                tokens[i].append(item)
                if call.callback(told):
                    stopped.add(i)
                    found[i] = [_cut(tokens[i], call.options.length_penalty)]
                    if len(stopped) == len(requests):
                        steps.close()
        return found

    def _steps(
        self, call: Call, algorithm: Algorithm, requests: Sequence[Request]
    ) -> Generator[tuple[int, Any]]:
        """Yield the number of a request and its next token, or at its end its hypothesis."""
        record = Record()
        algorithm, marked = record.of(algorithm, requests, "log_probs")
        decoder = self._new_decoder(algorithm, call.end_ids, log_probs=False, attention=False)
        num_told = [0] * len(marked)
        for item in decoder.stream(marked, partial=True):
            i = item.index
            best_one = None if isinstance(item, Partial) else _sound([item])[0][0]
            ids = item.tokens if isinstance(item, Partial) else with_end(item.hypotheses[0])
            first = requests[i].prefix_length
            for step in range(num_told[i], len(ids)):
                best = 0.0 if step < first else float(record.rows[i][step - first])
                [token] = self._vocabulary.tokens([ids[step]])
                is_last = best_one is not None and step + 1 == len(ids)
                is_last |= step + 1 == call.options.max_length
                yield i, GenerationStepResult(step, i, ids[step], 0, token, best, None, is_last)
            num_told[i] = len(ids)
            if best_one is not None:
                yield i, best_one

    def _logits(
        self, call: Call, request: Request, hypotheses: Sequence[Hypothesis]
    ) -> list[list[StorageView]]:
        """Return the logits [V] of every step of some hypotheses of one request, as selection saw them."""
        first = request.prefix_length
        own = [dataclasses.replace(request, target=one.tokens[first:]) for one in hypotheses]
        algorithm = dataclasses.replace(greedy(), processors=self._algorithm(call).processors)
        rows = self._rows(algorithm, own, call.end_ids)
        # a hypothesis that was cut has no step of EOS
        kept = [
            row[: len(one.tokens) - first + one.ended]
            for row, one in zip(rows, hypotheses, strict=True)
        ]
        return [[StorageView(step) for step in row] for row in kept]

    def _rows(
        self, algorithm: Algorithm, requests: Sequence[Request], end_ids: tuple[int, ...] = ()
    ) -> list[list[Any]]:
        """Return the logits of every step of requests that have targets."""
        record = Record()
        algorithm, marked = record.of(algorithm, requests, "logits")
        decoder = self._new_decoder(algorithm, end_ids, log_probs=False, attention=False)
        _sound(decoder.decode(marked, on_error="return"))
        return [record.rows[i] for i in range(len(marked))]

    def _score(
        self, requests: Sequence[Request], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the log-probabilities of the tokens of targets, among which EOS is one as others are."""
        decoder = self._decoder(greedy(), (self._unused(targets),), True, False)
        results = decoder.score(requests, targets, on_error="return")
        # the last is that of the end
        return [(one.log_probs or [])[:-1] for [one] in _sound(results)]

    def _unused(self, targets: Sequence[Sequence[int]]) -> int:
        """Return a token that none of these has, which may stand for their end."""
        used: set[int] = set().union(*targets)
        return next(one for one in range(self._ready.vocab_size) if one not in used)

    def _all_logits(
        self,
        call: Call,
        requests: Sequence[Request],
        found: Sequence[Sequence[Hypothesis]],
    ) -> list[Logits]:
        """Return the logits of all hypotheses, if they were asked for."""
        if not call.has_logits:
            return [[] for _ in requests]
        return [self._logits(call, *pair) for pair in zip(requests, found, strict=True)]


def placed(callback: Callback | None, batch: Sequence[int]) -> Callback | None:
    """Return a callback that is told the numbers of examples, and not their places in a batch."""
    if callback is None:
        return None
    known = callback
    return lambda step: known(dataclasses.replace(step, batch_id=batch[step.batch_id]))


def _drawing(request: Request, options: SearchOptions) -> Request:
    sampler = options.sampler(_seeds.randint(0, MAX_SEED))
    return dataclasses.replace(request, processors=[*(request.processors or ()), sampler])


def with_end(hypothesis: Hypothesis) -> list[int]:
    """Return the tokens of a hypothesis, and its EOS if it has ended."""
    end = [] if hypothesis.eos_id is None else [hypothesis.eos_id]
    return [*hypothesis.tokens, *end]


def _cut(steps: Sequence[GenerationStepResult], length_penalty: float) -> Hypothesis:
    """Return the hypothesis of tokens that were stopped."""
    score = sum(step.log_prob or 0.0 for step in steps)
    tokens = [step.token_id for step in steps]
    return Hypothesis(tokens, score, score / len(steps) ** length_penalty, ended=False)


def _sound(results: Sequence[Result]) -> list[list[Hypothesis]]:
    for result in results:
        if result.error is not None:
            raise result.error
    return [result.hypotheses for result in results]
