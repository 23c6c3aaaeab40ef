"""Values of the rules of a search: which are refused, which are the last ones that are not, what follows."""

from __future__ import annotations

import dataclasses
import math

import pytest

import pybeam
from pybeam.contracts import Finishing
from pybeam.limits import PrefixRule, SourceLimit
from pybeam.processors import Processor
from pybeam.request import Request
from pybeam.scoring import MAX_ALPHA, Scoring
from pybeam.search import widths
from pybeam.search.algorithms import DEFAULT_MAX_LENGTH, Algorithm
from pybeam.search.overrides import for_target, overridden
from pybeam.search.pruning import Pruning
from pybeam.stopping import Certificate, Stop

NAN, INF = math.nan, math.inf
NO_NUMBERS = (True, "1", [1])


def refused(kind, name: str, value: object, **others) -> None:
    error = (TypeError, ValueError) if isinstance(value, float) else TypeError
    with pytest.raises(error, match=f"`{name}`"):
        kind(**{name: value}, **others)


@pytest.mark.parametrize("name", ["alpha", "offset", "scale", "reward", "ratio", "coverage"])
def test_scoring(name):
    for value in (*NO_NUMBERS, NAN, INF, -INF, *([] if name == "ratio" else [None])):
        refused(Scoring, name, value)


def test_the_last_scorings_that_are_fit():
    for alpha in (MAX_ALPHA, -MAX_ALPHA):
        assert Scoring(alpha=alpha).alpha == alpha
        refused(Scoring, "alpha", alpha * 1.001)
    for name in ("scale", "ratio"):
        refused(Scoring, name, 0.0)
        refused(Scoring, name, -1.0)
        assert getattr(Scoring(**{name: 0.001}), name) == 0.001
    refused(Scoring, "offset", -0.001)
    assert Scoring(offset=0.0).is_raw
    for name in ("alpha", "reward", "coverage"):
        assert not Scoring(**{name: 0.1}).is_raw


def test_scoring_behind_a_prefix():
    assert Scoring(alpha=1.0, offset=5.0).behind(3) == Scoring(alpha=1.0, offset=8.0)
    for reward in (0.5, -0.5):
        with pytest.raises(ValueError, match=rf"`reward` must be 0 .* but is {reward}"):
            Scoring(reward=reward).behind(1)


@pytest.mark.parametrize("name", ["ratio", "constant"])
def test_limits_that_follow_the_source(name):
    others = {} if name == "ratio" else {"ratio": 1.0}
    for value in (*NO_NUMBERS, None, NAN, INF, -0.001):
        refused(SourceLimit, name, value, **others)
    assert SourceLimit(**{**others, name: 0}).tokens(0) == 1
    assert SourceLimit(1.5, 2.25).tokens(3) == 6  # of 6.75
    # the sum is infinite
    assert SourceLimit(1e308, 1e308).tokens(100) == 2**31 - 1


def test_prefix_rules():
    with pytest.raises(ValueError, match="`is_scored` needs `in_length`"):
        PrefixRule(is_scored=True)
    for rule in (PrefixRule(), PrefixRule(in_length=True), PrefixRule(in_limits=True)):
        assert not rule.is_scored and not rule.leading_eos


@pytest.mark.parametrize(
    ("name", "bad", "fit"),
    [
        ("threshold", [0.0, -1.0, NAN], [1e-9, 3, INF]),
        ("max_candidates", [0, 0.5, 1.5, -INF, NAN], [1, 2.0, INF]),
        ("relative_threshold", [0.0, 1.0, -0.5, NAN], [1e-9, 0.999, INF]),
        ("local_threshold", [0.0, 1.0, -0.5, NAN], [1e-9, 0.999, INF]),
    ],
)
def test_pruning(name, bad, fit):
    for value in NO_NUMBERS:
        refused(Pruning, name, value)
    for value in bad:
        with pytest.raises(ValueError, match=f"`{name}`"):
            Pruning(**{name: value})
    for value in (*fit, None):
        assert getattr(Pruning(**{name: value}), name) == value


