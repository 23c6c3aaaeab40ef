"""How bfloat16 weights are multiplied: as pairs, or widened to float32. It never depends on the batch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from pybeam.models.linear import PackedLinear

native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


@pytest.fixture(params=["pairs", "float32"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.bfloat16_products()
    try:
        native.set_bfloat16_products(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))
    yield request.param
    native.set_bfloat16_products(before)


@pytest.mark.parametrize("depth", [1, 7, 64, 130, 301])
def test_both_round_inputs_and_sum_in_float32(way, depth):
    assert native.bfloat16_products() == way
    weight, x = torch.randn(70, depth).bfloat16(), torch.randn(40, depth)
    layer = PackedLinear(weight, None)
    expected = x.bfloat16().double() @ weight.double().t()
    together = layer(x)
    torch.testing.assert_close(together.double(), expected, rtol=1e-5, atol=1e-4)
    for rows in (slice(0, 1), slice(3, 8), slice(8, 39)):
        assert torch.equal(layer(x[rows]), together[rows])


def test_an_instruction_set_without_pairs_widens():
    before = native.isa()
    native.set_isa("generic")
    try:
        assert native.bfloat16_products() == "float32"
        with pytest.raises(
            RuntimeError, match="the instruction set generic has no products of pairs"
        ):
            native.set_bfloat16_products("pairs")
    finally:
        native.set_isa(before)


def test_there_are_two_ways():
    with pytest.raises(RuntimeError, match="but are bytes"):
        native.set_bfloat16_products("bytes")


@pytest.mark.slow
def test_the_environment_may_choose():
    code = "from pybeam.backends import native; print(native.bfloat16_products())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYBEAM_BFLOAT16": "float32"},
    )
    assert run.stdout.strip() == "float32"
