"""The token tree's Triton kernels without a GPU: right in the interpreter, and compiled well."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.backends import triton as kernels
from pybeam.backends.arrays import tree_survivors
from pybeam.kvcache.token_tree import TokenTree
from support.aot import CAPABILITIES_TO_TEST, assemble, distinct, recorded


@pytest.mark.slow
def test_in_the_interpreter():
    # on a device nobody can raise for a full tree
    run_in_interpreter(
        "tests/kvcache/test_token_tree.py",
        "tests/ops/interpreted/test_tree_bounds.py",
        "-k",
        "not native and not threads and not is_an_error",
    )


def launches_of(width: int) -> list:
    tree = TokenTree(kernels, torch.device("cpu"))
    tree.reserve(4, width, 20)
    tree.reserve_pages(4)
    slot, none = torch.arange(3).int(), torch.zeros(3, 2 * width, dtype=torch.int32)
    survivors = tree_survivors(none, none, none.float(), slot + 1, slot.clone())
    return recorded(
        lambda: (
            tree.append(slot, survivors, eos_id=2),
            tree.release(slot),
        )
    )


@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_compiled_well(capability):
    launches = distinct([x for width in (1, 5, 16, 50, 64, 128) for x in launches_of(width)])
    names = [launch.kernel.__name__ for launch in launches]
    assert set(names) == {"inherit_kernel", "append_kernel", "release_kernel"}
    assert names.count("release_kernel") == 1
    for launch in launches:
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == 0
        assert assembly.registers <= 128
