"""Top-k, top-p and min-p: whether a token is left, and the next token if it is not."""

import triton
import triton.language as tl

from pybeam.triton_kernels.draw.numbers import (
    NOTHING,
    better,
    largest_of,
    log_probs_of,
    nothing_yet,
)

# probabilities in float32, and their sums, are wrong by less than this share
SUM_ERROR = tl.constexpr(1e-4)


@triton.jit
def value_of(key):
    """Return the float32 of a number that orders as the floats do."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def key_of(value):
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def below_the_kth(row, k, peak, BLOCK: tl.constexpr):
    """Return a number above which the k largest log-probabilities and their equals are; -inf: all are."""
    low, high = key_of(tl.full([], NOTHING, tl.float32)).to(tl.int64), key_of(peak).to(tl.int64)
    while high - low > 1:
        middle = (low + high) >> 1
        b_count = tl.zeros([BLOCK], tl.int32)
        for start in range(0, row.num_columns, BLOCK):
            o_token = start + tl.arange(0, BLOCK)
            b_log_prob = log_probs_of(row, o_token, row.num_columns, NOTHING)
            # a NaN is above all numbers
            b_count += (~(b_log_prob <= value_of(middle.to(tl.int32)))).to(tl.int32)
        count = tl.sum(b_count, 0)
        low = tl.where(count >= k, middle, low)
        # those above are the k largest, and nobody equals them
        high = tl.where(count == k, low + 1, tl.where(count > k, high, middle))
    return value_of(low.to(tl.int32))


@triton.jit
def masses(row, bound, least, peak, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """Count the tokens above `bound`, and sum the probabilities of those and of all above `least`.

    Probabilities are divided by that of the most probable token, and computed in DTYPE.
    """
    b_mass, b_total = tl.zeros([BLOCK], DTYPE), tl.zeros([BLOCK], DTYPE)
    b_count = tl.zeros([BLOCK], tl.int32)
    temperature = row.temperature.to(DTYPE)
    for start in range(0, row.num_columns, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        b_log_prob = log_probs_of(row, o_token, row.num_columns, least)
        m_above = b_log_prob > bound
        if DTYPE == tl.float32:
            b_x = (b_log_prob - peak) * row.coldness
        else:
            b_x = b_log_prob.to(DTYPE) / temperature - peak.to(DTYPE) / temperature
        b_own = tl.exp(b_x)
        b_total += b_own
        b_mass += tl.where(m_above, b_own, 0.0)
        b_count += m_above.to(tl.int32)
    return tl.sum(b_count, 0), tl.sum(b_mass, 0).to(tl.float64), tl.sum(b_total, 0).to(tl.float64)


@triton.jit
def surely_masses(row, bound, least, peak, p, BLOCK: tl.constexpr):
    """`masses`, exact enough to tell whether those above `bound` are less than the share `p` of all."""
    count, mass, total = masses(row, bound, least, peak, tl.float32, BLOCK)
    # a NaN is near, too
    if ~(tl.abs(mass - p * total) > SUM_ERROR * total):
        count, mass, total = masses(row, bound, least, peak, tl.float64, BLOCK)
    return count, mass, total


@triton.jit
def below_the_nucleus(row, p, peak, BLOCK: tl.constexpr):
    """Return a number above which the tokens are that have less than the share `p` of all above them."""
    least = tl.full([], NOTHING, tl.float32)
    low, high = key_of(least).to(tl.int64), key_of(peak).to(tl.int64)
    # tokens above these
    num_low, num_high = row.num_columns, 0
    while high - low > 1:
        middle = (low + high) >> 1
        bound = value_of(middle.to(tl.int32))
        count, mass, total = surely_masses(row, bound, least, peak, p, BLOCK)
        is_left = mass < p * total
        low, num_low = tl.where(is_left, low, middle), tl.where(is_left, num_low, count)
        high, num_high = tl.where(is_left, middle, high), tl.where(is_left, count, num_high)
        # a token alone is the last one that is left
        high = tl.where(num_low - num_high == 1, low + 1, high)
    return value_of(low.to(tl.int32))


@triton.jit
def largest_above(row, bound, BLOCK: tl.constexpr):
    """Return the token with the largest number among those above `bound`."""
    best = nothing_yet(BLOCK)
    for start in range(0, row.num_columns, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        best = better(best, row, log_probs_of(row, o_token, row.num_columns, bound), o_token)
    return largest_of(best, row, 0, row.num_columns, bound, BLOCK)[1]


@triton.jit
def allowed(row, cuts, slot, token, peak, BLOCK: tl.constexpr):
    """Return the token with the largest number among those that the cuts leave; `token` has that of all."""
    k, p = tl.load(cuts.k + slot), tl.load(cuts.p + slot).to(tl.float64)
    log_ratio = tl.load(cuts.log_ratio + slot).to(tl.float64)
    has_k, has_p = (k > 0) & (k < row.num_columns), p < 1.0
    temperature = row.temperature.to(tl.float64)
    # of min-p
    floor = peak.to(tl.float64) / temperature + log_ratio
    least = tl.full([], NOTHING, tl.float32)
    if has_k & has_p:
        # top-p is about the probabilities that top-k leaves
        least = below_the_kth(row, k, peak, BLOCK)
    log_prob = tl.load(row.p_log_prob + token).to(tl.float32)
    is_open = has_k | has_p | (log_prob.to(tl.float64) / temperature < floor)
    # a NaN stays, and no maximum below would take it
    is_open &= log_prob == log_prob
    # no sum is near twice the whole
    share = tl.where(has_p, p, 2.0)
    while is_open:
        bound = tl.maximum(log_prob, least)
        count, mass, total = surely_masses(row, bound, least, peak, share, BLOCK)
        is_left = (log_prob > least) & ((count < k) | ~has_k) & ((mass < p * total) | ~has_p)
        is_left &= log_prob.to(tl.float64) / temperature >= floor
        is_open = ~is_left & (count > 0)
        if is_open:
            token = largest_above(row, bound, BLOCK)
            log_prob = tl.load(row.p_log_prob + token).to(tl.float32)
    return token
