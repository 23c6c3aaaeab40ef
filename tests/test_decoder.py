"""Callers rely on this: results, limits, overrides, errors of single requests, streaming, statistics."""

import math
import re

import pytest
import torch

import pybeam
from pybeam.engine import results
from pybeam.models import FunctionModel
from pybeam.stopping import Stop
from support.search_models import BOS, EOS, constant_model, random_model


def decoder(**options) -> pybeam.Decoder:
    return pybeam.Decoder(random_model(1), pybeam.greedy(), **options)


def test_a_hypothesis_by_hand(backend):
    """p = [0, .5, .25, .25]: EOS wins at once; then the two others tie, lower token first."""
    model = constant_model([-math.inf, math.log(0.5), math.log(0.25), math.log(0.25)])
    result = pybeam.Decoder(model, pybeam.fixed_beam(3, n_best=3), backend=backend).decode([[1]])[0]
    assert [h.tokens for h in result.hypotheses] == [[], [2], [3]]
    assert [h.score for h in result.hypotheses] == pytest.approx(
        [math.log(0.5), math.log(0.125), math.log(0.125)], abs=1e-6
    )
    assert (result.stop_reason, result.steps, result.expansions) == ("width", 2, 3)


def test_max_length_counts_eos_and_cuts_live_rows(backend):
    model = constant_model([-math.inf, -50.0, 0.0])
    result = pybeam.Decoder(model, pybeam.greedy(max_length=4), backend=backend).decode([[1]])[0]
    assert result.hypotheses[0].tokens == [2, 2, 2, 2]
    assert not result.hypotheses[0].ended
    assert result.stop_reason == "max_length"
    assert result.hypotheses[0].score == pytest.approx(0.0, abs=1e-6)


def test_min_length_bans_eos_without_renormalising(backend):
    model = constant_model([-math.inf, 0.0, 0.0, -5.0])
    decoder = pybeam.Decoder(model, pybeam.greedy(min_length=2, max_length=9), backend=backend)
    hypothesis = decoder.decode([[1]])[0].hypotheses[0]
    assert hypothesis.tokens == [2, 2]
    assert hypothesis.ended
    one = torch.log_softmax(torch.tensor([0.0, 0.0, -5.0]), 0)[0].item()
    assert hypothesis.score == pytest.approx(3 * one, abs=1e-6)


def test_min_length_does_not_count_the_prefix(backend):
    model = constant_model([-math.inf, 0.0, 0.0, -5.0])
    decoder = pybeam.Decoder(model, pybeam.greedy(min_length=2, max_length=9), backend=backend)
    result = decoder.decode([pybeam.Request([1], prefix=[3, 3, 3])])[0]
    assert result.hypotheses[0].tokens == [3, 3, 3, 2, 2]


@pytest.mark.thinned(most=5)
@pytest.mark.parametrize(
    ("scoring", "expected"),
    [
        (pybeam.scoring.raw(), lambda s, n: s),
        (pybeam.scoring.power(0.5), lambda s, n: s / n**0.5),
        (pybeam.scoring.gnmt(0.8), lambda s, n: s / ((5 + n) / 6) ** 0.8),
        (pybeam.scoring.reward(0.3), lambda s, n: s + 0.3 * n),
        (pybeam.scoring.reward(0.3, ratio=1.5), lambda s, n: s + 0.3 * min(1.5 * 2, n)),
    ],
    ids=["raw", "power", "gnmt", "reward", "bounded reward"],
)
def test_final_scores(backend, scoring, expected):
    model = random_model(2, eos_bonus=0.5)
    algorithm = pybeam.fixed_beam(5, n_best=5, max_length=9, scoring=scoring)
    for result in pybeam.Decoder(model, algorithm, backend=backend).decode([[1, 2]] * 5):
        finals = [h.final_score for h in result.hypotheses]
        assert finals == sorted(finals, reverse=True)
        for h in result.hypotheses:
            assert h.final_score == pytest.approx(expected(h.score, len(h.tokens) + h.ended))