def test_margins_of_thresholds():
    assert Pruning().margin == Pruning().local_margin == INF
    assert Pruning(threshold=2.0).margin == 2.0
    assert Pruning(relative_threshold=0.5).margin == math.log(2)
    assert Pruning(threshold=0.1, relative_threshold=0.5).margin == 0.1
    assert Pruning(local_threshold=0.25).local_margin == math.log(4)
    assert Pruning(local_threshold=0.25).margin == Pruning(threshold=INF).margin == INF
    # a number of its own, which is infinite too
    off = Pruning(relative_threshold=float("inf"), local_threshold=float("inf"))
    assert off.margin == off.local_margin == INF


def test_margins_that_keep_ties_are_negative():
    """A margin that float32 would round to zero keeps its sign; a rule that is off stays off."""
    kept = Pruning(threshold=2.0, local_threshold=0.25, keep_ties=True)
    assert (kept.margin, kept.local_margin) == (-2.0, -math.log(4))
    assert Pruning(threshold=1e-60, keep_ties=True).margin == -(2.0**-126)
    off = Pruning(threshold=INF, keep_ties=True)
    assert off.margin == off.local_margin == INF
    for value in (None, 1, "yes"):
        with pytest.raises(TypeError, match="`keep_ties` must be True or False"):
            Pruning(keep_ties=value)


def test_stop_rules():
    for value in ("1", [1]):
        refused(Stop, "patience", value)
    for value in (0.0, -1.0, INF, NAN):
        with pytest.raises(ValueError, match="`patience`"):
            Stop(patience=value)
    assert Stop(patience=1e-9).patience == 1e-9
    for patience in (None, 2.0):
        with pytest.raises(ValueError, match=r"`keeps_best=False` .* needs `patience=1`"):
            Stop(patience=patience, keeps_best=False)
    with pytest.raises(ValueError, match="needs `keeps_best`"):
        Stop(patience=1, keeps_best=False, certificate=Certificate.BOUND)
    count, end = pybeam.stopping.count(), pybeam.stopping.end()
    assert (count.patience, count.keeps_best, end.patience, end.keeps_best) == (
        1,
        False,
        None,
        True,
    )
    assert not count.needs_full_beam
    for search in (pybeam.fixed_beam(2), pybeam.variable_beam(2), pybeam.greedy()):
        assert search.stop == count


def test_when_a_search_is_over():
    """By how many have finished; halves are rounded up."""
    for patience, expected in ((0.4, 1), (0.5, 2), (1.0, 3), (1.5, 5), (2.5, 8)):
        assert pybeam.fixed_beam(3, stop=Stop(patience=patience)).stop_at == expected
    assert pybeam.fixed_beam(3, stop=pybeam.stopping.end()).stop_at == INF
    # popped best first, unless something else than the score ranks
    held = pybeam.variable_beam(4, n_best=2)
    assert held.stop_at == 2
    assert dataclasses.replace(held, scoring=pybeam.scoring.power(1.0)).stop_at == 4
    assert dataclasses.replace(held, stop=Stop(patience=1.5)).stop_at == 6
    with pytest.raises(
        ValueError, match=r"`n_best` must be at most round\(patience \* width\) = 2,"
    ):
        pybeam.fixed_beam(4, n_best=3, stop=Stop(patience=0.5))
    assert pybeam.variable_beam(4, stop=Stop(patience=0.5)).stop_at == 2
    # nothing pops
    assert Algorithm(4, Finishing.NONE, n_best=2).stop_at == 4


def test_rows_that_schedules_count_with():
    threshold = pybeam.variable_beam(9, threshold=1.0)
    local = pybeam.variable_beam(9, local_threshold=0.5)
    few = pybeam.variable_beam(9, max_candidates=4)
    few_above = pybeam.variable_beam(9, threshold=1.0, max_candidates=1)
    # a number of its own, which is infinite too
    off = pybeam.variable_beam(9, threshold=float("inf"))
    searches = (pybeam.greedy(), pybeam.fixed_beam(9), threshold, local, few, few_above, off)
    assert [one.growth for one in searches] == [1, 9, 2, 2, 4, 1, 9]
    assert [one.first_rows for one in searches] == [1, 9, 1, 1, 4, 1, 9]
    assert [one.max_rows for one in searches] == [1, 9, 9, 9, 9, 9, 9]
    assert [one.tokens_per_step for one in searches] == [1] * 7
    guesses = pybeam.gauss_seidel_jacobi(5)
    assert (guesses.max_rows, guesses.growth, guesses.tokens_per_step) == (5, 5, 5)
    by_step = pybeam.fixed_beam([3, 7, 5])
    assert (by_step.last_width, by_step.max_width, by_step.max_rows) == (5, 7, 7)


