"""`tree_attention` with paths: the result of the same tree with masks, to the last bit on a CPU."""

from __future__ import annotations

import pytest
import torch

from pybeam import ops
from pybeam.contracts import Cells
from pybeam.ops import Distances, Paths
from support.asserts import assert_close
from support.attention_cases import ints, random_case, random_distances
from support.threads import every_thread_count


def with_paths(case: dict, lengths: list[int], shared: list[int], width: int, seed=0) -> dict:
    """Give rows paths of `lengths[a]` cells behind `shared[a]` cells that all see; some see none of them."""
    generator = torch.Generator().manual_seed(seed)
    num_slots, longest = case["num_cells"].numel(), max(lengths) + 2
    path = torch.full((num_slots, width, longest), 2**30, dtype=torch.int32)
    path_length, num_shared = torch.zeros(2, num_slots, dtype=torch.int32)
    for a, p in enumerate(case["slot"].tolist()):
        path_length[p], num_shared[p] = lengths[a], shared[a]
        num_own = int(case["num_cells"][p]) - shared[a]
        for b in range(width):
            places = torch.randperm(num_own, generator=generator)[: lengths[a]].sort().values
            path[p, b, : lengths[a]] = places if b else -1
    counts = (case["offset"][1:] - case["offset"][:-1]).tolist()
    entry = [torch.randperm(width, generator=generator)[:n] for n in counts]
    return case | dict(entry=torch.cat(entry).int(), paths=Paths(path, path_length, num_shared))


def with_masks(case: dict) -> dict:
    """The same case with masks: a bit per entry."""
    place, length, num_shared = case["paths"]
    num_slots, width, _ = place.shape
    mask = torch.zeros(num_slots, case["cell"].shape[1], -(-width // 64), dtype=torch.int64)
    for p in case["slot"].tolist():
        first = 0 if num_shared is None else int(num_shared[p])
        mask[p, :first] = -1
        for b in range(width):
            for own in place[p, b, : int(length[p])].tolist():
                if own >= 0:
                    bit = 1 << b % 64
                    mask[p, first + own, b // 64] |= bit - (1 << 64) if bit >> 63 else bit
    return case | dict(mask=mask, paths=None)


def on(device: torch.device, value):
    if isinstance(value, (Paths, Distances)):
        return type(value)(*[on(device, field) for field in value])
    return value.to(device) if isinstance(value, torch.Tensor) else value


def attend(case: dict, backend: str, device: torch.device, **more) -> torch.Tensor:
    moved = {name: on(device, value) for name, value in (case | more).items()}
    return ops.tree_attention(**moved, backend=backend).cpu()


def check(case: dict, kernel: str, device: torch.device, **more) -> torch.Tensor:
    actual = attend(case, kernel, device, **more)
    assert_close(actual, attend(case, "reference", torch.device("cpu"), **more))
    masked = attend(with_masks(case), kernel, device, **more)
    if kernel == "triton":
        assert_close(actual, masked)
    else:
        assert torch.equal(actual, masked)
    return actual


def some_case(rows=(70, 1, 3), width=80, lengths=(5, 1, 17), shared=(33, 0, 16), **more) -> dict:
    cells = [first + 3 * length + 2 for first, length in zip(shared, lengths, strict=True)]
    case = random_case(list(rows), cells, masked=False, **more)
    return with_paths(case, list(lengths), list(shared), width)


@pytest.mark.thinned()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 7, 20, 32, 64, 80, 128])
@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (8, 2), (6, 1)])
def test_as_with_masks(kernel, device, heads, key_heads, size, dtype):
    check(some_case(heads=heads, key_heads=key_heads, size=size, dtype=dtype), kernel, device)


@pytest.mark.thinned()
@pytest.mark.parametrize("shared", [0, 1, 15, 16, 130])
@pytest.mark.parametrize("length", [1, 4, 16, 33])
def test_lengths(kernel, device, length, shared):
    lengths, shares = (length, 1, length), (shared, shared, 0)
    check(some_case((9, 2, 1), 20, lengths, shares, heads=2, key_heads=2, size=32), kernel, device)


