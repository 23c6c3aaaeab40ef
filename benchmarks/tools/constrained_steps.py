"""The time that constraints add to a step of the example model: 64 sources, five places each.

python -m benchmarks.tools.constrained_steps            print milliseconds of a step, with nine repeats
python -m benchmarks.tools.constrained_steps --threads 1

All kinds decode in turn, again and again. Printed are the least milliseconds of a step by the clock, of
processors, and of the thread of the search, and how much more they are than without a constraint. A JSON
schema has two lines: its masks are made within the call, or while the model computes. `llguidance` is the
time of processors within that library, and `ours` the rest of what the schema adds, as a share of the step
without one. Bans of eight pairs of tokens have a line in each form, and phrases one for each number of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import pybeam
from benchmarks.corpus import MODEL
from pybeam import processors
from pybeam.automata import Automaton
from pybeam.automata.grammars import Grammar
from pybeam.processors import grammars

SOURCES, WIDTH, STEPS = 64, 5, 24
SEED = 0
CLOCKS = time.perf_counter, time.process_time, time.thread_time
CONTEXTS, FOLLOWERS = 400, 20
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 60} for name in ("speaker", "about")},
    "required": ["speaker", "about"],
    "additionalProperties": False,
}


def sparse(tokens: list[int]) -> Automaton:
    """One token of thirty may follow."""
    few = tokens[::30]
    return Automaton.build([True], source=[0] * len(few), token=few, target=[0] * len(few))


def dense(tokens: list[int]) -> Automaton:
    """All tokens but one of seventeen may follow."""
    most = [token for token in tokens if token % 17]
    return Automaton.build([True], source=[0] * len(most), token=most, target=[0] * len(most))


def n_grams(tokens: list[int]) -> Automaton:
    """Contexts with a few tokens each, which look further in one that weighs all."""
    draw = np.random.default_rng(SEED)
    source, token = [0] * len(tokens), list(tokens)
    for state in range(1, CONTEXTS + 1):
        own = sorted({*draw.choice(tokens, FOLLOWERS).tolist()})
        source, token = source + [state] * len(own), token + own
    fails, others = [0] * CONTEXTS, [-1] * CONTEXTS
    return Automaton.build(
        np.zeros(CONTEXTS + 1),
        source=source,
        token=token,
        target=[1 + one % CONTEXTS for one in token],
        weight=draw.normal(size=len(token)),
        failure=[-1, *fails],
        other=[0, *others],
        other_weight=[-5.0] + [-0.3] * CONTEXTS,
        allows_cuts=True,
    )


def without(pairs: list[list[int]]) -> Automaton:
    """No output has one of these pairs, whose second tokens begin none."""
    num, firsts = len(pairs), [first for first, _ in pairs]
    source = [state for state in range(num + 1) for _ in firsts]
    return Automaton.build(
        [True] * (num + 1),
        source=[*source, *range(1, num + 1)],
        token=[*firsts * (num + 1), *(second for _, second in pairs)],
        target=[*list(range(1, num + 1)) * (num + 1), *[-1] * num],
        other=[0] * (num + 1),
    )


class Clock:
    """Seconds of processors within llguidance, while nobody else computes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in "step", "masks":
            setattr(Grammar, name, self._timed(getattr(Grammar, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begun = time.process_time()
            found = function(*arguments)
            self.seconds += time.process_time() - begun
            return found

        return timed


def run(num_repeats: int, only: list[str] | None) -> None:
    model, tokenizer = pybeam.load_model(MODEL), pybeam.load_tokenizer(MODEL)
    draw = np.random.default_rng(SEED)
    sources = draw.integers(10, model.vocab_size - 10, (SOURCES, 30)).tolist()
    tokens = [one for one in range(3, model.vocab_size) if one not in model.eos_ids]
    chains: dict[str, list[Any]] = {"no constraint": []}
    for build in sparse, dense, n_grams:
        chains[build.__name__] = [processors.constraint(build(tokens))]
    pairs = [tokens[50 * n : 50 * n + 2] for n in range(8)]
    chains["bans, edits"] = [processors.suppress_sequences(pairs)]
    chains["bans, automaton"] = [processors.constraint(without(pairs))]
    for num in 1, 4:
        chains[f"phrases, {num}"] = [processors.must_contain(pairs[:num])]
    for name in "schema, within", "schema, beside":
        chains[name] = [processors.json_schema(SCHEMA, tokenizer)]
    if only is not None:
        chains = {name: chains[name] for name in ("no constraint", *only)}
    decoders = {
        name: pybeam.Decoder(model, pybeam.fixed_beam(WIDTH, max_length=STEPS, processors=chain))
        for name, chain in chains.items()
    }
    clock = Clock()
    seconds: dict[str, list[tuple[float, ...]]] = {name: [] for name in chains}
    of_library: list[float] = []
    for repeat in range(num_repeats + 1):
        for name, decoder in decoders.items():
            is_beside = name.endswith("beside")
            grammars.works_beside = lambda device, is_beside=is_beside: is_beside
            clock.seconds, begun = 0.0, [read() for read in CLOCKS]
            results = decoder.decode(sources)
            took = [read() - before for read, before in zip(CLOCKS, begun, strict=True)]
            num_steps = max(result.steps for result in results)
            # the first run of each makes arrays
            if repeat:
                seconds[name].append(tuple(one / num_steps for one in took))
            if repeat and name == "schema, within":
                of_library.append(clock.seconds / num_steps)
    least = {name: [min(one) for one in zip(*own, strict=True)] for name, own in seconds.items()}
    plain = least["no constraint"]
    for name, own in least.items():
        columns = (
            f"{1e3 * one:8.2f} {100 * (one / p - 1):+6.1f} %"
            for one, p in zip(own, plain, strict=True)
        )
        print(f"{name:16}", *columns)
    if "schema, within" not in least:
        return
    ours = least["schema, within"][1] - plain[1] - min(of_library)
    print(f"llguidance {1e3 * min(of_library):.2f} ms a step; ours {100 * ours / plain[1]:.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--only", nargs="+", metavar="KIND", help="some kinds, beside no constraint"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    run(arguments.repeats, arguments.only)


if __name__ == "__main__":
    main()
