"""Translate a few verses with three algorithms, and show what each finds and what it costs.

python examples/demo.py
"""

import time
from pathlib import Path

import torch

import pybeam
from pybeam import backends

MODEL = Path(__file__).parent / "models" / "bible-es-en"

VERSES = (
    "Pedid, y se os dará; buscad, y hallaréis; llamad, y se os abrirá.",
    "Mirad las aves del cielo, que no siembran, ni siegan.",
    "Y fué la tarde y la mañana el día primero.",
    "El temor de Jehová es el principio de la sabiduría.",
)

# without it hypotheses are ranked by their plain sums, and short ones win too often
PER_TOKEN = pybeam.scoring.power(1.0)
ALGORITHMS = {
    "greedy": pybeam.greedy(scoring=PER_TOKEN),
    "fixed 5": pybeam.fixed_beam(5, scoring=PER_TOKEN),
    "variable 5": pybeam.variable_beam(5, threshold=2.0, max_candidates=3, scoring=PER_TOKEN),
}


def describe_backend() -> str:
    """Name the kernels in use. If they are the slow ones, say what is missing."""
    if "native" in backends.available():
        return f"native C++ kernels, instruction set {torch.ops.pybeam.isa()}"
    try:
        backends.load("native")
    except ValueError as error:
        return f"reference kernels, which are slow: {error}"


def decode_all(model: pybeam.Model, sources: list[list[int]]) -> dict[str, tuple]:
    """Decode all sources at once; return results, stats and seconds by algorithm."""
    outcomes = {}
    for name, algorithm in ALGORITHMS.items():
        decoder = pybeam.Decoder(model, algorithm)
        start = time.perf_counter()
        results = decoder.decode(sources)
        outcomes[name] = results, decoder.stats, time.perf_counter() - start
    return outcomes


def main() -> None:
    print(
        f"pybeam {pybeam.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    print(describe_backend())
    model = pybeam.load_model(MODEL)
    tokenizer = pybeam.load_tokenizer(MODEL)
    sources = tokenizer.encode(VERSES)
    decode_all(model, sources)  # warm up: the first calls allocate memory
    outcomes = decode_all(model, sources)

    print("\nscore: log-probability of the translation per token, higher is better")
    print("expansions: hypotheses sent through the model, which is what takes the time\n")
    for i, verse in enumerate(VERSES):
        print(verse)
        for name, (results, _, _) in outcomes.items():
            result = results[i]
            best = result.hypotheses[0]
            print(
                f"  {name:<12}{best.final_score:>7.2f} {result.steps:>3} steps {result.expansions:>4} "
                f"expansions  {tokenizer.decode(best.tokens)}"
            )
    print(f"\n{'all verses':<14}{'seconds':>8}{'steps':>7}{'expansions':>12}{'per step':>10}")
    for name, (_, stats, seconds) in outcomes.items():
        print(
            f"  {name:<12}{seconds:>8.3f}{stats.steps:>7}{stats.expansions:>12}"
            f"{stats.expansions_per_step:>10.1f}"
        )
    print("\nNext: .venv/bin/pybeam translate --help, and README.md")


if __name__ == "__main__":
    main()
