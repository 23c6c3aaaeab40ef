"""Draft and verify in Triton against the native operators: every array bit for bit, over random searches."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import pybeam
from pybeam import backends, drafts
from pybeam.scoring import CutScoring
from pybeam.search.overrides import for_target, overridden
from pybeam.state.draft_state import DraftState
from pybeam.state.new_beam import NewBeam
from pybeam.state.step import StepPlan
from support.asserts import with_own_pages
from support.beam_arrays import CPU, EOS, START, VOCAB, bits, in_use, ints
from support.invariants import check_state

pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
NUM_SLOTS, LENGTH = 4, 24


class LookupOrLast(drafts.Initialiser):
    """The token that followed the token before, or else the token before."""

    fill, ngram = "last", 1

    def guesses(self, request):
        return request.source


ALGORITHMS = {
    "jacobi": pybeam.jacobi(max_length=9),
    "jacobi, feeds all": pybeam.jacobi(max_length=9, feeds_all=True),
    "blocks": pybeam.gauss_seidel_jacobi(3, max_length=9, initialiser=drafts.repeat_last()),
    "hybrid": pybeam.hybrid_jacobi(3, 4, max_length=9, initialiser=drafts.copy_source()),
    "adaptive": pybeam.adaptive_jacobi(5, price=0.1, max_length=9, initialiser=drafts.pad()),
    "n-grams": pybeam.adaptive_jacobi(
        20, price=0.05, initialiser=drafts.ngram_lookup(2), max_length=18
    ),
    "cut": pybeam.jacobi(
        max_length=6,
        scoring=CutScoring(alpha=1.2, offset=5, scale=6),
        initialiser=LookupOrLast(),
    ),
    "ended only": pybeam.gauss_seidel_jacobi(4, max_length=6, ended_only=True),
}


class Searches:
    """Random searches in a few slots, done twice from the same outputs, which are often as guessed."""

    def __init__(self, name: str, seed: int) -> None:
        self.algorithm = ALGORITHMS[name]
        self.generator = torch.Generator().manual_seed(seed)
        eos_ids = (EOS,) if seed % 2 else (EOS, VOCAB - 1)
        self.states = [
            DraftState(self.algorithm, eos_ids, backends.load(one), CPU, vocab_size=VOCAB)
            for one in ("native", "triton")
        ]
        self.live: list[int] = []
        for state in self.states:
            state.reserve(NUM_SLOTS + 1, self.algorithm.max_rows, LENGTH)
            state.tree.reserve_pages(NUM_SLOTS * 6)

    def random(self, high: int) -> int:
        return int(torch.randint(high, (1,), generator=self.generator))

    def tokens(self, most: int) -> list[int]:
        return [3 + self.random(VOCAB - 4) for _ in range(self.random(most + 1))]

    def open(self) -> None:
        beams = []
        for slot in set(range(1, NUM_SLOTS + 1)) - set(self.live):
            prefix = self.tokens(3)
            request = pybeam.Request([1], prefix=prefix, max_length=3 + self.random(4))
            limits, target = overridden(self.algorithm, request, None, 1), []
            if self.random(4) == 0:
                request = dataclasses.replace(request, target=self.tokens(4))
                limits = for_target(self.algorithm, request, None)
                target = [*request.target, EOS]
            new = dict(slot=slot, algorithm=limits, source_length=1 + self.random(9))
            new |= dict(prefix=prefix, target=target, guesses=self.tokens(8))
            beams.append(NewBeam(**new))
            self.live.append(slot)
        for state in self.states if beams else ():
            state.open(beams, START)

    def step(self) -> None:
        """Some move; the model often says what was guessed."""
        native, ours = self.states
        slot = ints([p if self.random(4) else 0 for p in self.live] + [0] * self.random(3))
        num_rows = int(native.beams.num_rows[slot.long()].sum())
        steps = [state.begin(StepPlan(slot, num_rows, LENGTH)) for state in (native, ours)]
        rows, others = (step.rows for step in steps)
        assert bits(rows.token) == bits(others.token)
        assert bits(rows.position) == bits(others.position)
        cells = [
            with_own_pages(state.tree, step.rows.cell.tolist())
            for state, step in zip(self.states, steps, strict=True)
        ]
        assert cells[0] == cells[1]
        logits = torch.randn(num_rows, VOCAB, generator=self.generator)
        guessed = torch.cat((rows.token[1:], rows.token[:1])).long()[:, None]
        logits.scatter_add_(1, guessed, torch.full((num_rows, 1), 2.0))
        logits[torch.rand(num_rows, generator=self.generator) < 0.03] = -torch.inf
        if num_rows and self.random(9) == 0:
            logits[self.random(num_rows), 0] = torch.nan
        survivors = steps[0].survivors(logits)
        if self.random(2):
            # the fused program chooses by itself
            steps.pop(0).choose(logits)
            native.program.commit(slot)
        for step in steps:
            step._program.take(slot, survivors)
            step.commit(slot)

    def close(self) -> None:
        reasons = self.states[0].beams.reason.tolist()
        done = [p for p in self.live if reasons[p]]
        self.live = [p for p in self.live if p not in done]
        for state in self.states if done else ():
            state.close(done)

    def check(self) -> None:
        for state in self.states:
            check_state(state)
        native, ours = self.states
        assert in_use(native) == in_use(ours)
        assert bits(native.drafts.ints) == bits(ours.drafts.ints)


def search(name: str, seed: int, num_steps: int) -> None:
    searches = Searches(name, seed)
    for _ in range(num_steps):
        for act in (searches.open, searches.step, searches.close):
            act()
            searches.check()


def test_an_adaptive_window():
    search("adaptive", seed=1, num_steps=4)


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_as_the_native_operators(name, seed):
    search(name, seed, num_steps=7)
