"""`compat.huggingface` against `generate` of the installed transformers, on tiny random models."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import pybeam
from pybeam.compat import huggingface
from tiny_models import favour_eos, tiny_model

pytest.importorskip("transformers")

EOS, PAD = 2, 1
OPTIONS = dict(
    num_beams=[2, 3, 5],
    length_penalty=[-1.0, 0.0, 0.6, 2.0],
    early_stopping=[True, False, "never"],
    num_return_sequences=[1, 2],
    max_new_tokens=[1, 6, 14],
    min_new_tokens=[0, 3],
)


@pytest.fixture(scope="module", params=["m2m_100", "bart"])
def pair(request, tmp_path_factory):
    """Our model and theirs, with EOS likely enough to end hypotheses at many lengths."""
    directory = tmp_path_factory.mktemp(request.param)
    theirs = tiny_model(request.param)
    favour_eos(theirs, 2.0)
    theirs.save_pretrained(directory)
    theirs.generation_config.forced_eos_token_id = None  # BART's default
    return pybeam.load_model(directory), theirs


def sources() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(3, 40) for _ in range(n)] for n in (1, 4, 9, 2, 7)]


@torch.inference_mode()
def generated(model, batch, **options) -> list[list[tuple[list[int], float]]]:
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(source) for source in batch], batch_first=True, padding_value=PAD
    )
    out = model.generate(
        input_ids=ids,
        attention_mask=(ids != PAD).long(),
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    found = []
    for line, score in zip(out.sequences[:, 1:].tolist(), out.sequences_scores, strict=True):
        tokens = line[: line.index(EOS)] if EOS in line else [t for t in line if t != PAD]
        found.append((tokens, float(score)))
    size = options["num_return_sequences"]
    return [found[i : i + size] for i in range(0, len(found), size)]


COMBINATIONS = [
    dict(zip(OPTIONS, values, strict=True))
    for values in itertools.product(*OPTIONS.values())
    if values[-1] < values[-2]
]


@pytest.mark.parametrize("early_stopping", OPTIONS["early_stopping"])
@pytest.mark.parametrize("num_beams", OPTIONS["num_beams"])
def test_same_tokens_and_scores(pair, num_beams, early_stopping):
    ours, theirs = pair
    batch, compared = sources(), 0
    fixed = dict(num_beams=num_beams, early_stopping=early_stopping)
    chosen = [options for options in COMBINATIONS if options.items() >= fixed.items()]
    for options in random.Random(num_beams).sample(chosen, 12):
        expected = generated(theirs, batch, **options)
        algorithm = huggingface.beam_search(**options)
        results = pybeam.Decoder(ours, algorithm, pybeam.Fifo(3)).decode(batch)
        for result, hypotheses in zip(results, expected, strict=True):
            assert result.error is None
            assert [h.final_score for h in result.hypotheses] == pytest.approx(
                [score for _, score in hypotheses], abs=1e-4, rel=1e-5
            ), options
            for hypothesis, (tokens, score) in zip(result.hypotheses, hypotheses, strict=True):
                same = [h for h in hypotheses if abs(h[1] - score) < 1e-4]
                assert hypothesis.tokens == tokens or len(same) > 1, options
                compared += 1
    assert compared > 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(early_stopping="always"), "`early_stopping` must be True, False or 'never'"),
        (dict(num_return_sequences=4), "`num_return_sequences` must be at most `num_beams` = 3"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        huggingface.beam_search(3, **options)
