"""Variants of `tree_attention` that launches are compiled for, and the parts into which they split a tree."""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

MAX_SPLITS = 32
# rows of a prompt that a program has: few, or as many as the tensor cores of a warp group take at once
FEW_ROWS, MANY_ROWS = 16, 64
# a part of fewer blocks costs more to merge than it saves
MIN_BLOCKS = tl.constexpr(8)


class Variant(NamedTuple):
    """Constants that a launch is compiled for, beside dtypes and strides."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_D: int
    num_warps: int
    num_stages: int
    maxnreg: int


def variant_of(num_queries: int, num_sources: int, head_size: int, itemsize: int) -> Variant:
    """Choose the variant for so many query rows (rows times heads that share a key) of so many sources.

    No variant may spill registers to memory: `tests/ops/test_triton_tree_attention.py` checks that.

    Measured on an H200 on 26 November 2026 with 16 heads of 64 in bfloat16, 64 sources and 16 steps behind.
    By `benchmarks.gpu.attention_sweep`, with 24 nodes a source, tiles of 16 rows took 9.1 us by 32 cells and
    one warp, 10.2 by 16 cells, 9.8 by two warps and 11.1 by four. With 50 rows and 75 nodes, tiles of 64 rows
    took 27 us by 32 cells and 35 by 64; three stages took 28, and tiles of 32 rows 41. In a whole step trees
    took 9.4 us with 5 rows, then in tiles of 8, and 45 with 50 rows; 30 tokens of sources took 7.4 and 12.
    """
    block_d = max(16, triton.next_power_of_2(head_size))
    # float32 does not go through tensor cores, so a taller tile only takes longer; the sums of a
    # tile of more than 8192 numbers do not fit the registers
    tallest = 16 if itemsize == 4 else min(64, 8192 // block_d)
    block_m = 8 if itemsize == 2 and block_d <= 64 else 16
    while block_m < tallest and num_queries > block_m * num_sources:
        block_m *= 2
    # A warp takes 16 rows, whose weights then need not leave it. Larger heads take more warps.
    num_warps = max(4, block_d * itemsize // 128)
    if itemsize == 2 and block_d <= 64:
        num_warps = max(1, block_m // 16)
    num_bytes = 4096 if itemsize == 4 else 8192
    block_n = min(32, max(16, num_bytes // (block_d * itemsize)))
    # three tiles of four warps share a multiprocessor
    maxnreg = 168 if num_warps == 4 and block_d <= 64 else 255
    return Variant(block_m, block_n, block_d, num_warps, num_stages=2, maxnreg=maxnreg)


class PromptVariant(NamedTuple):
    """Constants that a launch of `prompt_attention` is compiled for, beside dtypes and strides."""

    ROWS: int
    CELLS: int
    SIZE: int
    num_warps: int


def prompt_variant_of(
    num_rows: int, num_heads: int, head_size: int, itemsize: int, device: torch.device
) -> PromptVariant:
    """Choose the variant for the rows of some prompts.

    A tall tile reads keys and values for four times as many rows, and a warp has whole rows of it. In
    bfloat16 its inner loop takes 2.2, 2.4 and 1.7 times fewer instructions (heads of 64, 128 and 256, compute
    capability 9.0). So it is taken where it leaves no multiprocessor without a program. No GPU has timed it:
    tiles of few rows took 48 us for 4 x 512 rows with 16 heads of 64 on an H100, and torch 18.
    """
    size = max(16, triton.next_power_of_2(head_size))
    if itemsize == 4:
        return PromptVariant(FEW_ROWS, 32 if size <= 64 else 16, size, num_warps=4)
    num_tall = triton.cdiv(num_rows, MANY_ROWS) * num_heads
    # a tall tile of larger heads does not fit the registers
    if size > 256 or num_tall < num_multiprocessors(device):
        return PromptVariant(FEW_ROWS, 64, size, num_warps=4)
    return PromptVariant(
        MANY_ROWS, 64 if size <= 64 else 32, size, num_warps=4 if size <= 128 else 8
    )


@cache
def num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def splits_of(num_units: int, max_cells: int, block_n: int, device: torch.device) -> int:
    """Choose into how many parts a tree is split: enough to give every multiprocessor two programs."""
    wanted = triton.cdiv(2 * num_multiprocessors(device), num_units)
    useful = max_cells // (block_n * MIN_BLOCKS.value)
    return max(1, min(wanted, useful, MAX_SPLITS))


def are_wide(*arrays: torch.Tensor) -> bool:
    """Whether each head of each line [lines, heads, D] begins at a multiple of 16 bytes."""
    return all(
        one.data_ptr() % 16 == 0 and all(step * one.itemsize % 16 == 0 for step in one.stride()[:2])
        for one in arrays
    )
