"""The laws on a GPU: Triton's kernels, reports that are read late, whole steps as CUDA graphs.

    make gpu-test

An axis has fewer values than in `test_law.py`: models whose weights can be on a GPU, processors that differ
in how a GPU computes them. A wide beam is added. The axis "reading" says whether steps are captured (not so
"at once"). One law is added: a CPU finds the same. Weights of 16, 8 and 4 bits have cases of their
own. There another order of sums rounds activations to others, so that tokens may be others, too. A CPU, which
rounds less, gives the tokens that are found the same log-probabilities, nearly.

Rows of a covering array meet most values first: after 80 of about 220 cases, five in six pairs have met.
`TRITON_INTERPRET=1 pytest --backend triton` runs the same cases in Triton's interpreter, without graphs.
There the engines of a service launch one at a time. A case takes half a minute to two. `make test-all` runs
one of each algorithm that has kernels or rules of its own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch

from law import axes
from law.array import CoveringArray
from law.case import INTERPRETED, Case
from law.entries import run
from law.laws import NEAR, assert_laws, assert_nothing_is_left, assert_same, results_alone
from law.models import PLAIN
from support import on_a_gpu, triton_process

VALUES: dict[str, tuple[str, ...]] = {
    **{name: values[:1] for name, values in axes.AXES.items()},
    "algorithm": (
        *("greedy", "fixed_beam", "fixed_beam, wide", "fixed_beam, width by step"),
        "variable_beam, normalised",
        *("shrinking_beam", "optimal_beam", "huang_beam", "stochastic_beam", "sample", "diverse"),
        *("jacobi", "hybrid_jacobi", "ctranslate2", "huggingface"),
    ),
    "schedule": (
        *("Batch", "Batch, budget", "Streaming, budget", "Fifo", "Fifo, lazy window", "own plan"),
    ),
    "processor": (
        *("none", "repetition_penalty", "count_penalty", "no_repeat_ngram", "suppress_sequences"),
        *("top_p", "biased_prefix", "allowed_items", "allowed_translations", "gumbel"),
        *("constraint", "regex", "must_contain", "language_model", "prefix_scores"),
        *("whisper_timestamps", "a function", "several", "several, with state"),
    ),
    "model": (
        *("m2m_100", "rnn", "marian-ssru", "t5", "causal-mistral", "causal-qwen3_moe"),
        *("causal-bloom", "Speech2Text", "Whisper", "FireRedASR", "ensemble", "wrapped-mistral"),
    ),
    # on a GPU no layers are packed; in the interpreter some are, whose cases take a quarter of the time
    "weights": ("float32", PLAIN) if triton_process.is_interpreting() else ("float32",),
    "prefix": ("none", "scored", "guessed"),
    "override": ("none", "width", "lengths", "thresholds", "processors"),
    "output": axes.OUTPUTS,
    "entry": ("decode", "stream", "score", "Service", "Service, two engines", "Worker"),
    "event": ("none", "cancel", "interrupted", "bad request", "memory given back"),
    "reading": axes.READING,
    "backend": ("triton",),
}
# the plainest value of every other axis
ROUNDED: dict[str, tuple[str, ...]] = {
    **{name: values[:1] for name, values in VALUES.items()},
    "algorithm": ("greedy", "fixed_beam", "fixed_beam, wide", "variable_beam, normalised"),
    "schedule": ("Batch, budget", "Fifo", "own plan"),
    "model": (
        *("m2m_100", "rnn", "marian-ssru", "t5", "causal-mistral", "causal-bloom"),
        *("Speech2Text", "Whisper", "FireRedASR", "ensemble"),
    ),
    "weights": ("bfloat16", "float8_e4m3fn", "int8", "int4"),
    "output": ("log_probs",),
    "entry": ("decode", "stream", "Service", "Worker"),
    "event": ("none", "memory given back"),
    "reading": axes.READING,
}
# nats of a token; the tiny models differ by 0.06 where a CPU rounds activations to bfloat16
NEAR_ROUNDED = {"bfloat16": 0.25, "float8_e4m3fn": 1.0, "int8": 0.5, "int4": 0.5}


# the interpreter computes with NumPy
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


@pytest.fixture
def place(device: torch.device) -> torch.device:
    if device.type != "cuda" and not triton_process.is_interpreting():
        pytest.skip("needs a GPU (--device cuda), or Triton's interpreter (TRITON_INTERPRET=1)")
    return device


def check(row: dict[str, str], place: torch.device) -> None:
    case = Case(row, place)
    is_captured = place.type == "cuda" and case.reading != "at once"
    try:
        with on_a_gpu.as_in_production() if is_captured else nullcontext():
            if case.weights in NEAR_ROUNDED:
                assert_log_probs_of_a_cpu(case)
            else:
                assert_laws(case)
                assert_as_on_a_cpu(case)
    except Exception as error:
        error.add_note(f'to repeat it: PYBEAM_LAW="{case}" pytest tests/law/test_law_on_gpu.py')
        raise


def assert_as_on_a_cpu(case: Case) -> None:
    on_cpu = Case({**case.values, "weights": "float32", "backend": "native"})
    for ours, theirs in zip(results_alone(case), results_alone(on_cpu), strict=True):
        assert_same(ours, theirs, NEAR)


def assert_log_probs_of_a_cpu(case: Case) -> None:
    """Outputs have the log-probabilities that a CPU gives their tokens, and nothing is left behind."""
    outcome = run(case, case.requests, None)
    on_cpu = Case({**case.values, "backend": "native"}).decoder(alone=True)
    near = NEAR_ROUNDED[case.weights]
    for i, request in enumerate(case.requests):
        result = outcome.results[i]
        assert result is not None and result.error is None, f"it failed: {result}"
        assert result.hypotheses, "nothing is found"
        for one in result.hypotheses:
            [scored] = on_cpu.score([request], [one.tokens])
            # a target has the first end token behind it, and an output has another one or none
            is_like_it = one.eos_id == case.bare_model.eos_id
            found = one.log_probs[: len(one.tokens) + is_like_it]
            expected = scored.hypotheses[0].log_probs[: len(found)]
            assert found == pytest.approx(expected, abs=near), one.tokens
    assert_nothing_is_left(outcome)


@cache
def array() -> CoveringArray:
    return CoveringArray(VALUES, 2)


def rows() -> Iterator[dict[str, str]]:
    """All rows, those with rounded weights among the others, so that a run which ends early has some."""
    rounded = iter(CoveringArray(ROUNDED, 2).rows)
    for i, row in enumerate(array().rows):
        yield row
        if i % 4 == 3:
            yield from itertools.islice(rounded, 1)
    yield from rounded


def first_of_each() -> Iterator[Any]:
    """A row of each algorithm in `INTERPRETED`, and one of a decoder alone whose layers are Triton's.

    Sources of t5 are so long that its cases take minutes.
    """
    packed, plain = (
        [row for row in reversed(array().rows) if row["weights"] == weights]
        for weights in VALUES["weights"]
    )
    firsts = {row["algorithm"]: row for row in packed if row["model"] != "t5"}
    alone = {row["model"]: row for row in plain}
    # with norms and turns of heads, gates and experts
    for row in (*(firsts[algorithm] for algorithm in INTERPRETED), alone["causal-qwen3_moe"]):
        yield pytest.param(row, id=str(Case(row)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_interpreting = triton_process.is_interpreting()
    if "row" in metafunc.fixturenames:
        # elsewhere they would only be skipped
        runs = metafunc.config.getoption("--device") == "cuda" or is_interpreting
        metafunc.parametrize("row", list(rows()) if runs else [], ids=lambda row: str(Case(row)))
    if "first" in metafunc.fixturenames:
        # a GPU has them among its rows
        metafunc.parametrize("first", list(first_of_each()) if is_interpreting else [])


def test_every_two_values(row, place):
    if place.type != "cuda" and row["weights"] in NEAR_ROUNDED:
        reason = "activations are float32 on a CPU, and Triton takes no rounded keys beside them"
        pytest.skip(reason)
    check(row, place)


def test_first_of_each(first, place):
    check(first, place)


def test_a_case_is_repeated(place):
    line = os.environ.get("PYBEAM_LAW")
    check(Case.parse(line).values if line else next(rows()), place)