def test_log_probs_add_up_to_the_score(backend):
    model = random_model(4, eos_bonus=0.5)
    algorithm = pybeam.variable_beam(4, n_best=4, max_length=8)
    requests = [[1], pybeam.Request([2], prefix=[3, 4]), [3]]
    for result in pybeam.Decoder(model, algorithm, backend=backend, log_probs=True).decode(
        requests
    ):
        prefix = 2 if result.index == 1 else 0
        for h in result.hypotheses:
            assert len(h.log_probs) == len(h.tokens) - prefix + h.ended
            assert sum(h.log_probs) == pytest.approx(h.score, abs=1e-5)


def test_prefix_is_kept_and_neither_scored_nor_counted(backend):
    model = random_model(6, eos_bonus=0.2)
    algorithm = pybeam.fixed_beam(3, n_best=3, max_length=6)
    result = pybeam.Decoder(model, algorithm, backend=backend).decode(
        [pybeam.Request([1], prefix=[5, 4])]
    )[0]
    for h in result.hypotheses:
        assert h.tokens[:2] == [5, 4]
        assert len(h.tokens) - 2 + h.ended <= 6


def test_empty_source_is_an_empty_hypothesis_without_a_model_call(backend):
    def never(*_):
        raise AssertionError("the model was called")

    model = FunctionModel(never, 5, BOS, EOS)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(2), backend=backend)
    result = decoder.decode([[]])[0]
    assert (result.hypotheses[0].tokens, result.hypotheses[0].score) == ([], 0.0)
    assert decoder.stats.steps == 0
    assert decoder.decode([]) == []


