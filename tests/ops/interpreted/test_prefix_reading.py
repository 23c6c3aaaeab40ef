"""A prefix is read at once by Triton's kernels, too: results are those of the native ones."""

from __future__ import annotations

import pytest

import pybeam
from pybeam import processors
from pybeam.models.transformer.model import TransformerSession
from support.built_in_models import saved
from support.device_loop import assert_alike

PREFIX = [5, 9, 6, 8, 7, 5, 10, 11, 5, 9, 3, 12, 13, 5, 6, 8, 7, 9, 10, 3, 5]
CHAIN = (processors.repetition_penalty(1.3), processors.no_repeat_ngram(2))
# longer than a page of cells
LENGTHS = (18, 3, 0)
CASES = {
    "m2m_100": (pybeam.fixed_beam(2, n_best=2, max_length=2), pybeam.Batch(3)),
    "t5": (pybeam.variable_beam(2, 2.0, max_length=2, processors=CHAIN), pybeam.Streaming(2)),
}


@pytest.mark.parametrize("kind", CASES)
def test_as_native(kind, tmp_path, monkeypatch):
    model = pybeam.load_model(saved(kind, tmp_path), device="cpu")
    sizes, read = [], TransformerSession.read

    def noted(self, rows):
        sizes.append(rows.token.numel())
        read(self, rows)

    monkeypatch.setattr(TransformerSession, "read", noted)
    requests = [
        pybeam.Request(source, prefix=PREFIX[:length] or None)
        for source, length in zip(([4, 5, 6, 2], [7, 8, 2], [9, 2]), LENGTHS, strict=True)
    ]
    expected, results = (
        pybeam.Decoder(model, *CASES[kind], backend=backend).decode(requests)
        for backend in ("native", "triton")
    )
    assert sum(sizes) == 2 * (18 + 3)
    assert_alike(results, expected)
