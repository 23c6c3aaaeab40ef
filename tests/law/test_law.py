"""The covering law: every feature beside every other one, and the same laws for all of them.

Mistakes live where two features meet, and nobody thinks of all places where they do. So a machine does:
`axes.py` lists the values of each axis (algorithm, schedule, processor, model, weights, prefix, override,
output, entry, event, reading, backend), `exclusions.py` says which do not go together and why, and
`array.py` makes few cases in which every two values meet (`make test-all`), and every three, but for values
that repeat the mechanism of another one. In `make test` every two values of `MEETING` meet, as do every three
of `axes.SEAMS`, and each other value is in a case at least, which is compared with the plain search.
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

import inspect
import os
from functools import cache

import pytest

import pybeam
from law import axes
from law import case as case_module
from law.array import CoveringArray
from law.case import Case
from law.exclusions import EXCLUSIONS, Exclusion
from law.laws import assert_laws
from law.models import model_of
from law.oracle import has_oracle, public_name
from pybeam import compat, drafts, models, processors
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm
from support.public_names import names_of

NUM_SHARES = 32
# what these are decides whether the oracle is asked, and whether something raises
CALM = ("output", "entry", "event")
# a case in which nothing is special
PLAINEST = dict(
    zip(
        axes.AXES,
        (
            *("fixed_beam", "Batch", "none", "function", "float32", "none", "none", "n_best"),
            *("decode", "none", "at once", "native"),
        ),
        strict=True,
    )
)
# axes whose values meet in `make test`: what happens to a request, and who is asked for it
MEETING = ("prefix", "output", "entry", "event", "reading", "backend")
EARLY = {value for axis in MEETING for value in axes.AXES[axis]}
LATE = {value for values in axes.AXES.values() for value in values} - EARLY
# where late values are for the first time: plain Python is asked, and nothing raises
PLAIN: dict[str, tuple[str, ...]] = {
    "model": ("function",),
    "algorithm": tuple(
        name
        for name in axes.ALGORITHMS
        if name not in (*axes.GROUPS, "stochastic_beam", "ctranslate2")
    ),
    "output": tuple(name for name in axes.OUTPUTS if name != "alternatives"),
    "entry": tuple(name for name in axes.ENTRIES if name != "score"),
    "event": tuple(name for name in axes.EVENTS if name not in ("bad request", "model raises")),
    # the reference takes seconds for what works in Python
    "backend": ("native",),
}
ARRAY = CoveringArray(axes.AXES, 2, LATE, PLAIN)
PAIRS = [
    pytest.param(Case(row), marks=pytest.mark.slow if place >= ARRAY.num_early else ())
    for place, row in enumerate(ARRAY.rows)
]
SEAMS = [Case(row) for row in CoveringArray(axes.SEAMS, 3).rows]


@cache
def triples() -> list[Case]:
    return [Case(row) for row in CoveringArray(axes.TRIPLES, 3).rows]


def check(case: Case) -> None:
    try:
        assert_laws(case)
    except Exception as error:
        error.add_note(f'to repeat it: PYBEAM_LAW="{case}" pytest tests/law -k repeated')
        raise


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_every_two_values(case):
    check(case)


@pytest.mark.parametrize("case", SEAMS, ids=str)
def test_seams(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(NUM_SHARES))
def test_every_three_values(share):
    for case in triples()[share::NUM_SHARES]:
        check(case)


@pytest.mark.parametrize(
    "exclusion", [one for one in EXCLUSIONS if one.message is not None], ids=lambda one: one.reason
)
def test_what_is_left_out_is_refused(exclusion: Exclusion):
    """With the message that its data says, for each value of the axes that it names at least once."""
    wanted = {name: list(values) for name, values in exclusion.values.items()}
    most = max(map(len, wanted.values()))
    for i in range(most):
        values = {**PLAINEST, **{name: some[i % len(some)] for name, some in wanted.items()}}
        if values["output"] == "partials":
            values["entry"] = "stream"
        with pytest.raises((ValueError, TypeError, pybeam.DecodeError), match=exclusion.message):
            assert_laws(Case(values))


def test_late_values_meet_plain_python():
    """`make test` compares each of them with the oracle, in a case in which nothing raises."""
    quick = ARRAY.rows[: ARRAY.num_early]
    calm = [row for row in quick if all(row[axis] in PLAIN[axis] for axis in CALM)]
    compared = [row for row in calm if has_oracle(Case(row))]
    met = lambda rows: {value for row in rows for value in row.values()}  # noqa: E731
    no_oracle = {"diverse, held", "allowed_tokens", "from_function", "a function", "gumbel"}
    no_oracle |= {"diverse", "sample", "stochastic_beam", "ctranslate2", "several"}
    no_oracle |= LATE & {*axes.MODELS, *axes.WEIGHTS} - {"function", "float32"}
    assert LATE - met(compared) == no_oracle
    assert no_oracle <= met(calm)


def test_no_other_values_are_impossible():
    """Values that never meet are named: each pair of them follows from two exclusions."""
    pairs = [set(one.values()) for one in ARRAY.impossible]
    named = [{"guessed", "gumbel"}, {"guessed", "rnn"}, {"guessed", "marian-ssru"}]
    named += [{"guessed", "wrapped-mamba"}, {"guessed", "width"}, {"guessed", "width by step"}]
    named += [{"guessed", "alternatives"}, {"cancel", "alternatives"}]
    named += [{"interrupted", "alternatives"}]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, named))


def test_every_public_name_is_on_an_axis():
    """What `pybeam` offers for a search stands in the table of its axis."""
    first = lambda table: set(map(public_name, table))  # noqa: E731
    built = {
        name
        for name, value in names_of(pybeam).items()
        if getattr(value, "__annotations__", {}).get("return") in ("Algorithm", Algorithm)
    }
    assert {name.rpartition(".")[2] for name in built} | set(compat.__all__) == first(
        axes.ALGORITHMS
    )
    schedules = {one.__name__ for one in vars_of(pybeam, pybeam.Schedule)} - {"Schedule"}
    assert schedules == first(axes.SCHEDULES) - {"own plan"}
    makers = {name for name in processors.__all__ if name[0].islower()}
    # wings bring processors, too
    makers |= {"allowed_items", "allowed_translations", "prefix_scores", "whisper_timestamps"}
    own = {"none", "a function", "several"}
    assert makers == first(axes.PROCESSORS) - own
    kinds = {type(model_of(kind, "float32")) for kind in axes.MODELS}
    public = set(vars_of(models, Model)) - {Model}
    assert public <= kinds
    initialisers = {name for name in drafts.__all__ if name[0].islower()}
    source = inspect.getsource(axes) + inspect.getsource(case_module)
    assert not [name for name in initialisers - {"pad"} if f"drafts.{name}(" not in source]


def vars_of(module, base: type) -> list[type]:
    """The public classes of a module that are of this one."""
    found = [getattr(module, name) for name in module.__all__]
    return [one for one in found if isinstance(one, type) and issubclass(one, base)]


@pytest.mark.slow
def test_a_case_is_repeated():
    check(Case.parse(os.environ.get("PYBEAM_LAW", str(Case(ARRAY.rows[0])))))
