"""The operator `linear`: exact to rounding, and no row's result depends on the rows beside it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from pybeam.backends import load
from pybeam.backends.packing import Quantised, quantise
from pybeam.models.linear import PackedLinear, PlainLinear
from support.threads import THREAD_COUNTS, every_thread_count


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """The dtypes of the weights: bfloat16 rounds the inputs too."""
    return request.param


def layer_of(
    num_columns: int,
    depth: int,
    has_bias: bool = True,
    activation=None,
    *,
    dtype: torch.dtype,
) -> PackedLinear:
    """A random layer; its `exact` rounds weights and inputs as it does, and sums in float64."""
    generator = torch.Generator().manual_seed(num_columns * depth)
    weight = torch.randn(num_columns, depth, generator=generator).to(dtype)
    bias = torch.randn(num_columns, generator=generator) if has_bias else None
    layer = PackedLinear(weight, bias, activation)
    plain = PlainLinear(weight.double(), None if bias is None else bias.double(), activation)
    layer.exact = lambda x: plain(x.to(dtype).double())
    return layer


def assert_close(y: torch.Tensor, expected: torch.Tensor) -> None:
    # float32 sums of 256 products near 1; inputs that are not rounded to bfloat16 are off by 1e-2
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.thinned()
@pytest.mark.parametrize("num_rows", [0, 1, 2, 5, 6, 7, 13, 40, 400, 801])
@pytest.mark.parametrize(
    ("num_columns", "depth"), [(64, 32), (1, 1), (63, 7), (65, 33), (200, 256)]
)
def test_as_torch(isa, dtype, num_rows, num_columns, depth):
    x = torch.randn(num_rows, depth)
    for has_bias in (True, False):
        layer = layer_of(num_columns, depth, has_bias, dtype=dtype)
        expected = layer.exact(x)
        assert_close(layer(x), expected)
        residual = torch.randn(num_rows, num_columns)
        expected = expected + residual
        assert layer.add(residual, x) is residual
        assert_close(residual, expected)


def test_without_depth_the_result_is_the_bias(isa):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    y, bias = torch.empty(9, 70), torch.arange(70.0)
    native.linear(y, torch.zeros(9, 0), torch.zeros(2, 0, 64), None, bias, 0, False)
    assert torch.equal(y, bias.expand(9, 70))


def test_memory_is_used_and_what_lies_behind_is_not(isa, dtype):
    layer = layer_of(70, 16, dtype=dtype)
    memory = torch.full((5, 70), 9.0)
    y = layer(torch.randn(3, 16), memory)
    assert y.data_ptr() == memory.data_ptr() and y.shape == (3, 70)
    assert (memory[3:] == 9.0).all()


@pytest.mark.parametrize("has_bias", [True, False])
def test_plain_layers_use_memory_too(has_bias):
    layer = PlainLinear(torch.randn(70, 16), torch.randn(70) if has_bias else None)
    memory, x = torch.full((5, 70), 9.0), torch.randn(3, 16)
    y = layer(x, memory)
    assert y.data_ptr() == memory.data_ptr() and (memory[3:] == 9.0).all()
    assert_close(y, layer(x).double())


@pytest.mark.parametrize("depth", [15, 16])
def test_strided_rows(isa, dtype, depth):
    layer = layer_of(70, depth, dtype=dtype)
    x = torch.randn(9, 48)[:, 16 : 16 + depth]
    assert torch.equal(layer(x), layer(x.contiguous()))


def test_weights_that_float16_holds_are_kept_so(isa):
    weight = torch.randn(130, 40).half().float()
    weight[0, 0] = 2.0**-24  # subnormal in float16
    narrow, x = PackedLinear(weight, None), torch.randn(7, 40)
    assert narrow._weight.dtype == torch.float16
    weight[1, 1] = 1 / 3
    wide = PackedLinear(weight, None)
    assert wide._weight.dtype == torch.float32
    others = torch.arange(130) != 1
    assert torch.equal(narrow(x)[:, others], wide(x)[:, others])
    weight[1, 1] = 1e6
    assert PackedLinear(weight, None)._weight.dtype == torch.float32


@pytest.mark.thinned()
@pytest.mark.parametrize("num_rows", [0, 1, 5, 7, 40, 400])
@pytest.mark.parametrize(("num_columns", "depth"), [(64, 32), (1, 2), (65, 134), (200, 256)])
def test_weights_that_bfloat16_holds_are_kept_so(isa, num_rows, num_columns, depth):
    """With the bits of float32: inputs are not rounded."""
    weight = torch.randn(num_columns, depth).bfloat16().float()
    weight[0, 0] = 2.0**-40  # float16 does not hold it
    narrow, x, bias = (
        PackedLinear(weight, None),
        torch.randn(num_rows, depth),
        torch.randn(num_columns),
    )
    assert narrow._weight.dtype == torch.int16
    wide = PackedLinear(torch.cat((weight, torch.full((64, depth), 1 / 3))), None)
    assert wide._weight.dtype == torch.float32
    assert torch.equal(narrow(x), wide(x)[:, :num_columns])
    assert torch.equal(narrow.weight, weight)
    index = torch.randint(num_columns, (9,), dtype=torch.int32)
    assert torch.equal(narrow.rows(index).float(), weight[index])
    found = [torch.empty(num_rows, num_columns) for _ in range(2)]
    for y, name in zip(found, ("native", "reference"), strict=True):
        load(name).linear(y, x, narrow._weight, None, bias, 0, False)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-4)


def test_an_odd_depth_is_not_packed_in_pairs():
    weight = torch.randn(4, 3).bfloat16().float() * 2.0**-30
    assert PackedLinear(weight, None)._weight.dtype == torch.float32


@pytest.mark.thinned()
@pytest.mark.parametrize("num_rows", [1, 8, 20, 40])
@pytest.mark.parametrize(
    "kept", [torch.float32, torch.bfloat16, torch.float16, torch.int8], ids=str
)
def test_many_panels_are_multiplied_as_few_are(isa, kept, num_rows):
    """Neighbours among many panels are one task, and large weights lie in huge pages."""
    weight, x = torch.randn(6500, 130), torch.randn(num_rows, 130)
    q = quantise(weight)

    def layer(first: int, last: int) -> PackedLinear:
        if kept == torch.int8:
            return PackedLinear(Quantised(q.q[first:last], q.scale[first:last]), None)
        return PackedLinear(weight[first:last].to(kept), None)

    bounds = [*range(0, 6500, 500), 6500]
    expected = torch.cat([layer(*pair)(x) for pair in pairwise(bounds)], 1)
    many = layer(0, 6500)
    for _ in every_thread_count():
        assert torch.equal(many(x), expected)


@pytest.mark.parametrize("depth", [1, 2, 15, 16, 17, 31, 47, 70])
def test_inputs_are_rounded_to_bfloat16_as_torch_does(isa, depth):
    x = torch.randn(200, depth)
    x[0] = 1 + 2**-8  # ties, to the even neighbour below and above
    x[1] = -1 - 3 * 2**-8
    x[2] = 1 + 2**-8 + 2**-23
    x[3] = 2.0**-126
    layer = PackedLinear(torch.eye(depth, dtype=torch.bfloat16), None)
    assert torch.equal(layer(x), x.bfloat16().float())


def test_numbers_beyond_bfloat16(isa):
    layer = PackedLinear(torch.ones(1, 1, dtype=torch.bfloat16), None)
    most = torch.finfo(torch.float32).max
    inf, nan = float("inf"), float("nan")
    y = layer(torch.tensor([[most], [-most], [inf], [nan]])).flatten()
    torch.testing.assert_close(y, torch.tensor([inf, -inf, inf, nan]), equal_nan=True)


@pytest.mark.parametrize("kept", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_columns", "depth"), [(64, 32), (1, 1), (130, 33)])
def test_rows_of_the_weights(kept, num_columns, depth):
    weight = torch.randn(num_columns, depth).to(kept)
    layer = PackedLinear(weight, None)
    index = torch.randint(num_columns, (9,), dtype=torch.int32)
    rows = layer.rows(index)
    assert layer._weight.dtype == rows.dtype == kept
    assert torch.equal(rows, weight[index])


def test_relu_keeps_nan(isa, dtype):
    layer = layer_of(70, 4, activation="relu", dtype=dtype)
    x = torch.randn(3, 4)
    assert_close(layer(x), layer.exact(x))
    assert (layer(x) == 0).any()
    x[1, 2] = float("nan")
    y = layer(x)
    assert y[1].isnan().all() and not y[[0, 2]].isnan().any()


@pytest.mark.thinned()
@pytest.mark.parametrize("num_threads", THREAD_COUNTS)
def test_a_row_alone_is_the_row_among_others(isa, dtype, num_threads):
    """Bit for bit, whatever the batch and the number of threads."""
    layer = layer_of(200, 256, dtype=dtype)
    x = torch.randn(831, 256)
    torch.set_num_threads(1)
    together = layer(x)
    torch.set_num_threads(num_threads)
    for rows in (slice(0, 1), slice(3, 10), slice(17, 401), slice(830, 831), slice(831)):
        assert torch.equal(layer(x[rows]), together[rows])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x", lambda x: x.double(), "`x` must be float32"),
        ("x", lambda x: x[:, :7], "`weight` must be"),
        ("x", lambda x: x.t().contiguous().t(), "the last stride of `x` must be 1"),
        ("x", lambda x: x[0], "`x` must have 2 dimensions"),
        ("weight", lambda w: w.bfloat16(), r"`weight` must be \[2, 4, 64, 2\]"),
        ("weight", lambda w: w.unflatten(1, (4, 2)), r"`weight` must be \[2, 8, 64\]"),
        ("weight", lambda w: w.double(), "`weight` must be float32"),
        ("weight", lambda w: w[:1], "`weight` must be"),
        ("weight", lambda w: w[..., :32], "`weight` must be"),
        ("weight", lambda w: w.mT.contiguous().mT, "`weight` must be contiguous"),
        ("weight", lambda w: w.byte(), r"`weight` must be \[2, 1, 1152\]"),
        ("weight", lambda w: w[..., None].byte(), r"`weight` must be \[2, 2, 64, 4\]"),
        ("scale", lambda _: torch.ones(70), "`scale` must be given for int8 weights alone"),
        ("bias", lambda b: b[:69], "`bias` must be"),
        ("y", lambda y: y[:2], "`y` must be"),
        ("y", lambda y: y.double(), "`y` must be float32"),
        ("y", lambda y: y.t().contiguous().t(), "`y` must be contiguous"),
    ],
)
def test_wrong_arguments(name, change, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    arguments = dict(
        y=torch.zeros(3, 70),
        x=torch.zeros(3, 8),
        weight=torch.zeros(2, 8, 64),
        scale=None,
        bias=torch.zeros(70),
    )
    arguments[name] = change(arguments[name])
    with pytest.raises(ValueError, match=message):
        native.linear(*arguments.values(), 0, False)
