"""The layer of CTC of FireRedASR2: it hears what the decoder attends to, and both search together."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam.ctc import prefix_scores
from pybeam.export import convert_fireredasr
from pybeam.models.transformer.sources import SharedFeatures
from support.fireredasr_files import NUM_FEATURES, save_checkpoint, save_published
from support.plain_fireredasr import PlainFireRed

FEATURES = torch.randn(40, NUM_FEATURES, generator=torch.Generator().manual_seed(3))


def test_a_layer_of_ctc_hears_and_searches(tmp_path):
    published, out = tmp_path / "published", tmp_path / "out"
    bare = save_published(published, 14, eos_nats=3.0)
    made = torch.Generator().manual_seed(2)
    weights = {
        "ctc.ctc_lo.weight": torch.randn(40, 24, generator=made),
        "ctc.ctc_lo.bias": torch.arange(40.0) / 40,
    }
    network = PlainFireRed({**bare.weights, **weights}, bare.sizes)
    save_checkpoint(published, network.weights, network.sizes)
    convert_fireredasr(published, out)
    model = pybeam.load_model(out, device="cpu")
    states, _ = network.encode([FEATURES])
    found = model.ctc_log_probs(model.check(FEATURES))
    expected = network.linear("ctc.ctc_lo", states[0]).log_softmax(1)
    assert len(found) == model.source_length(FEATURES)
    torch.testing.assert_close(found, expected[: len(found)], rtol=1e-4, atol=1e-4)
    shared = SharedFeatures(FEATURES)
    assert torch.equal(model.ctc_log_probs(shared), found) and shared.states is not None

    def outputs(log_probs, source):
        processors = [prefix_scores(log_probs)]
        search = pybeam.fixed_beam(3, n_best=2, max_length=6, processors=processors)
        [result] = pybeam.Decoder(model, search).decode([source])
        return [(one.tokens, one.score) for one in result.hypotheses]

    alone = outputs(found, FEATURES)
    assert alone and alone != outputs(None, FEATURES)
    assert outputs(model.ctc_log_probs, FEATURES) == outputs(model.ctc_log_probs, shared) == alone


def test_a_model_without_it_says_so(tmp_path):
    save_published(tmp_path / "published", 14)
    convert_fireredasr(tmp_path / "published", tmp_path / "out")
    model = pybeam.load_model(tmp_path / "out", device="cpu")
    with pytest.raises(ValueError, match="has none; if the published folder has it"):
        model.ctc_log_probs(FEATURES)
