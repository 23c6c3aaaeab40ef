"""The kernels of `draw`."""

import triton.language as tl

from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.draw.cuts import allowed, below_the_kth, below_the_nucleus
from pybeam.triton_kernels.draw.numbers import (
    NOTHING,
    Row,
    better,
    largest_of,
    log_probs_of,
    nothing_yet,
    row_of,
)


@one_variant()
def parts_kernel(
    p_out,
    p_number,  # [R, parts] float64
    p_token,  # [R, parts]
    p_peak,  # [R, parts], the largest log-probability; None: nobody asks for it
    p_log_prob,
    slots,
    p_slot,
    p_position,
    row_stride,
    prefix_stride,
    min_stride,
    num_columns,
    part_columns,
    eos_0,
    eos_1,
    eos_2,
    eos_3,
    eos_4,
    eos_5,
    eos_6,
    eos_7,
    BLOCK: tl.constexpr,
):
    """Rows that draw nothing are copied."""
    await_kernels()
    i_row, i_part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    eos = (eos_0, eos_1, eos_2, eos_3, eos_4, eos_5, eos_6, eos_7)
    strides = row_stride, prefix_stride, min_stride
    row, slot = row_of(p_log_prob, slots, p_slot, p_position, strides, num_columns, eos)
    first = i_part * part_columns
    last = tl.minimum(first + part_columns, num_columns)
    p_own = p_out + i_row * num_columns
    if slot < 0:
        for start in range(first, last, BLOCK):
            o_token = start + tl.arange(0, BLOCK)
            m_token = o_token < last
            tl.store(p_own + o_token, tl.load(row.p_log_prob + o_token, mask=m_token), mask=m_token)
        return
    best, b_peak = nothing_yet(BLOCK), tl.full([BLOCK], NOTHING, tl.float32)
    for start in range(first, last, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        b_log_prob = log_probs_of(row, o_token, last, NOTHING)
        tl.store(p_own + o_token, NOTHING, mask=o_token < last)
        best = better(best, row, b_log_prob, o_token)
        if p_peak is not None:
            b_peak = tl.maximum(b_peak, b_log_prob)
    number, token = largest_of(best, row, first, last, NOTHING, BLOCK)
    i_own = i_row * tl.num_programs(1) + i_part
    tl.store(p_number + i_own, number)
    tl.store(p_token + i_own, token)
    if p_peak is not None:
        tl.store(p_peak + i_own, tl.max(b_peak, 0))


@one_variant()
def settle_kernel(
    p_out,
    p_number,
    p_token,
    p_peak,
    p_log_prob,
    slots,
    cuts,  # None: all tokens may be drawn
    p_slot,
    p_position,
    row_stride,
    prefix_stride,
    min_stride,
    num_columns,
    num_parts,
    eos_0,
    eos_1,
    eos_2,
    eos_3,
    eos_4,
    eos_5,
    eos_6,
    eos_7,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    await_kernels()
    i_row = tl.program_id(0).to(tl.int64)
    eos = (eos_0, eos_1, eos_2, eos_3, eos_4, eos_5, eos_6, eos_7)
    strides = row_stride, prefix_stride, min_stride
    row, slot = row_of(p_log_prob, slots, p_slot, p_position, strides, num_columns, eos)
    if slot < 0:
        return
    o_part = tl.arange(0, PARTS)
    m_part, o_own = o_part < num_parts, i_row * num_parts + o_part
    b_number = tl.load(p_number + o_own, mask=m_part, other=NOTHING)
    b_token = tl.load(p_token + o_own, mask=m_part, other=num_columns)
    token = tl.min(tl.where(b_number == tl.max(b_number, 0), b_token, num_columns), 0)
    if cuts is not None:
        peak = tl.max(tl.load(p_peak + o_own, mask=m_part, other=NOTHING), 0)
        token = allowed(row, cuts, slot, token, peak, BLOCK)
    tl.store(p_out + i_row * num_columns + token, tl.load(row.p_log_prob + token))


@one_variant()
def cut_kernel(p_x, cuts, p_slot, row_stride, num_columns, BLOCK: tl.constexpr):
    """One of the cuts is given, the others are None. Only what is cut is written."""
    await_kernels()
    i_row = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slot + i_row).to(tl.int64)
    one = tl.full([], 1.0, tl.float32)
    # nothing is drawn, and EOS is not banned
    none = (-1, -1, -1, -1, -1, -1, -1, -1)
    row = Row(p_x + i_row * row_stride, one, one, 0, False, none, num_columns)
    if cuts.k is not None:
        k = tl.load(cuts.k + slot)
        is_on = (k > 0) & (k < num_columns)
    elif cuts.p is not None:
        p = tl.load(cuts.p + slot).to(tl.float64)
        is_on = p < 1.0
    else:
        log_ratio = tl.load(cuts.log_ratio + slot)
        is_on = log_ratio > NOTHING
    if is_on:
        b_peak = tl.full([BLOCK], NOTHING, tl.float32)
        for start in range(0, num_columns, BLOCK):
            o_token = start + tl.arange(0, BLOCK)
            b_peak = tl.maximum(b_peak, log_probs_of(row, o_token, num_columns, NOTHING))
        peak = tl.max(b_peak, 0)
        if cuts.k is not None:
            bound = below_the_kth(row, k, peak, BLOCK)
        elif cuts.p is not None:
            bound = below_the_nucleus(row, p, peak, BLOCK)
        else:
            bound = peak + log_ratio
        for start in range(0, num_columns, BLOCK):
            o_token = start + tl.arange(0, BLOCK)
            b_x = log_probs_of(row, o_token, num_columns, NOTHING)
            m_cut = b_x < bound if cuts.log_ratio is not None else b_x <= bound
            tl.store(row.p_log_prob + o_token, NOTHING, mask=m_cut & (o_token < num_columns))
