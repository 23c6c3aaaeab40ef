"""The example model, lines for it, and a comparison that allows for near-ties."""

from __future__ import annotations

import pytest

import pybeam
from support.paths import DATA, MODEL

CORPUS = DATA / "bible-es-en"
LINES = [
    "En el principio crió Dios los cielos y la tierra.",
    "Y dijo Dios: Sea la luz: y fué la luz.",
    "Jehová es mi pastor; nada me faltará.",
    "Jesús lloró.",
    "Porque de tal manera amó Dios al mundo, que ha dado á su Hijo unigénito, para que todo aquel que en "
    "él cree, no se pierda, mas tenga vida eterna.",
    "Y conoceréis la verdad, y la verdad os libertará.",
    "El corazón alegre constituye buen remedio: mas el espíritu triste seca los huesos.",
    "Y aconteció que estando ellos en el campo, Caín se levantó contra su hermano Abel, y le mató.",
]
ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=60),
    "fixed": pybeam.fixed_beam(5, n_best=5, max_length=60),
    "variable": pybeam.variable_beam(20, 1.5, 5, n_best=3, max_length=60),
}


def lines_of(split: str) -> list[list[int]]:
    path = CORPUS / f"{split}.es"
    if not path.exists():
        pytest.skip(
            f"needs the data folder {CORPUS.relative_to(CORPUS.parents[2])} beside the checkout"
        )
    tokenizer = pybeam.load_tokenizer(MODEL)
    return [tokenizer.encode(line) for line in path.read_text("utf-8").splitlines()]


def assert_agree(results, expected):
    """Check that hypotheses have the same tokens, or the same score."""
    for ours, other in zip(results, expected, strict=True):
        assert ours.stop_reason == other.stop_reason
        for a, b in zip(ours.hypotheses, other.hypotheses, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-4)
            neighbours = [h.tokens for h in other.hypotheses if abs(h.score - a.score) < 1e-4]
            assert a.tokens in neighbours
