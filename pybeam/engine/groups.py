"""Diverse beam search: groups of beams of one request, each of which avoids what earlier ones chose.

A group depends, at each step, on what the groups before it chose at that step, and on nothing of the groups
behind it. So groups need not go side by side: each is an ordinary search that begins when the one before
has ended, with what those before it chose as a parameter of the `Diversity` processor. The results are
those of groups in lock-step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from pybeam.backends.transfer import HostCopy
from pybeam.engine.source import Source
from pybeam.processors.diversity import Diversity
from pybeam.request import Result
from pybeam.state.beam_state import BeamState
from pybeam.state.new_beam import NO_SLOT


def choices_of(state: BeamState, sources: Sequence[Source], capacity: int) -> HostCopy | None:
    """The tokens that groups of these sources chose, on their way to the host; None if none has groups.

    `capacity` is at least the tokens of any row, start token included.
    """
    if all(source.algorithm.num_groups == 1 for source in sources):
        return None
    width = max(source.algorithm.width for source in sources)
    slots = [source.slot for source in sources]
    return HostCopy(state.choices(slots, 1 + width * (capacity - 1)))


def next_group(source: Source, result: Result, choices: np.ndarray) -> Result | Source:
    """The source, changed for its next group; after the last group the result of all of them.

    Args:
        source: one whose group has just ended.
        result: of that group.
        choices: what `BeamState.choices` says of it.
    """
    algorithm = source.algorithm
    if algorithm.num_groups == 1:
        return result  # a given output, which has none
    source.groups.append(result)
    if result.error is not None or len(source.groups) == algorithm.num_groups:
        return _joined(source.groups)
    *others, diversity = algorithm.processors
    assert isinstance(diversity, Diversity)
    earlier = [list(step) for step in diversity.chosen]
    for i, tokens in enumerate(_by_step(choices, len(source.prefix))):
        if i == len(earlier):
            earlier.append([])
        earlier[i] += tokens
    diversity = dataclasses.replace(diversity, chosen=tuple(map(tuple, earlier)))
    source.algorithm = dataclasses.replace(algorithm, processors=(*others, diversity))
    source.slot = NO_SLOT
    return source


def _by_step(choices: np.ndarray, prefix_length: int) -> list[list[int]]:
    """The tokens of the rows that went on after each step behind the prefix."""
    num_nodes = int(choices[0])
    tokens, parents = choices[1:].reshape(2, -1)[:, :num_nodes].tolist()
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[parent] + 1)
    steps: list[list[int]] = [[] for _ in range(max(depth[-1] - prefix_length, 0))]
    for token, place in zip(tokens, depth, strict=True):
        if place > prefix_length:
            steps[place - prefix_length - 1].append(token)
    return steps


def _joined(results: list[Result]) -> Result:
    last = results[-1]
    hypotheses = [] if last.error else [h for result in results for h in result.hypotheses]
    return dataclasses.replace(
        last,
        # stable: ties in the order of groups
        hypotheses=sorted(hypotheses, key=lambda hypothesis: -hypothesis.final_score),
        stop_reason="error" if last.error else "groups",
        steps=sum(result.steps for result in results),
        expansions=sum(result.expansions for result in results),
    )
