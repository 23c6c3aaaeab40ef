"""A step in one object: in which order it may be called, whose memory it uses, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pybeam
from pybeam import backends, compat
from pybeam.backends.beam_program import BeamProgram
from pybeam.contracts import ColumnTokens
from pybeam.state.beam_state import BeamState
from pybeam.state.new_beam import NewBeam
from pybeam.state.step import Step, StepPlan
from support.beam_arrays import CPU, EOS, START, VOCAB, in_use, ints

pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


def opened(algorithm=None, backend="native", **options) -> BeamState:
    """Slot 0 of two has a beam of one row."""
    algorithm = algorithm or pybeam.fixed_beam(2, max_length=9)
    state = BeamState(algorithm, (EOS,), backends.load(backend), CPU)
    state.reserve(2, 2, 9)
    state.tree.reserve_pages(9)
    state.open([NewBeam(slot=0, algorithm=algorithm, source_length=1, **options)], START)
    return state


def program(state: BeamState) -> BeamProgram:
    return state.program


@pytest.mark.parametrize("calls", [["choose"], ["commit"], ["read", "commit"], ["step", "commit"]])
def test_the_order_of_calls(calls):
    state = opened()
    step, before = program(state), in_use(state)
    steps = dict(
        read=lambda: step.read(ints([0]), 1),
        choose=lambda: step.choose(torch.zeros(1, VOCAB)),
        commit=lambda: step.commit(ints([0])),
    )
    *before_it, last = calls
    for name in before_it:
        for part in ("read", "choose", "commit") if name == "step" else (name,):
            steps[part]()
        before = in_use(state)
    with pytest.raises(RuntimeError, match="before it"):
        steps[last]()
    assert in_use(state) == before


@pytest.mark.parametrize("name", ["native", "reference"])
def test_one_program_serves_as_long_as_no_array_grows(name):
    """A captured step refers to tensors of its program: the ids of EOS, if there are several."""
    state = opened(backend=name, prefix=[3, 4], target=[5, EOS])
    before = program(state)
    beam = NewBeam(slot=1, algorithm=state.algorithm, source_length=1, prefix=[6])
    state.open([beam], START)
    assert program(state) is before
    state.reserve(3, 2, 9)
    assert program(state) is not before


def test_a_choice_can_be_dropped():
    """A step that fails is tried again, and then for other slots."""
    state, other = opened(), opened()
    logits = torch.randn(1, VOCAB)
    for step in (program(state), program(other)):
        step.read(ints([0]), 1)
    program(state).choose(-logits)
    with pytest.raises(ValueError, match="`logits` must be float32"):
        program(state).choose(logits.double())
    program(state).read(ints([0]), 1)
    for one in (state, other):
        program(one).choose(logits)
        program(one).commit(ints([0]))
    assert in_use(state) == in_use(other)


@pytest.mark.parametrize(
    ("keep", "is_kept"),
    [
        (lambda tensor: tensor, True),
        (lambda tensor: tensor[:], True),
        (lambda tensor: tensor.numpy(), True),
        (lambda tensor: tensor.clone(), False),
    ],
)
def test_memory_is_used_again_unless_someone_holds_it(keep, is_kept):
    state = opened()
    step = state.begin(StepPlan(ints([0]), 1, 9))
    held, address = keep(step.rows.token), step.rows.token.data_ptr()
    step.choose(torch.eye(VOCAB)[5:6])
    step.commit(ints([0]))
    del step
    assert np.asarray(held).tolist() == [START]
    # padding, because the beam has two rows now
    state.begin(StepPlan(ints([1]), 1, 9))
    rows = state.begin(StepPlan(ints([1]), 1, 9)).rows
    assert np.asarray(held).tolist() == [START]
    assert rows.token.tolist() == [0]
    assert is_kept == (rows.token.data_ptr() != address)


def test_grown_arrays_are_another_program():
    state = opened()
    before = program(state)
    assert program(state) is before
    state.reserve(3, 2, 40)
    assert program(state) is not before


@pytest.mark.parametrize(
    "state",
    [
        lambda: opened(target=[3, EOS]),
        lambda: opened(pybeam.stochastic_beam(2, max_length=9, seed=1)),
        lambda: opened(compat.ctranslate2.beam_search(2, max_decoding_length=9), prefix=[3]),
    ],
)
def test_what_needs_python_in_between_takes_its_survivors(state, monkeypatch):
    state, taken = state(), []
    monkeypatch.setattr(Step, "survivors", lambda *given: taken.append(given) or 1 / 0)
    step = state.begin(StepPlan(ints([0]), 1, 9))
    with pytest.raises(ZeroDivisionError):
        step.choose(torch.zeros(1, VOCAB))
    assert len(taken) == 1


def test_wrong_arguments():
    state = opened()
    step = program(state)
    with pytest.raises(ValueError, match="`num_rows` must not be negative"):
        step.read(ints([0]), -1)
    with pytest.raises(RuntimeError, match="more rows or entries than there is room for"):
        step.read(ints([0]), 0)
    with pytest.raises(RuntimeError, match="`slot` is out of range"):
        step.read(ints([7]), 1)
    with pytest.raises(RuntimeError, match="`slot` is out of range"):
        step.report(ints([7]))
    with pytest.raises(TypeError, match="expected 2 arguments, but got 1"):
        step.read(ints([0]))
    with pytest.raises(TypeError, match="expected a tensor, but got list"):
        step.read([0], 1)
    step.read(ints([0]), 1)
    with pytest.raises(TypeError, match="expected a tensor, but got NoneType"):
        step.choose(None)
    with pytest.raises(ValueError, match="`logits` must have 2 dimensions"):
        step.choose(torch.zeros(VOCAB))
    with pytest.raises(RuntimeError, match="one row per entry"):
        step.choose(torch.zeros(0, VOCAB))


def test_wrong_columns():
    """Arrays that name tokens are checked as other addresses are."""
    state = opened()
    step = program(state)
    tree = ColumnTokens(ints([3, 4]), ints([0, 2]), ints([0]), EOS, eos_first=True)
    step.read(ints([0]), 1)
    step.choose(torch.zeros(1, 3), tree)
    for changes, width, error, message in (
        (dict(node=ints([0, 0])), 3, ValueError, "a node for each of 1 rows"),
        (dict(first=ints([0])), 3, ValueError, "`first` must have at least 2"),
        (dict(first=ints([0, 3])), 3, RuntimeError, "`first` must ascend"),
        (dict(node=ints([1])), 3, RuntimeError, "the column of no token"),
        ({}, 4, RuntimeError, "the column of no token"),
    ):
        # EOS is the last of all
        logits = torch.arange(width).float()[None]
        with pytest.raises(error, match=message):
            step.choose(logits, tree._replace(**changes))
    with pytest.raises(TypeError, match="expected ColumnTokens, but got list"):
        step.choose(torch.zeros(1, 3), [])
    with pytest.raises(ValueError, match="`logits` must have 2"):
        step.choose(torch.zeros(3), tree)


def test_wrong_lists():
    state = opened()
    with pytest.raises(TypeError):
        type(program(state))()
    step, before = program(state), in_use(state)
    with pytest.raises(ValueError, match="`ints` and `floats` must have a line per slot"):
        step.open([1], [0], [0.0], START)
    with pytest.raises(TypeError, match="expected a list, but got tuple"):
        step.close((0,))
    with pytest.raises(ValueError, match="4294967296 does not fit in int32"):
        step.close([2**32])
    with pytest.raises(RuntimeError, match="`slot` is out of range"):
        step.close([7])
    with pytest.raises(RuntimeError, match="`slot` is out of range"):
        step.finished([7], [0], 9, False)
    with pytest.raises(RuntimeError, match="more finished hypotheses than there is room for"):
        step.finished([0], [99], 9, False)
    with pytest.raises(ValueError, match="`capacity` must not be negative"):
        step.finished([0], [0], -1, False)
    assert in_use(state) == before
