"""The CUDA C++ kernel of `decoder_layers` as threads of the CPU, beside plain torch."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends.torch_layers import Activation
from support.decoder_layers import LayersCase, LayersShape, layers_case
from support.resident_layers import Resident, compiled

# of the largest number: numbers are rounded to 16 bits several times a layer
TOLERANCE = {torch.bfloat16: 0.02, torch.float16: 0.004}


@pytest.fixture(scope="module")
def library():
    return compiled()


def check(library, case: LayersCase, num_blocks: int, num_launches: int = 2) -> None:
    """Launches that share places have the results of plain torch, in any order of blocks the same bits."""
    kernel = Resident(library, num_blocks)
    expected, pools = case.expected()
    first = kernel(case, seed=1)
    far = (first.float() - expected.float()).abs().max() / expected.float().abs().max()
    assert far < TOLERANCE[first.dtype]
    for found, pool in zip(case.own_pools, pools, strict=True):
        torch.testing.assert_close(found, pool, rtol=0.03, atol=0.03, equal_nan=True)
    for seed in range(2, num_launches + 1):
        assert torch.equal(kernel(case, seed), first)


def small(**changed) -> LayersShape:
    return LayersShape(**{"width": 64, "inner_width": 128, **changed})


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("is_pre_norm", [True, False])
def test_two_layers(library, dtype, is_pre_norm):
    torch.manual_seed(1)
    case = layers_case(small(is_pre_norm=is_pre_norm), 2, [3], [9], [5], dtype)
    check(library, case, 4, num_launches=3)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("activation", Activation)
def test_activations(library, activation):
    torch.manual_seed(2)
    check(library, layers_case(small(activation=activation), 1, [2], [4], [3]), 4)


@pytest.mark.parametrize("is_pre_norm", [True, False])
@pytest.mark.parametrize(("num_logits", "num_blocks"), [(21, 5), (400, 4), (405, 4)])
def test_logits(library, num_logits, num_blocks, is_pre_norm):
    """Some blocks have no column, or blocks have more than they add at once."""
    torch.manual_seed(9)
    sizes = [9, 2], [14, 5], [5, 6]
    case = layers_case(small(is_pre_norm=is_pre_norm), 2, *sizes, num_logits=num_logits)
    check(library, case, num_blocks)


def test_logits_alone(library):
    """An output layer without a norm and a bias."""
    torch.manual_seed(10)
    case = layers_case(small(), 1, [3], [9], [5], num_logits=42)
    case.output = (None, None, case.output[2], None)
    check(library, case, 4)


# rows, nodes and source tokens of sources, words of a mask, padded rows, and blocks
ROWS = {
    "one row": ([1], [1], [1], 1, 0, 4),
    "more rows than a tile": ([11], [30], [9], 1, 2, 5),
    "more nodes than are listed": ([5], [150], [70], 2, 0, 4),
    "sources": ([2, 9, 1], [2, 70, 12], [3, 65, 130], 1, 4, 4),
    "most rows": ([32, 32], [40, 70], [7, 9], 1, 0, 6),
}


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("name", ROWS)
def test_rows(library, name):
    *given, words, num_padded, num_blocks = ROWS[name]
    torch.manual_seed(3)
    case = layers_case(small(), 1, *given, words=words, num_padded=num_padded)
    check(library, case, num_blocks)


# width, inner width and blocks: chunks of the depth, blocks without columns, and ragged packs of warps
SIZES = {
    "few columns": (64, 32, 10),
    "chunks": (64, 800, 13),
    "two packs": (320, 512, 16),
    "four packs": (576, 256, 28),
}


@pytest.mark.slow
@pytest.mark.parametrize("is_pre_norm", [True, False])
@pytest.mark.parametrize("name", SIZES)
def test_sizes(library, name, is_pre_norm):
    width, inner_width, num_blocks = SIZES[name]
    torch.manual_seed(4)
    shape = LayersShape(width, inner_width, is_pre_norm=is_pre_norm)
    check(library, layers_case(shape, 2, [5], [12], [6]), num_blocks)


def test_rows_without_a_cell(library):
    """A row whose node has no cell sees what it sees, and its key and value go nowhere."""
    torch.manual_seed(5)
    case = layers_case(small(), 1, [3], [9], [5])
    case.new_cell[1] = -1
    check(library, case, 4)


def test_padding_alone(library):
    """A launch of padded rows alone changes nothing, and later ones do not know of it."""
    torch.manual_seed(11)
    case = layers_case(small(), 1, [3], [9], [5])
    first = Resident(library, 4)(case)
    offset, case.cells = case.cells.offset, case.cells._replace(offset=torch.zeros(2).int())
    pools, books = [pool.clone() for pool in case.own_pools], case.places[8][1].clone()
    assert Resident(library, 4)(case).shape == (0, 64)
    assert all(map(torch.equal, case.own_pools, pools)) and torch.equal(case.places[8][1], books)
    case.cells = case.cells._replace(offset=offset)
    assert torch.equal(Resident(library, 4)(case), first)


def test_a_row_that_sees_nothing(library):
    torch.manual_seed(6)
    case = layers_case(small(), 1, [3], [9], [5])
    entry = int(case.cells.entry[0])
    case.cells.mask[..., entry // 64] &= ~(1 << entry % 64)
    check(library, case, 4)


def test_numbers_of_cells_that_nobody_sees_are_not_read(library):
    torch.manual_seed(7)
    case = layers_case(small(), 1, [3], [9], [5])
    own = set(case.cells.cell[int(case.cells.slot[0])].tolist())
    others = [cell for cell in range(len(case.own_pools[0])) if cell not in own]
    case.own_pools[0][others] = torch.nan
    check(library, case, 4)


def test_rows_do_not_depend_on_each_other(library):
    """A row has the same bits alone, and beside others that do not share its source."""
    torch.manual_seed(8)
    case = layers_case(small(), 1, [2, 3], [9, 7], [5, 4])
    both = Resident(library, 4)(case)
    num = int(case.cells.offset[1])
    cells = case.cells._replace(offset=case.cells.offset[:2], slot=case.cells.slot[:1])
    source_cells = case.source_cells._replace(offset=cells.offset, slot=cells.slot)
    case.cells, case.source_cells = cells, source_cells
    assert torch.equal(Resident(library, 7)(case), both[:num])


@pytest.mark.parametrize(
    ("shape", "num_layers", "num_rows", "num_blocks"),
    [
        (LayersShape(1024, 4096), 6, 5, 132),
        (LayersShape(256, 1024), 3, 64, 132),
        (LayersShape(512, 2048), 6, 16, 132),
        (LayersShape(1024, 8192), 24, 8, 132),
    ],
    ids=str,
)
def test_takes(library, shape, num_layers, num_rows, num_blocks):
    assert Resident(library, num_blocks).plan(shape, num_layers, num_rows) is not None


@pytest.mark.parametrize(
    ("shape", "num_layers", "num_rows", "num_blocks"),
    [
        (LayersShape(2048, 4096), 1, 5, 132),
        (LayersShape(1024, 4096), 6, 65, 132),
        # weights that a block cannot hold, and columns that it cannot add
        (LayersShape(1024, 4096), 6, 5, 16),
        (LayersShape(1024, 32768), 6, 5, 132),
        (LayersShape(96, 128), 1, 5, 132),
    ],
    ids=str,
)
def test_takes_not(library, shape, num_layers, num_rows, num_blocks):
    assert Resident(library, num_blocks).plan(shape, num_layers, num_rows) is None
