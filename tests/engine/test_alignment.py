"""Attention of outputs beside the originals', and the coverage penalty beside CTranslate2's."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import pybeam
from pybeam import scoring, stopping
from pybeam.models import Ensemble
from support.search_models import random_model
from support.tiny_models import favour_eos, save_tiny_model, tiny_model

FAMILIES = ("m2m_100", "mbart", "bart", "marian-separate", "fsmt", "t5", "umt5")
SOURCES = [[5, 6, 7, 8, 9], [4], [9, 30, 11, 4, 4, 20, 21, 8, 7], []]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The original and ours, of which hypotheses end at many lengths."""
    directory = tmp_path_factory.mktemp("m2m_100")
    original = tiny_model("m2m_100")
    favour_eos(original, 2.0)
    original.save_pretrained(directory)
    return original, pybeam.load_model(directory)


@torch.no_grad()
def original_attention(original, start: int, source, tokens, layer: int = -1) -> torch.Tensor:
    """[H, tokens, E] of one decoder layer, teacher-forced."""
    original.set_attn_implementation("eager")
    output = original(
        input_ids=torch.tensor([source]),
        decoder_input_ids=torch.tensor([[start, *tokens]]),
        output_attentions=True,
        use_cache=False,
    )
    return output.cross_attentions[layer][0, :, : len(tokens)]


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_equals_the_originals(tmp_path, family):
    """The attention of every hypothesis, forced prefix included; and hypotheses are what they are without."""
    original = save_tiny_model(tmp_path, family)
    model = pybeam.load_model(tmp_path)
    algorithm = pybeam.fixed_beam(4, n_best=3, max_length=9)
    requests = [pybeam.Request(source, prefix=[7, 8][:i]) for i, source in enumerate(SOURCES)]
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(2), alignment=True)
    results = decoder.decode(requests)
    assert results == pybeam.Decoder(model, algorithm).decode(requests)
    for source, result in zip(SOURCES, results[:-1], strict=False):
        assert len(result.hypotheses) == 3
        for hypothesis in result.hypotheses:
            ours, tokens = hypothesis.attention, hypothesis.tokens
            assert (ours.shape, ours.dtype) == ((len(tokens), len(source)), torch.float32)
            expected = original_attention(original, model.start_id, source, tokens).mean(0)
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    assert results[-1].hypotheses[0].attention is None  # nothing to look at


def test_layers_heads_and_ensembles(pair):
    original, model = pair
    algorithm = pybeam.fixed_beam(3, max_length=9)
    for alignment in (pybeam.Alignment(0), pybeam.Alignment(-2, [3, 1]), pybeam.Alignment(2, [0])):
        decoder = pybeam.Decoder(Ensemble([model, model]), algorithm, alignment=alignment)
        for source, result in zip(SOURCES[:3], decoder.decode(SOURCES[:3]), strict=True):
            (best,) = result.hypotheses
            heads = original_attention(
                original, model.start_id, source, best.tokens, alignment.layer
            )
            expected = heads[list(alignment.heads or range(4))].mean(0)
            torch.testing.assert_close(best.attention, expected, rtol=0, atol=1e-5)


def test_coverage_ranks_what_has_finished(pair):
    """By the formula on the originals' attention; of groups, given outputs and requests of their own too."""
    original, model = pair
    plain = pybeam.fixed_beam(4, n_best=4, max_length=9, scoring=scoring.gnmt(0.6))
    covered = dataclasses.replace(plain, scoring=scoring.gnmt(0.6, coverage=0.4), n_best=2)
    asked = [*map(pybeam.Request, SOURCES[:3]), pybeam.Request(SOURCES[0], prefix=[7, 8])]
    before = pybeam.Decoder(model, plain).decode(asked)
    own = dict(scoring=covered.scoring, n_best=2)
    has_changed = 0
    for wanted, requests in (
        (covered, asked),
        (plain, [dataclasses.replace(request, **own) for request in asked]),
    ):
        results = pybeam.Decoder(model, wanted, pybeam.Fifo(2)).decode(requests)
        for request, result, old in zip(asked, results, before, strict=True):
            source = request.source
            expected = []
            for h in old.hypotheses:
                tokens = [*h.tokens, model.eos_id] if h.ended else h.tokens
                attention = original_attention(original, model.start_id, source, tokens).mean(0)
                total = attention[request.prefix_length :].double().sum(0).tolist()
                penalty = 0.4 * sum(math.log(min(value, 1)) for value in total if value > 0)
                expected.append((h.final_score + penalty, h.tokens))
            expected.sort(key=lambda pair: -pair[0])
            assert [h.tokens for h in result.hypotheses] == [tokens for _, tokens in expected[:2]]
            assert [h.final_score for h in result.hypotheses] == pytest.approx(
                [final for final, _ in expected[:2]], abs=1e-4
            )
            assert result.hypotheses[0].attention is None
            has_changed += result.hypotheses[0].tokens != old.hypotheses[0].tokens
    assert has_changed
    decoder = pybeam.Decoder(model, pybeam.diverse(covered, 2, 1.0), alignment=True)
    (result,) = decoder.decode(SOURCES[:1])
    assert len(result.hypotheses) == 4
    best = result.hypotheses[0]
    (scored,) = decoder.score(SOURCES[:1], [best.tokens])
    assert scored.hypotheses[0].attention.allclose(best.attention)
    for weight in (0.0, 0.4):  # what ranks in the end leaves nothing certain before
        greedy = pybeam.greedy(max_length=9, scoring=scoring.gnmt(0.6, coverage=weight))
        stream = pybeam.Decoder(model, greedy).stream(SOURCES, partial=True)
        assert any(isinstance(item, pybeam.Partial) for item in stream) == (weight == 0)


