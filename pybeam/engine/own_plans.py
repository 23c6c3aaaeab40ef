"""Plans of one's own (`Schedule.plan` of a subclass): masks are checked, and no plan starves all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pybeam.backends.arrays import NO_LIMIT, RUNNING, PlanRules
from pybeam.backends.torch_plan import Choose, chosen
from pybeam.state.report import column

REASON, NUM_ROWS = column("reason"), column("num_rows")
OwnPlan = Callable[[Tensor, Tensor, Tensor, int | None], object]


def checked(own: OwnPlan, owner: object, limit: int | None) -> Choose:
    """A plan for sources that have rows. The limit holds whatever it says."""
    room = PlanRules(False, 0, NO_LIMIT if limit is None else limit, NO_LIMIT)

    def plan(depth: Tensor, num_rows: Tensor, waited: Tensor) -> Tensor:
        moves = own(depth, num_rows, waited, limit)
        if not isinstance(moves, Tensor):
            raise TypeError(f"`plan` must return a tensor, but that of {owner!r} gave {moves!r}")
        expected, given = (
            f"{one.dtype} {list(one.shape)} on {one.device}" for one in (depth.bool(), moves)
        )
        if given != expected:
            raise ValueError(
                f"`plan` must return {expected}, a mask of the sources, but that of {owner!r} "
                f"returned {given}"
            )
        return chosen(depth, torch.where(moves, num_rows, 0), waited, room)

    return plan


def starved(owner: object, slots: Sequence[int], numbers: list[int]) -> dict[int, Exception]:
    """The errors, by slot, of sources that could have moved in a step in which no source has moved.

    `numbers` are those of its report on `slots`.
    """
    columns = slots, numbers[REASON], numbers[NUM_ROWS]
    can = [slot for slot, reason, rows in zip(*columns, strict=True) if reason == RUNNING and rows]
    error = ValueError(
        f"`plan` must move a source in each step, but that of {owner!r} moved none of {len(can)} that "
        "have rows; use `waited` or `max_wait` to let all move after a while"
    )
    return dict.fromkeys(can, error)
