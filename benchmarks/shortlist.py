"""The example translator with lexical shortlists: seconds of one thread, BLEU, and how long the lists are.

The lexical table is made of the example's training pairs (`lexicon.py`). The 100 most frequent target tokens
are always allowed. One thread does all of it, so that its CPU seconds are those of the work. "listed" is the
mean number of tokens that a source may have, "in a batch" that of the union of 64 lists, which Marian and
CTranslate2 would use, and "covered" the share of the references' tokens that are in the lists of their
sources.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np

import pybeam
from benchmarks import corpus
from benchmarks.lexicon import lexical_table, write_lexicon
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from benchmarks.translation import MAX_LENGTH, NORMALISED
from pybeam.shortlist import allowed_translations

BEST = (10, 20, 50)
FREQUENT = 100
# start, padding, end, unknown
SPECIAL = range(4)
N = 64
SEARCHES = {
    "greedy": pybeam.greedy(max_length=MAX_LENGTH),
    "5": pybeam.fixed_beam(5, max_length=MAX_LENGTH, scoring=NORMALISED),
}
# lines of `dev`: batches of them, or one at a time
LINES = {"": 256, "-one": 64}


def shortlist(setup: Setup) -> Iterator[list[Task]]:
    """Greedy search and a beam of 5 with and without shortlists, in batches of 64 and one by one."""
    lists = cache(partial(shortlist_of, cache(partial(written_table, setup))))
    for dtype in ("float32", "int8"):
        for name, search in SEARCHES.items():
            for suffix, lines in LINES.items():
                schedule = pybeam.Batch(1 if suffix else N)
                given = setup, dtype, search, schedule, setup.lines or lines
                makers = {"all columns": partial(Listed, *given, lambda: None)}
                makers |= {
                    f"{best} best": partial(Listed, *given, partial(lists, best)) for best in BEST
                }
                yield in_turn(f"{dtype}-{name}{suffix}", makers, threads=1)


class Listed:
    """The translator, with the shortlist that `make` gives, if there is one."""

    def __init__(
        self,
        setup: Setup,
        dtype: str,
        search: pybeam.Algorithm,
        schedule: pybeam.Schedule,
        lines: int,
        make: Callable[[], pybeam.Shortlist | None],
    ) -> None:
        self._corpus, self._shortlist = setup.corpus("dev").spread(lines), make()
        if self._shortlist is not None:
            chain = (allowed_translations(self._shortlist),)
            search = dataclasses.replace(search, processors=chain)
        self._decoder = pybeam.Decoder(setup.networks.ours("example", dtype), search, schedule)
        self._decoder.decode(self._corpus.sources[:N])

    def __call__(self) -> list[list[int]]:
        results = self._decoder.decode(self._corpus.sources)
        return [result.hypotheses[0].tokens for result in results]

    def columns(self, timed: Timed) -> dict:
        row = {"BLEU": self._corpus.bleu(timed.output), "steps": self._decoder.stats.steps}
        if self._shortlist is None:
            return row
        lists = [set(self._shortlist.tokens_of(source)) for source in self._corpus.sources]
        batches = [set().union(*lists[i : i + N]) for i in range(0, len(lists), N)]
        targets = self._corpus.pieces.encode(self._corpus.references)
        in_lists = [
            token in own for own, line in zip(lists, targets, strict=True) for token in line
        ]
        return row | {
            "listed": statistics.mean(map(len, lists)),
            "in a batch": statistics.mean(map(len, batches)),
            "covered": sum(in_lists) / len(in_lists),
        }


def shortlist_of(table: Callable[[], tuple[Path, list[int]]], best: int) -> pybeam.Shortlist:
    """The shortlist of so many translations of each token."""
    path, frequent = table()
    ids = {piece: i for i, piece in enumerate(corpus.vocabulary(corpus.processor()))}
    return pybeam.Shortlist.from_lexical_table(
        path, (ids, ids), 0, best, always=frequent, without=SPECIAL
    )


def written_table(setup: Setup) -> tuple[Path, list[int]]:
    """Write the lexical table of the training pairs. Returns its path, and the most frequent tokens."""
    train = setup.corpus("train").first(50 if setup.is_tiny else None)
    sources = [source[:-1] for source in train.sources]
    targets = train.pieces.encode(train.references)
    vocabulary, path = train.vocabulary, setup.folder / "lex.s2t"
    table = lexical_table(list(zip(sources, targets, strict=True)), len(vocabulary))
    write_lexicon(path, table, vocabulary, max(BEST))
    counts = np.bincount(np.concatenate(targets).astype(np.int64), minlength=len(vocabulary))
    return path, np.argsort(-counts, kind="stable")[:FREQUENT].tolist()
