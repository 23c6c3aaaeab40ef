"""How many steps on a GPU go by between two reports to the host."""

from __future__ import annotations

from typing import NamedTuple

from pybeam.arguments import whole
from pybeam.models.base import Model

# steps, and the fewest sources, by the parameters of a model at most; measured on an H200
BY_SIZE = (50_000_000, 4, 4), (500_000_000, 2, 16)
MOST_STEPS = 64


class ReportSteps(NamedTuple):
    """So many steps between two reports, while so many sources are decoded; else each step has one."""

    steps: int
    least_sources: int


def report_steps(steps: int | None, model: Model) -> ReportSteps:
    """Return what a caller asks for; None: what suits the model.

    To read a report, to close sources and to open others takes a host as long as some steps of a small model
    take a GPU. Sources that are done wait meanwhile, so few sources and large models have a report each step.
    """
    if steps is not None:
        most = MOST_STEPS if model.device.type == "cuda" else 1
        whole("reports_every", steps, 1, most, remedy="a CPU has no steps without the host")
        return ReportSteps(steps, 0)
    size = model.num_parameters
    chosen = [] if size is None else [own for most, *own in BY_SIZE if size <= most]
    return ReportSteps(*chosen[0]) if chosen else ReportSteps(1, 0)
