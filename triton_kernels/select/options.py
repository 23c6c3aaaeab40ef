"""The optional arguments of `select`: one variant of the kernel serves all combinations.

Bit i of `given` says whether there is an i-th optional argument. The bit behind them says whether logits
are log-probabilities already, and the bits behind that how many EOS ids there are. An absent argument has
the pointer of another tensor of its dtype, and nothing is read from it.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam import arguments
from pybeam.contracts import Finishing

OPTIONAL = (
    "is_ended",
    "max_candidates",
    "margin",
    "local_margin",
    "best_finished",
    "forced",
    "ban_eos",
)
IS_ENDED = tl.constexpr(1 << OPTIONAL.index("is_ended"))
MAX_CANDIDATES = tl.constexpr(1 << OPTIONAL.index("max_candidates"))
MARGIN = tl.constexpr(1 << OPTIONAL.index("margin"))
LOCAL_MARGIN = tl.constexpr(1 << OPTIONAL.index("local_margin"))
BEST_FINISHED = tl.constexpr(1 << OPTIONAL.index("best_finished"))
FORCED = tl.constexpr(1 << OPTIONAL.index("forced"))
BAN_EOS = tl.constexpr(1 << OPTIONAL.index("ban_eos"))
PLAIN = tl.constexpr(1 << len(OPTIONAL))  # the logits are log-probabilities already
# the bits from this one on count the EOS ids beside the first
MORE_EOS = tl.constexpr(len(OPTIONAL) + 1)
MAX_EOS = tl.constexpr(arguments.MAX_EOS)

HELD = tl.constexpr(int(Finishing.HELD))
REFILL = tl.constexpr(int(Finishing.REFILL))
SHRINK = tl.constexpr(int(Finishing.SHRINK))


class Inputs(NamedTuple):
    """The arguments of `select` beside the logits: pointers, then numbers."""

    score: tl.tensor
    offset: tl.tensor
    width: tl.tensor
    is_ended: tl.tensor
    max_candidates: tl.tensor
    margin: tl.tensor
    local_margin: tl.tensor
    best_finished: tl.tensor
    forced: tl.tensor
    ban_eos: tl.tensor
    num_columns: tl.tensor
    given: tl.tensor
    eos: tl.tuple
    finishing: tl.tensor


@triton.jit
def load_given(p_value, i_beam, given, OPTION: tl.constexpr, absent):
    """Load the i-th number of an optional argument, or return its default."""
    return tl.load(p_value + i_beam, mask=(given & OPTION) > 0, other=absent)


@triton.jit
def ends(b_token, eos):
    """Say which tokens are an EOS."""
    b_ends = b_token == eos[0]
    for i in tl.static_range(1, MAX_EOS):
        b_ends = b_ends | (b_token == eos[i])
    return b_ends


@triton.jit
def num_eos(given):
    """Return how many EOS ids there are."""
    return 1 + (given >> MORE_EOS)
