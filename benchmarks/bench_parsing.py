"""Tables 2 and 7 of Yang et al. 2020: semantic and syntactic parsing under a budget of 100 rows a step.

python -m benchmarks.bench_parsing [--only geo atis ud-ewt] [--data DIR] [--repeats 3]

GREEDY decodes 100 sources at once, FIXED and VAR-BATCH 10 with k = 10; VAR-STREAM moves whole beams until
the next would exceed 100 rows. M = 3; delta = 10, or 2.5 for dependency trees. All sort the whole test set
by length. The metric is exact match of logical forms, with placeholders for the constants that a question
names, or LAS (labelled attachment, punctuation included, relations without subtypes); "oracle" is that of
the best of all that each search finds.

Steps, expansions and metrics are exact; only seconds depend on the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import pybeam
from benchmarks import corpus, report
from benchmarks.bench_translate import vars_of
from examples.parsing import treebank
from examples.parsing.parser import Parser
from examples.semantic_parsing import questions
from pybeam.models.base import Model

EXAMPLES = corpus.ROOT / "examples"
N = K = 10
BUDGET = N * K
MAX_CANDIDATES = 3
MAX_LENGTH = 150  # of logical forms


class Task(NamedTuple):
    """A test set with its model."""

    model: Model
    requests: list
    counts: Callable[
        [int, list[int]], tuple[int, int]
    ]  # of an output: what is right, out of how many
    threshold: float  # delta
    options: dict  # of all algorithms


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    for name in options.only:
        task = dependencies(options) if name == "ud-ewt" else logical_forms(name, options)
        table = measured(task, options.repeats)
        print(f"\n{name}\n{report.table(table)}", flush=True)
        data = {"settings": vars_of(options), "table": table}
        report.write(f"parsing-{name}-cpu", options.output, data)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    tasks = ("geo", "atis", "ud-ewt")
    parser.add_argument("--only", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--data", type=Path, default=corpus.DATA.parent)
    parser.add_argument("--lines", type=int, help="take that many sources only")
    parser.add_argument("--repeats", type=int, default=3, help="seconds are their median")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="the JSON file, where there is one table")
    return parser.parse_args()


def logical_forms(name: str, options: argparse.Namespace) -> Task:
    test = questions.load(name, options.data).test[: options.lines]
    directory = EXAMPLES / "semantic_parsing" / name
    model, tokenizer = pybeam.load_model(directory, device="cpu"), pybeam.load_tokenizer(directory)

    def counts(i: int, tokens: list[int]) -> tuple[int, int]:
        return int(tokenizer.decode(tokens) == " ".join(test[i].form)), 1

    requests = [tokenizer.encode(" ".join(question.text)) for question in test]
    return Task(model, requests, counts, 10.0, {"max_length": MAX_LENGTH})


def dependencies(options: argparse.Namespace) -> Task:
    path = options.data / "ud-ewt" / "test.conllu"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; pass --data DIR with ud-ewt/test.conllu")
    sentences = treebank.read(path)[: options.lines]
    model = Parser.load(EXAMPLES / "parsing" / "ud-ewt")

    def counts(i: int, tokens: list[int]) -> tuple[int, int]:
        actions = [model.actions.action_of(token) for token in tokens]
        built = treebank.tree(len(sentences[i].words), actions)
        return treebank.num_correct(sentences[i], *built), len(sentences[i].words)

    requests = [model.request(sentence) for sentence in sentences]
    return Task(model, requests, counts, 2.5, {"processors": (model.legal_actions,)})


def measured(task: Task, repeats: int) -> list[dict]:
    """The table of a task."""
    plan = methods(task)
    runs = {name: (lambda d=decoder: d.decode(task.requests)) for name, decoder in plan.items()}
    seconds, results = report.interleaved_medians(runs, repeats)
    return [row(name, plan[name], seconds[name], results[name], task) for name in plan]


def methods(task: Task) -> dict[str, pybeam.Decoder]:
    """The rows of the tables."""
    options, window = task.options, len(task.requests)
    fixed = pybeam.fixed_beam(K, n_best=K, **options)
    variable = pybeam.variable_beam(K, task.threshold, MAX_CANDIDATES, n_best=K, **options)
    plan = {
        "GREEDY": (pybeam.greedy(**options), pybeam.Batch(BUDGET, window=window)),
        "FIXED": (fixed, pybeam.Batch(N, window=window)),
        "VAR-BATCH": (variable, pybeam.Batch(N, window=window)),
        "VAR-STREAM": (variable, pybeam.Streaming(N, row_budget=BUDGET, window=window)),
        "VAR-STR-FIFO": (variable, pybeam.Fifo(N, row_budget=BUDGET, window=window)),
    }
    return {name: pybeam.Decoder(task.model, *settings) for name, settings in plan.items()}


def row(
    name: str, decoder: pybeam.Decoder, seconds: float, results: list[pybeam.Result], task: Task
) -> dict:
    best = oracle = total = 0
    for i, result in enumerate(results):
        found = [task.counts(i, hypothesis.tokens) for hypothesis in result.hypotheses]
        best += found[0][0]
        oracle += max(right for right, _ in found)
        total += found[0][1]
    stats = decoder.stats
    return {
        "method": name,
        "top 1": 100 * best / total,
        "oracle": 100 * oracle / total,
        "seconds": seconds,
        "steps": stats.steps,
        "expansions": stats.expansions,
        "exp/step": stats.expansions_per_step,
    }


if __name__ == "__main__":
    main()