def test_algorithms():
    plain = pybeam.fixed_beam(4, max_length=5)
    assert not plain.regrows and plain.refills
    assert not pybeam.shrinking_beam(4).refills and not pybeam.shrinking_beam(4).regrows
    assert pybeam.huang_beam(4).regrows and pybeam.huang_beam(4).refills
    assert not pybeam.variable_beam(4).refills
    with pytest.raises(ValueError, match="`regrows` gives back"):
        Algorithm(3, Finishing.REFILL, regrows=True)
    with pytest.raises(TypeError, match="`width` must be an int in this search"):
        Algorithm([2, 3], Finishing.SHRINK)
    for name, value in (("n_best", 5), ("n_best", 0), ("min_length", 5), ("min_length", -1)):
        with pytest.raises(ValueError, match=f"`{name}`"):
            dataclasses.replace(plain, **{name: value})
    assert dataclasses.replace(plain, n_best=4, min_length=4).min_length == 4
    for value in (1, None):
        with pytest.raises(TypeError, match="`ended_only`"):
            dataclasses.replace(plain, ended_only=value)


def test_widths():
    assert widths.by_step(3) == (3,) and widths.by_step([1, 4, 2]) == (1, 4, 2)
    assert (widths.last([1, 4, 2]), widths.widest([1, 4, 2]), widths.widest(3)) == (2, 4, 3)
    assert widths.narrowed(9, 4) == 4 and widths.narrowed([1, 9, 4], 4) == (1, 4, 4)
    for width in (1, 4096, [1, 4096]):
        assert widths.is_width(width) and widths.checked(width) == (
            width if isinstance(width, int) else tuple(width)
        )
    for width in (0, 4097, True, "3", 2.0, [], [0], [3, 4097], ["3"], None):
        assert not widths.is_width(width)
        with pytest.raises((TypeError, ValueError), match="`width`"):
            widths.checked(width)


def test_overrides_that_leave_no_room():
    limited = PrefixRule(in_length=True, in_limits=True)
    algorithm = pybeam.fixed_beam(2, max_length=9)
    counted = dataclasses.replace(algorithm, prefix=limited)
    request = Request([1], prefix=[4, 5, 6])
    for own, expected in ((algorithm, "9 \\+ 3"), (counted, "6 \\+ 3")):
        with pytest.raises(ValueError, match=rf"the model's 8 positions, but is {expected}"):
            overridden(own, request, 8, 1)
    assert overridden(algorithm, request, 12, 1).max_length == 9
    assert overridden(counted, request, 9, 1).max_length == 6
    with pytest.raises(ValueError, match="must be more than its 3 tokens, but is 3"):
        overridden(counted, Request([1], prefix=[4, 5, 6], max_length=3), None, 1)
    with pytest.raises(ValueError, match="`prefix` must be shorter than the model's 3 positions"):
        overridden(algorithm, request, 3, 1)
    assert overridden(algorithm, Request([1], prefix=[4, 5], max_length=1), 3, 1).max_length == 1
    by_source = dataclasses.replace(algorithm, max_length=SourceLimit(3.0))
    assert overridden(by_source, request, 8, 4).max_length == 5


class Short(Processor):
    """As one that gives nothing but the items of a catalogue."""

    longest_output = 4

    def __call__(self, logits, rows):
        return logits


def test_outputs_that_cannot_be_long():
    request = Request([1])
    for processors, expected in (((), DEFAULT_MAX_LENGTH), ((Short(), Short()), 4)):
        algorithm = pybeam.fixed_beam(2, processors=processors)
        assert overridden(algorithm, request, None, 1).max_length == expected
        assert overridden(algorithm, request, 3, 1).max_length == 3


def test_a_target_is_a_beam_of_one_row():
    algorithm = pybeam.variable_beam(5, threshold=1.0, n_best=3, min_length=2, max_length=4)
    forced = for_target(algorithm, Request([1], target=[3] * 7), 8)
    assert (forced.width, forced.n_best, forced.max_rows) == (1, 1, 1)
    assert (forced.min_length, forced.max_length) == (0, 8)
    assert forced.pruning == Pruning() and not forced.ended_only
    with pytest.raises(ValueError, match=r"the model's 7 positions, but is 8 \+ 0"):
        for_target(algorithm, Request([1], target=[3] * 7), 7)