def test_a_row_of_minus_infinity_ends_in_an_empty_beam(backend):
    model = constant_model([-math.inf] * 4)
    result = pybeam.Decoder(model, pybeam.fixed_beam(2), backend=backend).decode([[1]])[0]
    assert (result.stop_reason, result.hypotheses) == ("empty_beam", [])


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_fails_one_request_alone(backend, poison):
    good = random_model(8, eos_bonus=0.3)

    def sometimes_nan(prefixes, lengths, source_ids):
        logits = good.fn(prefixes, lengths, source_ids).clone()
        logits[(source_ids == 2) & (lengths == 3), 4] = poison
        return logits

    algorithm = pybeam.variable_beam(3, n_best=3, max_length=9, min_length=4)
    model = FunctionModel(sometimes_nan, good.vocab_size, BOS, EOS)
    decoder = pybeam.Decoder(model, algorithm, backend=backend)
    results = decoder.decode([[1]] * 5, on_error="return")
    expected = pybeam.Decoder(good, algorithm, backend=backend).decode([[1]] * 5)
    assert results[2].stop_reason == "error"
    assert "request 2" in str(results[2].error)
    assert [r.hypotheses for r in results if r.index != 2] == [
        r.hypotheses for r in expected if r.index != 2
    ]
    with pytest.raises(pybeam.DecodeError, match="1 of 5 requests failed") as caught:
        decoder.decode([[1]] * 5)
    assert len(caught.value.results) == 5


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (pybeam.Request([1], n_best=9), "`n_best` must be at most `width` = 3, but is 9"),
        (pybeam.Request([1], width=5000), "`width` must be at most 4096, but is 5000"),
        (pybeam.Request([1], threshold=-1.0), "`threshold` must be positive"),
        (pybeam.Request([1], min_length=9, max_length=4), "`min_length` must be less than"),
        (pybeam.Request([1], prefix=[EOS]), "`prefix` must not hold EOS"),
        (
            pybeam.Request([1], prefix=[99]),
            "`prefix` must hold token ids from 0 to 6, but holds 99",
        ),
        (pybeam.Request([1], scoring=0.5), "`scoring` must come from pybeam.scoring"),
    ],
)
def test_a_bad_request_fails_alone(backend, request_, message):
    decoder = pybeam.Decoder(
        random_model(1), pybeam.variable_beam(3, max_length=6), backend=backend
    )
    results = decoder.decode([[1], request_, [1]], on_error="return")
    assert message in str(results[1].error)
    assert results[0].hypotheses and results[2].hypotheses
    assert decoder.stats.stop_reasons["error"] == 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pybeam.fixed_beam(0), "`width` must be at least 1, but is 0"),
        (lambda: pybeam.fixed_beam(4097), "`width` must be at most 4096"),
        (lambda: pybeam.fixed_beam([3, 2], n_best=3), "`n_best` must be at most `width` = 2"),
        (lambda: pybeam.fixed_beam(3, n_best=4), "`n_best` must be at most `width`"),
        (lambda: pybeam.variable_beam(3, threshold=0.0), "`threshold` must be positive"),
        (lambda: pybeam.variable_beam(3, max_candidates=0), "`max_candidates` must be"),
        (lambda: pybeam.variable_beam(3, relative_threshold=1.5), "`relative_threshold` must be"),
        (lambda: pybeam.greedy(max_length=0), "`max_length` must be at least 1"),
        (lambda: pybeam.scoring.reward(1.0, ratio=0), "`ratio` must be positive"),
        (lambda: pybeam.scoring.power(math.inf), "`alpha` must be a finite number"),
        (lambda: pybeam.scoring.power(-11), "`alpha` must be between -10 and 10"),
        (lambda: pybeam.fixed_beam(3, min_length=4, max_length=4), "`min_length` must be less"),
        (lambda: pybeam.fixed_beam(3, min_length=-1), "`min_length` must be at least 0"),
        (lambda: pybeam.greedy(n_best=2), "`n_best` must be at most `width` = 1"),
        (
            lambda: pybeam.fixed_beam(4, n_best=3, stop=Stop(patience=0.5)),
            "`n_best` must be at most round(patience * width) = 2",
        ),
        (lambda: pybeam.greedy(stop=Stop(patience=0.3)), "round(patience * width) = 0"),
        (lambda: pybeam.variable_beam(3, threshold=math.nan), "`threshold` must be positive"),
        (lambda: pybeam.variable_beam(3, max_candidates=1.5), "`max_candidates` must be a whole"),
        (lambda: pybeam.Fifo(0), "`n` must be at least 1, but is 0"),
        (lambda: pybeam.Streaming(4, 1.5), "`epsilon` must be between 0 and 1"),
        (
            lambda: pybeam.Decoder(
                random_model(1), pybeam.fixed_beam(9), pybeam.Fifo(row_budget=8)
            ),
            "`row_budget` must be at least the width 9, but is 8",
        ),
        (
            lambda: pybeam.Decoder(random_model(1), pybeam.greedy(), backend="cuda"),
            "`backend` must be 'auto' or one of",
        ),
    ],
)
def test_bad_options_are_refused(build, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pybeam.fixed_beam("5"), "`width` must be an int"),
        (lambda: pybeam.fixed_beam(3, n_best=True), "`n_best` must be an int"),
        (lambda: pybeam.variable_beam(3, threshold="1.5"), "`threshold` must be a number or None"),
        (lambda: pybeam.variable_beam(3, max_candidates=True), "`max_candidates` must be a number"),
        (lambda: pybeam.scoring.Scoring("1"), "`alpha` must be a number"),
        (lambda: pybeam.scoring.Scoring(ratio="1"), "`ratio` must be a number"),
        (lambda: Stop(patience="2"), "`patience` must be a number or None"),
        (lambda: pybeam.scoring.power("1"), "`alpha` must be a number, but is '1'"),
        (
            lambda: pybeam.fixed_beam(3, colour=1),
            "`colour` is no option of fixed_beam(). There are: width, n_best, min_length",
        ),
        (lambda: pybeam.greedy(width=3), "`width` is no option of greedy()"),
        (lambda: pybeam.fixed_beam(5, nbest=3), "fixed_beam(). Did you mean `n_best`? There are"),
        (
            lambda: pybeam.jacobi(lenght=3),
            "`lenght` is no option of jacobi(). Did you mean `length`?",
        ),
        (lambda: pybeam.greedy(ended_only=1), "`ended_only` must be True or False, but is 1"),
        (lambda: pybeam.fixed_beam(3, processors=None), "`processors` must be a list, but is None"),
        (
            lambda: pybeam.stochastic_beam(3, processors=pybeam.processors.temperature(2)),
            "`processors` must be a list, but is Temperature(temperature=2); put it into one",
        ),
        (lambda: pybeam.fixed_beam(3, prefix=[4]), "`prefix` must be a pybeam.limits.PrefixRule"),
        (lambda: pybeam.Fifo(8.0), "`n` must be an int, but is 8.0"),
        (lambda: pybeam.Fifo(True), "`n` must be an int, but is True"),
        (lambda: pybeam.Fifo(8, "1"), "`epsilon` must be a number, but is '1'"),
        (lambda: pybeam.Alignment(heads=3), "`heads` must be a list of ints, but is 3"),
        (lambda: pybeam.load_model(None), "`path` must be a directory or a list of them"),
        (lambda: decoder(memory_limit="1 GB"), "`memory_limit` must be an int, but is '1 GB'"),
        (lambda: decoder(alignment="last"), "`alignment` must be True, False or a pybeam.Align"),
        (lambda: decoder().decode(pybeam.Request([1])), "`requests` must be a list or another"),
        (
            lambda: decoder().score([[1]], 5),
            "`targets` must be a list or another iterable, but is a",
        ),
        (lambda: decoder().alternatives(None), "but is a NoneType; put a single one into a list"),
        (lambda: pybeam.compat.fairseq.beam_search("5"), "`beam` must be an int, but is '5'"),
    ],
)
def test_options_of_the_wrong_type_are_refused(build, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        build()


def test_stream_yields_each_result_as_it_finishes(backend):
    """Source 0 never ends; the others must come out before it."""

    def endless(prefixes, lengths, source_ids):
        logits = torch.zeros(len(prefixes), 4)
        logits[:, EOS] = torch.where(source_ids == 0, -100.0, 100.0)
        return logits

    model = FunctionModel(endless, 4, BOS, EOS)
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=30), backend=backend)
    order = [result.index for result in decoder.stream([[1]] * 4)]
    assert order[-1] == 0
    assert sorted(order) == [0, 1, 2, 3]


