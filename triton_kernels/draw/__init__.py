"""`draw`: one token of each row by its noise, among those that top-k, top-p and min-p leave; `cut`: those.

The number of a token is its log-probability over the temperature, plus Gumbel noise, in float64: see
`pybeam.processors.sampling`. Float64 is slow, so all numbers of a row are computed in float32 first. Only the
largest one is computed in float64, and others beside it that are too near for float32 to tell (`numbers.py`).

A program of the first launch finds the largest number of its part of a row. In the second one a program
takes a row. Tokens that may not be drawn are those below a floor, so the largest of all is drawn unless it is
below. If it is, the largest of the more probable tokens is next (`cuts.py`). So nothing is sorted.
`cut` looks for the floor itself, by halves between no number and the largest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from pybeam.triton_kernels.draw.kernels import cut_kernel, parts_kernel, settle_kernel
from pybeam.triton_kernels.logits.parts import part_of
from pybeam.triton_kernels.select.options import MAX_EOS

BLOCK, BLOCK_OF_ROWS = 1024, 4096


class Slots(NamedTuple):
    """Arrays by slot."""

    temperature: Tensor
    seed: Tensor
    prefix_length: Tensor
    min_length: Tensor


class Cuts(NamedTuple):
    """Arrays by slot of what requests ask: k of top-k, p of top-p, and the logarithm of p of min-p."""

    k: Tensor | None
    p: Tensor | None
    log_ratio: Tensor | None


# the parameters are the arrays of a step, which kernels take one by one
def draw(
    log_probs: Tensor,
    temperature: Tensor,
    seed: Tensor,
    cuts: Sequence[Tensor],
    prefix_length: Tensor,
    min_length: Tensor,
    slot: Tensor,
    position: Tensor,
    eos_ids: Sequence[int],
) -> Tensor:
    """The log-probabilities [R, V] of `pybeam.processors.sampling`, of which each row has one token left.

    Args:
        log_probs: [R, V] of the rows, with the last stride 1.
        temperature, seed: [S] float32 and int64; nothing is drawn at a temperature of 0, or within a prefix.
        cuts: none, or k of top-k [S] int32, p of top-p [S] float32, and log(p) of min-p [S] float32.
        prefix_length, min_length: [S] int32.
        slot, position: [R] int32, of the rows.
        eos_ids: not drawn before `min_length`; at most 8.
    """
    num_rows, num_columns = log_probs.shape
    out = torch.empty(num_rows, num_columns, dtype=log_probs.dtype, device=log_probs.device)
    if not out.numel():
        return out
    part_columns = part_of(num_rows, num_columns, BLOCK)
    num_parts = triton.cdiv(num_columns, part_columns)
    number = torch.empty(num_rows, num_parts, dtype=torch.float64, device=out.device)
    token = torch.empty(num_rows, num_parts, dtype=torch.int32, device=out.device)
    peak = temperature.new_empty(num_rows, num_parts) if cuts else None
    # lengths are columns of the lines of slots
    strides = log_probs.stride(0), prefix_length.stride(0), min_length.stride(0)
    slots = Slots(temperature, seed, prefix_length, min_length)
    eos = [*eos_ids, *[eos_ids[0]] * (MAX_EOS.value - len(eos_ids))]
    parts_kernel[(num_rows, num_parts)](
        out,
        number,
        token,
        peak,
        log_probs,
        slots,
        slot,
        position,
        *strides,
        num_columns,
        part_columns,
        *eos,
        BLOCK=BLOCK,
        num_warps=4,
    )
    settle_kernel[(num_rows,)](
        out,
        number,
        token,
        peak,
        log_probs,
        slots,
        Cuts(*cuts) if cuts else None,
        slot,
        position,
        *strides,
        num_columns,
        num_parts,
        *eos,
        PARTS=triton.next_power_of_2(num_parts),
        BLOCK=BLOCK_OF_ROWS if cuts else 128,
        num_warps=16 if cuts else 1,
    )
    return out


def cut(
    x: Tensor,
    slot: Tensor,
    *,
    k: Tensor | None = None,
    p: Tensor | None = None,
    log_ratio: Tensor | None = None,
) -> Tensor:
    """Forbid what top-k, top-p or min-p do not leave of x [R, V], logits or log-probabilities; return x.

    Args:
        x: overwritten, unless its last stride is not 1.
        slot: [R] int32, of the rows.
        k, p, log_ratio: one of them, see `Cuts`. A row whose k is not 1 to V - 1, whose p is 1 or more, or
            whose ratio is 0 stays as it is.
    """
    x = x if x.stride(1) == 1 else x.contiguous()
    num_rows, num_columns = x.shape
    if x.numel():
        cuts = Cuts(k, p, log_ratio)
        cut_kernel[(num_rows,)](
            x, cuts, slot, x.stride(0), num_columns, BLOCK=BLOCK_OF_ROWS, num_warps=16
        )
    return x
