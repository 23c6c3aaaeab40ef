"""`decoder_layers`: all layers of a decoder in one launch, for few rows.

A step of few rows takes as long as its kernels are many, because each begins when the last program of the one
before it has ended. Here the programs stay. They wait for one another's numbers eight times in a layer
(`exchange.py`), and while they wait, the weights of their next product are on their way to registers, and
those of products behind it to the L2.

It is off unless the environment has PYBEAM_PERSISTENT=1.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from pybeam.contracts import Cells
from pybeam.triton_kernels.attention.variants import num_multiprocessors
from pybeam.triton_kernels.persistent.ahead import MOST_AHEAD
from pybeam.triton_kernels.persistent.attention import QUERIES
from pybeam.triton_kernels.persistent.exchange import LAUNCHES, Exchange, exchange_of
from pybeam.triton_kernels.persistent.kernel import NUM_PHASES, decoder_layers_kernel
from pybeam.triton_kernels.product import LINES, PACK

IS_ON = os.environ.get("PYBEAM_PERSISTENT") == "1"
DTYPES = (torch.bfloat16, torch.float16)
MOST_ROWS = 16
# numbers of rows and weights that a thread holds at once
MOST_NUMBERS = 256


class LayersShape(NamedTuple):
    """Sizes that all layers share."""

    width: int  # d = H D
    inner_width: int  # F
    num_heads: int
    activation: int  # `Activation`
    epsilon: float
    scale: float
    is_pre_norm: bool


class RowsSee(NamedTuple):
    """The cells that rows see, and those where their own keys and values go."""

    cells: Cells  # of hypotheses, with masks
    new_cell: Tensor  # [R]
    num_cells: int  # of the pool of hypotheses
    source_cells: Cells


class Programs(NamedTuple):
    """How a launch is divided."""

    num: int
    num_warps: int
    ahead: int = 2  # see the kernel's AHEAD
    num_nodes: int = 0  # that attention reads at once; 0: what warps multiply at once


def programs_of(shape: LayersShape, device: torch.device) -> Programs:
    """Choose one program for each multiprocessor, with the warps that `product` would have."""
    return Programs(num_multiprocessors(device), 4 if shape.width <= 256 else 8)


def groups_of(num_columns: int, programs: Programs) -> int:
    """How many groups of columns a program has."""
    return triton.next_power_of_2(triton.cdiv(num_columns, LINES.value * programs.num))


def rows_of(num_rows: int) -> int:
    """Rows that a launch is compiled for."""
    return LINES.value if num_rows <= LINES.value else MOST_ROWS


def exchange_for(
    shape: LayersShape, num_layers: int, num_rows: int, dtype: torch.dtype, device: torch.device
) -> Exchange:
    """Make the places of launches of so many rows."""
    num_places = rows_of(num_rows) * (9 * shape.width + shape.inner_width)
    return exchange_of(num_layers, num_places, dtype, device)


def takes_layers(shape: LayersShape, num_rows: int, num_sources: int, programs: Programs) -> bool:
    """Whether rows and weights of these layers fit the programs."""
    width, inner, heads = shape.width, shape.inner_width, shape.num_heads
    head_size = width // heads
    is_plain = head_size * heads == width and head_size in (16, 32, 64, 128)
    if not is_plain or width % PACK.value or inner % PACK.value or not 0 < num_rows <= MOST_ROWS:
        return False
    num_tiles = (num_rows + num_sources * (QUERIES.value - 1)) // QUERIES.value
    rows = rows_of(num_rows)
    # a norm needs its rows in float32, too, its weights and its biases
    products = (3 * width, width, 3 * rows), (inner, width, 3 * rows), (width, inner, rows)
    numbers = [
        triton.next_power_of_2(depth) * (lines + LINES.value * groups_of(num_columns, programs))
        for num_columns, depth, lines in products
    ]
    fits = max(numbers) <= MOST_NUMBERS * 32 * programs.num_warps
    return fits and num_tiles * heads <= programs.num


def decoder_layers(
    states: Tensor,
    addresses: Tensor,
    shape: LayersShape,
    seen: RowsSee,
    exchange: Exchange,
    programs: Programs | None = None,
    after: Tensor | None = None,
) -> Tensor:
    """Send rows [R, d] through all layers of a decoder, but for the last norm. Returns their memory.

    A layer is ``x + out(attend(norm(x)))``, the same over its source, and ``x + out(act(inner(norm(x))))``,
    or each with its norm behind the sum. A norm behind the last sum is left to the caller.

    Args:
        states: x [R, d], R at most 16.
        addresses: [layers, 26] int64, of weight and bias of the norm, and W and b, of each product of a
            layer (queries, keys and values; their output; queries; their output; inner layer; its output),
            then those of the pools [cells, 2, H, D] of hypotheses and of sources. A norm that is not there
            has 0. Products of outputs have no norm. A norm behind a sum is that of the product behind it.
        shape: sizes.
        seen: what rows see.
        exchange: of `exchange_for` these layers and rows. Launches that share it follow one another.
        programs: by default one for each multiprocessor.
        after: contiguous weights that are read next; the L2 fetches the first `MOST_AHEAD` bytes.
    """
    programs = programs or programs_of(shape, states.device)
    cells, new_cell, num_cells, source_cells = seen
    after_bytes = 0 if after is None else min(after.nbytes, MOST_AHEAD) // 16 * 16
    num_rows, width, inner = states.shape[0], shape.width, shape.inner_width
    num_layers, num_warps = addresses.shape[0], programs.num_warps
    normed = None if shape.is_pre_norm else torch.empty_like(states)
    packs = [
        max(num_warps, triton.next_power_of_2(depth) // PACK.value) for depth in (width, inner)
    ]
    assert cells.mask is not None and cells.entry is not None
    num_words = cells.mask.shape[2]
    arrays = *cells[:6], new_cell, *source_cells[2:4]

    def launch(first: int, last: int, phase: int) -> None:
        decoder_layers_kernel[(programs.num,)](
            addresses,
            states,
            normed,
            exchange.places,
            exchange.books,
            *(array.contiguous() for array in arrays if array is not None),
            after,
            cells.slot.numel(),
            cells.cell.shape[1],
            source_cells.cell.shape[1],
            num_cells,
            after_bytes,
            num_layers,
            first,
            last,
            shape.epsilon,
            shape.scale,
            WIDTH=width,
            INNER_WIDTH=inner,
            NUM_HEADS=shape.num_heads,
            ACTIVATION=int(shape.activation),
            MASK_WORDS=num_words,
            ROWS=rows_of(num_rows),
            GROUPS=groups_of(width, programs),
            QKV_GROUPS=groups_of(3 * width, programs),
            INNER_GROUPS=groups_of(inner, programs),
            PARTS=4 if width <= 256 else 8,
            INNER_PARTS=4 if inner <= 256 else 8,
            PACKS=packs[0],
            INNER_PACKS=packs[1],
            NODES=programs.num_nodes or 16 * num_warps,
            AHEAD=programs.ahead,
            PHASE=phase,
            num_warps=num_warps,
            num_stages=1,
            launch_cooperative_grid=phase < 0,
        )

    if not triton.knobs.runtime.interpret:
        launch(0, num_layers, -1)
        return states
    # the interpreter's programs cannot wait for one another
    for layer in range(num_layers):
        for phase in range(NUM_PHASES.value):
            launch(layer, layer + 1, phase)
    exchange.books[LAUNCHES.value] += 1
    return states
