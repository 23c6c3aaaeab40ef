"""A bad request fails alone, whatever fails, and leaves everything as if it had never been there."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from unittest.mock import Mock

import pytest
import torch

import pybeam
from pybeam import backends, drafts, processors
from pybeam.engine.cuda_graphs import StepGraphs
from pybeam.engine.engine import StreamOptions
from pybeam.engine.failures import StepFailed
from pybeam.engine.stats import Stats
from pybeam.engine.workspace import Workspace
from pybeam.models import FunctionModel
from pybeam.models.function import FunctionSession
from support.invariants import check_all_is_given_back
from support.laws import CheckedEngine, essence
from support.search_models import BOS, EOS, random_model

BAD = 4  # the request that fails; others are longer, so it may be encoded ahead
BACKEND = "native" if "native" in backends.available() else "reference"
GOOD = random_model(7, eos_bonus=0.3)
BEAM = dict(n_best=3, max_length=9)


class Oops(Exception):
    """An error of no kind that the library knows."""


class Fault(NamedTuple):
    """The failure of a request, only if `switch.is_on`."""

    algorithm: pybeam.search.algorithms.Algorithm
    model: FunctionModel = GOOD
    changes: dict | None = None  # of the bad request
    alignment: pybeam.Alignment | None = None


class Switch:
    is_on = True

    def trip(self, is_bad: object = True) -> None:
        if self.is_on and bool(is_bad):
            raise Oops("it is broken")


switch = Switch()


def is_marked(rows) -> torch.Tensor:
    """[R], rows of the bad request, the only one with a prefix."""
    return rows.prefix_length.index_select(0, rows.row_slot) > 0


@dataclass(frozen=True)
class Touchy(processors.Processor):
    """Adds a number to all logits; raises at the place that is named where the number is 1."""

    number: float = 0.0
    place: str = ""
    per_request: ClassVar = ("number", "place")

    def check(self, model):
        switch.trip(self.place == "check")

    def parameters(self):
        switch.trip(self.place == "parameters")
        return (torch.tensor(self.number),)

    def __call__(self, logits, rows, data):
        switch.trip((data[0] == 1).any())
        return logits + data[0][:, None] * 0


def only_of_marked(request):
    switch.trip(request.prefix)
    return 4


def guesses_that_end(request) -> Iterator[int]:
    yield 3
    switch.trip(request.prefix)


def allowed(rows):
    switch.trip((is_marked(rows) & (rows.position == 3)).any())
    return torch.ones(rows.token.numel(), GOOD.vocab_size, dtype=torch.bool)


def function(prefixes, lengths, source_ids):
    switch.trip(((source_ids == BAD) & (lengths == 3)).any())
    return GOOD.fn(prefixes, lengths, source_ids)


class Lazy(drafts.Initialiser):
    def guesses(self, request):
        return guesses_that_end(request)


class FragileSession(FunctionSession):
    def __init__(self, model, backend):
        super().__init__(model, backend)
        self.kept: set[int] = set()

    def encode(self, sources, indices, slots):
        assert not self.kept.intersection(slots), "a slot is encoded twice"
        self.kept.update(slots)  # before it may fail, as half done work would be
        switch.trip(self._model.place == "encode" and BAD in indices)
        super().encode(sources, indices, slots)

    def release(self, slots):
        super().release(slots)
        self.kept.difference_update(slots)

    def attention(self, sources, hypotheses, alignment):
        switch.trip(self._model.place == "attention" and [9, 9, 9] in sources)
        lengths = [len(source) for source in sources]
        return [
            [torch.full((len(tokens) + 1, n), 1 / n) for tokens in own]
            for own, n in zip(hypotheses, lengths, strict=True)
        ]

    def advance(self, source, target):
        switch.trip(self._model.place == "advance")


class Fragile(FunctionModel):
    has_attention = True
    place = ""

    def session(self, backend):
        return FragileSession(self, backend)

    def check(self, source):
        switch.trip(self.place == "check" and source == [9, 9, 9])
        return source

    def check_alignment(self, alignment):
        pass


def fragile(place: str) -> Fragile:
    model = Fragile(GOOD.fn, GOOD.vocab_size, BOS, EOS)
    model.place = place
    return model


touchy = pybeam.variable_beam(3, 2.0, processors=[Touchy()], **BEAM)
FAULTS = {
    "length": Fault(pybeam.jacobi(length=only_of_marked, max_length=9)),
    "guess": Fault(
        pybeam.adaptive_jacobi(
            3, initialiser=drafts.function(lambda request: [only_of_marked(request)]), max_length=9
        )
    ),
    "guesses that end": Fault(pybeam.jacobi(initialiser=Lazy(), max_length=9)),
    "processor, check": Fault(touchy, changes=dict(processors=[Touchy(1.0, "check")])),
    "processor, parameters": Fault(touchy, changes=dict(processors=[Touchy(0.5, "parameters")])),
    "processor, call": Fault(touchy, changes=dict(processors=[Touchy(1.0)])),
    "prefix function": Fault(
        pybeam.fixed_beam(3, processors=[processors.allowed_tokens(allowed)], **BEAM)
    ),
    "prefix function of a draft": Fault(
        pybeam.jacobi(processors=[processors.allowed_tokens(allowed)], max_length=9)
    ),
    "function": Fault(
        pybeam.variable_beam(3, **BEAM), FunctionModel(function, GOOD.vocab_size, BOS, EOS)
    ),
    "source": Fault(pybeam.fixed_beam(3, **BEAM), fragile("check")),
    "encoder": Fault(pybeam.fixed_beam(3, **BEAM), fragile("encode")),
    "attention": Fault(
        pybeam.fixed_beam(3, **BEAM), fragile("attention"), alignment=pybeam.Alignment()
    ),
    "groups": Fault(
        pybeam.diverse(
            pybeam.fixed_beam(2, processors=[processors.allowed_tokens(allowed)], max_length=9),
            3,
            0.5,
        )
    ),
}
SCHEDULES = {
    "batch": pybeam.Batch(5),
    "streaming": pybeam.Streaming(5, 0.5),
    "fifo": pybeam.Fifo(5),
    "budget": pybeam.Fifo(4, row_budget=10),
}


def requests_of(fault: Fault) -> list[pybeam.Request]:
    requests = [pybeam.Request([1] * (3 + i % 3), source_id=i) for i in range(11)]
    requests[BAD] = pybeam.Request([9, 9, 9], prefix=[6], source_id=BAD, **fault.changes or {})
    return requests


@pytest.fixture(autouse=True)
def on():
    switch.is_on = True


def run(workspace: Workspace, schedule, requests, **wants) -> list[pybeam.Result]:
    engine = CheckedEngine(workspace, schedule, Stats(), StreamOptions(**wants))
    results = [r for r in engine.stream(requests) if isinstance(r, pybeam.Result)]
    return sorted(results, key=lambda result: result.index)


def assert_fails_alone(fault: Fault, schedule, requests: Callable, **wants) -> None:
    """Two decodings in one workspace, the first with the fault, the second without."""
    wants["alignment"] = fault.alignment
    workspace = Workspace(fault.model, fault.algorithm, backends.load(BACKEND))
    results = run(workspace, schedule, requests(), **wants)
    check_all_is_given_back(workspace)
    switch.is_on = False
    healthy = run(workspace, schedule, requests(), **wants)
    fresh = Workspace(fault.model, fault.algorithm, backends.load(BACKEND))
    assert essence(healthy) == essence(run(fresh, schedule, requests(), **wants))
    assert all(result.hypotheses for result in healthy)
    switch.is_on = True
    assert [result.index for result in results if result.error] == [BAD]
    assert isinstance(results[BAD].error, Oops)
    assert (results[BAD].stop_reason, results[BAD].hypotheses) == ("error", [])
    others = [essence([result]) for result in results if result.index != BAD]
    assert others == [essence([result]) for result in healthy if result.index != BAD]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_request_fails_alone(name, late):
    fault = FAULTS[name]
    for schedule in SCHEDULES.values():
        assert_fails_alone(fault, schedule, lambda: requests_of(fault), reads_late=late)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("name", ["processor, call", "function", "encoder"])
def test_a_bad_request_of_a_queue_fails_alone(name, late):
    def queued() -> pybeam.RequestQueue:
        queue = pybeam.RequestQueue()
        for request in requests_of(FAULTS[name]):
            queue.put(request)
        queue.close()
        return queue

    wants = dict(reads_late=late, partials=True, log_probs=True)
    assert_fails_alone(FAULTS[name], pybeam.Fifo(3, window=4), queued, **wants)


class Breaks(FunctionModel):
    """Raises in its n-th call, whoever is decoded."""

    def __init__(self, n: int, error: BaseException) -> None:
        super().__init__(self._call, GOOD.vocab_size, BOS, EOS)
        self.calls, self.n, self.error = 0, n, error
        self.seen: list[int] = []

    def _call(self, prefixes, lengths, source_ids):
        self.calls += 1
        if self.calls == self.n:
            self.seen = sorted(set(source_ids.tolist()) - {-1})
            raise self.error
        return GOOD.fn(prefixes, lengths, source_ids)


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_what_all_share_fails_the_sources_of_that_step(name, late):
    """And no others; the decoder is usable afterwards."""
    algorithm = pybeam.fixed_beam(3, **BEAM)
    requests = [pybeam.Request([1], source_id=i) for i in range(11)]
    expected = pybeam.Decoder(GOOD, algorithm, backend=BACKEND).decode(requests)
    for n in (1, 4, 9):
        model = Breaks(n, Oops("once"))
        workspace = Workspace(model, algorithm, backends.load(BACKEND))
        results = run(workspace, SCHEDULES[name], requests, reads_late=late)
        assert [result.index for result in results if result.error] == model.seen
        assert 0 < len(model.seen) < len(requests)
        assert all(results[i].error is model.error for i in model.seen)
        kept = [result for result in expected if result.index not in model.seen]
        assert essence(result for result in results if not result.error) == essence(kept)
        check_all_is_given_back(workspace)
        again = run(workspace, SCHEDULES[name], requests, reads_late=late)
        assert essence(again) == essence(expected)


def test_a_step_that_fails_after_it_has_begun_to_change_things_fails_its_sources():
    """The state of a model may then be half moved, so that the step cannot be done again."""
    model = fragile("advance")
    workspace = Workspace(model, pybeam.fixed_beam(3, **BEAM), backends.load(BACKEND))
    requests = [pybeam.Request([1], source_id=i) for i in range(11)]
    results = run(workspace, pybeam.Fifo(4), requests)
    assert all(isinstance(result.error, Oops) and result.steps == 1 for result in results)
    check_all_is_given_back(workspace)
    switch.is_on = False
    expected = pybeam.Decoder(GOOD, workspace.algorithm, backend=BACKEND).decode(requests)
    assert essence(run(workspace, pybeam.Fifo(4), requests)) == essence(expected)


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_a_processor_that_always_fails_fails_everybody(late):
    def broken(logits, rows):
        raise Oops("always")

    algorithm = pybeam.fixed_beam(3, processors=[broken], max_length=9)
    workspace = Workspace(GOOD, algorithm, backends.load(BACKEND))
    results = run(workspace, pybeam.Streaming(4), [[1]] * 9, reads_late=late)
    assert [str(result.error) for result in results] == ["always"] * 9
    check_all_is_given_back(workspace)


def test_a_failed_group_counts_what_its_request_has_cost():
    fault = FAULTS["groups"]
    visits = []

    def second_group_fails(rows):
        visits.append((rows.num_generated == 0).any())
        switch.trip(sum(visits) == 2)
        return torch.ones(rows.token.numel(), GOOD.vocab_size, dtype=torch.bool)

    own = processors.allowed_tokens(second_group_fails)
    *_, diversity = fault.algorithm.processors
    algorithm = dataclasses.replace(fault.algorithm, processors=(own, diversity))
    decoder = pybeam.Decoder(GOOD, algorithm, backend=BACKEND)
    (result,) = decoder.decode([[1]], on_error="return")
    switch.is_on = False
    (whole,) = decoder.decode([[1]])
    assert isinstance(result.error, Oops)
    assert 0 < result.steps < whole.steps
    assert len(whole.hypotheses) == 3


def test_a_step_that_fails_while_it_is_captured_runs_without_a_graph():
    """Nothing has been computed then, so the slots that the step says it moves mean nothing."""
    failure = StepFailed(torch.tensor([12345]), is_undone=True)
    failure.__cause__ = Oops("in a graph")
    workspace = Workspace(GOOD, pybeam.fixed_beam(3, **BEAM), backends.load(BACKEND))
    workspace.graphs = StepGraphs(Mock(side_effect=failure))
    with pytest.warns(RuntimeWarning, match="without graphs: Oops: in a graph"):
        results = run(workspace, pybeam.Batch(4), [[1]] * 8, reads_late=True)
    assert all(result.hypotheses and result.error is None for result in results)
    check_all_is_given_back(workspace)


def test_an_interrupt_is_no_failure_of_a_request():
    algorithm = pybeam.fixed_beam(3, **BEAM)
    decoder = pybeam.Decoder(Breaks(3, KeyboardInterrupt()), algorithm, backend=BACKEND)
    with pytest.raises(KeyboardInterrupt):
        decoder.decode([[1]] * 5)
    expected = pybeam.Decoder(GOOD, algorithm, backend=BACKEND).decode([[1]] * 5)
    assert essence(decoder.decode([[1]] * 5)) == essence(expected)


def test_requests_that_wait_go_on_after_a_failure():
    """A server's stream outlives a step that failed."""
    queue = pybeam.RequestQueue()
    queue.put([1])
    decoder = pybeam.Decoder(Breaks(2, Oops()), pybeam.greedy(max_length=5), backend=BACKEND)
    stream = decoder.stream(queue)
    assert isinstance(next(stream).error, Oops)
    queue.put([1])
    queue.close()
    assert [(result.index, result.error) for result in stream] == [(1, None)]
    assert decoder.stats.stop_reasons["error"] == 1


def test_an_error_in_a_result_keeps_nothing_else_alive():
    """A server that logs errors must not hold on to the arrays of steps that failed."""
    refs = []

    def broken(prefixes, lengths, source_ids):
        logits = torch.zeros(len(lengths), 4)
        refs.append(weakref.ref(logits))
        raise Oops("a step")

    decoder = pybeam.Decoder(FunctionModel(broken, 4, BOS, EOS), pybeam.greedy(), backend=BACKEND)
    results = decoder.decode([[1]] * 3, on_error="return")
    assert all(isinstance(result.error, Oops) for result in results)
    assert len(refs) == 4
    assert not [ref for ref in refs if ref() is not None]
