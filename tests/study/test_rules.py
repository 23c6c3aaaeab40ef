"""Rules in Python find what built-in rules find, and what the same rules find one candidate at a time."""

from __future__ import annotations

import dataclasses
import functools
import math

import pytest
import torch

import pybeam
from pybeam.stopping import end
from support.device_loop import assert_alike
from support.laws import ALGORITHMS
from support.ruled_search import RuledSearch
from support.rules import RULES, sibling
from support.search_models import next_logits, random_model
from support.search_problems import rules_of
from support.triton_process import run_in_interpreter
from support.whole_search import Scale

SOURCES = [[1] * (1 + i % 3) for i in range(14)]
SCHEDULES = [
    pybeam.Batch(1),
    pybeam.Batch(5),
    pybeam.Streaming(4, 0.5),
    pybeam.Fifo(6, row_budget=24),
]
by_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)


def decode(
    algorithm, *, seed=1, schedule=SCHEDULES[1], backend="native", requests=SOURCES, **model
):
    decoder = pybeam.Decoder(
        random_model(seed, 9, **model), algorithm, schedule, backend, log_probs=True
    )
    return decoder.decode(requests)


def with_rule(algorithm, rule, **changes):
    processors = (rule, *algorithm.processors)
    return dataclasses.replace(algorithm, processors=processors, **changes)


def nothing(candidates, beam) -> None:
    """All three moments do nothing; `stop` is added beside it."""


def never(beam):
    return beam.num_finished < 0


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "adaptive"])
def test_a_rule_that_does_nothing_changes_no_bit(name, levels, backend):
    rule = pybeam.rule(nothing, finish=nothing, stop=never)
    given = dict(levels=levels, minus_inf=0.1, backend=backend, requests=SOURCES[:6])
    expected = decode(ALGORITHMS[name], **given)
    found = decode(
        with_rule(ALGORITHMS[name], rule), schedule=SCHEDULES[0 if levels else 2], **given
    )
    assert found == expected


@pybeam.rule
def freitag(candidates, beam, threshold=2.0, max_candidates=3):
    """The pruning of Freitag and Al-Onaizan 2017, where ended hypotheses are held."""
    candidates.keep &= (candidates.sibling_rank < max_candidates) | candidates.is_held


def freitag_threshold(candidates, beam, threshold=2.0, local=1000.0):
    is_one = candidates.finishes | candidates.goes_on
    best = torch.where(is_one, candidates.score, -torch.inf).amax(1, keepdim=True)
    best = torch.maximum(best, beam.best_finished)
    is_row = candidates.goes_on & ~candidates.is_held
    nearest = torch.where(is_row, candidates.log_prob, -torch.inf).amax(1, keepdim=True)
    candidates.goes_on &= candidates.score > best - threshold
    candidates.goes_on &= (candidates.log_prob > nearest - local) | candidates.is_held


FREITAG = pybeam.rule(freitag.score, finish=freitag_threshold)
# the options of the built-in pruning, and of the rule: relative thresholds are distances of logarithms
PRUNING = {
    "absolute": (dict(threshold=2.0, max_candidates=3), dict(threshold=2.0, max_candidates=3)),
    "relative": (dict(relative_threshold=0.2), dict(threshold=-math.log(0.2), max_candidates=99)),
    "local": (
        dict(local_threshold=0.3),
        dict(threshold=1000, local=-math.log(0.3), max_candidates=99),
    ),
}


@pytest.mark.thinned(most=2)
@by_schedule
@pytest.mark.parametrize("levels", [None, 4])
@pytest.mark.parametrize("name", PRUNING)
def test_the_pruning_of_variable_beam(name, levels, schedule, backend):
    pruning, values = PRUNING[name]
    options = dict(n_best=4, max_length=12)
    given = dict(levels=levels, schedule=schedule, backend=backend)
    own = dict(levels=levels, backend=backend)
    expected = decode(pybeam.variable_beam(5, **pruning, **options), **own)
    assert expected != decode(pybeam.variable_beam(5, **options), **own)
    rule = FREITAG.using(**values)
    assert expected == decode(pybeam.variable_beam(5, processors=[rule], **options), **given)


def test_options_are_of_requests():
    """Requests of one batch have thresholds of their own, as `Request.threshold` gives them."""
    options = dict(n_best=4, max_length=12)
    own = [(0.7, 2.0), (3.0, 1.0), (1.2, 4.0)]
    ours = [
        pybeam.Request(
            source,
            processors=[FREITAG.using(threshold=own[i % 3][0], max_candidates=own[i % 3][1])],
        )
        for i, source in enumerate(SOURCES)
    ]
    theirs = [
        pybeam.Request(source, threshold=own[i % 3][0], max_candidates=own[i % 3][1])
        for i, source in enumerate(SOURCES)
    ]
    found = decode(pybeam.variable_beam(5, processors=[FREITAG], **options), requests=ours)
    assert found == decode(pybeam.variable_beam(5, 2.0, 3, **options), requests=theirs)


