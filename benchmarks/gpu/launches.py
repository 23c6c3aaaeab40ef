"""Kernels of one decoding step on a GPU, by phase, counted without one; fails above a budget.

    python -m benchmarks.gpu.launches [--only fixed_beam ...] [--names]

A captured step costs its kernels' time and about two microseconds for each of them. Counts are those of
`count_kernels`, for 64 sources and for one, whose few rows split the work of attention. They are those of an
M2M100, and for `fixed_beam` of decoders alone in the shapes of published ones, too. Budgets stand in
`launch_budgets.py`. The table goes to launches.json, in $OUT if that is set, else in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

import pybeam
from benchmarks import decoders
from benchmarks.gpu.count_kernels import META, PHASES, step_kernels
from benchmarks.gpu.launch_budgets import BUDGETS, TARGETS
from benchmarks.journal import Journal, results_folder
from pybeam import processors
from pybeam.automata import Automaton
from pybeam.models import load_model
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm
from tests.support.tiny_models import save_tiny_model

LIMIT = dict(max_length=60)
PROCESSORS = (
    processors.repetition_penalty(1.2),
    processors.count_penalty(0.3, 0.2),
    processors.sequence_bias({(5,): 0.5, (7, 8): -1.0}),
    processors.no_repeat_ngram(3),
    processors.suppress_tokens([3, 4]),
    processors.suppress_sequences([[5], [7, 8]]),
    processors.suppress_tokens_at_start([9]),
    processors.min_length(4),
    processors.biased_prefix(0.2, [6, 7]),
)
CUTS = (processors.top_k(50), processors.top_p(0.9), processors.min_p(0.05))
PAIRS = Automaton.build([True, False], source=[0, 0, 1, 1], token=[5, 6, 5, 7], target=[1, 1, 0, 0])
ALGORITHMS: dict[str, Algorithm] = {
    "greedy": pybeam.greedy(**LIMIT),
    "fixed_beam": pybeam.fixed_beam(5, **LIMIT),
    "variable_beam": pybeam.variable_beam(5, threshold=1.5, max_candidates=5, **LIMIT),
    "optimal_beam": pybeam.optimal_beam(5, length_reward=0.5, **LIMIT),
    "stochastic_beam": pybeam.stochastic_beam(5, seed=1, **LIMIT),
    "sample": pybeam.sample(top_k=50, top_p=0.9, **LIMIT),
    "cuts": pybeam.fixed_beam(5, processors=CUTS, **LIMIT),
    "processors": pybeam.fixed_beam(5, processors=PROCESSORS, **LIMIT),
    "constraint": pybeam.fixed_beam(
        5, processors=[processors.constraint(PAIRS, stage="logits")], **LIMIT
    ),
    "constraint, log_probs": pybeam.fixed_beam(
        5, processors=[processors.constraint(PAIRS)], **LIMIT
    ),
    "must_contain": pybeam.fixed_beam(
        5, processors=[processors.must_contain([[5, 6], [7]])], **LIMIT
    ),
    "jacobi": pybeam.jacobi(**LIMIT),
    "hybrid_jacobi": pybeam.hybrid_jacobi(8, 32, **LIMIT),
}
# steps of decoders alone, by the names of their networks
DECODERS = {f"fixed_beam, {name}": name for name in decoders.SHAPES}
STEPS = (*ALGORITHMS, *DECODERS)
LAYERS = (3, 6)
# of decoders alone, whose layers are large
FEW_LAYERS = (1, 2)
SOURCES = (64, 1)
# of decoders alone: columns of logits, too many for a product of few rows, as their own
COLUMNS = 8192
IDENTITY = ("algorithm", "layers", "sources")
# those of the example model, whose values do not matter
SIZES = dict(d_model=256, decoder_ffn_dim=1024, max_position_embeddings=128, vocab_size=8000)


def main() -> None:
    options = _options()
    journal = Journal(results_folder("cpu"), "launches", IDENTITY)
    rows, failures = [], []
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        for name, num_layers, model in steps(options.only, Path(folder)):
            for num_sources in SOURCES:
                counts = kernels(model, name, num_sources)
                row = row_of(name, num_layers, num_sources, counts)
                journal.add(row)
                rows.append(row)
                if row["sum"] > row["budget"]:
                    failures.append(row)
                if options.names:
                    journal.say(f"{name}, {num_layers} layers: {listing(counts)}")
    journal.finish(rows)
    for row in failures:
        journal.say(
            f"{row['algorithm']} with {row['layers']} layers has {row['sum']} kernels for {row['sources']} "
            f"sources, and its budget is {row['budget']}; `--names` says which they are"
        )
    sys.exit(bool(failures))


def model_of(num_layers: int, folder: Path, dtype: str = "bfloat16") -> Model:
    """Make a transformer of so many decoder layers, without memory."""
    save_tiny_model(folder, "m2m_100", decoder_layers=num_layers, **SIZES)
    return load_model(folder, device=META, dtype=dtype)


def decoder_of(name: str, num_layers: int, folder: Path) -> Model:
    """Make so many layers of one of `decoders.SHAPES`, without memory."""
    sizes = dict(num_hidden_layers=num_layers, vocab_size=COLUMNS)
    decoders.save_random(name, folder, **sizes)
    return load_model(folder, device=META, dtype="bfloat16")


def steps(names: Iterable[str], folder: Path) -> Iterator[tuple[str, int, Model]]:
    """Yield the steps of these names, with the layers that they have and the models that take them."""
    models = {num: model_of(num, folder / str(num)) for num in LAYERS}
    for name in names:
        of_decoder = DECODERS.get(name)
        for num in LAYERS if of_decoder is None else FEW_LAYERS:
            own = folder / f"{of_decoder}, {num}"
            yield name, num, decoder_of(of_decoder, num, own) if of_decoder else models[num]


def kernels(model: Model, name: str, num_sources: int) -> dict[str, Counter[str]]:
    """Count the kernels of the step of that name, one of `STEPS`."""
    algorithm = ALGORITHMS["fixed_beam" if name in DECODERS else name]
    return step_kernels(model, algorithm, pybeam.Fifo(num_sources), num_sources)


def row_of(
    name: str, num_layers: int, num_sources: int, counts: dict[str, Counter[str]]
) -> dict[str, Any]:
    sums = {phase: counts[phase].total() for phase in PHASES}
    own = {"algorithm": name, "layers": num_layers, "sources": num_sources}
    limits = {"budget": BUDGETS[name][num_layers], "target": TARGETS[name].get(num_layers)}
    names = {phase: dict(own.most_common()) for phase, own in counts.items() if own}
    return {**own, **sums, "sum": sum(sums.values()), **limits, "names": names}


def listing(counts: dict[str, Counter[str]]) -> str:
    """Name the kernels of every phase, the most frequent first."""
    parts = [
        f"\n  {phase}: " + ", ".join(f"{num} {name}" for name, num in own.most_common())
        for phase, own in counts.items()
    ]
    return "".join(parts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=STEPS,
        default=STEPS,
        metavar="NAME",
        help=f"some of {', '.join(STEPS)}",
    )
    parser.add_argument("--names", action="store_true", help="list the kernels by name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
