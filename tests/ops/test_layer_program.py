"""`LayerProgram` refuses wrong arguments; `tests/models/test_fused.py` holds what it computes."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends.layer_program import StackShape

native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)

D, INNER, HEADS, VOCAB, CELLS, POSITIONS = 8, 12, 2, 70, 5, 9
NONE = torch.empty(0)
# where tensors stand in the list of weights
TABLE, POSITION_TABLE, FINAL_NORM, OUTPUT, SELF_NORM, QKV, CROSS_OUT = 0, 2, 5, 7, 11, 17, 36


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def linear(columns: int, depth: int) -> list[torch.Tensor]:
    return [torch.randn(-(-columns // 64), depth, 64), NONE, torch.zeros(columns)]


def weights() -> list[torch.Tensor]:
    """Weights of a decoder of one layer: embeddings and their norm, final norm, output, then the layer."""
    norm = [torch.ones(D), torch.zeros(D)]
    norms = [*norm, *[NONE] * 4]
    embeddings = [torch.randn(VOCAB, D), NONE, torch.randn(POSITIONS, D), NONE, NONE]
    own = [*norms, *linear(3 * D, D), *[NONE] * 4, *linear(D, D)]
    cross = [*norms, *linear(D, D), *linear(D, D)]
    inner = [*norms, *linear(INNER, D), *linear(D, INNER)]
    return [*embeddings, *norm, *linear(VOCAB, D), NONE, *own, *cross, *inner]


SHAPE = StackShape(
    inner_size=INNER,
    activation=1,
    is_gated=False,
    is_parallel=False,
    has_cross=True,
    epsilon=1e-5,
    num_heads=HEADS,
    num_key_heads=HEADS,
    head_size=D // HEADS,
    scale=0.5,
    soft_cap=0.0,
    output_soft_cap=0.0,
    num_columns=VOCAB,
    embedding_scale=2.0,
    num_tokens=VOCAB,
    skipped_id=-1,
    bias_origin=0,
    num_tables=0,
    window=[0],
    rotary=[-1],
)


def arguments() -> dict:
    """Two rows of the source in slot 1."""
    pool = (1, CELLS, 2, HEADS, D // HEADS)
    cells = ints(0, 2), ints(1), ints(0, 0, 1, 2).view(2, 2), ints(0, 2)
    mask, entry = torch.full((2, 2, 1), 3), ints(0, 1)
    return dict(
        out=torch.zeros(2, VOCAB),
        inputs=(ints(3, 69), ints(8, 0)),
        own_pool=torch.zeros(pool),
        cross_pool=torch.randn(pool),
        cell=ints(1, 2),
        own_cells=(*cells, mask, entry),
        cross_cells=cells,
        position=None,
        cell_position=None,
    )


@pytest.fixture
def program():
    return native.layer_program(tuple(weights()), SHAPE)


def test_right_arguments(program):
    given = arguments()
    program.run(*given.values())
    assert given["out"].isfinite().all() and given["out"].abs().sum() > 0
    assert (given["own_pool"][0, 1:3] != 0).all() and (given["own_pool"][0, [0, 3, 4]] == 0).all()


def test_encoder_states_in_bfloat16(program):
    """As if what they hold were kept in float32."""
    outs = []
    given = arguments()
    pool = given["cross_pool"].bfloat16()
    for kept in (pool, pool.float()):
        given |= dict(out=torch.zeros(2, VOCAB), cross_pool=kept)
        program.run(*given.values())
        outs.append(given["out"])
    assert torch.equal(*outs)


def test_keys_and_values_are_rounded_to_nearest(program):
    """On every instruction set, numbers that no bfloat16 holds and ties to even among them."""
    given = arguments()
    program.run(*given.values())
    exact = given["own_pool"]
    rounded = arguments()["own_pool"].bfloat16()
    program.run(*(given | dict(out=torch.zeros(2, VOCAB), own_pool=rounded)).values())
    assert torch.equal(rounded, exact.bfloat16())


def of_encoder(out, pool, cell) -> tuple:
    """Arguments of a stack without cross-attention: two rows that see each other."""
    cells = ints(0, 2), ints(0), ints(0, 1).view(1, 2), ints(2)
    return out, (ints(3, 69), ints(8, 0)), None, pool, cell, cells, (), None, None


def encoder(num_columns: int):
    """The program without its cross-attention, and with another output layer."""
    own, first = weights(), SELF_NORM + 6 + 3 + 4 + 3
    of_cross = slice(first, first + 12)
    del own[of_cross]
    own[OUTPUT : OUTPUT + 3] = linear(num_columns, D)
    return native.layer_program(
        tuple(own), SHAPE._replace(has_cross=False, num_columns=num_columns)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_encoder_writes_keys_and_values_of_a_decoder(dtype):
    """As they would be written one by one, whatever its own layers and heads are."""
    layers, heads, size = 3, 5, 4
    program, out = encoder(layers * 2 * heads * size), torch.zeros(2, layers * 2 * heads * size)
    program.run(*of_encoder(out, None, None))
    pool = torch.zeros(layers, CELLS, 2, heads, size, dtype=dtype)
    program.run(*of_encoder(None, pool, ints(4, -1)))
    expected = torch.zeros_like(pool)
    expected[:, 4] = out[0].view(layers, 2, heads, size).to(dtype)
    assert out[0].abs().sum() > 0 and torch.equal(pool, expected)
    for given, error, message in (
        (of_encoder(None, pool[:2].clone(), ints(0, 1)), ValueError, "room for the 120 columns"),
        (of_encoder(None, pool, ints(0, CELLS)), RuntimeError, "`cell` must be from 0 to 4"),
        (of_encoder(None, pool, None), ValueError, "`cross_pool` and `cell` go together"),
        (of_encoder(out, pool, ints(0, 1)), ValueError, "must be left out where an encoder has"),
    ):
        with pytest.raises(error, match=message):
            program.run(*given)


def test_hidden_states_as_inputs(program):
    given = arguments() | dict(inputs=torch.randn(2, D))
    program.run(*given.values())
    assert given["out"].abs().sum() > 0


def test_weights_live_as_long_as_the_program(program):
    outs = []
    for _ in range(2):
        torch.manual_seed(0)
        given = arguments()
        program.run(*given.values())
        outs.append(given["out"])
        junk = [torch.full_like(weight, 9.0) for weight in weights() for _ in range(20)]
    assert torch.equal(*outs) and junk


def test_no_row(program):
    given = arguments() | dict(out=torch.zeros(0, VOCAB), inputs=(ints(), ints()), cell=ints())
    given["own_cells"] = (ints(0, 0), *given["own_cells"][1:5], ints())
    given["cross_cells"] = (ints(0, 0), *given["cross_cells"][1:])
    program.run(*given.values())


def with_cell(name: str, index: int, value: torch.Tensor):
    """Change one tensor of a tuple."""

    def change(given: dict) -> None:
        own = list(given[name])
        own[index] = value
        given[name] = tuple(own)

    return change


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(inputs=torch.randn(2, D).double()), ValueError, "`x` must be float32"),
        (dict(inputs=torch.randn(2, D + 1)), ValueError, r"`x` must be \[2, 8\]"),
        (dict(inputs=(ints(1, 2), ints(0))), ValueError, r"`place` must be \[2\]"),
        (dict(inputs=(ints(1, VOCAB), ints(0, 0))), RuntimeError, "`token` must be from 0 to 69"),
        (dict(inputs=(ints(1, 2), ints(0, -1))), RuntimeError, "`position` must be from 0 to 8"),
        (dict(inputs=(ints(1, 2),) * 3), ValueError, "must be x, or tokens and places"),
        (dict(inputs=7), TypeError, "expected a tensor, but got int"),
        (dict(out=torch.zeros(1, VOCAB)), ValueError, "`out` must have at least 2 rows, but has 1"),
        (dict(out=torch.zeros(2, 5)), ValueError, r"`out` must be \[2, 70\]"),
        (dict(cell=None), ValueError, "`own_pool` and `cell` go together"),
        (dict(cell=ints(1, CELLS)), RuntimeError, "`cell` must be from 0 to 4"),
        (dict(cell=ints(1, -2)), RuntimeError, "`cell` must be from 0 to 4"),
        (dict(cross_pool=None), ValueError, "`cross_pool` must be given for a decoder"),
        (dict(cross_pool=torch.randn(1, CELLS, 2, HEADS, 3)), ValueError, "`cross_pool` must be"),
        (
            dict(cross_pool=arguments()["cross_pool"].half()),
            ValueError,
            "`cross_pool` must be float32",
        ),
        (
            dict(own_pool=arguments()["own_pool"].half()),
            ValueError,
            "`own_pool` must be float32",
        ),
        (dict(own_cells=()), ValueError, "cells must be 4, 6, 7 or 8 tensors, but are 0"),
        (dict(own_cells=[]), TypeError, "expected a tuple, but got list"),
        (with_cell("own_cells", 0, ints(0, 3)), RuntimeError, "`offset` must be from 0 to 2"),
        (with_cell("own_cells", 1, ints(2)), RuntimeError, "`slot` must be from 0 to 1"),
        (with_cell("own_cells", 3, ints(0, 3)), RuntimeError, "`num_cells` must be from 0 to 2"),
        (with_cell("own_cells", 5, ints(0, 64)), RuntimeError, "`entry` must be from 0 to 63"),
        (
            with_cell("cross_cells", 2, ints(0, 0, 1, CELLS).view(2, 2)),
            RuntimeError,
            "`cell` is not in the pool",
        ),
    ],
)
def test_wrong_arguments(program, change, error, message):
    given = arguments()
    given.update(change) if isinstance(change, dict) else change(given)
    with pytest.raises(error, match=message):
        program.run(*given.values())


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (TABLE, torch.randn(VOCAB - 1, D), r"`table` must be \[70, 8\]"),
        (TABLE, NONE, r"`table` must be \[70, 8\]"),
        (POSITION_TABLE, torch.randn(D), "`position_table` must have 2 dimensions"),
        (FINAL_NORM, torch.ones(D + 1), "`weight of a norm` must be"),
        (OUTPUT, NONE, "`weights` must have an output layer of 70 columns"),
        (OUTPUT, torch.randn(1, D, 64), r"`weight` must be \[2, 8, 64\]"),
        (SELF_NORM, NONE, "`weights` lacks a norm of a layer"),
        (QKV, NONE, "`weights` lacks a matrix of a layer"),
        (CROSS_OUT, NONE, "`weights` lacks a matrix of a layer"),
        (QKV + 1, torch.ones(3 * D), "`scale` must be given for int8 weights alone"),
        (QKV + 2, torch.ones(D), "`bias` must be"),
    ],
)
def test_wrong_weights(index, value, message):
    given = weights()
    given[index] = value
    with pytest.raises(ValueError, match=message):
        native.layer_program(tuple(given), SHAPE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(num_heads=3, num_key_heads=3), "`bias` must be"),
        (dict(window=[], rotary=[]), "`weights` has too many tensors"),
        (dict(window=[0] * 2, rotary=[-1] * 2), "`weights` has too few tensors"),
        (dict(inner_size=0), "must be positive"),
        (dict(activation=6), "`activation` must be 0 to 5"),
        (dict(num_columns=0), r"`weight` must be \[0, 8, 64\]"),
    ],
)
def test_wrong_shapes(change, message):
    with pytest.raises(ValueError, match=message):
        native.layer_program(tuple(weights()), SHAPE._replace(**change))


def gated_weights(inner: int, heads: int, size: int) -> dict[str, list[torch.Tensor]]:
    """Make those of a layer as T5 has it: norms and matrices without biases, gates, heads of any size."""
    attended = heads * size

    def matrix(columns: int, depth: int) -> list[torch.Tensor]:
        return [*linear(columns, depth)[:2], NONE]

    return dict(
        self_norm=[torch.rand(D), *[NONE] * 5],
        qkv=matrix(3 * attended, D),
        head_norms=[NONE] * 4,
        self_out=matrix(D, attended),
        inner_norm=[torch.rand(D), *[NONE] * 5],
        inner=matrix(2 * inner, D),
        inner_out=matrix(D, inner),
    )


def test_gates_and_position_biases():
    """An encoder of one layer, beside one call per operator."""
    heads, size, inner, bias = 3, 4, 20, torch.randn(3, 5)
    layer, final = gated_weights(inner, heads, size), torch.rand(D)
    parts = [tensor for part in layer.values() for tensor in part]
    embeddings = [NONE, NONE, torch.empty(0, D), NONE, NONE]
    weights = [*embeddings, final, NONE, NONE, NONE, NONE, bias, *parts]
    shape = SHAPE._replace(
        inner_size=inner,
        activation=3,
        has_cross=False,
        num_heads=heads,
        num_key_heads=heads,
        num_columns=0,
        num_tokens=0,
        head_size=size,
        is_gated=True,
        bias_origin=2,
    )
    x, out = torch.randn(7, D), torch.empty(7, D)
    position = ints(0, 1, 2, 3, 0, 1, 2)
    cells = (ints(0, 4, 7), ints(0, 1), ints(0, 1, 2, 3, 4, 5, 6, 0).view(2, 4), ints(4, 3))
    program = native.layer_program(tuple(weights), shape)
    program.run(out, x.clone(), None, None, None, cells, (), position, position)

    def multiply(part: str, x: torch.Tensor, columns: int) -> torch.Tensor:
        y = torch.empty(len(x), columns)
        native.linear(y, x.contiguous(), layer[part][0], None, None, 0, False)
        return y

    y = native.rms_norm(x, layer["self_norm"][0], SHAPE.epsilon)
    qkv = multiply("qkv", y, 3 * heads * size).view(7, 3, heads, size).unbind(1)
    attention = torch.ops.pybeam.tree_attention.default
    y = attention(*qkv, *cells, None, None, shape.scale, position, position, bias, 2)
    x = x + multiply("self_out", y.flatten(1), D)
    y = native.rms_norm(x, layer["inner_norm"][0], SHAPE.epsilon)
    x = x + multiply("inner_out", native.gated(multiply("inner", y, 2 * inner), 3), D)
    assert torch.equal(out, native.rms_norm(x, final, SHAPE.epsilon))
    with pytest.raises(ValueError, match="`position` and `cell_position` must be given"):
        program.run(out, x.clone(), None, None, None, cells, (), None, None)