def huang(beam):
    """The optimal stop of Huang, Zhao and Ma 2017, for rewards."""
    best = beam.score.amax(1, keepdim=True)
    bounds = [
        beam.final_score(best, length)
        for length in (torch.minimum(beam.length + 1, beam.max_length), beam.max_length)
    ]
    worst = beam.finished.gather(1, beam.n_best.long() - 1)
    return (worst > -torch.inf) & (worst >= torch.maximum(*bounds))


@pytest.mark.thinned(most=2)
@by_schedule
@pytest.mark.parametrize("n_best", [1, 3])
def test_the_stop_of_huang_beam(n_best, schedule, backend):
    built_in = pybeam.huang_beam(4, 0.4, 1.5, n_best=n_best, max_length=15)
    ruled = with_rule(built_in, pybeam.rule(stop=huang), stop=end())
    expected = decode(built_in, eos_bonus=0.5, backend=backend)
    assert any(one.stop_reason == "optimal" for one in expected)
    found = decode(ruled, eos_bonus=0.5, schedule=schedule, backend=backend)
    for ours, theirs in zip(found, expected, strict=True):
        if theirs.stop_reason == "optimal":
            # at the limit a certificate only says more
            assert ours.stop_reason in ("heuristic", "max_length")
        else:
            assert ours.stop_reason == theirs.stop_reason
        assert dataclasses.replace(ours, stop_reason=theirs.stop_reason) == theirs


def narrow(candidates, beam):
    """The best `width` candidates are the next beam, less those that end: Huang, Zhao and Ma 2017."""
    candidates.goes_on &= torch.arange(candidates.score.shape[1]) < beam.width


@pytest.mark.thinned(most=2)
@by_schedule
@pytest.mark.parametrize("n_best", [1, 3])
def test_the_finishing_of_huang_beam(n_best, schedule, backend):
    options = dict(n_best=n_best, max_length=15)
    given = dict(eos_bonus=0.5, backend=backend)
    expected = decode(pybeam.huang_beam(4, 0.4, 1.5, **options), **given)
    refilled = pybeam.optimal_beam(4, 0.4, 1.5, **options)
    assert expected != decode(refilled, **given)
    ruled = with_rule(refilled, pybeam.rule(finish=narrow))
    assert expected == decode(ruled, schedule=schedule, **given)


def hamming(candidates, beam, penalty=0.7):
    """The penalty of Vijayakumar et al. 2016, for tokens that earlier groups chose in this step."""
    count = (candidates.token[..., None] == beam.earlier[:, None]).sum(-1)
    candidates.score -= penalty * count


@pytest.mark.slow
@by_schedule
@pytest.mark.parametrize("build", [pybeam.fixed_beam, pybeam.variable_beam])
def test_the_groups_of_diverse(build, schedule, backend):
    """Scores are those of the built-in penalty, up to the order of two roundings of each token."""
    options, given = dict(n_best=2, max_length=10), dict(backend=backend)
    expected = decode(pybeam.diverse(build(2, **options), 3, 0.7), **given)
    # a penalty may bring any token among the best
    rule = pybeam.rule(hamming, siblings=9, groups=True)
    ruled = dataclasses.replace(build(2, processors=[rule], **options), num_groups=3)
    found = decode(ruled, schedule=schedule, **given)
    apart = decode(build(2, processors=[rule], **options), **given)
    assert [one.hypotheses for one in apart] != [one.hypotheses for one in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.stop_reason, ours.steps) == (theirs.stop_reason, theirs.steps)
        outputs = [[one.tokens for one in result.hypotheses] for result in (ours, theirs)]
        assert outputs[0] == outputs[1]
        scores = [one.score for one in theirs.hypotheses]
        assert [one.score for one in ours.hypotheses] == pytest.approx(scores, abs=1e-5)


SEARCHES = {
    "refill": pybeam.fixed_beam,
    "held": pybeam.variable_beam,
    "shrink": pybeam.shrinking_beam,
}


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize("finishing", SEARCHES)
@pytest.mark.parametrize("name", RULES)
def test_rules_in_plain_python(name, finishing, levels, backend):
    rule, plain = RULES[name]
    width, n_best, length = 4, 3, 10
    algorithm = SEARCHES[finishing](
        width, n_best=n_best, max_length=length, stop=end(), processors=[rule]
    )
    limits = dict(width=width, n_best=n_best, max_length=length, min_length=0, keep_ties=False)
    limits |= dict(ended_only=algorithm.ended_only, scale=Scale())
    limits |= dict.fromkeys(
        ("max_candidates", "threshold", "relative_threshold", "local_threshold")
    )
    model = random_model(3, 9, levels=levels, eos_bonus=0.7)
    found, alone = (
        pybeam.Decoder(model, algorithm, schedule, backend).decode(SOURCES)
        for schedule in (pybeam.Streaming(4), pybeam.Batch(1))
    )
    if backend == "native":
        assert found == alone
    else:
        assert_alike(found, alone)
    for i, result in enumerate(found):

        def step(tokens, source=i):
            row = next_logits(model, source, tokens).log_softmax(0)
            order = row.sort(descending=True, stable=True)
            pairs = zip(order.indices.tolist(), order.values.numpy(), strict=True)
            return [(token, log_prob) for token, log_prob in pairs]

        search = RuledSearch(step, rules_of(limits, finishing, end(), len(SOURCES[i]), (1,)), plain)
        expected = search.run([])
        assert (result.stop_reason, result.steps) == (expected.reason, expected.steps)
        assert [one.tokens for one in result.hypotheses] == [one.tokens for one in expected.found]
        scores = [float(one.score) for one in expected.found]
        assert [one.score for one in result.hypotheses] == pytest.approx(scores, abs=1e-4)


