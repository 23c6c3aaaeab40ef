"""The laws on a GPU: Triton's kernels, reports that are read late, whole steps as CUDA graphs.

    make gpu-test

An axis has fewer values than in `test_law.py`: models whose weights can be on a GPU, processors that differ
in how a GPU computes them. The axis "reading" says whether steps are captured ("late") or not ("at once").
One law is added: a CPU finds the same. `TRITON_INTERPRET=1 pytest --backend triton` runs the same cases in
Triton's interpreter, without graphs.
"""

from __future__ import annotations

import os
import random

import pytest
import torch

from law import axes
from law.array import CoveringArray
from law.case import Case
from law.laws import NEAR, assert_laws, assert_same, results_alone
from support import triton_process

VALUES: dict[str, tuple[str, ...]] = {
    **{name: values[:1] for name, values in axes.AXES.items()},
    "algorithm": (
        *("greedy", "fixed_beam", "fixed_beam, width by step", "variable_beam, normalised"),
        *("shrinking_beam", "optimal_beam", "huang_beam", "stochastic_beam", "sample", "diverse"),
        *("jacobi", "hybrid_jacobi", "ctranslate2", "huggingface"),
    ),
    "schedule": (
        *("Batch", "Batch, budget", "Streaming, budget", "Fifo", "Fifo, lazy window", "own plan"),
    ),
    "processor": (
        *("none", "repetition_penalty", "count_penalty", "no_repeat_ngram", "suppress_sequences"),
        *("top_p", "biased_prefix", "allowed_items", "allowed_translations", "gumbel"),
        *("whisper_timestamps", "a function", "several", "several, with state"),
    ),
    "model": (
        *("m2m_100", "rnn", "marian-ssru", "t5", "causal-mistral", "causal-qwen3_moe"),
        *("causal-bloom", "Speech2Text", "Whisper", "FireRedASR", "ensemble", "wrapped-mistral"),
    ),
    "weights": ("float32",),
    "prefix": ("none", "scored", "guessed"),
    "override": ("none", "width", "lengths", "thresholds", "processors"),
    "output": axes.OUTPUTS,
    "entry": ("decode", "stream", "score", "Service", "Service, two engines"),
    "event": ("none", "cancel", "interrupted", "bad request", "memory given back"),
    "reading": axes.READING,
    "backend": ("triton",),
}
ARRAY = CoveringArray(VALUES, 2)
ROWS = random.Random(1).sample(ARRAY.rows, len(ARRAY.rows))


@pytest.fixture
def place(device: torch.device) -> torch.device:
    if device.type != "cuda" and not triton_process.is_interpreting():
        pytest.skip("needs a GPU (--device cuda), or Triton's interpreter (TRITON_INTERPRET=1)")
    return device


def check(row: dict[str, str], place: torch.device) -> None:
    case = Case(row, place)
    try:
        assert_laws(case)
        assert_as_on_a_cpu(case)
    except Exception as error:
        error.add_note(f'to repeat it: PYBEAM_LAW="{case}" pytest tests/law/test_law_on_gpu.py')
        raise


def assert_as_on_a_cpu(case: Case) -> None:
    on_cpu = Case({**case.values, "backend": "native"})
    for ours, theirs in zip(results_alone(case), results_alone(on_cpu), strict=True):
        assert_same(ours, theirs, NEAR)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(Case(row)))
def test_every_two_values(row, place):
    check(row, place)


def test_a_case_is_repeated(place):
    line = os.environ.get("PYBEAM_LAW")
    check(Case.parse(line).values if line else ARRAY.rows[0], place)
