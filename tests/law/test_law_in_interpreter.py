"""The laws on a GPU in Triton's interpreter, for a case of some algorithms, which takes a minute each."""

from __future__ import annotations

import pytest

from law.case import INTERPRETED
from support.triton_process import run_in_interpreter


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", INTERPRETED)
def test_a_case(algorithm):
    run_in_interpreter(
        "tests/law/test_law_on_gpu.py", "-k", f"test_first_of_each and {algorithm.split(',')[0]}"
    )
