"""Numbers that are none, numbers that are tiny, and clocks that jump."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import pybeam
from pybeam import backends
from pybeam.models import FunctionModel
from support.laws import essence
from support.paths import ROOT
from support.search_models import BOS, EOS, random_model
from support.tiny_rnn import save_tiny_rnn

SEARCH = pybeam.fixed_beam(3, n_best=2, max_length=8)
SCHEDULES = [pybeam.Batch(1), pybeam.Batch(4), pybeam.Fifo(3), pybeam.Streaming(2)]
CONTENTS = [[5, 6, 2], [7, 2], [8, 9, 10, 11, 2], [12, 2]]
BAD = 2
# these answers of the server say when they were made
TOLD_TO_PEOPLE = {"pybeam/server/app.py", "pybeam/server/endpoints/completions.py"}


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


@pytest.fixture
def directory(tmp_path):
    save_tiny_rnn(tmp_path)
    return tmp_path


def changed(directory, name: str, change) -> pybeam.Model:
    path = directory / "model.safetensors"
    weights = load_file(path)
    weights[name] = change(weights[name].clone())
    save_file(weights, path)
    return pybeam.load_model(directory)


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
    [result] = pybeam.Decoder(random_model(7, eos_bonus=5.0), algorithm).decode(
        [[1]], on_error="return"
    )
    assert algorithm.stop_at > 1e308
    assert "max_length" in str(result.error)


def test_no_deadline_follows_a_clock_that_jumps():
    """`time.time()` follows whoever sets the clock; `time.monotonic()` and `time.perf_counter()` do not."""
    jumping = re.compile(r"\btime\.time\(|datetime\.(now|utcnow)\(")
    files = sorted((ROOT / "pybeam").rglob("*.py"))
    found = {p.relative_to(ROOT).as_posix() for p in files if jumping.search(p.read_text("utf-8"))}
    assert found <= TOLD_TO_PEOPLE
