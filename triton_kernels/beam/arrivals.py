"""Which program of a launch is the last to have come so far: it sees what all others have done before.

Programs are counted in a column of the null slot, which has no target. The last one puts 0 there again.
"""

import triton
import triton.language as tl

from pybeam.triton_kernels.beam.columns import INT_TARGET_LENGTH


@triton.jit
def arrive(beams, BLOCK: tl.constexpr):
    """Note that this program, which comes once, has read what the last one will overwrite.

    Returns a block whose sum is the number of those that came before, and for which nothing waits until then.
    """
    # every thread has read
    tl.debug_barrier()
    m_one = (tl.arange(0, BLOCK) == 0) & (tl.num_programs(0) > 1)
    return tl.where(m_one, count_arrival(beams, m_one, BLOCK), 0)


@triton.jit
def count_arrival(beams, m_one, BLOCK: tl.constexpr, IS_RELEASE: tl.constexpr = True):
    """Let the one thread of this mask say that the program is here. No release: it has changed nothing yet.

    Returns how many came before, for that thread alone, and nothing waits before it uses the number.
    """
    p_arrived = beams.ints + INT_TARGET_LENGTH + tl.arange(0, BLOCK)
    return tl.atomic_add(p_arrived, 1, mask=m_one, sem="release" if IS_RELEASE else "relaxed")


@triton.jit
def clear_arrivals(beams, m_last, BLOCK: tl.constexpr):
    """Let the one thread of this mask, if there is one, count from 0 again."""
    p_arrived = beams.ints + INT_TARGET_LENGTH + tl.arange(0, BLOCK)
    tl.store(p_arrived, 0, mask=m_last)
