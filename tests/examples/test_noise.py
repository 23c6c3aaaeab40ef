"""Noise drops, blanks and moves as many words as it says, and the same ones every time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.back_translation.noise import noisy

WORDS = [f"w{i}" for i in range(2000)]
TEXT = " ".join(WORDS)


def test_a_seed_says_everything():
    assert noisy(TEXT, 1) == noisy(TEXT, 1) != noisy(TEXT, 2)


def test_shares_of_words():
    words = noisy(TEXT, 3, shuffle=0).split()
    assert 0.88 < len(words) / len(WORDS) < 0.92
    assert 0.08 < words.count("<BLANK>") / len(words) < 0.12
    kept = [word for word in words if word != "<BLANK>"]
    assert kept == sorted(kept, key=WORDS.index)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 5))
def test_no_word_moves_further_than_it_may(seed, most):
    words = noisy(" ".join(WORDS[:100]), seed, drop=0, blank=0, shuffle=most).split()
    assert sorted(words) == sorted(WORDS[:100])
    moves = [abs(WORDS.index(word) - i) for i, word in enumerate(words)]
    assert max(moves) <= most
    assert most == 0 or max(moves) > 0


def test_no_noise():
    assert noisy(" a  b ", 0, drop=0, blank=0, shuffle=0) == "a b"
    assert noisy("", 0) == ""


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(drop=1.0), "`drop` must be"),
        (dict(blank=-0.1), "`blank` must be a probability"),
        (dict(shuffle=-1), "`shuffle` must be at least 0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        noisy("a", 0, **options)
