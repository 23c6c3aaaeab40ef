"""Noise for texts that a model is to learn from."""

from __future__ import annotations

import random

from pybeam.arguments import ArgumentError, number, whole


def noisy(
    text: str,
    seed: int,
    *,
    drop: float = 0.1,
    blank: float = 0.1,
    shuffle: int = 3,
    filler: str = "<BLANK>",
) -> str:
    """Drop, blank and shuffle the words of a text, as in Edunov et al. 2018.

    Each word is dropped with probability `drop`. Each that is left is replaced by `filler` with probability
    `blank`. Then words change places: each sorts by its position plus a random number from 0 to
    ``shuffle + 1``, so that none moves by more than `shuffle` places. Words are what spaces separate.

    Args:
        text: one sentence.
        seed: the same seed and text give the same noise. Give every line its own, such as its number.
        drop, blank: probabilities, from 0 to below 1.
        shuffle: the most places that a word moves; 0 keeps the order.
        filler: what stands for a word, a token that the model to be trained knows.

    Raises:
        TypeError, ValueError: an option is out of range or of the wrong type.
    """
    whole("seed", seed, 0)
    whole("shuffle", shuffle, 0)
    for name, value in (("drop", drop), ("blank", blank)):
        number(name, value, -1.0, 1.0)
        if value < 0:
            raise ArgumentError(name, f"must be a probability from 0 to below 1, but is {value}")
    generator = random.Random(seed)
    words = [word for word in text.split() if generator.random() >= drop]
    words = [filler if generator.random() < blank else word for word in words]
    places = [i + generator.random() * (shuffle + 1) for i in range(len(words))]
    if shuffle:
        words = [words[i] for i in sorted(range(len(words)), key=places.__getitem__)]
    return " ".join(words)
