"""The laws on a GPU in Triton's interpreter, for a case of some algorithms, and one with layers of Triton.

A case takes up to a minute, and the last one a minute and a half.
"""

from __future__ import annotations

import pytest

from law.case import INTERPRETED
from support.triton_process import run_in_interpreter

# the name of a case says whether its layers are plain
CHOSEN = [*(f"{name.partition(',')[0]} and not plain" for name in INTERPRETED), "plain"]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", CHOSEN)
def test_a_case(chosen):
    run_in_interpreter("tests/law/test_law_on_gpu.py", "-k", f"test_first_of_each and {chosen}")
