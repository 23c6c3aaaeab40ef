"""Who moves in a step, and what the host reads after it, in plain torch on any device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pybeam.backends.arrays import (
    NO_LIMIT,
    NULL_SLOT,
    NUM_REPORTED,
    RUNNING,
    Beams,
    PlanRules,
    TreeArrays,
)

# depth, rows and steps waited of each source; the mask of those that move
Choose = Callable[[Tensor, Tensor, Tensor], Tensor]


def planned(beams: Beams, slot: Tensor, rules: PlanRules | Choose) -> tuple[Tensor, Tensor]:
    """Choose who moves among slots [A], and count for the others that they have waited.

    Returns the slots [A], with `NULL_SLOT` in place of those that do not move, and their rows [A].
    """
    choose = partial(chosen, rules=rules) if isinstance(rules, PlanRules) else rules
    reason, num_rows, depth, *_, waited = (
        beams.ints[:, : NUM_REPORTED + 1].index_select(0, slot).unbind(1)
    )
    num_rows = torch.where(reason == RUNNING, num_rows, 0)
    moves = choose(depth, num_rows, waited)
    beams.waited[slot.long()] = torch.where(moves, 0, waited + 1)
    return torch.where(moves, slot, NULL_SLOT), torch.where(moves, num_rows, 0)


def chosen(depth: Tensor, num_rows: Tensor, waited: Tensor, rules: PlanRules) -> Tensor:
    """Choose the sources that move as a mask [L]; see `pybeam.engine.schedule.Schedule.plan`."""
    moves, is_late = num_rows > 0, waited >= rules.max_wait
    last = torch.iinfo(depth.dtype).max
    if rules.only_least:
        moves &= (depth == torch.where(moves, depth, last).amin()) | is_late
    if rules.most_rows == NO_LIMIT:
        return moves
    key = rules.order * depth if rules.order else -waited
    key = torch.where(is_late, torch.iinfo(key.dtype).min, key)
    order = torch.argsort(torch.where(moves, key, last), stable=True)
    fits = torch.zeros_like(moves)
    fits[order] = num_rows[order].cumsum(0) <= rules.most_rows
    return moves & fits


def beam_report(tree: TreeArrays, beams: Beams, slot: Tensor) -> Tensor:
    lines = beams.ints[:, : NUM_REPORTED + 1].index_select(0, slot)
    # it takes the place of the first column that the host does not need
    lines[:, NUM_REPORTED] = tree.num_pages.index_select(0, slot)
    return torch.cat((tree.num_free_pages, lines.view(-1)))