def test_two_streams_of_one_decoder_do_not_disturb_each_other(backend):
    model = random_model(9, eos_bonus=0.2)
    decoder = pybeam.Decoder(model, pybeam.variable_beam(3, max_length=8), backend=backend)
    expected = {r.index: r.hypotheses for r in decoder.decode([[1]] * 6)}
    first, second = decoder.stream([[1]] * 6), decoder.stream([[1]] * 6)
    for one, other in zip(first, second, strict=True):
        assert expected[one.index] == one.hypotheses
        assert expected[other.index] == other.hypotheses


def test_requests_are_read_a_window_ahead_only(backend):
    taken = []

    def requests():
        for i in range(100):
            taken.append(i)
            yield [1]

    schedule = pybeam.Fifo(2, window=4)
    decoder = pybeam.Decoder(random_model(1), pybeam.greedy(max_length=3), schedule, backend)
    next(decoder.stream(requests()))
    assert len(taken) <= 3 * 4


def test_statistics(backend):
    model = random_model(10, eos_bonus=0.3)
    decoder = pybeam.Decoder(
        model, pybeam.variable_beam(4, max_length=8), pybeam.Batch(4), backend=backend
    )
    results = decoder.decode([[1]] * 10)
    stats = decoder.stats
    assert stats.sources == 10
    assert stats.refills == 3
    assert stats.expansions == sum(r.expansions for r in results)
    assert stats.steps <= sum(r.steps for r in results)
    assert stats.expansions_per_step == stats.expansions / stats.steps
    assert sum(stats.stop_reasons.values()) == 10
    assert 0 < sum(stats.phase_seconds.values()) <= stats.seconds


