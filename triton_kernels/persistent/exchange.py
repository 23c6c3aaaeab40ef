"""Numbers that programs of one launch leave for one another, each of which says itself that it is there.

A place holds `ABSENT`, a NaN that no conversion from float32 makes, until its number is written. So a program
that reads a place until it holds something else needs no other sign: no counter, and no fence between the
number and its sign. In one launch a place is written once, because each layer has places of its own.

There are two sets of places. A launch fills one set and empties the other one, which the launch before it has
filled, so that no program needs to know what others have read. `Books.launches` says which: the last program
that leaves counts the launch.

All programs must be on the device at once, which a cooperative launch sees to. Triton's interpreter runs them
one after another, so a launch has one phase there.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# whether programs can wait for one another
CAN_WAIT = tl.constexpr(not triton.knobs.runtime.interpret)
# a number of 16 bits that is not there: all its bits are set
ABSENT, ABSENT_BITS = tl.constexpr(-1), tl.constexpr(0xFFFF)
# places that a program empties at a time, two in an int32
EMPTIED = tl.constexpr(512)
# numbers of the books
LEFT, LAUNCHES = tl.constexpr(0), tl.constexpr(1)


class Exchange(NamedTuple):
    """The places of launches that follow one another, and their books."""

    places: Tensor  # [2, layers, places of a layer]
    books: Tensor  # [2] int32: programs that have left, launches so far


def exchange_of(
    num_layers: int, num_places: int, dtype: torch.dtype, device: torch.device
) -> Exchange:
    """Make places of so many layers, all of them empty; a layer's number is a multiple of 8."""
    assert dtype.itemsize == 2 and num_places % 8 == 0
    shape = 2, num_layers, num_places
    places = torch.full(shape, ABSENT.value, dtype=torch.int16, device=device)
    return Exchange(places.view(dtype), torch.zeros(2, dtype=torch.int32, device=device))


@triton.jit
def is_short(b_x):
    """Whether some number of a block is not there."""
    b_bits = b_x.to(tl.uint16, bitcast=True).to(tl.int32)
    return tl.max(b_bits) == ABSENT_BITS


@triton.jit
def awaited(p_x, m_x):
    """Load numbers when all of them are there. Where it is not `m_x` they are 0."""
    b_x = tl.load(p_x, mask=m_x, other=0.0, volatile=True)
    if CAN_WAIT:
        while is_short(b_x):
            b_x = tl.load(p_x, mask=m_x, other=0.0, volatile=True)
    return b_x


@triton.jit
def empty(p_places, num_places):
    """Empty this program's share of so many places, an even number."""
    p_pair = p_places.to(tl.pointer_type(tl.int32))
    begin, apart = tl.program_id(0) * EMPTIED, tl.num_programs(0) * EMPTIED
    for start in range(begin, num_places // 2, apart):
        o_pair = start + tl.arange(0, EMPTIED)
        tl.store(p_pair + o_pair, ABSENT, mask=o_pair < num_places // 2)


@triton.jit
def leave(p_books):
    """Count this program. The last one to leave counts the launch."""
    tl.debug_barrier()
    if tl.atomic_add(p_books + LEFT, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
        tl.store(p_books + LEFT, 0)
        tl.store(p_books + LAUNCHES, tl.load(p_books + LAUNCHES) + 1)
