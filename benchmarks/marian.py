"""Folders of Marian in Marian itself (package pymarian) and here: the same weights, searches and lines.

`ssru` translates verses. It is the example model with an SSRU decoder that has learned from it
(`tools/ssru.py`), because Marian cannot decode the example model. `attention` has random weights. Its EOS is
out of reach, and all its sources are equally long, so that both systems take as many steps. Marian limits
lengths by the longest source of a batch, and its first output that is so long ends the whole batch. So a line
that repeats itself without end, as greedy search finds a few, is longer there.

Each system has several layouts. Marian has a worker of one thread for each of the threads, with batches of so
many lines, and its greedy search skips the softmax. Shortlists come from a lexical table of the training
data (`lexicon.py`); Marian takes the union of a batch. The rows "best" compare the fastest layouts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import torch

import pybeam
from benchmarks import corpus, marian_networks, translation
from benchmarks.corpus import EOS, Corpus
from benchmarks.lexicon import lexical_table, write_lexicon
from benchmarks.setup import Setup
from benchmarks.tasks import Run, Task, Timed, in_turn

LINES = 384
RANDOM_LINES, LENGTH = 192, 24
REPEATS = 3
WIDTHS = {"greedy": 1, "5": 5}
# dtype here -> what Marian's converter calls its own; None: as it is
GEMM = {"float32": None, "int8": "intgemm8"}
# lines of a batch of Marian's, without shortlists and with: these grow with the batch
BATCHES, SHORT_BATCHES = (16, 32), (8, 16)
# sources that an engine of one thread decodes at once
ENGINE_LINES = (64, 128)
# targets of a source token on its shortlist; ids below this one are no words
BEST, SPECIAL = 100, EOS + 2
# of a worker of Marian's to begin with, as all systems stay in memory
WORKSPACE_MB = 128


class Network:
    """A network, and what it translates; each part is made when it is first asked for.

    Args:
        write: writes its folder.
        directory: a new folder.
        lines: gives the sources, and references if the network has been trained.
        factor: an output has so many tokens at most per token of its source, EOS included.
        training: gives what shortlists are made of; None: there are none.
    """

    def __init__(
        self,
        write: Callable[[Path], None],
        directory: Path,
        lines: Callable[[], Corpus],
        factor: float,
        training: Callable[[], Corpus] | None = None,
    ) -> None:
        self._write, self._directory, self._lines = write, directory, lines
        self.factor, self._training = factor, training
        self.model, self.weights = cache(self._model), cache(self._weights)

    @property
    def has_lexicon(self) -> bool:
        return self._training is not None

    @cached_property
    def folder(self) -> Path:
        self._write(self._directory)
        return self._directory

    @cached_property
    def data(self) -> Corpus:
        return self._lines()

    @cached_property
    def lexicon(self) -> Path:
        """The file of Marian's shortlists."""
        assert self._training is not None
        data, path = self._training(), self.folder / "lexicon.s2t"
        pairs = list(zip(data.sources, data.pieces.encode(data.references), strict=True))
        write_lexicon(path, lexical_table(pairs, len(data.vocabulary)), data.vocabulary, BEST)
        return path

    @cached_property
    def shortlist(self) -> pybeam.Shortlist:
        return pybeam.Shortlist.from_lexical_table(
            self.lexicon, self.folder, first=0, best=BEST, without=range(SPECIAL)
        )

    def _model(self, dtype: str) -> pybeam.Model:
        return pybeam.load_model(self.folder, "cpu", dtype)

    def _weights(self, dtype: str) -> Path:
        """The file that Marian loads."""
        given, gemm = self.folder / "model.npz", GEMM[dtype]
        if gemm is None:
            return given
        path = given.with_name(f"{gemm}.bin")
        # in a process of its own, or Marian goes on logging
        convert = [sys.executable, "-m", "pymarian", "convert"]
        options = ["-f", str(given), "-t", str(path), "--gemm-type", gemm]
        run = subprocess.run(convert + options, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"Marian cannot write {path}: {run.stderr[-500:]}")
        return path


def marian(setup: Setup) -> Iterator[list[Task]]:
    """Marian's greedy search and its beam of 5, with SSRU and with attention, in float32 and int8."""
    for name, network in _networks(setup).items():
        for dtype in GEMM:
            for search, width in WIDTHS.items():
                yield _tasks(
                    f"{name}-{dtype}-{search}", _systems(network, dtype, width, setup.threads)
                )


def _networks(setup: Setup) -> dict[str, Network]:
    def random() -> Corpus:
        rng = np.random.default_rng(1)
        shape = (setup.lines or RANDOM_LINES, LENGTH)
        sources = rng.integers(SPECIAL, marian_networks.VOCAB, shape).tolist()
        return Corpus([[*source, EOS] for source in sources], [], corpus.processor())

    return {
        "ssru": Network(
            marian_networks.write_ssru,
            setup.folder / "ssru",
            lambda: setup.corpus().spread(setup.lines or LINES),
            2.0,
            lambda: setup.corpus("train"),
        ),
        "attention": Network(
            marian_networks.write_attention, setup.folder / "attention", random, 1.0
        ),
    }


