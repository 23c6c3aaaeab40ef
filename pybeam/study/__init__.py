"""How good a search is: the most probable output of all, searches beside one another, and what they find.

`pybeam.compare` and `pybeam.exact_search` begin here. Each name is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pybeam.study.exact import ExactResult
    from pybeam.study.metrics import Measure, Metric
    from pybeam.study.runs import Exact
    from pybeam.study.tables import Comparison, Difference, Found

_HOMES = {
    "Comparison": "tables",
    "Difference": "tables",
    "Exact": "runs",
    "ExactResult": "exact",
    "Found": "tables",
    "Measure": "metrics",
    "Metric": "metrics",
}

__all__ = ["Comparison", "Difference", "Exact", "ExactResult", "Found", "Measure", "Metric"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pybeam.study' has no attribute {name!r}")
    return getattr(import_module(f"pybeam.study.{_HOMES[name]}"), name)
