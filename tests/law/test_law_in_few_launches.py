"""The laws where one launch does a decoder's layers, and selects the survivors where nothing is in between;
and where the output layer leaves peaks, from which survivors are selected.

These launches are operators that only an extension with CUDA has. Some of plain torch stand for them here,
which read the same arguments, beside the reference. `test_decoder_layers.py`, `test_peaked_product.py` and
`test_select_peaked.py` run the kernels themselves. An axis has the values that decide what is asked of them.
"""

from __future__ import annotations

import os

import pytest
import torch

from law import axes, models
from law.array import CoveringArray
from law.case import Case
from law.laws import assert_laws
from pybeam import backends
from pybeam.models.transformer import cuda_operators
from support import peaked
from support.one_launch import PARTS, Operators, installed, layers_by_address
from support.peaked import Peaked

VALUES: dict[str, tuple[str, ...]] = {
    **{name: values[:1] for name, values in axes.AXES.items()},
    "algorithm": (
        *("greedy", "fixed_beam", "fixed_beam, width by step", "variable_beam"),
        *("variable_beam, normalised", "shrinking_beam", "optimal_beam", "huang_beam"),
        *("stochastic_beam", "sample", "diverse", "jacobi", "ctranslate2"),
    ),
    "schedule": ("Batch", "Batch, budget", "Streaming, budget", "Fifo", "own plan"),
    "processor": ("none", "repetition_penalty", "top_p", "constraint", "allowed_items", "several"),
    "model": ("m2m_100", "Speech2Text", "Whisper", "ensemble"),
    "prefix": ("none", "free", "scored", "counted", "guessed"),
    "override": ("none", "width", "lengths", "thresholds", "processors"),
    "output": axes.OUTPUTS,
    "entry": ("decode", "stream", "score", "Service", "Service, two engines"),
    "event": ("none", "cancel", "interrupted", "bad request", "model raises", "memory given back"),
    "reading": axes.READING,
    "backend": ("reference",),
}
ROWS = CoveringArray(VALUES, 2).rows
# so many are in `make test`
NUM_EARLY = 3


@pytest.fixture(scope="module", params=["all layers", "peaks"])
def operators(request):
    """The reference with such operators, whose models are no others'."""
    reference = backends.load("reference")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(cuda_operators, "DTYPES", (torch.float32,))
        for name, part in PARTS.items():
            monkeypatch.setattr(reference, name, part)
        models.model_of.cache_clear()
        if request.param == "peaks":
            pytest.importorskip("triton", reason="triton is not installed")
            yield peaked.installed(monkeypatch, reference.select)
        else:
            yield installed(monkeypatch, layers_by_address)
    models.model_of.cache_clear()


def check(values: dict[str, str], operators: Operators | Peaked) -> None:
    case, before = Case(values), len(operators.num_rows)
    try:
        assert_laws(case)
        # peaks are for a selection alone
        is_asked = isinstance(operators, Operators)
        assert len(operators.num_rows) > before or not is_asked, "nothing was launched"
    except Exception as error:
        error.add_note(f'to repeat it: PYBEAM_LAW="{case}" pytest {__file__} -k repeated')
        raise


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=pytest.mark.slow if i >= NUM_EARLY else (), id=str(Case(row)))
        for i, row in enumerate(ROWS)
    ],
)
def test_every_two_values(row, operators):
    check(row, operators)


def test_launches_select(operators):
    """Where nothing changes logits; a processor does."""
    plain = next(row for row in ROWS if row["processor"] == "none" and row["prefix"] == "none")
    before = operators.num_chosen
    check({**plain, "algorithm": "fixed_beam", "model": "m2m_100", "entry": "decode"}, operators)
    assert operators.num_chosen > before


@pytest.mark.slow
def test_a_case_is_repeated(operators):
    line = os.environ.get("PYBEAM_LAW")
    check(dict(Case.parse(line).values) if line else ROWS[0], operators)
