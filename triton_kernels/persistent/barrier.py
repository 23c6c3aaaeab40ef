"""A barrier of all programs of one launch: each phase has a counter, in which those count that are done.

A program that waits for a phase waits until all programs have counted themselves in it. So it sees all that
they have written in that phase and in those before. One that has nothing to do in the next phase need not
wait, because no phase shares its counter with another. The last program of the launch puts all counters back
to zero: every program has waited for the last time before it leaves.

All programs must be on the device at once, which a cooperative launch sees to. Triton's interpreter runs them
one after another, so a launch has one phase there.
"""

from typing import NamedTuple

import triton
import triton.language as tl

# whether programs can wait for one another
CAN_WAIT = tl.constexpr(not triton.knobs.runtime.interpret)
# numbers from a counter to the next one, which lies in another line of the L2
COUNTER_STRIDE = tl.constexpr(32)
# one thread asks until the counter is as high as wanted; what it sees then, all threads behind a barrier see
POLL = tl.constexpr("""
{
    .reg .pred is_other, is_early;
    .reg .b32 thread, count;
    mov.u32 thread, %tid.x;
    setp.ne.u32 is_other, thread, 0;
    @is_other bra DONE;
AGAIN:
    ld.acquire.gpu.global.u32 count, [$1];
    setp.lt.u32 is_early, count, $2;
    @is_early bra AGAIN;
DONE:
    mov.b32 $0, 0;
}
""")


class Before(NamedTuple):
    """The programs that a phase waits for: their counter, and how many they are."""

    count: tl.tensor
    wanted: tl.tensor


@triton.jit
def arrive(p_count):
    """Count this program, whose writes all who wait for the counter see."""
    # all threads must have written before one of them counts the program
    tl.debug_barrier()
    tl.atomic_add(p_count, 1, sem="release", scope="gpu")


@triton.jit
def await_count(before):
    """Wait until so many programs have arrived. No load moves past it."""
    if CAN_WAIT:
        tl.inline_asm_elementwise(
            POLL, "=r,l,r", [before.count, before.wanted], dtype=tl.int32, is_pure=False, pack=1
        )
        tl.debug_barrier()


@triton.jit
def leave(p_count, num_programs, num_counters, BLOCK: tl.constexpr):
    """Count this program in the first counter. The last one to leave puts all counters back to zero."""
    tl.debug_barrier()
    if tl.atomic_add(p_count, 1, sem="acq_rel", scope="gpu") == num_programs - 1:
        o_counter = tl.arange(0, BLOCK)
        tl.store(p_count + o_counter * COUNTER_STRIDE, 0, mask=o_counter < num_counters)
