"""`tree_release` and `backtrace`, and the parts of a step of the tree, which `beam` launches."""

from typing import Any

import torch
from torch import Tensor

from pybeam.triton_kernels.tree.backtrace import backtrace_kernel
from pybeam.triton_kernels.tree.release import release_kernel


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
