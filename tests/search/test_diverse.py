"""Diverse beam search against groups that go in lock-step, in plain Python."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np
import pytest

import pybeam
from pybeam import processors, scoring
from support import processor_oracles as oracles
from support.laws import SOURCES, decoded
from support.search_models import EOS, next_logits, random_model
from support.search_oracles import Found

V, LENGTH = 9, 10
POWER = scoring.power(0.7)
GROUPS, GUMBEL = pybeam.diverse(pybeam.greedy(), 2, 1), processors.gumbel(3)


@dataclass
class Group:
    """A beam of fairseq's rule, one step at a time."""

    width: int
    rows: list[Found] = field(default_factory=lambda: [Found([], np.float32(0), 0, False)])
    finished: list[Found] = field(default_factory=list)

    def step(self, log_probs, length: int) -> list[int]:
        """Returns the tokens of the rows that go on."""
        candidates = []
        for parent, row in enumerate(self.rows):
            for token, log_prob in enumerate(log_probs(row.tokens)):
                if log_prob > -math.inf:
                    score = np.float32(row.score + np.float32(log_prob))
                    candidates.append((score, parent, -log_prob, token, row))
        candidates.sort(key=lambda c: (-c[0], c[1], c[2], c[3]))
        candidates = candidates[: 2 * self.width]
        for score, _, _, token, row in candidates[: self.width]:
            if token == EOS and len(self.finished) < self.width:
                self.finished.append(Found(row.tokens, score, length, True))
        going_on = [c for c in candidates if c[3] != EOS][: self.width]
        self.rows = [Found([*c[4].tokens, c[3]], c[0], length, False) for c in going_on]
        chosen = [c[3] for c in going_on]
        if len(self.finished) == self.width:
            self.rows = []
        elif length == LENGTH:
            self.finished += self.rows
            self.rows = []
        return chosen


def lock_step(model, source: int, widths, penalty: float, prefix=(), banned=()):
    """Vijayakumar et al. 2016 as transformers did it: all groups take a step, one after another."""
    groups = [Group(width) for width in widths]
    for length in range(1, LENGTH + 1):
        chosen: list[int] = []
        for group in groups:

            def log_probs(tokens, chosen=tuple(chosen)):
                x = next_logits(model, source, [*prefix, *tokens]).double().tolist()
                x = oracles.suppress_tokens(oracles.log_softmax(x), [], 0, banned)
                return [v - penalty * chosen.count(i) for i, v in enumerate(x)]

            if group.rows:
                chosen += group.step(log_probs, length)
    best = []
    for group in groups:
        found = [(POWER.final_score(float(f.score), f.length, 1), f) for f in group.finished]
        best += sorted(found, key=lambda pair: -pair[0])[: group.width]
    return sorted(best, key=lambda pair: -pair[0])


@pytest.mark.thinned(most=1)
def test_groups_in_lock_step(backend):
    for seed, (width, num_groups, penalty) in enumerate(
        [(1, 4, 0.7), (2, 3, 1.3), (3, 2, 5.0), (2, 2, 0.2)] * 2
    ):
        model = random_model(seed, V, eos_bonus=0.5 * (seed % 4))
        inner = pybeam.fixed_beam(
            width,
            n_best=width,
            max_length=LENGTH,
            scoring=POWER,
            processors=[processors.suppress_tokens([6], stage="log_probs")],
        )
        algorithm = pybeam.diverse(inner, num_groups, penalty)
        other = [pybeam.diversity.penalty(2.5)]
        requests = [
            pybeam.Request([1], prefix=[5, 5, 2][: i % 4], processors=other if i == 3 else None)
            for i in range(5)
        ]
        results = decoded(model, algorithm, pybeam.Fifo(2), backend, requests)
        for i, (request, result) in enumerate(zip(requests, results, strict=True)):
            own = 2.5 if i == 3 else penalty
            expected = lock_step(model, i, [width] * num_groups, own, request.prefix, [6])
            assert [h.tokens for h in result.hypotheses] == [
                [*request.prefix, *found.tokens] for _, found in expected
            ]
            assert [h.final_score for h in result.hypotheses] == pytest.approx(
                [final for final, _ in expected], abs=1e-4
            )
            assert result.stop_reason == "groups"


INNER = {
    "fixed": pybeam.fixed_beam(2, n_best=2, max_length=LENGTH),
    "variable": pybeam.variable_beam(3, 2.0, n_best=2, max_length=LENGTH),
    "huggingface": pybeam.compat.huggingface.beam_search(
        2, length_penalty=0.5, num_return_sequences=2, max_new_tokens=LENGTH
    ),
    "top finished": pybeam.shrinking_beam(
        3, max_length=LENGTH, stop=pybeam.stopping.top_finished()
    ),
}


