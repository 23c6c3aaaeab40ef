"""The laws on the example model, with real text: tokens must match unless scores lie within 1e-4."""

import re

import pytest
import torch

import pybeam
from pybeam.models.linear import PackedLinear
from support.example_model import ALGORITHMS, LINES, assert_agree, lines_of
from support.paths import MODEL
from support.threads import every_thread_count


@pytest.fixture(scope="module")
def model():
    return pybeam.load_model(MODEL, device="cpu")


@pytest.fixture(scope="module")
def sources():
    tokenizer = pybeam.load_tokenizer(MODEL)
    return [tokenizer.encode(line) for line in LINES]


@pytest.fixture(scope="module")
def theirs():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(MODEL, dtype=torch.float32).eval()


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_results_do_not_depend_on_the_schedule(model, sources, name):
    algorithm = ALGORITHMS[name]
    expected = pybeam.Decoder(model, algorithm, pybeam.Batch(1)).decode(sources)
    budget = 2 * algorithm.width
    for schedule in (
        pybeam.Batch(8),
        pybeam.Batch(tokens=40),
        pybeam.Streaming(4),
        pybeam.Streaming(4, row_budget=budget, max_wait=4),
        pybeam.Fifo(3),
        pybeam.Fifo(4, row_budget=budget),
    ):
        assert_agree(pybeam.Decoder(model, algorithm, schedule).decode(sources), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS if name != "variable"]
    + ["variable"],
)
def test_scores_do_not_depend_on_schedule_and_threads_to_the_last_bit(model, sources, name):
    """Every product, norm and sum of a row takes its terms in an order of its own."""
    if not isinstance(model.output, PackedLinear):
        pytest.skip("the matrix products are a library's")
    schedules = (pybeam.Batch(1), pybeam.Batch(8), pybeam.Streaming(4), pybeam.Fifo(3))
    of_all = [
        [
            [(h.tokens, h.score, h.final_score) for h in result.hypotheses]
            for result in pybeam.Decoder(model, ALGORITHMS[name], schedule).decode(sources)
        ]
        for schedule, _ in zip(schedules, every_thread_count(), strict=True)
    ]
    assert all(of_one == of_all[0] for of_one in of_all)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_backends_agree(model, sources, name):
    if "native" not in pybeam.backends.available():
        pytest.skip("the native backend is not built")
    found = [
        pybeam.Decoder(model, ALGORITHMS[name], backend=backend).decode(sources[1:4])
        for backend in ("native", "reference")
    ]
    assert_agree(*found)


@pytest.mark.slow
def test_width_one_is_transformers_greedy(model, sources, theirs):
    for build in (pybeam.fixed_beam, pybeam.variable_beam):
        results = pybeam.Decoder(model, build(1, max_length=60)).decode(sources)
        for source, result in zip(sources, results, strict=True):
            generated = theirs.generate(
                input_ids=torch.tensor([source]), num_beams=1, do_sample=False, max_new_tokens=60
            )[0, 1:].tolist()
            if model.eos_id in generated:
                generated = generated[: generated.index(model.eos_id)]
            assert result.hypotheses[0].tokens == generated


@pytest.mark.slow
def test_fixed_beam_scores_are_the_models(model, sources, theirs):
    """The score of every hypothesis is its teacher-forced log-probability."""
    results = pybeam.Decoder(model, ALGORITHMS["fixed"]).decode(sources)
    for source, result in zip(sources, results, strict=True):
        for h in result.hypotheses:
            target = [*h.tokens, model.eos_id] if h.ended else h.tokens
            with torch.inference_mode():
                logits = theirs(
                    input_ids=torch.tensor([source]),
                    decoder_input_ids=torch.tensor([[model.start_id, *target[:-1]]]),
                ).logits[0]
            log_prob = torch.log_softmax(logits, -1)[range(len(target)), target]
            assert h.score == pytest.approx(log_prob.sum().item(), abs=1e-3)


@pytest.mark.slow
def test_a_wider_beam_finds_no_worse_translations(model, sources):
    """Not a law line by line, but on these lines it must hold in the sum."""
    total = {}
    for width in (1, 5, 20):
        results = pybeam.Decoder(model, pybeam.variable_beam(width, max_length=60)).decode(sources)
        total[width] = sum(result.hypotheses[0].score for result in results)
    assert total[1] < total[5] <= total[20]


@pytest.mark.slow
def test_two_thousand_lines_hold_pages_constant(model):
    """Once the first window's longest sources were live, the pool never grows again."""
    sources = (lines_of("test") + lines_of("dev"))[:2000]
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=60), pybeam.Fifo(64))
    pages = [decoder.stats.pages for _ in decoder.stream(sources)]
    assert len(pages) == 2000
    assert pages[-1] == pages[64] > 0


def test_stop_reasons_and_costs_are_reported(model, sources):
    decoder = pybeam.Decoder(model, ALGORITHMS["variable"])
    results = decoder.decode(sources)
    assert all(re.fullmatch("n_best|empty_beam", result.stop_reason) for result in results)
    assert decoder.stats.expansions < 20 * decoder.stats.steps * len(sources) / 2


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_optimal_stopping_keeps_the_winner(model, sources, reward):
    options = dict(max_length=60, scoring=pybeam.scoring.reward(reward, ratio=1.1))
    found = [
        pybeam.Decoder(model, pybeam.fixed_beam(4, stop=stop, **options)).decode(sources)
        for stop in (pybeam.stopping.optimal(), pybeam.stopping.end())
    ]
    for ours, theirs in zip(*found, strict=True):
        assert ours.hypotheses == theirs.hypotheses
        assert ours.stop_reason == "optimal"
        assert ours.steps < theirs.steps


def test_what_the_model_cannot_take_fails_alone(model, sources):
    """Ids out of range, no ids, too many: between good sources, which find what they find without."""
    decoder = pybeam.Decoder(model, ALGORITHMS["fixed"], pybeam.Fifo(3))
    bad = [[model.vocab_size], [-1], "abc", [1.5], [[3, 4]], [5] * (model.max_positions + 1), None]
    good = sources[2:5]
    requests = [good[0], *bad[:4], good[1], *bad[4:], good[2]]
    results = decoder.decode(requests, on_error="return")
    places = [0, 5, 9]
    assert_agree([results[i] for i in places], decoder.decode(good))
    for result in results:
        assert (result.error is None) == (result.index in places)
        assert result.error is None or (result.stop_reason, result.hypotheses) == ("error", [])
    assert isinstance(results[1].error, ValueError) and str(model.vocab_size - 1) in str(
        results[1].error
    )
    assert isinstance(results[3].error, TypeError)
