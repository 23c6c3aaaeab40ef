"""`add_norm`, `rms_norm` and `gated`: a program has a row, or a part of it.

The arithmetic is float32, whatever the dtype of the numbers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.dependent_launch import await_kernels, begins_early

MAX_COLUMNS = 1024
# of a row that one warp holds
WARP_COLUMNS = 512
# activations by their numbers in `Activation`
RELU, GELU, TANH_GELU, SILU, TANH = (tl.constexpr(i) for i in range(1, 6))


@triton.jit
def normed(b_x, o_x, m_x, p_weight, p_shift, size, epsilon):
    """Layer norm of a row, which is zero where it is not `m_x`; without a shift its root-mean-square norm."""
    if p_shift is not None:
        b_x = tl.where(m_x, b_x - tl.sum(b_x, 0) / size, 0.0)
    b_weight = tl.load(p_weight + o_x, mask=m_x, other=0.0).to(tl.float32)
    b_out = b_x / tl.sqrt(tl.sum(b_x * b_x, 0) / size + epsilon) * b_weight
    if p_shift is not None:
        b_out += tl.load(p_shift + o_x, mask=m_x, other=0.0).to(tl.float32)
    return b_out


@begins_early
@triton.jit
def rms_norm_kernel(p_y, p_x, p_weight, row_stride, size, epsilon, BLOCK: tl.constexpr):
    await_kernels()
    i_row, o_x = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    m_x = o_x < size
    b_x = tl.load(p_x + i_row * row_stride + o_x, mask=m_x, other=0.0).to(tl.float32)
    b_out = normed(b_x, o_x, m_x, p_weight, None, size, epsilon)
    tl.store(p_y + i_row * size + o_x, b_out, mask=m_x)


@begins_early
@triton.jit
def add_norm_kernel(
    p_out,
    p_x,
    p_y,
    p_bias,
    p_weight,
    p_shift,
    size,
    epsilon,
    BLOCK: tl.constexpr,
):
    await_kernels()
    i_row = tl.program_id(0).to(tl.int64) * size
    o_x = tl.arange(0, BLOCK)
    m_x = o_x < size
    b_y = tl.load(p_y + i_row + o_x, mask=m_x, other=0.0).to(tl.float32)
    if p_bias is not None:
        b_y += tl.load(p_bias + o_x, mask=m_x, other=0.0).to(tl.float32)
    b_x = tl.load(p_x + i_row + o_x, mask=m_x, other=0.0).to(tl.float32) + b_y
    # the norm is that of what is kept
    b_x = b_x.to(p_x.dtype.element_ty).to(tl.float32)
    tl.store(p_x + i_row + o_x, b_x, mask=m_x)
    b_out = normed(b_x, o_x, m_x, p_weight, p_shift, size, epsilon)
    tl.store(p_out + i_row + o_x, b_out, mask=m_x)


@triton.jit
def activated(b_x, ACTIVATION: tl.constexpr):
    if ACTIVATION == RELU:
        return tl.maximum(b_x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if ACTIVATION == GELU:
        return 0.5 * b_x * (1.0 + tl.erf(b_x * 0.7071067811865476))
    if ACTIVATION == TANH_GELU:
        return b_x * tl.sigmoid(1.5957691216057308 * (b_x + 0.044715 * b_x * b_x * b_x))
    if ACTIVATION == SILU:
        return b_x * tl.sigmoid(b_x)
    if ACTIVATION == TANH:
        return 2.0 * tl.sigmoid(2.0 * b_x) - 1.0
    return b_x


@begins_early
@triton.jit
def gated_kernel(p_y, p_x, row_stride, size, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    await_kernels()
    i_row = tl.program_id(0).to(tl.int64)
    o_x = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_x = o_x < size
    p_own = p_x + i_row * row_stride
    b_gate = tl.load(p_own + o_x, mask=m_x, other=0.0).to(tl.float32)
    b_value = tl.load(p_own + size + o_x, mask=m_x, other=0.0).to(tl.float32)
    tl.store(p_y + i_row * size + o_x, activated(b_gate, ACTIVATION) * b_value, mask=m_x)


def num_warps_of(block: int) -> int:
    """Number of warps that hold a row of so many columns."""
    return min(16, max(4, block // WARP_COLUMNS))


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`pybeam.backends.torch_layers.rms_norm` of rows x [n, d]; `turn_heads` norms heads."""
    y, (num_rows, size) = x.new_empty(x.shape), x.shape
    if y.numel():
        block = triton.next_power_of_2(size)
        facts = x.stride(0), size, epsilon
        num_warps = num_warps_of(block)
        rms_norm_kernel[(num_rows,)](y, x, weight, *facts, BLOCK=block, num_warps=num_warps)
    return y


def add_norm(
    x: Tensor,
    product: Tensor,
    bias: Tensor | None,
    weight: Tensor,
    shift: Tensor | None,
    epsilon: float,
) -> Tensor:
    """`pybeam.backends.torch_layers.add_norm`."""
    out, size = torch.empty_like(x), x.shape[1]
    if out.numel():
        block = triton.next_power_of_2(size)
        add_norm_kernel[(x.shape[0],)](
            out,
            x,
            product,
            bias,
            weight,
            shift,
            size,
            epsilon,
            BLOCK=block,
            num_warps=num_warps_of(block),
        )
    return out


def gated(x: Tensor, activation: int) -> Tensor:
    """`pybeam.backends.torch_layers.gated`."""
    size = x.shape[1] // 2
    y = x.new_empty(x.shape[0], size)
    if y.numel():
        block = min(MAX_COLUMNS, triton.next_power_of_2(size))
        grid = (x.shape[0], triton.cdiv(size, block))
        gated_kernel[grid](y, x, x.stride(0), size, ACTIVATION=int(activation), BLOCK=block)
    return y
