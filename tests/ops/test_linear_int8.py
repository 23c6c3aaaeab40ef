"""The operator `linear` with integers: the same bits on every instruction set, and as the oracle's."""

from __future__ import annotations

import pytest
import torch

from pybeam import backends
from pybeam.backends.int4 import quantise_groups
from pybeam.backends.packing import LARGEST, PANEL, Quantised, pack, quantise, unpack
from pybeam.backends.torch_layers import quantise_rows
from pybeam.models.int4 import Int4Linear
from pybeam.models.linear import PackedLinear
from support import isas
from support.threads import THREAD_COUNTS

SHAPES = [(64, 32), (1, 1), (63, 7), (65, 33), (70, 129), (200, 256), (130, 1030)]


# the fixture takes fewer, which differ in their float products
every_isa = pytest.mark.parametrize("isa", isas.ALL, indirect=True)
every_kind = pytest.mark.parametrize("kind", ["int8", "int8 keeps large", "int4"])


def layer_of(
    num_columns: int, depth: int, has_bias: bool = True, activation=None, kind: str = "int8"
) -> PackedLinear:
    generator = torch.Generator().manual_seed(num_columns * depth)
    weight = torch.randn(num_columns, depth, generator=generator)
    bias = torch.randn(num_columns, generator=generator) if has_bias else None
    if kind == "int4":
        return Int4Linear(quantise_groups(weight), bias, activation)
    return PackedLinear(quantise(weight), bias, activation, keeps_large=kind != "int8")


def oracle_of(layer: PackedLinear) -> PackedLinear:
    return layer.with_backend(backends.load("reference"))


@pytest.mark.parametrize(("num_columns", "depth"), SHAPES)
def test_weights_come_back(num_columns, depth):
    weight = torch.randn(num_columns, depth)
    q, scale = quantise(weight)
    assert q.dtype == torch.int8 and q.abs().max() == LARGEST
    assert ((q * scale[:, None] - weight).abs() <= scale[:, None] * 0.5001).all()
    packed = pack(Quantised(q, torch.ones(len(q))))
    assert packed.dtype == torch.uint8 and packed.is_contiguous()
    index = torch.arange(num_columns).flip(0)
    assert torch.equal(unpack(packed, index, depth), q[index])
    for keeps_large in (False, True):
        layer = PackedLinear(Quantised(q, scale), None, keeps_large=keeps_large)
        assert torch.equal(layer.weight, q * scale[:, None])
        assert torch.equal(layer.rows(index), (q * scale[:, None])[index])


def test_weights_of_zeros():
    q, scale = quantise(torch.tensor([[0.0, 0.0], [1.0, -2.0]]))
    assert q.tolist() == [[0, 0], [64, -127]]
    assert scale[0] == 0


def test_inputs_of_rows():
    x = torch.tensor(
        [[127.0, -0.5, 1.5, 2.5], [0.0] * 4, [1e-38, 0, 0, 0], [1.0, float("nan"), 0, 0]]
    )
    q, scale = quantise_rows(x)
    assert q[0].tolist() == [127, 0, 2, 2]  # ties to even
    assert q[1:].eq(0).all()
    assert scale[:3].tolist() == [1, 0, 0] and scale[3].isnan()


