"""The Triton kernels of automata without a GPU: right in the interpreter, and compiled well."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.backends.torch_places import PlacesInputs
from pybeam.contracts import ColumnRules, Normalise
from pybeam.triton_kernels.logits.automata import automaton_walk
from pybeam.triton_kernels.logits.automaton_places import automaton_places
from pybeam.triton_kernels.logits.automaton_rows import automaton_columns, automaton_logits
from support.aot import CAPABILITIES_TO_TEST, assemble, distinct, recorded


@pytest.mark.slow
def test_in_the_interpreter():
    names = "automata", "automata_in_pools", "automaton_places"
    run_in_interpreter(*(f"tests/ops/test_{name}.py" for name in names), "-k", "triton")
    run_in_interpreter("tests/ops/interpreted/test_automata_in_parts.py")


VARIANTS = ((torch.float32, True, 0), (torch.float32, True, 1), (torch.bfloat16, False, 2))


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def launches():
    tree, node = (ints(500), ints(101), ints(2, 32)), ints(70)
    pool, logits = (ints(500), ints(101), ints(2, 500), ints(101, 6)), torch.zeros(70, 1000)
    rule = ColumnRules(1, True, 256, Normalise.VOCABULARY)
    for arrays in (tree, pool):
        slots = [ints(3) for _ in range(3)]
        walk = arrays, ints(3, 9), ints(3, 9), node, node, node, node, *slots
        yield from recorded(lambda walk=walk: automaton_walk(*walk))
    yield from recorded(lambda: automaton_logits(logits, *walk, (1, 2)))
    yield from recorded(lambda: automaton_columns(pool, logits, node, node, rule))
    beams, offset = ints(2, 5), ints(3)
    inputs = PlacesInputs(
        ints(3, 9), ints(3, 4), *[node] * 4, offset, slots[0], logits[:3, :35], offset, ints(2)
    )
    yield from recorded(lambda: automaton_places(logits, pool, inputs, beams, beams, (1, 2)))
    for dtype, eos_first, normalise in VARIANTS:
        logits, rules = (
            torch.zeros(70, 1000, dtype=dtype),
            ColumnRules(1, eos_first, 256, normalise),
        )
        yield from recorded(
            lambda logits=logits, rules=rules: automaton_columns(tree, logits, node, node, rules)
        )


@pytest.mark.parametrize("normalise", [Normalise.VOCABULARY, Normalise.COLUMNS])
def test_sums_do_not_depend_on_the_longest_list(normalise):
    """The same machine code sums, so a row keeps its bits when a longer list comes."""
    given = (ints(700), ints(3), ints(1, 64)), torch.zeros(1, 1000), ints(1), ints(1)
    calls = [ColumnRules(1, True, num, normalise) for num in (64, 640)]
    assert len(distinct([*recorded(lambda: [automaton_columns(*given, r) for r in calls])])) == 1


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_compiled_well(capability):
    found = distinct(list(launches()))
    assert {launch.kernel.__name__ for launch in found} == {
        "walk_kernel",
        "columns_kernel",
        "logits_kernel",
        "places_kernel",
    }
    for launch in found:
        assembly = assemble(launch, capability)
        assert assembly.local == 0
        # the mask of a loop within a loop is kept there
        assert assembly.stack <= 8
        assert assembly.registers <= 128
