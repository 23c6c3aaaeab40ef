"""Folders of Marian in Marian itself (package pymarian) and here: the same weights, steps and outputs.

The networks are random ones of the example's shape, because Marian has no place for the example's own start
and positions. EOS is out of reach and all sources are equally long, so that both systems take as many steps:
Marian ends a whole batch with the first of its sources, and lines of many lengths would not be the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pybeam
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from tests.support import marian_folders
from tests.support.marian_folders import EOS, SSRU

Folder = Callable[[], Path]  # makes it once
LINES, LENGTH = 192, 24
SIZES = {
    **{"dim-emb": 256, "transformer-dim-ffn": 1024, "transformer-heads": 4},
    **{"enc-depth": 3, "dec-depth": 3, "dim-vocabs": [8000, 8000], "tied-embeddings-all": "true"},
}
DECODERS = {"transformer": {}, "ssru": SSRU}
WIDTHS = {"greedy": 1, "5": 5}
# dtype here -> what Marian's converter calls its own; None: as it is
GEMM = {"float32": None, "int8": "intgemm8"}
# sources of a batch there and here
N = 64


def marian(setup: Setup) -> Iterator[list[Task]]:
    """Marian's greedy search and its beam of 5, with attention and with SSRU, in float32 and int8."""
    lines = setup.lines or LINES
    rng = np.random.default_rng(1)
    sources = rng.integers(2, SIZES["dim-vocabs"][0], (lines, LENGTH)).tolist()
    for decoder, own in DECODERS.items():
        directory = cache(partial(_folder, setup.folder / decoder, own))
        for dtype in GEMM:
            for search, width in WIDTHS.items():
                given = directory, dtype, width, sources
                makers = {
                    f"Marian beam-size={width}": partial(Marian, *given),
                    f"pybeam shrinking {width}, Batch({N})": partial(Ours, *given),
                }
                yield in_turn(f"{decoder}-{dtype}-{search}", makers)


def _folder(directory: Path, changes: dict[str, Any]) -> Path:
    """Write a random network that never ends."""
    arrays, settings = marian_folders.write_folder(directory, 2, **SIZES, **changes)
    # a finite number that no logit outweighs, so that both programs read an ordinary bias
    arrays["decoder_ff_logit_out_b"][0, EOS] = -10_000
    # so that a step says more than the token before it
    arrays["Wemb"] *= 0.25
    marian_folders.write_arrays(directory / "model.npz", arrays, settings)
    tokens = ["</s>", "<unk>", *(f"t{i}" for i in range(2, SIZES["dim-vocabs"][0]))]
    for name in ("source.yml", "target.yml"):
        marian_folders.write_vocabulary(directory / name, tokens)
    return directory


class Ours:
    """A search of pybeam as Marian's."""

    def __init__(self, folder: Folder, dtype: str, width: int, sources: list[list[int]]) -> None:
        model = pybeam.load_model(folder(), "cpu", dtype)
        # a source has EOS, and an output as many tokens
        search = pybeam.shrinking_beam(
            width, max_length=pybeam.limits.SourceLimit(1.0), ended_only=False
        )
        self._decoder = pybeam.Decoder(model, search, pybeam.Batch(N))
        self._sources = [[*source, EOS] for source in sources]
        self._decoder.decode(self._sources[:N])

    def __call__(self) -> list[list[int]]:
        return [result.hypotheses[0].tokens for result in self._decoder.decode(self._sources)]

    def columns(self, timed: Timed) -> dict:
        return _speed(timed)


class Marian:
    """Marian's own search."""

    def __init__(self, folder: Folder, dtype: str, width: int, sources: list[list[int]]) -> None:
        import pymarian

        directory, gemm = folder(), GEMM[dtype]
        model = directory / "model.npz"
        if gemm is not None:
            model = directory / f"{gemm}.bin"
            convert = ["convert", "-f", directory / "model.npz", "-t", model, "--gemm-type", gemm]
            if pymarian._pymarian.main([str(one) for one in convert]):
                raise RuntimeError(f"Marian cannot write {model}")
        vocabularies = f"{directory / 'source.yml'} {directory / 'target.yml'}"
        self._translator = pymarian.Translator(
            f"--models {model} --vocabs {vocabularies} --quiet --quiet-translation --allow-unk "
            f"--cpu-threads {torch.get_num_threads()} --beam-size {width} --max-length-factor 1 "
            f"--mini-batch {N} --maxi-batch 100 --maxi-batch-sort src"
        )
        self._lines = [" ".join(f"t{token}" for token in source) for source in sources]
        self._translator.translate(self._lines[:N])

    def __call__(self) -> list[list[int]]:
        outputs = self._translator.translate(self._lines)
        return [[int(word[1:]) for word in output.split()] for output in outputs]

    def columns(self, timed: Timed) -> dict:
        return _speed(timed)


def _speed(timed: Timed) -> dict:
    num = sum(map(len, timed.output))
    return {"tokens/s": num / timed.seconds, "tokens/cpu_s": num / timed.cpu_seconds}
