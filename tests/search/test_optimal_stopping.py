"""Optimal stopping keeps the winner; the other rules stop when they say."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import pybeam
from pybeam.stopping import Certificate, Stop
from support.search_models import constant_model, random_model
from support.search_oracles import huang, ranked_log_probs

MAX_LENGTH = 14
SCORINGS = {
    "raw": pybeam.scoring.raw(),
    "reward": pybeam.scoring.reward(0.8),
    "bounded reward": pybeam.scoring.reward(0.8, ratio=1.5),
    "penalty": pybeam.scoring.reward(-0.4),
    "power": pybeam.scoring.power(1.0),
    "negative power": pybeam.scoring.power(-0.5),
    "gnmt": pybeam.scoring.gnmt(0.9),
}
SOURCES = [[1] * (1 + i % 4) for i in range(8)]


def some_model(seed: int):
    rng = random.Random(seed)
    return random_model(
        seed,
        vocab_size=rng.choice([3, 6, 9]),
        levels=rng.choice([None, 3]),
        eos_bonus=rng.choice([-0.5, 0.5, 1.5]),
        minus_inf=rng.choice([0.0, 0.3]),
    )


def final_of(scoring, source_length):
    """The numbers that rank, rounded as the kernels do."""
    return lambda score, n: np.float32(scoring.final_score(float(score), n, source_length))


def bound_of(scoring, source_length):
    """The most of every length, one by one."""

    def bound(score, n):
        lengths = range(n + 1, MAX_LENGTH + 1) if n < MAX_LENGTH else (n,)
        unrewarded = pybeam.scoring.Scoring(scoring.alpha, scoring.offset, scoring.scale)
        normed = max(unrewarded.final_score(float(score), m, source_length) for m in lengths)
        cap = scoring.cap(source_length)
        return np.float32(normed + max(scoring.reward * min(cap, m) for m in lengths))

    return bound


@pytest.mark.thinned(most=5)
@pytest.mark.parametrize("refills", [False, True], ids=["as written", "refilled"])
@pytest.mark.parametrize("name", SCORINGS)
@pytest.mark.parametrize("seed", range(6))
def test_as_the_paper_says(backend, name, seed, refills):
    """`huang_beam` as it is written there; `optimal_beam` with the same rule and places refilled."""
    scoring, rng = SCORINGS[name], random.Random(seed)
    model = some_model(seed)
    width = rng.choice([1, 2, 4])
    n_best = rng.randint(1, width)
    options = dict(n_best=n_best, max_length=MAX_LENGTH, scoring=scoring)
    if seed % 3 == 2:
        options["ended_only"] = False
    build = pybeam.optimal_beam if refills else pybeam.huang_beam
    algorithm = build(width, **options)
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(3), backend)
    for result, source in zip(decoder.decode(SOURCES), SOURCES, strict=True):
        length = len(source)
        found, reason, steps = huang(
            ranked_log_probs(model, result.index, backend),
            width,
            n_best,
            final_of(scoring, length),
            bound_of(scoring, length),
            max_length=MAX_LENGTH,
            refills=refills,
            ended_only=algorithm.ended_only,
        )
        assert (result.stop_reason, result.steps) == (reason, steps)
        assert [h.score for h in result.hypotheses] == [float(f.score) for f in found[:n_best]]
        assert [h.tokens for h in result.hypotheses] == [f.tokens for f in found[:n_best]]


def test_places_stay_empty_for_one_step_alone():
    """p(EOS) = 1/2, p(2) = 1/4, p(3) = p(4) = 1/8, and K = 3: by hand, beside `optimal_beam`."""
    halves = [-math.inf, *(math.log(p) for p in (1 / 2, 1 / 4, 1 / 8, 1 / 8))]
    model, rows = constant_model(halves), {}
    for build in (pybeam.huang_beam, pybeam.optimal_beam, pybeam.shrinking_beam):
        algorithm = build(3, n_best=3, max_length=4, stop=pybeam.stopping.end())
        (result,) = pybeam.Decoder(model, algorithm).decode([[1]])
        rows[build.__name__] = result.expansions
        assert [h.tokens for h in result.hypotheses[:2]] == [[], [2]]
    # one ends in step 1; [2, EOS] and [3, EOS] end in step 2, where [2, 2] goes on; of its three best
    # extensions in step 3 one ends. A beam that shrinks for good has room for that one alone
    assert rows == {
        "huang_beam": 1 + 2 + 1 + 2,
        "optimal_beam": 1 + 3 + 3 + 3,
        "shrinking_beam": 1 + 2 + 1,
    }


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("build", ["fixed", "variable", "shrinking", "huang"])
@pytest.mark.parametrize("name", SCORINGS)
def test_the_winners_are_those_of_the_search_run_to_its_end(backend, name, build):
    builders = dict(
        fixed=pybeam.fixed_beam,
        variable=lambda *args, **more: pybeam.variable_beam(*args, threshold=3.0, **more),
        shrinking=pybeam.shrinking_beam,
        huang=pybeam.huang_beam,
    )
    options = dict(n_best=2, max_length=MAX_LENGTH, scoring=SCORINGS[name])
    steps = {"optimal": 0, "end": 0}
    for seed in range(12 if backend == "native" else 4):
        model = some_model(seed)
        results = {}
        for rule in steps:
            stop = getattr(pybeam.stopping, rule)()
            algorithm = builders[build](3, stop=stop, **options)
            results[rule] = pybeam.Decoder(model, algorithm, backend=backend).decode(SOURCES)
        for ours, theirs in zip(*results.values(), strict=True):
            finals = [h.final_score for h in theirs.hypotheses]
            assert [h.final_score for h in ours.hypotheses] == pytest.approx(finals, rel=1e-6)
            assert ours.steps <= theirs.steps
            steps["optimal"] += ours.steps
            steps["end"] += theirs.steps
    # a beam whose places run out may end as early by itself
    assert steps["optimal"] < steps["end"] or build != "fixed"


@pytest.mark.thinned(most=1)
def test_no_later_and_no_worse_than_top_finished(backend):
    """For raw scores; of one hypothesis."""
    earlier = 0
    for seed in range(20):
        model = some_model(seed)
        optimal, top = (
            pybeam.Decoder(
                model, pybeam.fixed_beam(4, max_length=MAX_LENGTH, stop=stop), backend=backend
            ).decode(SOURCES)
            for stop in (pybeam.stopping.optimal(), pybeam.stopping.top_finished())
        )
        for ours, theirs in zip(optimal, top, strict=True):
            assert ours.steps <= theirs.steps
            assert ours.hypotheses[0].final_score >= theirs.hypotheses[0].final_score
            earlier += ours.steps < theirs.steps
    assert earlier > 0


def test_top_finished_needs_n_best():
    model = some_model(1)
    for n_best in (1, 3):
        algorithm = pybeam.shrinking_beam(
            4, n_best=n_best, max_length=MAX_LENGTH, stop=pybeam.stopping.top_finished()
        )
        for result in pybeam.Decoder(model, algorithm).decode(SOURCES):
            assert result.stop_reason != "top_finished" or len(result.hypotheses) == n_best


def test_length_reward_and_scoring_exclude_each_other():
    with pytest.raises(ValueError, match="either `scoring` or `length_reward`"):
        pybeam.optimal_beam(3, 0.5, scoring=pybeam.scoring.raw())
    with pytest.raises(ValueError, match="`certificate` is about the best"):
        Stop(patience=1, keeps_best=False, certificate=Certificate.BOUND)
    with pytest.raises(ValueError, match="needs `patience=1`, but `patience` is 2"):
        Stop(patience=2, keeps_best=False)
    with pytest.raises(ValueError, match="`patience` must be positive and finite, but is 0"):
        Stop(patience=0)
    with pytest.raises(TypeError, match=r"`stop` must come from pybeam.stopping"):
        pybeam.fixed_beam(3, stop="optimal")


def test_the_length_ratio_of_a_file():
    sources, targets = [[1, 2], [3, 4, 5, 6]], [[1, 2, 3], [4, 5, 6]]
    assert pybeam.stopping.length_ratio(sources, targets) == 1.0
    with pytest.raises(ValueError, match="as many sources as targets"):
        pybeam.stopping.length_ratio(sources, targets[:1])
    with pytest.raises(ValueError, match="no source token"):
        pybeam.stopping.length_ratio([[]], [[1]])


def test_the_mean_of_length_ratios():
    """Every pair counts the same, however long it is: (3 / 2 + 3 / 4) / 2, where all tokens give 6 / 6."""
    sources, targets = [[1, 2], [3, 4, 5, 6]], [[1, 2, 3], [4, 5, 6]]
    assert pybeam.stopping.mean_length_ratio(sources, targets) == 1.125
    assert pybeam.stopping.mean_length_ratio(sources * 3, targets * 3) == 1.125
    with pytest.raises(ValueError, match="as many sources as targets"):
        pybeam.stopping.mean_length_ratio(sources, targets[:1])
    with pytest.raises(ValueError, match="no pair of a source and a target"):
        pybeam.stopping.mean_length_ratio([], [])
    with pytest.raises(ValueError, match="source 1 is empty"):
        pybeam.stopping.mean_length_ratio([[1], []], [[1], [1]])
