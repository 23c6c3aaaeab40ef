"""The Triton kernels of catalogues in the interpreter."""

from __future__ import annotations

import pytest

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/test_catalogue.py", "-k", "triton")
