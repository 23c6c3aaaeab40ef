"""The CUDA C++ kernel of `decoder_layers` as threads of the CPU, beside plain torch."""

from __future__ import annotations

import itertools
import math
from itertools import accumulate

import pytest
import torch

from pybeam import backends
from pybeam.backends.torch_layers import Activation
from pybeam.contracts import Finishing
from support.decoder_layers import LayersCase, LayersShape, Selected, layers_case
from support.resident_layers import Resident, compiled

REFERENCE = backends.load("reference")
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


@pytest.mark.thinned()
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


@pytest.mark.thinned()
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


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("is_pre_norm", [True, False])
def test_embeddings(library, is_pre_norm):
    """Tokens in place of states; some have no line in their table, and one skips its position."""
    torch.manual_seed(12)
    case = layers_case(small(is_pre_norm=is_pre_norm), 2, [9, 2], [14, 5], [5, 6], num_tokens=7)
    token, place, *tables = case.embedding
    token[:4], place[3:6] = torch.tensor([-1, 7, 5, 0]), torch.tensor([-1, 8, 3])
    case.skipped_id, case.embedding_scale = int(token[5]), 8.0
    check(library, case, 4)
    case.embedding = token, place, tables[0], tables[1][:0]
    check(library, case, 4)


# logits, beams, blocks and the rules of `select`
CHOICES = {
    "one beam": (400, [5], 4, {}),
    "a number that is no multiple of eight": (405, [3], 4, {}),
    "blocks without a column": (21, [3, 2], 5, {}),
    "more rows than a tile": (90, [6, 7, 4], 3, {}),
    "a beam without rows": (64, [3, 0, 2], 4, {}),
    "most rows": (130, [32, 32], 6, {}),
    "refill": (200, [4, 3], 4, {"finishing": Finishing.REFILL, "eos_ids": (2, 9)}),
    "shrink": (200, [4, 3], 4, {"finishing": Finishing.SHRINK, "margin": [2.0, -0.5]}),
    "margins": (200, [4, 3], 4, {"margin": [1.5, 3.0], "local_margin": [2.0, -1.0]}),
    "children": (200, [4, 3], 4, {"max_candidates": [1, 2]}),
    "forced": (200, [4, 3], 4, {"forced": [-1, 17]}),
    "banned": (40, [4, 3], 4, {"ban_eos": [True, False], "eos_ids": (2, 9, 39)}),
    "held": (200, [4, 3], 4, {"finishing": Finishing.HELD, "is_ended": [2, 0]}),
    "held and done": (90, [3, 2, 6], 3, {"finishing": Finishing.HELD, "is_ended": [1, 4, 300]}),
    "best": (200, [4, 3], 4, {"margin": [1.5, 3.0], "best_finished": [-0.1, -9.0]}),
    "log-probabilities": (200, [4, 3], 4, {"normalise": False}),
}
DTYPES_OF_RULES = {
    "max_candidates": torch.int32,
    "forced": torch.int32,
    "ban_eos": torch.bool,
    "margin": torch.float32,
    "local_margin": torch.float32,
    "best_finished": torch.float32,
}


def choice(rows, rules) -> Selected:
    """Rules for beams of so many rows, and of so many entries more that are held, in their middle."""
    given = {
        name: torch.tensor(value, dtype=DTYPES_OF_RULES[name]) if name in DTYPES_OF_RULES else value
        for name, value in rules.items()
    }
    sizes = list(rows)
    if "is_ended" in given:
        held = given["is_ended"]
        sizes = [min(n + h, 100) for n, h in zip(rows, held, strict=True)]
        given["is_ended"] = torch.cat(
            [
                (1 <= torch.arange(s)) & (torch.arange(s) <= s - n)
                for n, s in zip(rows, sizes, strict=True)
            ]
        )
    offset = torch.tensor([0, *accumulate(sizes)], dtype=torch.int32)
    width = torch.tensor([max(1, n) for n in sizes], dtype=torch.int32)
    capacity = max(sizes) if "is_ended" in given else 2 * max(sizes)
    score = -torch.rand(sum(sizes)) * 3
    return Selected(score, offset, width, capacity=capacity, **given)