@pytest.mark.slow
def test_on_triton():
    run_in_interpreter("tests/study/test_rules.py", "-k", "plain_python and all-refill-None")


def test_a_given_output_has_no_candidates():
    model = random_model(1, 9)
    plain = pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=9))
    ruled = pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=9, processors=[sibling]))
    targets = [[3, 4, 5], [2], []]
    assert ruled.score(SOURCES[:3], targets) == plain.score(SOURCES[:3], targets)


def bad(change):
    def score(candidates, beam):
        change(candidates)

    return pybeam.rule(score)


def set_score(value):
    def change(candidates):
        candidates.score = value(candidates)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_score(lambda c: c.score[:, :1]), r"`candidates.score` must be torch.float32 \[\d, "),
        (set_score(lambda c: c.token), "`candidates.score` must be torch.float32"),
        (set_score(lambda c: 3), "`candidates.score` must be a tensor in a rule, but is 3"),
        (set_score(lambda c: c.score * torch.nan), "made a NaN"),
        (set_score(lambda c: c.score + torch.inf), "made a NaN"),
    ],
)
def test_results_of_a_rule_that_are_refused(change, message):
    with pytest.raises(pybeam.DecodeError) as caught:
        decode(pybeam.fixed_beam(2, max_length=5, processors=[bad(change)]))
    assert caught.match(message)


def no_default(candidates, beam, penalty): ...
def text(candidates, beam, penalty="a"): ...
def other(rows, beam): ...


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pybeam.rule(), "a rule must have a function"),
        (lambda: pybeam.rule(3), "`score` must be a function, but is 3"),
        (
            lambda: pybeam.rule(other),
            "must be a function of candidates, beam and options, but takes",
        ),
        (lambda: pybeam.rule(stop=nothing), "must be a function of beam and options"),
        (
            lambda: pybeam.rule(no_default),
            "`penalty` is an option of a rule and must have a number",
        ),
        (lambda: pybeam.rule(text), "`penalty` must be a number"),
        (lambda: pybeam.rule(nothing, siblings=0), "`siblings` must be"),
        (lambda: sibling.using(pnealty=1.0), "`pnealty` is no option of"),
        (lambda: pybeam.jacobi(processors=[sibling]), "acts on the candidates of a step"),
        (lambda: pybeam.fixed_beam(2, processors=[sibling, FREITAG]), "must hold one rule"),
        (lambda: pybeam.fixed_beam(4096, processors=[sibling]), "`width` must be at most 4088"),
        (
            lambda: pybeam.fixed_beam(
                2, processors=[pybeam.processors.no_unk(3, stage="log_probs"), sibling]
            ),
            "change the order",
        ),
    ],
)
def test_rules_that_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_scores_that_change_at_finish_change_no_result():
    def worse(candidates, beam) -> None:
        candidates.score.sub_(5.0)

    model = random_model(7, eos_bonus=0.5)
    plain = pybeam.fixed_beam(3, n_best=3, max_length=6)
    found = [
        pybeam.Decoder(model, one).decode([[1]])[0].hypotheses
        for one in (plain, with_rule(plain, pybeam.rule(finish=worse)))
    ]
    for a, b in zip(*found, strict=True):
        assert (a.tokens, a.score) == (b.tokens, b.score)


def test_options_of_one_name_have_one_default():
    def first(candidates, beam, threshold=1.0): ...
    def second(candidates, beam, threshold=5.0): ...
    def third(candidates, beam, threshold=1.0): ...

    with pytest.raises(ValueError, match=r"`threshold` .* 1\.0 and, in `finish`, 5\.0"):
        pybeam.rule(first, finish=second)
    assert pybeam.rule(first, finish=third).options == (("threshold", 1.0),)


def test_names_of_functions_without_one():
    class Callable:
        def __call__(self, candidates, beam): ...

    assert repr(pybeam.rule(Callable())) == "pybeam.rule(Callable)"
    assert repr(pybeam.rule(functools.partial(nothing))) == "pybeam.rule(nothing)"
    with pytest.raises(TypeError, match=r"pybeam\.rule\(function, siblings=3\)"):
        pybeam.rule(siblings=3)
