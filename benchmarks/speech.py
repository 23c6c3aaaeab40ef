"""Word error rates of the example recognisers, by searches of the FireRedASR family beside each other.

On spoken numbers that espeak-ng synthesises, and on phrases of the test verses that espeak-ng and flite
synthesise, in voices and sentences that were not heard in training, and in noise.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jiwer

import pybeam
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from benchmarks.tools.data import ROOT, folder_with
from examples.speech import spoken_verses
from examples.speech.spoken_numbers import recordings
from pybeam.processors import Processor
from pybeam.speech import load_feature_extractor, load_transcription
from pybeam.text.tokenizer import Tokenizer

MODEL = ROOT / "examples" / "models" / "spoken-numbers-en"
VERSES = ROOT / "examples" / "models" / "spoken-verses-en"
NOISE_DB = 0.0, 20.0
SMOOTHED = [pybeam.processors.temperature(1.25), pybeam.processors.eos_penalty(0.9)]
GNMT = pybeam.scoring.gnmt(0.6)
N_BEST = 3
MAX_NEW_TOKENS = 120
# a long recording: so many phrases one after another, with pauses between them
NUM_PHRASES, LONG_NOISE_DB = 25, (15.0, 30.0)
TRANSCRIPTIONS = {
    "sequential windows": {},
    "sequential windows, no text of the window before": dict(condition_on_previous_text=False),
    "sequential windows, one temperature": dict(temperatures=(0.0,)),
    "batched windows": dict(windows="batched"),
}
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
    """Sources and their texts, and what the model that hears them asks of every search."""

    sources: list
    texts: list[str]
    tokenizer: Tokenizer
    model: Path = MODEL
    processors: tuple[Processor, ...] = ()


def load_recordings(number: int) -> Recordings:
    """Voices that were not heard in training."""
    extract = load_feature_extractor(MODEL)
    pairs = list(recordings("test", number, seed=2, noise_db=NOISE_DB))
    sources, texts = [extract(samples) for samples, _ in pairs], [text for _, text in pairs]
    return Recordings(sources, texts, pybeam.load_tokenizer(MODEL))


def load_verses(number: int, data: Path | None) -> Recordings:
    """Phrases and voices that were not heard in training; outputs have no timestamps."""
    path = "bible-es-en/test.en"
    verses = (folder_with(path, data) / path).read_text("utf-8").splitlines()
    texts, rng = spoken_verses.phrases(verses), random.Random(2)
    rng.shuffle(texts)
    heard = [
        spoken_verses.recording([clip], rng, NOISE_DB)
        for clip in spoken_verses.clips(texts[:number], "test", seed=2)
    ]
    extract, asked = load_feature_extractor(VERSES), load_transcription(VERSES)
    sources = [pybeam.Request(extract(one.samples), prefix=asked.prefix) for one in heard]
    texts = [one.text for one in heard]
    tokenizer = pybeam.load_tokenizer(VERSES)
    return Recordings(sources, texts, tokenizer, VERSES, asked.processors)


def load_long(number: int, data: Path | None) -> tuple[list, list[str]]:
    """Recordings of many windows and their texts: every phrase of the test verses in them, in turn."""
    path = "bible-es-en/test.en"
    verses = (folder_with(path, data) / path).read_text("utf-8").splitlines()
    texts, rng = spoken_verses.phrases(verses), random.Random(4)
    rng.shuffle(texts)
    spoken = list(spoken_verses.clips(texts[: number * NUM_PHRASES], "test", seed=4))
    heard = [
        spoken_verses.recording(spoken[first : first + NUM_PHRASES], rng, LONG_NOISE_DB)
        for first in range(0, len(spoken), NUM_PHRASES)
    ]
    return [one.samples for one in heard], [one.text for one in heard]


def speech(setup: Setup) -> Iterator[list[Task]]:
    """Word error rates of the example recognisers, by searches."""
    number = setup.lines or 300
    numbers = cache(lambda: load_recordings(number))
    verses = cache(lambda: load_verses(number, setup.data))
    whisper = pybeam.compat.huggingface.beam_search(
        5, num_return_sequences=N_BEST, max_new_tokens=MAX_NEW_TOKENS
    )
    yield in_turn(
        "spoken numbers",
        {name: lambda own=own: Recognition(*own, numbers()) for name, own in SEARCHES.items()},
        repeats=1,
    )
    searches = SEARCHES | {"transformers'": (whisper, pybeam.Batch(32))}
    yield in_turn(
        "spoken verses",
        {name: lambda own=own: Recognition(*own, verses()) for name, own in searches.items()},
        repeats=1,
    )
    long = cache(lambda: load_long(number, setup.data))
    yield in_turn(
        "long recordings",
        {name: lambda own=own: Transcription(own, *long()) for name, own in TRANSCRIPTIONS.items()},
        repeats=1,
    )


class Recognition:
    """One search on all recordings."""

    def __init__(self, search, schedule, heard: Recordings) -> None:
        search = replace(search, processors=(*search.processors, *heard.processors))
        model = pybeam.load_model(heard.model, device="cpu")
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


class Transcription:
    """Recordings of several windows, transcribed together."""

    def __init__(self, options: dict, recordings: list, texts: list[str]) -> None:
        options = pybeam.TranscriptionOptions(language="en", **options)
        model = pybeam.load_model(VERSES, device="cpu")
        self._transcriber = pybeam.Transcriber(model, VERSES, options)
        self._recordings, self._texts = recordings, texts

    def __call__(self) -> list[str]:
        return [one.text for one in self._transcriber.transcribe(self._recordings)]

    def columns(self, timed: Timed) -> dict:
        """Word error rate in percent, and the real-time factor: seconds of work per second of sound."""
        seconds = sum(map(len, self._recordings)) / self._transcriber.sampling_rate
        return {
            "recordings": len(self._texts),
            "words": sum(len(text.split()) for text in self._texts),
            "minutes": seconds / 60,
            "WER": 100 * jiwer.wer(self._texts, timed.output),
            "real-time factor": timed.seconds / seconds,
        }
