"""The example model with bfloat16 weights on a CPU: float32 scores close to the float32 model's."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam.models.linear import PackedLinear
from support.example_model import ALGORITHMS, CORPUS, LINES, lines_of
from support.paths import MODEL
from support.threads import every_thread_count


@pytest.fixture(scope="module")
def model():
    model = pybeam.load_model(MODEL, device="cpu", dtype="bfloat16")
    if not isinstance(model.output, PackedLinear):
        pytest.skip("there is no C++ extension for this CPU")
    return model


@pytest.fixture(scope="module")
def exact():
    return pybeam.load_model(MODEL, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def sources():
    tokenizer = pybeam.load_tokenizer(MODEL)
    return [tokenizer.encode(line) for line in LINES]


def decode(model, name, sources, schedule=None):
    return pybeam.Decoder(model, ALGORITHMS[name], schedule or pybeam.Fifo(64)).decode(sources)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_scores_do_not_depend_on_schedule_and_threads_to_the_last_bit(model, sources, name):
    schedules = (pybeam.Batch(1), pybeam.Batch(8), pybeam.Streaming(4), pybeam.Fifo(3))
    of_all = [
        [
            [(h.tokens, h.score, h.final_score) for h in result.hypotheses]
            for result in decode(model, name, sources, schedule)
        ]
        for schedule, _ in zip(schedules, every_thread_count(), strict=True)
    ]
    assert all(of_one == of_all[0] for of_one in of_all)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_translations_stay_near_float32s(model, exact, sources, name):
    pairs = list(zip(decode(model, name, sources), decode(exact, name, sources), strict=True))
    same = [(a.hypotheses[0], b.hypotheses[0]) for a, b in pairs]
    same = [(a, b) for a, b in same if a.tokens == b.tokens]
    assert len(same) >= len(pairs) - 2
    for a, b in same:
        # weights and inputs keep 8 bits: equal scores would mean that nothing was rounded
        assert a.score == pytest.approx(b.score, abs=0.01 * (len(a.tokens) + 1))
        assert a.score != b.score


@pytest.mark.slow
def test_bleu_is_float32s_within_a_fifth(model, exact):
    sacrebleu = pytest.importorskip("sacrebleu")
    sources, tokenizer = lines_of("dev"), pybeam.load_tokenizer(MODEL)
    references = (CORPUS / "dev.en").read_text("utf-8").splitlines()
    search = pybeam.variable_beam(5, 1.1, 3, max_length=128, scoring=pybeam.scoring.power(1.0))
    bleu = []
    for each in (model, exact):
        results = pybeam.Decoder(each, search).decode(sources)
        lines = [tokenizer.decode(result.hypotheses[0].tokens) for result in results]
        bleu.append(sacrebleu.corpus_bleu(lines, [references]).score)
    assert bleu[0] == pytest.approx(bleu[1], abs=0.2)


@pytest.mark.thinned(most=1)
def test_every_instruction_set_finds_nearly_the_same(model, sources, isa):
    """Sums of another order may round an input to its other neighbour, no more."""
    best = [result.hypotheses[0] for result in decode(model, "greedy", sources)]
    torch.ops.pybeam.set_isa("generic")
    try:
        portable = [result.hypotheses[0] for result in decode(model, "greedy", sources)]
    finally:
        torch.ops.pybeam.set_isa(isa)
    pairs = [(a, b) for a, b in zip(best, portable, strict=True) if a.tokens == b.tokens]
    assert len(pairs) >= len(sources) - 1
    for a, b in pairs:
        assert a.score == pytest.approx(b.score, abs=0.003 * (len(a.tokens) + 1))
