"""`accept_draft`: one program per (row, position, slice of the vocabulary).

A slice is read once and held in registers, in packs of 16 bytes that are aligned in memory wherever
a line begins: pack 0 begins `shift` elements before it. The last program of a row merges the slices
of all positions in their order and counts how far the draft agrees.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.counters import counters
from pybeam.triton_kernels.select import PACK_BYTES, aligned

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# elements; a thread of the smallest slice reads a pack
SLICE, LEAST_SLICE = 8192, 1024
# arguments whose alignment makes no difference worth a variant
SMALL = ["p_draft", "p_accepted", "p_eos_position", "p_has_nan", "p_peak", "p_sum", "p_first"]
NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def peak_and_shift(b_logit, axis: tl.constexpr):
    """The largest logit and what to subtract from all of them: 0 if there is none above -inf."""
    b_peak = tl.max(b_logit, axis)
    return b_peak, tl.where(b_peak == -float("inf"), 0.0, b_peak)


@triton.jit
def read_slice(p_pack0, shift, i_slice, vocab_size, PACK: tl.constexpr, SLICE: tl.constexpr):
    """Peak, the first token that has it, and ``sum(exp(logit - peak))``: NaN with a NaN or +inf."""
    o_pack = (i_slice * (SLICE // PACK) + tl.arange(0, SLICE // PACK)) * PACK
    o_logit = o_pack[:, None] + tl.arange(0, PACK)[None, :]
    m_whole = ((o_pack >= shift) & (o_pack + PACK <= shift + vocab_size))[:, None]
    b_logit = tl.load(p_pack0 + o_logit, mask=m_whole, other=-float("inf")).to(tl.float32)
    # a pack that holds other memory than the line too is read element by element
    if (i_slice == 0) | ((i_slice + 1) * SLICE > shift + vocab_size):
        m_edge = (o_logit >= shift) & (o_logit < shift + vocab_size) & ~m_whole
        b_edge = tl.load(p_pack0 + o_logit, mask=m_edge, other=-float("inf")).to(tl.float32)
        b_logit = tl.where(m_edge, b_edge, b_logit)
    peak, shift_peak = peak_and_shift(tl.max(b_logit, 1), 0)
    b_first = tl.min(tl.where(b_logit == peak, o_logit - shift, NO_TOKEN), 1)
    return peak, tl.min(b_first, 0), tl.sum(tl.sum(tl.exp(b_logit - shift_peak), 1), 0)


@triton.jit
def merge_slices(
    p_peak,
    p_sum,
    p_first,
    num_positions,
    num_slices,
    BLOCK_Q: tl.constexpr,
    BLOCK_SLICES: tl.constexpr,
):
    """Token, log_prob and whether it is valid [BLOCK_Q] from the slices of every position."""
    o_q, o_slice = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_SLICES)
    o_part = o_q[:, None] * num_slices + o_slice[None, :]
    m_part = (o_q < num_positions)[:, None] & (o_slice < num_slices)[None, :]
    # .cg: other multiprocessors wrote these, so they are not in the first-level cache
    b_peaks = tl.load(p_peak + o_part, mask=m_part, other=-float("inf"), cache_modifier=".cg")
    b_sums = tl.load(p_sum + o_part, mask=m_part, other=0.0, cache_modifier=".cg")
    b_first = tl.load(p_first + o_part, mask=m_part, other=NO_TOKEN, cache_modifier=".cg")
    b_peak, b_shift = peak_and_shift(b_peaks, 1)
    b_sum = tl.sum(b_sums * tl.exp(b_peaks - b_shift[:, None]), 1)
    b_token = tl.min(tl.where(b_peaks == b_peak[:, None], b_first, NO_TOKEN), 1)
    m_nan = b_sum != b_sum
    m_valid = (b_peak > -float("inf")) & ~m_nan
    b_log_prob = tl.where(m_valid, 0.0 - tl.log(b_sum), -float("inf"))
    return tl.where(m_valid, b_token, -1), b_log_prob, m_nan


@triton.jit(
    do_not_specialize=[
        "eos_id",
        "vocab_size",
        "num_positions",
        "num_slices",
        "lead",
        "row_stride",
        "position_stride",
    ],
    do_not_specialize_on_alignment=SMALL,
)
def accept_draft_kernel(
    p_logits,
    p_draft,
    p_token,
    p_log_prob,
    p_accepted,
    p_eos_position,
    p_has_nan,
    p_peak,  # [R, Q, slices]
    p_sum,  # [R, Q, slices]
    p_first,  # [R, Q, slices], the first token of each slice that has its largest logit
    p_count,  # [R], slices that are read
    eos_id,
    vocab_size,
    num_positions,
    num_slices,
    lead,
    row_stride,
    position_stride,
    PACK: tl.constexpr,
    SLICE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_SLICES: tl.constexpr,
):
    i_part = tl.program_id(0).to(tl.int64)
    i_slice = (i_part % num_slices).to(tl.int32)
    i_position = i_part // num_slices % num_positions
    i_row = i_part // num_slices // num_positions
    start = lead + i_row * row_stride + i_position * position_stride
    p_pack0 = p_logits + start // PACK * PACK
    shift = (start % PACK).to(tl.int32)
    peak, first, total = read_slice(p_pack0, shift, i_slice, vocab_size, PACK, SLICE)
    tl.store(p_peak + i_part, peak)
    tl.store(p_first + i_part, first)
    tl.store(p_sum + i_part, total)
    tl.debug_barrier()
    num_parts = num_positions * num_slices
    if tl.atomic_add(p_count + i_row, 1, sem="acq_rel") < num_parts - 1:
        return
    tl.store(p_count + i_row, 0)

    o_part = i_row * num_parts
    b_token, b_log_prob, m_nan = merge_slices(
        p_peak + o_part,
        p_sum + o_part,
        p_first + o_part,
        num_positions,
        num_slices,
        BLOCK_Q,
        BLOCK_SLICES,
    )
    o_q = tl.arange(0, BLOCK_Q)
    m_q = o_q < num_positions
    o_position = i_row * num_positions + o_q
    tl.store(p_token + o_position, b_token, mask=m_q)
    tl.store(p_log_prob + o_position, b_log_prob, mask=m_q)
    b_guess = tl.load(p_draft + o_position + 1, mask=o_q + 1 < num_positions, other=-1)
    # the next output is final too: it was computed from this token, and this token does not end
    m_goes_on = (b_token >= 0) & (b_token != eos_id) & (b_guess == b_token)
    i_last = tl.min(tl.where(m_goes_on, num_positions, o_q), 0)
    m_last = o_q == i_last
    ends = tl.max((m_last & (b_token >= 0) & (b_token == eos_id)).to(tl.int32), 0)
    tl.store(p_accepted + i_row, i_last + 1)
    tl.store(p_eos_position + i_row, tl.where(ends != 0, i_last, -1))
    tl.store(p_has_nan + i_row, tl.max((m_last & m_nan).to(tl.int32), 0) != 0)


def accept_draft(
    logits: Tensor, draft: Tensor, eos_id: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`pybeam.ops.accept_draft`."""
    if logits.dtype not in DTYPES:
        raise ValueError(f"`logits` must be one of {DTYPES} for Triton, but is {logits.dtype}")
    num_rows, num_positions, vocab_size = logits.shape
    ints = dict(dtype=torch.int32, device=logits.device)
    token = torch.empty(num_rows, num_positions, **ints)
    log_prob = torch.empty(num_rows, num_positions, dtype=torch.float32, device=logits.device)
    accepted, eos_position = torch.empty(2, num_rows, **ints)
    has_nan = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    results = (token, log_prob, accepted, eos_position, has_nan)
    if num_rows == 0:
        return results
    pack = PACK_BYTES // logits.itemsize
    slice_size = min(SLICE, max(LEAST_SLICE, triton.next_power_of_2(vocab_size)))
    # an unaligned line begins inside its first pack
    num_slices = triton.cdiv(vocab_size + pack - 1, slice_size)
    num_parts = num_rows * num_positions * num_slices
    peak, total = log_prob.new_empty(2, num_parts)
    base, lead, (row_stride, position_stride, _) = aligned(logits)
    accept_draft_kernel[(num_parts,)](
        base,
        draft.contiguous(),
        *results,
        peak,
        total,
        torch.empty(num_parts, **ints),
        counters(num_rows, logits.device),
        eos_id,
        vocab_size,
        num_positions,
        num_slices,
        lead,
        row_stride,
        position_stride,
        PACK=pack,
        SLICE=slice_size,
        BLOCK_Q=triton.next_power_of_2(num_positions),
        BLOCK_SLICES=triton.next_power_of_2(num_slices),
        num_warps=8 if slice_size == SLICE else 4,
    )
    return results