def test_large_inputs_of_rows():
    """The four largest have more bits, and the scale is made for the fifth."""
    x = torch.tensor(
        [
            [1.0, -900.0, 0.5, 127.0, 500.0, -300.0, 2000.0, 3.0],
            [1.0, 1.0, 16256.0, 2.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, -5.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [1.0, float("inf"), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        ]
    )
    q, scale = quantise_rows(x, keeps_large=True)
    assert q[0].tolist() == [1, -900, 0, 127, 500, -300, 2000, 3]
    assert q[1].tolist() == [1, 1, 16256, 2, 0, 0, 0, 0]
    assert q[2].tolist() == [0, 0, -16256, 0, 0, 0, 0, 0]
    assert scale[:2].tolist() == [1, 1] and scale[3].isnan()


def rows_with_large_inputs(depth: int) -> torch.Tensor:
    """Rows with 0 to 6 of them, some beside each other, as large as each other, or beyond all bounds."""
    generator = torch.Generator().manual_seed(depth)
    x = torch.randn(21, depth, generator=generator)
    for i, row in enumerate(x):
        place = (
            torch.randperm(depth, generator=generator)[: i % 7] if i < 14 else torch.arange(i % 7)
        )
        row[place % depth] *= 10.0 ** (1 + i % 4)
        if i % 5 == 0:
            row[place % depth] = row.abs().max()
    x[3, 1:] = 0
    return x


@every_isa
@pytest.mark.parametrize("depth", [1, 3, 40, 257])
def test_large_inputs_are_integers_like_others(isa, depth):
    layer, x = layer_of(70, depth, kind="int8 keeps large"), rows_with_large_inputs(depth)
    assert torch.equal(layer(x), oracle_of(layer)(x))
    assert torch.equal(layer(x[4:5]), layer(x)[4:5])


@every_isa
@every_kind
@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 40, 401])
@pytest.mark.parametrize(("num_columns", "depth"), SHAPES)
def test_bits_of_the_oracle(isa, num_rows, num_columns, depth, kind):
    x = torch.randn(num_rows, depth) * torch.logspace(-3, 3, num_rows)[:, None]
    for has_bias in (True, False):
        layer = layer_of(num_columns, depth, has_bias, kind=kind)
        expected = oracle_of(layer)(x)
        assert torch.equal(layer(x), expected)
        residual = torch.randn(num_rows, num_columns)
        expected = oracle_of(layer).add(residual.clone(), x)
        assert torch.equal(layer.add(residual, x), expected)


@every_isa
@pytest.mark.parametrize("depth", [4, 256, 1021])
def test_the_largest_sums_do_not_saturate(isa, depth):
    q = torch.full((64, depth), -127, dtype=torch.int8)
    q[1::2] = 127
    layer = PackedLinear(Quantised(q, torch.ones(64)), None)
    for sign in (1.0, -1.0):
        y = layer(torch.full((3, depth), sign * 127.0))
        expected = float(-sign * 127 * 127 * depth)
        assert (y[:, ::2] == expected).all() and (y[:, 1::2] == -expected).all()


@every_isa
def test_the_largest_sums_of_int4_do_not_saturate(isa):
    q = torch.full((64, 96), -8, dtype=torch.int8)
    q[1::2] = 7
    layer = Int4Linear(Quantised(q, torch.ones(64, 3, dtype=torch.bfloat16)), None)
    for sign in (1.0, -1.0):
        y = layer(torch.full((3, 96), sign * 127.0))
        assert (y[:, ::2] == -sign * 8 * 127 * 96).all() and (
            y[:, 1::2] == sign * 7 * 127 * 96
        ).all()


@every_isa
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations(isa, activation):
    layer, x = layer_of(70, 33, activation=activation), torch.randn(9, 33)
    torch.testing.assert_close(layer(x), oracle_of(layer)(x), rtol=1e-5, atol=2e-6)


@every_isa
@every_kind
def test_rows_of_zeros_and_of_no_numbers(isa, kind):
    layer = layer_of(70, 33, kind=kind)
    x = torch.randn(6, 33)
    expected = layer(x)
    x[1] = 0.0
    x[2] = 1e-35
    x[3, 4] = float("nan")
    x[4, 32] = float("inf")
    y = layer(x)
    assert torch.equal(y[1], layer.bias) and torch.equal(y[2], layer.bias)
    assert y[3].isnan().all() and y[4].isnan().all()
    assert torch.equal(y[[0, 5]], expected[[0, 5]])
    assert torch.equal(y.nan_to_num(7.0), oracle_of(layer)(x).nan_to_num(7.0))


