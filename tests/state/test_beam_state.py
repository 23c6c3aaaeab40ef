"""Native beams against the plain torch program: every array bit for bit, over whole random searches."""

from __future__ import annotations

from operator import is_

import pytest

import pybeam
from pybeam import backends
from pybeam.backends.arrays import resized
from pybeam.processors import chain
from pybeam.state.beam_state import BeamState
from support.beam_arrays import CPU, in_use
from support.random_searches import ALGORITHMS, LENGTH, NUM_SLOTS, Searches


@pytest.fixture(scope="module", autouse=True)
def native():
    return pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("num_seeds", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("targets", [True, False])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_programs_do_the_same(name, targets, num_seeds):
    reasons = set()
    for seed in range(num_seeds):
        searches = Searches(ALGORITHMS[name], seed, targets=targets)
        for _ in range(40 if searches.algorithm.max_width < 70 else 14):
            searches.open()
            for act in (searches.step, searches.close):
                act()
                searches.check()
        reasons |= searches.reasons
    if num_seeds == 1:
        # not everything happens in one search
        return
    stop = searches.algorithm.stop
    if stop == pybeam.stopping.count():
        assert {"error", "empty_beam"} <= reasons
        # fairseq's processor forces EOS in the last step, so every hypothesis finishes there
        assert ("max_length" in reasons) == (name != "fairseq")
        assert searches.algorithm.max_width == 70 or reasons & {"width", "n_best"}
    assert not stop.top or "top_finished" in reasons
    proof = ("", "optimal", "heuristic")[stop.certificate]
    assert not proof or proof in reasons


def test_what_could_not_grow_is_as_before(monkeypatch):
    """Arrays that have grown, too, as they must all agree."""
    state = Searches(ALGORITHMS["held"], seed=9).states[0]
    before = state.buffers()

    def refuse(*sizes):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(state.processors, "reserve", refuse)
        state.reserve(NUM_SLOTS + 9, 70, LENGTH + 9)
    assert len(before) == len(state.buffers()) and all(map(is_, before, state.buffers()))
    state.reserve(NUM_SLOTS + 9, 70, LENGTH + 9)
    assert not any(map(is_, before[:3], state.buffers()))


def test_what_processors_could_not_grow_is_as_before(monkeypatch):
    """Wherever memory ends: a kernel takes an array of a processor and one of the tree to have one shape."""
    algorithm = pybeam.stochastic_beam(2, max_length=LENGTH)
    state = BeamState(algorithm, (1,), backends.load("reference"), CPU)
    state.reserve(2, 2, LENGTH)
    before, num_left = state.buffers(), 0

    def scarce(*given):
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise MemoryError
        return resized(*given)

    monkeypatch.setattr(chain, "resized", scarce)
    # a seed, a hash and a total, then prompts
    for most in range(4):
        num_left = most
        with pytest.raises(MemoryError):
            state.reserve(9, 2, LENGTH + 9)
        assert all(map(is_, before, state.buffers()))
    num_left = 4
    state.reserve(9, 2, LENGTH + 9)
    assert not any(map(is_, before[:3], state.buffers()))


@pytest.mark.parametrize("targets", [True, False])
def test_growing_keeps_what_is_there(targets):
    searches = Searches(ALGORITHMS["held"], seed=9, targets=targets)
    for _ in range(3):
        searches.open()
        searches.step()
    before = [in_use(state) for state in searches.states]
    for state in searches.states:
        state.reserve(NUM_SLOTS + 2, 70, LENGTH + 2)  # from one word of mask to two
    searches.step()
    after = [in_use(state) for state in searches.states]
    for first, *others in (before, after):
        assert all(other == first for other in others)