@pytest.mark.thinned(most=1)
def test_a_row_budget_is_never_exceeded(backend):
    seen = []
    model = random_model(12, eos_bonus=0.3)

    def counted(logits, rows):
        seen.append(rows.token.numel())
        return logits

    for schedule in (pybeam.Fifo(4, row_budget=9), pybeam.Streaming(4, row_budget=9)):
        algorithm = pybeam.fixed_beam(4, max_length=10, processors=[counted])
        pybeam.Decoder(model, algorithm, schedule, backend).decode([[1]] * 30)
    assert max(seen) <= 9


def test_processors_see_logits_and_rows(backend):
    def forbid_four(logits, rows):
        assert logits.shape[0] == rows.token.numel()
        return logits.index_fill(1, torch.tensor([4]), -math.inf)

    algorithm = pybeam.fixed_beam(3, n_best=3, max_length=8, processors=[forbid_four])
    for result in pybeam.Decoder(random_model(3), algorithm, backend=backend).decode([[1]] * 5):
        assert all(4 not in h.tokens for h in result.hypotheses)


def test_algorithms_that_cannot_have_several_eos(monkeypatch):
    """Refused at the door; a GPU ranks 8,192 candidates of a beam, of which every EOS takes its share."""
    several = FunctionModel(lambda prefixes, *_: torch.zeros(len(prefixes), 5), 5, BOS, [EOS, 4, 3])
    with pytest.raises(ValueError, match=r"`leading_eos` .* needs one EOS, .* has \[1, 4, 3\]"):
        pybeam.Decoder(several, pybeam.compat.ctranslate2.beam_search(4))
    assert pybeam.Decoder(several, pybeam.fixed_beam(2049))
    monkeypatch.setattr(several, "device", torch.device("cuda"))
    with pytest.raises(ValueError, match="`width` must be at most 2048 on a GPU with 3 EOS ids"):
        pybeam.Decoder(several, pybeam.fixed_beam(2049))


def test_any_eos_ends_a_hypothesis_and_is_told(backend):
    """p = [0, .25, .5, .25], tokens 1 and 3 are EOS: of equal ones the lower token is better."""
    row = torch.tensor([0.0, 0.25, 0.5, 0.25]).log()
    model = FunctionModel(lambda prefixes, *_: row.repeat(len(prefixes), 1), 4, BOS, [3, EOS])
    for search in (pybeam.fixed_beam(3, n_best=3), pybeam.variable_beam(3, n_best=2)):
        (result,) = pybeam.Decoder(model, search, backend=backend).decode([[1]])
        found = [(h.tokens, h.eos_id) for h in result.hypotheses]
        # held ones compete on, and are not overtaken by [2] with an EOS
        assert found == [([], 1), ([], 3), ([2], 1)][: search.n_best]


def test_eos_may_be_token_zero(backend):
    """A hypothesis that ends in it says so, and has its log-probability."""
    row = torch.tensor([2.0, 0.5, 0.0, 1.0])
    model = FunctionModel(lambda prefixes, *_: row.repeat(len(prefixes), 1), 4, 3, 0)
    search = pybeam.fixed_beam(2, n_best=2)
    [result] = pybeam.Decoder(model, search, backend=backend, log_probs=True).decode([[1]])
    assert [h.eos_id for h in result.hypotheses] == [0, 0]
    for hypothesis in result.hypotheses:
        assert hypothesis.ended and len(hypothesis.log_probs) == len(hypothesis.tokens) + 1
        assert sum(hypothesis.log_probs) == pytest.approx(hypothesis.score, abs=1e-6)


def test_only_a_catalogue_can_be_found_whole():
    [result] = decoder().decode([[1]])
    assert result.hypotheses and not result.has_all_items


def test_a_hypothesis_that_cannot_be_made_fails_its_request_alone(monkeypatch):
    make = results._hypotheses

    def broken(source, found, wants_log_probs):
        if source.index == 1:
            raise KeyError("no such item")
        return make(source, found, wants_log_probs)

    monkeypatch.setattr(results, "_hypotheses", broken)
    first, second, third = decoder().decode([[1], [2], [3]], on_error="return")
    assert isinstance(second.error, KeyError) and not second.hypotheses
    assert first.hypotheses and third.hypotheses and first.error is third.error is None
