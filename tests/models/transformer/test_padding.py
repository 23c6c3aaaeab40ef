"""A padding token inside a hypothesis has the position that transformers gives it, token by token."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import pybeam
from pybeam import compat
from pybeam.export import export_onnx
from support.onnx_search import assert_agree, hypotheses, load_graph
from support.speech_models import random_features, save_tiny_speech_model
from support.tiny_models import favour, save_tiny_model

pytestmark = pytest.mark.usefixtures("inference_mode")

# those whose padding has a position like any other token stand last
KINDS = ("m2m_100", "fsmt", "speech_to_text", "m2m_100-pad0", "bart", "marian")
QUICK = KINDS[:3]
LENGTH = 9


class Pair(NamedTuple):
    theirs: torch.nn.Module
    ours: pybeam.models.Transformer
    sources: list

    @property
    def pad(self) -> int:
        return self.theirs.config.pad_token_id

    def inputs(self, source) -> dict[str, torch.Tensor]:
        name = "input_features" if isinstance(source, torch.Tensor) else "input_ids"
        return {name: torch.as_tensor(source)[None]}

    def log_probs(self, source, tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs [T + 1, V] and the last layer's attention [T + 1, E] of transformers, with its cache."""
        given = dict(
            encoder_outputs=self.theirs.get_encoder()(**self.inputs(source)), use_cache=True
        )
        if not isinstance(source, torch.Tensor):
            given |= self.inputs(source)
        cache, logits, attention = None, [], []
        for token in (self.ours.start_id, *tokens):
            ids = torch.tensor([[token]])
            out = self.theirs(decoder_input_ids=ids, cache=cache, output_attentions=True, **given)
            cache = out.cache
            logits.append(out.logits[0, -1])
            attention.append(out.cross_attentions[-1][0, :, -1].mean(0))
        return torch.stack(logits).log_softmax(-1), torch.stack(attention)


@pytest.fixture(
    scope="module",
    params=[
        kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS
    ],
)
def pair(request, tmp_path_factory) -> Pair:
    """The original, which likes padding, and ours."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "speech_to_text":
        theirs, sources = save_tiny_speech_model(folder), random_features(3, longest=30)
    else:
        theirs = save_tiny_model(folder, request.param)
        sources = [[7, 30, 12, 9], [33], [20, 21, 8]]
    favour(theirs, theirs.config.pad_token_id, 9.0)
    theirs.config._attn_implementation = "eager"
    theirs.generation_config.forced_eos_token_id = None
    theirs.save_pretrained(folder)
    return Pair(theirs, pybeam.load_model(folder, device="cpu"), sources)


def targets(pair: Pair) -> list[list[int]]:
    """Padding at the beginning, alone, several in a row, at the end."""
    x = pair.pad
    return [[x, 5, x, x, 9, 17, x, 8], [11, x, 4], [12, 13, x]]


@pytest.mark.thinned(most=1)
def test_scores_of_given_outputs(pair, backend):
    """As transformers, token by token; so is their attention."""
    decoder = pybeam.Decoder(
        pair.ours,
        pybeam.fixed_beam(3),
        backend=backend,
        log_probs=True,
        alignment=pybeam.Alignment(),
    )
    results = decoder.score(pair.sources, targets(pair))
    for source, target, result in zip(pair.sources, targets(pair), results, strict=True):
        expected, attention = pair.log_probs(source, target)
        right = expected.gather(1, torch.tensor([[*target, pair.ours.eos_id]]).T)[:, 0]
        found = result.hypotheses[0]
        assert torch.tensor(found.log_probs).sub(right).abs().max() <= 1e-5 * max(
            1, -expected.min()
        )
        torch.testing.assert_close(found.attention, attention[:-1], rtol=1e-4, atol=1e-5)


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_searches(pair, backend, num_beams):
    """As `generate`, with padding in most outputs. None ends, so that none has padding behind its end."""
    limits = dict(min_new_tokens=LENGTH, max_new_tokens=LENGTH)
    algorithm = compat.huggingface.beam_search(num_beams, num_return_sequences=num_beams, **limits)
    found = pybeam.Decoder(pair.ours, algorithm, backend=backend).decode(pair.sources)
    seen = 0
    for source, result in zip(pair.sources, found, strict=True):
        given = dict(num_beams=num_beams, num_return_sequences=num_beams, do_sample=False)
        lines = pair.theirs.generate(**pair.inputs(source), **given, **limits)[:, 1:].tolist()
        assert [hypothesis.tokens for hypothesis in result.hypotheses] == lines
        seen += sum(line[:-1].count(pair.pad) for line in lines)
    assert seen > 2


@pytest.mark.thinned(most=3)
def test_however_they_are_reached(pair, backend):
    """Prefixes, read at once or token by token, and guesses, give the bits of a search without them."""
    limits = dict(max_length=LENGTH, min_length=LENGTH - 1)
    decode = lambda algorithm, sources: pybeam.Decoder(  # noqa: E731
        pair.ours, algorithm, backend=backend
    ).decode(sources)
    plain = decode(pybeam.greedy(**limits), pair.sources)
    outputs = [result.hypotheses[0].tokens for result in plain]
    assert any(pair.pad in output[:5] for output in outputs)
    for guess in (pybeam.jacobi, pybeam.adaptive_jacobi):
        ahead = decode(guess(initialiser=pybeam.drafts.pad(), **limits), pair.sources)
        assert [result.hypotheses[0].tokens for result in ahead] == outputs
    requests = [
        pybeam.Request(source, output[:6], max_length=LENGTH - 6, min_length=LENGTH - 7)
        for source, output in zip(pair.sources, outputs, strict=True)
    ]
    for rule in (
        pybeam.limits.PrefixRule(),
        pybeam.limits.PrefixRule(is_scored=True, in_length=True),
    ):
        behind = decode(pybeam.greedy(prefix=rule), requests)
        assert [result.hypotheses[0].tokens for result in behind] == outputs


@pytest.mark.thinned(most=1)
def test_exported(pair, tmp_path):
    """The graph of one step, and that of a whole search."""
    pytest.importorskip("onnxruntime")
    limits = dict(max_length=LENGTH, min_length=LENGTH - 1)
    algorithm = pybeam.fixed_beam(3, n_best=3, **limits)
    export_onnx(pair.ours, tmp_path, algorithm)
    expected = pybeam.Decoder(pair.ours, algorithm).decode(pair.sources)
    assert any(pair.pad in one.tokens[:-1] for found in expected for one in found.hypotheses)
    assert_agree(hypotheses(load_graph(tmp_path), pair.sources, 3, LENGTH, 0.0), expected)
    graphs = pybeam.load_model(tmp_path)
    found = pybeam.Decoder(graphs, algorithm).decode(pair.sources)
    for ours, right in zip(found, expected, strict=True):
        assert [one.tokens for one in ours.hypotheses] == [one.tokens for one in right.hypotheses]
