"""Encoders of fewer bits attend over 64 tokens and more in products of bfloat16, whose sums are float32."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends.layer_program import LayerProgram, StackShape
from pybeam.models.linear import PackedLinear

native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)

NONE, INNER, EPSILON = torch.empty(0), 4, 1e-5
# source that is rounded
SHORTEST = 64
# lengths of sources around the shortest that are rounded, panels and the rows of a task; then heads and the
# size of one
SHAPES = [
    ((64,), 1, 16),
    ((65, 1, 70), 3, 4),
    ((79, 80, 63), 2, 5),
    ((97, 128, 129), 1, 33),
    ((130, 64), 2, 64),
    ((193, 2), 1, 80),
]


def encoder(matrix: PackedLinear, heads: int, size: int, bias: torch.Tensor) -> LayerProgram:
    """Make a layer that adds its attention to its inputs, and nothing else."""
    hidden = heads * size
    norm = [torch.ones(hidden), *[NONE] * 5]
    eye, *zeros = [
        PackedLinear(weight, None)
        for weight in (torch.eye(hidden), torch.zeros(INNER, hidden), torch.zeros(hidden, INNER))
    ]
    own, out, inner, inner_out = ([m.packed[0], NONE, NONE] for m in (matrix, eye, *zeros))
    weights = [NONE, NONE, torch.empty(0, hidden), *[NONE] * 7, bias]
    weights += [*norm, *own, *[NONE] * 4, *out, *norm, *inner, *inner_out]
    shape = StackShape(
        inner_size=INNER,
        activation=0,
        is_gated=False,
        is_parallel=False,
        has_cross=False,
        epsilon=EPSILON,
        num_heads=heads,
        num_key_heads=heads,
        head_size=size,
        scale=size**-0.5,
        soft_cap=0.0,
        output_soft_cap=0.0,
        num_columns=0,
        embedding_scale=1.0,
        num_tokens=0,
        skipped_id=-1,
        bias_origin=1,
        num_tables=0,
        window=[0],
        rotary=[-1],
    )
    return native.layer_program(tuple(weights), shape)


def encoded(program: LayerProgram, sources: list[torch.Tensor]) -> list[torch.Tensor]:
    """Send sources [E, d] through the layer, one after another."""
    lengths = [len(source) for source in sources]
    offset = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    cell = offset[:-1, None] + torch.arange(max(lengths), dtype=torch.int32)
    cell = torch.where(cell < offset[1:, None], cell, 0)
    slot = torch.arange(len(sources), dtype=torch.int32)
    position = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
    x = torch.cat(sources)
    out = torch.empty_like(x)
    cells = offset, slot, cell, torch.tensor(lengths, dtype=torch.int32)
    program.run(out, x, None, None, None, cells, (), position, position)
    return list(out.split(lengths))


@pytest.mark.parametrize(
    ("lengths", "heads", "size", "dtype"),
    [*((*shape, torch.bfloat16) for shape in SHAPES), (*SHAPES[1], torch.float32)],
)
def test_beside_the_same_in_float64(isa, lengths, heads, size, dtype):
    """Queries, keys, values and weights are rounded to nearest, sums are not.

    A weight beside a boundary may be rounded the other way, which few results notice.
    """
    hidden, bias = heads * size, torch.randn(heads, 3)
    matrix = PackedLinear(torch.randn(3 * hidden, hidden).to(dtype) / hidden**0.5, None)
    sources = [torch.randn(length, hidden) for length in lengths]
    found = encoded(encoder(matrix, heads, size, bias), sources)
    for x, y in zip(sources, found, strict=True):
        normal = native.rms_norm(x, torch.ones(hidden), EPSILON)
        parts = matrix(normal).view(len(x), 3, heads, size).permute(1, 2, 0, 3)  # [3, H, E, D]
        parts[0] *= size**-0.5
        rounds = dtype is torch.bfloat16 and len(x) >= SHORTEST
        query, key, value = (parts.bfloat16() if rounds else parts).double()
        place = torch.arange(len(x))
        distance = (place[:, None] - place + 1).clamp(0, 2)
        scores = query @ key.transpose(1, 2) + bias[:, distance].double()
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        mixed = (weights.bfloat16().double() if rounds else weights) @ value
        expected = (mixed / weights.sum(-1, keepdim=True)).transpose(0, 1).flatten(1)
        errors = (y - x - expected).abs()
        assert float(errors.median()) < 1e-6
        assert float(errors.max()) < (2**-8 if rounds else 2e-6)


@pytest.mark.parametrize(("lengths", "heads", "size"), SHAPES)
def test_bits_do_not_depend_on_other_sources(isa, lengths, heads, size):
    hidden = heads * size
    matrix = PackedLinear(torch.randn(3 * hidden, hidden).bfloat16(), None)
    program = encoder(matrix, heads, size, torch.randn(heads, 3))
    sources = [torch.randn(length, hidden) for length in (*lengths, 20)]
    together = encoded(program, sources)
    for i, source in enumerate(sources):
        assert torch.equal(encoded(program, [source])[0], together[i])
    for found, y in zip(reversed(encoded(program, sources[::-1])), together, strict=True):
        assert torch.equal(found, y)
