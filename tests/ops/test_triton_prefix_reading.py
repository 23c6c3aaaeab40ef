"""Prefixes that are read at once, with Triton's kernels in the interpreter."""

from __future__ import annotations

import pytest

from support.triton_process import run_in_interpreter


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/interpreted/test_prefix_reading.py")
