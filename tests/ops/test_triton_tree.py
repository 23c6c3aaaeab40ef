"""The token tree's Triton kernels without a GPU: right in the interpreter, and compiled well."""

from __future__ import annotations

import pytest

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from support.aot import CAPABILITIES_TO_TEST, assemble, distinct
from support.triton_launches import tree_launches


@pytest.mark.slow
def test_in_the_interpreter():
    # on a device nobody can raise for a full tree
    run_in_interpreter(
        "tests/kvcache/test_token_tree.py",
        "tests/kvcache/test_tree_paths.py",
        "tests/ops/interpreted/test_tree_bounds.py",
        "-k",
        "not native and not threads and not is_an_error and not whatever and not guesses",
    )


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_compiled_well(capability):
    launches = [x for width in (1, 5, 16, 50, 64, 128) for x in tree_launches(width)]
    launches += [x for width in (16, 200, 512, 4096) for x in tree_launches(width, has_paths=True)]
    launches = distinct(launches)
    names = [launch.kernel.__name__ for launch in launches]
    kernels = {"commit_kernel", "release_kernel"}
    assert set(names) == kernels
    assert names.count("release_kernel") == 1
    for launch in launches:
        assembly = assemble(launch, capability)
        assert assembly.local == 0
        # beams of 4,096 keep a few numbers in memory
        assert assembly.stack <= 24
        assert assembly.registers <= 128
