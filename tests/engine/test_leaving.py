"""A request that leaves gives back all that it holds, and changes no result of others to the last bit."""

from __future__ import annotations

import dataclasses
import operator
import random
from unittest.mock import Mock

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.engine.admission import Admission
from pybeam.engine.arrivals import Arrivals, Watch
from pybeam.engine.blame import blame
from pybeam.engine.engine import StreamOptions
from pybeam.engine.failures import Interrupted, StepFailed, isolate
from pybeam.engine.source import Source
from pybeam.engine.stats import Stats
from pybeam.engine.streaming import Stream
from pybeam.engine.workspace import Workspace
from pybeam.models.function import FunctionModel, FunctionSession
from pybeam.request import Partial
from support.invariants import check_all_is_given_back
from support.laws import ALGORITHMS, SOURCES, CheckedEngine, decoded, essence, schedules
from support.search_models import BOS, EOS, random_model

BACKEND = "native" if "native" in backends.available() else "reference"
DIVERSE = pybeam.diverse(pybeam.fixed_beam(2, max_length=9), 3, 0.5)
EVERY = {**ALGORITHMS, "diverse": DIVERSE}
NAMES = [name for name in EVERY if name != "wide"]

CPU = torch.device("cpu")


class Gone(Exception):
    """Why a request leaves."""


class Leavers(Arrivals):
    """Requests of which some leave: `leaving[n]` before the n-th pass, and `encoding` while it is encoded."""

    def __init__(self, requests, leaving, *, encoding=None, watch=Watch.NOTHING):
        self._requests = iter(list(enumerate(requests)))
        self._leaving, self._encoding, self._watch = leaving, encoding, watch
        self._now = {}
        self.num_passes = 0
        self.phases: dict[int, list[str]] = {}

    def next(self, may_wait):
        return next(self._requests, None)

    def between_steps(self, load):
        now = {**self._leaving.get(self.num_passes, {}), **self._now}
        self._now = {}
        self.num_passes += 1
        return now

    def watch(self, index):
        return self._watch

    def enter(self, phase, indices):
        for index in indices:
            self.phases.setdefault(index, []).append(phase)
            if phase == "encode" and index == self._encoding:
                self._now[index] = Gone()


class Ordered(Leavers):
    keeps_order = True


def run(algorithm, schedule, arrivals, model, **wants):
    """The results by index, and the last partial result of each."""
    workspace = Workspace(model, algorithm, backends.load(BACKEND))
    engine = CheckedEngine(workspace, schedule, Stats(), StreamOptions(**wants))
    results, partials = {}, {}
    for item in Stream(engine.run(arrivals), CPU):
        if isinstance(item, Partial):
            assert item.index not in results
            partials[item.index] = item
        else:
            assert item.index not in results, "it has two results"
            results[item.index] = item
    check_all_is_given_back(workspace)
    return results, partials