@every_isa
def test_numbers_near_the_largest(isa):
    x = torch.tensor([[3e38, -3e38, 1e38], [2.0**-99, 2.0**-100, 2.0**-101]])
    layer = layer_of(5, 3, has_bias=False)
    assert torch.equal(layer(x), oracle_of(layer)(x))


@every_isa
@pytest.mark.parametrize("scale", [2.0**112, 2.0**-133])
def test_scales_of_int4_near_the_largest_and_the_least(isa, scale):
    """Sums that are just below the largest float32, and a scale that is the least bfloat16."""
    q = torch.full((64, 64), 7, dtype=torch.int8)
    q[1::2] = -8
    layer = Int4Linear(Quantised(q, torch.full((64, 2), scale, dtype=torch.bfloat16)), None)
    y = layer(torch.ones(3, 64))
    assert y.isfinite().all() and y.ne(0).all()
    assert torch.equal(y, oracle_of(layer)(torch.ones(3, 64)))


@pytest.mark.thinned(together=2)
@every_isa
@every_kind
@pytest.mark.parametrize("num_rows", [2, 7, 25])
def test_tasks_of_several_panels(isa, num_rows, kind):
    """While blocks of rows multiply one panel, they fetch the next, each a half or a quarter."""
    layer, x = layer_of(33 * PANEL, 40, kind=kind), torch.randn(num_rows, 40)
    torch.set_num_threads(1)
    assert torch.equal(layer(x), oracle_of(layer)(x))


@every_isa
@pytest.mark.parametrize("depth", [15, 16])
def test_strided_rows(isa, depth):
    layer = layer_of(70, depth)
    x = torch.randn(9, 48)[:, 16 : 16 + depth]
    assert torch.equal(layer(x), layer(x.contiguous()))


@pytest.mark.thinned(together=2)
@every_isa
@every_kind
@pytest.mark.parametrize("num_threads", THREAD_COUNTS)
def test_a_row_alone_is_the_row_among_others(isa, num_threads, kind):
    """Bit for bit, whatever the batch and the number of threads."""
    layer, x = layer_of(200, 256, kind=kind), torch.randn(831, 256)
    torch.set_num_threads(1)
    together = layer(x)
    torch.set_num_threads(num_threads)
    for rows in (slice(0, 1), slice(3, 10), slice(17, 401), slice(830, 831), slice(831)):
        assert torch.equal(layer(x[rows]), together[rows])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("weight", lambda w: w[:, :1], r"`weight` must be \[2, 2, 64, 4\]"),
        ("weight", lambda w: w[0].view(torch.int8), "`weight` must be float32"),
        ("weight", lambda w: w[:1].view(torch.int8), r"`weight` must be \[2, 2, 64, 4\]"),
        ("weight", lambda w: w.mT.contiguous().mT, "`weight` must be contiguous"),
        (
            "weight",
            lambda w: w.flatten(2),
            r"`weight` must be \[2, 1, 1152\], but is \[2, 2, 256\]",
        ),
        ("scale", lambda _: None, "`scale` must be given for int8 weights alone"),
        ("scale", lambda s: s[:69], r"`scale` must be \[70\]"),
        ("scale", lambda s: s.double(), "`scale` must be float32"),
    ],
)
def test_wrong_arguments(name, change, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    arguments = dict(
        y=torch.zeros(3, 70),
        x=torch.zeros(3, 8),
        weight=torch.zeros(2, 2, 64, 4, dtype=torch.uint8),
        scale=torch.ones(70),
        bias=torch.zeros(70),
    )
    arguments[name] = change(arguments[name])
    with pytest.raises(ValueError, match=message):
        native.linear(*arguments.values(), 0, False)


def test_a_depth_whose_sums_may_overflow():
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    depth = 65540
    weight = torch.zeros(1, depth // 4, 64, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="depth of at most 65536"):
        native.linear(
            torch.zeros(1, 1), torch.zeros(1, depth), weight, torch.ones(1), None, 0, False
        )
