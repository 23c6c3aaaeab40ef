"""`prepend_prompts`: cells of prompts before those of trees, and rows behind prompts, in one launch."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.contracts import Paths
from pybeam.kvcache.pools import SourceCells
from pybeam.models.cells import Cells
from pybeam.models.prompts import PromptPool, Prompts
from pybeam.triton_kernels import prompts as kernels

UNKNOWN = torch.iinfo(torch.int32).max


def ints(values, device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


class Step:
    """Rows of random sources, which stand in random slots; what nobody may read is absurd.

    Args:
        lengths: cells of each source's prompt.
        lives: cells of each source's tree.
        form: "masks of 1", "masks of 2" or "paths".
        room: columns of the tables beyond the longest line.
    """

    def __init__(self, seed, lengths, lives, form, device, num_padded=3, room=5):
        draw, self.device = random.Random(seed), device
        torch.manual_seed(seed)
        num_sources, width = len(lengths), 100 if form == "masks of 2" else 7
        num_slots = num_sources + 4
        slots = draw.sample(range(1, num_slots), num_sources)
        # sources of padding have the null slot, which is empty
        self.slots, lengths, lives = [*slots, 0, 0], [*lengths, 0, 0], [*lives, 0, 0]
        counts = [draw.randint(0, 4) for _ in slots] + [0, 0]
        pool = PromptPool(1, 1, 1, torch.float32, device)
        pool.grow(num_slots * (max(lives) + room))
        pool.grow_prompts(num_slots * (max(lengths) + room))
        self.cells = SourceCells(device)
        self.cells.cell = torch.full((num_slots, max(lengths) + room), UNKNOWN, dtype=torch.int32)
        live = torch.full((num_slots, max(lives) + room), UNKNOWN, dtype=torch.int32)
        words = {"masks of 1": 1, "masks of 2": 2, "paths": 0}[form]
        mask = torch.full((*live.shape, words), torch.iinfo(torch.int64).max)
        own_cells = torch.randperm(pool.num_own, dtype=torch.int32)
        prompt_cells = torch.randperm(pool.num_prompt, dtype=torch.int32)
        length, num_live = torch.zeros(2, num_slots, dtype=torch.int32)
        for i, slot in enumerate(self.slots):
            at = i * live.shape[1]
            live[slot, : lives[i]] = own_cells[at : at + lives[i]]
            mask[slot, : lives[i]] = torch.randint(-(2**63), 2**63 - 1, (lives[i], words))
            at = i * self.cells.cell.shape[1]
            self.cells.cell[slot, : lengths[i]] = prompt_cells[at : at + lengths[i]]
            length[slot], num_live[slot] = lengths[i], lives[i]
        live[num_live == 0, 0] = 0
        self.cells.cell, self.cells.length = self.cells.cell.to(device), length.to(device)
        row_slots = [slot for slot, n in zip(self.slots, counts, strict=True) for _ in range(n)]
        row_slots += [0] * num_padded
        num_rows = len(row_slots)
        place = [draw.randint(0, 2) for _ in range(num_rows)]
        cell = torch.randperm(pool.num_own)[:num_rows].tolist()
        cell[num_rows - num_padded :] = [-1] * num_padded
        self.rows = SimpleNamespace(
            # no cell is poisoned
            tree=SimpleNamespace(is_forgotten=lambda cell: cell.new_zeros(0, dtype=torch.bool)),
            token=ints([draw.randint(0, 999) for _ in row_slots], device),
            position=ints(place, device),
            row_slot=ints(row_slots, device),
            cell=ints(cell, device),
        )
        offset = [sum(counts[:i]) for i in range(len(counts) + 1)]
        entry = ints([draw.randrange(width) for _ in row_slots], device)
        given = ints(offset, device), ints(self.slots, device), live.to(device)
        self.own = Cells(*given, num_live.to(device), entry=entry)
        if words:
            self.own = self.own._replace(mask=mask.to(device))
        else:
            place = torch.randint(0, 9, (num_slots, width, 9), dtype=torch.int32, device=device)
            paths = Paths(place, torch.randint(0, 9, (num_slots,), dtype=torch.int32).to(device))
            self.own = self.own._replace(paths=paths)
        self.first_row = torch.randint(0, 900, (num_slots,), dtype=torch.int32).to(device)
        self.prompts = Prompts(pool, self.cells, needs_positions=True)
        self.prompts._last = torch.randint(1000, 2000, (num_slots,), dtype=torch.int32).to(device)

    def begun(self, backend, has_first_row=True):
        """Rows as a model is given them, positions that are stored, and the list of each source."""
        pool = self.prompts.pool
        pool.position.fill_(-7)
        first_row = self.first_row if has_first_row else None
        begun = self.prompts.begin(backends.load(backend), self.rows, self.own, first_row)
        cells = begun.cells
        assert torch.equal(cells.offset, self.own.offset) and cells.entry is self.own.entry
        seen = []
        for line in cells.slot.tolist():
            num = int(cells.num_cells[line])
            seen.append(cells.cell[line, :num])
            # the null slot is empty, and its first place is read all the same
            assert 0 <= int(cells.cell[line, 0]) < pool.num_cells
            if cells.mask is not None:
                seen.append(cells.mask[line, :num])
            if cells.paths is not None:
                place, length, num_shared = cells.paths
                seen += [place[line], length[line], num_shared[line]]
        return [begun.token, begun.position, begun.place, pool.position.clone(), *seen]


def assert_as_torch(step, **given) -> None:
    expected, found = step.begun("reference", **given), step.begun("triton", **given)
    assert len(expected) == len(found)
    for own, other in zip(found, expected, strict=True):
        assert own.dtype == other.dtype and torch.equal(own, other)


FORMS = ["masks of 1", "masks of 2", "paths"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("lengths", "lives"),
    [
        # a prompt of one token leaves no cell, and a tree may not have begun
        ([0], [1]),
        ([0, 5], [0, 0]),
        ([3, 0, 17, 1], [2, 9, 0, 30]),
        # around the end of a block
        ([511, 512, 513, 0], [513, 511, 512, 1025]),
        ([1100, 16], [1, 3]),
    ],
    ids=str,
)
def test_as_in_torch(form, lengths, lives, device):
    for seed in range(2):
        step = Step(seed, lengths, lives, form, device, num_padded=3 * seed)
        assert_as_torch(step, has_first_row=seed == 0)


@pytest.mark.parametrize("form", FORMS)
def test_no_column_is_left(form, device):
    """Tables end with the longest prompt and the largest tree."""
    assert_as_torch(Step(0, [16, 512], [9, 4], form, device, room=0))
    assert_as_torch(Step(1, [0, 0], [1, 4], form, device, room=0))


@pytest.mark.parametrize("form", FORMS)
def test_few_programs_for_long_lists(form, device, monkeypatch):
    """Each writes several blocks."""
    monkeypatch.setattr(kernels, "MOST_PROGRAMS", 1)
    monkeypatch.setattr(kernels, "BLOCK_SIZE", 16)
    assert_as_torch(Step(0, [100, 0, 33], [70, 17, 16], form, device))
    monkeypatch.setattr(kernels, "MOST_PROGRAMS", 8)
    assert_as_torch(Step(1, [100, 64, 33], [70, 48, 16], form, device))


def test_a_long_prompt(device):
    step = Step(0, [32_768, 3], [40, 8], "masks of 1", device)
    assert_as_torch(step)


def test_rows_that_fill_several_programs(device):
    assert_as_torch(Step(0, [4], [3], "paths", device, num_padded=1025, room=2000))


def test_neither_sources_nor_rows(device):
    step = Step(0, [4], [3], "masks of 1", device)
    none = ints([], device)
    step.own = step.own._replace(slot=none, offset=ints([0], device))
    assert_as_torch(step)
    for name in ("token", "position", "row_slot", "cell"):
        setattr(step.rows, name, none)
    assert_as_torch(step)


def test_positions_are_stored_where_a_layer_asks_for_them(device):
    step = Step(0, [4, 9], [3, 3], "masks of 1", device)
    position = step.begun("triton")[3]
    is_row = step.rows.cell >= 0
    assert int((position != -7).sum()) == int(is_row.sum())
    step.prompts.needs_positions = False
    assert bool((step.begun("triton")[3] == -7).all())
    assert_as_torch(step)


def test_attention_with_sinks(device):
    """It reads lists in torch, by source; windows ask for positions."""
    pytest.importorskip("transformers")
    from pybeam.models.huggingface import wrap
    from support.huggingface_models import tiny_network

    model = wrap(tiny_network("gptoss").to(device))
    algorithm, found = pybeam.fixed_beam(3, min_length=2, max_length=3), []
    for backend in ("reference", "triton"):
        results = pybeam.Decoder(model, algorithm, backend=backend).decode([[5, 6, 7], [8]])
        found.append([one for result in results for one in result.hypotheses])
    assert [one.tokens for one in found[0]] == [one.tokens for one in found[1]]
    scores = [torch.tensor([one.score for one in some]) for some in found]
    assert torch.allclose(*scores, atol=1e-4)
