"""Random searches in a few slots, done by several backends at once: every array must be equal to the bit."""

from __future__ import annotations

import dataclasses

import torch

import pybeam
from pybeam import backends, compat
from pybeam.backends.arrays import STOP_REASONS
from pybeam.compat.huggingface import FullBeamStop
from pybeam.contracts import Certificate, Top
from pybeam.models.rows import Rows
from pybeam.scoring import CutScoring
from pybeam.search.algorithms import Algorithm
from pybeam.search.overrides import for_target, overridden
from pybeam.state.beam_state import BeamState
from pybeam.state.new_beam import NewBeam
from pybeam.state.report import FinishedHypothesis, Report
from pybeam.state.step import StepPlan
from pybeam.stopping import Stop
from support.asserts import with_own_pages
from support.beam_arrays import CPU, EOS, START, VOCAB, bits, in_use, ints
from support.invariants import check_state

NUM_SLOTS, LENGTH = 5, 24
EMPTY = 0  # the slot that is never opened

ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=9),
    "held": pybeam.variable_beam(5, threshold=2.5, max_candidates=3, n_best=3, max_length=9),
    "held, normalised": pybeam.variable_beam(
        4, local_threshold=0.05, max_length=9, scoring=pybeam.scoring.power(1.0)
    ),
    "refill": pybeam.fixed_beam(4, n_best=2, max_length=9),
    "shrink": pybeam.shrinking_beam(5, n_best=5, max_length=9),
    "optimal": pybeam.optimal_beam(4, 0.7, 1.3, n_best=2, max_length=9),
    "optimal, held, GNMT": pybeam.variable_beam(
        4, n_best=3, max_length=9, scoring=pybeam.scoring.gnmt(1.1), stop=pybeam.stopping.optimal()
    ),
    "optimal, shrink, negative": pybeam.shrinking_beam(
        5, max_length=9, scoring=pybeam.scoring.power(-0.5), stop=pybeam.stopping.optimal()
    ),
    "heuristic": pybeam.fixed_beam(
        3,
        max_length=9,
        scoring=pybeam.scoring.power(1.3),
        stop=FullBeamStop(certificate=Certificate.CURRENT),
    ),
    "top finished": pybeam.shrinking_beam(
        4, n_best=2, max_length=9, stop=pybeam.stopping.top_finished()
    ),
    "top finished, refill": pybeam.fixed_beam(4, max_length=9, stop=pybeam.stopping.top_finished()),
    "patient": pybeam.fixed_beam(3, n_best=2, max_length=9, stop=Stop(patience=1.7)),
    "top ever": pybeam.fixed_beam(4, n_best=3, max_length=9, stop=Stop(top=Top.EVER)),
    "ended only": pybeam.fixed_beam(3, n_best=3, max_length=9, ended_only=True),
    "ended only, the best": pybeam.variable_beam(
        3, n_best=3, max_length=9, ended_only=True, stop=pybeam.stopping.end()
    ),
    "Huang": pybeam.huang_beam(4, 0.7, 1.3, n_best=2, max_length=9),
    "to the end": pybeam.fixed_beam(3, n_best=3, max_length=9, stop=pybeam.stopping.end()),
    "cut, optimal": pybeam.fixed_beam(
        3,
        n_best=2,
        max_length=9,
        scoring=CutScoring(alpha=1.2, offset=5, scale=6),
        stop=pybeam.stopping.optimal(),
    ),
    "FireRedASR": compat.fireredasr.beam_search(4, nbest=4, decode_max_len=7, length_penalty=0.8),
    "OpenNMT": compat.opennmt.beam_search(4, n_best=2, max_length=9),
    "CTranslate2": compat.ctranslate2.beam_search(4, num_hypotheses=2, max_decoding_length=9),
    "fairseq": compat.fairseq.beam_search(3, nbest=3, max_len_a=0.5, max_len_b=4),
    "held, two words of mask": pybeam.variable_beam(70, n_best=70, max_length=6),
    "refill, two words of mask": pybeam.fixed_beam(70, max_length=6),
    "refill, by step": pybeam.fixed_beam([2, 5, 3], n_best=3, max_length=9),
    "held, by step": pybeam.variable_beam([1, 6, 2, 4], threshold=4.0, n_best=2, max_length=9),
    "held, the best, by step": pybeam.variable_beam(
        [4, 6, 2], max_length=9, scoring=pybeam.scoring.power(1.0), stop=pybeam.stopping.end()
    ),
    "optimal, by step": pybeam.optimal_beam([2, 3, 4], 0.7, 1.3, n_best=2, max_length=9),
    "shrink, two words of mask": pybeam.shrinking_beam(70, max_length=6),
}


