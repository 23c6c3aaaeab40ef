"""Native beams refuse what would be a wrong address, before they write; empty slots and padding."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.backends import poison
from pybeam.backends.arrays import INT_COLUMNS, Beams, SelectInputs
from pybeam.backends.beam_program import ActiveRules
from pybeam.contracts import Survivors
from pybeam.search.algorithms import Algorithm
from pybeam.state.beam_state import BeamState
from pybeam.state.new_beam import NewBeam
from pybeam.state.step import StepPlan
from support.beam_arrays import CPU, EOS, START, in_use, ints

pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


@pytest.fixture(autouse=True)
def no_poison(monkeypatch):
    """The operators check the arrays, and poison would write to them first."""
    monkeypatch.setattr(poison, "IS_ON", False)


def beams(slots: list[int], algorithm: Algorithm) -> list[NewBeam]:
    return [NewBeam(slot=p, algorithm=algorithm, source_length=1) for p in slots]


def open_state(backend: str = "native") -> BeamState:
    """Slot 0 of three has entries 5 (node 1) and 6 (node 2)."""
    algorithm = pybeam.variable_beam(2, max_length=9)
    state = BeamState(algorithm, (EOS,), backends.load(backend), CPU)
    state.reserve(3, 2, 9)
    state.tree.reserve_pages(9)
    state.open(beams([0], algorithm), START)
    commit(state, [0], survivors(parent=[0, 0], token=[5, 6]))
    return state


def commit(
    state: BeamState, slots: list[int], given: Survivors
) -> tuple[torch.Tensor, torch.Tensor]:
    program = state.program
    program.take(ints(slots), given)
    program.commit(ints(slots))
    return program.moves()


def survivors(slots: int = 1, **changes) -> Survivors:
    """Two survivors that continue both entries, none of them finished."""
    fields = dict(token=[5, 6], parent=[0, 1], count=2, num_finished=0) | changes
    capacity = len(fields["token"])
    score = torch.arange(0.0, -capacity, -1.0)
    line = (ints(fields["token"]), ints(fields["parent"]), score, score)
    counts = (ints(fields["count"]), ints(fields["num_finished"]), torch.tensor(False))
    return Survivors(*(field.expand(slots, *field.shape) for field in (*line, *counts)))


@pytest.mark.parametrize(
    ("slot", "changes", "message"),
    [
        ([3], {}, "`slot` is out of range"),
        ([-1], {}, "`slot` is out of range"),
        ([0], dict(parent=[0, 2]), "parent is out of range"),
        ([0], dict(parent=[-1, 0]), "parent is out of range"),
        ([0], dict(count=3), "out of range"),
        ([0], dict(num_finished=-1), "out of range"),
        ([0], dict(count=0, num_finished=1), "out of range"),
        ([0], dict(token=[5, 6, 7], parent=[0, 0, 0], count=3), "more survivors than entries"),
        ([0], dict(token=[EOS] * 5, parent=[0] * 5, count=5, num_finished=5), "room for"),
        ([1], {}, "parent is out of range"),  # an empty slot
        ([0, 0], {}, "twice"),
    ],
)
def test_commit_refuses_before_it_writes(slot, changes, message):
    state = open_state()
    before = in_use(state)
    with pytest.raises(RuntimeError, match=message):
        commit(state, slot, survivors(len(slot), **changes))
    assert in_use(state) == before


@pytest.mark.parametrize(
    ("array", "place", "value", "message"),
    [
        ("num_rows", 0, 1, "counts its rows wrongly"),
        ("num_entries", 0, 3, "more entries"),
        ("num_entries", 0, -1, "more entries"),
        ("depth", 0, -1, "depth or prefix"),
        ("scored_from", 0, 7, "depth or prefix"),
    ],
)
def test_read_refuses_a_broken_beam(array, place, value, message):
    state = open_state()
    getattr(state.beams, array)[place] = value
    with pytest.raises(RuntimeError, match=message):
        state.begin(StepPlan(ints([0]), 9, 9))


@pytest.mark.parametrize("node", [-1, 10**6])
def test_read_refuses_a_node_that_is_not_there(node):
    state = open_state()
    state.tree.row_node[0, 1] = node
    with pytest.raises(RuntimeError, match="node is out of range"):
        state.begin(StepPlan(ints([0]), 9, 9))


def test_read_refuses_more_than_there_is_room_for():
    state = open_state()
    state.begin(StepPlan(ints([0, 1]), 2, 9))  # the second is empty
    with pytest.raises(RuntimeError, match="more rows or entries than there is room for"):
        state.begin(StepPlan(ints([0]), 1, 9))


@pytest.mark.parametrize("program", ["reference", "native"])
def test_what_is_left_of_the_room_is_padding(program):
    state = open_state(program)
    rows = state.begin(StepPlan(ints([1, 0, 1]), 4, 9)).rows
    moving = SelectInputs(*state.program.inputs())
    assert rows.offset.tolist() == moving.offset.tolist() == [0, 0, 2, 2]
    assert rows.token.tolist() == [5, 6, 0, 0]
    assert rows.cell.tolist()[2:] == [-1, -1]
    for field in (rows.position, rows.row_slot, rows.entry, rows.node):
        assert field.tolist()[2:] == [0, 0]
    assert moving.score.numel() == moving.is_ended.numel() == 3 * 2
    assert not moving.is_ended.any()


@pytest.mark.parametrize("program", ["reference", "native"])
def test_an_empty_slot_stays_as_it_is(program):
    state = open_state(program)
    nothing = dict(token=[-1, -1], parent=[-1, -1], count=0, num_finished=0)
    before = in_use(state)
    source, target = commit(state, [1, 1, 2], survivors(3, **nothing))
    assert in_use(state) == before
    assert source.tolist() == target.tolist() == [-1] * 6


@pytest.mark.parametrize("slots", [[3], [-1], [1, 3]])
def test_slots_that_are_not_there(slots):
    state = open_state()
    algorithm, before = pybeam.variable_beam(2, max_length=9), in_use(state)
    calls = [
        lambda: state.open(beams(slots, algorithm), START),
        lambda: state.begin(StepPlan(ints(slots), 9, 9)),
        lambda: state.close(slots),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="`slot` is out of range"):
            call()
        assert in_use(state) == before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ints", lambda t: t[:, :-1]),
        ("ints", lambda t: t.long()),
        ("floats", lambda t: t.double()),
        ("prefix", lambda t: t[:-1]),
        ("score", lambda t: t[:-1]),
        ("is_alive", lambda t: t.int()),
        ("is_alive", lambda t: t[:, :-1]),
        ("ended_length", lambda t: t.T.contiguous().T),
        ("eos_log_prob", lambda t: t[:, :-1]),
        ("finished_ints", lambda t: t[..., :-1]),
        ("finished_floats", lambda t: t[:, :-1]),
    ],
)
def test_arrays_of_the_wrong_form(name, change):
    state = open_state()
    broken = {name: change(getattr(state.beams, name))}
    state.beams = state.beams._replace(**broken)
    calls = [
        lambda: state.open(beams([1], pybeam.variable_beam(2, max_length=9)), START),
        lambda: state.begin(StepPlan(ints([0]), 9, 9)),
        lambda: commit(state, [0], survivors()),
        lambda: state.close([0]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="must"):
            call()


def test_lists_of_the_wrong_length():
    state = open_state()
    make, active = backends.load("native").beam_program, ActiveRules()
    tree, beams, rules = tuple(state.tree.arrays), tuple(state.beams), state.rules
    for arrays in ((tree[:-1], beams), (tree, beams[:-1]), ((), ())):
        with pytest.raises(ValueError, match=r"must have \d+ arrays"):
            make(*arrays, rules, active)
    with pytest.raises(ValueError, match="`finishing` must be 0 to 3"):
        make(tree, beams, rules._replace(finishing=4), active)
    with pytest.raises(ValueError, match=r"`survivors` must have \d+ arrays"):
        state.program.take(ints([0]), survivors()[:-1])


def test_columns_are_read_and_written_by_name():
    beams = Beams.empty(CPU).reserved(2, 3, prefix=1)
    beams.depth[1] = 4
    beams.finished_score[1, 2] = 0.5
    assert beams.ints[1].tolist() == [4 * (name == "depth") for name in INT_COLUMNS]
    assert beams.finished_floats[1, 2].tolist() == [0.5, 0.0, 0.0]
    with pytest.raises(AttributeError, match="deepness"):
        _ = beams.deepness
