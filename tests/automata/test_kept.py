"""`Kept`: the automata that were asked for last, in bounded memory."""

from __future__ import annotations

from pybeam.automata.kept import Kept
from pybeam.automata.sequences import sequences_automaton


def automaton_of(key: int):
    return sequences_automaton([[1, 2, key]])


def test_the_last_ones_are_remembered():
    kept = Kept(2, 1 << 20)

    def get(key):
        return kept.get(key, lambda: automaton_of(key))

    first, second = get(7), get(8)
    assert get(7) is first
    get(9)
    assert get(7) is first
    assert get(8) is not second
    assert len(kept) == 2


def test_bytes_are_bounded_but_one_alone_is_kept():
    size = automaton_of(7).num_bytes
    # 4 states with 20 bytes of their own, and 3 edges of 12; `first` has a number more
    assert size == 4 * 20 + 3 * 12 + 4
    kept = Kept(9, 2 * size)
    for key in range(5, 9):
        kept.get(key, lambda key=key: automaton_of(key))
    assert len(kept) == 2 and kept.num_bytes == 2 * size
    small = Kept(9, 1)
    one = small.get(7, lambda: automaton_of(7))
    assert small.get(7, lambda: automaton_of(7)) is one
