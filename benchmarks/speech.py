"""Word error rates of the example recogniser, by searches of the FireRedASR family beside each other.

On spoken numbers that espeak-ng synthesises, in voices that were not heard in training and in noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import jiwer

import pybeam
from benchmarks.data import ROOT
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from examples.speech.spoken_numbers import recordings
from pybeam.speech.features import load_feature_extractor

MODEL = ROOT / "examples" / "models" / "spoken-numbers-en"
SMOOTHED = [pybeam.processors.temperature(1.25), pybeam.processors.eos_penalty(0.9)]
GNMT = pybeam.scoring.gnmt(0.6)
N_BEST = 3
SEARCHES = {
    "greedy": (pybeam.greedy(), pybeam.Batch(32)),
    "FIXED": (pybeam.fixed_beam(5, n_best=N_BEST), pybeam.Batch(32)),
    "FIXED, smoothed, EOS penalty, GNMT": (
        pybeam.fixed_beam(5, n_best=N_BEST, scoring=GNMT, processors=SMOOTHED),
        pybeam.Batch(32),
    ),
    "FireRedASR's, the same options": (
        pybeam.compat.fireredasr.beam_search(
            5, nbest=N_BEST, softmax_smoothing=1.25, eos_penalty=0.9, length_penalty=0.6
        ),
        pybeam.Streaming(32),
    ),
    "VAR-STREAM, the same options": (
        pybeam.variable_beam(
            10,
            threshold=2.5,
            max_candidates=3,
            n_best=N_BEST,
            scoring=GNMT,
            processors=SMOOTHED,
        ),
        pybeam.Streaming(32),
    ),
}


class Recordings(NamedTuple):
    sources: list
    texts: list[str]
    tokenizer: object


def load_recordings(number: int) -> Recordings:
    """Voices that were not heard in training, in noise of 0 to 20 dB."""
    extract = load_feature_extractor(MODEL)
    pairs = list(recordings("test", number, seed=2, noise_db=(0.0, 20.0)))
    sources, texts = [extract(samples) for samples, _ in pairs], [text for _, text in pairs]
    return Recordings(sources, texts, pybeam.load_tokenizer(MODEL))


def speech(setup: Setup) -> Iterator[list[Task]]:
    """Word error rates of the example recogniser, by searches."""
    heard = cache(lambda: load_recordings(setup.lines or 300))
    yield in_turn(
        "spoken numbers",
        {name: lambda own=own: Recognition(*own, heard()) for name, own in SEARCHES.items()},
        repeats=1,
    )


class Recognition:
    """One search on all recordings."""

    def __init__(self, search, schedule, heard: Recordings) -> None:
        model = pybeam.load_model(MODEL, device="cpu")
        self._decoder, self._heard = pybeam.Decoder(model, search, schedule), heard

    def __call__(self) -> list[list[str]]:
        results = self._decoder.decode(self._heard.sources)
        decode = self._heard.tokenizer.decode
        return [[decode(one.tokens) for one in result.hypotheses] for result in results]

    def columns(self, timed: Timed) -> dict:
        """Word error rates in percent: of the best outputs, and of the best among all (the oracle)."""
        texts, found = self._heard.texts, timed.output
        closest = [
            min(own, key=lambda text, spoken=spoken: jiwer.wer(spoken, text))
            for spoken, own in zip(texts, found, strict=True)
        ]
        return {
            "recordings": len(texts),
            "words": sum(len(text.split()) for text in texts),
            "WER": 100 * jiwer.wer(texts, [own[0] for own in found]),
            f"oracle WER of {N_BEST}": 100 * jiwer.wer(texts, closest),
            "expansions": self._decoder.stats.expansions,
            "expansions per step": self._decoder.stats.expansions_per_step,
        }
