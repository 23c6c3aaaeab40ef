"""`LayerProgram` refuses wrong weights and shapes of a decoder alone."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends.layer_program import StackShape
from pybeam.models.transformer.fused import fused
from support.causal_stacks import NUM_POSITIONS, SHAPES, stack_of

native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)

SHAPE = StackShape(
    inner_size=40,
    activation=4,
    is_gated=True,
    is_parallel=False,
    has_cross=False,
    epsilon=1e-6,
    num_heads=4,
    num_key_heads=2,
    head_size=10,
    scale=0.3,
    soft_cap=0.0,
    output_soft_cap=0.0,
    num_columns=70,
    embedding_scale=1.0,
    num_tokens=70,
    skipped_id=-1,
    bias_origin=0,
    num_tables=2,
    window=[0, 0],
    rotary=[0, 1],
)


def weights() -> list[torch.Tensor]:
    """Those of a stack of this shape, in the order of the program."""
    given: list[torch.Tensor] = []
    stack, output = stack_of(SHAPES["qwen3"], torch.float32)

    class Caught:
        @staticmethod
        def layer_program(tensors, _shape):
            given.extend(tensors)

    fused(Caught, stack, output)
    return given


# where tensors stand in the list of weights
OUTPUT, COS, SELF_NORM, QKV, QUERY_NORM = 7, 11, 15, 21, 24
NONE = torch.empty(0)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (OUTPUT, NONE, "`weights` must have an output layer of 70 columns"),
        (COS, torch.randn(NUM_POSITIONS, 4), r"`sin` must be \[300, 4\]"),
        (COS, torch.randn(NUM_POSITIONS, 6), "`cos` must have at most 5 columns, but has 6"),
        (SELF_NORM, NONE, "`weights` lacks a norm of a layer"),
        (QKV, NONE, "`weights` lacks a matrix of a layer"),
        (QKV + 2, torch.ones(3), "`bias` must be"),
        (QUERY_NORM, torch.ones(3), "`weight of a norm` must be"),
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
        (dict(num_key_heads=3), "`num_heads` must be a multiple of `num_key_heads`"),
        (dict(num_key_heads=0), "`num_heads` must be a multiple of `num_key_heads`"),
        (dict(head_size=0), "`head_size` must be positive, but is 0"),
        (dict(head_size=9), "`cos` must have at most 4 columns, but has 5"),
        (dict(inner_size=0), "must be positive"),
        (dict(activation=6), "`activation` must be 0 to 5"),
        (dict(window=[0]), "must have an entry per layer, but have 1 and 2"),
        (dict(window=[0, -1]), "`window` must be at least 0, but is -1"),
        (dict(rotary=[0, 2]), "`rotary` must be from 0 to 1, or -1 for none, but is 2"),
        (dict(window=[0], rotary=[0]), "`weights` has too many tensors"),
        (dict(window=[0] * 3, rotary=[0] * 3), "`weights` has too few tensors"),
    ],
)
def test_wrong_shapes(change, message):
    native.layer_program(tuple(weights()), SHAPE)
    with pytest.raises(ValueError, match=message):
        native.layer_program(tuple(weights()), SHAPE._replace(**change))
