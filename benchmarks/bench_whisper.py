"""Whisper as a built-in model beside the same network wrapped: seconds of a batch, encoder included.

python -m benchmarks.bench_whisper [--repeats 3] [--threads 2]

Whisper tiny in all its sizes but a vocabulary of 16,000, random weights, four sources of 30 seconds of
noise, 32 tokens each; the searches are the same and take turns.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import pybeam
from benchmarks import report
from benchmarks.bench_huggingface import speech

WIDTHS = (1, 5)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    case = speech(5, 4, 32)
    sources = list(case.inputs["input_features"])  # [F, E] of each
    with tempfile.TemporaryDirectory() as directory:
        case.network.save_pretrained(directory)
        model = pybeam.load_model(directory, device="cpu")
    wrapped = pybeam.models.huggingface.wrap(case.network)
    rows = []
    for width in WIDTHS:
        search = pybeam.fixed_beam(width, min_length=31, max_length=32)
        theirs, ours = pybeam.Decoder(wrapped, search), pybeam.Decoder(model, search)
        frames = [source.t() for source in sources]
        runs = {
            "wrapped": lambda theirs=theirs: theirs.decode(sources),
            "built in": lambda ours=ours, frames=frames: ours.decode(frames),
        }
        seconds, results = report.interleaved_medians(runs, options.repeats)
        tokens = [[r.hypotheses[0].tokens for r in found] for found in results.values()]
        same = [one == other for one, other in zip(*tokens, strict=True)]
        rows.append(
            {
                "width": width,
                **{f"{name} s": value for name, value in seconds.items()},
                "times faster": seconds["wrapped"] / seconds["built in"],
                "same outputs": sum(same) / len(same),
            }
        )
    print(report.table(rows))
    report.write("whisper-cpu", options.output, {"repeats": options.repeats, "rows": rows})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
