"""Which tokens translate which: a lexical table by IBM's model 1 (Brown et al. 1993), for shortlists.

The sum over all alignments of a pair has a closed form, so that no alignment is searched for:

    p(t | s) <- c(s, t) / sum_t' c(s, t'),   c(s, t) = sum over pairs, t in target, s in source
                                                       p(t | s) / sum_s' p(t | s')
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

ROUNDS = 4
Pair = tuple[Sequence[int], Sequence[int]]


def lexical_table(pairs: Sequence[Pair], vocab_size: int, rounds: int = ROUNDS) -> np.ndarray:
    """p(t | s) [V, V] of pairs of a source and its target, in float32; rows of unseen tokens are 0."""
    # all sources of a target token stand together
    codes = np.concatenate([_codes(*pair, vocab_size) for pair in pairs])
    lengths = [len(source) for source, target in pairs for _ in target]
    begins = np.cumsum([0, *lengths[:-1]])
    chances = np.ones(vocab_size**2, np.float32)
    for _ in range(rounds):
        shares = chances[codes]
        shares /= np.repeat(np.add.reduceat(shares, begins), lengths)
        counts = np.bincount(codes, shares, vocab_size**2).reshape(vocab_size, vocab_size)
        counts /= np.maximum(counts.sum(1, keepdims=True), np.finfo(np.float32).tiny)
        chances = counts.astype(np.float32).ravel()
    return chances.reshape(vocab_size, vocab_size)


def _codes(source: Sequence[int], target: Sequence[int], vocab_size: int) -> np.ndarray:
    """The places of a pair's tokens in a flat table."""
    return (np.asarray(source)[None] * vocab_size + np.asarray(target)[:, None]).ravel()


def best_of(table: np.ndarray, best: int) -> Iterable[tuple[int, int, float]]:
    """Source, target and p of the best targets of each source."""
    for source, row in enumerate(table):
        for target in np.argpartition(-row, best)[:best]:
            if row[target]:
                yield source, int(target), float(row[target])


def write_lexicon(path: Path, table: np.ndarray, words: Sequence[str], best: int) -> None:
    """Write a file that Marian's `--shortlist` reads: a target, its source and p in a line."""
    with path.open("w", encoding="utf-8") as file:
        for source, target, chance in best_of(table, best):
            file.write(f"{words[target]} {words[source]} {chance:.7f}\n")
