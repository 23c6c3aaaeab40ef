"""Output layers that compute few columns: the bits of all columns, and fewer products."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam.backends.int4 import quantise_groups
from pybeam.backends.packing import INT4, INTEGERS, PANEL, quantise
from pybeam.catalogue import allowed_items
from pybeam.catalogue.items import AllowedItems
from pybeam.models import linear
from pybeam.models.int4 import Int4Linear
from pybeam.models.linear import PackedLinear
from support.item_lists import random_items


@pytest.fixture(autouse=True, scope="module")
def native():
    return pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


@pytest.fixture
def worth_some(monkeypatch):
    """Few columns are computed alone, however small the layer is."""
    monkeypatch.setattr(linear, "WORTH_SOME", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, *INTEGERS])
@pytest.mark.parametrize("has_bias", [False, True])
def test_some_columns_have_the_bits_of_all(worth_some, dtype, has_bias):
    torch.manual_seed(0)
    weight, bias = torch.randn(10 * PANEL + 7, 33), torch.randn(10 * PANEL + 7)
    convert = {torch.int8: quantise, INT4: quantise_groups}.get(dtype, lambda w: w.to(dtype))
    kind = Int4Linear if dtype == INT4 else PackedLinear
    layer = kind(convert(weight), bias if has_bias else None)
    for num_rows in (1, 5, 70):
        x = torch.randn(num_rows, 33)
        expected = layer(x)
        for column in ([0], [PANEL, PANEL + 1, 3 * PANEL - 1], [10 * PANEL + 6, 5], range(640)):
            column = torch.tensor(list(column), dtype=torch.int32)
            memory = torch.full((num_rows + 2, len(bias)), torch.nan)
            found = layer.some(x, column, memory)
            assert found.shape == expected.shape
            assert torch.equal(found[:, column], expected[:, column])
            if len(column) == 1:
                assert found[:, 2 * PANEL :].isnan().all()


def test_a_small_layer_computes_all_columns():
    """Finding few of them would take longer."""
    column, rows = torch.tensor([0]), 64
    for num_columns, is_small in ((1027, True), (8192, False)):
        layer = PackedLinear(torch.randn(num_columns, 128), None)
        found = layer.some(
            torch.randn(rows, 128), column, torch.full((rows, num_columns), torch.nan)
        )
        assert found[:, -1].isnan().any() != is_small


def save(directory, kind: str) -> None:
    pytest.importorskip("transformers")
    from support.causal_models import KINDS, save_tiny_causal
    from support.tiny_models import save_tiny_model

    kinds = save_tiny_causal if kind in KINDS else save_tiny_model
    kinds(directory, kind, vocab_size=900)


# encoder-decoders with and without relative positions, and decoders with and without a cap of logits
@pytest.mark.thinned(most=2)
@pytest.mark.parametrize(
    ("kind", "seed"), [("bart", 1), ("bart", 2), ("t5", 1), ("qwen3", 1), ("gemma2", 2)]
)
def test_a_search_reads_only_what_is_wanted(worth_some, tmp_path, monkeypatch, kind, seed):
    save(tmp_path, kind)
    model = pybeam.load_model(tmp_path)
    # BART's forced EOS needs all columns
    model = model.without(*model.settings.names)
    items = random_items(seed, 200, range(300, 420), range(1, 5))
    catalogue = pybeam.Catalogue.build(items)
    rule = allowed_items(catalogue, renormalize=True)
    search = pybeam.fixed_beam(8, n_best=8, processors=[rule])
    sources = [[5, 9, 7, 2], [4, 2], [8, 8, 3, 9, 2]]
    calls, some = [], PackedLinear.some

    def counted(self, x, column, memory):
        memory.fill_(torch.nan)
        calls.append(len(column))
        return some(self, x, column, memory)

    monkeypatch.setattr(PackedLinear, "some", counted)
    found = pybeam.Decoder(model, search).decode(sources)
    assert calls
    ensemble = pybeam.Decoder(pybeam.models.Ensemble([model, model]), search).decode(sources)
    num = len(calls)
    monkeypatch.setattr(AllowedItems, "wanted", lambda *_: None)
    assert pybeam.Decoder(model, search).decode(sources) == found
    assert len(calls) == num
    for one, other in zip(ensemble, found, strict=True):
        assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]
