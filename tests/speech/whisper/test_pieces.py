"""Cut windows at timestamps and recordings at stretches, case by case."""

from __future__ import annotations

import pytest

from pybeam.speech.whisper.windows import pieces_of, windows_of

BEGIN = 100


def stamps(*tokens) -> list[int]:
    """Write timestamps as floats, 0.02 s apart."""
    return [token if isinstance(token, int) else BEGIN + round(50 * token) for token in tokens]


@pytest.mark.parametrize(
    ("tokens", "pieces", "step"),
    [
        # nothing, text without an end, and with one
        ((), [(0, 90)], 90),
        ((0.0, 5, 6), [(0, 90)], 90),
        ((0.0, 5, 6, 0.5), [(0, 50)], 90),
        ((0.3, 5, 6, 0.5), [(0, 50)], 90),
        # a pair: the text behind it is cut by the window's end
        ((0.0, 5, 0.4, 0.4, 6), [(0, 40)], 40),
        ((0.0, 5, 0.4, 0.6), [(0, 40)], 40),
        ((0.0, 5, 0.2, 0.2, 7, 0.4, 0.5, 6), [(0, 20), (20, 40)], 40),
        # a timestamp that stands alone at the end: nobody speaks behind it
        ((0.0, 5, 0.2, 0.3, 7, 0.4), [(0, 20), (30, 40)], 90),
    ],
)
def test_sequential_windows(tokens, pieces, step):
    found, found_step = pieces_of(stamps(*tokens), BEGIN, 2, 90, keeps_rest=False)
    assert [(piece.start, piece.end) for piece in found] == pieces
    assert found_step == step


def test_batched_windows_keep_the_rest():
    tokens = stamps(0.0, 5, 0.4, 0.6, 6, 7)
    found, _ = pieces_of(tokens, BEGIN, 2, 90, keeps_rest=True)
    assert [(piece.start, piece.end) for piece in found] == [(0, 40), (60, 90)]
    assert [token for piece in found for token in piece.tokens] == tokens


def test_stretches_become_windows():
    assert windows_of([], 100) == []
    assert windows_of([(0, 250)], 100) == [(0, 100), (100, 200), (200, 250)]
    # neighbours that fit go together, also behind the last part of a longer one
    assert windows_of([(5, 50), (60, 105), (106, 110)], 100) == [(5, 105), (106, 110)]
    assert windows_of([(0, 130), (150, 180), (190, 210)], 100) == [(0, 100), (100, 180), (190, 210)]
