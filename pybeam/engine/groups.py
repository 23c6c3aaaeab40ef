"""Searches in groups: the beams of one request, one after another, each told what earlier groups chose.

At each step, a group depends on the choices of earlier groups at that step, and never on later groups. So
groups need not run side by side. Each group is an ordinary search that begins when the group before has
ended. A processor hears of the choices (`Processor.next_group`). The results are those of groups in
lock-step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pybeam.backends.transfer import HostCopy, to_device
from pybeam.engine.source import Source
from pybeam.processors.base import Processor
from pybeam.request import Result
from pybeam.state.beam_state import BeamState
from pybeam.state.new_beam import NO_SLOT

# stop reasons of a group after which no other is searched
ENDS = ("error", "interrupted")


def choices_of(state: BeamState, sources: Sequence[Source], capacity: int) -> HostCopy:
    """The tokens that groups of these sources chose, on their way to the host.

    `capacity` is at least the tokens of any row, start token included.
    """
    width = max(source.algorithm.max_width for source in sources)
    slots = [source.slot for source in sources]
    return HostCopy(choices(state, slots, 1 + width * (capacity - 1)))


def choices(state: BeamState, slots: Sequence[int], capacity: int) -> Tensor:
    """Return [A, 1 + 2 * capacity] int32: for each slot its number of nodes, their tokens and parents.

    `capacity` is at least the number of nodes of any slot.
    """
    slot, tree = to_device(slots, torch.long, state.device), state.tree
    arrays = [
        pad(array[:, :capacity], (0, max(0, capacity - array.shape[1])))
        for array in (tree.token, tree.parent)
    ]
    return torch.cat((tree.num_nodes[slot, None], *(array[slot] for array in arrays)), 1)


def next_group(source: Source, result: Result, choices: np.ndarray) -> Result | Source:
    """Return the source, changed for its next group, or after the last group the result of all groups.

    Args:
        source: a source whose group has just ended.
        result: the result of that group.
        choices: a line of `choices`, that of the group.
    """
    algorithm = source.algorithm
    if algorithm.num_groups == 1:
        # a given output has no groups
        return result
    source.groups.append(result)
    if result.stop_reason in ENDS or len(source.groups) == algorithm.num_groups:
        joined = _joined(source.groups)
        return dataclasses.replace(joined, has_all_items=source.has_all_items(joined))
    chosen = _by_step(choices, len(source.prefix))
    processors = tuple(
        one.next_group(chosen) if isinstance(one, Processor) else one
        for one in algorithm.processors
    )
    source.algorithm = dataclasses.replace(algorithm, processors=processors)
    source.slot = NO_SLOT
    return source


def _by_step(choices: np.ndarray, prefix_length: int) -> list[list[int]]:
    """Return, for each step behind the prefix, the tokens of the rows that went on."""
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
        # stable, so that ties stay in the order of groups
        hypotheses=sorted(hypotheses, key=lambda hypothesis: -hypothesis.final_score),
        stop_reason=last.stop_reason if last.stop_reason in ENDS else "groups",
        steps=sum(result.steps for result in results),
        expansions=sum(result.expansions for result in results),
    )