def assert_chosen(library, case, selected: Selected, num_blocks: int) -> None:
    """The survivors are those of `select` among the logits that the kernel makes."""
    kernel = Resident(library, num_blocks)
    logits = kernel(case)
    expected = REFERENCE.select(logits.float(), *selected[:3], selected.options)
    for seed in (1, 2):
        chosen = kernel.chosen(case, selected, seed)
        for name, found, other in zip(chosen._fields, chosen, expected, strict=True):
            torch.testing.assert_close(found, other, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_choice(library, name, dtype):
    num_logits, rows, num_blocks, rules = CHOICES[name]
    torch.manual_seed(13)
    nodes, sources = [3 + n for n in rows], [4 for _ in rows]
    case = layers_case(small(), 1, rows, nodes, sources, dtype, num_logits=num_logits)
    assert_chosen(library, case, choice(rows, rules), num_blocks)


def test_choice_of_padding(library):
    """Rows of no beam change no survivors, and a launch of them alone writes that there are none."""
    torch.manual_seed(14)
    case = layers_case(small(), 1, [3], [9], [5], num_logits=50, num_padded=4)
    selected = choice([3], {})
    assert_chosen(library, case, selected, 4)
    offset = case.cells.offset
    case.cells = case.cells._replace(offset=torch.zeros(2).int())
    of_nothing = selected._replace(offset=torch.zeros(2).int())
    assert Resident(library, 4).chosen(case, of_nothing).count.tolist() == [0]
    case.cells = case.cells._replace(offset=offset)
    assert_chosen(library, case, selected, 4)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_choice_of_numbers_that_are_none(library, number):
    """A NaN or +inf of a beam is told, -inf is never chosen; other beams do not see it."""
    torch.manual_seed(15)
    case = layers_case(small(), 1, [3, 2], [9, 7], [5, 4], num_logits=50)
    bias = case.output[3].clone()
    bias[31] = number
    case.output = *case.output[:3], bias
    selected = choice([3, 2], {})
    assert_chosen(library, case, selected, 4)
    told = Resident(library, 4).chosen(case, selected).has_nan.tolist()
    assert told == [not number < 0] * 2


def test_choice_without_ends_that_are_best(library):
    """Ends that a beam may not choose do not hide what it may."""
    torch.manual_seed(17)
    case = layers_case(small(), 1, [4, 3], [9, 7], [5, 4], num_logits=40)
    ends = (2, 9, 39)
    bias = case.output[3].clone()
    bias[list(ends)] = 20
    case.output = *case.output[:3], bias
    for bans in ([True, False], [True, True]):
        assert_chosen(library, case, choice([4, 3], {"ban_eos": bans, "eos_ids": ends}), 4)


def test_choice_of_ties(library):
    """Logits that are all the same are chosen in the order of tokens and rows."""
    torch.manual_seed(16)
    case = layers_case(small(), 1, [3], [9], [5], num_logits=1300)
    scale, shift, weight, bias = case.output
    case.output = scale, shift, torch.zeros_like(weight), torch.zeros_like(bias)
    selected = choice([3], {})._replace(score=torch.zeros(3))
    assert_chosen(library, case, selected, 4)


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


def test_blocks_share_a_deep_product(library):
    """Two blocks have a half of the last product's depth each; a fifth one has none, and finishes columns."""
    torch.manual_seed(6)
    case = layers_case(small(inner_width=288), 2, [9, 2], [12, 6], [6, 4])
    check(library, case, 5)


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


@pytest.mark.parametrize("num_blocks", [20, 78, 132, 144])
@pytest.mark.parametrize("kilobytes", [99, 163, 227])
def test_a_plan_fits_a_multiprocessor(library, kilobytes, num_blocks):
    """A block for each, with no more memory than one has: blocks that wait for others must all run."""
    kernel = Resident(library, num_blocks, kilobytes << 10)
    packs = set()
    for width, widening in itertools.product(range(64, 1025, 64), (1, 2, 4, 8)):
        for num_layers, num_rows, num_logits in itertools.product((1, 6, 48), (1, 64), (0, 42000)):
            shape = LayersShape(width, widening * width)
            plan = kernel.plan(shape, num_layers, num_rows, num_logits)
            if plan is None:
                continue
            assert plan[0] == num_blocks
            assert plan[-1] <= kilobytes << 10
            packs.add(plan[1])
    assert packs >= ({1, 2, 4} if kilobytes == 227 and num_blocks >= 78 else {1})
