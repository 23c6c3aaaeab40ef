"""A scored prefix gives the tokens of an unscored one: the search behind it is the same.

`tests/law` says so of every algorithm and processor.
"""

from __future__ import annotations

import dataclasses

import pytest

import pybeam
from pybeam import compat, drafts, processors
from pybeam.limits import FREE, PrefixRule
from pybeam.request import Partial
from support.laws import decoded, schedules
from support.search_models import EOS, random_model

V = 9
SCORED = PrefixRule(is_scored=True, in_length=True)
PREFIXES = [[], [6, 6], [3], [2, 4, 6], [5, 2, 2, 6]]
REQUESTS = [pybeam.Request([1] * (1 + i % 3), prefix=PREFIXES[i % 5]) for i in range(7)]
# under these sources do not move together
MOVING = ("batch, budget", "streaming, impatient", "fifo, budget")


ALGORITHMS = {
    "fixed": pybeam.fixed_beam(3, n_best=3, max_length=7, min_length=2),
    "held": pybeam.variable_beam(3, threshold=3.0, n_best=3, max_length=7),
    "fairseq": compat.fairseq.beam_search(3, nbest=3, max_len_b=9, normalize_scores=False),
    "fairseq, diverse": pybeam.diverse(
        compat.fairseq.beam_search(1, max_len_b=8, normalize_scores=False), 3, 3.0
    ),
    "leading EOS": pybeam.fixed_beam(
        3, n_best=3, max_length=7, prefix=compat.ctranslate2.HardPrefix()
    ),
    "blocks": pybeam.gauss_seidel_jacobi(3, max_length=7),
    "guesses": pybeam.adaptive_jacobi(
        3, price=0.1, max_length=7, initialiser=drafts.function(lambda request: [6, 4, 2, 6, 3])
    ),
}


def both(algorithm) -> tuple:
    """The algorithm with a prefix that is scored, and with one that is not."""
    rule = dataclasses.replace(algorithm.prefix, is_scored=True, in_length=True)
    free = dataclasses.replace(rule, is_scored=False, in_length=False)
    return tuple(dataclasses.replace(algorithm, prefix=prefix) for prefix in (rule, free))


def outputs(results) -> list:
    """All but the scores."""
    assert not any(result.error for result in results)
    return [
        ([(h.tokens, h.eos_id) for h in r.hypotheses], r.stop_reason, r.steps, r.expansions)
        for r in results
    ]


def generated(results) -> list:
    """The log-probs of what is behind the prefixes."""
    return [
        [h.log_probs[-(len(h.tokens) + h.ended - request.prefix_length) :] for h in r.hypotheses]
        for r, request in zip(results, REQUESTS, strict=True)
        if r.hypotheses and len(r.hypotheses[0].tokens) > request.prefix_length
    ]


