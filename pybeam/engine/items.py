"""Say what a result knows of the catalogue that was searched."""

from __future__ import annotations

from pybeam.engine.source import Source
from pybeam.processors.items import AllowedItems
from pybeam.request import Result
from pybeam.search.algorithms import Algorithm


def catalogue_rule(algorithm: Algorithm) -> AllowedItems | None:
    """The catalogue that an algorithm searches, with the filter; None: it searches all outputs."""
    found = (p for p in algorithm.processors if isinstance(p, AllowedItems))
    return next(found, None)


def has_all_items(source: Source, result: Result) -> bool:
    """Whether the hypotheses of a result are all that the catalogue of its source allows."""
    rule = catalogue_rule(source.algorithm)
    if rule is None or result.error is not None or source.target:
        return False
    different = {tuple(h.tokens) for h in result.hypotheses}
    return len(different) == rule.chosen.num_sequences
