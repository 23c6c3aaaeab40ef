"""Take the matrices of a checkpoint as integers with scales."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pybeam.backends.int4 import GROUP, num_groups, quantise_groups, unfold
from pybeam.backends.memory import large_array
from pybeam.backends.packing import INT4, LARGEST, Quantised, quantise
from pybeam.models.checkpoint import SCALE, Checkpoint


def take(
    checkpoint: Checkpoint,
    names: Sequence[str],
    sizes: Sequence[int],
    *columns: int,
    is_transposed: bool,
    dtype: torch.dtype,
) -> Quantised:
    """Return these matrices [out, ...], one below the other, as int8 or int4 of this dtype.

    They are as the file has them, or quantised a few rows at a time if it has others. `sizes` are the numbers
    of rows. `is_transposed` is whether floats are [columns, rows]: integers never are, since every output has
    scales.

    Raises:
        ValueError: one is missing, has another shape, NaN or infinities, or integers or scales that
            `quantise` does not give.
    """
    # other integers are taken as the floats that they stand for
    is_held = checkpoint.quantised in (dtype, INT4)
    is_transposed = is_transposed and not is_held
    scale, held = torch.empty(sum(sizes)), columns
    if dtype == INT4:
        [depth] = columns
        scale = torch.empty(sum(sizes), num_groups(depth), dtype=torch.bfloat16)
        held = (num_groups(depth) * (GROUP // 2),) if is_held else columns
    checkpoint.check_shapes(names, sizes, *held, is_transposed=is_transposed)
    joined = Quantised(large_array((sum(sizes), *columns), torch.int8), scale)
    parts = zip(joined.q.split(sizes), joined.scale.split(sizes), strict=True)
    for name, part in zip(names, parts, strict=True):
        checkpoint.matrices[name] = dtype
        if is_transposed:
            checkpoint.transposed.add(name)
        out = Quantised(*part)
        if not is_held:
            quantise_into(checkpoint, out, name)
        elif not checkpoint.fill(out, name):
            _fill(checkpoint, out, name)
    return joined


def quantise_into(checkpoint: Checkpoint, out: Quantised, name: str) -> None:
    """Quantise a matrix that the file has as floats. Raises ValueError as `take`."""
    rounded = quantise if out.scale.ndim == 1 else quantise_groups
    if name in checkpoint.transposed:
        turned = checkpoint.take(name, *reversed(out.q.shape)).t()
        out.q[:], out.scale[:] = rounded(turned.contiguous())
    else:
        for rows, part in checkpoint.take_parts(name, *out.q.shape):
            out.q[rows], out.scale[rows] = rounded(part)
    if not out.scale.isfinite().all():
        raise ValueError(f"{checkpoint.place(name)} must be finite, but has NaN or infinities")


def _fill(checkpoint: Checkpoint, out: Quantised, name: str) -> None:
    """Read a matrix that `pybeam.quantize` wrote. Raises ValueError as `take`."""
    matrix, is_grouped = checkpoint.stored[name], out.scale.ndim == 2
    expected = torch.uint8 if is_grouped else torch.int8
    if matrix.dtype != expected:
        raise ValueError(
            f"{checkpoint.place(name)} must be {expected}, as config.json says, but is {matrix.dtype}; "
            "quantise the model again"
        )
    if is_grouped:
        for rows in matrix.chunks():
            out.q[rows] = unfold(matrix.read(rows), out.q.shape[1])
    else:
        matrix.read_into(out.q)
        check_range(checkpoint, out, name)
    checkpoint.check_shapes([name + SCALE], [len(out.scale)], *out.scale.shape[1:])
    scale, place = checkpoint.stored[name + SCALE], checkpoint.place(name + SCALE)
    if scale.dtype != out.scale.dtype:
        raise ValueError(f"{place} must be {out.scale.dtype}, but is {scale.dtype}")
    scale.read_into(out.scale)
    is_sound, bound = out.scale.isfinite(), ""
    if not is_grouped:
        is_sound, bound = is_sound & (out.scale >= 0), " and at least 0"
    if not is_sound.all():
        raise ValueError(f"{place} must be finite{bound}, but has other numbers")


def check_range(checkpoint: Checkpoint, out: Quantised, name: str) -> None:
    """Raise ValueError for an int8 that `quantise` does not give."""
    if out.q.numel() and out.q.min() < -LARGEST:
        place = checkpoint.place(name)
        raise ValueError(f"{place} must be {-LARGEST} to {LARGEST}, but has -128")