def some_schedules(name):
    return list(schedules(EVERY[name].max_rows).values())[NAMES.index(name) % 3 :: 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [Leavers, Ordered])
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_others_do_not_notice(name, kind, late):
    """Whenever it is, wherever they are, and even if they are told twice."""
    algorithm, model = EVERY[name], random_model(7, 9, eos_bonus=0.3)
    rng = random.Random(name)
    expected = essence(decoded(model, algorithm, pybeam.Batch(1), BACKEND))
    num_gone = 0
    for schedule in some_schedules(name):
        leaving = {}
        for _ in range(9):
            error = rng.choice([Gone, Interrupted])()
            leaving.setdefault(rng.randrange(40), {})[rng.randrange(len(SOURCES))] = error
        arrivals = kind(SOURCES, leaving, encoding=rng.randrange(len(SOURCES)))
        results, _ = run(algorithm, schedule, arrivals, model, reads_late=late)
        assert sorted(results) == list(range(len(SOURCES)))
        left = {i for n, gone in leaving.items() if n < arrivals.num_passes for i in gone}
        for index, result in results.items():
            if isinstance(result.error, Gone) or result.stop_reason == "interrupted":
                assert index in left or index == arrivals._encoding
                num_gone += 1
            else:
                assert essence([result]) == [expected[index]], schedule
    assert num_gone > 0


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("error", [Gone, Interrupted])
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_it_may_leave_before_every_step(error, late):
    """Also before the first and after the last one, while another one goes on."""
    algorithm, model = pybeam.fixed_beam(3, max_length=7), random_model(3, 9, eos_bonus=-3)
    expected = decoded(model, algorithm, pybeam.Fifo(2), BACKEND, [[1], [1]])
    for n in range(12):
        arrivals = Leavers([[1], [1]], {n: {0: error()}}, watch=Watch.BEST)
        results, _ = run(algorithm, pybeam.Fifo(2), arrivals, model, reads_late=late)
        assert essence([results[1]]) == essence([expected[1]])
        # the first pass has not taken it yet
        if 0 < n < expected[0].steps:
            assert results[0].steps == n
            assert results[0].error or results[0].stop_reason == "interrupted"
        else:
            assert n == 0 or n >= expected[0].steps
            assert essence([results[0]]) == essence([expected[0]])


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("prefix", [[], [3, 2]], ids=["", "prefix"])
def test_the_best_so_far(name, late, prefix):
    """The hypotheses that have finished; or else the best row, which was the last one that was heard of."""
    algorithm, num_cut = EVERY[name], 0
    requests = [pybeam.Request([1, 1], prefix=prefix, source_id=i) for i in range(6)]
    for n in range(1, 9):
        model = random_model(n, 9, eos_bonus=-4)
        everyone = {n: {i: Interrupted() for i in range(6)}}
        arrivals = Leavers(requests, everyone, watch=Watch.BEST)
        results, partials = run(
            algorithm, pybeam.Fifo(4), arrivals, model, reads_late=late, log_probs=True
        )
        scorer = pybeam.Decoder(model, pybeam.greedy())
        first = 0 if algorithm.prefix.is_scored else len(prefix)
        for index, result in results.items():
            if result.stop_reason != "interrupted":
                continue
            scores = [hypothesis.final_score for hypothesis in result.hypotheses]
            assert scores == sorted(scores, reverse=True)
            assert len(scores) <= algorithm.n_best * algorithm.num_groups
            for one in result.hypotheses:
                assert one.tokens[: len(prefix)] == prefix
                whole = dataclasses.replace(requests[index], prefix=None)
                [scored] = scorer.score([whole], [one.tokens])
                log_probs = scored.hypotheses[0].log_probs[first : len(one.tokens) + one.ended]
                assert one.log_probs == pytest.approx(log_probs, abs=1e-4)
                assert one.score == pytest.approx(sum(log_probs), abs=1e-4)
                if not one.ended:
                    num_cut += 1
                    assert len(one.tokens) > len(prefix), (
                        "a row without a token of its own is no hypothesis"
                    )
                    if algorithm.num_groups == 1:
                        assert one.tokens == partials[index].best
    assert num_cut > 0


def test_what_has_no_best_so_far():
    """A target, a prefix that is not at its end, and what has not begun."""
    model = random_model(3, 9, eos_bonus=-9)
    requests = [
        pybeam.Request([1], target=[4, 5, 6, 7]),
        pybeam.Request([1], prefix=[4, 5, 6, 7]),
        pybeam.Request([1]),
    ]
    algorithm = pybeam.fixed_beam(3, max_length=9)
    arrivals = Leavers(requests, {3: {i: Interrupted() for i in range(3)}})
    results, _ = run(algorithm, pybeam.Fifo(2), arrivals, model)
    for result in results.values():
        assert (result.stop_reason, result.hypotheses, result.error) == ("interrupted", [], None)


@pytest.mark.parametrize(("kind", "num_left"), [(Leavers, 0), (Ordered, 5)])
def test_requests_in_order_are_taken_when_there_is_room_for_them(kind, num_left):
    """One that comes later may be in a hurry. Others are taken together, to be sorted by length."""
    left = []

    class Noting(kind):
        def between_steps(self, load):
            left.append(operator.length_hint(self._requests))
            return super().between_steps(load)

    endless = random_model(1, eos_bonus=-99.0)
    run(pybeam.greedy(max_length=6), pybeam.Fifo(4), Noting([[1]] * 9, {}), endless)
    # four of them for six steps
    assert left[:7] == [9, *[num_left] * 6]


@pytest.mark.parametrize(
    ("kind", "n", "num"),
    [(Leavers, 20, 320), (Ordered, 3, 1), (Ordered, 5, 1), (Ordered, 9, 2), (Ordered, 80, 16)],
)
def test_a_window_is_sorted_unless_the_order_counts(kind, n, num):
    """The longest sources come first, so that neighbours are alike."""
    lengths = [1 + i % 3 for i in range(400)]
    workspace = Workspace(random_model(1), pybeam.greedy(), backends.load("reference"))
    admission = Admission(
        kind([[1] * length for length in lengths], {}),
        workspace,
        pybeam.Fifo(n),
        wants_log_probs=False,
        wants_partials=False,
    )
    assert not list(admission.read(may_wait=True))
    taken = []
    while admission.next() is not None:
        taken.append(admission.take().source_length)
    assert taken == (sorted(lengths[:num], reverse=True) if kind is Leavers else lengths[:num])


