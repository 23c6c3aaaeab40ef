"""Numbers that are none, numbers that are tiny, and clocks that jump."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import pybeam
from pybeam import backends
from pybeam.models import Ensemble, FunctionModel
from support.laws import essence
from support.paths import ROOT
from support.search_models import BOS, EOS, random_model
from support.tiny_rnn import save_tiny_rnn

SEARCH = pybeam.fixed_beam(3, n_best=2, max_length=8)
SCHEDULES = [pybeam.Batch(1), pybeam.Batch(4), pybeam.Fifo(3), pybeam.Streaming(2)]
CONTENTS = [[5, 6, 2], [7, 2], [8, 9, 10, 11, 2], [12, 2]]
BAD = 2
SEARCHES = {
    "greedy": pybeam.greedy(max_length=8),
    "by step": pybeam.fixed_beam([2, 4, 3], n_best=2, max_length=8),
    "variable": pybeam.variable_beam(4, threshold=3.0, max_candidates=3, max_length=8),
    "shrinking": pybeam.shrinking_beam(4, max_length=8),
    "optimal": pybeam.optimal_beam(3, n_best=2, max_length=8),
    "huang": pybeam.huang_beam(3, max_length=8),
    "stochastic": pybeam.stochastic_beam(3, seed=4, max_length=8),
    "diverse": pybeam.diverse(pybeam.fixed_beam(2, max_length=8), 2, 0.5),
    "jacobi": pybeam.jacobi(max_length=8),
    "gauss-seidel": pybeam.gauss_seidel_jacobi(3, max_length=8),
    "hybrid": pybeam.hybrid_jacobi(max_length=8),
    "adaptive": pybeam.adaptive_jacobi(max_length=8),
    "processed": pybeam.fixed_beam(
        3,
        max_length=8,
        processors=[pybeam.processors.temperature(0.7), pybeam.processors.no_repeat_ngram(2)],
    ),
    "scored prefix": pybeam.fixed_beam(
        3, max_length=8, prefix=pybeam.limits.PrefixRule(is_scored=True, in_length=True)
    ),
}
# these answers and records of the server say when they were made
TOLD_TO_PEOPLE = {
    *("pybeam/server/chunks.py", "pybeam/server/logs.py", "pybeam/server/models.py"),
    "pybeam/server/quotas.py",  # a day ends at midnight; where a clock is put back no bucket drains
    "pybeam/text/chat.py",  # templates may name the day
}


@pytest.mark.thinned(most=5)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_row_that_turns_nan_ends_its_source_alone(backend, schedule, wrong):
    good = random_model(7)

    def fn(prefixes, lengths, source_ids):
        logits = good.fn(prefixes, lengths, source_ids).clone()
        logits[(source_ids == BAD) & (lengths == 3), 4] = wrong
        return logits

    model = FunctionModel(fn, good.vocab_size, BOS, EOS)
    requests = [[1]] * 5
    expected = pybeam.Decoder(good, SEARCH, backend=backend).decode(requests)
    decoder = pybeam.Decoder(model, SEARCH, schedule, backend)
    results = decoder.decode(requests, on_error="return")
    assert isinstance(results[BAD].error, ValueError)
    assert results[BAD].hypotheses == []
    del expected[BAD], results[BAD]
    assert essence(results) == essence(expected)


def spoilt(good: FunctionModel, length: int = 2) -> FunctionModel:
    """The same model, whose logits turn NaN in one source when a hypothesis has so many tokens."""

    def fn(prefixes, lengths, source_ids):
        logits = good.fn(prefixes, lengths, source_ids).clone()
        logits[(source_ids == BAD) & (lengths == length), 4] = float("nan")
        return logits

    return FunctionModel(fn, good.vocab_size, BOS, EOS)


@pytest.mark.thinned(most=8)
@pytest.mark.parametrize("name", SEARCHES)
def test_every_algorithm_ends_one_source_alone(backend, name):
    good = random_model(7, eos_bonus=-1.0)
    prefix = [5, 6] if name == "scored prefix" else []
    requests = [pybeam.Request([1], prefix=prefix) for _ in range(4)]
    found = []
    for model in (good, spoilt(good)):
        decoder = pybeam.Decoder(model, SEARCHES[name], pybeam.Fifo(3), backend)
        found.append(decoder.decode(requests, on_error="return"))
    expected, results = found
    assert "NaN" in str(results[BAD].error) and results[BAD].hypotheses == []
    del expected[BAD], results[BAD]
    assert any(result.hypotheses for result in results)
    assert essence(results) == essence(expected)


def test_targets_and_members_of_ensembles(backend):
    good = random_model(7, eos_bonus=-1.0)
    search, targets = SEARCHES["greedy"], [[5, 6, 3], [4], [5, 6, 3], []]
    found = [
        pybeam.Decoder(model, search, backend=backend).score([[1]] * 4, targets, on_error="return")
        for model in (good, spoilt(good))
    ]
    for members in ([good, good], [good, spoilt(good)]):
        model = Ensemble(members)
        found.append(
            pybeam.Decoder(model, SEARCH, backend=backend).decode([[1]] * 4, on_error="return")
        )
    for expected, results in zip(found[::2], found[1::2], strict=True):
        assert "NaN" in str(results[BAD].error) and results[BAD].hypotheses == []
        del expected[BAD], results[BAD]
        assert essence(results) == essence(expected)


@pytest.fixture
def directory(tmp_path):
    save_tiny_rnn(tmp_path)
    return tmp_path


def changed(directory, name: str, change) -> pybeam.Model:
    path = directory / "model.safetensors"
    weights = load_file(path)
    weights[name] = change(weights[name].clone())
    save_file(weights, path)
    return pybeam.load_model(directory, check_finite=False)


def test_weights_that_are_nan_fail_the_sources_that_meet_them(directory):
    """One row of a token table: the sources without that token get what they got before."""
    expected = essence(pybeam.Decoder(pybeam.load_model(directory), SEARCH).decode(CONTENTS))

    def spoil(table):
        table[9] = float("nan")
        return table

    model = changed(directory, "encoder.embedding.weight", spoil)
    results = pybeam.Decoder(model, SEARCH).decode(CONTENTS, on_error="return")
    assert [result.error is None for result in results] == [9 not in ids for ids in CONTENTS]
    others = [i for i, ids in enumerate(CONTENTS) if 9 not in ids]
    assert [essence(results)[i] for i in others] == [expected[i] for i in others]


def test_tiny_weights_give_the_same_bits_in_every_batch(directory):
    """Below the smallest normal number, some of which a CPU may round to zero."""
    name = "output.weight"
    model = changed(directory, name, lambda weight: weight * 2.0**-130)
    expected = essence(pybeam.Decoder(model, SEARCH, pybeam.Batch(1)).decode(CONTENTS))
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        for schedule in SCHEDULES:
            assert essence(pybeam.Decoder(model, SEARCH, schedule).decode(CONTENTS)) == expected
    found = pybeam.Decoder(model, SEARCH, backend="reference").decode(CONTENTS)
    if "native" in backends.available():
        ours = [[h.tokens for h in result.hypotheses] for result in found]
        assert ours == [[h.tokens for h in hypotheses] for _, hypotheses, *_ in expected]


HUGE = 10**400


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("threshold", lambda: pybeam.variable_beam(3, HUGE)),
        ("max_candidates", lambda: pybeam.variable_beam(3, None, HUGE)),
        ("alpha", lambda: pybeam.scoring.power(HUGE)),
        ("ratio", lambda: pybeam.scoring.reward(0.1, HUGE)),
        ("constant", lambda: pybeam.limits.SourceLimit(1.0, HUGE)),
        ("patience", lambda: pybeam.stopping.Stop(HUGE)),
        ("length_reward", lambda: pybeam.optimal_beam(3, HUGE)),
    ],
)
def test_an_integer_beyond_every_float_is_refused(name, make):
    with pytest.raises(ValueError, match=name):
        make()


def test_a_length_reward_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match="`length_reward` must be a number"):
        pybeam.optimal_beam(3, torch.zeros(2))


def test_numbers_near_the_end_of_floats_are_as_infinity():
    stop = pybeam.stopping.Stop(1e308)
    algorithm = pybeam.optimal_beam(3, max_length=pybeam.limits.SourceLimit(1e308), stop=stop)
    model = random_model(7, eos_bonus=5.0)
    model.max_tokens = 20
    [result] = pybeam.Decoder(model, algorithm).decode([[1]], on_error="return")
    assert algorithm.stop_at > 1e308
    assert (result.error, result.stop_reason, result.steps) == (None, "max_length", 20)


def test_no_deadline_follows_a_clock_that_jumps():
    """`time.time()` follows whoever sets the clock; `time.monotonic()` and `time.perf_counter()` do not."""
    jumping = re.compile(r"\btime\.time\(|datetime\.(now|utcnow)\(")
    files = sorted((ROOT / "pybeam").rglob("*.py"))
    found = {p.relative_to(ROOT).as_posix() for p in files if jumping.search(p.read_text("utf-8"))}
    assert found == TOLD_TO_PEOPLE
