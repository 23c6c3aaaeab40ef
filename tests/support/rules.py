"""Rules of `pybeam.rule`, beside the same rules in plain Python."""

from __future__ import annotations

import numpy as np

import pybeam
from support.ruled_search import Facts, PlainRule

F = np.float32


@pybeam.rule
def sibling(candidates, beam, penalty=0.3, margin=4.0):
    """The penalty of Li and Jurafsky 2016, and a threshold below the best finished hypothesis."""
    candidates.score -= penalty * candidates.sibling_rank
    candidates.keep &= candidates.score > beam.best_finished - margin


def plain_sibling(facts: Facts):
    score = F(facts.score - F(0.3) * F(facts.sibling_rank))
    score = facts.score if facts.is_held else score
    return score if score > F(facts.best_finished) - F(4.0) else None


def late(candidates, beam, least=2):
    """A hypothesis may finish behind `least` tokens, and an odd entry does not go on with an odd token."""
    candidates.finishes &= beam.num_generated >= least
    candidates.goes_on &= (candidates.entry % 2 == 0) | (candidates.log_prob > -2.0)


def plain_late(facts: list[Facts], finishes: set[int], goes_on: set[int]):
    finishes = {i for i in finishes if facts[i].num_generated >= 2}
    return finishes, {i for i in goes_on if facts[i].parent % 2 == 0 or facts[i].log_prob > -2}


def enough(beam):
    """Two have finished, and the best row is a nat below."""
    return (beam.num_finished >= 2) & (beam.score.amax(1, keepdim=True) < beam.best_finished - 1)


def plain_enough(search, beam, n) -> bool:
    best = max((row.score for row in beam if not row.ended), default=-np.inf)
    return len(search.finished) >= 2 and best < F(search.best_finished) - F(1)


RULES = {
    "score": (sibling, PlainRule(plain_sibling)),
    "score of few": (pybeam.rule(sibling.score, siblings=2), PlainRule(plain_sibling, siblings=2)),
    "finish": (pybeam.rule(finish=late), PlainRule(finish=plain_late)),
    "stop": (pybeam.rule(stop=enough), PlainRule(stop=plain_enough)),
    "all": (
        pybeam.rule(sibling.score, finish=late, stop=enough),
        PlainRule(plain_sibling, plain_late, plain_enough),
    ),
}
