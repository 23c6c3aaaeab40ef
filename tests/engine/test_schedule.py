"""Who is admitted and which sources move, by hand."""

import dataclasses
import functools
import itertools
import random
from functools import partial
from typing import Any

import pytest
import torch

import pybeam
from pybeam.backends.arrays import INT_COLUMNS, NUM_REPORTED, RUNNING
from pybeam.engine import own_plans
from pybeam.engine.buckets import bucket, last_bucket
from pybeam.engine.live_sources import LiveSources, RunningMax
from pybeam.engine.schedule import LoadLevel
from pybeam.engine.source import Source
from pybeam.models import FunctionModel
from support.laws import essence
from support.search_models import BOS, EOS


def plan(schedule, depth, rows, waited=None, limit=None):
    depth, rows = torch.tensor(depth, dtype=torch.int32), torch.tensor(rows, dtype=torch.int32)
    waited = torch.tensor(waited or [0] * len(depth), dtype=torch.int32)
    return schedule.plan(depth, rows, waited, limit).nonzero().flatten().tolist()


def test_batch_moves_all_and_refills_when_empty():
    batch = pybeam.Batch(3)
    assert plan(batch, [4, 9, 2], [1, 1, 1]) == [0, 1, 2]
    assert batch.moves_all
    assert not batch.refills(LoadLevel(1, 10, 5))
    assert batch.refills(LoadLevel(0, 0, 0))
    assert batch.has_room(LoadLevel(2, 10, 5), 7, 50)
    assert not batch.has_room(LoadLevel(3, 10, 5), 7, 50)


def test_a_schedule_says_when_it_refills():
    with pytest.raises(TypeError, match="epsilon"):
        pybeam.Schedule()


def test_batch_of_tokens_takes_at_least_one():
    batch = pybeam.Batch(tokens=100)
    assert batch.has_room(LoadLevel(0, 0, 0), 500, 5)
    assert batch.has_room(LoadLevel(3, 60, 9), 40, 5)
    assert not batch.has_room(LoadLevel(3, 60, 9), 41, 5)


def test_streaming_moves_the_least_advanced():
    streaming = pybeam.Streaming(6, epsilon=0.5)
    assert plan(streaming, [4, 2, 2, 9], [1, 1, 1, 1]) == [1, 2]
    assert not streaming.moves_all
    assert not streaming.refills(LoadLevel(4, 0, 0))
    assert streaming.refills(LoadLevel(3, 0, 0))


def test_a_stuck_source_stops_refills():
    streaming = pybeam.Streaming(6, epsilon=0.5, flush=9)
    assert streaming.refills(LoadLevel(sources=3, age=8))
    assert not streaming.refills(LoadLevel(sources=3, age=9))
    assert streaming.refills(LoadLevel())
    budget = pybeam.Streaming(6, row_budget=8, flush=9)
    assert budget.refills(LoadLevel(sources=3, rows=7, age=8))
    assert not budget.refills(LoadLevel(sources=3, rows=7, age=9))
    with pytest.raises(ValueError, match="`flush` must be at least 1, but is 0"):
        pybeam.Streaming(6, flush=0)
    with pytest.raises(TypeError, match="`flush` must be an int"):
        pybeam.Streaming(6, flush=2.5)


def endless_model(num: int = 99) -> FunctionModel:
    """A model whose first `num` sources have outputs without an end."""

    def endless(prefixes, lengths, source_ids):
        logits = torch.zeros(len(prefixes), 4)
        logits[:, EOS] = torch.where(source_ids < num, -100.0, 100.0)
        return logits

    return FunctionModel(endless, 4, BOS, EOS)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("options", [{}, {"row_budget": 4}], ids=["", "budget"])
def test_a_flush_finishes_what_is_stuck(options):
    """Request 0 takes 30 steps, the others one, so that it pauses while there are others."""
    model, found = endless_model(1), {}
    for flush in (None, 5, 1):
        schedule = pybeam.Streaming(4, 0.5, flush=flush, **options)
        decoder = pybeam.Decoder(model, pybeam.greedy(max_length=30), schedule)
        results = []
        for result in decoder.stream([[1]] * 60):
            results.append(result)
            if result.index == 0:
                assert flush is None or decoder.stats.steps <= flush + 30
        found[flush] = [result.index for result in results].index(0)
        results.sort(key=lambda result: result.index)
        expected = decoder.decode([[1]] * 60)
        assert essence(results) == essence(expected)
    assert found[None] == 59
    assert found[1] <= 3 < found[5] <= 5 * 3


