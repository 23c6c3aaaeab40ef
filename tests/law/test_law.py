"""The covering law: every feature beside every other one, and the same laws for all of them.

Mistakes live where two features meet, and nobody thinks of all places where they do. So a machine does:
`axes.py` lists the values of each axis (algorithm, schedule, processor, model, weights, prefix, override,
output, entry, event, reading, backend), `exclusions.py` says which do not go together and why, and
`array.py` makes few cases in which every two values meet (`make test`), or every three (`make test-all`).
`laws.py` has the laws that each case obeys:

1. a source decoded alone has the result that it has in the case, to the bit where a model promises bits;
2. it is what a search in plain Python finds (`oracle.py` says where there is one);
3. partial results are never taken back, and the best output begins with them;
4. scores are sums of log-probabilities, final scores follow from them, outputs are sorted and differ;
5. nothing is left behind, and others do not notice a request that leaves, fails or is wrong.

The name of a case is the line that repeats it, one value of each axis in the order of `axes.AXES`:

    PYBEAM_LAW="greedy | Batch | none | function | float32 | ... | native" pytest tests/law -k repeated

To find out which two values matter, change the others to the plainest ones (`greedy`, `Batch`, `none`,
`function`, `float32`, `none`, `none`, `n_best`, `decode`, `none`, `at once`, `native`) while it still fails.
A new algorithm, processor, schedule or kind of model becomes a value in `axes.py`; that is all.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from functools import cache

import pytest

import pybeam
from law import axes
from law.array import CoveringArray
from law.case import Case
from law.exclusions import EXCLUSIONS, Exclusion
from law.laws import assert_laws
from pybeam import compat, drafts, models, processors
from pybeam.models.base import Model
from pybeam.models.loading import load_model
from support.public_names import names_of

NUM_SHARES = 32
PAIRS = [Case(row) for row in CoveringArray(axes.AXES, 2).rows]


@cache
def triples() -> list[Case]:
    return [Case(row) for row in CoveringArray(axes.AXES, 3).rows]


def check(case: Case) -> None:
    try:
        assert_laws(case)
    except Exception as error:
        error.add_note(f'to repeat it: PYBEAM_LAW="{case}" pytest tests/law -k repeated')
        raise


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_every_two_values(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(NUM_SHARES))
def test_every_three_values(share):
    for case in triples()[share::NUM_SHARES]:
        check(case)


def test_a_case_is_repeated():
    check(Case.parse(os.environ.get("PYBEAM_LAW", str(PAIRS[0]))))
