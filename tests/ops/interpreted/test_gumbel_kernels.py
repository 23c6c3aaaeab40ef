"""The kernels of stochastic beams, beside the processor that defines them."""

from __future__ import annotations

import math

import pytest
import torch

from pybeam.backends import load
from pybeam.contracts import Survivors
from pybeam.processors import gumbel
from pybeam.processors.chain import restore_log_probs
from pybeam.triton_kernels.logits import gumbel as kernels
from support.processor_rows import rows_of

HISTORIES = [[0], [0, 3], [0, 3, 2, 4], [0, 1], [0, 2, 2, 2, 2]]


def step(num_columns: int, device: torch.device):
    """Rows of 5 sources and a padding, one of them in its prefix, and what a step reads of them."""
    torch.manual_seed(num_columns)
    rows = rows_of(HISTORIES, [0, 0, 2, 3, 1])
    num_slots, num_nodes = rows.tree.token.shape
    rows.tree.log_prob.copy_(-torch.rand(num_slots, num_nodes))
    rows.tree.log_prob[4, 1] = -math.inf
    rows.beam_score = torch.randn(num_slots, 1)
    seed = torch.randint(2**62, (len(rows.token),))
    hashes = torch.randint(-(2**62), 2**62, (num_slots, num_nodes))
    totals = -torch.rand(num_slots, num_nodes)
    log_probs = torch.randn(len(rows.token), num_columns).log_softmax(1)
    log_probs[1, 0] = log_probs[2, -1] = -math.inf
    log_probs[4] = -math.inf
    return rows, log_probs, seed, hashes, totals


@pytest.mark.parametrize("num_columns", [1, 7, 1024, 2500])
def test_perturb(device, num_columns):
    rows, log_probs, seed, hashes, totals = step(num_columns, device)
    state = hashes.clone(), totals.clone()
    expected = gumbel()(log_probs, rows, (seed, *state))
    tree = rows.tree
    given = (log_probs, seed, hashes, totals, tree.parent, tree.log_prob, rows.prefix_length)
    places = rows.beam_score, rows.row_slot, rows.entry, rows.node, rows.token, rows.position
    moved = [t.to(device) for t in (*given, *places)]
    actual = kernels.perturb(*moved).cpu()
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    # the padding writes to a slot that nobody reads
    assert torch.equal(moved[2][1:].cpu(), state[0][1:])
    assert torch.equal(moved[3][1:].cpu(), state[1][1:])


def test_a_row_with_nan_has_nothing_else(device):
    rows, log_probs, seed, hashes, totals = step(9, device)
    log_probs[2] = math.nan
    tree = rows.tree
    given = (log_probs, seed, hashes, totals, tree.parent, tree.log_prob, rows.prefix_length)
    places = rows.beam_score, rows.row_slot, rows.entry, rows.node, rows.token, rows.position
    actual = kernels.perturb(*(t.to(device) for t in (*given, *places))).cpu()
    assert actual[2].isnan().all()
    assert not actual[[0, 1, 3, 4]].isnan().any()


def test_restore(device):
    torch.manual_seed(0)
    num_sources, width, places = 4, 6, 9
    is_alive = torch.rand(num_sources + 1, width) < 0.6
    is_alive[0] = False
    counts = is_alive[1:].sum(1)
    num_rows = int(counts.sum())
    rows = rows_of([[0, 1]] * num_rows)
    rows.slot = torch.arange(1, num_sources + 1).int()
    rows.offset = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    slot, entry = is_alive.nonzero().int().unbind(1)
    # and the padding
    rows.row_slot, rows.entry = (torch.nn.functional.pad(t, (0, 1)) for t in (slot, entry))
    rows.prefix_length = torch.tensor([0, 1, 3, 0, 1], dtype=torch.int32)
    log_probs = torch.randn(num_rows + 1, 11)
    parent = torch.randint(-1, width, (num_sources, places)).int()
    token = torch.randint(-1, 11, (num_sources, places)).int()
    score = torch.randn(2, num_sources, places)
    count = torch.full((num_sources,), places, dtype=torch.int32)
    chosen = Survivors(token, parent, score[0], score[1], count, count, count > 0)
    expected = restore_log_probs(load("reference"), chosen, rows, is_alive, log_probs)
    given = chosen.log_prob, parent, token, log_probs, is_alive, rows.prefix_length
    places_of = rows.slot, rows.offset, rows.position
    actual = kernels.restore_log_probs(*(t.to(device) for t in (*given, *places_of)))
    assert torch.equal(actual.cpu(), expected.log_prob)
    assert not torch.equal(actual.cpu(), chosen.log_prob)