def fields_of(rows: Rows) -> tuple:
    """All but the arrays by slot, which `in_use` compares, and the cells."""
    left_out = "beam_score", "cell"
    return tuple(value for name, value in vars(rows).items() if name not in left_out)


def assert_equal(one: tuple, other: tuple) -> None:
    """Tensors are equal bit for bit, in dtype and shape too; what is no tensor is the same."""
    for ours, theirs in zip(one, other, strict=True):
        if isinstance(ours, torch.Tensor):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert bits(ours) == bits(theirs)


class Searches:
    """Random searches in a few slots, done three times from the same logits.

    The first state is that of a backend, the others are native. The first two take survivors that the native
    `select` has chosen, and the third chooses by itself. Every second seed has one EOS, of the others there
    are several.
    """

    def __init__(
        self, algorithm: Algorithm, seed: int, *, targets: bool = True, backend: str = "reference"
    ) -> None:
        self.algorithm, self.targets = algorithm, targets
        self.generator = torch.Generator().manual_seed(seed)
        eos_ids = (EOS,) if seed % 2 else (EOS, VOCAB - 1, 0)
        self.states = [
            BeamState(algorithm, eos_ids, backends.load(name), CPU)
            for name in (backend, "native", "native")
        ]
        self.live: list[int] = []
        self.reasons: set[str] = set()
        for state in self.states:
            state.reserve(NUM_SLOTS + 1, algorithm.max_width, LENGTH)
            state.tree.reserve_pages(NUM_SLOTS * (algorithm.max_width * LENGTH // 16 + 1))

    def random(self, high: int) -> int:
        return int(torch.randint(high, (1,), generator=self.generator))

    def request(self) -> pybeam.Request:
        """Sometimes with limits of its own."""
        width, most = 1 + self.random(self.algorithm.last_width), self.algorithm.max_width
        by_step = not isinstance(self.algorithm.width, int) and self.random(2)
        early = [1 + self.random(most) for _ in range(self.random(4))] if by_step else []
        choices = dict(
            width=[*early, width] if by_step else width,
            n_best=1 + self.random(width),
            min_length=self.random(3),
            max_length=4 + self.random(6),
            prefix=[3 + self.random(VOCAB - 4) for _ in range(self.random(4))],
            max_candidates=1 + self.random(4),
            threshold=0.5 + self.random(4),
            keep_ties=bool(self.random(2)),
            ended_only=bool(self.random(2)),
        )
        chosen = {name: value for name, value in choices.items() if self.random(3) == 0}
        if "width" in chosen:
            chosen["n_best"] = choices["n_best"]
        elif "n_best" in chosen:
            chosen["n_best"] = min(choices["n_best"], self.algorithm.last_width)
        return pybeam.Request([1], **chosen)

    def limits(self, request: pybeam.Request) -> tuple[Algorithm, list[int]]:
        """Those of a search, or, sometimes, of a target."""
        if not self.targets or self.random(4):
            return overridden(self.algorithm, request, None, len(request.source)), []
        target = [3 + self.random(VOCAB - 4) for _ in range(self.random(5))]
        request = dataclasses.replace(request, target=target)
        return for_target(self.algorithm, request, None), [*target, EOS]

    def open(self) -> None:
        free = [p for p in range(1, NUM_SLOTS + 1) if p not in self.live and self.random(2)]
        if not free:
            return
        requests = [self.request() for _ in free]
        limits, targets = zip(*(self.limits(request) for request in requests), strict=True)
        beams = [
            NewBeam(
                slot=p,
                algorithm=own,
                source_length=1 + self.random(9),
                prefix=request.prefix or [],
                target=target,
            )
            for p, own, request, target in zip(free, limits, requests, targets, strict=True)
        ]
        for state in self.states:
            state.open(beams, START)
        self.live += free

    def logits(self, num_rows: int) -> torch.Tensor:
        """[R, V] with ties, tokens that cannot follow, rows without any, and a NaN now and then."""
        logits = (torch.randn(num_rows, VOCAB, generator=self.generator) * 4).round() / 2
        logits[torch.rand(num_rows, VOCAB, generator=self.generator) < 0.2] = -torch.inf
        logits[torch.rand(num_rows, generator=self.generator) < 0.08] = -torch.inf
        if num_rows and self.random(12) == 0:
            logits[self.random(num_rows), self.random(VOCAB)] = torch.nan
        return logits

    def step(self) -> None:
        moving = [p if self.random(4) else EMPTY for p in reversed(self.live)]
        slot = ints(moving + [EMPTY] * self.random(3))
        live = ints([*reversed(self.live), *[EMPTY] * (len(slot) - len(moving))])
        num_rows = int(self.states[0].beams.num_rows[slot.long()].sum()) + self.random(3)
        steps = [state.begin(StepPlan(slot, num_rows, LENGTH)) for state in self.states]
        _, given, own = steps
        inputs = [state.program.inputs() for state in self.states]
        cells = [
            with_own_pages(state.tree, step.rows.cell.tolist())
            for state, step in zip(self.states, steps, strict=True)
        ]
        assert all(own_cells == cells[0] for own_cells in cells)
        for step, own_inputs in zip(steps, inputs, strict=True):
            assert_equal(fields_of(step.rows), fields_of(given.rows))
            assert_equal(own_inputs, inputs[0])
        logits = self.logits(given.rows.token.numel())
        seen = self.states[1].processors(logits.clone(), given.rows)
        survivors = given.survivors(seen)
        for state in self.states[:2]:
            state.program.take(slot, survivors)
        own.choose(logits)
        reports = [step.commit(live) for step in steps]
        results = [(step.moves(), report) for step, report in zip(steps, reports, strict=True)]
        for state, (moves, report) in zip(self.states, results, strict=True):
            assert_equal(moves, results[0][0])
            assert_equal([report], [results[0][1]])
            assert_equal([report], [state.report(live)])

    def check(self) -> None:
        for state in self.states:
            check_state(state)
        first, *others = map(in_use, self.states)
        assert all(other == first for other in others)

    def close(self) -> None:
        reasons = self.states[0].beams.reason.tolist()
        done = [p for p in self.live if reasons[p]]
        if not done:
            return
        self.reasons |= {STOP_REASONS[reasons[p]] for p in done}
        given, *others = (state.report(ints(done)) for state in self.states)
        assert all(torch.equal(given, other) for other in others)
        report = Report.of(given.tolist(), range(len(done)))
        for wants_log_probs in (False, True):
            found = []
            for state in self.states:
                counts, capacity = report.num_finished, max(report.depth) + 1
                numbers = state.finished(done, counts, capacity, wants_log_probs=wants_log_probs)
                found.append(FinishedHypothesis.parse(numbers.numpy(), capacity))
            assert found[0] == found[1] == found[2]
            assert len(found[0]) == sum(report.num_finished)
        for state in self.states:
            state.close(done)
        self.live = [p for p in self.live if p not in done]
