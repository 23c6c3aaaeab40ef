"""pybeam's searches beside the batch beam search of FireRedASR: the same tokens, the same scores."""

import json

import pytest
import torch

import pybeam
from support.seed_beam_search import OPTIONS, DenseSpeech, batch_beam_search
from support.speech_models import random_features, save_tiny_speech_model

SOURCES = random_features(10, seed=3)[3:]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("speech")
    save_tiny_speech_model(path, seed=5, eos_nats=1.5, decoder_start_token_id=0)
    return path


@pytest.fixture(scope="module")
def dense(directory) -> DenseSpeech:
    return DenseSpeech.load(directory, json.loads((directory / "config.json").read_text()))


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@torch.inference_mode()
def test_same_tokens_and_scores(directory, dense, device, options):
    """VAR without thresholds on streams, of ragged sources; the original one at a time and in batches."""
    model = pybeam.load_model(directory, device=device)
    search = pybeam.compat.fireredasr.beam_search(**options)
    # the original's limit is that of the longest source in its batch
    alone = [batch_beam_search(dense, [source], **options)[0] for source in SOURCES]
    lengths = {len(tokens) for one in alone for tokens, _ in one}
    assert len(lengths) > 1, "nothing ends at a length of its own"
    if "decode_max_len" in options:
        batch = batch_beam_search(dense, SOURCES, **options)
        assert [[t for t, _ in one] for one in batch] == [[t for t, _ in one] for one in alone]
    for schedule in (pybeam.Batch(3), pybeam.Streaming(4)):
        results = pybeam.Decoder(model, search, schedule=schedule).decode(SOURCES)
        for result, expected in zip(results, alone, strict=True):
            assert [h.tokens for h in result.hypotheses] == [tokens for tokens, _ in expected]
            scores = [h.final_score for h in result.hypotheses]
            assert scores == pytest.approx([score for _, score in expected], abs=1e-4)


@torch.inference_mode()
def test_dense_model_is_the_built_in_one(directory, dense, device):
    """The re-expression's own encoder, so that agreement above is not that of two mistakes."""
    from pybeam import backends

    model = pybeam.load_model(directory, device=device)
    states, mask = dense.encode(SOURCES)
    ours = model.session(backends.resolve("auto", device)).encoder_states(SOURCES).cpu()
    torch.testing.assert_close(ours.double(), states[mask[:, 0]], rtol=1e-5, atol=1e-5)
