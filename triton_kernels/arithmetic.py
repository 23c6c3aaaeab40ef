"""Functions of numbers that several kernels need."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def exclusive_sum(b_count):
    return tl.cumsum(b_count, 0) - b_count


@triton.jit
def exp_shifted(b_x, b_peak):
    """Compute exp(x - peak), 0 if the peak is -inf."""
    return tl.exp2((b_x - tl.where(b_peak == -float("inf"), 0.0, b_peak)) * LOG2_E)


@triton.jit
def log1p(x):
    """Compute ``log(1 + x)``, exact where 1 + x is not. See Kahan's remark in Goldberg 1991."""
    total = 1.0 + x
    is_lost = total == 1.0
    return tl.where(is_lost, x, tl.log(total) * (x / tl.where(is_lost, 1.0, total - 1.0)))


@triton.jit
def expm1(x):
    """Compute ``exp(x) - 1`` for x >= -log(2), exact where exp(x) is near 1, by the same trick."""
    power = tl.exp(x)
    near = power == 1.0
    return tl.where(near, x, (power - 1.0) * (x / tl.where(near, 1.0, tl.log(power))))
