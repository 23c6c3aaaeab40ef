"""`compat.huggingface` against `generate` of the installed transformers, on tiny random models."""

from __future__ import annotations

import random

import pytest
import torch

import pybeam
from pybeam.compat import huggingface
from support.option_cover import covering_combinations, random_combinations
from support.tiny_models import favour_eos, tiny_model

pytest.importorskip("transformers")

EOS, PAD = 2, 1
OPTIONS = dict(
    num_beams=[2, 3, 5],
    length_penalty=[-1.0, 0.0, 0.6, 2.0],
    early_stopping=[True, False, "never"],
    max_new_tokens=[1, 6, 14],
    min_new_tokens=[0, 3, 6],
    repetition_penalty=[1.0, 1.4, 0.8],
    no_repeat_ngram_size=[0, 1, 2, 3],
    bad_words_ids=[[], [[EOS], [9], [8, 30], [EOS, 11], [12, 5, 6]]],
    forced_bos_token_id=[None, 7],
    forced_eos=[False, True],
    exponential_decay_length_penalty=[None, (2, 1.2)],
    # the end of generated padding cannot be seen in a result
    suppress_tokens=[[PAD], [PAD, 20, 33]],
    begin_suppress_tokens=[[], [EOS, 34, 17]],
    renormalize_logits=[False, True],
    prefix_length=[0, 0, 1, 3],
)


def is_valid(options: dict) -> bool:
    return options["min_new_tokens"] <= options["max_new_tokens"]


@pytest.fixture(scope="module", params=["m2m_100", "bart"])
def pair(request, tmp_path_factory):
    """Our model and theirs, with EOS likely enough to end hypotheses at many lengths."""
    directory = tmp_path_factory.mktemp(request.param)
    theirs = tiny_model(request.param)
    favour_eos(theirs, 2.0)
    theirs.save_pretrained(directory)
    theirs.generation_config.forced_eos_token_id = None  # BART's default
    ours = pybeam.load_model(directory)
    return ours.without(*ours.settings.names), theirs


def sources() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(3, 40) for _ in range(n)] for n in (1, 4, 9, 2, 7)]


@torch.inference_mode()
def generated(model, batch, prefixes, **options) -> list[list[tuple[list[int], float]]]:
    """As many hypotheses as beams; without those that stand for none."""
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(source) for source in batch], batch_first=True, padding_value=PAD
    )
    out = model.generate(
        input_ids=ids,
        attention_mask=(ids != PAD).long(),
        decoder_input_ids=torch.tensor([[EOS, *prefix] for prefix in prefixes]),
        forced_eos_token_id=EOS if options.pop("forced_eos") else None,
        num_return_sequences=options["num_beams"],
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        # it takes no empty lists
        **{name: None if value == [] else value for name, value in options.items()},
    )
    found = []
    for line, score in zip(out.sequences[:, 1:].tolist(), out.sequences_scores, strict=True):
        tokens = line[: line.index(EOS)] if EOS in line else [t for t in line if t != PAD]
        found.append((tokens, float(score)))
    size = options["num_beams"]
    groups = [found[i : i + size] for i in range(0, len(found), size)]
    return [[one for one in group if one[1] > -1e5] for group in groups]


def compare(pair, combinations: list[dict]) -> int:
    """Returns how many hypotheses were the same."""
    ours, theirs = pair
    batch, compared = sources(), 0
    for i, options in enumerate(combinations):
        options = dict(options)
        rng, length = random.Random(i), options.pop("prefix_length")
        prefixes = [[rng.randrange(3, 40) for _ in range(length)] for _ in batch]
        expected = generated(theirs, batch, prefixes, **options)
        algorithm = huggingface.beam_search(num_return_sequences=options["num_beams"], **options)
        requests = [
            pybeam.Request(source, prefix=prefix)
            for source, prefix in zip(batch, prefixes, strict=True)
        ]
        results = pybeam.Decoder(ours, algorithm, pybeam.Fifo(3)).decode(requests)
        for result, hypotheses in zip(results, expected, strict=True):
            assert result.error is None, result.error
            assert [h.final_score for h in result.hypotheses] == pytest.approx(
                [score for _, score in hypotheses], abs=1e-4, rel=1e-5
            ), (options, prefixes)
            for hypothesis, (tokens, score) in zip(result.hypotheses, hypotheses, strict=True):
                same = [h for h in hypotheses if abs(h[1] - score) < 1e-4]
                assert hypothesis.tokens == tokens or len(same) > 1, (options, prefixes)
                compared += 1
    return compared


@pytest.mark.thinned(most=1)
def test_same_tokens_and_scores(pair):
    combinations = covering_combinations(OPTIONS, is_valid)
    assert compare(pair, combinations) > 10 * len(combinations)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_same_tokens_and_scores_of_many(pair, seed):
    assert compare(pair, random_combinations(OPTIONS, is_valid, 100, seed)) > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(early_stopping="always"), "`early_stopping` must be True, False or 'never'"),
        (dict(num_return_sequences=4), "`num_return_sequences` must be at most `num_beams` = 3"),
        (
            dict(num_beams=1, exponential_decay_length_penalty=(2, 1.1)),
            "`exponential_decay_length_penalty` needs `num_beams` of at least 2",
        ),
        (dict(min_new_tokens=21), "`min_new_tokens` must be at most `max_new_tokens` = 20"),
        (dict(max_new_tokens=0), "`max_length` must be at least 1, but is 0"),
        (dict(repetition_penalty=0), "`penalty` must be finite, greater than 0"),
        (dict(bad_words_ids=[[]]), "`sequences` must not hold an empty one"),
        (dict(exponential_decay_length_penalty=1.5), "must be a pair, .* but is 1.5"),
        (dict(exponential_decay_length_penalty=(2, 0)), "`factor` must be finite, greater than 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        huggingface.beam_search(**{"num_beams": 3, **options})