def test_same_coverage_and_attention_as_ctranslate2(tmp_path):
    """One source a call: in a batch, CTranslate2 mixes up the attention of what ends at other steps."""
    pytest.importorskip("ctranslate2")
    from benchmarks.peers import ctranslate2_translator
    from pybeam.compat import ctranslate2 as recipe

    original = tiny_model("m2m_100-even")
    favour_eos(original, 2.0)
    original.save_pretrained(tmp_path)
    model, pieces = pybeam.load_model(tmp_path), ["<s>", "<pad>", "</s>", "<unk>"]
    pieces += [f"t{i}" for i in range(4, 45)]
    theirs = ctranslate2_translator(original, pieces, 1)
    heads = pybeam.Alignment(heads=[0])
    sizes = dict(num_hypotheses=3, length_penalty=0.6, max_decoding_length=12)
    algorithm = recipe.beam_search(3, min_decoding_length=0, **sizes)
    num_compared = {0.0: 0, 0.3: 0}
    for source in ([30, 9, 21, 17], [8], SOURCES[2], [12, 5, 5, 39, 22, 7]):
        for weight in (0.0, 0.3):
            own = dataclasses.replace(algorithm, scoring=scoring.power(0.6, coverage=weight))
            ours = pybeam.Decoder(model, own, alignment=heads).decode([source])[0].hypotheses
            (other,) = theirs.translate_batch(
                [[pieces[token] for token in source]],
                beam_size=3,
                min_decoding_length=0,
                coverage_penalty=weight,
                return_scores=True,
                return_attention=True,
                **sizes,
            )
            found = [[pieces[token] for token in h.tokens] for h in ours]
            if sorted(found) != sorted(other.hypotheses):
                assert weight  # it ranks all that finished, we the best three without coverage
                continue
            assert found == other.hypotheses
            num_compared[weight] += 1
            assert [h.final_score for h in ours] == pytest.approx(other.scores, abs=1e-4)
            for h, rows in zip(ours, other.attention, strict=True):
                for row, expected in zip(h.attention.tolist(), rows, strict=True):
                    assert row == pytest.approx(expected, abs=1e-5)
    assert num_compared == {0.0: 4, 0.3: 2}


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda model: pybeam.Alignment(1.5), TypeError, "`layer` must be given as ints"),
        (lambda model: pybeam.Alignment(heads=[]), ValueError, "`heads` must be at least one"),
        (
            lambda model: pybeam.Decoder(model, pybeam.greedy(), alignment=pybeam.Alignment(3)),
            ValueError,
            "`layer` must be -3 to 2 for a decoder of 3 layers, but is 3",
        ),
        (
            lambda model: pybeam.Decoder(
                model, pybeam.greedy(), alignment=pybeam.Alignment(heads=[1, 4])
            ),
            ValueError,
            "`heads` must be 0 to 3, but one is 4",
        ),
        (
            lambda model: pybeam.Decoder(random_model(1), pybeam.greedy(), alignment=True),
            ValueError,
            "attention needs a model that has it, but a FunctionModel has none",
        ),
        (
            lambda model: pybeam.optimal_beam(3, scoring=scoring.power(1, coverage=0.1)),
            ValueError,
            "`stop` cannot certify the best one",
        ),
        (
            lambda model: pybeam.Decoder(
                model, pybeam.greedy(scoring=scoring.power(1, coverage=0.1))
            ).alternatives([[5]]),
            ValueError,
            "`alternatives` cannot rank by coverage",
        ),
    ],
)
def test_refused(pair, build, error, message):
    with pytest.raises(error, match=message):
        build(pair[1])


def test_a_request_cannot_ask_for_coverage_without_attention():
    decoder = pybeam.Decoder(random_model(1), pybeam.greedy(stop=stopping.end()))
    request = pybeam.Request([1], scoring=scoring.power(1, coverage=0.1))
    bad, good = decoder.decode([request, [1]], on_error="return")
    assert "attention needs a model that has it" in str(bad.error)
    assert good.error is None


def test_attention_needs_the_own_start_token(pair):
    """The request that begins with another one fails alone."""
    _, model = pair
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=4), alignment=pybeam.Alignment())
    requests = [pybeam.Request([5, 6, 2]), pybeam.Request([5, 6, 2], start=7)]
    good, bad = decoder.decode(requests, on_error="return")
    assert good.hypotheses[0].attention is not None
    with pytest.raises(ValueError, match="attention needs the model's own start token"):
        raise bad.error