def test_a_paused_source_is_moved_after_max_wait():
    streaming = pybeam.Streaming(6, max_wait=5)
    assert plan(streaming, [4, 2, 2, 9], [1] * 4, [4, 0, 0, 5]) == [1, 2, 3]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (pybeam.Streaming(4, row_budget=6), [1, 2]),
        (pybeam.Fifo(4, row_budget=6), [3]),
        (pybeam.Fifo(4, row_budget=8), [0, 3]),
        (pybeam.Batch(4, row_budget=6), [1, 2]),
        (pybeam.Fifo(4, row_budget=8, max_wait=3), [1, 3]),
    ],
    ids=["streaming", "fifo", "fifo, more", "batch", "fifo, impatient"],
)
def test_a_budget_takes_whole_beams_in_order(schedule, expected):
    """Beams of 3, 2, 4 and 5 rows; the next one that would exceed the budget ends the step."""
    assert plan(schedule, [4, 2, 2, 9], [3, 2, 4, 5], [0, 3, 1, 0]) == expected


def test_ties_go_by_admission():
    assert plan(pybeam.Streaming(4, row_budget=4), [2, 2, 2], [2, 2, 2]) == [0, 1]


def test_a_budget_admits_until_rows_fill_it():
    """As long as there are fewer than ``n * width`` sources."""
    fifo = pybeam.Fifo(2, row_budget=10)
    for sources, rows in itertools.product(range(1, 13), range(8, 13)):
        load = LoadLevel(sources, 0, rows)
        assert fifo.refills(load) == (rows < 10)
        assert fifo.has_room(load, 1, 5) == (rows < 10 and sources < 2 * 5)


@pytest.mark.parametrize("schedule", [pybeam.Batch(4), pybeam.Fifo(4)], ids=["batch", "fifo"])
def test_what_does_not_fit_waits_and_goes_first_next_time(schedule):
    assert plan(schedule, [4, 2, 2, 9], [3, 2, 4, 5], limit=9) == [0, 1, 2]
    assert plan(schedule, [4, 2, 2, 9], [3, 2, 4, 5], [0, 0, 0, 1], limit=9) == [0, 3]


def test_a_limit_and_a_budget():
    assert plan(pybeam.Streaming(4, row_budget=6), [4, 2, 2, 9], [3, 2, 4, 5], limit=4) == [1]
    assert plan(pybeam.Streaming(4), [4, 2, 2, 9], [3, 2, 4, 5], limit=4) == [1]


@pytest.mark.parametrize("limit", [None, 100])
def test_a_source_without_rows_never_moves(limit):
    """It has stopped, or the slot is `NULL_SLOT`; its depth counts for nothing."""
    for schedule in (pybeam.Batch(4), pybeam.Fifo(4, row_budget=50), pybeam.Streaming(4)):
        assert plan(schedule, [2, 4, 0], [0, 2, 0], [9, 0, 9], limit) == [1]


def test_one_more_source_is_one_more_load():
    assert LoadLevel(1, 10, 2, 3).with_one_more(7, 4) == LoadLevel(2, 17, 6, 3)


def test_a_source_of_no_tokens_fits_where_none_is_left():
    batch = pybeam.Batch(tokens=100)
    assert batch.has_room(LoadLevel(3, 100, 9), 0, 5) and batch.may_have_room(LoadLevel(3, 100, 9))
    assert not batch.has_room(LoadLevel(3, 100, 9), 1, 5)
    # the first source may be longer
    assert not batch.may_have_room(LoadLevel(1, 101, 3))


def test_the_greatest_of_what_is_live():
    """Those that leave no longer count."""
    most = RunningMax()
    assert most.number is None
    for number in (3, 7, 7, 5):
        most.add(number)
    found = []
    for number in (7, 3, 7, 5):
        most.remove(number)
        found.append(most.number)
    assert found == [7, 7, 5, None]


class OnlyTheLast(pybeam.Fifo):
    """A plan of one's own."""

    def plan(self, depth, num_rows, waited, limit=None):
        return torch.arange(len(depth)) == (len(depth) - 1 if limit is None else limit)


