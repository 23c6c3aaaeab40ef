"""Write candidates as unique 64-bit keys, so that ties need no rule of their own: larger keys come first.

The upper half of a key holds a float32 in an order-preserving form, the lower half the complement of an
index. Keys therefore order by value descending, then by index ascending. -inf has no key.
"""

import triton
import triton.language as tl

EMPTY = tl.constexpr(-(2**63))
LAST = tl.constexpr(2**31 - 1)  # no index is larger

FEW = tl.constexpr(8)  # up to so many largest keys are found one by one
DIGIT_BITS = tl.constexpr(5)  # of a key, counted in one pass: a digit for every lane of a warp
DIGITS = tl.constexpr(32)


@triton.jit
def key_of(b_value, b_index):
    b_bits = tl.where(b_value == 0.0, 0.0, b_value).to(tl.int32, bitcast=True)  # -0.0 is 0.0
    b_order = b_bits ^ ((b_bits >> 31) & LAST)
    b_key = (b_order.to(tl.int64) << 32) | (b_index ^ LAST).to(tl.int64)
    return tl.where(b_value > -float("inf"), b_key, EMPTY)


@triton.jit
def value_of(b_key):
    """The value of a key; NaN for none."""
    b_order = (b_key >> 32).to(tl.int32)
    return (b_order ^ ((b_order >> 31) & LAST)).to(tl.float32, bitcast=True)


@triton.jit
def index_of(b_key):
    return (b_key & LAST).to(tl.int32) ^ LAST


@triton.jit
def nth_largest(b_key, n):
    """A key that n keys reach, n >= 1; the least of all if there are fewer.

    Up to FEW keys are found by as many maxima. Beyond that, every pass counts the next DIGIT_BITS of the keys
    that are left, and keeps those of one digit. At most 13 passes over registers exhaust the 64 bits of a
    key. Fewer do if all keys that are left are wanted.
    """
    m_key = b_key > EMPTY
    least = tl.min(tl.where(m_key, b_key, -1 - EMPTY), 0)
    most = tl.max(b_key, 0)
    num_left = tl.sum(m_key.to(tl.int32), 0)
    if n < num_left:
        if n <= FEW:
            least = most
            for _ in range(1, n):
                least = tl.max(tl.where(b_key < least, b_key, EMPTY), 0)
        else:
            # one bit more than all keys differ by, since a digit may begin below the least
            num_bits = bits_of(most - least) + 1
            while (n < num_left) & (num_bits > 0):
                step = tl.minimum(num_bits, DIGIT_BITS)
                num_bits -= step
                prefix = least >> num_bits
                # as unsigned numbers, smaller keys have large digits
                b_digit = ((b_key >> num_bits) - prefix).to(tl.uint64, bitcast=True)
                m_left = b_digit < (1 << step).to(tl.uint64)
                b_count = tl.histogram(b_digit.to(tl.int32), DIGITS, mask=m_left)
                b_reach = tl.cumsum(b_count, 0, reverse=True)
                digit = tl.sum((b_reach >= n).to(tl.int32), 0) - 1
                num_above = tl.max(tl.where(b_reach < n, b_reach, 0), 0)
                num_left = tl.min(tl.where(b_reach >= n, b_reach, LAST), 0) - num_above
                n -= num_above
                least = (prefix + digit) << num_bits
    return least


@triton.jit
def bits_of(difference):
    """How many bits the difference of two keys has, or one more; a negative one is above 2**63."""
    bits = difference.to(tl.uint64, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    return (bits >> 23) - 126
