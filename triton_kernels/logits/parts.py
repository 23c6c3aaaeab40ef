"""How a row of logits is divided among programs."""

import triton

# a row is divided until there are so many
PROGRAMS = 1024


def part_of(num_rows: int, num_columns: int, block: int) -> int:
    """Return how many columns a program has, a multiple of `block`."""
    num_blocks = triton.cdiv(num_columns, block)
    num_parts = min(num_blocks, max(1, PROGRAMS // num_rows))
    return block * triton.cdiv(num_blocks, num_parts)
