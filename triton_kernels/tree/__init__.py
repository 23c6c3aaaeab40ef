"""`tree_append`: a step of the token tree, one program per source.

It takes two launches, because the pages that a source gets depend on those that earlier sources take.
The first launch says which live nodes the new rows see (`masks.py` or `paths.py`), frees the cells
of nodes that no row sees any more, and counts the pages needed. In the second, every source adds up the
counts before its own, takes its pages and appends its nodes. The result is the same as for one source after
another. `beam/commit.py` does more in the second launch.

The engine must make room (`TokenTree.reserve`). If it did not, a survivor gets no node, cell or page.
Nothing is ever written out of bounds.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from pybeam.contracts import Survivors
from pybeam.triton_kernels.tree.append import append_kernel
from pybeam.triton_kernels.tree.backtrace import backtrace_kernel
from pybeam.triton_kernels.tree.inherit import inherit_kernel
from pybeam.triton_kernels.tree.release import release_kernel

TILE_WORDS = 2048
# rows of a beam that one warp moves
WARP_ROWS = 128
MAX_WARPS = 16


class Append(NamedTuple):
    """The arguments of the second launch; its first launch is done."""

    num_sources: int
    arguments: tuple
    mask_words: int
    block_rows: int
    num_warps: int


def begin_append(tree: Any, slot: Tensor, survivors: Survivors, eos_id: int) -> Append:
    """Do the first launch, for at least one slot. `tree` is a `TreeArrays`."""
    num_sources = slot.numel()
    slot, survivors = slot.contiguous(), Survivors(*[x.contiguous() for x in survivors])
    block_rows = max(16, triton.next_power_of_2(tree.row_node.shape[1]))
    lines = (tree.token, tree.row_node, tree.live_cell, tree.free_cell, tree.page)
    most = (array.shape[1] for array in lines)
    sizes = (survivors.token.shape[1], tree.page.shape[0], *most, tree.path.shape[2])
    arguments = (tree, *survivors, slot, slot.new_empty(num_sources + 1), eos_id, *sizes)
    mask_words, num_warps = tree.live_mask.shape[2], triton.cdiv(block_rows, WARP_ROWS)
    has_paths = mask_words == 0
    inherit_kernel[(num_sources,)](
        *arguments,
        slot.new_empty(num_sources, tree.live_cell.shape[1]) if has_paths else None,
        MASK_WORDS=mask_words,
        BLOCK_ROWS=block_rows,
        BLOCK_CELLS=TILE_WORDS // (2 if has_paths else block_rows),
        num_warps=min(max(4, num_warps), MAX_WARPS) if has_paths else 4,
    )
    return Append(num_sources, arguments, mask_words, block_rows, min(num_warps, MAX_WARPS))


def tree_append(tree: Any, slot: Tensor, survivors: Survivors, eos_id: int) -> None:
    """`pybeam.kvcache.token_tree.TokenTree.append`; `tree` is a `TreeArrays`."""
    if slot.numel() == 0:
        return
    append = begin_append(tree, slot, survivors, eos_id)
    append_kernel[(append.num_sources,)](
        *append.arguments,
        MASK_WORDS=append.mask_words,
        BLOCK_ROWS=append.block_rows,
        num_warps=append.num_warps,
    )


def tree_release(tree: Any, slot: Tensor) -> None:
    """See `pybeam.backends.Backend.tree_release`."""
    if slot.numel() == 0:
        return
    release_kernel[(1,)](
        tree.num_nodes,
        tree.num_live,
        tree.path_length,
        tree.num_free,
        tree.page,
        tree.num_pages,
        tree.free_page,
        tree.num_free_pages,
        slot.contiguous(),
        slot.numel(),
        *tree.page.shape,
        tree.free_page.shape[0],
        BLOCK=64,
        BLOCK_PAGES=16,
    )


def backtrace(
    token: Tensor, parent: Tensor, slot: Tensor, node: Tensor, capacity: int
) -> tuple[Tensor, Tensor]:
    """`pybeam.ops.backtrace`."""
    num = slot.numel()
    tokens = torch.empty(num, capacity, dtype=torch.int32, device=token.device)
    length = torch.empty(num, dtype=torch.int32, device=token.device)
    if num:
        backtrace_kernel[(num,)](
            token.contiguous(),
            parent.contiguous(),
            slot.contiguous(),
            node.contiguous(),
            tokens,
            length,
            *token.shape,
            capacity,
            BLOCK=128,
            num_warps=1,
        )
    return tokens, length
