"""Items found by search: hit rates and recall by width, for the examples of retrieval.

Verses: the English verse of a Spanish one among all 30,000, by searches of the example model, beside a
translation and the verse that is nearest to it by chrF. Sessions: the next item of a walk among verses, by
the small TIGER of the examples, which is trained first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import pybeam
from benchmarks.data import folder_with
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from examples.retrieval import verses
from examples.tiger import tiger
from pybeam.catalogue import allowed_items

WIDTHS = (1, 4, 16, 64, 128, 512)
MOST = 10
CORPUS = "bible-es-en"


def retrieval(setup: Setup) -> Iterator[list[Task]]:
    """Hit rates of verses and of a small TIGER, by width; the latter is trained for some minutes first."""
    widths = (1, 3) if setup.is_tiny else WIDTHS
    found = Verses(setup)
    systems: dict[str, Callable] = {
        f"width {width}": lambda k=width: Ranking(lambda: found.searched(k), found.right)
        for width in widths
    }
    systems["translation, then the nearest"] = lambda: Ranking(found.translated, found.right)
    yield in_turn("verses", systems, repeats=1)
    sessions = Sessions(setup)
    systems = {
        f"width {width}": lambda k=width: Ranking(lambda: sessions.searched(k), sessions.right)
        for width in widths
    }
    yield in_turn("sessions", systems, repeats=1)


class Ranking:
    """Lists of what was found, best first, and what was right."""

    def __init__(self, find: Callable[[], Sequence[list]], right: Sequence) -> None:
        self._find, self._right = find, right

    def __call__(self) -> Sequence[list]:
        return self._find()

    def columns(self, timed: Timed) -> dict:
        """Shares in percent, and milliseconds."""
        pairs = list(zip(timed.output, self._right, strict=True))
        return {
            "queries": len(pairs),
            "hit@1": 100 * sum(own[:1] == [one] for own, one in pairs) / len(pairs),
            f"hit@{MOST}": 100 * sum(one in own[:MOST] for own, one in pairs) / len(pairs),
            "ms per query": 1000 * timed.seconds / len(pairs),
        }


class Verses:
    """The queries of the test set, and the catalogue of all verses."""

    def __init__(self, setup: Setup) -> None:
        self._folder = folder_with(f"{CORPUS}/test.es", setup.data) / CORPUS
        self._model = pybeam.load_model(verses.MODEL, device="cpu")
        self._tokenizer = pybeam.load_tokenizer(verses.MODEL)
        num = setup.lines or (4 if setup.is_tiny else 60)
        queries = verses.read(self._folder, "test.es")[:num]
        self._requests = [self._tokenizer.encode(query) for query in queries]
        self.right = verses.read(self._folder, "test.en")[:num]

    @cached_property
    def _catalogue(self) -> tuple[pybeam.Catalogue, list[str]]:
        return verses.catalogue_of(self._folder, self._tokenizer)

    def searched(self, width: int) -> list[list[str]]:
        """The verses that a search finds."""
        catalogue, texts = self._catalogue
        search = pybeam.fixed_beam(
            width,
            n_best=min(width, MOST),
            scoring=verses.PER_TOKEN,
            processors=[allowed_items(catalogue)],
        )
        decoder = pybeam.Decoder(self._model, search, pybeam.Fifo(16))
        return list(verses.ranked(decoder.decode(self._requests), texts))

    @cached_property
    def _near(self) -> verses.Nearest:
        return verses.Nearest(self._catalogue[1])

    def translated(self) -> list[list[str]]:
        """The verses that are nearest to a translation."""
        decoder = pybeam.Decoder(
            self._model, pybeam.fixed_beam(5, scoring=verses.PER_TOKEN), pybeam.Streaming(16)
        )
        results = decoder.decode(self._requests)
        return [
            self._near(self._tokenizer.decode(result.hypotheses[0].tokens)) for result in results
        ]


class Sessions:
    """Walks that the small TIGER has not seen."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    @cached_property
    def _trained(self) -> tiger.Trained:
        setup = self._setup
        folder = folder_with(f"{CORPUS}/train.en", setup.data) / CORPUS
        return tiger.trained(
            folder, 0.05 if setup.is_tiny else 4.0, setup.lines or 500, setup.folder / "tiger"
        )

    @property
    def right(self) -> list[int]:
        """The items that came next."""
        return self._trained.right

    def searched(self, width: int) -> list[list[int]]:
        """The items that a search finds."""
        return tiger.recommended(self._trained, width)
