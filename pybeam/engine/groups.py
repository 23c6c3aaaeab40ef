"""Diverse beam search: groups of beams of one request, each of which avoids what earlier ones chose.

A group depends, at each step, on what the groups before it chose at that step, and on nothing of the groups
behind it. So groups need not go side by side: each is an ordinary search that begins when the one before
has ended, with what those before it chose as a parameter of the `Diversity` processor. The results are
those of groups in lock-step.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pybeam.engine.source import Source
from pybeam.processors.diversity import Diversity
from pybeam.request import Result


def going_on(source: Source, result: Result, choices: np.ndarray) -> Result | Source:
    """The result of all groups after the last one, else the source, changed for its next group.

    Args:
        source: one whose group has just ended.
        result: of that group.
        choices: what `BeamState.choices` says of it.
    """
    limits = source.algorithm
    if limits.num_groups == 1:
        return result  # a given output, which has none
    source.groups.append(result)
    if result.error is not None or len(source.groups) == limits.num_groups:
        return _joined(source.groups)
    *others, diversity = limits.processors
    earlier = [list(step) for step in diversity.chosen]
    for i, tokens in enumerate(_by_step(choices, len(source.prefix))):
        if i == len(earlier):
            earlier.append([])
        earlier[i] += tokens
    diversity = dataclasses.replace(diversity, chosen=tuple(map(tuple, earlier)))
    assert isinstance(diversity, Diversity)
    source.algorithm = dataclasses.replace(limits, processors=(*others, diversity))
    source.slot = -1
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
