"""`tree_attention`: how its kernel is launched."""

import torch
from torch import Tensor

from pybeam.contracts import Cells, Distances, NewNodes
from pybeam.triton_kernels.attention.kernel import tree_attention_kernel
from pybeam.triton_kernels.attention.variants import are_wide, splits_of, variant_of
from pybeam.triton_kernels.counters import counters

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cells: Cells,
    scale: float,
    distances: Distances | None = None,
    new: NewNodes | None = None,
    *,
    num_splits: int | None = None,
) -> Tensor:
    """See `pybeam.backends.Backend.tree_attention`.

    `num_splits` limits the parts, which else fit the device.
    """
    if query.dtype not in DTYPES:
        raise ValueError(f"`query` must be one of {DTYPES} for Triton, but is {query.dtype}")
    if key.dtype != query.dtype:
        raise ValueError(
            f"`key` must be {query.dtype} as `query` for Triton, but is {key.dtype}; the reference and "
            "native backends take bfloat16 beside float32"
        )
    if new is not None and not new.key.dtype == new.value.dtype == key.dtype:
        raise ValueError(
            f"keys and values of `new` must be {key.dtype} as the cells they go to, but are "
            f"{new.key.dtype} and {new.value.dtype}"
        )
    mask, paths = cells.mask, cells.paths
    num_rows, num_heads, head_size = query.shape
    num_sources, num_key_heads, max_cells = cells.slot.numel(), key.shape[1], cells.cell.shape[1]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if out.numel() == 0:
        return out
    group = num_heads // num_key_heads
    # beside the keys of each row's own path, large heads leave registers for the lowest tile alone
    num_queries = 1 if paths is not None and head_size > 64 else num_rows * group
    variant = variant_of(num_queries, num_sources, head_size, query.itemsize)
    # what else a program holds takes registers
    has_more = (
        paths is not None or distances is not None or (mask is not None and mask.shape[2] > 1)
    )
    if has_more:
        variant = variant._replace(maxnreg=255)
        if variant.num_warps == 1 or variant.BLOCK_M * variant.BLOCK_D >= 8192:
            variant = variant._replace(BLOCK_N=16)
    block_m = variant.BLOCK_M
    num_units = (num_rows * group + num_sources * (block_m - 1)) // block_m * num_key_heads
    place, length, num_shared = paths or (None, None, None)
    # only cells that rows read together are split
    num_splits = 1 if paths is not None and num_shared is None else num_splits
    if num_splits is None:
        num_splits = splits_of(num_units, max_cells, variant.BLOCK_N, query.device)
    sums = peaks = totals = count = None
    if num_splits > 1:
        num_lines = num_units * num_splits * variant.BLOCK_M
        sums = torch.empty(num_lines * variant.BLOCK_D, dtype=torch.float32, device=query.device)
        peaks, totals = sums.new_empty(2, num_lines)
        count = counters(num_units, query.device)
    given = Distances() if distances is None else distances
    arrays = (*cells[:6], place, length, num_shared)
    distance_arrays = given.position, given.cell_position, given.bias
    tree_attention_kernel[(num_units, num_splits)](
        query,
        key,
        value,
        out,
        *(None if array is None else array.contiguous() for array in arrays),
        sums,
        peaks,
        totals,
        count,
        *(None if array is None else array.contiguous() for array in distance_arrays),
        *((None, None, None) if new is None else (*new[:2], new.cell.contiguous())),
        scale,
        given.soft_cap or 0.0,
        0 if given.bias is None else given.bias.shape[1],
        given.origin,
        given.window or 0,
        num_sources,
        num_key_heads,
        max_cells,
        *((0, 0) if place is None else place.shape[1:]),
        num_splits,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *((0, 0, 0, 0) if new is None else (*new.key.stride()[:2], *new.value.stride()[:2])),
        key.shape[0],
        GROUP=group,
        HEAD_SIZE=head_size,
        MASK_WORDS=0 if mask is None else mask.shape[2],
        HAS_CAP=given.soft_cap is not None,
        HAS_WINDOW=given.window is not None,
        ARE_WIDE=are_wide(query, key, value, *(() if new is None else new[:2])),
        **variant._asdict(),
    )
    return out
