"""One model decoded in three ways: by our kernels, by ONNX Runtime under our search, by one ONNX graph.

python -m benchmarks.bench_onnx [--lines 128] [--n 64] [--width 5] [--repeats 3]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import pybeam
from benchmarks import corpus, report
from benchmarks.bench_translate import CHOSEN_ON_DEV, MAX_LENGTH, NORMALISED, Ours
from pybeam.export import export_onnx


class Graph:
    """`search.onnx` on batches of n sources of like length."""

    def __init__(self, path: Path, width: int, n: int, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(path, options)
        self._width, self._n = width, n

    def __call__(self, sources: list[list[int]]) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in sources]
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        for start in range(0, len(order), self._n):
            part = order[start : start + self._n]
            lengths = np.array([len(sources[i]) for i in part])
            token = np.zeros((len(part), lengths.max()), dtype=np.int64)
            for line, i in zip(token, part, strict=True):
                line[: len(sources[i])] = sources[i]
            inputs = {
                "source": token,
                "source_length": lengths,
                "width": np.array(self._width),
                "max_length": np.array(MAX_LENGTH),
                "length_penalty": np.array(NORMALISED.alpha, dtype=np.float32),
            }
            tokens, found, *_ = self._session.run(None, inputs)
            for line, length, i in zip(tokens[:, 0], found[:, 0], part, strict=True):
                outputs[i] = line[:length].tolist()
        return outputs


def ways(options: argparse.Namespace, folder: Path) -> dict[str, Callable]:
    """The fixed beam in every way, and a beam that prunes in those that can."""
    model = pybeam.load_model(corpus.MODEL, device="cpu", dtype="float32")
    export_onnx(model, folder)
    exported = pybeam.load_model(folder)
    limits = dict(max_length=MAX_LENGTH, scoring=NORMALISED)
    fixed = pybeam.fixed_beam(options.width, **limits)
    variable = pybeam.variable_beam(options.width, *CHOSEN_ON_DEV[5], **limits)
    batch, fifo = pybeam.Batch(options.n), pybeam.Fifo(options.n)
    graph = Graph(folder / "search.onnx", options.width, options.n, options.threads)
    return {
        "fixed, pybeam": Ours(model, fixed, batch),
        "fixed, ONNX Runtime under the engine": Ours(exported, fixed, batch),
        "fixed, one graph": graph,
        "variable, pybeam, Fifo": Ours(model, variable, fifo),
        "variable, ONNX Runtime under the engine, Fifo": Ours(exported, variable, fifo),
    }


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    data = corpus.load(options.data, options.split, options.lines)
    with tempfile.TemporaryDirectory() as folder:
        decoders = ways(options, Path(folder))
    for decoder in decoders.values():
        decoder(data.sources[:2])
    runs = {name: (lambda d=d: d(data.sources)) for name, d in decoders.items()}
    seconds, outputs = report.interleaved_medians(runs, options.repeats)
    rows = [
        {
            "way": name,
            "lines/s": len(data.sources) / seconds[name],
            "speed": seconds["fixed, pybeam"] / seconds[name],
            "BLEU": data.bleu(outputs[name]),
        }
        for name in runs
    ]
    print(report.table(rows))
    settings = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    versions = {"onnxruntime": onnxruntime.__version__}
    report.write("onnx-cpu", options.output, {"settings": settings | versions, "rows": rows})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    corpus.add_options(parser)
    parser.add_argument("--lines", type=int, default=128, help="take that many lines only")
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--n", type=int, default=64, help="sources decoded at once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
