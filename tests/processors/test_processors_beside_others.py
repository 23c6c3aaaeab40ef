"""Whole searches with processors beside transformers and CTranslate2, which have their own."""

from __future__ import annotations

import pytest
import torch

import pybeam
from benchmarks.peers import ctranslate2_translator, transformers_model
from pybeam import processors
from support.paths import MODEL
from support.tiny_models import save_tiny_model

LINES = [
    "Y dijo Dios: Sea la luz: y fué la luz.",
    "Jesús lloró.",
    "Santo, santo, santo, Jehová de los ejércitos: toda la tierra está llena de su gloria.",
    "Vanidad de vanidades, dijo el Predicador; vanidad de vanidades, todo vanidad.",
]


@pytest.mark.slow
def test_greedy_as_transformers(tmp_path):
    theirs = save_tiny_model(tmp_path, "m2m_100", seed=3)
    sources = [[5 + (7 * i + j) % 30 for j in range(4 + i % 3)] for i in range(10)]
    chain = [
        processors.repetition_penalty(1.2, counts_start=True),
        processors.no_repeat_ngram(2, counts_start=True),
        processors.suppress_sequences([[9], [8, 30], [12, 5, 6]]),
        # padding among generated tokens would shift positions there
        processors.suppress_tokens([1, 20, 33]),
        processors.suppress_tokens_at_start([2, 34]),
    ]
    search = pybeam.greedy(max_length=20, processors=chain)
    decoder = pybeam.Decoder(pybeam.load_model(tmp_path), search)
    outputs = []
    for source, result in zip(sources, decoder.decode(sources), strict=True):
        with torch.inference_mode():
            (line,) = theirs.generate(
                input_ids=torch.tensor([source]),
                max_new_tokens=20,
                num_beams=1,
                do_sample=False,
                repetition_penalty=1.2,
                no_repeat_ngram_size=2,
                bad_words_ids=[[9], [8, 30], [12, 5, 6]],
                suppress_tokens=[1, 20, 33],
                begin_suppress_tokens=[2, 34],
            ).tolist()
        outputs.append(result.hypotheses[0].tokens)
        assert outputs[-1] == line[1 : line.index(2, 1) if 2 in line[1:] else None]
    assert len(set(map(tuple, outputs))) > 5


def test_greedy_as_ctranslate2():
    tokenizer, model = pybeam.load_tokenizer(MODEL), pybeam.load_model(MODEL)
    sources = [tokenizer.encode(line) for line in LINES]
    pieces = [f"<{i}>" for i in range(model.vocab_size)]
    pieces[:4] = ["<s>", "<pad>", "</s>", "<unk>"]
    translator = ctranslate2_translator(transformers_model(MODEL), pieces, threads=1)
    plain = pybeam.Decoder(model, pybeam.greedy(max_length=40)).decode(sources)
    first, second, third = plain[2].hypotheses[0].tokens[:3]
    wish = plain[0].hypotheses[0].tokens[:4]
    sequences = [[second], [first, third]]
    options = dict(
        beam_size=1,
        max_decoding_length=40,
        return_scores=True,
        length_penalty=0,
        repetition_penalty=1.5,
        no_repeat_ngram_size=2,
        disable_unk=True,
        suppress_sequences=[[pieces[token] for token in line] for line in sequences],
    )
    chain = [
        processors.repetition_penalty(1.5),
        processors.no_repeat_ngram(2),
        processors.no_unk(3),
        processors.suppress_sequences(sequences),
        processors.biased_prefix(0),
    ]
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=40, processors=chain))
    for beta in (0, 0.3, 0.95):
        bias = [processors.biased_prefix(beta, wish)]
        expected = translator.translate_batch(
            [[pieces[token] for token in source] for source in sources],
            target_prefix=[[pieces[token] for token in wish]] * len(sources) if beta else None,
            prefix_bias_beta=beta,
            **options,
        )
        results = decoder.decode([pybeam.Request(s, processors=bias) for s in sources])
        for ours, theirs, without in zip(results, expected, plain, strict=True):
            (best,) = ours.hypotheses
            assert [pieces[token] for token in best.tokens] == theirs.hypotheses[0]
            assert best.score == pytest.approx(theirs.scores[0], abs=5e-3)
            assert best.score != without.hypotheses[0].score
        follows = [result.hypotheses[0].tokens[:4] == wish for result in results]
        assert all(follows) == (beta > 0.5)
