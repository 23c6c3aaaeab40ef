"""Algorithms with a rule in Python, as values of the law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pybeam
from pybeam.search.algorithms import Algorithm
from support.rules import RULES

_OPTIONS: dict[str, Any] = dict(n_best=2, max_length=6)
RULED: dict[str, Callable[[], Algorithm]] = {
    "fixed_beam, ruled": lambda: pybeam.fixed_beam(3, processors=[RULES["all"][0]], **_OPTIONS),
    "variable_beam, ruled": lambda: pybeam.variable_beam(
        4, 3.0, 3, processors=[RULES["score"][0]], **_OPTIONS
    ),
}
