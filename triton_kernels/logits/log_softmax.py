"""Log-probabilities of rows of logits in one launch, a program a row; a row without any token stays so."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.arithmetic import exp_shifted
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

BLOCK = 4096


@one_variant()
def log_softmax_kernel(p_out, p_logits, row_stride, num_columns, BLOCK: tl.constexpr):
    await_kernels()
    i_row = tl.program_id(0).to(tl.int64)
    b_peak = tl.full([BLOCK], -float("inf"), tl.float32)
    b_sum = tl.zeros([BLOCK], tl.float32)
    for start in range(0, num_columns, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        p_logit = p_logits + i_row * row_stride + o_token
        b_logit = tl.load(p_logit, mask=o_token < num_columns, other=-float("inf")).to(tl.float32)
        b_new_peak = tl.maximum(b_peak, b_logit)
        b_sum = b_sum * exp_shifted(b_peak, b_new_peak) + exp_shifted(b_logit, b_new_peak)
        b_peak = b_new_peak
    peak = tl.max(b_peak, 0)
    # a NaN or +inf makes the sum NaN, and so the row
    total = tl.sum(b_sum * exp_shifted(b_peak, peak), 0)
    is_dead = total == 0.0
    log_sum = tl.log(tl.where(is_dead, 1.0, total))
    peak = tl.where(is_dead, 0.0, peak)
    for start in range(0, num_columns, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        m_token = o_token < num_columns
        p_logit = p_logits + i_row * row_stride + o_token
        b_logit = tl.load(p_logit, mask=m_token, other=-float("inf")).to(tl.float32)
        p_out_token = p_out + i_row * num_columns + o_token
        tl.store(p_out_token, (b_logit - peak) - log_sum, mask=m_token)


def log_softmax(logits: Tensor) -> Tensor:
    """Compute log-probabilities [R, V] float32 of logits [R, V]."""
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    if out.numel():
        log_softmax_kernel[(len(out),)](
            out, logits, logits.stride(0), out.shape[1], BLOCK=BLOCK, num_warps=16
        )
    return out
