"""Outputs of a GPU must be those of a CPU, or as good."""

from __future__ import annotations

import pytest

for module in ("tabulate", "sacrebleu", "sentencepiece"):
    pytest.importorskip(module)

from benchmarks import agreement  # noqa: E402

SOURCES = [[i, 9] for i in range(5)]
WANTED = [[i, i] for i in range(5)]


def scores(gaps: list[float]):
    """Scores of pairs of outputs that differ by these numbers."""

    def of(requests) -> list[float]:
        assert len(requests) == 2 * len(gaps)
        return [score for gap in gaps for score in (-1.0 - gap, -1.0)]

    return of


def test_equal_outputs_are_not_scored():
    row = agreement.agreement(SOURCES, WANTED, WANTED, scores([0.5]), "first")
    assert row == {"lines": 5, "same, first": 5, "as good, first": 0, "different, first": 0}


def test_a_tie_is_as_good():
    found = [*WANTED[:2], [7], [8], WANTED[4]]
    row = agreement.agreement(SOURCES, found, WANTED, scores([1e-4, 0.2]), "first")
    assert row == {"lines": 5, "same, first": 3, "as good, first": 1, "different, first": 1}


def test_more_than_one_other_output_is_an_error():
    found = [[7], *WANTED[1:4], [8]]
    with pytest.raises(
        agreement.Disagreement, match=r"2 of 5 outputs differ; that of line 0 is \[7\]"
    ):
        agreement.agreement(SOURCES, found, WANTED, scores([float("nan"), 0.2]), "replayed")
