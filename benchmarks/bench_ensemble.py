"""Ensembles under every schedule, as Tables 1 and 3 of Yang et al. 2020 time them: five members.

python -m benchmarks.bench_ensemble [--members 5] [--noise 0.03] [--lines 64] [--repeats 1]

The members are the example model with noise in its weights: as costly as five trained models, which is
what is timed; their BLEU says only that they still translate.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import pybeam
from benchmarks import corpus, report
from benchmarks.bench_streaming import EPSILON, row, variable
from benchmarks.bench_translate import MAX_LENGTH, NORMALISED, Ours


def perturb(source: Path, target: Path, noise: float, seed: int) -> None:
    """Copy a model; every weight w of a tensor becomes w + noise * std(tensor) * N(0, 1)."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    for name, weight in weights.items():
        scale = noise * weight.float().std(correction=0)
        change = scale * torch.randn(weight.shape, generator=generator)
        weights[name] = (weight.float() + change).to(weight.dtype)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def methods(width: int, n: int) -> dict[str, tuple]:
    """The main setting of the paper, k = 50, delta = 1.5, M = 5, epsilon = 1/6, and the fixed beam."""
    fixed = pybeam.fixed_beam(width, max_length=MAX_LENGTH, scoring=NORMALISED)
    pruned = variable(width)
    return {
        "FIXED": (fixed, pybeam.Batch(n)),
        "VAR-BATCH": (pruned, pybeam.Batch(n)),
        "VAR-STREAM": (pruned, pybeam.Streaming(n, EPSILON)),
        "VAR-STR-FIFO": (pruned, pybeam.Fifo(n, EPSILON)),
        "VAR-FIFO, epsilon = 1": (pruned, pybeam.Fifo(n)),
    }


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    data = corpus.load(options.data, options.split, options.lines)
    with tempfile.TemporaryDirectory() as folder:
        members = [Path(folder) / str(i) for i in range(options.members)]
        for seed, member in enumerate(members):
            perturb(corpus.MODEL, member, options.noise, seed)
        model = pybeam.load_model(members, device="cpu", dtype="float32")
        first = pybeam.load_model(members[0], device="cpu", dtype="float32")
    plan = {
        name: setting
        for name, setting in methods(options.width, options.n).items()
        if options.only is None or name in options.only
    }
    decoders = {name: Ours(model, *setting) for name, setting in plan.items()}
    if options.single:
        decoders |= {f"{name}, one member": Ours(first, *plan[name]) for name in plan}
    for decoder in decoders.values():
        decoder(data.sources[:2])
    runs = {name: (lambda d=d: d(data.sources)) for name, d in decoders.items()}
    seconds, outputs = report.interleaved_medians(runs, options.repeats)
    rows = [row(name, decoders[name], seconds[name], data.bleu(outputs[name])) for name in runs]
    title = f"{len(data.sources)} lines, n = {options.n}, k = {options.width}"
    print(f"{title}\n{report.table(rows)}")
    write(options, title, rows)


def write(options: argparse.Namespace, title: str, rows: list[dict]) -> None:
    """Replace this table in the results file; those of other sizes stay."""
    path = options.output or report.RESULTS / "ensemble-cpu.json"
    tables = json.loads(path.read_text())["tables"] if path.exists() else {}
    settings = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    tables[title] = {"settings": settings, "run": report.environment(), "rows": rows}
    report.write("ensemble-cpu", path, {"tables": tables})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=corpus.DATA, help="folder with dev.es and dev.en"
    )
    parser.add_argument("--split", default="dev")
    parser.add_argument("--lines", type=int, default=64, help="take that many lines only")
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--noise", type=float, default=0.03, help="as a share of a tensor's spread")
    parser.add_argument("--width", type=int, default=50)
    parser.add_argument("--n", type=int, default=64, help="sources decoded at once")
    parser.add_argument("--only", nargs="+", help="these methods only")
    parser.add_argument("--single", action="store_true", help="time one member alone too")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
