"""Every step lists new nodes last, in the order of its rows: attention that writes them relies on it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import pybeam
from pybeam.backends import defaults
from pybeam.engine.workspace import Workspace
from pybeam.kvcache import token_tree
from pybeam.models import load_model
from support.causal_models import KINDS, save_tiny_causal
from support.laws import decoded, essence
from support.tiny_models import save_tiny_model

native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)

SEARCHES = {
    "fixed": pybeam.fixed_beam(4, n_best=4, max_length=9),
    "variable": pybeam.variable_beam(5, threshold=3.0, n_best=3, max_length=9),
    "shrinking": pybeam.shrinking_beam(4, max_length=9),
    "adaptive": pybeam.adaptive_jacobi(3, max_length=9, initialiser=pybeam.drafts.pad()),
    "sampled": pybeam.stochastic_beam(4, seed=3, max_length=9),
}
PREFIX = [5, 9, 6, 8, 7, 5]
REQUESTS = [
    pybeam.Request([4, 5, 6, 2]),
    pybeam.Request([7, 8, 2], prefix=PREFIX),
    pybeam.Request([9, 2], prefix=PREFIX[:1]),
    pybeam.Request([4, 2], prefix=PREFIX[:4]),
    pybeam.Request([6, 6, 2], target=[4, 9, 5]),
]


class Checked:
    """The native operators. Attention checks what it is told of new nodes, and then does as they do."""

    def __init__(self) -> None:
        self.num_lines = 0
        self.backend = SimpleNamespace(**{**vars(native), "layer_program": defaults.no_program})

    def tree_attention(self, query, key, value, cells, scale, distances=None, new=None):
        if new is not None:
            self.check(cells, new)
        return native.tree_attention(query, key, value, cells, scale, distances, new)

    def check(self, cells, new):
        bounds = cells.offset.tolist()
        for p, first, last in zip(cells.slot.tolist(), bounds, bounds[1:], strict=False):
            if first == last:
                continue
            listed = cells.cell[p, : int(cells.num_cells[p])]
            row = last - len(listed) + torch.arange(len(listed))
            stands = torch.where(row >= 0, new.cell[row.clamp(min=0).long()], -1) == listed
            assert torch.equal(stands, torch.isin(listed, new.cell))
            assert bool(torch.isin(new.cell[first:last], listed).all())
            self.num_lines += 1


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("has_paths", [False, True])
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("kind", ["m2m_100", "t5", "qwen3", "gemma3"])
def test_new_nodes_stand_last(kind, name, has_paths, tmp_path, monkeypatch):
    if has_paths:
        monkeypatch.setitem(token_tree.WIDEST_WITH_MASKS, "cpu", 0)
    (save_tiny_causal if kind in KINDS else save_tiny_model)(tmp_path, kind)
    model, checked = load_model(tmp_path, device="cpu"), Checked()
    schedule = pybeam.Streaming(3, 0.5, max_wait=2)

    def results():
        workspace = Workspace(model, SEARCHES[name], checked.backend)
        return essence(decoded(model, SEARCHES[name], schedule, None, REQUESTS, workspace))

    expected = results()
    checked.backend.tree_attention = checked.tree_attention
    assert results() == expected
    assert checked.num_lines > 0