def test_cells_of_all_rows_may_be_left_out(kernel, device):
    case = some_case(shared=(0, 0, 0))
    expected = check(case, kernel, device)
    case["paths"] = case["paths"]._replace(num_shared=None)
    assert torch.equal(attend(case, kernel, device), expected)


def test_bfloat16_cells_of_float32_queries(kernel, device):
    if kernel == "triton":
        pytest.skip("Triton takes one dtype")
    case = some_case()
    check(case | {name: case[name].bfloat16() for name in ("key", "value")}, kernel, device)


@pytest.mark.parametrize("which", ["bias", "window", "cap", "bias window cap"])
def test_distances(kernel, device, which):
    case = some_case(heads=4, key_heads=2, size=20)
    check(case, kernel, device, distances=random_distances(case, which))


def test_a_row_without_a_path_sees_what_all_see(kernel, device):
    case = some_case((2, 1, 1), width=3, shared=(0, 4, 0))
    case["entry"][:] = 0
    actual = check(case, kernel, device)
    assert bool((actual[[0, 1, 3]] == 0).all())
    assert bool((actual[2] != 0).all())


def test_rows_do_not_depend_on_their_neighbours(kernel, device):
    """A beam is cut into blocks of rows; a row gets the same bits in whatever block it stands."""
    case = some_case((200, 1, 3), width=200)
    together = attend(case, kernel, device)
    for row in (0, 63, 64, 130):
        alone = case | dict(
            query=case["query"][row : row + 1],
            offset=ints([0, 1]),
            slot=case["slot"][:1],
            entry=case["entry"][row : row + 1],
        )
        found = attend(alone, kernel, device)
        if kernel == "triton":
            assert_close(found[0], together[row])
        else:
            assert torch.equal(found[0], together[row])


def small_case(changes: dict) -> dict:
    """Two rows and three cells, the first of which both rows see."""
    places = torch.zeros(3, 4, 3, dtype=torch.int32)
    fields = dict(place=places, length=ints([1, 1, 1]), num_shared=ints([1, 1, 1]))
    paths = Paths(**{name: changes.get(name, value) for name, value in fields.items()})
    others = {name: value for name, value in changes.items() if name not in fields}
    case = random_case([2], [3], masked=False) | dict(entry=ints([0, 1]))
    return {**case, **others, "paths": paths}


def test_results_do_not_depend_on_threads(device):
    case = some_case((500, 3, 20), width=600, lengths=(4, 2, 3))
    results = [attend(case, "auto", device) for _ in every_thread_count()]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(entry=None), r"`paths` and `entry` go together, but `entry` is None"),
        (dict(entry=ints([0, 4])), r"`entry` must be from 0 to 3, but is 4"),
        (dict(mask=torch.zeros(3, 5, 1, dtype=torch.int64)), r"`mask` and `paths` exclude"),
        (dict(place=torch.zeros(3, 4, dtype=torch.int32)), r"`place` must be \[S, K, T\]"),
        (dict(place=torch.full((3, 4, 3), 2, dtype=torch.int32)), r"`place` must be -1 or the"),
        (dict(place=torch.full((3, 4, 3), -2, dtype=torch.int32)), r"`place` must be -1 or the"),
        (dict(length=ints([4, 4, 4])), r"`length` must be from 0 to 3, but is 4"),
        (dict(num_shared=ints([9, 9, 9])), r"`num_shared` must be from 0 to `num_cells`, but is 9"),
    ],
)
def test_wrong_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        ops.tree_attention(**small_case(changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(place=torch.full((3, 4, 3), 2, dtype=torch.int32)), "`path` must be from -1 to 1"),
        (dict(entry=ints([0, 4])), "`entry` must be from 0 to 3"),
        (dict(length=ints([4, 4, 4])), "`path_length` must be from 0 to 3"),
        (dict(num_shared=ints([4, 4, 4])), "`num_shared` must be from 0 to 3"),
    ],
)
def test_native_reads_nothing_outside(changes, message):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    query, key, value, *tables, entry, paths = small_case(changes).values()
    with pytest.raises(RuntimeError, match=message):
        native.tree_attention(query, key, value, Cells(*tables, None, entry, paths), 0.1)
