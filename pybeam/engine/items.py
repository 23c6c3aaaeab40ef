"""Say which items of a catalogue the hypotheses of a result are."""

from __future__ import annotations

import dataclasses

from pybeam.engine.source import Source
from pybeam.processors.items import AllowedItems
from pybeam.request import Result
from pybeam.search.algorithms import Algorithm


def catalogue_rule(algorithm: Algorithm) -> AllowedItems | None:
    """The catalogue that an algorithm searches, with the filter; None: it searches all outputs."""
    found = (p for p in algorithm.processors if isinstance(p, AllowedItems))
    return next(found, None)


def with_items(source: Source, result: Result) -> Result:
    """Return the result of a source with the items of its hypotheses, if it searched a catalogue."""
    rule = catalogue_rule(source.algorithm)
    if rule is None:
        return result
    behind, catalogue = len(source.prefix), rule.catalogue
    result.hypotheses[:] = [
        dataclasses.replace(h, items=catalogue.items_of(h.tokens[behind:], rule.filter))
        for h in result.hypotheses
    ]
    return dataclasses.replace(result, has_all_items=has_all_items(source, result))


def has_all_items(source: Source, result: Result) -> bool:
    """Whether the hypotheses of a result are all that the catalogue of its source allows."""
    rule = catalogue_rule(source.algorithm)
    if rule is None or result.error is not None or source.target:
        return False
    different = {tuple(h.tokens) for h in result.hypotheses}
    return len(different) == rule.chosen.num_sequences
