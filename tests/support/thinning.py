"""Choose the cases of a test with many parameters that `make test` runs; `make test-all` runs all.

    @pytest.mark.thinned()              # every value of every parameter is in one case at least
    @pytest.mark.thinned(together=2)    # and so is every pair of values of two parameters
    @pytest.mark.thinned(most=5)        # five cases, for a law that is tested elsewhere too

The choice hangs on the names of the cases alone, so it is the same in every run and every process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations
from zlib import crc32

import pytest


def mark_the_rest_slow(items: Iterable[pytest.Item]) -> None:
    """Mark the cases slow that `make test` leaves out. Cases that are slow already do not count."""
    cases = defaultdict(list)
    for item in items:
        is_thinned = item.get_closest_marker("thinned") and hasattr(item, "callspec")
        if is_thinned and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for of_one_test in cases.values():
        seen: set[tuple] = set()
        for place, case in enumerate(sorted(of_one_test, key=_rank)):
            new = set(_tuples(case)) - seen
            seen |= new
            if not new or place >= _most(case):
                case.add_marker("slow")


def _most(case: pytest.Item) -> float:
    return case.get_closest_marker("thinned").kwargs.get("most", float("inf"))


def _rank(case: pytest.Item) -> tuple:
    """In an order that looks random; what the reference computes comes last, as it takes longest."""
    is_reference = case.callspec.params.get("backend") == "reference"
    return is_reference, crc32(case.name.encode())


def _tuples(case: pytest.Item) -> Iterator[tuple]:
    """Yield every choice of `together` parameters with their values."""
    together = case.get_closest_marker("thinned").kwargs.get("together", 1)
    # all cases share their values, which need not be hashable
    values = sorted((name, id(value)) for name, value in case.callspec.params.items())
    return combinations(values, min(together, len(values)))
