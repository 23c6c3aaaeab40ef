"""Programs for CTranslate2 and faster-whisper, with the import changed: the same folder, calls and arguments.

Translations are those of the example model. The other networks have random weights, on which the time does
not depend. Each system keeps its own defaults in what a program does not say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.causal import Causal, random_ids
from benchmarks.long_recording import RATE, SEARCH, WINDOW_SECONDS
from benchmarks.setup import Setup
from benchmarks.tasks import Run, Task, in_turn
from benchmarks.whisper_networks import Whisper

DTYPES = ("float32", "int8")
REPEATS = 5
TRANSLATION = {"CTranslate2": "ctranslate2", "pybeam": "pybeam.compat.ctranslate2"}
SPEECH = {"faster-whisper": "faster_whisper", "pybeam": "pybeam.compat.faster_whisper"}
# a program, given the package that it imports and a type of computation
Program = Callable[[Any, str], Run]
BATCH, MAX_LENGTH = 64, 128
# layers of a decoder without an encoder, small enough to be timed often
DECODER = dict(
    hidden_size=512,
    intermediate_size=1536,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    vocab_size=32000,
)


def compat(setup: Setup) -> Iterator[list[Task]]:
    """`pybeam.compat` beside CTranslate2 and faster-whisper: the same programs, the import changed."""
    translations, generations = Translations(setup), Generations(setup)
    lines, few = setup.lines or 192, setup.lines or 48
    yield from cases("translate_batch, beam 5", TRANSLATION, translations.at_once(lines, 5))
    yield from cases("translate_batch, greedy", TRANSLATION, translations.at_once(lines, 1))
    yield from cases("a line a call, beam 5", TRANSLATION, translations.one_by_one(few, 5))
    yield from cases("generate_batch, greedy", TRANSLATION, generations.at_once(1))
    yield from cases("generate_batch, beam 5", TRANSLATION, generations.at_once(5))
    whisper = Whisper(setup, "tiny")
    yield from cases("WhisperModel", SPEECH, transcribing(setup, whisper, is_batched=False))
    yield from cases("BatchedInferencePipeline", SPEECH, transcribing(setup, whisper))


def cases(name: str, packages: Mapping[str, str], program: Program) -> Iterator[list[Task]]:
    """A case for each type of computation."""
    for dtype in DTYPES:
        makers = {
            system: lambda module=module, dtype=dtype: program(import_module(module), dtype)
            for system, module in packages.items()
        }
        yield in_turn(f"{name}, {dtype}", makers, REPEATS)


class Translations:
    """Programs that translate lines of dev."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def at_once(self, num_lines: int, width: int) -> Program:
        return lambda package, dtype: self._run(package, dtype, [self._lines(num_lines)], width)

    def one_by_one(self, num_lines: int, width: int) -> Program:
        return lambda package, dtype: self._run(
            package, dtype, [[line] for line in self._lines(num_lines)], width
        )

    def _lines(self, num: int) -> list[list[str]]:
        corpus = self._setup.corpus().spread(num)
        return [[corpus.vocabulary[token] for token in source] for source in corpus.sources]

    def _run(self, package: Any, dtype: str, calls: list[list[list[str]]], width: int) -> Run:
        vocabulary = self._setup.corpus().vocabulary
        directory = self._setup.networks.ctranslate2_directory("example", vocabulary)
        translator = package.Translator(
            str(directory), device="cpu", compute_type=dtype, intra_threads=self._setup.threads
        )

        def run(some: list[list[list[str]]] = calls) -> list[list[str]]:
            options = dict(max_batch_size=BATCH, max_decoding_length=MAX_LENGTH)
            return [
                result.hypotheses[0]
                for lines in some
                for result in translator.translate_batch(lines, beam_size=width, **options)
            ]

        run([lines[:BATCH] for lines in calls[:BATCH]])
        return run


class Generations:
    """Programs that go on from prompts, with a network of Qwen3's kind."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._network = setup, Causal(setup, DECODER)
        # CTranslate2 takes what is longer than the shortest of a batch for a part of its output
        lengths = [6] * 2 if setup.is_tiny else [96] * 16
        ids = random_ids(lengths, self._network.vocab_size)
        self._prompts = [[f"<{token}>" for token in prompt] for prompt in ids]

    def at_once(self, width: int) -> Program:
        def program(package: Any, dtype: str) -> Run:
            generator = package.Generator(
                str(self._network.converted_directory),
                device="cpu",
                compute_type=dtype,
                intra_threads=self._setup.threads,
            )

            turns = itertools.count(3)

            def run(num_new: int = 4 if self._setup.is_tiny else 32) -> list[list[int]]:
                # what one turn has read must not be there in the next
                first = f"<{next(turns)}>"
                results = generator.generate_batch(
                    [[first, *prompt] for prompt in self._prompts],
                    beam_size=width,
                    max_length=num_new,
                    min_length=num_new - 1,
                    include_prompt_in_result=False,
                )
                return [result.sequences_ids[0] for result in results]

            run(2)
            return run

        return program


def transcribing(setup: Setup, network: Whisper, is_batched: bool = True) -> Program:
    """A program that transcribes noise, in which each window has the most tokens that it may have."""
    num_windows = 1 if setup.is_tiny else 2
    generator = np.random.default_rng(0)
    noise = 0.1 * generator.standard_normal(num_windows * WINDOW_SECONDS * RATE, np.float32)

    def program(package: Any, dtype: str) -> Run:
        model = package.WhisperModel(
            str(network.converted_directory),
            device="cpu",
            compute_type=dtype,
            cpu_threads=setup.threads,
        )
        transcribe, options = model.transcribe, dict(SEARCH)
        if is_batched:
            transcribe = package.BatchedInferencePipeline(model).transcribe
            starts = range(0, num_windows * WINDOW_SECONDS, WINDOW_SECONDS)
            cuts = [{"start": start, "end": start + WINDOW_SECONDS} for start in starts]
            options["clip_timestamps"] = cuts

        def run() -> list[list[int]]:
            segments, _ = transcribe(noise, **options)
            return [list(segment.tokens) for segment in segments]

        return run

    return program
