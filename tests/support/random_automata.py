"""Random automata of few states, and all outputs that they allow."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from pybeam.automata.automaton import Automaton

# weights are sums of few bits, so that float32 adds them without rounding
WEIGHTS = [i / 8 for i in range(-12, 13)]
KINDS = ("sparse", "others", "failures")


def random_automaton(
    seed: int, tokens: Sequence[int], num_states: int = 5, kind: str = "sparse"
) -> Automaton:
    """An automaton that has a valid output of at most two tokens.

    With "others", tokens without an edge lead somewhere from some states. With "failures", states look
    further in smaller ones, and the first takes all tokens. Some edges forbid their tokens in these.
    """
    rng = random.Random(seed)
    source, token, target = [], [], []
    for state in range(num_states):
        for one in rng.sample(tokens, rng.randint(1, len(tokens) - 1)):
            source.append(state)
            token.append(one)
            forbids = kind != "sparse" and rng.random() < 0.2
            target.append(-1 if forbids else rng.randrange(num_states))
    is_final = [rng.random() < 0.4 for _ in range(num_states)]
    others = [rng.randrange(-1, num_states) for _ in range(num_states)]
    failure = [-1, *(rng.randrange(-1, i) for i in range(1, num_states))]
    options: dict = {}
    if kind == "others":
        options = dict(other=others, other_weight=rng.choices(WEIGHTS, k=num_states))
    if kind == "failures":
        is_final = [True] * num_states
        others = [max(o, 0) if f < 0 else -1 for o, f in zip(others, failure, strict=True)]
        options = dict(
            failure=failure, other=others, other_weight=rng.choices(WEIGHTS, k=num_states)
        )
    final = [rng.choice(WEIGHTS) if ends else -math.inf for ends in is_final]
    weight = rng.choices(WEIGHTS, k=len(source))
    automaton = Automaton.build(
        final,
        source=source,
        token=token,
        target=target,
        weight=weight,
        start=rng.randrange(num_states),
        **options,
    )
    good = automaton.shortest <= 2
    return automaton if good else random_automaton(seed + 1000, tokens, num_states, kind)


def outputs(automaton: Automaton, tokens: Sequence[int], longest: int) -> Iterator[tuple[int, ...]]:
    """All valid outputs of these tokens, of at most so many."""
    for length in range(longest + 1):
        for output in product(tokens, repeat=length):
            if automaton.score(output) > -math.inf:
                yield output


def longest_of(automaton: Automaton, tokens: Sequence[int]) -> int | None:
    """Tokens of the longest valid output; None: there is none, or no limit."""
    # an output with as many tokens as there are states has been in one of them twice
    num = automaton.num_states
    reached = [{automaton.start}]
    for _ in range(2 * num):
        steps = {automaton.step(s, v).state for s in reached[-1] for v in tokens} - {-1}
        reached.append({s for s in steps if automaton.needed[s] < np.iinfo(np.int32).max})
    ends = [
        n for n, states in enumerate(reached) if any(automaton.final[s] > -math.inf for s in states)
    ]
    return ends[-1] if ends and ends[-1] < num else None
