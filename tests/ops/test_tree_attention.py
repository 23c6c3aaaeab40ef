"""`tree_attention` against the reference: trees, cross-attention and self-attention."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch

from pybeam import backends, ops
from pybeam.contracts import Cells
from support.asserts import assert_close
from support.attention_cases import ints, random_case
from support.threads import every_thread_count


def attend(case: dict, backend: str, device: torch.device, **more) -> torch.Tensor:
    moved = {k: v.to(device) for k, v in case.items()}
    return ops.tree_attention(**moved, **more, backend=backend).cpu()


def check(
    case: dict, kernel: str, device: torch.device, tolerance: float = 0.0, **more
) -> torch.Tensor:
    actual = attend(case, kernel, device, **more)
    assert actual.is_contiguous()
    assert_close(actual, attend(case, "reference", torch.device("cpu"), **more), tolerance)
    return actual


@pytest.mark.thinned()
@pytest.mark.parametrize("masked", [True, False], ids=["tree", "cross"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 7, 20, 32, 64, 80, 128, 256])
def test_head_sizes(kernel, device, size, dtype, masked):
    case = random_case([5, 1, 3], [37, 1, 16], size=size, dtype=dtype, masked=masked)
    check(case, kernel, device)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("masked", [True, False], ids=["tree", "cross"])
@pytest.mark.parametrize("size", [1, 7, 20, 32, 64, 80, 128])
def test_bfloat16_cells_of_float32_queries(kernel, device, size, masked):
    """As if what they hold were kept in float32, to the last bit."""
    case = random_case([5, 1, 30], [37, 1, 16], size=size, masked=masked)
    rounded = {name: case[name].bfloat16() for name in ("key", "value")}
    if kernel == "triton":
        with pytest.raises(ValueError, match=r"`key` must be torch.float32 as `query` for Triton"):
            attend(case | rounded, kernel, device)
        return
    actual = check(case | rounded, kernel, device)
    widened = {name: tensor.float() for name, tensor in rounded.items()}
    assert torch.equal(actual, attend(case | widened, kernel, device))


@pytest.mark.thinned()
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 50, 65, 128])
@pytest.mark.parametrize("cells", [1, 3, 4, 17, 130])
def test_rows_and_cells(kernel, device, rows, cells):
    case = random_case([rows, 2], [cells, 5], heads=2, key_heads=2, size=32, words=2)
    check(case, kernel, device)


@pytest.mark.thinned()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [True, False], ids=["tree", "cross"])
@pytest.mark.parametrize("size", [5, 16, 64, 72])
@pytest.mark.parametrize("cells", [1, 8, 15, 17, 33, 70])
def test_many_rows_get_the_bits_of_few(isa, cells, size, masked, dtype):
    """Keys and values are copied for many rows, and sums keep their order."""
    case = random_case([70], [cells], 2, 2, size=size, dtype=dtype, masked=masked)
    device = torch.device("cpu")
    whole = attend(case, "native", device)
    names = {"query", "entry"} & case.keys()
    for rows in (slice(first, first + 7) for first in range(0, 70, 7)):
        some = case | {name: case[name][rows] for name in names} | {"offset": ints([0, 7])}
        assert torch.equal(attend(some, "native", device), whole[rows])


@pytest.mark.parametrize(("heads", "key_heads"), [(1, 1), (8, 2), (6, 1), (3, 3)])
def test_grouped_heads(kernel, device, heads, key_heads):
    check(random_case([5, 40], [9, 30], heads, key_heads, size=32), kernel, device)


@pytest.mark.parametrize("length", [1, 30, 200])
def test_encoder_self_attention(kernel, device, length):
    torch.manual_seed(1)
    lengths = [length, max(1, length - 7)]
    num_rows = sum(lengths)
    query, key, value = torch.randn(num_rows, 3, 4, 64).unbind(1)
    cell = torch.zeros(2, length, dtype=torch.int32)
    offset = ints([0, *accumulate(lengths)])
    for a, n in enumerate(lengths):
        cell[a, :n] = torch.arange(n) + int(offset[a])
    case = dict(
        query=query,
        key=key,
        value=value,
        offset=offset,
        slot=ints([0, 1]),
        cell=cell,
        num_cells=ints(lengths),
    )
    actual = check(case, kernel, device)
    first = [t[:length].transpose(0, 1) for t in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(*first).transpose(0, 1)
    assert_close(actual[:length], expected)


def test_a_row_that_sees_nothing_is_zero(kernel, device):
    case = random_case([3, 2, 1], [9, 0, 2])
    case["mask"][case["slot"][0].long(), :9] &= ~(1 << 5)
    case["entry"][1] = 5
    actual = check(case, kernel, device)
    assert bool((actual[1] == 0).all())
    assert bool((actual[3:5] == 0).all())


def test_bit_63_is_the_sign_bit(kernel, device):
    case = random_case([2], [2])
    slot = int(case["slot"][0])
    case["mask"][slot, 0], case["mask"][slot, 1] = -(2**63), 1
    case["entry"][:] = ints([63, 0])
    actual = check(case, kernel, device)
    value = case["value"][case["cell"][slot, :2].long()]
    assert_close(actual, value)


def test_hidden_cells_do_not_matter(kernel, device):
    case = random_case([4], [20])
    slot = int(case["slot"][0])
    case["mask"][slot, 7] = 0
    before = attend(case, kernel, device)
    case["key"][case["cell"][slot, 7].long()] = 1e30
    assert torch.equal(attend(case, kernel, device), before)


def test_large_scores_and_scale(kernel, device):
    case = random_case([3], [50])
    # near 300, rounding alone moves a weight by 3e-5, and more where powers of two replace those of e
    tolerance = 2e-4 if device.type == "cuda" else 4e-5
    check(case, kernel, device, tolerance, scale=30.0)
    # scores near 30 move one by 4e-6
    check(case, kernel, device, 1e-5, scale=-1.5)
    uniform = check(case, kernel, device, scale=0.0)
    assert not bool(uniform.isnan().any())


def test_nan_is_not_hidden(kernel, device):
    case = random_case([3], [5], masked=False)
    case["query"][1, 2, 3] = math.nan
    actual = check(case, kernel, device)
    assert bool(actual[1, 2].isnan().all())
    assert int(actual.isnan().any(-1).sum()) == 1


def test_no_rows(kernel, device):
    assert attend(random_case([], []), kernel, device).shape == (0, 4, 64)


def test_rows_behind_the_last_offset_change_nothing(kernel, device):
    """A step of fixed size has them, and sources without rows in the empty slot."""
    case = random_case([3, 2], [40, 7])
    expected = attend(case, kernel, device)
    empty = next(p for p in range(4) if p not in case["slot"].tolist())
    padded = case | dict(
        query=torch.cat((case["query"], torch.full((4, 4, 64), math.nan))),
        offset=ints([0, 0, 3, 5, 5]),
        slot=ints([empty, *case["slot"].tolist(), empty]),
        entry=torch.cat((case["entry"], ints([0] * 4))),
    )
    query, key, value, *tables = (tensor.to(device) for tensor in padded.values())
    own = backends.resolve(kernel, device)
    actual = own.tree_attention(query, key, value, Cells(*tables), 0.125)
    assert torch.equal(actual[:5].cpu(), expected)


def test_results_do_not_depend_on_threads_or_mode(device):
    case = random_case([5] * 40, [60] * 40)
    results = []
    for _ in every_thread_count():
        with torch.inference_mode():
            results.append(attend(case, "auto", device))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(query=torch.zeros(5, 4, 63)),
            r"`key` must be .*63\], but is .* D is that of `query`",
        ),
        (dict(query=torch.zeros(5, 3, 64)), r"`query` must be of a multiple of the 4 heads"),
        (dict(query=torch.zeros(5, 4, 64).half()), r"`key` must be torch.float16"),
        (dict(key=torch.zeros(15, 4, 64).bfloat16()), r"`value` must be torch.bfloat16"),
        (dict(query=torch.zeros(5, 64, 4).mT), r"`query` must be of last stride 1, but is 4"),
        (dict(offset=ints([0, 4])), r"`offset` must be 5 at the end, the number of rows"),
        (dict(slot=ints([9])), r"`slot` must be from 0 to 2, but is 9"),
        (dict(num_cells=ints([9, 9, 9])), r"`num_cells` must be from 0 to 5, but is 9"),
        (dict(cell=torch.full((3, 5), 99, dtype=torch.int32)), r"`cell` must be from 0 to 14"),
        (dict(entry=None), r"`mask` and `entry` go together, but `entry` is None"),
        (dict(entry=ints([0, 1, 2, 3, 64])), r"`entry` must be from 0 to 63, but is 64"),
        (dict(mask=torch.zeros(3, 5, 1, dtype=torch.int32)), r"`mask` must be torch.int64"),
    ],
)
def test_wrong_arguments(changes, message):
    case = random_case([5], [2])
    with pytest.raises(ValueError, match=message):
        ops.tree_attention(**{**case, **changes})
