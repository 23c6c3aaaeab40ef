"""`from_function`: a function of somebody's own as a processor, with a stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pybeam.models.rows import Rows
from pybeam.processors.base import Processor, Stage, check_stage


@dataclass(frozen=True)
class Function(Processor):
    function: Callable[[Tensor, Rows], Tensor]
    stage: Stage = "logits"
    can_capture: bool = False

    def __post_init__(self) -> None:
        check_stage(self.stage)
        if not callable(self.function):
            raise TypeError(f"`function` must be a function, but is {self.function!r}")

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        return self.function(logits, rows)


def from_function(
    function: Callable[[Tensor, Rows], Tensor],
    *,
    stage: Stage = "logits",
    can_capture: bool = False,
) -> Function:
    """Make a processor from a function of your own, with a stage.

    Args:
        function: maps (logits [R, V] float32, rows) to logits [R, V]; it may overwrite its arguments.
        stage: "log_probs" for log-probabilities in place of logits.
        can_capture: whether a CUDA graph may hold the function. It must read nothing back from the device,
            and no size in it may depend on data. False: steps are not captured.

    Raises:
        TypeError: `function` is no function.
        ValueError: `stage` is no stage.
    """
    return Function(function, stage, can_capture)
