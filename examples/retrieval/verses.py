"""Find the English verse of a Spanish one: the example model scores nothing but the verses of a catalogue.

    make data
    python examples/retrieval/verses.py

The catalogue is all English verses of the data, about 30,000. The queries are Spanish verses that the model
has not been trained on. For every width the script prints how often the right verse is the first of the
list, and how often it is among the first ten; then the same for a translation without the catalogue, and the
verse of the catalogue that is nearest to it by chrF.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import pybeam
from pybeam.catalogue import allowed_items
from pybeam.reranking import chrf

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "models" / "bible-es-en"
# what `make data` writes, and a folder that may stand beside the checkout
FOLDERS = ROOT / ".data" / "bible-es-en", ROOT.parent / "shared" / "data" / "bible-es-en"
WIDTHS = 1, 4, 16, 64, 128, 512
MOST = 10
# without it short verses win too often
PER_TOKEN = pybeam.scoring.power(1.0)
# verses that chrF compares with a translation
CANDIDATES = 100


def read(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text("utf-8").splitlines()


def catalogue_of(folder: Path, tokenizer: pybeam.Tokenizer) -> tuple[pybeam.Catalogue, list[str]]:
    """All English verses, and the catalogue of them; verses with the same words are several items."""
    verses = [verse for split in ("train", "dev", "test") for verse in read(folder, f"{split}.en")]
    return pybeam.Catalogue.from_texts(verses, tokenizer), verses


def ranked(results: Sequence[pybeam.Result], verses: Sequence[str]) -> Iterator[list[str]]:
    """The verses of each result, best first."""
    for result in results:
        yield [verses[hypothesis.items[0]] for hypothesis in result.hypotheses]


class Nearest:
    """Finds the verses that are nearest to a text: by chrF, among those that share its rarest words."""

    def __init__(self, verses: Sequence[str]) -> None:
        self._verses = verses
        places = defaultdict(list)
        for i, verse in enumerate(verses):
            for word in words_of(verse):
                places[word].append(i)
        self._places = {word: np.array(own) for word, own in places.items()}

    def __call__(self, text: str) -> list[str]:
        weight = np.zeros(len(self._verses))
        for word in words_of(text) & self._places.keys():
            own = self._places[word]
            weight[own] += np.log(len(self._verses) / len(own))
        few = [self._verses[i] for i in np.argsort(-weight, kind="stable")[:CANDIDATES]]
        order = chrf([text], few)[0].argsort(descending=True, stable=True)
        return [few[i] for i in order[:MOST]]


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def line(name: str, found: Sequence[list[str]], right: Sequence[str], seconds: float) -> str:
    """One line of the table."""
    first = sum(own[:1] == [one] for own, one in zip(found, right, strict=True))
    among = sum(one in own[:MOST] for own, one in zip(found, right, strict=True))
    shares = f"{first / len(right):8.1%} {among / len(right):8.1%}"
    return f"{name:32} {shares} {1000 * seconds / len(right):10.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="default: what `make data` wrote")
    parser.add_argument("--split", default="test", choices=("dev", "test"))
    parser.add_argument("--queries", type=int, default=30, help="so many lines of the split")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--renormalize", action="store_true", help="see processors.allowed_items")
    options = parser.parse_args()
    folder = options.data or next((path for path in FOLDERS if path.is_dir()), FOLDERS[0])
    if not folder.is_dir():
        parser.error(f"there is no {folder}; run `make data`, or name a folder with --data")
    tokenizer, model = pybeam.load_tokenizer(MODEL), pybeam.load_model(MODEL)
    start = time.perf_counter()
    catalogue, verses = catalogue_of(folder, tokenizer)
    print(f"{catalogue}, built in {time.perf_counter() - start:.1f} s\n")
    queries = read(folder, f"{options.split}.es")[: options.queries]
    right = read(folder, f"{options.split}.en")[: options.queries]
    requests = [tokenizer.encode(query) for query in queries]
    print(f"{'':32} {'hit@1':>8} {'hit@10':>8} {'ms/query':>10}")
    rule = allowed_items(catalogue, renormalize=options.renormalize)
    for width in options.widths:
        search = pybeam.fixed_beam(
            width, n_best=min(width, MOST), scoring=PER_TOKEN, processors=[rule]
        )
        decoder = pybeam.Decoder(model, search, pybeam.Fifo(16))
        start = time.perf_counter()
        found = list(ranked(decoder.decode(requests), verses))
        print(
            line(f"catalogue, width {width}", found, right, time.perf_counter() - start), flush=True
        )
    near = Nearest(verses)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(5, scoring=PER_TOKEN))
    start = time.perf_counter()
    results = decoder.decode(requests)
    outputs = [tokenizer.decode(result.hypotheses[0].tokens) for result in results]
    found = list(map(near, outputs))
    print(line("translation, width 5, then nearest", found, right, time.perf_counter() - start))


if __name__ == "__main__":
    main()