def assert_same_search(algorithm, backend, seed: int, requests=REQUESTS) -> None:
    model = random_model(seed, V, eos_bonus=0.5)
    scored, free = both(algorithm)
    options = dict(backend=backend, requests=requests, log_probs=True)
    theirs = decoded(model, free, pybeam.Batch(1), **options)
    assert any(r.hypotheses for r in theirs)
    first = None
    # the reference backend is slow
    names = MOVING[seed % 3 :][:1] if backend == "reference" else MOVING
    available = schedules(scored.max_rows)
    for n, schedule in enumerate([pybeam.Batch(1), *(available[name] for name in names)]):
        ours = decoded(model, scored, schedule, reads_late=n % 2 == 1, **options)
        assert outputs(ours) == outputs(theirs)
        first = first or ours
        assert [r.hypotheses for r in ours] == [r.hypotheses for r in first]
    for mine, other in zip(generated(first), generated(theirs), strict=True):
        for values, expected in zip(mine, other, strict=True):
            assert values == pytest.approx(expected, abs=1e-5)
    for result in first:
        for hypothesis in result.hypotheses:
            assert hypothesis.score == pytest.approx(sum(hypothesis.log_probs), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fairseq", "fairseq, diverse", "leading EOS"])
def test_with_raw_scores_of_other_systems(backend, name):
    """Theirs are normalised, so that `tests/law`, which has the others, does not compare them."""
    assert_same_search(ALGORITHMS[name], backend, 5)


@pytest.mark.slow
def test_drafts_with_processors(backend):
    chain = [
        processors.suppress_tokens_at_start([EOS, 3, 2]),
        processors.biased_prefix(0.8, [7, 2]),
    ]
    for name in ("blocks", "guesses"):
        algorithm = dataclasses.replace(ALGORITHMS[name], processors=tuple(chain))
        assert_same_search(algorithm, backend, 2)


def test_groups_differ():
    """The case that showed it: fairseq's search in groups once returned one group twice."""
    model = random_model(4, V, eos_bonus=-9.0)
    algorithm = pybeam.diverse(compat.fairseq.beam_search(1, max_len_b=7), 3, 50.0)
    (result,) = pybeam.Decoder(model, algorithm).decode([pybeam.Request([1], prefix=[6, 6])])
    (alone,) = pybeam.Decoder(model, algorithm).decode([pybeam.Request([1])])
    for hypotheses, start in ((result.hypotheses, 2), (alone.hypotheses, 0)):
        assert len({hypothesis.tokens[start] for hypothesis in hypotheses}) == 3


@pytest.mark.thinned(most=1)
def test_what_is_said_of_a_running_search(backend):
    """Partial results come in the same calls, and say the same."""
    model = random_model(1, V, eos_bonus=-1.0)
    total = 0
    for name in ("fixed", "held", "leading EOS"):
        lines = []
        for algorithm in both(ALGORITHMS[name]):
            decoder = pybeam.Decoder(model, algorithm, backend=backend, schedule=pybeam.Fifo(4))
            items = list(decoder.stream(REQUESTS, partial=True))
            lines.append([(i.index, i.tokens) for i in items if isinstance(i, Partial)])
        assert lines[0] == lines[1]
        total += len(lines[0])
    assert total > 5


@pytest.mark.slow
def test_beside_targets_and_other_limits(backend):
    """Requests with limits of their own, and targets to score in the same batch."""
    requests = [
        dataclasses.replace(request, **changes)
        for request, changes in zip(
            REQUESTS,
            [{}, dict(max_length=3), dict(min_length=4), dict(width=1), dict(target=[4, 5])] * 2,
            strict=False,
        )
    ]
    for rule in (FREE, compat.ctranslate2.HardPrefix()):
        algorithm = dataclasses.replace(ALGORITHMS["fixed"], n_best=1, prefix=rule)
        assert_same_search(algorithm, backend, 7, requests)


def test_what_cannot_follow_counts_for_nothing(backend):
    """A prefix that the model rules out is a prefix; the tokens behind it have their scores."""
    model = random_model(3, V, minus_inf=0.4)
    algorithm, free = both(ALGORITHMS["fixed"])
    requests = [pybeam.Request([1], prefix=[2, 3, 4, 5, 6, 7])] * 4
    ours, theirs = (
        pybeam.Decoder(model, each, backend=backend, log_probs=True).decode(requests)
        for each in (algorithm, free)
    )
    assert outputs(ours) == outputs(theirs)
    for result in ours:
        values = result.hypotheses[0].log_probs[:6]
        assert 0.0 in values
        assert min(values) < 0


@pytest.mark.thinned(most=1)
def test_its_scores_do_not_depend_on_batch_mates(backend):
    """To the bit: neither EOS, which a limit of a neighbour may ban, nor the width of a beam changes them."""
    model = random_model(4, 19, eos_bonus=1.0)
    options = dict(n_best=3, max_length=6, prefix=SCORED, ended_only=False)
    algorithm = pybeam.huang_beam(3, **options)
    requests = [
        pybeam.Request([1], prefix=[5, 3, 7], source_id=i, min_length=min_length)
        for i in range(20)
        for min_length in (None, 2)
    ]
    together = decoded(model, algorithm, pybeam.Fifo(9), backend, requests)
    alone = [decoded(model, algorithm, pybeam.Batch(1), backend, [one])[0] for one in requests]
    assert [r.hypotheses for r in together] == [r.hypotheses for r in alone]
    # and `score`, whose beam has one row, gives the same numbers
    greedy = pybeam.Decoder(model, pybeam.greedy(max_length=9), backend=backend)
    sources = [pybeam.Request([1], source_id=i) for i in range(20)]
    scored = greedy.score(sources, [[5, 3, 7]] * 20)
    log_probs = [result.hypotheses[0].log_probs[:3] for result in scored]
    found = decoded(model, algorithm, pybeam.Fifo(9), backend, requests, log_probs=True)
    assert [r.hypotheses[0].log_probs[:3] for r in found[::2]] == log_probs


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("seed", range(8))
def test_guesses_are_as_exact_as_greedy_beside_one_that_may_not_end(seed):
    """EOS is the best token of each prefix. A neighbour with `min_length` bans EOS in its own rows alone."""
    model = random_model(seed, V, eos_bonus=4.0)
    requests = [
        pybeam.Request([1, 2], prefix=[6, 3], source_id=0),
        pybeam.Request([2], prefix=[5], min_length=3, source_id=1),
        pybeam.Request([1], prefix=[2, 4, 6], source_id=2),
    ]
    results = []
    for algorithm in (pybeam.greedy(max_length=7), pybeam.jacobi(max_length=7)):
        decoder = pybeam.Decoder(
            model, dataclasses.replace(algorithm, prefix=SCORED), log_probs=True
        )
        alone = [decoder.decode([request])[0].hypotheses for request in requests]
        assert [result.hypotheses for result in decoder.decode(requests)] == alone
        results.append(alone)
    assert results[0] == results[1]
