"""Pools grow: cells keep what they hold; one that cannot grow, layer by layer, stays as it was."""

from __future__ import annotations

import pytest
import torch

from pybeam.kvcache.pools import KeyValuePool, SourceCells
from pybeam.models.prompts import PromptPool

LAYERS = 6


@pytest.fixture(params=["one tensor", "layer by layer"])
def has_layers(request) -> bool:
    """Whether every layer has a tensor of its own, as on a GPU."""
    return request.param == "layer by layer"


def filled(pool_class: type[KeyValuePool], has_layers: bool) -> KeyValuePool:
    pool = pool_class(LAYERS, 3, 4, torch.float32, torch.device("cpu"))
    if has_layers:
        pool._whole = None
    pool.grow(5)
    if isinstance(pool, PromptPool):
        pool.grow_prompts(2)
    for both in pool.both:
        both.copy_(torch.randn(both.shape))
    return pool


def contents(pool: KeyValuePool, at: list[int]) -> torch.Tensor:
    """Keys and values [layers, cells, 2, H, D] of these cells, by all names that they have."""
    layers = [
        torch.stack((key[at], value[at]), 1)
        for key, value in zip(pool.key, pool.value, strict=True)
    ]
    assert torch.equal(torch.stack([both[at] for both in pool.both]), torch.stack(layers))
    return torch.stack(layers)


def places(pool: KeyValuePool) -> list[int]:
    """The cells that `filled` filled, wherever they are now."""
    if isinstance(pool, PromptPool):
        return [*range(5), *pool.of_prompts(torch.arange(2)).tolist()]
    return [*range(5)]


@pytest.mark.parametrize("pool_class", [KeyValuePool, PromptPool])
def test_cells_keep_their_contents(pool_class, has_layers):
    pool = filled(pool_class, has_layers)
    before = contents(pool, places(pool))
    first = pool.both[0]
    pool.grow(3)
    assert pool.both[0] is first
    pool.grow(9)
    assert pool.both[0] is not first and pool.num_cells >= 9
    assert torch.equal(contents(pool, places(pool)), before)


@pytest.mark.parametrize("pool_class", [KeyValuePool, PromptPool])
def test_a_pool_that_cannot_grow_stays_as_it_was(pool_class, monkeypatch):
    pool = filled(pool_class, has_layers=True)
    before, num_cells = contents(pool, places(pool)), pool.num_cells
    new_empty, calls = torch.Tensor.new_empty, []

    def fails(self, *shape):
        calls.append(shape)
        if len(calls) == LAYERS:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return new_empty(self, *shape)

    with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
        patched.setattr(torch.Tensor, "new_empty", fails)
        pool.grow(20)
    assert {both.shape[0] for both in pool.both} == {num_cells} == {pool.num_cells}
    assert torch.equal(contents(pool, places(pool)), before)
    pool.grow(11)
    assert torch.equal(contents(pool, places(pool)), before)


def test_a_pool_and_its_successor_never_both_fill_the_memory(monkeypatch):
    pool = KeyValuePool(LAYERS, 3, 4, torch.float32, torch.device("cpu"))
    pool._whole = None
    pool.grow(100)
    new_empty, peaks = torch.Tensor.new_empty, []

    def counted(self, *shape):
        tensors = [*pool.both, *pool.key, *pool.value]
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
        new = new_empty(self, *shape)
        peaks.append(sum(storages.values()) + new.nbytes)
        return new

    monkeypatch.setattr(torch.Tensor, "new_empty", counted)
    pool.grow(200)
    assert max(peaks) == 200 * pool.cell_bytes + 100 * pool.cell_bytes // LAYERS


def cross_pool(num_slots: int) -> tuple[KeyValuePool, SourceCells]:
    """An empty pool as on a GPU, and the cells of so many slots."""
    pool = KeyValuePool(LAYERS, 3, 4, torch.float32, torch.device("cpu"))
    pool._whole = None
    cells = SourceCells(torch.device("cpu"))
    cells.reserve(num_slots)
    return pool, cells


def test_the_first_sources_make_room_for_those_of_all_slots():
    pool, cells = cross_pool(num_slots=10)
    cells.make_room(pool, [30, 16])
    cells.allocate([0, 1], [30, 16])
    first, table = pool.both[0], cells.cell
    assert pool.num_cells == 15 * 16
    for slot in range(2, 10):
        lengths = [32] if slot < 6 else [16]
        cells.make_room(pool, lengths)
        given = cells.allocate([slot], lengths)
        assert given.numel() == lengths[0] and int(given.max()) < pool.num_cells
    assert pool.both[0] is first and cells.cell is table
    used = [cells.cell[slot, : int(cells.length[slot])] for slot in range(10)]
    assert torch.cat(used).unique().numel() == int(cells.length.sum())


def test_room_for_later_sources_is_a_wish(monkeypatch):
    pool, cells = cross_pool(num_slots=10)
    new_empty = torch.Tensor.new_empty

    def limited(self, num_cells, *shape):
        if num_cells > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return new_empty(self, num_cells, *shape)

    monkeypatch.setattr(torch.Tensor, "new_empty", limited)
    cells.make_room(pool, [30, 16])
    assert pool.num_cells == 3 * 16
    with pytest.raises(torch.OutOfMemoryError):
        cells.make_room(pool, [200])