def _systems(
    network: Network, dtype: str, width: int, threads: int
) -> dict[str, Callable[[], Run]]:
    """The layouts of all systems; Marian's without shortlists come first."""
    given = network, dtype, width
    systems: dict[str, Callable[[], Run]] = {}
    for has_shortlists in (False, True) if network.has_lexicon and dtype == "int8" else (False,):
        lists = " with shortlists" if has_shortlists else ""
        theirs, ours = (partial(one, *given, has_shortlists) for one in (Marian, Ours))
        for n in SHORT_BATCHES if has_shortlists else BATCHES:
            systems[f"Marian{lists}, batches of {n}"] = partial(theirs, n)
        systems[f"pybeam{lists}, 1 engine, Batch(64)"] = partial(ours, pybeam.Batch(64))
        for n in ENGINE_LINES:
            fifo = partial(ours, pybeam.Fifo(n), has_engines=True)
            systems[f"pybeam{lists}, {threads} engines, Fifo({n})"] = fifo
    return systems


def _tasks(case: str, systems: Mapping[str, Callable[[], Run]]) -> list[Task]:
    """All layouts in turn, and the best of those of each system."""
    tasks = in_turn(case, systems, REPEATS)
    kinds: dict[str, dict[str, Timed]] = {}
    for task in tasks:
        kind, _, layout = task.system.partition(", ")
        kinds.setdefault(kind, {})[layout] = task.measure
    return tasks + [
        Task(case, f"best of {kind}", partial(_best, kind, kinds), REPEATS) for kind in kinds
    ]


def _best(kind: str, kinds: Mapping[str, Mapping[str, Timed]]) -> dict:
    """The fastest layout of a system beside those of Marian; {} where none has been measured."""
    if (found := _fastest(kinds[kind])) is None:
        return {}
    layout, timed = found
    row = {"layout": layout, "seconds": timed.seconds, "cpu_seconds": timed.cpu_seconds}
    beside = {name: _fastest(layouts) for name, layouts in kinds.items() if "Marian" in name}
    return row | {
        f"times {name}": best[1].seconds / timed.seconds for name, best in beside.items() if best
    }


def _fastest(layouts: Mapping[str, Timed]) -> tuple[str, Timed] | None:
    measured = [(name, timed) for name, timed in layouts.items() if timed.is_measured]
    return min(measured, key=lambda pair: pair[1].seconds, default=None)


class Ours:
    """A search of pybeam as Marian's, by one engine or by one for each thread."""

    def __init__(
        self,
        network: Network,
        dtype: str,
        width: int,
        has_shortlists: bool,
        schedule: pybeam.Schedule,
        has_engines: bool = False,
    ) -> None:
        rules = [pybeam.shortlist.allowed_translations(network.shortlist)] if has_shortlists else []
        # rounds up
        limit = pybeam.limits.SourceLimit(network.factor, 1 - 2**-20)
        search = (
            pybeam.greedy(max_length=limit, processors=rules)
            if width == 1
            else pybeam.shrinking_beam(
                width,
                max_length=limit,
                scoring=translation.NORMALISED,
                processors=rules,
                ended_only=False,
            )
        )
        decoder = pybeam.Decoder(network.model(dtype), search, schedule)
        self.data = network.data
        self._translate = (
            translation.Serving(decoder, self.data.sources)
            if has_engines
            else partial(_decoded, decoder)
        )
        self._translate(_warm_up(self.data))

    def __call__(self) -> list[list[int]]:
        return self._translate(self.data.sources)

    def columns(self, timed: Timed) -> dict:
        return _columns(timed, self.data)


def _decoded(decoder: pybeam.Decoder, sources: list[list[int]]) -> list[list[int]]:
    return [result.hypotheses[0].tokens for result in decoder.decode(sources)]


class Marian:
    """Marian's own search, which is given pieces."""

    def __init__(
        self, network: Network, dtype: str, width: int, has_shortlists: bool, n: int
    ) -> None:
        import pymarian

        folder, self.data = network.folder, network.data
        options = [
            f"--models {network.weights(dtype)}",
            f"--vocabs {folder / 'source.yml'} {folder / 'target.yml'}",
            f"--cpu-threads {torch.get_num_threads()} --quiet --quiet-translation --allow-unk",
            f"--mini-batch {n} --maxi-batch 100 --maxi-batch-sort src --workspace {WORKSPACE_MB}",
            f"--max-length-factor {network.factor} --beam-size {width} --normalize 1",
        ]
        if width == 1:
            options.append("--skip-cost")
        if has_shortlists:
            # all lists have the ids below the first number, EOS among them
            options.append(f"--shortlist {network.lexicon} {SPECIAL} {BEST} 0")
        self._translator = pymarian.Translator(" ".join(options))
        self._words = self.data.vocabulary
        self._ids = {word: i for i, word in enumerate(self._words)}
        self._lines = self._as_lines(self.data.sources)
        self._translator.translate(self._as_lines(_warm_up(self.data)))

    def _as_lines(self, sources: list[list[int]]) -> list[str]:
        return [" ".join(self._words[token] for token in source[:-1]) for source in sources]

    def __call__(self) -> list[list[int]]:
        outputs = self._translator.translate(self._lines)
        return [[self._ids[word] for word in output.split()] for output in outputs]

    def columns(self, timed: Timed) -> dict:
        return _columns(timed, self.data)


def _warm_up(data: Corpus) -> list[list[int]]:
    return data.sources[: 1 + len(data.sources) // 8]


def _columns(timed: Timed, data: Corpus) -> dict:
    num = sum(map(len, timed.output))
    row = {
        "lines": len(data.sources),
        "lines/s": len(data.sources) / timed.seconds,
        "tokens": num,
        "tokens/cpu_s": num / timed.cpu_seconds,
    }
    return row | ({"BLEU": data.bleu(timed.output)} if data.references else {})
