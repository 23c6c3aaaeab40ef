"""The numbers of tokens: a log-probability over the temperature, plus Gumbel noise."""

from typing import NamedTuple

import triton
import triton.language as tl
from triton.language.extra import libdevice

from pybeam.triton_kernels.logits.gumbel import GOLDEN, bits_of, mixed64, noise_of
from pybeam.triton_kernels.select.options import ends

IS_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
NOTHING = tl.constexpr(-float("inf"))
# float32 is wrong by less than this, and by less than this share of the numbers that are added
ERROR, SHARE = tl.constexpr(1e-4), tl.constexpr(1e-6)
# Gumbel noise of 31 bits is below this
MOST_NOISE = tl.constexpr(32.0)


class Row(NamedTuple):
    """A row, as a program knows it."""

    p_log_prob: tl.tensor
    temperature: tl.tensor
    coldness: tl.tensor  # 1 / temperature
    key: tl.tensor
    bans_eos: tl.tensor
    eos: tl.tuple
    num_columns: tl.tensor


class Best(NamedTuple):
    """The largest number of each lane in float32 and whose it is, and its second largest one."""

    number: tl.tensor
    token: tl.tensor
    second: tl.tensor
    has_nan: tl.tensor


@triton.jit
def row_of(p_log_prob, slots, p_slot, p_position, strides, num_columns, eos):
    """Return what a program knows of its row, and its slot, which is -1 where nothing is drawn."""
    row_stride, prefix_stride, min_stride = strides
    i_row = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slot + i_row).to(tl.int64)
    temperature = tl.load(slots.temperature + slot)
    done = tl.load(p_position + i_row) - tl.load(slots.prefix_length + slot * prefix_stride)
    seed = tl.load(slots.seed + slot)
    key = mixed64(mixed64(seed) + (done + 1).to(tl.int64) * GOLDEN)
    bans_eos = done < tl.load(slots.min_length + slot * min_stride)
    draws = (temperature > 0) & (done >= 0)
    temperature = tl.where(draws, temperature, 1.0)
    row = Row(
        p_log_prob + i_row * row_stride,
        temperature,
        1.0 / temperature,
        key,
        bans_eos,
        eos,
        num_columns,
    )
    return row, tl.where(draws, slot, -1)


@triton.jit
def log_probs_of(row, o_token, last, least):
    """Return the log-probabilities of tokens up to `last`, -inf for those that are not above `least`."""
    b_log_prob = tl.load(row.p_log_prob + o_token, mask=o_token < last, other=NOTHING)
    b_log_prob = b_log_prob.to(tl.float32)
    if row.bans_eos:
        b_log_prob = tl.where(ends(o_token, row.eos), NOTHING, b_log_prob)
    return tl.where(b_log_prob <= least, NOTHING, b_log_prob)


@triton.jit
def fast_log(x):
    """Compute log(x) as the hardware does, within 2e-7 or so many of x's last digits."""
    return tl.log(x) if IS_INTERPRETED else libdevice.fast_logf(x)


@triton.jit
def fast_noise_of(key, b_token):
    """`noise_of` in float32."""
    b_bits = bits_of(key, b_token)
    b_uniform = (b_bits.to(tl.float32) + 0.5) * 4.656612873077393e-10
    # 1 - u is counted from the other end, and -log(1 - u) is a series where it loses digits
    b_rest = ((0x7FFFFFFF - b_bits).to(tl.float32) + 0.5) * 4.656612873077393e-10
    b_small = b_uniform * (1.0 + b_uniform * (0.5 + b_uniform * (1.0 / 3.0)))
    return -fast_log(tl.where(b_uniform < 0.015625, b_small, -fast_log(b_rest)))


@triton.jit
def nothing_yet(BLOCK: tl.constexpr):
    b_none = tl.full([BLOCK], NOTHING, tl.float32)
    b_zero = tl.zeros([BLOCK], tl.int32)
    return Best(b_none, b_zero, b_none, b_zero)


@triton.jit
def better(best, row, b_log_prob, o_token):
    """Return the best numbers with those of these tokens beside them."""
    b_number = b_log_prob * row.coldness + fast_noise_of(row.key, o_token)
    b_second = tl.maximum(best.second, tl.minimum(best.number, b_number))
    b_token = tl.where(b_number > best.number, o_token, best.token)
    b_has_nan = best.has_nan | (b_number != b_number).to(tl.int32)
    return Best(tl.maximum(best.number, b_number), b_token, b_second, b_has_nan)


@triton.jit
def exact_numbers(row, b_log_prob, o_token):
    """Return numbers in float64; a NaN is larger than all others."""
    b_number = b_log_prob.to(tl.float64) / row.temperature.to(tl.float64)
    b_number += noise_of(row.key, o_token)
    return tl.where(b_number == b_number, b_number, float("inf"))


@triton.jit
def exact_largest(row, first, last, least, BLOCK: tl.constexpr):
    """Return the largest number of tokens first .. last above `least` in float64, and its first token."""
    b_number = tl.full([BLOCK], NOTHING, tl.float64)
    b_token = first + tl.arange(0, BLOCK)
    for start in range(first, last, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        b_log_prob = log_probs_of(row, o_token, last, least)
        b_own = exact_numbers(row, b_log_prob, o_token)
        b_token = tl.where(b_own > b_number, o_token, b_token)
        b_number = tl.maximum(b_number, b_own)
    number = tl.max(b_number, 0)
    return number, tl.min(tl.where(b_number == number, b_token, row.num_columns), 0)


@triton.jit
def largest_of(best, row, first, last, least, BLOCK: tl.constexpr):
    """Return the largest number in float64 of the tokens that `best` has seen, and its first token."""
    about = tl.max(best.number, 0)
    token = tl.min(tl.where(best.number == about, best.token, row.num_columns), 0)
    near = about - 2 * (ERROR + SHARE * (tl.abs(about) + MOST_NOISE))
    b_rivals = (best.number >= near).to(tl.int32) + (best.second >= near).to(tl.int32)
    is_sure = (tl.sum(b_rivals, 0) == 1) & (tl.max(best.has_nan, 0) == 0)
    if is_sure & (tl.abs(about) < float("inf")):
        o_token = token + tl.arange(0, 1)
        number = tl.max(exact_numbers(row, log_probs_of(row, o_token, last, least), o_token), 0)
    else:
        number, token = exact_largest(row, first, last, least, BLOCK)
    return number, token