@pytest.mark.parametrize("name", INNER)
def test_the_first_group_is_the_search_without_groups(name):
    model, inner = random_model(3, V, eos_bonus=0.5), INNER[name]
    alone = pybeam.Decoder(model, inner).decode(SOURCES)
    found = pybeam.Decoder(model, pybeam.diverse(inner, 3, 0.8)).decode(SOURCES)
    for one, all_groups in zip(alone, found, strict=True):
        assert len(all_groups.hypotheses) > len(one.hypotheses)
        outputs = [h.tokens for h in all_groups.hypotheses]
        assert all(h.tokens in outputs for h in one.hypotheses)
        assert all_groups.expansions > one.expansions > 0
        assert all_groups.steps >= one.steps + 2  # of the two other groups at least one each


def test_a_large_penalty_makes_groups_differ():
    model = random_model(4, V)
    algorithm = pybeam.diverse(pybeam.greedy(max_length=LENGTH), 4, 100)
    for result in pybeam.Decoder(model, algorithm).decode(SOURCES):
        lines = [h.tokens for h in result.hypotheses]
        for place in range(LENGTH):
            tokens = [line[place] for line in lines if len(line) > place]
            assert len(tokens) == len(set(tokens))


def test_requests_end_alone_and_can_be_scored():
    """Empty sources, bad ones and broken ones; a target is scored as without groups."""
    model = random_model(4, V)
    inner = pybeam.fixed_beam(2, max_length=LENGTH)

    def broken(logits, rows):
        return logits.masked_fill(
            (rows.prefix_length[rows.row_slot.long()] == 3)[:, None], math.nan
        )

    broken_inner = pybeam.fixed_beam(2, max_length=LENGTH, processors=[broken])
    decoder = pybeam.Decoder(model, pybeam.diverse(broken_inner, 3, 0.5))
    requests = [[1], [], pybeam.Request([1], prefix=[99]), pybeam.Request([1], prefix=[2, 2, 2])]
    results = decoder.decode(requests, on_error="return")
    reasons = [result.stop_reason for result in results]
    assert reasons == ["groups", "empty_source", "error", "error"]
    assert decoder.stats.sources == 4
    decoder, plain = (pybeam.Decoder(model, a) for a in (pybeam.diverse(inner, 3, 0.5), inner))
    scored = [d.score([[1]], [[3, 4]])[0] for d in (decoder, plain)]
    assert [result.stop_reason for result in scored] == ["target"] * 2
    scores = [result.hypotheses[0].score for result in scored]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: pybeam.diverse(3, 2, 1.0), TypeError, "`algorithm` must be one such as fixed"),
        (
            lambda: pybeam.diverse(pybeam.greedy(), 1, 1.0),
            ValueError,
            "`num_groups` must be 2 to 4096",
        ),
        (lambda: pybeam.diverse(pybeam.greedy(), 2.0, 1.0), TypeError, "`num_groups` must be an i"),
        (lambda: pybeam.diverse(pybeam.greedy(), 2, 0), ValueError, "`diversity_penalty` must be"),
        (
            lambda: pybeam.diverse(pybeam.diverse(pybeam.greedy(), 2, 1), 2, 1),
            ValueError,
            "an algorithm without groups",
        ),
        (
            lambda: pybeam.diverse(pybeam.stochastic_beam(3), 2, 1),
            ValueError,
            r"must have Gumbel\(seed=0\) last",
        ),
        (
            lambda: dataclasses.replace(GROUPS, processors=(*GROUPS.processors, GUMBEL)),
            ValueError,
            r"must have Diversity or Sample last .* in 2 groups.* but Gumbel\(seed=3\) is the last",
        ),
        (
            lambda: dataclasses.replace(GROUPS, processors=()),
            ValueError,
            "must have Diversity or Sample last .* in 2 groups.* but None is the last",
        ),
        (
            lambda: pybeam.Decoder(random_model(1), pybeam.diverse(pybeam.greedy(), 2, 1)).stream(
                [[1]], partial=True
            ),
            ValueError,
            "`partial` needs one beam per request, but the algorithm has 2 groups",
        ),
        (
            lambda: pybeam.Decoder(
                random_model(1), pybeam.diverse(pybeam.greedy(), 2, 1)
            ).alternatives([[1]]),
            ValueError,
            "`alternatives` ranks tokens by their probabilities",
        ),
    ],
)
def test_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()
