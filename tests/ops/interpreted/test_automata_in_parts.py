"""Rows of logits that automata shape: a program has a part of a row, in blocks."""

from __future__ import annotations

import pytest

from pybeam.triton_kernels.logits import automaton_rows, parts
from support.pooled_automata import V, check_walk


@pytest.mark.parametrize("num_programs", [1, 2 * V, 1000])
@pytest.mark.parametrize("block", [2, 4, 8])
def test_rows_in_parts(block, num_programs, monkeypatch):
    """States of more edges than a block holds are among them."""
    monkeypatch.setattr(automaton_rows, "MAX_BLOCK", block)
    monkeypatch.setattr(parts, "PROGRAMS", num_programs)
    check_walk("triton")
