"""The example translator with terms that its outputs must contain: accuracy of the terms, BLEU and time.

The set-up is that of Post and Vilar 2018: each line's terms are drawn from its reference, n words somewhere
("words") or n words in a row ("phrase"). A line whose reference is too short has none. "terms" is the share
of terms that stand in the output, "lines" that of lines whose terms all do. One thread does all of it, so
that its CPU seconds are those of the work.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

import pybeam
from benchmarks.corpus import MODEL, Corpus
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from benchmarks.translation import MAX_LENGTH, NORMALISED
from pybeam.processors import must_contain

LINES, N = 128, 64
SEED = 1
WIDTHS = (5, 10, 20)
# the width of all other cases
USUAL = 10
# words in a row, and words here and there
PHRASES, WORDS = (1, 2, 3, 4), (2, 3, 4)
# where phrases without allocation come at the limit, and a source has not many rows
UNALLOCATED = "phrase-2-10"


def terminology(setup: Setup) -> Iterator[list[Task]]:
    """Words and phrases of references as terms, by beams of several widths, beside searches without terms."""
    chosen = [(f"phrase-{n}", 1, n, width) for width in WIDTHS for n in PHRASES if n == 2]
    chosen += [(f"phrase-{n}", 1, n, USUAL) for n in PHRASES if n != 2]
    chosen += [(f"words-{n}", n, 1, USUAL) for n in WORDS]
    for name, num, length, width in chosen:
        case = f"{name}-{width}"
        terms = partial(drawn, num=num, length=length)
        makers = {
            "without terms": partial(Terms, setup, width, terms, None),
            "with terms": partial(Terms, setup, width, terms, True),
        }
        if case == UNALLOCATED:
            makers["without allocation"] = partial(Terms, setup, width, terms, False)
        yield in_turn(case, makers, threads=1)


def drawn(references: Sequence[str], num: int, length: int) -> list[list[str]]:
    """Draw `num` terms of so many words in a row from every reference, apart from each other."""
    rng, found = random.Random(SEED), []
    for line in references:
        words = line.split()
        starts = range(0, len(words) - length + 1, length)
        chosen = sorted(rng.sample(starts, num)) if len(starts) >= num else []
        found.append([" ".join(words[i : i + length]) for i in chosen])
    return found


class Terms:
    """A beam search of some lines; `allocates` as in `must_contain`, or None for no terms."""

    def __init__(self, setup: Setup, width: int, draw: partial, allocates: bool | None) -> None:
        self._corpus: Corpus = setup.corpus("dev").spread(setup.lines or LINES)
        self._terms = draw(self._corpus.references)
        chain = [] if allocates is None else [must_contain(allocates=allocates)]
        search = pybeam.fixed_beam(
            width, max_length=MAX_LENGTH, scoring=NORMALISED, processors=chain
        )
        model, tokenizer = setup.networks.ours("example"), pybeam.load_tokenizer(MODEL)
        self._decoder = pybeam.Decoder(model, search, pybeam.Batch(N))
        self._requests = [
            pybeam.Request(
                source,
                processors=chain and [must_contain(terms, tokenizer, allocates=chain[0].allocates)],
            )
            for source, terms in zip(self._corpus.sources, self._terms, strict=True)
        ]
        self._decoder.decode(self._requests[:8])

    def __call__(self) -> list[list[int]]:
        results = self._decoder.decode(self._requests)
        return [result.hypotheses[0].tokens for result in results]

    def columns(self, timed: Timed) -> dict:
        outputs = [self._corpus.pieces.decode(tokens) for tokens in timed.output]
        has = [
            [f" {term} " in f" {output} " for term in terms]
            for output, terms in zip(outputs, self._terms, strict=True)
            if terms
        ]
        return {
            "BLEU": self._corpus.bleu(timed.output),
            "terms": sum(map(sum, has)) / max(1, sum(map(len, has))),
            "lines": sum(map(all, has)) / max(1, len(has)),
            "tokens": sum(map(len, timed.output)),
            "steps": self._decoder.stats.steps,
        }
