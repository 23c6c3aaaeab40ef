"""`perturb` and `restore_log_probs`: samples without replacement, as `pybeam.processors.gumbel` defines them.

Two launches perturb: the first finds each slice's largest number, the second those numbers that rank. Both
compute in float64: the upper tail of the noise needs 31 bits, and the score has the logarithm of a number's
distance from the largest, of which float32 would leave few digits where they are close.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.arithmetic import expm1, log1p
from pybeam.triton_kernels.dependent_launch import await_kernels, begins_early
from pybeam.triton_kernels.logits.parts import part_of

BLOCK = 1024
GOLDEN = tl.constexpr(-0x61C8864680B583EB)
FIRST_MIX64, SECOND_MIX64 = tl.constexpr(-0x40A7B892E31B1A47), tl.constexpr(-0x6B2FB644ECCEEE15)
FIRST_MIX32, SECOND_MIX32 = tl.constexpr(0x7FEB352D), tl.constexpr(-0x7B935975)


@triton.jit
def mixed64(x):
    """`pybeam.backends.torch_gumbel.mixed`."""
    x = x + GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * FIRST_MIX64
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * SECOND_MIX64
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@triton.jit
def mixed32(x):
    x = (x ^ ((x >> 16) & 0xFFFF)) * FIRST_MIX32
    x = (x ^ ((x >> 15) & 0x1FFFF)) * SECOND_MIX32
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def bits_of(key, b_token):
    """Make 31 random bits each from a key int64 and tokens int32."""
    low, high = key.to(tl.int32), (key >> 32).to(tl.int32)
    return mixed32((mixed32(b_token) ^ low) * (high | 1)) & 0x7FFFFFFF


@triton.jit
def noise_of(key, b_token):
    """Make Gumbel(0) numbers float64 from a key int64 and tokens int32."""
    b_uniform = (bits_of(key, b_token).to(tl.float64) + 0.5) * 4.656612873077393e-10
    # 1 - u is exact
    return -tl.log(-tl.log(1.0 - b_uniform))


class Arrays(NamedTuple):
    """Arrays by slot: some have a number each, some one for every node."""

    seed: Tensor
    hash: Tensor
    total: Tensor
    parent: Tensor
    log_prob: Tensor
    prefix_length: Tensor


class Rows(NamedTuple):
    """Where rows stand, and their last tokens."""

    slot: Tensor
    entry: Tensor
    node: Tensor
    token: Tensor
    position: Tensor


@begins_early
@triton.jit
def largest_kernel(
    p_largest,
    p_log_prob,
    arrays,
    rows,
    prefix_stride,
    num_nodes,
    num_columns,
    slice_columns,
    BLOCK: tl.constexpr,
):
    """The first program of a row also writes the hash and the total of its node."""
    await_kernels()
    i_row, i_slice = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(rows.slot + i_row).to(tl.int64)
    node = tl.load(rows.node + i_row).to(tl.int64)
    position = tl.load(rows.position + i_row)
    is_behind = position > tl.load(arrays.prefix_length + slot * prefix_stride)
    line = slot * num_nodes
    parent = tl.maximum(tl.load(arrays.parent + line + node), 0).to(tl.int64)
    own = tl.load(rows.token + i_row).to(tl.int64) + 1
    key = mixed64(tl.load(arrays.hash + line + parent) + own * GOLDEN)
    key = tl.where(is_behind, key, mixed64(tl.load(arrays.seed + slot)))
    if i_slice == 0:
        before = tl.where(position == 0, 0.0, tl.load(arrays.total + line + parent))
        tl.store(arrays.hash + line + node, key)
        tl.store(arrays.total + line + node, before + tl.load(arrays.log_prob + line + node))
    b_largest = tl.full([BLOCK], -float("inf"), tl.float64)
    first = i_slice * slice_columns
    for start in range(first, tl.minimum(first + slice_columns, num_columns), BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        m_token = o_token < num_columns
        p_own = p_log_prob + i_row * num_columns + o_token
        b_log_prob = tl.load(p_own, mask=m_token, other=-float("inf")).to(tl.float64)
        b_largest = tl.maximum(b_largest, noise_of(key, o_token) + b_log_prob)
    tl.store(p_largest + i_row * tl.num_programs(1) + i_slice, tl.max(b_largest, 0))


@begins_early
@triton.jit
def perturb_kernel(
    p_out,
    p_log_prob,
    p_largest,
    p_score,
    arrays,
    rows,
    prefix_stride,
    score_stride,
    num_nodes,
    num_columns,
    slice_columns,
    num_slices,
    BLOCK: tl.constexpr,
    SLICES: tl.constexpr,
):
    await_kernels()
    i_row = tl.program_id(0).to(tl.int64)
    o_slice = tl.arange(0, SLICES)
    p_own = p_largest + i_row * num_slices + o_slice
    largest = tl.max(tl.load(p_own, mask=o_slice < num_slices, other=-float("inf")), 0)
    largest = tl.where(largest == -float("inf"), 0.0, largest)
    slot = tl.load(rows.slot + i_row).to(tl.int64)
    node = slot * num_nodes + tl.load(rows.node + i_row)
    is_behind = tl.load(rows.position + i_row) > tl.load(
        arrays.prefix_length + slot * prefix_stride
    )
    key, total = tl.load(arrays.hash + node), tl.load(arrays.total + node)
    # the root's own noise is that of token -1, which no sequence holds
    of_root = noise_of(mixed64(tl.load(arrays.seed + slot)), tl.full([1], -1, tl.int32))
    score = tl.load(p_score + slot * score_stride + tl.load(rows.entry + i_row))
    has_luck = is_behind & (total > -float("inf"))
    luck = tl.where(has_luck, (score - total).to(tl.float64), of_root)
    of_root = tl.where(is_behind, 0.0, of_root)
    first = tl.program_id(1) * slice_columns
    for start in range(first, tl.minimum(first + slice_columns, num_columns), BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        m_token = o_token < num_columns
        o_column = i_row * num_columns + o_token
        b_log_prob = tl.load(p_log_prob + o_column, mask=m_token, other=-float("inf"))
        b_perturbed = noise_of(key, o_token) + b_log_prob.to(tl.float64)
        b_x = b_perturbed - largest
        # log(1 - exp(x)), see Mächler 2012; either side takes the numbers that it is exact for
        b_near = tl.log(-expm1(tl.maximum(b_x, -1.0)))
        b_far = log1p(-tl.exp(tl.minimum(b_x, -0.5)))
        b_excess = luck - b_perturbed + tl.where(b_x > -0.6931471805599453, b_near, b_far)
        b_softplus = log1p(tl.exp(-tl.abs(b_excess))) + tl.maximum(b_excess, 0.0)
        b_score = tl.where(
            b_log_prob == b_log_prob, of_root - b_softplus, b_log_prob.to(tl.float64)
        )
        tl.store(p_out + o_column, b_score, mask=m_token)


# the parameters are the arrays of a step, which kernels take one by one
def perturb(
    log_probs: Tensor,
    seed: Tensor,
    hashes: Tensor,
    totals: Tensor,
    parent: Tensor,
    node_log_prob: Tensor,
    prefix_length: Tensor,
    score: Tensor,
    slot: Tensor,
    entry: Tensor,
    node: Tensor,
    token: Tensor,
    position: Tensor,
) -> Tensor:
    """The scores [R, V] of `pybeam.processors.gumbel`; it also writes its state, [S, N] each."""
    (num_rows, num_columns), num_nodes = log_probs.shape, hashes.shape[1]
    log_probs = log_probs.contiguous()
    out = torch.empty_like(log_probs)
    if not out.numel():
        return out
    slice_columns = part_of(num_rows, num_columns, BLOCK)
    num_slices = triton.cdiv(num_columns, slice_columns)
    arrays = Arrays(seed, hashes, totals, parent, node_log_prob, prefix_length)
    rows = Rows(slot, entry, node, token, position)
    largest = torch.empty(num_rows, num_slices, dtype=torch.float64, device=out.device)
    grid = (num_rows, num_slices)
    largest_kernel[grid](
        largest,
        log_probs,
        arrays,
        rows,
        prefix_length.stride(0),
        num_nodes,
        num_columns,
        slice_columns,
        BLOCK=BLOCK,
    )
    perturb_kernel[grid](
        out,
        log_probs,
        largest,
        score,
        arrays,
        rows,
        prefix_length.stride(0),
        score.stride(0),
        num_nodes,
        num_columns,
        slice_columns,
        num_slices,
        BLOCK=BLOCK,
        SLICES=triton.next_power_of_2(num_slices),
    )
    return out


@begins_early
@triton.jit
def restore_kernel(
    p_out,
    p_log_prob,
    p_parent,
    p_token,
    p_row_log_prob,
    p_is_alive,
    p_prefix_length,
    p_slot,
    p_offset,
    p_position,
    prefix_stride,
    num_rows,
    num_places,
    num_columns,
    width,
    BLOCK: tl.constexpr,
):
    """A program has one survivor; the row that it continues is found by counting those before it."""
    await_kernels()
    i_survivor = tl.program_id(0).to(tl.int64)
    i_source = i_survivor // num_places
    slot = tl.load(p_slot + i_source).to(tl.int64)
    parent = tl.maximum(tl.load(p_parent + i_survivor), 0)
    token = tl.load(p_token + i_survivor)
    o_entry = tl.arange(0, BLOCK)
    p_own = p_is_alive + slot * width + o_entry
    b_is_alive = tl.load(p_own, mask=o_entry < width, other=0).to(tl.int32)
    row = tl.load(p_offset + i_source) + tl.sum(tl.where(o_entry < parent, b_is_alive, 0), 0)
    row = tl.minimum(row, num_rows - 1).to(tl.int64)
    is_alive = tl.sum(tl.where(o_entry == parent, b_is_alive, 0), 0) > 0
    is_behind = tl.load(p_position + row) >= tl.load(p_prefix_length + slot * prefix_stride)
    is_new = is_alive & is_behind & (token >= 0)
    log_prob = tl.load(p_log_prob + i_survivor)
    own = tl.load(p_row_log_prob + row * num_columns + token, mask=is_new, other=0.0)
    tl.store(p_out + i_survivor, tl.where(is_new, own.to(log_prob.dtype), log_prob))


# the parameters are the arrays of a step, which kernels take one by one
def restore_log_probs(
    log_prob: Tensor,
    parent: Tensor,
    token: Tensor,
    row_log_probs: Tensor,
    is_alive: Tensor,
    prefix_length: Tensor,
    slot: Tensor,
    offset: Tensor,
    position: Tensor,
) -> Tensor:
    """See `pybeam.backends.defaults.restore_log_probs`."""
    out, row_log_probs = torch.empty_like(log_prob), row_log_probs.contiguous()
    if out.numel():
        restore_kernel[(out.numel(),)](
            out,
            log_prob.contiguous(),
            parent.contiguous(),
            token.contiguous(),
            row_log_probs,
            is_alive,
            prefix_length,
            slot,
            offset,
            position,
            prefix_length.stride(0),
            len(row_log_probs),
            log_prob.shape[1],
            row_log_probs.shape[1],
            is_alive.shape[1],
            BLOCK=triton.next_power_of_2(is_alive.shape[1]),
        )
    return out
