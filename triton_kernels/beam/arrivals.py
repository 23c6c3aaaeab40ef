"""Which program of a launch is the last to have come so far: it sees what all others have done before.

Programs are counted in a column of the null slot, which has no target. The last one puts 0 there again.
"""

import triton
import triton.language as tl

from pybeam.triton_kernels.beam.columns import INT_TARGET_LENGTH


@triton.jit
def arrives_last(beams):
    """Whether all programs of this launch have come here; each comes once."""
    is_last = tl.num_programs(0) == 1
    if tl.num_programs(0) > 1:
        p_arrived = beams.ints + INT_TARGET_LENGTH
        # every thread has written
        tl.debug_barrier()
        is_last = tl.atomic_add(p_arrived, 1) == tl.num_programs(0) - 1
        if is_last:
            tl.store(p_arrived, 0)
    return is_last


@triton.jit
def arrive(beams, BLOCK: tl.constexpr):
    """Note that this program, which comes once, has read what the last one will overwrite.

    Returns a block whose sum is the number of those that came before, and for which nothing waits until then.
    """
    # every thread has read
    tl.debug_barrier()
    o_one = tl.arange(0, BLOCK)
    m_one = (o_one == 0) & (tl.num_programs(0) > 1)
    p_arrived = beams.ints + INT_TARGET_LENGTH + o_one
    return tl.where(m_one, tl.atomic_add(p_arrived, 1, mask=m_one, sem="release"), 0)
