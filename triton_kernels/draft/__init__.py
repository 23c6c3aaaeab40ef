"""`draft_commit`: outputs that are final are appended, and the next rows guessed, one program per source.

It takes two launches. The first accepts, stops and guesses, and counts pages. The second takes the pages and
writes the rows. It alone changes how many rows a source has, because in the first every source counts the
rows before its own.
"""

from typing import Any

import triton
from torch import Tensor

from pybeam.contracts import Survivors
from pybeam.triton_kernels.draft.commit import accept_kernel, rows_kernel


def draft_commit(
    tree: Any,
    beams: Any,
    drafts: Any,
    slot: Tensor,
    survivors: Survivors | None,
    eos_token: Tensor | None,
    tokens: Any,
) -> None:
    """See `DraftFunctions.commit`; None for survivors: the sources have just been opened."""
    num_sources = slot.numel()
    opens = survivors is None
    if num_sources == 0 or (survivors is not None and survivors.token.numel() == 0):
        return
    slot = slot.contiguous()
    next_rows, needed = slot.new_empty(num_sources), slot.new_empty(num_sources)
    if survivors is None:
        survivors = Survivors(*[slot] * len(Survivors._fields))
    survivors = Survivors(*[x.contiguous() for x in survivors])
    max_rows = beams.score.shape[1]
    block_rows = max(16, triton.next_power_of_2(max_rows))
    sizes = max_rows, tree.live_cell.shape[1], tree.page.shape[1]
    accept_kernel[(num_sources,)](
        tree,
        beams,
        drafts,
        *survivors,
        (survivors.token if eos_token is None else eos_token).contiguous(),
        slot,
        next_rows,
        needed,
        survivors.token.numel(),
        tokens.eos_id,
        tokens.vocab_size,
        beams.ints.shape[0],
        tree.token.shape[1],
        *sizes,
        beams.finished_ints.shape[1],
        beams.prefix.shape[1],
        drafts.guess.shape[1],
        OPENS=opens,
        BLOCK_ROWS=block_rows,
        num_warps=1,
    )
    rows_kernel[(num_sources,)](
        tree,
        beams,
        slot,
        next_rows,
        needed,
        *sizes,
        MASK_WORDS=tree.live_mask.shape[2],
        BLOCK_ROWS=block_rows,
        num_warps=1,
    )
