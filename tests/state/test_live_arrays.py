"""The arrays of live sources: which of two kinds of trees they have, and what of a path is kept."""

from __future__ import annotations

import torch

import pybeam
from pybeam import backends
from pybeam.state.beam_state import BeamState
from pybeam.state.draft_state import DraftState
from pybeam.state.new_beam import NewBeam
from pybeam.state.report import FinishedHypothesis
from pybeam.state.step import StepPlan
from support.beam_arrays import CPU, EOS, START, VOCAB, ints


def drafting(block: int, backend: str = "reference") -> DraftState:
    """A state of sources that guess, with room for 9 tokens in each of two slots."""
    algorithm = pybeam.gauss_seidel_jacobi(block, max_length=6)
    state = DraftState(algorithm, (EOS,), backends.load(backend), CPU, vocab_size=VOCAB)
    state.reserve(2, block, 9)
    return state


def test_wide_beams_have_paths_and_guesses_have_masks():
    """However many guesses there are: masks are how they are written."""
    beams = BeamState(pybeam.fixed_beam(40), (EOS,), backends.load("reference"), CPU)
    beams.reserve(2, 40, 9)
    assert beams.tree.has_paths
    assert not drafting(40).tree.has_paths


def test_tokens_of_a_path_that_has_stopped_are_kept(backend):
    """Until its slot is closed, as the host may read late. The tree no longer counts the last ones."""
    state = drafting(2, backend)
    state.tree.reserve_pages(9)
    algorithm = state.algorithm
    state.open([NewBeam(slot=1, algorithm=algorithm, source_length=1)], START)
    tokens, slot = [3, 4, 5, 6, 7, 8], ints([1])
    while state.beams.num_rows[1]:
        step = state.begin(StepPlan(slot, int(state.beams.num_rows[1]), 9))
        chosen = torch.tensor([tokens[position] for position in step.rows.position.tolist()])
        step.choose(torch.eye(VOCAB)[chosen])
        step.commit(slot)
    assert state.tree.num_nodes[1] <= len(tokens)
    # as the next step of others does
    state.forget()
    numbers = state.finished([1], [1], 9, wants_log_probs=False)
    [found] = FinishedHypothesis.parse(numbers.numpy(), 9)
    assert found.tokens == tokens
