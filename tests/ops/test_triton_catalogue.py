"""The Triton kernels of catalogues without a GPU: right in the interpreter, and compiled well."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.contracts import ColumnRules, Normalise
from pybeam.triton_kernels.logits.catalogue import catalogue_child, catalogue_columns
from support.aot import CAPABILITIES_TO_TEST, assemble, distinct, recorded


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/test_catalogue.py", "-k", "triton")


VARIANTS = ((torch.float32, True, 0), (torch.float32, True, 1), (torch.bfloat16, False, 2))


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def launches():
    arrays, node = (ints(500), ints(101), ints(2, 32)), ints(70)
    yield from recorded(lambda: catalogue_child(arrays, node, node))
    for dtype, eos_first, normalise in VARIANTS:
        logits, rules = (
            torch.zeros(70, 1000, dtype=dtype),
            ColumnRules(1, eos_first, 256, normalise),
        )
        yield from recorded(
            lambda logits=logits, rules=rules: catalogue_columns(arrays, logits, node, node, rules)
        )


def test_sums_over_columns_do_not_depend_on_the_longest_list():
    """The same machine code sums the columns, so a row keeps its bits when a longer list comes."""
    given = (ints(700), ints(3), ints(1, 64)), torch.zeros(1, 1000), ints(1), ints(1)
    calls = [ColumnRules(1, True, num, Normalise.COLUMNS) for num in (64, 640)]
    assert len(distinct([*recorded(lambda: [catalogue_columns(*given, r) for r in calls])])) == 1


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_compiled_well(capability):
    found = distinct(list(launches()))
    assert {launch.kernel.__name__ for launch in found} == {"child_kernel", "columns_kernel"}
    for launch in found:
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == 0
        assert assembly.registers <= 128
