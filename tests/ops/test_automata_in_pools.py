"""The operators of automata on pools: every backend against `Automaton.step`."""

from __future__ import annotations

import pytest
import torch

from support.pooled_automata import (
    AUTOMATA,
    EOS,
    TOKENS,
    V,
    check_columns,
    check_walk,
    ints,
    pool_of,
)

CHECKS = {"walk": check_walk, "columns": check_columns}


@pytest.mark.parametrize("op", CHECKS)
def test_as_the_plain_step(kernel, op):
    CHECKS[op](kernel)


@pytest.mark.parametrize("op", CHECKS)
def test_the_reference(op):
    CHECKS[op]("reference")


def test_states_out_of_bounds_are_refused():
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    pool, begins = pool_of(AUTOMATA[2:3])
    start = begins[0]
    loops = pool.state.clone()
    loops[start, 0] = start
    one = ints([[-1, 0]])
    places = ints([0]), ints([1]), ints([1]), ints([start]), ints([0]), ints([9])

    def shape(arrays, state=start, token=2):
        logits = torch.zeros(1, V)
        given = one, ints([[state, 0]]), *places[:2], ints([token]), *places[2:]
        native.automaton_logits(logits, arrays, *given, (EOS,))
        return logits

    for arrays, state, message in [
        (pool._replace(state=loops), start, "`failure` must be a smaller"),
        (pool._replace(first=pool.first.flip(0).contiguous()), start, "`first` must ascend"),
        (pool._replace(edge=pool.edge[:1]), start, "`edge` must be"),
        (pool[:3], start, "those of a pool"),
    ]:
        with pytest.raises((ValueError, RuntimeError), match=message):
            shape(arrays, state)
    # nobody may follow states that are none
    assert shape(pool, 10**6).isinf().all()
    wrong = pool._replace(edge=torch.full_like(pool.edge, 10**6))
    with pytest.raises(RuntimeError, match="`node` must be a state"):
        [shape(wrong, token=token) for token in TOKENS]
