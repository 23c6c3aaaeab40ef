"""Weights on their way to the L2 while programs wait for one another."""

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

from pybeam.triton_kernels.dependent_launch import CAN_WAIT

# bytes that a launch asks for, in lines of the L2
MOST_AHEAD, LINE = 16 << 20, 128


@triton.jit
def ask_for(p_ahead, num_bytes, share):
    """Have the L2 fetch this program's share of these bytes; both numbers are multiples of 16."""
    if CAN_WAIT and cuda_capability_geq(9, 0):
        begin = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * share
        size = tl.minimum(share, num_bytes - begin)
        if size > 0:
            # one thread asks
            tl.inline_asm_elementwise(
                "{ .reg .pred is_first; .reg .u32 thread; mov.u32 thread, %tid.x;"
                " setp.eq.u32 is_first, thread, 0; mov.u32 $0, 0;"
                " @is_first cp.async.bulk.prefetch.L2.global [$1], $2; }",
                "=r,l,r",
                [p_ahead.to(tl.int64) + begin, size],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