@pytest.mark.parametrize("limit", [None, 1])
def test_a_plan_of_ones_own_is_asked_and_another_is_for_a_kernel(limit):
    planner = OnlyTheLast(3).planner(limit)
    assert planner(*torch.ones(3, 3, dtype=torch.int32)).tolist() == [False, bool(limit), not limit]
    for schedule in (pybeam.Batch(3), pybeam.Streaming(3), pybeam.Fifo(3, row_budget=4)):
        assert schedule.planner(limit) == schedule.rules(limit)


def all_that_can(own, depth, num_rows, waited):
    return num_rows > 0


def the_least_advanced(own, depth, num_rows, waited):
    can = num_rows > 0
    return can & ((depth == depth[can].min()) | (waited >= (own.max_wait or 99)))


def within_budget(sign, own, depth, num_rows, waited):
    """Whole beams in the order of their depth, those that are late before all others."""
    late = -99 * (waited >= (own.max_wait or 99))
    order = torch.where(late < 0, late, sign * depth).argsort(stable=True).tolist()
    moves, left = torch.zeros(len(depth), dtype=torch.bool), own.row_budget
    for i in order:
        if num_rows[i]:
            left -= int(num_rows[i])
            moves[i] = left >= 0
    return moves


@dataclasses.dataclass(frozen=True)
class Written(pybeam.Schedule):
    """A schedule of which all but the numbers is a function on arrays."""

    choose: Any = all_that_can
    epsilon: float = 1.0

    def plan(self, depth, num_rows, waited, limit=None):
        return self.choose(self, depth, num_rows, waited)


class Calls(list):
    """A model, and which sources it was asked for in each step."""

    def model(self):
        table = torch.randn(7, 7, generator=torch.Generator().manual_seed(3))

        def logits(prefixes, lengths, source_ids):
            self.append(source_ids.tolist())
            rows = table[prefixes[torch.arange(len(prefixes)), lengths.long() - 1]].clone()
            rows[:, EOS] += lengths / 4 - source_ids % 5
            return rows

        return FunctionModel(logits, 7, BOS, EOS)


def decoded(schedule) -> tuple[list[int], list[list[int]], list]:
    """Requests in the order of their results, the sources of each step, and the results."""
    calls = Calls()
    decoder = pybeam.Decoder(calls.model(), pybeam.variable_beam(3, 1.5, max_length=12), schedule)
    results = list(decoder.stream([[1]] * 14))
    return [result.index for result in results], list(calls), results


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize(
    ("schedule", "written"),
    [
        (pybeam.Fifo(4), Written(4)),
        (pybeam.Batch(4), Written(4, epsilon=0.0)),
        (pybeam.Streaming(4, 0.5), Written(4, the_least_advanced, 0.5)),
        (pybeam.Streaming(4, 0.5, max_wait=2), Written(4, the_least_advanced, 0.5, max_wait=2)),
        (pybeam.Fifo(4, row_budget=7), Written(4, partial(within_budget, -1), row_budget=7)),
        (
            pybeam.Streaming(4, row_budget=5, max_wait=1),
            Written(4, partial(within_budget, 1), row_budget=5, max_wait=1),
        ),
    ],
    ids=["fifo", "batch", "streaming", "impatient", "fifo, budget", "streaming, budget"],
)
def test_a_built_in_schedule_that_is_written_as_a_plan_takes_the_same_steps(schedule, written):
    order, steps, results = decoded(schedule)
    assert decoded(written) == (order, steps, results)
    by_index = sorted(results, key=lambda result: result.index)
    assert essence(by_index) == essence(decoded_alone())


@functools.cache
def decoded_alone():
    return sorted(decoded(pybeam.Batch(1))[2], key=lambda result: result.index)


@pytest.mark.parametrize("late", [False, True])
def test_a_plan_that_starves_all_fails_its_sources(late):
    """Sources move until they have two tokens."""
    schedule = Written(2, lambda own, depth, num_rows, waited: depth < 2)
    decoder = pybeam.Decoder(endless_model(), pybeam.greedy(max_length=9), schedule)
    decoder._reads_late = late
    results = decoder.decode([[1]] * 3, on_error="return")
    assert [type(result.error) for result in results] == [ValueError] * 3
    assert "`plan` must move a source in each step" in str(results[0].error)


