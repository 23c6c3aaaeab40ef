"""Weights on their way to the L2 while programs wait for one another."""

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

from pybeam.triton_kernels.dependent_launch import CAN_WAIT

# bytes behind the layers that a launch asks for
MOST_AHEAD = 16 << 20
# bytes of a line of the L2
LINE = tl.constexpr(128)
# one thread asks
TO_L2 = tl.constexpr("""
{
    .reg .pred is_first;
    .reg .u32 thread;
    mov.u32 thread, %tid.x;
    setp.eq.u32 is_first, thread, 0;
    mov.u32 $0, 0;
    @is_first cp.async.bulk.prefetch.L2.global [$1], $2;
}
""")


@triton.jit
def ask_for(p_ahead, num_bytes):
    """Have the L2 fetch this program's share of these bytes; both numbers are multiples of 16."""
    if CAN_WAIT and cuda_capability_geq(9, 0):
        share = tl.cdiv(num_bytes, LINE * tl.num_programs(0)) * LINE
        begin = tl.program_id(0) * share
        size = tl.minimum(share, num_bytes - begin)
        if size > 0:
            own = [p_ahead.to(tl.int64) + begin, size]
            tl.inline_asm_elementwise(TO_L2, "=r,l,r", own, dtype=tl.int32, is_pure=False, pack=1)
