"""Semantic and syntactic parsing under a budget of 100 rows a step: Tables 2, 6 and 7 of Yang et al. 2020.

GREEDY decodes 100 sources at once, FIXED and VAR-BATCH 10 with k = 10; VAR-STREAM moves whole beams until
the next would exceed 100 rows. M = 3; delta = 10, or 2.5 for trees. All sort the whole test set
by length. The metric is exact match of logical forms, with placeholders for the constants that a question
names, LAS (labelled attachment, punctuation included, relations without subtypes) or F1 of brackets as
EVALB counts them; "oracle" is that of the best of all that each search finds. Steps, expansions and metrics
are exact. The models of `jobs` and `ptb` are not part of the repository:

    python examples/semantic_parsing/train.py jobs --data .data
    python examples/parsing/train.py ptb --data .data --epochs 8 --batch-size 32
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pybeam
from benchmarks.setup import Setup
from benchmarks.tasks import Task, Timed, in_turn
from benchmarks.tools.data import ROOT, folder_with
from examples.parsing import brackets, treebank
from examples.parsing.parser import Parser, SpanParser
from examples.semantic_parsing import questions

EXAMPLES = ROOT / "examples"
N = K = 10
BUDGET = N * K
MAX_CANDIDATES = 3
MAX_LENGTH = 150  # of logical forms


class TestSet(NamedTuple):
    """Requests and their model; `counts` of an output is what is right, out of how many.

    F1 is such a share, too: of the brackets of both trees, those that both have.
    """

    model: object
    requests: list
    counts: Callable[[int, list[int]], tuple[int, int]]
    threshold: float  # delta
    options: dict  # of all algorithms


def parsing(setup: Setup) -> Iterator[list[Task]]:
    """Logical forms and trees, at most 100 rows a step: Tables 2, 6 and 7 of Yang et al. 2020."""
    loads = {"geo": logical_forms, "atis": logical_forms, "jobs": logical_forms}
    loads |= {"ud-ewt": dependencies, "ptb": constituents}
    for name, load in loads.items():
        test = cache(lambda load=load, name=name: load(name, setup))
        yield in_turn(
            name,
            {method: lambda m=method, test=test: Parsing(test(), m) for method in METHODS},
        )


def logical_forms(name: str, setup: Setup) -> TestSet:
    folder = folder_with(questions.FILES[name][0], setup.data)
    test = questions.load(name, folder).test[: setup.lines]
    directory = trained(EXAMPLES / "semantic_parsing" / name)
    model, tokenizer = pybeam.load_model(directory, device="cpu"), pybeam.load_tokenizer(directory)

    def counts(i: int, tokens: list[int]) -> tuple[int, int]:
        return int(tokenizer.decode(tokens) == " ".join(test[i].form)), 1

    requests = [tokenizer.encode(" ".join(question.text)) for question in test]
    return TestSet(model, requests, counts, 10.0, {"max_length": MAX_LENGTH})


def dependencies(name: str, setup: Setup) -> TestSet:
    path = f"{name}/test.conllu"
    sentences = treebank.read(folder_with(path, setup.data) / path)[: setup.lines]
    model = Parser.load(EXAMPLES / "parsing" / name)

    def counts(i: int, tokens: list[int]) -> tuple[int, int]:
        actions = [model.actions.action_of(token) for token in tokens]
        built = treebank.tree(len(sentences[i].words), actions)
        return treebank.num_correct(sentences[i], *built), len(sentences[i].words)

    requests = [model.request(sentence) for sentence in sentences]
    return TestSet(model, requests, counts, 2.5, {"processors": (model.legal_actions,)})


def constituents(name: str, setup: Setup) -> TestSet:
    path = f"{name}/test.mrg"
    text = (folder_with(path, setup.data) / path).read_text("utf-8")
    trees = brackets.read(text)[: setup.lines]
    model = SpanParser.load(trained(EXAMPLES / "parsing" / name))

    def counts(i: int, tokens: list[int]) -> tuple[int, int]:
        labels = brackets.built([model.actions.action_of(token) for token in tokens])
        return brackets.counts(trees[i], labels)

    requests = [model.request(tree) for tree in trees]
    return TestSet(model, requests, counts, 2.5, {"processors": (model.legal_actions,)})


def trained(directory: Path) -> Path:
    """The folder of a model.

    Raises:
        FileNotFoundError: it is not trained yet.
    """
    if not (directory / "model.safetensors").exists():
        script = (directory.parent / "train.py").relative_to(ROOT)
        raise FileNotFoundError(
            f"{directory} has no model; after `make data`, train it with "
            f"`python {script} {directory.name} --data .data`"
        )
    return directory


# what searches, and how it is scheduled; FIXED is the baseline
METHODS = {
    "FIXED": ("fixed", lambda window: pybeam.Batch(N, window=window)),
    "GREEDY": ("greedy", lambda window: pybeam.Batch(BUDGET, window=window)),
    "VAR-BATCH": ("variable", lambda window: pybeam.Batch(N, window=window)),
    "VAR-STREAM": (
        "variable",
        lambda window: pybeam.Streaming(N, row_budget=BUDGET, window=window),
    ),
    "VAR-STR-FIFO": ("variable", lambda window: pybeam.Fifo(N, row_budget=BUDGET, window=window)),
}


class Parsing:
    """One method on one test set: what is timed."""

    def __init__(self, test: TestSet, method: str) -> None:
        search, schedule = METHODS[method]
        options = dict(test.options)
        if search == "greedy":
            algorithm = pybeam.greedy(**options)
        elif search == "fixed":
            algorithm = pybeam.fixed_beam(K, n_best=K, **options)
        else:
            limits = test.threshold, MAX_CANDIDATES
            algorithm = pybeam.variable_beam(K, *limits, n_best=K, **options)
        self._test = test
        self._decoder = pybeam.Decoder(test.model, algorithm, schedule(len(test.requests)))

    def __call__(self) -> list[list[list[int]]]:
        results = self._decoder.decode(self._test.requests)
        return [[hypothesis.tokens for hypothesis in result.hypotheses] for result in results]

    def columns(self, timed: Timed) -> dict:
        first, best = [], []
        for i, outputs in enumerate(timed.output):
            found = [self._test.counts(i, tokens) for tokens in outputs]
            first.append(found[0])
            best.append(max(found, key=share))
        stats = self._decoder.stats
        return {
            "top 1": percentage(first),
            "oracle": percentage(best),
            "steps": stats.steps,
            "expansions": stats.expansions,
            "exp/step": stats.expansions_per_step,
        }


def share(counts: tuple[int, int]) -> float:
    """The part that is right; 1 if there is nothing, as in a tree of punctuation alone."""
    right, total = counts
    return right / total if total else 1.0


def percentage(counts: list[tuple[int, int]]) -> float:
    """The share of all that is right."""
    right, total = map(sum, zip(*counts, strict=True))
    return 100 * share((right, total))