def test_a_built_in_schedule_is_not_blamed(monkeypatch):
    """The last report of a stream that is read late says that no source has moved."""
    monkeypatch.setattr(own_plans, "starved", None)
    decoder = pybeam.Decoder(endless_model(), pybeam.greedy(max_length=9), pybeam.Streaming(2))
    decoder._reads_late = True
    assert not any(result.error for result in decoder.decode([[1]] * 3))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda depth: [True] * len(depth), TypeError, "must return a tensor"),
        (lambda depth: depth, ValueError, r"return torch.bool \[2\].* returned torch.int32 \[2\]"),
        (lambda depth: depth[:1] > 0, ValueError, r"returned torch.bool \[1\]"),
        (lambda depth: (depth > 0).to("meta"), ValueError, r"on cpu, .* \[2\] on meta"),
    ],
    ids=["list", "ints", "few", "elsewhere"],
)
def test_masks_that_are_refused(given, error, message):
    schedule = Written(2, lambda own, depth, num_rows, waited: given(depth))
    decoder = pybeam.Decoder(endless_model(), pybeam.greedy(max_length=9), schedule)
    for result in decoder.decode([[1]] * 2, on_error="return"):
        with pytest.raises(error, match=message):
            raise result.error


def test_a_plan_moves_no_source_without_rows_and_keeps_to_the_limit():
    plan = Written(9, lambda own, depth, num_rows, waited: waited < 9).planner(limit=5)
    given = [[1, 1, 1, 1], [2, 0, 3, 1], [0, 0, 1, 9]]
    moves = plan(*(torch.tensor(values, dtype=torch.int32) for values in given))
    assert moves.tolist() == [True, False, True, False]


def report_of(rows: dict[int, int]) -> list[int]:
    """A report on these slots, by slot the number of rows; a source without rows is done."""
    numbers = [0]
    for num in rows.values():
        line = dict(reason=RUNNING if num else RUNNING + 1, num_rows=num)
        numbers += [line.get(name, 0) for name in INT_COLUMNS[:NUM_REPORTED]] + [0]
    return numbers


def test_what_is_live_is_what_has_come_and_not_gone():
    rng = random.Random(3)
    live, rows, ages = LiveSources(torch.device("cpu")), {}, {}
    live.reserve(9)
    for step in range(60):
        come = [slot for slot in range(1, 9) if slot not in rows and rng.random() < 0.3]
        sources = [
            Source(
                index=slot,
                request=pybeam.Request([1]),
                content=None,
                # the beams of some grow by factors, others are as wide as they may be at once
                algorithm=pybeam.variable_beam(slot, 2.0 if slot % 2 else None, max_length=9),
                source_length=10 + slot,
                slot=slot,
                max_bytes=100 + slot,
            )
            for slot in come
        ]
        live.add(sources, [1] * len(come), step)
        rows |= dict.fromkeys(come, 1)
        ages |= dict.fromkeys(come, step)
        rows = {slot: rng.randint(0, slot) if num else 0 for slot, num in rows.items()}
        _, done = live.read_report(live.slots, report_of(rows))
        assert [live.slots[i] for i in done] == [slot for slot, num in rows.items() if not num]
        gone = [slot for slot, num in rows.items() if not num]
        assert [source.slot for source in live.remove(gone)] == gone
        for slot in gone:
            del rows[slot], ages[slot]
        age = step - min(ages.values()) if rows else 0
        load = LoadLevel(len(rows), sum(10 + slot for slot in rows), sum(rows.values()), age)
        assert live.load(step) == load
        assert live.max_bytes == sum(100 + slot for slot in rows)
        assert live.slots == tuple(rows) and live.slot.tolist() == list(rows)
        grown = {slot: min(slot, (2 if slot % 2 else slot) * num) for slot, num in rows.items()}
        first = sum(rows[slot] if ages[slot] == step else num for slot, num in grown.items())
        limit, widest = live.row_limit(step, is_last=False), max(rows, default=0)
        assert limit == bucket(max(first, widest))
        limits = [live.row_limit(step + 1, is_last) for is_last in (True, False)]
        num = max(sum(grown.values()), widest)
        assert limits == [last_bucket(num, limit), bucket(num)]