def test_what_groups_have_found_is_ranked():
    """If a source leaves before its next group begins."""
    groups = [
        pybeam.Result(0, None, [pybeam.Hypothesis([i], score, score, True)], "max_length", 2, 3)
        for i, score in enumerate([-3.0, -1.0, -2.0])
    ]
    source = Source(
        index=0,
        request=pybeam.Request([1]),
        content=None,
        algorithm=pybeam.greedy(),
        source_length=1,
        groups=groups,
    )
    result = source.failed(Interrupted())
    assert [found.final_score for found in result.hypotheses] == [-1.0, -2.0, -3.0]
    assert (result.stop_reason, result.steps, result.expansions) == ("interrupted", 6, 9)


def test_nothing_is_certain_of_several_groups():
    groups = pybeam.diverse(pybeam.fixed_beam(2, max_length=6), 3, 0.5)
    arrivals = Leavers([[1]] * 3, {}, watch=Watch.BEST)
    results, partials = run(groups, pybeam.Fifo(2), arrivals, random_model(5, 9))
    assert len(results) == 3 and not partials


class AllButTheLast(pybeam.Fifo):
    """Keeps one source waiting, if there is another."""

    moves_all = False

    def plan(self, depth, num_rows, waited, limit=None):
        return (num_rows > 0) & (torch.arange(len(depth)) < max(len(depth) - 1, 1))


def test_all_that_moved_fail_with_a_step_that_cannot_be_undone_and_no_others():
    """Although only one of them would fail alone."""
    good, moved = random_model(7, eos_bonus=0.3), []

    class Session(FunctionSession):
        def advance(self, source, target):
            if len(moved) == 2:
                raise Gone

    class Model(FunctionModel):
        def session(self, backend):
            return Session(self, backend)

    def call(prefixes, lengths, source_ids):
        moving = set(source_ids.tolist()) - {-1}
        if len(moved) == 2 and moving == {min(moved[1])}:
            raise Gone
        moved.append(moving)
        return good.fn(prefixes, lengths, source_ids)

    algorithm = pybeam.fixed_beam(3, max_length=9)
    requests = [pybeam.Request([1], source_id=i) for i in range(11)]
    expected = decoded(good, algorithm, pybeam.Batch(1), BACKEND, requests)
    model = Model(call, good.vocab_size, BOS, EOS)
    results, _ = run(algorithm, AllButTheLast(4), Leavers(requests, {}), model)
    failed = {index for index, result in results.items() if isinstance(result.error, Gone)}
    assert failed == moved[1] and len(failed) == 3
    for index in set(results) - failed:
        assert essence([results[index]]) == essence([expected[index]])


def test_all_pages_are_free_in_the_end():
    model, stats = random_model(1, eos_bonus=-99.0), Stats()
    workspace = Workspace(model, pybeam.fixed_beam(3, max_length=9), backends.load(BACKEND))
    list(CheckedEngine(workspace, pybeam.Fifo(8), stats, StreamOptions()).stream([[1]] * 9))
    assert stats.free_pages == stats.pages > 8


def test_the_phases_of_a_request():
    arrivals = Ordered([[1]] * 5, {})
    run(pybeam.greedy(max_length=4), pybeam.Fifo(2), arrivals, random_model(1))
    assert set(map(tuple, arrivals.phases.values())) == {("encode", "wait", "decode")}
    arrivals = Ordered([[1]] * 3, {})
    run(DIVERSE, pybeam.Fifo(2), arrivals, random_model(1))
    each = ("encode", "wait", "decode")
    assert set(map(tuple, arrivals.phases.values())) == {(*each, "wait") * 2 + each}


@pytest.mark.parametrize("name", ["greedy", "variable", "adaptive"])
def test_who_listens_changes_nothing(name):
    """Some hear of everything, some of what is certain, some of nothing."""
    algorithm, model = ALGORITHMS[name], random_model(7, 9, eos_bonus=0.3)

    class Some(Leavers):
        def watch(self, index):
            return Watch(index % 3)

    results, partials = run(algorithm, pybeam.Fifo(5), Some(SOURCES, {}), model)
    expected, every = run(algorithm, pybeam.Fifo(5), Leavers(SOURCES, {}), model, partials=True)
    assert essence(results[i] for i in range(17)) == essence(expected[i] for i in range(17))
    assert not [index for index in partials if index % 3 == 0]
    for index, partial in every.items():
        if index % 3:
            assert partials[index].tokens == partial.tokens
            assert (partials[index].best is None) == (index % 3 == 1)


def test_a_source_that_was_alone_is_not_tried_again():
    def fails_differently(places):
        raise AssertionError

    cause, failed = Gone("alone"), StepFailed(torch.tensor([3]), is_undone=True)
    failed.__cause__ = cause
    assert blame(failed, [3], fails_differently) == {3: cause}


def test_what_fails_alone_is_tried_once():
    act = Mock(side_effect=Gone)
    assert list(isolate(act, ["one"])) == [0]
    act.assert_called_once_with(["one"])
    act = Mock(side_effect=[Gone, None, Gone])
    assert list(isolate(act, ["one", "two"])) == [1]
